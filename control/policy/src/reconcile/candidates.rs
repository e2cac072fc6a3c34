//! The possible backends of a Service's port on one VIP, for the Service's target, and why a forwarding mode can't
//! reach a candidate ([`ForwardingError`]).
//!
//! With target `pod`, these are the endpoints, at the ports that they resolved to. With target `node`, these are the
//! nodes. DSR modes send to a node at the port of the VIP, which stays the destination, so that the node's own proxy
//! (kube-proxy) recognises the packet. NAT modes send to the Service's node port. `backends` then decides which
//! candidates take flows, using the policy and viewpoint that are determined here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tidegate_model::config::Target;
use tidegate_model::objects::{
    IpFamily, Port, ResolvedEndpoint, ServiceType, TrafficPolicy, Viewpoint, endpoint_locations,
};
use tidegate_spec::ForwardingMode;

use super::context::{Collector, PortAt};
use super::finding::Finding;
use super::frontend::Frontend;
use super::node_candidates::{self, NodeRequirements};
use super::plan::Plan;
use super::settings::Settings;
use super::view::VipKind;
use super::weights::Weights;

pub(super) struct Candidates<'a> {
    pub(super) endpoints: Cow<'a, [ResolvedEndpoint]>,
    /// With target `node`, the weights by node name.
    pub(super) node_weights: Option<BTreeMap<String, u16>>,
    /// The policy and the viewpoint by which backends are chosen among the endpoints.
    pub(super) policy: TrafficPolicy,
    pub(super) viewpoint: Viewpoint<'a>,
}

/// The candidates, or why the mode can't serve the frontend at all.
pub(super) fn candidates<'e, 'a: 'e>(
    collector: &mut Collector<'a>,
    at: &PortAt<'e>,
) -> Result<Candidates<'e>, ForwardingError> {
    let (context, plan) = (collector.context, collector.plan);
    let PortAt { frontend, endpoints, .. } = *at;
    let settings = context.settings();
    let (service, mode) = (plan.service, plan.options.mode);
    let nodes = &context.input.objects.nodes;
    let selector = plan.options.backends.node_selector.as_ref();
    if frontend.via == VipKind::NodePort && mode.is_dsr() {
        return Err(ForwardingError {
            why: format!("{mode} keeps the destination address, and only the gateway has that address"),
            field: "nodePort",
            accepted: "forwarding nat or fullnat".to_owned(),
        });
    }
    let (own_node, zone) = (settings.node.as_deref(), context.own_zone());
    let (policy, viewpoint) = match (frontend.via, plan.options.backends.target) {
        (VipKind::ClusterIp, _) => {
            // No node has the name "", so outside a cluster no endpoint is on the gateway's node.
            let node = Some(own_node.unwrap_or_default());
            (service.internal_traffic_policy, Viewpoint { node, zone })
        }
        (_, Target::Pod) => (service.external_traffic_policy, Viewpoint { node: own_node, zone }),
        // Policy Local has already decided which nodes are included.
        (_, Target::Node) => (TrafficPolicy::Cluster, Viewpoint { node: None, zone: None }),
    };
    let (candidates, node_weights) = match plan.options.backends.target {
        Target::Pod if selector.is_none() => (Cow::Borrowed(endpoints), None),
        Target::Pod => {
            let selected =
                |e: &&ResolvedEndpoint| node_candidates::is_selected(nodes, selector, e.node.as_deref());
            (endpoints.iter().filter(selected).cloned().collect(), None)
        }
        Target::Node => {
            let requirements = NodeRequirements {
                policy: match frontend.via {
                    VipKind::ClusterIp => service.internal_traffic_policy,
                    _ => service.external_traffic_policy,
                },
                selector,
                port: node_side_port(plan, at)?,
                family: IpFamily::of(frontend.vip),
            };
            let weights = Weights { objects: context.input.objects };
            let targets = node_candidates::node_targets(
                nodes,
                endpoints,
                requirements,
                &weights,
                &mut collector.findings,
            );
            (Cow::Owned(targets.candidates), Some(targets.weights))
        }
    };
    let endpoints = usable(collector, candidates);
    Ok(Candidates { endpoints, node_weights, policy, viewpoint })
}

/// The port of a node that packets are sent to.
fn node_side_port(plan: Plan<'_>, at: &PortAt<'_>) -> Result<Port, ForwardingError> {
    let mode = plan.options.mode;
    if mode.is_dsr() {
        return Ok(at.frontend.port);
    }
    at.port.node_port.ok_or_else(|| {
        let missing = match plan.service.service_type {
            ServiceType::LoadBalancer if !plan.service.allocate_node_ports => {
                "allocateLoadBalancerNodePorts is false"
            }
            ServiceType::LoadBalancer => "none was assigned",
            _ => "the Service's type has none",
        };
        ForwardingError {
            why: format!("tidegate.dev/target node with {mode} needs a node port, but {missing}"),
            field: "nodePort",
            accepted: "a nodePort, forwarding dsr-l2 or dsr-ipip, or tidegate.dev/target pod".to_owned(),
        }
    })
}

/// Removes candidates that are VIPs or addresses of the gateway, because packets to them would return to the gateway.
/// Also removes network and broadcast addresses of the gateway's links: no host has a network address, and every
/// neighbour would answer for a broadcast address.
fn usable<'a>(
    collector: &mut Collector<'_>,
    candidates: Cow<'a, [ResolvedEndpoint]>,
) -> Cow<'a, [ResolvedEndpoint]> {
    let (context, service) = (collector.context, collector.plan.service);
    if !candidates.iter().any(|candidate| context.refuses_endpoint(&candidate.ip)) {
        return candidates;
    }
    let (refused, usable): (Vec<_>, Vec<_>) =
        candidates.into_owned().into_iter().partition(|candidate| context.refuses_endpoint(&candidate.ip));
    let ips: BTreeSet<IpAddr> = refused.iter().map(|candidate| candidate.ip).collect();
    let key = &service.meta.key;
    let mut locations = endpoint_locations(context.input.objects, context.slices, key, &ips);
    for ip in ips {
        let why = match context.hostless.get(&ip) {
            _ if context.own_addresses.contains(&ip) => "it is an address of the gateway itself".to_owned(),
            Some(net) if ip == net.network() => format!("it is the network address of {net}"),
            Some(net) => format!("it is the broadcast address of {net}"),
            None => "it is a VIP".to_owned(),
        };
        let accepted = "the address of a Pod or server";
        let mut finding = Finding::refused_endpoint(&service.meta, "spec", ip, &why, accepted);
        // The finding refers to the endpoint. A node is in no slice, so its finding refers to the Service.
        if let Some(location) = locations.remove(&ip) {
            finding.diagnostic.location = Some(location);
        }
        collector.findings.push(finding);
    }
    Cow::Owned(usable)
}

/// Why a mode cannot forward packets to an endpoint.
#[derive(Debug, Clone)]
pub(super) struct ForwardingError {
    pub(super) why: String,
    /// The field below `spec.ports[i]`.
    pub(super) field: &'static str,
    pub(super) accepted: String,
}

/// Why the mode can't reach a candidate, if it can't.
pub(super) fn forwarding_error(
    settings: &Settings,
    mode: ForwardingMode,
    frontend: &Frontend,
    candidate: SocketAddr,
) -> Option<ForwardingError> {
    let ip = candidate.ip();
    let family = IpFamily::of(ip);
    let error = |why: String, accepted: String| Some(ForwardingError { why, field: "", accepted });
    if mode.is_dsr() && candidate.port() != frontend.port.get() {
        return Some(port_differs(mode, frontend, candidate.port()));
    }
    match mode {
        ForwardingMode::DsrL2 if !settings.network.is_on_link(ip) => error(
            format!("dsr-l2 reaches only endpoints on the gateway's links, and {ip} is on none of them"),
            "an endpoint in a prefix of dataplane.interfaces, or another forwarding mode".to_owned(),
        ),
        ForwardingMode::FullNat if !settings.has_snat(family) => error(
            format!("fullnat needs an {family} address in dataplane.snatAddresses to reach {ip}"),
            format!("an {family} entry in dataplane.snatAddresses, or another forwarding mode"),
        ),
        _ if mode.is_tunnel() && !settings.has_tunnel_source(family) => error(
            format!("{mode} needs an {family} address in dataplane.tunnelSource to reach {ip}"),
            format!("an {family} entry in dataplane.tunnelSource, or another forwarding mode"),
        ),
        _ => None,
    }
}

pub(super) fn port_differs(mode: ForwardingMode, frontend: &Frontend, endpoint_port: u16) -> ForwardingError {
    let port = frontend.port;
    ForwardingError {
        why: format!("{mode} keeps the destination port {port}, but the target port is {endpoint_port}"),
        field: "targetPort",
        accepted: format!("targetPort {port}, or forwarding nat or fullnat"),
    }
}
