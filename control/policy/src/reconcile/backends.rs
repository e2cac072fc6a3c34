//! Computes the backends of one service port on one VIP: which take new flows, which only keep existing flows, which
//! are kept after their removal, and which health checks are needed.
//!
//! Kubernetes decides which endpoints are ready ([`choose`]), the gateway's checks decide which of them are healthy,
//! and the operator decides which are drained. The memory of the last call shows which were removed. Weights come
//! from `weights` or, for nodes, from `node_candidates` and from the nodes' own reports.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::Target;
use tidegate_model::objects::{
    Choice, EndpointShare, IpFamily, Port, ResolvedEndpoint, ServicePort, TrafficPolicy, choose,
};
use tidegate_spec::{BackendSpec, BackendState, FormerWeight, WARM_UP_STEPS, Warming};

use super::candidates::{Candidates, forwarding_error};
use super::context::{Collector, PortAt};
use super::drain::PortNow;
use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::health_check_node_ports::health_check_node_port;
use super::health_options::NodeCheck;
use super::health_result::{self, HealthResult, TcpEvidence};
use super::plan::Plan;
use super::route_weights::{self, RouteWeights};
use super::size_limits;
use super::view::{BackendView, BackendViewState, BackendWhy, HealthView, VipKind};
use super::weights::{WEIGHT, Weights};

/// A ready candidate that takes new flows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Active {
    pub(super) ip: IpAddr,
    pub(super) node: Option<String>,
}

/// The backends of one service port on one VIP.
#[derive(Default)]
pub(super) struct Backends {
    /// Sorted by address and port.
    pub(super) specs: Vec<BackendSpec>,
    pub(super) views: Vec<BackendView>,
    pub(super) targets: Vec<Target>,
    /// Ready candidates that take new flows.
    pub(super) forwardable: BTreeSet<Active>,
    /// With policy Local and endpoints only on other nodes: a text that reports this.
    pub(super) only_elsewhere: Option<String>,
    /// Whether all backends fail their checks, so that none is excluded.
    pub(super) fail_open: bool,
    /// With `flowTracking: on-change`: the former weight of each backend whose weight changed recently.
    pub(super) former_weights: Vec<FormerWeight>,
    /// With `slowStart`: the backends that take only part of their share of flows at the moment.
    pub(super) warming: Vec<Warming>,
    /// Endpoints that are not checked because they are outside the networks that the operator allows.
    pub(super) unchecked: BTreeSet<IpAddr>,
    /// The share of new flows that is rejected, in parts per million.
    pub(super) rejected_ppm: u32,
}

/// Decides the state of every possible backend, and keeps removed ones.
pub(super) fn backends(
    collector: &mut Collector<'_>,
    at: &PortAt<'_>,
    possible: &Candidates<'_>,
    evidence: &TcpEvidence,
) -> Backends {
    let Candidates { endpoints, policy, viewpoint, .. } = possible;
    let choice = choose(endpoints, *policy, *viewpoint);
    let (mut candidates, unchecked) = candidates(collector, at, possible, &choice, evidence);
    replace_a_failing_zone(&mut candidates);
    let would_take = candidates.iter().filter(|c| c.is_chosen && c.would_take());
    let enabled = collector.context.settings().health.fail_open;
    let fail_open = health_result::fails_open(enabled, would_take.map(Candidate::is_set_aside));

    let only_elsewhere = match choice {
        Choice::OnlyElsewhere => Some(elsewhere(&at.frontend, viewpoint.node, endpoints)),
        Choice::Nobody => only_on_excluded_nodes(collector, at, possible),
        _ => None,
    };
    let mut result = Backends { only_elsewhere, fail_open, unchecked, ..Backends::default() };
    if let Some(shares) = at.shares {
        result.rejected_ppm = weigh_by_route(&mut candidates, shares, fail_open);
    }
    for candidate in &candidates {
        result.list(candidate, viewpoint.node);
    }
    // A node may report from its first answer on that it has no endpoint. This is a fault only after enough failed
    // checks, because not every node knows a new Service yet.
    let all_failed = || candidates.iter().filter(|c| c.is_chosen && c.would_take()).all(|c| c.health.fails());
    if fail_open && all_failed() {
        collector.findings.push(fail_open_finding(collector.plan, at.port, at.frontend.vip, &candidates));
    }
    result.keep_removed(collector, &at.frontend);
    result.update_seats(collector, &at.frontend);
    result.warm_up(collector, &at.frontend);
    result.specs.sort_by_key(|b| (b.address, b.port));
    result.views.sort_by_key(|b| (b.address, b.port));
    result
}

/// With policy Local and nodes as backends: reports that endpoints are only on nodes that may not be backends.
fn only_on_excluded_nodes(
    collector: &Collector<'_>,
    at: &PortAt<'_>,
    possible: &Candidates<'_>,
) -> Option<String> {
    let service = collector.plan.service;
    let policy = match at.frontend.via {
        VipKind::ClusterIp => service.internal_traffic_policy,
        _ => service.external_traffic_policy,
    };
    let family = IpFamily::of(at.frontend.vip);
    let may_serve = |endpoint: &ResolvedEndpoint| IpFamily::of(endpoint.ip) == family && endpoint.answers();
    let is_excluded = possible.node_weights.is_some()
        && policy == TrafficPolicy::Local
        && at.endpoints.iter().any(may_serve);
    is_excluded.then(|| {
        "policy Local: every node with an endpoint is excluded as a backend, so packets are dropped"
            .to_owned()
    })
}

/// The possible backends that the policy lists, each with everything that determines its state, and the addresses of
/// backends that are not checked because they are outside the allowed networks.
fn candidates<'a>(
    collector: &mut Collector<'_>,
    at: &PortAt<'_>,
    possible: &'a Candidates<'_>,
    choice: &Choice<'_>,
    evidence: &TcpEvidence,
) -> (Vec<Candidate<'a>>, BTreeSet<IpAddr>) {
    let (context, plan) = (collector.context, collector.plan);
    let (port, verdicts) = (at.port, context.input.verdicts);
    let Candidates { endpoints, node_weights, policy, viewpoint } = possible;
    let chosen: HashSet<(IpAddr, Port)> = choice.endpoints().iter().map(|e| (e.ip, e.port)).collect();
    let weights = Weights { objects: context.input.objects };
    let node_check = node_weights
        .is_some()
        .then(|| NodeCheck::new(&plan.options.checks, health_check_node_port(plan.service)));
    let at_vip = plan.options.at_vip(context.settings(), at.frontend.vip);
    let is_listed = |endpoint: &&ResolvedEndpoint| {
        let here = viewpoint.node.is_none_or(|node| endpoint.node.as_deref() == Some(node));
        *policy == TrafficPolicy::Cluster || here
    };
    let mut unchecked = BTreeSet::new();
    let candidate = |endpoint: &'a ResolvedEndpoint| {
        let (ip, number, node) = (endpoint.ip, endpoint.port, endpoint.node.as_deref());
        let target = match &node_check {
            Some(check) => check.target(ip),
            None => plan.options.checks.target(port.protocol, ip, number, at_vip.as_ref()),
        };
        // Nodes may always be checked, because they belong to the operator.
        let may_be_checked = node_check.is_some() || context.may_be_checked(endpoint);
        if target.is_some() && !may_be_checked {
            unchecked.insert(ip);
        }
        let target = target.filter(|_| may_be_checked);
        let reported = target.as_ref().filter(|_| node_check.is_some()).and_then(|t| verdicts.weight(t));
        let weight = match node_weights {
            None => weights.of_endpoint(endpoint, &mut collector.findings),
            Some(weights) => {
                let reported = reported.filter(|weight| *weight > 0);
                reported.or_else(|| weights.get(node.unwrap_or_default()).copied()).unwrap_or(WEIGHT)
            }
        };
        Candidate {
            endpoint,
            is_chosen: chosen.contains(&(ip, number)),
            weight,
            reports_none: reported == Some(0),
            drained: context.input.drained.iter().any(|d| d.covers(ip, number.get(), node)),
            health: HealthResult::new(target, evidence, port.protocol, ip, verdicts),
        }
    };
    let mut listed: Vec<Candidate<'_>> = endpoints.iter().filter(is_listed).map(candidate).collect();
    for candidate in &mut listed {
        if at.shares.is_some_and(|shares| !route_weights::has_share(shares, candidate.address())) {
            candidate.weight = 0;
        }
    }
    (listed, unchecked)
}

impl Backends {
    /// Adds a candidate in its current state.
    fn list(&mut self, candidate: &Candidate<'_>, own_node: Option<&str>) {
        let endpoint = candidate.endpoint;
        if endpoint.answers() {
            self.targets.extend(candidate.health.target.clone());
        }
        let (state, why) = state(candidate, self.fail_open, own_node);
        if state == BackendState::Active && endpoint.ready && !candidate.health.fails() {
            self.forwardable.insert(Active { ip: endpoint.ip, node: endpoint.node.clone() });
        }
        let weight = if candidate.reports_none && !self.fail_open { 0 } else { candidate.weight };
        self.push(endpoint.ip, endpoint.port.get(), weight, state, why, Some(candidate));
    }

    /// Adds the removed backends that keep their flows until the drain timeout.
    fn keep_removed(&mut self, collector: &mut Collector<'_>, frontend: &Frontend) {
        let (context, plan) = (collector.context, collector.plan);
        let listed: BTreeSet<_> = self.specs.iter().map(|b| SocketAddr::new(b.address, b.port)).collect();
        let now = PortNow {
            key: frontend.key(),
            owner: &plan.service.meta.key,
            kept_max: size_limits::kept_max(plan.service, listed.len()),
            listed,
            drain_timeout: plan.options.backends.drain_timeout,
        };
        let kept = collector.drains.step(&context.input.memory.drains, &now, context.input.now);
        for left in kept {
            let same_family = left.ip().is_ipv4() == frontend.vip.is_ipv4();
            let crosses = plan.options.mode.is_tunnel();
            // If the mode has changed since the removal, the backend's flows can no longer be forwarded.
            let reachable = forwarding_error(context.settings(), plan.options.mode, frontend, left).is_none();
            if reachable && (same_family || crosses) && !context.vips.contains(&left.ip()) {
                self.push(left.ip(), left.port(), WEIGHT, BackendState::Down, BackendWhy::Removed, None);
            }
        }
    }

    /// If the Service follows seats, or did so until recently, finds the weights that changed since the last call.
    fn update_seats(&mut self, collector: &mut Collector<'_>, frontend: &Frontend) {
        let context = collector.context;
        let follows = collector.plan.options.choice.follows_seats;
        if !follows && !context.input.memory.drains.has_seats(&frontend.key()) {
            return;
        }
        let active = self.specs.iter().filter(|b| b.state == BackendState::Active && b.weight > 0);
        let weights = active.map(|b| (SocketAddr::new(b.address, b.port), b.weight)).collect();
        let (previous, now) = (&context.input.memory.drains, context.input.now);
        let former = collector.drains.step_seats(previous, &frontend.key(), follows, weights, now);
        let former = former.into_iter();
        self.former_weights =
            former.map(|(at, weight)| FormerWeight { address: at.ip(), port: at.port(), weight }).collect();
    }

    /// Determines which backends have started to take new flows recently, if the Service requests a slow start.
    fn warm_up(&mut self, collector: &mut Collector<'_>, frontend: &Frontend) {
        let (context, slow_start) = (collector.context, collector.plan.options.choice.slow_start);
        if slow_start.is_zero() {
            return;
        }
        let active = self.specs.iter().filter(|b| b.state == BackendState::Active && b.weight > 0);
        let active: BTreeSet<_> = active.map(|b| SocketAddr::new(b.address, b.port)).collect();
        let (previous, now, count) = (&context.input.memory.drains, context.input.now, active.len());
        let warming = collector.drains.step_warm_ups(previous, &frontend.key(), active, slow_start, now);
        // If all backends warm up, they share the flows by their full weights.
        if warming.len() == count {
            return;
        }
        for view in &mut self.views {
            let one = warming.iter().find(|one| (one.address, one.port) == (view.address, view.port));
            view.warm_up_percent = one.map(|one| one.step * (100 / WARM_UP_STEPS));
        }
        self.warming = warming;
    }

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
            warm_up_percent: None,
            node: endpoint.and_then(|e| e.node.clone()),
            zone: endpoint.and_then(|e| e.zone.clone()),
            pod: endpoint.and_then(|e| e.pod.as_ref()).map(ToString::to_string),
            health: candidate.map_or_else(HealthView::default, |candidate| candidate.health.view()),
        });
    }
}

/// A listed endpoint, with everything that decides its state.
struct Candidate<'a> {
    endpoint: &'a ResolvedEndpoint,
    is_chosen: bool,
    weight: u16,
    /// Whether the node's proxy reports that the node has no endpoint. It also reports this if all remaining endpoints
    /// terminate, although it still uses them. So if every node reports it, none is excluded for this reason.
    reports_none: bool,
    drained: bool,
    health: HealthResult,
}

impl Candidate<'_> {
    fn address(&self) -> (IpAddr, Port) {
        (self.endpoint.ip, self.endpoint.port)
    }

    /// Whether its checks prevent new flows to it.
    fn is_set_aside(&self) -> bool {
        self.reports_none || self.health.fails()
    }

    /// Whether it takes new flows if it is chosen and passes its checks.
    fn would_take(&self) -> bool {
        !self.drained && self.weight > 0
    }
}

/// Replaces the weights of the candidates that take new flows with those that follow from the route. Returns the share
/// of new flows that is rejected, in parts per million.
fn weigh_by_route(candidates: &mut [Candidate<'_>], shares: &[EndpointShare], fail_open: bool) -> u32 {
    let takes = |c: &&mut Candidate<'_>| {
        c.is_chosen && c.would_take() && c.endpoint.answers() && (fail_open || !c.is_set_aside())
    };
    let takers = candidates.iter_mut().filter(takes).map(|c| (c.address(), c.weight)).collect();
    let RouteWeights { weights, rejected_ppm } = route_weights::weights(shares, &takers);
    for candidate in candidates {
        if let Some(weight) = weights.get(&candidate.address()) {
            candidate.weight = *weight;
        }
    }
    rejected_ppm
}

/// If topology hints chose a zone in which every endpoint fails its checks, endpoints of other zones are better: if
/// one of those passes, all ready endpoints are chosen, as without hints. kube-proxy has no such rule because it has
/// no checks.
fn replace_a_failing_zone(candidates: &mut [Candidate<'_>]) {
    let passes = |c: &Candidate<'_>| c.would_take() && !c.is_set_aside();
    let chosen_pass = candidates.iter().any(|c| c.is_chosen && passes(c));
    // A ready endpoint that is not chosen was excluded by hints.
    let others_pass = candidates.iter().any(|c| !c.is_chosen && c.endpoint.ready && passes(c));
    if !chosen_pass && others_pass {
        candidates.iter_mut().for_each(|c| c.is_chosen |= c.endpoint.ready);
    }
}

/// The state of a listed endpoint. Its health is decided first: an endpoint that terminates or is drained keeps its
/// flows only while it passes its checks.
fn state(candidate: &Candidate<'_>, fail_open: bool, own_node: Option<&str>) -> (BackendState, BackendWhy) {
    let Candidate { endpoint, is_chosen, weight, reports_none, drained, health } = candidate;
    let is_chosen = *is_chosen;
    let takes_none = *weight == 0 || (*reports_none && !fail_open);
    match () {
        () if !endpoint.answers() => (BackendState::Down, BackendWhy::NotReady),
        () if health.fails() && !fail_open => (BackendState::Down, BackendWhy::Unhealthy),
        () if *drained => (BackendState::Draining, BackendWhy::Drained),
        () if is_chosen && takes_none => (BackendState::Draining, BackendWhy::WeightZero),
        () if is_chosen && candidate.is_set_aside() => (BackendState::Active, BackendWhy::FailOpen),
        () if is_chosen && endpoint.terminating => (BackendState::Active, BackendWhy::TerminatingChosen),
        () if is_chosen => (BackendState::Active, BackendWhy::Ready),
        () if endpoint.terminating => (BackendState::Draining, BackendWhy::Terminating),
        () if hints_name_others(&endpoint.hint_nodes, own_node) => {
            (BackendState::Draining, BackendWhy::OtherNode)
        }
        () => (BackendState::Draining, BackendWhy::OtherZone),
    }
}

/// Whether topology hints name nodes, but not this one.
fn hints_name_others(hints: &[String], own_node: Option<&str>) -> bool {
    !hints.is_empty() && own_node.is_some_and(|node| hints.iter().all(|hint| hint != node))
}

/// The message about policy Local without a local endpoint. It names the node, and some of the nodes that have
/// endpoints.
fn elsewhere(frontend: &Frontend, own_node: Option<&str>, endpoints: &[ResolvedEndpoint]) -> String {
    const NODES_SHOWN: usize = 3;
    let policy =
        if frontend.via == VipKind::ClusterIp { "internalTrafficPolicy" } else { "externalTrafficPolicy" };
    let here = match own_node {
        Some(node) if !node.is_empty() => format!("node {node} has no endpoint"),
        _ => "the gateway does not run on a node".to_owned(),
    };
    let nodes: BTreeSet<&str> = endpoints.iter().filter_map(|e| e.node.as_deref()).collect();
    let mut shown: Vec<&str> = nodes.iter().take(NODES_SHOWN).copied().collect();
    if nodes.len() > NODES_SHOWN {
        shown.push("...");
    }
    let elsewhere = match shown.as_slice() {
        [] => "the nodes of all endpoints are unknown".to_owned(),
        shown => format!("there are endpoints on {}", shown.join(", ")),
    };
    format!("{policy} Local: {here} ({elsewhere}), so packets are dropped")
}

fn fail_open_finding(
    plan: Plan<'_>,
    port: &ServicePort,
    vip: IpAddr,
    candidates: &[Candidate<'_>],
) -> Finding {
    let failed = candidates.iter().find_map(|c| c.health.failure().map(|why| (c.endpoint.ip, why)));
    let example = failed.map_or_else(String::new, |(ip, why)| format!(" ({ip}: {why})"));
    let meta = &plan.service.meta;
    let what = format!(
        "every backend of port {} of Service {} on {vip} fails its health check{example}: all of them stay in use",
        port.label(),
        meta.key
    );
    let diagnostic = Diagnostic::warning(what)
        .accepting("a check that passes (tidegate.dev/health-check-*), or health.failOpen false");
    Finding::at(meta, "spec", Reason::HealthFailOpen, diagnostic)
}
