//! One Service while it is programmed: its inputs, and the findings so far.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ResolvedEndpoint, ServicePort};

use super::context::Context;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::planned::Plan;

/// The state of one Service during step 4. Every function of that step receives it and adds to it.
pub(super) struct Collector<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) plan: Plan<'a>,
    /// The findings, in the order in which they were made.
    pub(super) findings: Vec<Finding>,
    /// The backends that are listed now, and those that left and are kept.
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
    /// A collector without findings.
    pub(super) fn new(context: &'a Context<'a>, plan: Plan<'a>) -> Self {
        Self { context, plan, findings: Vec::new(), drains: Drains::default() }
    }

    /// Adds a finding about the value at `field` of the Service.
    pub(super) fn find(&mut self, field: &str, reason: Reason, diagnostic: Diagnostic) {
        self.findings.push(Finding::at(&self.plan.service.meta, field, reason, diagnostic));
    }
}

impl PortAt<'_> {
    /// The path of the port in the Service.
    pub(super) fn field(&self) -> String {
        format!("spec.ports[{}]", self.i)
    }
}
