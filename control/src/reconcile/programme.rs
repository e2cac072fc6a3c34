//! One Service onto its addresses: each port on each VIP becomes a [`ServiceSpec`] or a refusal that says why.
//!
//! The order of questions for a port on a VIP: does the gateway do what the Service asks; is the port the
//! Service's own there; which endpoints can the mode reach. Who of these takes flows is
//! decided in `backends`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::snapshot::{
    ForwardingMode, NoEndpoints, Protocol as CoreProtocol, ServiceKey, ServiceSpec,
};

use super::backends::{self, Backends};
use super::drain::Drains;
use super::finding::{Finding, Reason};
use super::judged::Witnesses;
use super::settings::Settings;
use super::source_ranges::Admission;
use super::view::{PortView, ServiceView, VipView};
use super::{Input, Plan};
use crate::diagnostic::Diagnostic;
use crate::health::Target;
use crate::model::{
    IpFamily, Protocol, ResolvedEndpoint, Service, ServiceEndpoints, ServicePort, ServiceType, TargetPort,
};
use crate::pools::Granted;

/// What the programming of every Service shares.
pub(super) struct Context<'a> {
    pub(super) input: &'a Input<'a>,
    /// The VIPs of all Services: none of them can be an endpoint.
    pub(super) vips: &'a BTreeSet<IpAddr>,
}

impl Context<'_> {
    pub(super) fn settings(&self) -> &Settings {
        self.input.settings
    }
}

/// One Service, programmed.
pub(super) struct Programmed {
    pub(super) specs: Vec<ServiceSpec>,
    pub(super) view: ServiceView,
    pub(super) targets: BTreeSet<Target>,
    /// Addresses of ready endpoints that take new flows now, over all programmed ports.
    pub(super) forwardable: BTreeSet<IpAddr>,
}

/// An address of the Service, in one capacity or both.
#[derive(Default)]
struct Vip {
    load_balancer_pool: Option<String>,
    external: Option<(String, Vec<(Protocol, u16)>)>,
}

/// Programmes one Service.
pub(super) fn programme(
    context: &Context<'_>,
    plan: &Plan<'_>,
    granted: &Granted,
    endpoints: &ServiceEndpoints,
    drains: &mut Drains,
    findings: &mut Vec<Finding>,
) -> Programmed {
    let service = plan.service;
    let vips = vips_of(granted);
    let admission = Admission::new(context.settings(), service);
    let load_balancer_vips = vips.iter().filter(|(_, vip)| vip.load_balancer_pool.is_some());
    admission.warn_of_other_family(service, load_balancer_vips.map(|(address, _)| *address), findings);
    let mut programmed = Programmed {
        specs: Vec::new(),
        view: service_view(service, &vips, granted),
        targets: BTreeSet::new(),
        forwardable: BTreeSet::new(),
    };
    let witnesses = Witnesses::new(&plan.options.checks, &endpoints.ports);
    for (i, port) in service.ports.iter().enumerate() {
        let unsupported = unsupported_port(context, plan, i, findings);
        let usable = usable_endpoints(context, service, &endpoints.ports[i].endpoints, findings);
        for (address, vip) in &vips {
            let served = match &unsupported {
                Some(why) => Err(why.clone()),
                None => may_serve(port, vip),
            };
            let reachable = served.and_then(|()| reachable(context, plan, i, *address, &usable, findings));
            let (refused, backends) = match reachable {
                Err(why) => (Some(why), Backends::default()),
                Ok(reachable) => {
                    let key = service_key(*address, port);
                    let backends =
                        backends::backends(context, plan, key, &reachable, &witnesses, drains, findings);
                    (None, backends)
                }
            };
            if refused.is_none() {
                let is_load_balancer = vip.load_balancer_pool.is_some();
                let source_ranges = is_load_balancer.then(|| admission.of_load_balancer(*address)).flatten();
                let spec = service_spec(context, plan, *address, port, source_ranges, &backends);
                programmed.specs.push(spec);
                programmed.targets.extend(backends.targets);
                programmed.forwardable.extend(backends.forwardable);
            }
            programmed.view.ports.push(PortView {
                vip: *address,
                name: port.label(),
                port: port.port.get(),
                protocol: port.protocol.to_string(),
                mode: plan.options.mode.to_string(),
                app_protocol: port.app_protocol.clone(),
                refused,
                fail_open: backends.fail_open,
                backends: backends.views,
            });
        }
    }
    programmed
}

fn vips_of(granted: &Granted) -> BTreeMap<IpAddr, Vip> {
    let mut vips: BTreeMap<IpAddr, Vip> = BTreeMap::new();
    for assigned in &granted.load_balancer {
        vips.entry(assigned.address).or_default().load_balancer_pool = Some(assigned.pool.clone());
    }
    for (assigned, ports) in &granted.external {
        vips.entry(assigned.address).or_default().external = Some((assigned.pool.clone(), ports.clone()));
    }
    vips
}

fn service_view(service: &Service, vips: &BTreeMap<IpAddr, Vip>, granted: &Granted) -> ServiceView {
    let view = |(address, vip): (&IpAddr, &Vip)| {
        let (kind, pool) = match (&vip.load_balancer_pool, &vip.external) {
            (Some(pool), _) => ("LoadBalancer", pool),
            (None, Some((pool, _))) => ("ExternalIP", pool),
            (None, None) => unreachable!("each VIP was made from one of the two"),
        };
        VipView { address: *address, kind: kind.to_owned(), pool: pool.clone() }
    };
    ServiceView {
        namespace: service.meta.key.namespace.clone(),
        name: service.meta.key.name.clone(),
        service_type: service.service_type.to_string(),
        vips: vips.iter().map(view).collect(),
        pending: granted.pending.clone(),
        ports: Vec::new(),
        created: service.meta.creation_time.map(|t| t.to_string()),
    }
}

/// Why the gateway cannot serve this port on any address, if so.
fn unsupported_port(
    context: &Context<'_>,
    plan: &Plan<'_>,
    i: usize,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    let meta = &plan.service.meta;
    let port = &plan.service.ports[i];
    if let Some(node_port) = port.node_port
        && !context.settings().node_port_addresses.is_empty()
    {
        let what = format!(
            "node port {node_port} of port {} of Service {} is not served yet",
            port.label(),
            meta.key
        );
        // On a LoadBalancer it was given by the API server, not asked for by anyone.
        let diagnostic = match plan.service.service_type {
            ServiceType::NodePort => Diagnostic::error(what),
            _ => Diagnostic::warning(what),
        };
        let diagnostic = diagnostic.accepting("spec.externalIPs, or type LoadBalancer");
        findings.push(Finding::at(
            meta,
            &format!("spec.ports[{i}].nodePort"),
            Reason::NotSupported,
            diagnostic,
        ));
    }
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
        return Some("SCTP is not supported yet".to_owned());
    }
    (!plan.options.refused.is_empty()).then(|| plan.options.refused.join("; "))
}

/// Endpoints but those that are VIPs: a packet to one would come back to us.
fn usable_endpoints(
    context: &Context<'_>,
    service: &Service,
    endpoints: &[ResolvedEndpoint],
    findings: &mut Vec<Finding>,
) -> Vec<ResolvedEndpoint> {
    let own = context.settings().own_addresses();
    let (usable, refused): (Vec<_>, Vec<_>) =
        endpoints.iter().cloned().partition(|e| !context.vips.contains(&e.ip) && !own.contains(&e.ip));
    for endpoint in refused {
        let whose = if own.contains(&endpoint.ip) { "an address of the gateway itself" } else { "a VIP" };
        let what = format!("endpoint {} of Service {} is refused: {whose}", endpoint.ip, service.meta.key);
        let diagnostic = Diagnostic::warning(what).accepting("the address of a Pod or server");
        findings.push(Finding::at(&service.meta, "spec", Reason::EndpointRefused, diagnostic));
    }
    usable
}

/// Whether the port is the Service's own on this VIP.
fn may_serve(port: &ServicePort, vip: &Vip) -> Result<(), String> {
    let own_external =
        vip.external.as_ref().is_some_and(|(_, p)| p.contains(&(port.protocol, port.port.get())));
    if own_external || vip.load_balancer_pool.is_some() {
        Ok(())
    } else {
        Err("another Service has this port on this address".to_owned())
    }
}

/// The endpoints that can serve the VIP in the Service's mode.
///
/// Those of the VIP's family; where there is none of it, a mode with an outer header takes the other's. Those
/// that the mode cannot reach are left out with a warning; if none is left of many, the port is refused.
fn reachable(
    context: &Context<'_>,
    plan: &Plan<'_>,
    i: usize,
    vip: IpAddr,
    endpoints: &[ResolvedEndpoint],
    findings: &mut Vec<Finding>,
) -> Result<Vec<ResolvedEndpoint>, String> {
    let meta = &plan.service.meta;
    let port = &plan.service.ports[i];
    let mode = plan.options.mode;
    let family = IpFamily::of(vip);
    let (own, other): (Vec<_>, Vec<_>) = endpoints.iter().partition(|e| IpFamily::of(e.ip) == family);
    let candidates = if own.is_empty() && mode == ForwardingMode::DsrIpip { other } else { own };
    if candidates.is_empty() && !endpoints.is_empty() {
        let what = format!(
            "port {} of Service {} has no {family} endpoint for {vip}, and {mode} does not cross families",
            port.label(),
            meta.key
        );
        let diagnostic =
            Diagnostic::warning(what).accepting(format!("{family} endpoints, or forwarding dsr-ipip"));
        findings.push(Finding::at(meta, "spec.ipFamilies", Reason::EndpointRefused, diagnostic));
    }
    let mut reachable = Vec::new();
    let mut unreachable: Vec<(&ResolvedEndpoint, Obstacle)> = Vec::new();
    for endpoint in candidates {
        match obstacle(context.settings(), mode, port, endpoint.ip, endpoint.port.get()) {
            None => reachable.push(endpoint.clone()),
            Some(obstacle) => unreachable.push((endpoint, obstacle)),
        }
    }
    let whole_port = match (&port.target_port, unreachable.first()) {
        (_, Some((_, obstacle))) if reachable.is_empty() => Some(obstacle.clone()),
        // No endpoint yet, and it can be told already that none will do.
        (TargetPort::Number(target), None)
            if endpoints.is_empty() && mode.is_dsr() && *target != port.port =>
        {
            Some(port_differs(mode, port, target.get()))
        }
        _ => None,
    };
    if let Some(Obstacle { why, field, accepted }) = whole_port {
        let what = format!("port {} of Service {} is not programmed: {why}", port.label(), meta.key);
        let diagnostic = Diagnostic::error(what).accepting(accepted);
        let field =
            if field.is_empty() { format!("spec.ports[{i}]") } else { format!("spec.ports[{i}].{field}") };
        findings.push(Finding::at(meta, &field, Reason::PortNotProgrammed, diagnostic));
        return Err(why);
    }
    for (endpoint, Obstacle { why, accepted, .. }) in unreachable {
        let what = format!("endpoint {} of Service {} is refused: {why}", endpoint.ip, meta.key);
        let diagnostic = Diagnostic::warning(what).accepting(accepted);
        findings.push(Finding::at(meta, &format!("spec.ports[{i}]"), Reason::EndpointRefused, diagnostic));
    }
    Ok(reachable)
}

/// Why a mode cannot bring packets to an endpoint.
#[derive(Debug, Clone)]
pub(super) struct Obstacle {
    why: String,
    /// Below `spec.ports[i]`.
    field: &'static str,
    accepted: String,
}

/// What stands between the mode and an endpoint, if anything.
pub(super) fn obstacle(
    settings: &Settings,
    mode: ForwardingMode,
    port: &ServicePort,
    ip: IpAddr,
    endpoint_port: u16,
) -> Option<Obstacle> {
    let family = IpFamily::of(ip);
    let not_here = |why: String, accepted: String| Some(Obstacle { why, field: "", accepted });
    if mode.is_dsr() && endpoint_port != port.port.get() {
        return Some(port_differs(mode, port, endpoint_port));
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

fn port_differs(mode: ForwardingMode, port: &ServicePort, endpoint_port: u16) -> Obstacle {
    Obstacle {
        why: format!(
            "{mode} keeps the destination port {}, and the target port is {endpoint_port}",
            port.port
        ),
        field: "targetPort",
        accepted: format!("targetPort {}, or forwarding nat or fullnat", port.port),
    }
}

pub(super) fn service_key(vip: IpAddr, port: &ServicePort) -> ServiceKey {
    let protocol = match port.protocol {
        Protocol::Tcp => CoreProtocol::Tcp,
        Protocol::Udp => CoreProtocol::Udp,
        Protocol::Sctp => CoreProtocol::Sctp,
    };
    ServiceKey { vip, protocol, port: port.port.get() }
}

fn service_spec(
    context: &Context<'_>,
    plan: &Plan<'_>,
    vip: IpAddr,
    port: &ServicePort,
    source_ranges: Option<Arc<[IpNet]>>,
    backends: &Backends,
) -> ServiceSpec {
    let Plan { service, options, .. } = plan;
    ServiceSpec {
        key: service_key(vip, port),
        namespace: service.meta.key.namespace.clone(),
        name: service.meta.key.name.clone(),
        port_name: port.label(),
        mode: options.mode,
        table_size: options.table_size,
        affinity: service.session_affinity,
        no_endpoints: if backends.only_elsewhere {
            NoEndpoints::Drop
        } else {
            context.settings().no_endpoints
        },
        idle_timeout_tcp: options.idle_timeout_tcp,
        idle_timeout_udp: options.idle_timeout_udp,
        source_ranges,
        announced: true,
        backends: backends.specs.clone(),
    }
}
