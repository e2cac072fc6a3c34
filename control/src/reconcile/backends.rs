//! The backends of one service port on one VIP: who takes new flows, who keeps old ones, who is kept though
//! gone, and what is to be checked.
//!
//! Kubernetes says who is ready ([`choose`]), the gateway's checks who answers, the operator whom to drain; the
//! memory of the last call says who left. The weight of an endpoint is `tidegate.dev/weight` on its Pod, else
//! on its Node, else 1: twice the flows is 2, none is 0.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use tidegate_core::snapshot::{BackendSpec, BackendState, ServiceKey};

use super::Plan;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::judged::{self, Judged, Witnesses};
use super::options::{annotation_field, key};
use super::programme::{Context, obstacle};
use super::view::{BackendView, BackendViewState, BackendWhy, HealthView};
use crate::diagnostic::Diagnostic;
use crate::health::Target;
use crate::model::{Choice, Metadata, Port, ResolvedEndpoint, ServicePort, TrafficPolicy, Viewpoint, choose};

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
    /// All fail their checks, and none is set aside.
    pub(super) fail_open: bool,
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
    let port = plan.service.ports.iter().find(|p| {
        p.port.get() == service_key.port && super::programme::service_key(service_key.vip, p) == service_key
    });
    let port = port.expect("the key was made from one of the Service's ports");

    let is_listed = |endpoint: &&ResolvedEndpoint| {
        let here = viewpoint.node.is_none_or(|node| endpoint.node.as_deref() == Some(node));
        policy == TrafficPolicy::Cluster || here
    };
    let candidates: Vec<Candidate<'_>> = endpoints
        .iter()
        .filter(is_listed)
        .map(|endpoint| {
            let (ip, number, node) = (endpoint.ip, endpoint.port, endpoint.node.as_deref());
            let verdicts = context.input.verdicts;
            Candidate {
                endpoint,
                is_chosen: chosen.contains(&(ip, number)),
                weight: weight(context, endpoint, findings),
                drained: context.input.drained.iter().any(|d| d.covers(ip, number.get(), node)),
                judged: Judged::new(&plan.options.checks, witnesses, port.protocol, endpoint, verdicts),
            }
        })
        .collect();
    let would_take = candidates.iter().filter(|c| c.is_chosen && !c.drained && c.weight > 0);
    let fail_open = judged::fails_open(settings.health.fail_open, would_take.map(|c| c.judged.fails()));

    let mut result =
        Backends { only_elsewhere: choice == Choice::OnlyElsewhere, fail_open, ..Backends::default() };
    let mut listed = BTreeSet::new();
    for candidate in &candidates {
        let endpoint = candidate.endpoint;
        if candidate.is_chosen || endpoint.ready {
            result.targets.extend(candidate.judged.target.clone());
        }
        let (state, why) = state(candidate, fail_open);
        if state == BackendState::Active && endpoint.ready && !candidate.judged.fails() {
            result.forwardable.insert(endpoint.ip);
        }
        listed.insert(SocketAddr::new(endpoint.ip, endpoint.port.get()));
        result.push(endpoint.ip, endpoint.port.get(), candidate.weight, state, why, Some(candidate));
    }
    if fail_open {
        findings.push(fail_open_finding(plan, port, service_key.vip, &candidates));
    }

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
        candidate: Option<&Candidate<'_>>,
    ) {
        let endpoint = candidate.map(|candidate| candidate.endpoint);
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
            health: candidate.map_or_else(HealthView::default, |candidate| candidate.judged.view()),
        });
    }
}

/// An endpoint that is listed, with all that decides its state.
struct Candidate<'a> {
    endpoint: &'a ResolvedEndpoint,
    is_chosen: bool,
    weight: u16,
    drained: bool,
    judged: Judged,
}

/// The state of an endpoint that is listed.
fn state(candidate: &Candidate<'_>, fail_open: bool) -> (BackendState, BackendWhy) {
    let Candidate { endpoint, is_chosen, weight, drained, judged } = candidate;
    let (is_chosen, fails) = (*is_chosen, judged.fails());
    match () {
        () if is_chosen && fails && !fail_open => (BackendState::Down, BackendWhy::Unhealthy),
        () if *drained => (BackendState::Draining, BackendWhy::Drained),
        () if is_chosen && *weight == 0 => (BackendState::Draining, BackendWhy::WeightZero),
        () if is_chosen && fails => (BackendState::Active, BackendWhy::FailOpen),
        () if is_chosen && endpoint.terminating => (BackendState::Active, BackendWhy::TerminatingChosen),
        () if is_chosen => (BackendState::Active, BackendWhy::Ready),
        () if endpoint.terminating => (BackendState::Draining, BackendWhy::Terminating),
        () if endpoint.ready => (BackendState::Draining, BackendWhy::OtherZone),
        () => (BackendState::Down, BackendWhy::NotReady),
    }
}

fn fail_open_finding(
    plan: &Plan<'_>,
    port: &ServicePort,
    vip: IpAddr,
    candidates: &[Candidate<'_>],
) -> Finding {
    let failed = candidates.iter().find_map(|c| c.judged.failure().map(|why| (c.endpoint.ip, why)));
    let example = failed.map_or_else(String::new, |(ip, why)| format!(" ({ip}: {why})"));
    let meta = &plan.service.meta;
    let what = format!(
        "every backend of port {} of Service {} on {vip} fails its health check{example}: none is set aside",
        port.label(),
        meta.key
    );
    let diagnostic = Diagnostic::warning(what)
        .accepting("a check that passes (tidegate.dev/health-check-*), or health.failOpen false");
    Finding::at(meta, "spec", Reason::HealthFailOpen, diagnostic)
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
