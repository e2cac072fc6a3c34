//! The networks in which endpoints may be checked: `health.allowedNetworks`, or the networks of backends by default.
//!
//! Users who can write EndpointSlices can put any address into them. Without a limit, health checks would send requests
//! to any host that the gateway can reach and report the answers.
//!
//! Pure. Nodes as backends are not restricted: they belong to the operator.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{Node, Service};

use super::finding::{Finding, Reason};
use super::settings::Settings;

/// The maximum number of endpoints that a finding names.
const NAMED: usize = 3;

/// The networks in which endpoints may be checked.
#[derive(Debug)]
pub(super) struct Checkable {
    /// Sorted; none contains another.
    networks: Vec<IpNet>,
    /// Whether an endpoint may be checked in the networks of its node.
    of_nodes: bool,
    /// Whether every network is allowed.
    all: bool,
}

impl Checkable {
    /// The networks that a configuration allows.
    pub(super) fn new(settings: &Settings) -> Self {
        let listed = settings.health.allowed_networks.clone();
        let of_nodes = listed.is_none();
        let all = listed.is_none() && settings.endpoints_of_operator;
        let networks = listed.unwrap_or_else(|| {
            let links = settings.network.interface_addresses();
            // A default route covers every address.
            let routes =
                settings.network.routes.iter().map(|route| &route.to).filter(|to| to.prefix_len() > 0);
            links.chain(routes).map(IpNet::trunc).collect()
        });
        let mut networks = IpNet::aggregate(&networks);
        networks.sort_unstable_by_key(IpNet::network);
        Self { networks, of_nodes, all }
    }

    /// Whether an endpoint may be checked, given the node that it is said to be on.
    pub(super) fn allows<'n>(&self, ip: IpAddr, node: impl FnOnce() -> Option<&'n Node>) -> bool {
        self.allows_anywhere(ip) || (self.of_nodes && node().is_some_and(|node| is_of(node, ip)))
    }

    /// Whether the decision depends on the node of the endpoint.
    pub(super) fn depends_on_node(&self, ip: IpAddr) -> bool {
        self.of_nodes && !self.allows_anywhere(ip)
    }

    fn allows_anywhere(&self, ip: IpAddr) -> bool {
        let next = self.networks.partition_point(|network| network.network() <= ip);
        self.all || next.checked_sub(1).is_some_and(|at| self.networks[at].contains(&ip))
    }
}

/// Whether an address belongs to a node or to one of its Pods.
fn is_of(node: &Node, ip: IpAddr) -> bool {
    node.internal_ips.contains(&ip) || node.pod_cidrs.iter().any(|network| network.contains(&ip))
}

/// The finding about the endpoints of a Service that are not checked, if any.
pub(super) fn finding(service: &Service, unchecked: &BTreeSet<IpAddr>) -> Option<Finding> {
    if unchecked.is_empty() {
        return None;
    }
    let named: Vec<String> = unchecked.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match unchecked.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let what = format!(
        "endpoints of Service {} are not health-checked and count as healthy, because the operator does not allow \
         checks in their networks: {}{more}",
        service.meta.key,
        named.join(", ")
    );
    let accepted = "the networks of these endpoints in health.allowedNetworks; without this key, also endpoints in \
                    a network of dataplane.interfaces or dataplane.routes, or among the InternalIPs and podCIDRs of \
                    their node";
    let diagnostic = Diagnostic::warning(what).accepting(accepted);
    Some(Finding::at(&service.meta, "spec", Reason::HealthCheckNotAllowed, diagnostic))
}
