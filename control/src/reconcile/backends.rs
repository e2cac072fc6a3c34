//! The backends of one service port on one VIP: who takes new flows, who keeps old ones, who is kept though
//! gone, and what is to be checked.
//!
//! Kubernetes says who is ready ([`choose`]), the gateway's checks who answers, the operator whom to drain; the
//! memory of the last call says who left. The weight of an endpoint is `tidegate.dev/weight` on its Pod, else
//! on its Node, else 1: twice the flows is 2, none is 0.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use tidegate_core::snapshot::{BackendSpec, BackendState, ServiceKey};

use super::Plan;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::options::{annotation_field, key};
use super::programme::{Context, obstacle};
use super::view::{BackendView, BackendViewState, BackendWhy};
use crate::diagnostic::Diagnostic;
use crate::health::{Failing, Target};
use crate::model::{
    Choice, Metadata, Port, PortEndpoints, Protocol, ResolvedEndpoint, TrafficPolicy, Viewpoint, choose,
};

/// Weight of an endpoint that says nothing.
const WEIGHT: u16 = 1;

/// The backends of one service port on one VIP.
#[derive(Default)]
pub(super) struct Backends {
    /// Sorted by address and port.
    pub(super) specs: Vec<BackendSpec>,
    pub(super) views: Vec<BackendView>,
    pub(super) targets: Vec<Target>,
    /// Addresses of ready endpoints that take new flows.
    pub(super) forwardable: BTreeSet<IpAddr>,
    /// Policy Local, and endpoints on other nodes only.
    pub(super) only_elsewhere: bool,
}

/// The checked ports of a Service, by endpoint address: what is known of the ports that cannot be checked.
///
/// A UDP port answers no handshake, so it is taken as down when every TCP port of the same endpoint and Service fails.
#[derive(Debug, Default)]
pub(super) struct Witnesses(BTreeMap<IpAddr, Vec<Target>>);

impl Witnesses {
    /// Those of a Service whose ports resolve to `ports`.
    pub(super) fn new(plan: &Plan<'_>, ports: &[PortEndpoints]) -> Self {
        let mut witnesses = Self::default();
        for port in ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
            for endpoint in port.endpoints.iter().filter(|endpoint| endpoint.ready) {
                let number = plan.options.probe_port.unwrap_or(endpoint.port).get();
                let target =
                    Target { address: SocketAddr::new(endpoint.ip, number), probe: plan.options.probe };
                witnesses.0.entry(endpoint.ip).or_default().push(target);
            }
        }
        witnesses
    }

    fn all_fail(&self, ip: IpAddr, failing: &Failing) -> bool {
        self.0.get(&ip).is_some_and(|targets| targets.iter().all(|target| failing.contains(target)))
    }
}

/// Decides the state of every endpoint, and carries over those that left.
pub(super) fn backends(
    context: &Context<'_>,
    plan: &Plan<'_>,
    service_key: ServiceKey,
    endpoints: &[ResolvedEndpoint],
    witnesses: &Witnesses,
    drains: &mut Drains,
    findings: &mut Vec<Finding>,
) -> Backends {
    let settings = context.settings();
    let policy = plan.service.external_traffic_policy;
    let viewpoint = Viewpoint { node: settings.node.as_deref(), zone: settings.zone.as_deref() };
    let choice = choose(endpoints, policy, viewpoint);
    let chosen: HashSet<(IpAddr, Port)> = choice.endpoints().iter().map(|e| (e.ip, e.port)).collect();
    let is_checked = service_key.protocol == tidegate_core::snapshot::Protocol::Tcp;
    let is_checked = is_checked || plan.options.probe_port.is_some();

    let mut result = Backends { only_elsewhere: choice == Choice::OnlyElsewhere, ..Backends::default() };
    let mut listed = BTreeSet::new();
    for endpoint in endpoints {
        if policy == TrafficPolicy::Local
            && viewpoint.node.is_some_and(|n| endpoint.node.as_deref() != Some(n))
        {
            continue;
        }
        let is_chosen = chosen.contains(&(endpoint.ip, endpoint.port));
        let probe_port = plan.options.probe_port.unwrap_or(endpoint.port).get();
        let target = Target { address: SocketAddr::new(endpoint.ip, probe_port), probe: plan.options.probe };
        if is_checked && (is_chosen || endpoint.ready) {
            result.targets.push(target);
        }
        let weight = weight(context, endpoint, findings);
        let drained = context
            .input
            .drained
            .iter()
            .any(|d| d.covers(endpoint.ip, endpoint.port.get(), endpoint.node.as_deref()));
        let failing = context.input.failing;
        let fails =
            if is_checked { failing.contains(&target) } else { witnesses.all_fail(endpoint.ip, failing) };
        let (state, why) = state(endpoint, is_chosen, fails, drained, weight);
        if state == BackendState::Active && endpoint.ready {
            result.forwardable.insert(endpoint.ip);
        }
        listed.insert(SocketAddr::new(endpoint.ip, endpoint.port.get()));
        result.push(endpoint.ip, endpoint.port.get(), weight, state, why, Some(endpoint));
    }

    let port = plan.service.ports.iter().find(|p| {
        p.port.get() == service_key.port && super::programme::service_key(service_key.vip, p) == service_key
    });
    let port = port.expect("the key was made from one of the Service's ports");
    let kept = drains.step(
        &context.input.memory.drains,
        service_key,
        &plan.service.meta.key,
        &listed,
        plan.options.drain_timeout,
        context.input.now,
    );
    for left in kept {
        let same_family = left.ip().is_ipv4() == service_key.vip.is_ipv4();
        let crosses = plan.options.mode == tidegate_core::snapshot::ForwardingMode::DsrIpip;
        // The mode may have changed since: then its flows cannot be forwarded any more.
        let reachable = obstacle(settings, plan.options.mode, port, left.ip(), left.port()).is_none();
        if reachable && (same_family || crosses) && !context.vips.contains(&left.ip()) {
            result.push(left.ip(), left.port(), WEIGHT, BackendState::Down, BackendWhy::Removed, None);
        }
    }
    result.specs.sort_by_key(|b| (b.address, b.port));
    result.views.sort_by_key(|b| (b.address, b.port));
    result
}

impl Backends {
    fn push(
        &mut self,
        address: IpAddr,
        port: u16,
        weight: u16,
        state: BackendState,
        why: BackendWhy,
        endpoint: Option<&ResolvedEndpoint>,
    ) {
        self.specs.push(BackendSpec { address, port, weight, state });
        self.views.push(BackendView {
            address,
            port,
            weight,
            state: match state {
                BackendState::Active => BackendViewState::Active,
                BackendState::Draining => BackendViewState::Draining,
                BackendState::Down => BackendViewState::Down,
            },
            why,
            node: endpoint.and_then(|e| e.node.clone()),
            zone: endpoint.and_then(|e| e.zone.clone()),
            pod: endpoint.and_then(|e| e.pod.as_ref()).map(ToString::to_string),
        });
    }
}

/// The state of an endpoint that is listed.
fn state(
    endpoint: &ResolvedEndpoint,
    is_chosen: bool,
    fails: bool,
    drained: bool,
    weight: u16,
) -> (BackendState, BackendWhy) {
    match () {
        () if is_chosen && fails => (BackendState::Down, BackendWhy::Unhealthy),
        () if drained => (BackendState::Draining, BackendWhy::Drained),
        () if is_chosen && weight == 0 => (BackendState::Draining, BackendWhy::WeightZero),
        () if is_chosen && endpoint.terminating => (BackendState::Active, BackendWhy::TerminatingChosen),
        () if is_chosen => (BackendState::Active, BackendWhy::Ready),
        () if endpoint.terminating => (BackendState::Draining, BackendWhy::Terminating),
        () if endpoint.ready => (BackendState::Draining, BackendWhy::OtherZone),
        () => (BackendState::Down, BackendWhy::NotReady),
    }
}

/// The weight of an endpoint: its Pod's, else its Node's, else 1.
fn weight(context: &Context<'_>, endpoint: &ResolvedEndpoint, findings: &mut Vec<Finding>) -> u16 {
    let objects = context.input.objects;
    let pod = endpoint.pod.as_ref().and_then(|key| objects.pods.get(key)).map(|p| &p.meta);
    let node = endpoint.node.as_ref().and_then(|name| objects.nodes.get(name)).map(|n| &n.meta);
    let said = |meta: &Metadata| meta.annotations.get(key::WEIGHT).cloned();
    for meta in [pod, node].into_iter().flatten() {
        let Some(value) = said(meta) else { continue };
        match value.trim().parse() {
            Ok(weight) => return weight,
            Err(_) => {
                let what =
                    format!("annotation {}: {value:?} is not understood, the default is used", key::WEIGHT);
                let diagnostic = Diagnostic::error(what).accepting("a number, 0 (no new flows) to 65535");
                let field = annotation_field(key::WEIGHT);
                findings.push(Finding::at(meta, &field, Reason::InvalidValue, diagnostic));
            }
        }
    }
    WEIGHT
}
