//! Computes the desired state from Kubernetes objects, health results and drains. Read it top-down to follow a Service
//! update.
//!
//! [`reconcile`] is a pure function: [`Settings`], [`Objects`], health, drains, the memory of the last call and
//! `now` give an [`Outcome`]: the [`SnapshotSpec`] for the dataplane, what to check and to listen on, what to
//! show, and every wish that was not granted, with its place. The steps:
//!
//! 1. [`plan`]: whether a Service concerns us, and what its annotations ask for ([`options`](options::options));
//! 2. [`Allocator`](crate::pools::Allocator): which addresses each Service has (`addresses`);
//! 3. [`EndpointIndex::resolve`](tidegate_model::objects::EndpointIndex::resolve): who answers for each of its ports;
//! 4. [`one_service`]: ports on addresses, with backends and their states ([`program`](program::program));
//! 5. [`one_owner_each`]: health-check node ports.
//!
//! Steps 1, 3 and 4 are about one Service at a time. [`Reconciler`] keeps what they gave, and takes them again for
//! the Services whose inputs changed: it gives what [`reconcile`] gives, at the price of what changed.
//!
//! Invariant: the order in which objects were read never shows, and nothing here reads a clock or a file.
//! Invariant: what is asked for and not done is a [`Finding`]; what cannot be done safely is not programmed.
//! Invariant: what steps 1 and 4 make of a Service depends on the settings, nodes, Pods, namespaces and drained
//! targets; on the Service itself, its slices or Endpoints, and what it was granted; on whether its endpoints are
//! VIPs and whether checks of their addresses fail; and on its own drains. Whoever adds to this adds to `incremental`
//! and `touched`.

mod addresses;
mod aliases;
mod backends;
mod candidates;
mod checkable;
mod client_address;
mod compare;
mod contested;
mod dependencies;
mod drain;
mod finding;
mod frontends;
mod health_options;
mod health_result;
mod incremental;
mod leaving;
mod nodes;
mod options;
mod pod_routes;
mod pools_of;
mod program;
mod reserved;
mod settings;
mod shares;
mod size_limits;
mod source_ranges;
mod sums;
pub mod view;
mod weights;

#[cfg(test)]
mod tests;

pub use compare::{Compared, Round};
pub use drain::{DrainTarget, Drains};
pub use finding::{Finding, ObjectKind, Reason};
pub use incremental::Reconciler;
pub use leaving::Leavings;
pub use settings::Settings;
pub use shares::Demand;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::snapshot::{RouteSpec, SharedService, SnapshotSpec};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::{HealthCheckNodePort, Target, Targets, Verdicts};
use tidegate_model::objects::{
    IpFamily, ObjectKey, Objects, Port, Service, ServiceEndpoints, ServiceType, TrafficPolicy,
};
use tidegate_model::shared_map::SharedMap;

use crate::pools::{Allocations, Granted, PoolUsage};
use options::Options;
use program::Context;
use size_limits::TooLarge;
use view::ServiceView;

/// Everything that the desired state follows from.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The gateway's own side.
    pub settings: &'a Settings,
    /// What the source has.
    pub objects: &'a Objects,
    /// What the checks found out.
    pub verdicts: &'a Verdicts,
    /// What the operator drained.
    pub drained: &'a BTreeSet<DrainTarget>,
    /// [`Outcome::memory`] of the last call; the default at the start.
    pub memory: &'a Memory,
    /// Generation of the spec to make.
    pub generation: u64,
    /// Time since the daemon started.
    pub now: Duration,
}

/// What one call leaves to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Addresses given, so that they stay.
    pub allocations: Arc<Allocations>,
    /// Backends that left, so that their flows stay.
    pub drains: Drains,
    /// What was programmed, so that flows of Services that leave stay.
    pub leavings: Leavings,
}

/// The desired state. A copy shares what it is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// For the dataplane.
    pub spec: SnapshotSpec,
    /// What was not granted, sorted, each once. The same slice as long as nothing changes there.
    pub findings: Arc<[Finding]>,
    /// Services that ask for an address, sorted by namespace and name.
    pub services: Vec<Arc<ServiceView>>,
    /// What to check.
    pub targets: Targets,
    /// What to listen on for upstream load balancers, sorted by port. The same slice as long as nothing changes there.
    pub health_check_node_ports: Arc<[HealthCheckNodePort]>,
    /// How full the pools are: those of the configuration, then AddressPools by name.
    pub pools: Vec<PoolUsage>,
    /// Services whose LoadBalancer address is ours to give.
    pub claimed: SharedMap<ObjectKey, ()>,
    /// For the next call.
    pub memory: Memory,
    /// When to call again though nothing changes: the next drain ends then.
    pub reconcile_at: Option<Duration>,
}

/// Makes the desired state.
#[must_use]
pub fn reconcile(input: &Input<'_>) -> Outcome {
    Reconciler::default().reconcile(input)
}

/// A Service that asks the gateway for an address, and how it is to be served.
pub(crate) struct Plan<'a> {
    pub(crate) service: &'a Service,
    options: &'a Options,
    wants_load_balancer: bool,
    /// The Service names more ports and addresses than it may have: none is programmed.
    too_large: Option<&'a TooLarge>,
}

/// Steps 0 and 1: whether a Service concerns us, and its options. `wants_load_balancer` is as in [`Plan`].
fn plan(
    service: &Service,
    settings: &Settings,
    findings: &mut Vec<Finding>,
) -> Option<(Options, /* wants_load_balancer */ bool)> {
    let wants_load_balancer = wants_load_balancer(service, settings);
    let asks =
        wants_load_balancer || !service.external_ips.is_empty() || frontends::asks_for_own(settings, service);
    if !asks || service.not_for_proxies().is_some() || service.meta.deletion_time.is_some() {
        return None;
    }
    findings.extend(Finding::of_faults(ObjectKind::Service, &service.meta));
    Some((options::options(service, settings, findings), wants_load_balancer))
}

/// Whether a Service's LoadBalancer address is ours to give: our class, or none where those are ours too.
fn wants_load_balancer(service: &Service, settings: &Settings) -> bool {
    service.service_type == ServiceType::LoadBalancer
        && match service.load_balancer_class.as_deref() {
            Some(class) => class == settings.load_balancer_class,
            None => settings.claims_unclassed,
        }
}

/// What one Service comes to.
#[derive(Debug)]
struct Served {
    /// Sorted by key.
    specs: Vec<SharedService>,
    view: Arc<ServiceView>,
    targets: BTreeSet<Target>,
    /// Beside those of its options.
    findings: Vec<Finding>,
    drains: Drains,
    listener: Option<HealthCheckNodePort>,
}

/// Steps 3 and 4 for one Service. Nothing of it is programmed where it, or all Services together, are `too_large`.
fn one_service(
    context: &Context<'_>,
    plan: &Plan<'_>,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    too_large: Option<&TooLarge>,
) -> Served {
    let meta = &plan.service.meta;
    let mut findings: Vec<Finding> = Vec::new();
    let mut drains = Drains::default();
    findings.extend(granted.problems.iter().map(|p| Finding::from_problem(meta, p)));
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
    status_addresses(plan, granted, &mut findings);
    let granted = pending(plan, granted);
    let mut programmed =
        program::program(context, plan, &granted, endpoints, too_large, &mut drains, &mut findings);
    let slice_faults = endpoints.slice_faults.iter().map(|(_, fault)| fault);
    let not_used = meta.faults.iter().chain(slice_faults).map(Diagnostic::placed);
    let unmatched = endpoints.unmatched.iter().map(|diagnostic| diagnostic.what.clone());
    programmed.view.warnings = not_used.chain(unmatched).collect();
    let listener = health_check_node_port(plan.service).map(|port| {
        let local_endpoints = match context.settings().node.as_deref() {
            Some(node) => {
                let ready = endpoints.ports.iter().flat_map(|p| p.ready_addresses(Some(node)));
                ready.filter(|ip| !context.vips.contains(ip)).collect::<BTreeSet<_>>().len()
            }
            None => programmed.forwardable.len(),
        };
        HealthCheckNodePort { port, service: meta.key.clone(), local_endpoints }
    });
    let mut specs = programmed.specs;
    specs.sort_by_key(|spec| spec.key);
    Served {
        specs: specs.into_iter().map(SharedService::from).collect(),
        view: Arc::new(programmed.view),
        targets: programmed.targets,
        findings,
        drains,
        listener,
    }
}

/// Says which of several addresses of one family in the status of a Service is not served: whoever reads the status
/// takes it for served.
fn status_addresses(plan: &Plan<'_>, granted: &Granted, findings: &mut Vec<Finding>) {
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
            "address {ip} in the status of Service {} is not served: {other} is, and a Service has one {family} address",
            service.meta.key
        );
        let diagnostic = Diagnostic::warning(what).accepting(format!("one {family} address in the status"));
        let at = service.stored.ingress.iter().position(|ingress| ingress.ip == Some(*ip)).unwrap_or(0);
        let field = format!("status.loadBalancer.ingress[{at}].ip");
        findings.push(Finding::at(&service.meta, &field, Reason::StatusAddressNotServed, diagnostic));
    }
}

/// What was granted, with the reason of an allocation that was never tried.
fn pending(plan: &Plan<'_>, granted: &Granted) -> Granted {
    let mut granted = granted.clone();
    if plan.wants_load_balancer && granted.pending.is_none() && granted.load_balancer.is_empty() {
        granted.pending.clone_from(&plan.options.no_allocation);
    }
    granted
}

/// The part of the spec that no Service takes part in.
fn gateway(input: &Input<'_>, pod_routes: &[RouteSpec]) -> SnapshotSpec {
    let settings = input.settings;
    SnapshotSpec {
        generation: input.generation,
        interfaces: settings.interfaces.clone(),
        routes: settings.routes.iter().chain(pod_routes).cloned().collect(),
        neighbors: settings.neighbors.clone(),
        snat_addresses: settings.snat_addresses.clone(),
        tunnel_source_v4: settings.tunnel_source_v4,
        tunnel_source_v6: settings.tunnel_source_v6,
        policy: settings.policy,
        services: Vec::new(),
    }
}

fn health_check_node_port(service: &Service) -> Option<Port> {
    let applies = service.service_type == ServiceType::LoadBalancer
        && service.external_traffic_policy == TrafficPolicy::Local;
    service.health_check_node_port.filter(|_| applies)
}

/// A port that two Services name is served for the one created first, as with addresses.
fn one_owner_each(
    mut listeners: Vec<(&Service, &HealthCheckNodePort)>,
    findings: &mut Vec<Finding>,
) -> Vec<HealthCheckNodePort> {
    listeners.sort_by(|(a, _), (b, _)| a.meta.seniority().cmp(&b.meta.seniority()));
    let mut by_port: BTreeMap<Port, &HealthCheckNodePort> = BTreeMap::new();
    for (service, listener) in listeners {
        if let Some(owner) = by_port.get(&listener.port) {
            let what = format!(
                "healthCheckNodePort {} of Service {} is not served: it belongs to Service {}",
                listener.port, listener.service, owner.service
            );
            let diagnostic = Diagnostic::error(what).accepting("a port that no other Service has");
            let field = "spec.healthCheckNodePort";
            let reason = Reason::FailedToStartServiceHealthcheck;
            findings.push(Finding::at(&service.meta, field, reason, diagnostic));
        } else {
            by_port.insert(listener.port, listener);
        }
    }
    by_port.into_values().cloned().collect()
}
