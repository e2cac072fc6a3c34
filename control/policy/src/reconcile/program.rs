//! Converts each port of a Service on each of its VIPs into a [`ServiceSpec`], or into a refusal with its reason.
//!
//! For a port on an address ([`Frontend`]), it checks in this order: whether the gateway supports what the Service
//! requests; whether the port belongs to the Service there; which backends are possible (`candidates`); which of these
//! the mode can reach. `backends` decides which of them take flows.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_model::config::{self, Target};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::{self, AtVip};
use tidegate_model::objects::{
    IpFamily, PortEndpoints, ResolvedEndpoint, ServiceEndpoints, ServicePort, ServiceType, TargetPort,
};
use tidegate_spec::ownership::Layer2;
use tidegate_spec::{ChoiceOptions, FlowTracking, NoEndpoints, ServiceSpec};

use super::backends::{self, Active, Backends};
use super::candidates::{self, Candidates, ForwardingError, forwarding_error, port_differs};
use super::checkable_networks;
use super::context::{Collector, PortAt};
use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::health_result::TcpEvidence;
use super::idle_timeout;
use super::plan::Plan;
use super::proxy_protocol;
use super::service_addresses::ServiceAddresses;
use super::size_limits::TooLarge;
use super::source_ranges::Admission;
use super::view::{PortRefusal, PortView, RefusalReason, ServiceView, VipKind};
use super::vip_announcement;
use crate::pools::Granted;

pub(super) struct Programmed {
    pub(super) specs: Vec<ServiceSpec>,
    pub(super) view: ServiceView,
    pub(super) targets: BTreeSet<health::Target>,
    /// Addresses of ready endpoints that take new flows, over all programmed ports.
    pub(super) forwardable: BTreeSet<IpAddr>,
}

/// Programs one Service. If it is too large, none of its ports is programmed.
pub(super) fn program(
    collector: &mut Collector<'_>,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    too_large: Option<&TooLarge>,
) -> Programmed {
    let (context, plan) = (collector.context, collector.plan);
    let service = plan.service;
    let frontends =
        ServiceAddresses::new(context.settings(), plan, granted, context.contested, context.pools);
    let mut programmed = Programmed::without_ports(service_view(plan, &frontends, granted));
    if let Some(too_large) = too_large {
        collector.findings.push(too_large.finding(service));
        programmed.view.refused = Some(too_large.why.clone());
        vip_announcement::note_unable(&mut programmed.view);
        return programmed;
    }
    frontends.findings(service, &mut collector.findings);
    let admission = Admission::new(context.settings(), service);
    admission.warn_of_other_family(service, frontends.load_balancer(), &mut collector.findings);
    admission.warn_of_external_ips(service, frontends.external_ips(), &mut collector.findings);
    // An endpoint that is checked at VIPs may pass at one of them and fail at another.
    let mut evidence_at: BTreeMap<Option<Arc<AtVip>>, TcpEvidence> = BTreeMap::new();
    let all_ports = &endpoints.ports;
    let mut unchecked = BTreeSet::new();
    for (i, port) in service.ports.iter().enumerate() {
        let unsupported = unsupported_port(collector.plan).or_else(|| without_header(collector, i, port));
        let PortEndpoints { endpoints, shares, .. } = &endpoints.ports[i];
        let shares = shares.as_deref();
        for (frontend, served) in frontends.of_port(port) {
            let at = PortAt { i, port, frontend, endpoints, shares };
            let served = unsupported.clone().map_or(served, Err);
            match served.and_then(|()| reached(collector, &at)) {
                Ok(reached) => {
                    let at_vip = plan.options.at_vip(context.settings(), frontend.vip);
                    let evidence = evidence_at.entry(at_vip).or_insert_with_key(|at_vip| {
                        let may_be_checked = |one: &_| context.may_be_checked(one);
                        TcpEvidence::new(&plan.options.checks, all_ports, at_vip.as_ref(), may_be_checked)
                    });
                    let backends = backends::backends(collector, &at, &reached, evidence);
                    unchecked.extend(&backends.unchecked);
                    let layer2 = frontends.layer2(&frontend, backends.only_elsewhere.is_some());
                    programmed.add(collector, &at, (&admission, layer2), backends);
                }
                Err(refusal) if is_explicit(plan, &frontend) => {
                    programmed.view.ports.push(port_view(plan, &at, Some(refusal), Backends::default()));
                }
                Err(_) => {}
            }
        }
    }
    collector.findings.extend(checkable_networks::finding(service, &unchecked));
    vip_announcement::note_unable(&mut programmed.view);
    programmed
}

impl Programmed {
    fn without_ports(view: ServiceView) -> Self {
        Self { specs: Vec::new(), view, targets: BTreeSet::new(), forwardable: BTreeSet::new() }
    }

    /// Adds a port that is programmed on a frontend.
    fn add(
        &mut self,
        collector: &Collector<'_>,
        at: &PortAt<'_>,
        (admission, layer2): (&Admission, Layer2),
        mut backends: Backends,
    ) {
        let (plan, frontend) = (collector.plan, at.frontend);
        let source_ranges = (frontend.via == VipKind::LoadBalancer)
            .then(|| admission.of_load_balancer(frontend.vip))
            .flatten();
        self.specs.push(service_spec(collector, at, (source_ranges, layer2), &backends));
        self.targets.extend(std::mem::take(&mut backends.targets));
        if frontend.via != VipKind::ClusterIp {
            let active = std::mem::take(&mut backends.forwardable);
            self.forwardable.extend(forwardable(plan, at.endpoints, active));
        }
        self.view.ports.push(port_view(plan, at, None, backends));
    }
}

/// The view of a port on a frontend; `refused` if it is not programmed there.
fn port_view(plan: Plan<'_>, at: &PortAt<'_>, refused: Option<PortRefusal>, backends: Backends) -> PortView {
    let PortAt { port, frontend, .. } = at;
    PortView {
        vip: frontend.vip,
        name: port.label(),
        port: frontend.port.get(),
        protocol: port.protocol,
        mode: plan.options.mode,
        app_protocol: port.app_protocol.clone(),
        refused,
        fail_open: backends.fail_open,
        note: backends.only_elsewhere,
        route: port.routed.as_ref().and_then(|routed| routed.route.clone()),
        rejected_ppm: backends.rejected_ppm,
        backends: backends.views,
    }
}

/// Addresses of ready endpoints that can be reached. With target `node`, those on reachable nodes.
fn forwardable(plan: Plan<'_>, endpoints: &[ResolvedEndpoint], active: BTreeSet<Active>) -> BTreeSet<IpAddr> {
    if plan.options.backends.target == Target::Pod {
        return active.into_iter().map(|candidate| candidate.ip).collect();
    }
    let nodes: BTreeSet<String> = active.into_iter().filter_map(|candidate| candidate.node).collect();
    let behind = |e: &&ResolvedEndpoint| e.ready && e.node.as_ref().is_some_and(|node| nodes.contains(node));
    endpoints.iter().filter(behind).map(|e| e.ip).collect()
}

fn service_view(plan: Plan<'_>, frontends: &ServiceAddresses<'_>, granted: &Granted) -> ServiceView {
    let service = plan.service;
    ServiceView {
        namespace: service.meta.key.namespace.clone(),
        name: service.meta.key.name.clone(),
        service_type: Some(service.service_type),
        vips: frontends.views(service),
        pending: granted.pending.clone(),
        refused: None,
        unapplied: None,
        warnings: Vec::new(),
        ports: Vec::new(),
        mode: Some(plan.options.mode),
        bgp: plan.options.bgp.clone(),
        created: service.meta.creation_time.map(|t| t.to_string()),
        since: None,
    }
}

/// Why the gateway serves no port of the Service, if it cannot.
fn unsupported_port(plan: Plan<'_>) -> Option<PortRefusal> {
    let refused = &plan.options.refused;
    let is_not_supported = |refusal: &PortRefusal| refusal.reason == RefusalReason::NotSupported;
    let reason = match refused.iter().any(is_not_supported) {
        true => RefusalReason::NotSupported,
        false => refused.first()?.reason,
    };
    let messages: Vec<&str> = refused.iter().map(|refusal| refusal.message.as_str()).collect();
    Some(PortRefusal::new(reason, messages.join("; ")))
}

/// Why the port can't have the PROXY protocol header that the Service requests, if it can't.
fn without_header(collector: &mut Collector<'_>, i: usize, port: &ServicePort) -> Option<PortRefusal> {
    let plan = collector.plan;
    let request = plan.options.proxy.header.as_ref()?;
    let (why, accepted) =
        proxy_protocol::why_no_header(request.version, plan.options.proxy.tlvs, port.protocol)?;
    let what = format!("port {} of Service {} is not programmed: {why}", port.label(), plan.service.meta.key);
    // `accepted` names our annotation: it overrides an alias, which does not have these values.
    let diagnostic = Diagnostic::error(what).accepting(accepted);
    collector.find(&format!("spec.ports[{i}].protocol"), Reason::PortNotProgrammed, diagnostic);
    Some(PortRefusal::new(RefusalReason::NotProgrammed, why))
}

/// The candidates that can serve the frontend in the Service's mode, or why the port is not programmed there.
///
/// The candidates have the family of the VIP. If there are none of that family, a mode with an outer header uses the
/// other family. Candidates that the mode can't reach are left out with a warning. If none remains, the port is
/// refused.
fn reached<'e, 'a: 'e>(
    collector: &mut Collector<'a>,
    at: &PortAt<'e>,
) -> Result<Candidates<'e>, PortRefusal> {
    let (context, plan) = (collector.context, collector.plan);
    let PortAt { port, frontend, endpoints, .. } = at;
    let mode = plan.options.mode;
    let mut candidates =
        candidates::candidates(collector, at).map_err(|error| refuse(collector, at, error))?;
    let family = IpFamily::of(frontend.vip);
    let (own, other): (Vec<_>, Vec<_>) =
        candidates.endpoints.iter().partition(|e| IpFamily::of(e.ip) == family);
    let of_family = if own.is_empty() && mode.is_tunnel() { other } else { own };
    if of_family.is_empty() && !candidates.endpoints.is_empty() {
        no_family(collector, at);
    }
    let (mut reachable, mut unreachable) = (Vec::new(), Vec::new());
    for endpoint in of_family {
        let address = SocketAddr::new(endpoint.ip, endpoint.port.get());
        match forwarding_error(context.settings(), mode, frontend, address) {
            None => reachable.push(endpoint.clone()),
            Some(error) => unreachable.push((endpoint, error)),
        }
    }
    let whole_port = match (&port.target_port, unreachable.first()) {
        (_, Some((_, error))) if reachable.is_empty() => Some(error.clone()),
        // There is no endpoint yet, and it is already known that the mode cannot reach any.
        (TargetPort::Number(target), None)
            if endpoints.is_empty()
                && plan.options.backends.target == Target::Pod
                && mode.is_dsr()
                && *target != frontend.port =>
        {
            Some(port_differs(mode, frontend, target.get()))
        }
        _ => None,
    };
    if let Some(error) = whole_port {
        return Err(refuse(collector, at, error));
    }
    for (endpoint, ForwardingError { why, accepted, .. }) in unreachable {
        let meta = &plan.service.meta;
        let finding = Finding::refused_endpoint(meta, &at.field(), endpoint.ip, &why, accepted);
        collector.findings.push(finding);
    }
    candidates.endpoints = Cow::Owned(reachable);
    Ok(candidates)
}

/// Whether the Service requests the frontend explicitly. The API server assigns the node port of a LoadBalancer.
fn is_explicit(plan: Plan<'_>, frontend: &Frontend) -> bool {
    frontend.via != VipKind::NodePort || plan.service.service_type == ServiceType::NodePort
}

/// Adds the finding about a port that is not programmed on a frontend.
fn refuse(collector: &mut Collector<'_>, at: &PortAt<'_>, error: ForwardingError) -> PortRefusal {
    let ForwardingError { why, field, accepted } = error;
    let (plan, PortAt { port, frontend, .. }) = (collector.plan, at);
    let of = &plan.service.meta.key;
    let what = format!("{} of Service {of} is not programmed: {why}", frontend.describe(port));
    let is_error = is_explicit(plan, frontend);
    let diagnostic = if is_error { Diagnostic::error(what) } else { Diagnostic::warning(what) };
    let field = if field.is_empty() { at.field() } else { format!("{}.{field}", at.field()) };
    collector.find(&field, Reason::PortNotProgrammed, diagnostic.accepting(accepted));
    PortRefusal::new(RefusalReason::NotProgrammed, why)
}

fn no_family(collector: &mut Collector<'_>, at: &PortAt<'_>) {
    let Plan { service, options, .. } = collector.plan;
    let (family, vip, mode) = (IpFamily::of(at.frontend.vip), at.frontend.vip, options.mode);
    let whom = if options.backends.target == Target::Node { "node" } else { "endpoint" };
    let what = format!(
        "port {} of Service {} has no {family} {whom} for {vip}, and forwarding {mode} cannot convert between IPv4 \
         and IPv6",
        at.port.label(),
        service.meta.key
    );
    let diagnostic = Diagnostic::warning(what)
        .accepting(format!("{family} {whom}s, or forwarding dsr-ipip, dsr-gue, dsr-gre or dsr-geneve"));
    collector.find("spec.ipFamilies", Reason::EndpointRefused, diagnostic);
}

fn service_spec(
    collector: &Collector<'_>,
    at: &PortAt<'_>,
    (source_ranges, layer2): (Option<Arc<[IpNet]>>, Layer2),
    backends: &Backends,
) -> ServiceSpec {
    let (context, Plan { service, options, .. }) = (collector.context, collector.plan);
    let PortAt { port, frontend, .. } = at;
    ServiceSpec {
        key: frontend.key(),
        namespace: service.meta.key.namespace.clone(),
        name: service.meta.key.name.clone(),
        port_name: port.label(),
        mode: options.mode,
        tunnel: options.tunnel,
        scheduler: options.choice.scheduler.with_table(options.choice.table_size),
        choice: ChoiceOptions { hash: options.choice.hash, warming: backends.warming.as_slice().into() },
        flow_tracking: match options.choice.flow_tracking {
            // Where seats are followed, a removed Service keeps the seats that it had at the end (`removed_ports`).
            config::FlowTracking::Always
                if !options.choice.follows_seats && backends.former_weights.is_empty() =>
            {
                FlowTracking::Always
            }
            config::FlowTracking::Always => {
                FlowTracking::AlwaysAfter(backends.former_weights.as_slice().into())
            }
            config::FlowTracking::OnChange => {
                FlowTracking::OnChange(backends.former_weights.as_slice().into())
            }
        },
        affinity: service.session_affinity,
        no_endpoints: if backends.only_elsewhere.is_some() {
            NoEndpoints::Drop
        } else {
            context.settings().services.defaults.no_endpoints
        },
        rejected_ppm: backends.rejected_ppm,
        mss_clamp: options.handshake.mss_clamp,
        idle_timeout_tcp: options
            .idle
            .tcp
            .unwrap_or_else(|| idle_timeout::idle_timeout_tcp(port.app_protocol.as_deref(), options.mode)),
        idle_timeout_udp: options.idle.udp,
        idle_timeout_sctp: options.idle.sctp,
        source_ranges,
        limits: options.limits,
        proxy_protocol: options.proxy.header.as_ref().map(|request| request.version),
        proxy_tlvs: options.proxy.tlvs,
        vpce_id: options.proxy.vpce_id,
        syn_cookies: options.handshake.syn_cookies,
        passive_health: options.passive_health,
        flow_log: options.flow_log,
        layer2,
        backends: backends.specs.clone(),
    }
}
