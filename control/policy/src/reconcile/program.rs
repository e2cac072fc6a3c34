//! Turns each port of a Service on each of its VIPs into a [`ServiceSpec`], or into a refusal with its reason.
//!
//! The order of questions for a port on an address ([`Frontend`]): does the gateway do what the Service asks; is the
//! port the Service's own there; who could be a backend (`candidates`); which of these can the mode reach. Who takes
//! flows is decided in `backends`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::snapshot::{
    ForwardingMode, NoEndpoints, Protocol as CoreProtocol, Scheduler, ServiceSpec,
};
use tidegate_model::config::{self, Target};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::{self, AtVip};
use tidegate_model::objects::{
    IpFamily, Protocol, ResolvedEndpoint, Service, ServiceEndpoints, ServicePort, ServiceType, SliceIndex,
    TargetPort,
};

use super::addresses::Vips;
use super::backends::{self, Active, Backends};
use super::candidates::{self, Candidates};
use super::checkable::{self, Checkable};
use super::contested::Contested;
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::frontends::{Frontend, Frontends};
use super::health_options;
use super::health_result::TcpEvidence;
use super::settings::Settings;
use super::size_limits::TooLarge;
use super::source_ranges::Admission;
use super::view::{PortRefusal, PortView, RefusalReason, ServiceView, VipKind};
use super::{Input, Plan};
use crate::pools::Granted;

/// What the programming of every Service shares.
pub(super) struct Context<'a> {
    pub(super) input: &'a Input<'a>,
    /// The VIPs of all Services: none of them can be an endpoint.
    pub(super) vips: &'a Vips,
    /// Where endpoints were written.
    pub(super) slices: &'a SliceIndex,
    /// [`Settings::own_addresses`].
    pub(super) own_addresses: &'a BTreeSet<IpAddr>,
    /// Node ports and cluster IPs that belong to other Services.
    pub(super) contested: &'a Contested,
    /// Where endpoints may be checked.
    pub(super) checkable: &'a Checkable,
}

impl<'a> Context<'a> {
    pub(super) fn settings(&self) -> &'a Settings {
        self.input.settings
    }

    /// Whether the operator lets an endpoint be checked.
    pub(super) fn may_be_checked(&self, endpoint: &ResolvedEndpoint) -> bool {
        let node = || self.input.objects.nodes.get(endpoint.node.as_deref()?).map(AsRef::as_ref);
        self.checkable.allows(endpoint.ip, node)
    }
}

/// One Service, programmed.
pub(super) struct Programmed {
    pub(super) specs: Vec<ServiceSpec>,
    pub(super) view: ServiceView,
    pub(super) targets: BTreeSet<health::Target>,
    /// Addresses of ready endpoints that take new flows now, over all programmed ports.
    pub(super) forwardable: BTreeSet<IpAddr>,
}

/// Programmes one Service; none of its ports where it is `too_large`.
pub(super) fn program(
    context: &Context<'_>,
    plan: &Plan<'_>,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    too_large: Option<&TooLarge>,
    drains: &mut Drains,
    findings: &mut Vec<Finding>,
) -> Programmed {
    let service = plan.service;
    let frontends = Frontends::new(context.settings(), service, granted, context.contested);
    if let Some(too_large) = too_large {
        findings.push(too_large.finding(service));
        return Programmed {
            specs: Vec::new(),
            view: ServiceView {
                refused: Some(too_large.why.clone()),
                ..service_view(service, &frontends, granted)
            },
            targets: BTreeSet::new(),
            forwardable: BTreeSet::new(),
        };
    }
    frontends.findings(service, findings);
    let admission = Admission::new(context.settings(), service);
    admission.warn_of_other_family(service, frontends.load_balancer(), findings);
    let mut programmed = Programmed {
        specs: Vec::new(),
        view: service_view(service, &frontends, granted),
        targets: BTreeSet::new(),
        forwardable: BTreeSet::new(),
    };
    // Endpoints that are asked at VIPs may do well at one of them and not at another.
    let mut evidence_at: BTreeMap<Option<Arc<AtVip>>, TcpEvidence> = BTreeMap::new();
    let all_ports = &endpoints.ports;
    let mut unchecked = BTreeSet::new();
    for (i, port) in service.ports.iter().enumerate() {
        let unsupported = unsupported_port(plan, i, findings);
        let endpoints = &endpoints.ports[i].endpoints;
        for (frontend, served) in frontends.of_port(port) {
            let served = unsupported.clone().map_or(served, Err);
            let reached = served.and_then(|()| reached(context, plan, i, &frontend, endpoints, findings));
            let (refused, backends) = match reached {
                Err(refusal) => (Some(refusal), Backends::default()),
                Ok(reached) => {
                    let at_vip = health_options::at_vip(context.settings(), plan.options, frontend.vip);
                    let evidence = evidence_at.entry(at_vip).or_insert_with_key(|at_vip| {
                        let may_be_checked = |one: &_| context.may_be_checked(one);
                        TcpEvidence::new(&plan.options.checks, all_ports, at_vip.as_ref(), may_be_checked)
                    });
                    let backends =
                        backends::backends(context, plan, i, &frontend, &reached, evidence, drains, findings);
                    (None, backends)
                }
            };
            unchecked.extend(&backends.unchecked);
            if refused.is_none() {
                let source_ranges = (frontend.via == VipKind::LoadBalancer)
                    .then(|| admission.of_load_balancer(frontend.vip))
                    .flatten();
                programmed.specs.push(service_spec(context, plan, &frontend, port, source_ranges, &backends));
                programmed.targets.extend(backends.targets);
                if frontend.via != VipKind::ClusterIp {
                    programmed.forwardable.extend(forwardable(plan, endpoints, backends.forwardable));
                }
            }
            if refused.is_some() && !is_asked_for(plan, &frontend) {
                continue;
            }
            programmed.view.ports.push(PortView {
                vip: frontend.vip,
                name: port.label(),
                port: frontend.port.get(),
                protocol: core_protocol(port.protocol),
                mode: plan.options.mode,
                app_protocol: port.app_protocol.clone(),
                refused,
                fail_open: backends.fail_open,
                note: backends.only_elsewhere,
                backends: backends.views,
            });
        }
    }
    findings.extend(checkable::finding(service, &unchecked));
    programmed
}

/// Addresses of ready endpoints that can be forwarded to: with target `node`, those on nodes that are.
fn forwardable(
    plan: &Plan<'_>,
    endpoints: &[ResolvedEndpoint],
    active: BTreeSet<Active>,
) -> BTreeSet<IpAddr> {
    if plan.options.target == Target::Pod {
        return active.into_iter().map(|candidate| candidate.ip).collect();
    }
    let nodes: BTreeSet<String> = active.into_iter().filter_map(|candidate| candidate.node).collect();
    let behind = |e: &&ResolvedEndpoint| e.ready && e.node.as_ref().is_some_and(|node| nodes.contains(node));
    endpoints.iter().filter(behind).map(|e| e.ip).collect()
}

fn service_view(service: &Service, frontends: &Frontends<'_>, granted: &Granted) -> ServiceView {
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
        created: service.meta.creation_time.map(|t| t.to_string()),
    }
}

/// Why the gateway cannot serve this port on any address, if so.
fn unsupported_port(plan: &Plan<'_>, i: usize, findings: &mut Vec<Finding>) -> Option<PortRefusal> {
    let meta = &plan.service.meta;
    let port = &plan.service.ports[i];
    if port.protocol == Protocol::Sctp {
        let what = format!(
            "port {} of Service {} is not programmed: SCTP is not supported yet",
            port.label(),
            meta.key
        );
        let diagnostic = Diagnostic::error(what).accepting("TCP, UDP");
        findings.push(Finding::at(
            meta,
            &format!("spec.ports[{i}].protocol"),
            Reason::NotSupported,
            diagnostic,
        ));
        return Some(PortRefusal::new(RefusalReason::NotSupported, "SCTP is not supported yet"));
    }
    let refused = &plan.options.refused;
    let is_not_supported = |refusal: &PortRefusal| refusal.reason == RefusalReason::NotSupported;
    let reason = match refused.iter().any(is_not_supported) {
        true => RefusalReason::NotSupported,
        false => refused.first()?.reason,
    };
    let messages: Vec<&str> = refused.iter().map(|refusal| refusal.message.as_str()).collect();
    Some(PortRefusal::new(reason, messages.join("; ")))
}

/// The candidates that can serve the frontend in the Service's mode, or why the port is not programmed there.
///
/// Those of the VIP's family; where there is none of it, a mode with an outer header takes the other's. Those
/// that the mode cannot reach are left out with a warning; if none is left of many, the port is refused.
fn reached<'a>(
    context: &Context<'a>,
    plan: &Plan<'_>,
    i: usize,
    frontend: &Frontend,
    endpoints: &'a [ResolvedEndpoint],
    findings: &mut Vec<Finding>,
) -> Result<Candidates<'a>, PortRefusal> {
    let port = &plan.service.ports[i];
    let mode = plan.options.mode;
    let mut candidates = candidates::candidates(context, plan, i, frontend, endpoints, findings)
        .map_err(|obstacle| refuse(plan, i, frontend, obstacle, findings))?;
    let family = IpFamily::of(frontend.vip);
    let (own, other): (Vec<_>, Vec<_>) =
        candidates.endpoints.iter().partition(|e| IpFamily::of(e.ip) == family);
    let of_family = if own.is_empty() && mode == ForwardingMode::DsrIpip { other } else { own };
    if of_family.is_empty() && !candidates.endpoints.is_empty() {
        no_family(plan, i, frontend, findings);
    }
    let (mut reachable, mut unreachable) = (Vec::new(), Vec::new());
    for endpoint in of_family {
        match obstacle(context.settings(), plan, frontend, SocketAddr::new(endpoint.ip, endpoint.port.get()))
        {
            None => reachable.push(endpoint.clone()),
            Some(obstacle) => unreachable.push((endpoint, obstacle)),
        }
    }
    let whole_port = match (&port.target_port, unreachable.first()) {
        (_, Some((_, obstacle))) if reachable.is_empty() => Some(obstacle.clone()),
        // No endpoint yet, and it can be told already that none will do.
        (TargetPort::Number(target), None)
            if endpoints.is_empty()
                && plan.options.target == Target::Pod
                && mode.is_dsr()
                && *target != frontend.port =>
        {
            Some(port_differs(mode, frontend, target.get()))
        }
        _ => None,
    };
    if let Some(obstacle) = whole_port {
        return Err(refuse(plan, i, frontend, obstacle, findings));
    }
    for (endpoint, Obstacle { why, accepted, .. }) in unreachable {
        let field = format!("spec.ports[{i}]");
        findings.push(Finding::refused_endpoint(&plan.service.meta, &field, endpoint.ip, &why, accepted));
    }
    candidates.endpoints = Cow::Owned(reachable);
    Ok(candidates)
}

/// Whether somebody asked for the frontend: the node port of a LoadBalancer was given out by the API server.
fn is_asked_for(plan: &Plan<'_>, frontend: &Frontend) -> bool {
    frontend.via != VipKind::NodePort || plan.service.service_type == ServiceType::NodePort
}

/// Says why a port is not programmed on a frontend.
fn refuse(
    plan: &Plan<'_>,
    i: usize,
    frontend: &Frontend,
    obstacle: Obstacle,
    findings: &mut Vec<Finding>,
) -> PortRefusal {
    let Obstacle { why, field, accepted } = obstacle;
    let (meta, port) = (&plan.service.meta, &plan.service.ports[i]);
    let what = format!("{} of Service {} is not programmed: {why}", frontend.describe(port), meta.key);
    let asked_for = is_asked_for(plan, frontend);
    let diagnostic = if asked_for { Diagnostic::error(what) } else { Diagnostic::warning(what) };
    let field =
        if field.is_empty() { format!("spec.ports[{i}]") } else { format!("spec.ports[{i}].{field}") };
    findings.push(Finding::at(meta, &field, Reason::PortNotProgrammed, diagnostic.accepting(accepted)));
    PortRefusal::new(RefusalReason::NotProgrammed, why)
}

fn no_family(plan: &Plan<'_>, i: usize, frontend: &Frontend, findings: &mut Vec<Finding>) {
    let (meta, port, mode) = (&plan.service.meta, &plan.service.ports[i], plan.options.mode);
    let (family, vip) = (IpFamily::of(frontend.vip), frontend.vip);
    let whom = if plan.options.target == Target::Node { "node" } else { "endpoint" };
    let what = format!(
        "port {} of Service {} has no {family} {whom} for {vip}, and {mode} does not cross families",
        port.label(),
        meta.key
    );
    let diagnostic = Diagnostic::warning(what).accepting(format!("{family} {whom}s, or forwarding dsr-ipip"));
    findings.push(Finding::at(meta, "spec.ipFamilies", Reason::EndpointRefused, diagnostic));
}

/// Why a mode cannot bring packets to an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    pub(super) why: String,
    /// Below `spec.ports[i]`.
    pub(super) field: &'static str,
    pub(super) accepted: String,
}

/// What stands between the mode and a candidate, if anything.
pub(super) fn obstacle(
    settings: &Settings,
    plan: &Plan<'_>,
    frontend: &Frontend,
    candidate: SocketAddr,
) -> Option<Obstacle> {
    let (mode, ip) = (plan.options.mode, candidate.ip());
    let family = IpFamily::of(ip);
    let not_here = |why: String, accepted: String| Some(Obstacle { why, field: "", accepted });
    if mode.is_dsr() && candidate.port() != frontend.port.get() {
        return Some(port_differs(mode, frontend, candidate.port()));
    }
    match mode {
        ForwardingMode::DsrL2 if !settings.is_on_link(ip) => not_here(
            format!("dsr-l2 reaches endpoints on the gateway's links only, and {ip} is on none"),
            "an endpoint in a prefix of dataplane.interfaces, or another forwarding mode".to_owned(),
        ),
        ForwardingMode::FullNat if !settings.has_snat(family) => not_here(
            format!("fullnat needs an {family} address in dataplane.snatAddresses to reach {ip}"),
            format!("an {family} entry in dataplane.snatAddresses, or another forwarding mode"),
        ),
        ForwardingMode::DsrIpip if !settings.has_tunnel_source(family) => not_here(
            format!("dsr-ipip needs an {family} address in dataplane.tunnelSource to reach {ip}"),
            format!("an {family} entry in dataplane.tunnelSource, or another forwarding mode"),
        ),
        _ => None,
    }
}

fn port_differs(mode: ForwardingMode, frontend: &Frontend, endpoint_port: u16) -> Obstacle {
    let port = frontend.port;
    Obstacle {
        why: format!("{mode} keeps the destination port {port}, and the target port is {endpoint_port}"),
        field: "targetPort",
        accepted: format!("targetPort {port}, or forwarding nat or fullnat"),
    }
}

pub(super) fn core_protocol(protocol: Protocol) -> CoreProtocol {
    match protocol {
        Protocol::Tcp => CoreProtocol::Tcp,
        Protocol::Udp => CoreProtocol::Udp,
        Protocol::Sctp => CoreProtocol::Sctp,
    }
}

fn service_spec(
    context: &Context<'_>,
    plan: &Plan<'_>,
    frontend: &Frontend,
    port: &ServicePort,
    source_ranges: Option<Arc<[IpNet]>>,
    backends: &Backends,
) -> ServiceSpec {
    let Plan { service, options, .. } = plan;
    ServiceSpec {
        key: frontend.key(),
        namespace: service.meta.key.namespace.clone(),
        name: service.meta.key.name.clone(),
        port_name: port.label(),
        mode: options.mode,
        scheduler: match options.scheduler {
            config::Scheduler::Rendezvous => Scheduler::Rendezvous,
            config::Scheduler::Maglev => Scheduler::Maglev { slots: options.table_size },
        },
        affinity: service.session_affinity,
        no_endpoints: if backends.only_elsewhere.is_some() {
            NoEndpoints::Drop
        } else {
            context.settings().no_endpoints
        },
        idle_timeout_tcp: options.idle_timeout_tcp,
        idle_timeout_udp: options.idle_timeout_udp,
        source_ranges,
        // Own addresses are the kernel's, and cluster IPs are routed here.
        announced: matches!(frontend.via, VipKind::LoadBalancer | VipKind::ExternalIp),
        backends: backends.specs.clone(),
    }
}
