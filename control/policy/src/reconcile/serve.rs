//! Steps 3 and 4 for one Service: resolves its endpoints, programs its ports, and reports the requests that were not
//! granted. The result is kept until one of its [`Dependencies`] changes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::{HealthCheckNodePort, Target};
use tidegate_model::objects::{IpFamily, Service, ServiceEndpoints};
use tidegate_spec::SharedService;

use super::context::{Collector, Context};
use super::dependencies::Dependencies;
use super::drain::Drains;
use super::finding::{Finding, ObjectKind, Reason};
use super::finding_limit::{NotMade, limited};
use super::health_check_node_ports::health_check_node_port;
use super::plan::{Plan, Planned};
use super::program;
use super::size_limits::TooLarge;
use super::view::ServiceView;
use crate::pools::Granted;

/// A Service with the results of steps 3 and 4.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) service: Arc<Service>,
    pub(super) served: Served,
    /// The findings about its options, and the findings of [`Served`].
    pub(super) findings: Vec<Finding>,
    pub(super) deadline: Option<Duration>,
    pub(super) dependencies: Dependencies,
}

/// The result for one Service.
#[derive(Debug)]
pub(super) struct Served {
    /// Sorted by key.
    pub(super) specs: Vec<SharedService>,
    pub(super) view: Arc<ServiceView>,
    pub(super) targets: BTreeSet<Target>,
    /// The findings beyond those about its options.
    pub(super) findings: Vec<Finding>,
    pub(super) drains: Drains,
    pub(super) listener: Option<HealthCheckNodePort>,
}

impl Served {
    /// Replaces each value that equals the previous value with the previous value, so that later comparisons by pointer
    /// find them unchanged.
    pub(super) fn share(&mut self, before: &Self) {
        if self.view == before.view {
            self.view = Arc::clone(&before.view);
        }
        for spec in &mut self.specs {
            let known = before.specs.binary_search_by_key(&spec.key, |known| known.key);
            if let Ok(at) = known
                && before.specs[at] == *spec
            {
                *spec = before.specs[at].clone();
            }
        }
    }
}

/// The maximum number of warnings in the view of a Service: users decide how many EndpointSlices it has.
const WARNINGS_MAX: usize = 32;

/// Performs steps 3 and 4 for one Service. Returns the result with its dependencies.
pub(super) fn serve(
    context: &Context<'_>,
    planned: &Planned,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    too_large: Option<&TooLarge>,
) -> Entry {
    let served = one_service(context, planned.plan(), granted, endpoints, too_large);
    let checked = served.targets.iter().map(|target| target.address.ip());
    let forwarded = served.specs.iter().flat_map(|spec| &spec.backends).map(|backend| backend.address);
    let left = served.drains.addresses();
    let addresses: BTreeSet<IpAddr> = checked.chain(forwarded).chain(left).collect();
    let dependencies = Dependencies::new(context, &planned.plan(), endpoints, addresses.into_iter());
    Entry {
        service: Arc::clone(&planned.service),
        findings: planned.findings.iter().chain(&served.findings).cloned().collect(),
        deadline: served.drains.next_deadline(),
        dependencies,
        served,
    }
}

/// Performs steps 3 and 4 for one Service. With `too_large`, none of its ports is programmed.
fn one_service(
    context: &Context<'_>,
    plan: Plan<'_>,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    too_large: Option<&TooLarge>,
) -> Served {
    let meta = &plan.service.meta;
    let mut collector = Collector::new(context, plan);
    let findings = &mut collector.findings;
    findings.extend(granted.problems.list().iter().map(|p| Finding::from_problem(meta, p)));
    let about = |reason, diagnostics: &[Diagnostic]| {
        let finding = |d: &Diagnostic| {
            let (object, diagnostic) = (meta.key.clone(), d.clone());
            Finding { object, kind: ObjectKind::Service, reason, diagnostic }
        };
        diagnostics.iter().map(finding).collect::<Vec<_>>()
    };
    findings.extend(about(Reason::EndpointRefused, &endpoints.findings));
    findings.extend(about(Reason::NoMatchingPort, &endpoints.unmatched));
    let of_slices = endpoints.slice_faults.iter();
    findings
        .extend(of_slices.map(|(slice, fault)| Finding::of_fault(ObjectKind::EndpointSlice, slice, fault)));
    status_addresses(&mut collector, granted);
    let granted = pending(plan, granted);
    let mut programmed = program::program(&mut collector, &granted, endpoints, too_large);
    let slice_faults = endpoints.slice_faults.iter().map(|(_, fault)| fault);
    let not_used = meta.faults.iter().chain(slice_faults).map(Diagnostic::with_location);
    let unmatched = endpoints.unmatched.iter().map(|diagnostic| diagnostic.what.clone());
    let mut warnings = not_used.chain(unmatched);
    programmed.view.warnings = warnings.by_ref().take(WARNINGS_MAX).collect();
    let more = warnings.count();
    if more > 0 {
        programmed.view.warnings.push(format!("and {more} more"));
    }
    let listener = health_check_node_port(plan.service).map(|port| {
        let local_endpoints = match context.settings().node.as_deref() {
            Some(node) => {
                let ready = endpoints.ports.iter().flat_map(|p| p.ready_addresses(Some(node)));
                ready.filter(|ip| !context.refuses_endpoint(ip)).collect::<BTreeSet<_>>().len()
            }
            None => programmed.forwardable.len(),
        };
        HealthCheckNodePort { port, service: meta.key.clone(), local_endpoints }
    });
    let mut specs = programmed.specs;
    specs.sort_by_key(|spec| spec.key);
    let not_described = granted.problems.not_described();
    let not_made: Vec<NotMade> =
        not_described.map(|(kind, count, worst)| (Reason::of_problem(kind), count, worst)).collect();
    Served {
        specs: specs.into_iter().map(SharedService::from).collect(),
        view: Arc::new(programmed.view),
        targets: programmed.targets,
        findings: limited(meta, collector.findings, &not_made),
        drains: collector.drains,
        listener,
    }
}

/// If the status of a Service has several addresses of one family, reports the addresses that are not served, because
/// readers of the status assume that all are.
fn status_addresses(collector: &mut Collector<'_>, granted: &Granted) {
    let plan = collector.plan;
    let service = plan.service;
    let ips = &service.ingress_ips;
    if !plan.wants_load_balancer || ips.len() < 2 {
        return;
    }
    let served = |ip: &IpAddr| granted.load_balancer.iter().any(|assigned| assigned.address == *ip);
    for ip in ips.iter().filter(|ip| !served(ip)) {
        let family = IpFamily::of(*ip);
        let Some(other) = ips.iter().find(|other| served(other) && IpFamily::of(**other) == family) else {
            continue;
        };
        let what = format!(
            "address {ip} in the status of Service {} is not served: a Service has only one {family} address, \
             and {other} is served",
            service.meta.key
        );
        let diagnostic = Diagnostic::warning(what).accepting(format!("one {family} address in the status"));
        let at = service.stored.ingress.iter().position(|ingress| ingress.ip == Some(*ip)).unwrap_or(0);
        let field = format!("status.loadBalancer.ingress[{at}].ip");
        collector.find(&field, Reason::StatusAddressNotServed, diagnostic);
    }
}

/// The granted addresses. If there are none because the request is invalid, `pending` contains the reason.
fn pending(plan: Plan<'_>, granted: &Granted) -> Granted {
    let mut granted = granted.clone();
    if plan.wants_load_balancer && granted.pending.is_none() && granted.load_balancer.is_empty() {
        granted.pending.clone_from(&plan.options.addresses.no_allocation);
    }
    granted
}
