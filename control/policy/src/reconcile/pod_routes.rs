//! `services.podRoutes: node`: the next hop for a Pod's address is the Pod's node.
//!
//! Each of a node's `spec.podCIDRs` becomes a route through the node's InternalIP of the same family. The gateway's
//! own routes take precedence for their prefixes. Pure; prefixes that cannot be routed are reported on the Node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::config::PodRoutes;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{IpFamily, Node};
use tidegate_spec::RouteSpec;
use tidegate_spec::limits::ROUTES_MAX;

use super::finding::{Finding, ObjectKind, Reason};
use super::node_candidates::Nodes;
use super::settings::Settings;

/// What is accepted if the table is full.
const FEWER_ROUTES: &str = "at most 65536 routes, counting dataplane.routes and the podCIDRs of nodes";

/// The routes to Pods, without the configured routes, sorted by prefix.
pub(super) fn pod_routes(settings: &Settings, nodes: &Nodes, findings: &mut Vec<Finding>) -> Vec<RouteSpec> {
    if settings.services.pod_routes == PodRoutes::Route {
        return Vec::new();
    }
    let mut routes: BTreeMap<IpNet, (&str, IpAddr)> = BTreeMap::new();
    for node in nodes.values() {
        // The Pods of the gateway's own node are reached through the kernel.
        if settings.node.as_deref() == Some(node.meta.key.name.as_str()) {
            continue;
        }
        for (i, cidr) in node.pod_cidrs.iter().map(IpNet::trunc).enumerate() {
            if settings.network.routes.iter().any(|route| route.to == cidr) {
                continue;
            }
            let taken = routes.get(&cidr).map(|(owner, _)| *owner);
            let next_hop = match next_hop(settings, node, cidr, taken) {
                Ok(_) if settings.network.routes.len() + routes.len() >= ROUTES_MAX => {
                    Err(("the routing table is full".to_owned(), FEWER_ROUTES))
                }
                next_hop => next_hop,
            };
            match next_hop {
                Ok(via) => {
                    routes.insert(cidr, (&node.meta.key.name, via));
                }
                Err((why, accepted)) => {
                    let what = format!(
                        "Pods of node {} in {cidr} get no route through the node: {why}",
                        node.meta.key
                    );
                    let diagnostic = Diagnostic::warning(what).accepting(accepted);
                    let field = format!("spec.podCIDRs[{i}]");
                    let reason = Reason::PodRouteRefused;
                    findings.push(Finding::of(ObjectKind::Node, &node.meta, &field, reason, diagnostic));
                }
            }
        }
    }
    routes.into_iter().map(|(to, (_, via))| RouteSpec { to, via }).collect()
}

fn next_hop(
    settings: &Settings,
    node: &Node,
    cidr: IpNet,
    taken: Option<&str>,
) -> Result<IpAddr, (String, &'static str)> {
    if let Some(owner) = taken {
        return Err((format!("node {owner} has the same podCIDR"), "a podCIDR that no other node has"));
    }
    let family = IpFamily::of(cidr.addr());
    let Some(via) = node.internal_ip(family) else {
        return Err((
            format!("the node has no {family} InternalIP"),
            "an InternalIP of the family of the podCIDR",
        ));
    };
    if settings.network.own_addresses().contains(&via) {
        return Err((
            format!("{via} is an address of the gateway itself"),
            "the name of this node in node.name, if the gateway runs on it",
        ));
    }
    if !settings.network.is_on_link(via) {
        return Err((
            format!("{via} is not on a link of the gateway"),
            "an InternalIP in a prefix of dataplane.interfaces, or services.podRoutes: route with dataplane.routes to \
             the Pods",
        ));
    }
    Ok(via)
}
