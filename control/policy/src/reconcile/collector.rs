//! One Service while it is programmed: what is known of it, and what is found on the way.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ResolvedEndpoint, ServicePort};

use super::context::Context;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::planned::Plan;

/// See the module. Every function of step 4 is given it, and adds to it.
pub(super) struct Collector<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) plan: Plan<'a>,
    /// What is not granted, in the order in which it was found.
    pub(super) findings: Vec<Finding>,
    /// Backends that are listed now, and those that left and are kept.
    pub(super) drains: Drains,
}

/// One port of the Service on one of its addresses, with what it resolved to.
#[derive(Clone, Copy)]
pub(super) struct PortAt<'a> {
    /// Its index in `spec.ports`.
    pub(super) i: usize,
    pub(super) port: &'a ServicePort,
    pub(super) frontend: Frontend,
    pub(super) endpoints: &'a [ResolvedEndpoint],
}

impl<'a> Collector<'a> {
    /// Nothing was found yet.
    pub(super) fn new(context: &'a Context<'a>, plan: Plan<'a>) -> Self {
        Self { context, plan, findings: Vec::new(), drains: Drains::default() }
    }

    /// Adds a finding about the value at `field` of the Service.
    pub(super) fn find(&mut self, field: &str, reason: Reason, diagnostic: Diagnostic) {
        self.findings.push(Finding::at(&self.plan.service.meta, field, reason, diagnostic));
    }
}

impl PortAt<'_> {
    /// The place of the port in the Service.
    pub(super) fn field(&self) -> String {
        format!("spec.ports[{}]", self.i)
    }
}
