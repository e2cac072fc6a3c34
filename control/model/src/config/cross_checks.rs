//! Checks between sections: routes against interfaces, addresses against each other.
//!
//! Runs after all sections were decoded. Keys with a fault have their defaults.

use std::fmt::Display;
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_spec::TunnelPrefix;

use super::dataplane::Interface;
use super::flow_sharing::FlowSharing;
use super::gateway::GatewayConfig;
use super::layer2::Layer2Mode;
use super::services::ForwardingMode;
use super::source::SourceConfig;
use crate::diagnostic::Diagnostic;
use crate::objects::AddressRange;
use crate::yaml::Sheet;

/// What is accepted as an address that the gateway answers for.
const GATEWAYS_OWN: &str = "an address that no other host has";

pub(super) fn check(check: &Check<'_>) {
    check.interfaces();
    check.next_hops();
    check.snat();
    check.tunnel_sources();
    check.tunnel_peers();
    check.gateway();
    check.node_ports();
    check.layer2();
    check.flow_sharing();
    check.flow_peers();
}

/// The configuration that is checked, and where faults are reported.
pub(super) struct Check<'a> {
    pub(super) sheet: &'a Sheet,
    pub(super) config: &'a GatewayConfig,
}

impl Check<'_> {
    fn interfaces(&self) {
        let network = &self.config.dataplane.network;
        if network.interfaces.is_empty() && self.sheet.errors() == 0 {
            self.warn(
                "dataplane.interfaces",
                "no interface is configured, so nothing can be forwarded",
                "at least one interface with name and device",
            );
        }
        let mut seen: Vec<(IpAddr, &str)> = Vec::new();
        for (i, interface) in network.interfaces.iter().enumerate() {
            for (j, address) in interface.addresses.iter().map(IpNet::addr).enumerate() {
                if let Some((_, other)) =
                    seen.iter().find(|(ip, name)| *ip == address && *name != interface.name)
                {
                    let field = format!("dataplane.interfaces[{i}].addresses[{j}]");
                    self.error(
                        &field,
                        format!("{address} is also an address of the interface {other}"),
                        "each address on only one interface",
                    );
                }
                seen.push((address, &interface.name));
            }
        }
        self.one_interface_for_each_network();
    }

    /// Each network should be on one interface: packets to it leave there, and packets from it are not expected
    /// elsewhere.
    fn one_interface_for_each_network(&self) {
        let interfaces = &self.config.dataplane.network.interfaces;
        for (i, interface) in interfaces.iter().enumerate() {
            for (j, net) in interface.addresses.iter().map(IpNet::trunc).enumerate() {
                let shares = |other: &&Interface| other.addresses.iter().any(|one| one.trunc() == net);
                let is_host = net.prefix_len() == net.max_prefix_len();
                if let Some(Interface { name, .. }) = interfaces[..i].iter().find(shares).filter(|_| !is_host)
                {
                    let what = format!(
                        "{net} is also a network of the interface {name}, so packets to this network leave on {name} only"
                    );
                    let field = format!("dataplane.interfaces[{i}].addresses[{j}]");
                    self.warn(&field, what, "each network on only one interface");
                }
            }
        }
    }

    /// Leases need an API server.
    fn layer2(&self) {
        if self.config.announce.l2.mode == Layer2Mode::Lease && self.is_directory() {
            let what = "Leases need an API server, but the source is a directory";
            self.error(
                "announce.l2.mode",
                what,
                "source.kubernetes, or one of the modes always, vrrp and off",
            );
        }
    }

    /// Other gateways can only discover a gateway that has an address.
    fn flow_sharing(&self) {
        let socket = self.config.flow_sharing_socket();
        if self.config.finds_flow_peers() && socket.ip().is_unspecified() {
            let what = format!(
                "{socket} is not a specific address, and no interface has an address of this family, so other gateways \
                 cannot discover this gateway"
            );
            // The default of the key has no position.
            self.report(
                ("flowSharing.listen", "flowSharing.mode"),
                Diagnostic::error,
                what,
                "flowSharing.listen with an address of this gateway, or flowSharing.peers",
            );
        }
    }

    /// Peers for flow sharing are other gateways. There must be at least one, and none may be an address that
    /// Services can get.
    fn flow_peers(&self) {
        let sharing = &self.config.flow_sharing;
        if sharing.mode == FlowSharing::None {
            return;
        }
        if sharing.peers.is_empty() && self.is_directory() {
            self.report(
                ("flowSharing.peers", "flowSharing.mode"),
                Diagnostic::warning,
                "the list is empty, so no flows are shared: with source.directory, gateways cannot discover each other",
                "the flowSharing.listen addresses of all other gateways",
            );
        }
        for (i, peer) in sharing.peers.iter().enumerate() {
            let contains = |range: &AddressRange| range.contains(peer.ip());
            if let Some(pool) = self.config.pools.iter().find(|pool| pool.ranges.iter().any(contains)) {
                let what = format!(
                    "{peer} has an address of the pool {}, so a Service can get this address",
                    pool.name
                );
                self.warn(
                    &format!("flowSharing.peers[{i}]"),
                    what,
                    "the flowSharing.listen of another gateway",
                );
            }
        }
    }

    /// Next hops and neighbours must be reachable without a route.
    fn next_hops(&self) {
        let network = &self.config.dataplane.network;
        let on_link = self.on_link_networks();
        for (i, route) in network.routes.iter().enumerate() {
            let field = format!("dataplane.routes[{i}].via");
            if self.is_own(route.via) {
                let what = format!("{} is an address of the gateway itself", route.via);
                self.error(&field, what, "the address of a router");
            } else if !self.config.dataplane.is_on_link(route.via) {
                self.error(&field, format!("{} is not on-link", route.via), &on_link);
            }
        }
        for (i, neighbor) in network.neighbors.iter().enumerate() {
            let field = format!("dataplane.neighbors[{i}].ip");
            if self.is_own(neighbor.ip) {
                let what = format!("{} is an address of the gateway itself", neighbor.ip);
                self.error(&field, what, "the address of a neighbour");
            } else if !self.config.dataplane.is_on_link(neighbor.ip) {
                let what = format!("{} is not on-link, so the gateway never uses this entry", neighbor.ip);
                self.warn(&field, what, &on_link);
            }
        }
    }

    fn on_link_networks(&self) -> String {
        let interfaces = self.config.dataplane.network.interfaces.iter();
        let networks =
            interfaces.flat_map(|i| i.addresses.iter().map(move |a| format!("{} ({})", a.trunc(), i.name)));
        let networks: Vec<String> = networks.collect();
        if networks.is_empty() {
            return "an on-link address; no interface has addresses yet".to_owned();
        }
        format!("an address in {}", networks.join(", "))
    }

    fn snat(&self) {
        let network = &self.config.dataplane.network;
        let mode = self.config.services.defaults.forwarding;
        if mode == ForwardingMode::FullNat
            && network.snat_addresses.is_empty()
            && !network.interfaces.is_empty()
        {
            self.warn(
                "dataplane.snatAddresses",
                "the list is empty, but the default forwarding mode fullnat needs an address: Services in this mode cannot be served",
                "at least one address of each family, routed to the gateway",
            );
        }
        let others = self.other_hosts();
        for (i, ip) in network.snat_addresses.iter().enumerate() {
            let field = format!("dataplane.snatAddresses[{i}]");
            if let Some((_, who)) = others.iter().find(|(other, _)| other == ip) {
                self.error(&field, format!("{ip} is the address of {who}"), GATEWAYS_OWN);
            } else if let Some(interface) =
                network.interfaces.iter().find(|i| i.addresses.iter().any(|a| a.addr() == *ip))
            {
                let name = &interface.name;
                let what = format!(
                    "{ip} is also an address of the interface {name}, so SNAT ports may collide with ports of this host"
                );
                self.warn(&field, what, "an address that no interface has");
            } else {
                self.check_reachable(&field, &(*ip).into(), "answers of backends");
            }
        }
    }

    /// Warns about an address that is not on a link, because routers need a route to it, unless BGP or a daemon that
    /// reads the kernel's routes announces it.
    fn check_reachable(&self, field: &str, source: &IpNet, lost: &str) {
        let announces = self.config.announce.bgp.is_some() || self.config.announce.kernel_routes.is_some();
        let mut networks = self.config.dataplane.interface_addresses().map(IpNet::trunc);
        let has_none = self.config.dataplane.network.interfaces.is_empty();
        if announces || has_none || networks.any(|net| net.contains(source)) {
            return;
        }
        let shown = if source.prefix_len() == source.max_prefix_len() {
            source.addr().to_string()
        } else {
            source.to_string()
        };
        let what = format!(
            "{shown} is in no network of an interface, so {lost} get lost unless routers have a route to {shown} \
             through this gateway"
        );
        self.warn(field, what, "an address in a network of dataplane.interfaces, or a route on every router");
    }

    /// Warns if no address is in `services.nodePortAddresses`: nothing would listen, and no Service would report why.
    /// Skipped if there are errors, because addresses with a fault are missing.
    fn node_ports(&self) {
        let networks = &self.config.services.node_port_addresses;
        let has_interfaces = !self.config.dataplane.network.interfaces.is_empty();
        let mut own = self.config.dataplane.interface_addresses().map(IpNet::addr);
        let serves_none = !own.any(|ip| networks.iter().any(|net| net.contains(&ip)));
        if serves_none && !networks.is_empty() && has_interfaces && self.sheet.errors() == 0 {
            self.warn(
                "services.nodePortAddresses",
                "no address of dataplane.interfaces is in these networks, so node ports and health-check node ports are not served",
                "a network with an address of dataplane.interfaces, or an empty list",
            );
        }
    }

    /// A tunnel peer is another gateway, never this one.
    fn tunnel_peers(&self) {
        let network = &self.config.dataplane.network;
        for (i, ip) in network.tunnel_peers.iter().enumerate() {
            let is_source = network.tunnel_sources().any(|source| source.contains(&(*ip).into()));
            if is_source || self.is_own(*ip) || network.snat_addresses.contains(ip) {
                let what = format!("{ip} is an address of this gateway");
                self.error(&format!("dataplane.tunnelPeers[{i}]"), what, "an address of another gateway");
            }
        }
    }

    /// The addresses of other hosts. Answering ARP or neighbour discovery for one of them would take over its
    /// traffic.
    fn other_hosts(&self) -> Vec<(IpAddr, String)> {
        let network = &self.config.dataplane.network;
        let named = |list: &str, n: usize| format!("{list}[{n}]");
        let routes = (0..).zip(&network.routes);
        let routes = routes.map(|(n, route)| (route.via, format!("the next hop of dataplane.routes[{n}]")));
        let neighbors = (0..).zip(&network.neighbors);
        let neighbors = neighbors.map(|(n, one)| (one.ip, named("dataplane.neighbors", n)));
        let routers = self.config.announce.bgp.iter().flat_map(|bgp| (0..).zip(&bgp.peers));
        let routers = routers.map(|(n, peer)| (peer.address, named("announce.bgp.peers", n)));
        // `flowSharing.peers` may contain this gateway itself, at an address that the kernel has.
        let gateways = (0..).zip(&self.config.flow_sharing.peers).filter(|(_, peer)| !self.is_own(peer.ip()));
        let gateways = gateways.map(|(n, peer)| (peer.ip(), named("flowSharing.peers", n)));
        routes.chain(neighbors).chain(routers).chain(gateways).collect()
    }

    /// Whether an interface has the address.
    fn is_own(&self, ip: IpAddr) -> bool {
        self.config.dataplane.interface_addresses().any(|net| net.addr() == ip)
    }

    fn is_directory(&self) -> bool {
        matches!(self.config.source, SourceConfig::Directory(_))
    }

    /// The sources of tunnels must belong to the gateway alone, because it answers for all of them. If the source is an
    /// interface's address, the check is where the other host is configured.
    fn tunnel_sources(&self) {
        // The family identifies the entry, so its index is not needed.
        const FIELD: &str = "dataplane.tunnelSource";
        let hosts = self.other_hosts();
        let is_separate = |source: &&TunnelPrefix| source.is_many() || !self.is_own(source.net().addr());
        for source in self.config.dataplane.network.tunnel_sources().filter(is_separate) {
            let fault = match hosts.iter().find(|(ip, _)| source.contains(&(*ip).into())) {
                Some((ip, what)) if source.is_many() => Some(format!("contains {ip}, the address of {what}")),
                Some((_, who)) => Some(format!("is the address of {who}")),
                None => self.overlap(source).filter(|_| source.is_many()),
            };
            let only = if source.is_many() {
                "a prefix of addresses that only the gateway has"
            } else {
                GATEWAYS_OWN
            };
            match fault {
                Some(what) => self.error(FIELD, format_args!("{source} {what}"), only),
                None => self.check_reachable(FIELD, &source.net(), "ICMP errors about tunnel packets"),
            }
        }
    }

    /// The network of an interface or the pool that has addresses of a tunnel prefix.
    fn overlap(&self, source: &TunnelPrefix) -> Option<String> {
        let mut networks =
            self.config.dataplane.interface_addresses().filter(|net| source.net().contains(&net.trunc()));
        if let Some(net) = networks.find(|net| net.prefix_len() < net.max_prefix_len()) {
            return Some(format!("contains all hosts of the network {}", net.trunc()));
        }
        let whole = AddressRange::from(source.net());
        let mut pools = self.config.pools.iter();
        let pool = pools.find(|pool| pool.ranges.iter().any(|range| whole.overlaps(range)))?;
        Some(format!("has addresses of the pool {}", pool.name))
    }

    /// Each backend network must be part of a connected network or of a route other than a default route, because
    /// packets from it are accepted only on the interface that leads there.
    fn gateway(&self) {
        let network = &self.config.dataplane.network;
        let connected = self.config.dataplane.interface_addresses().map(IpNet::trunc);
        let routes = network.routes.iter().map(|route| route.to).filter(|to| to.prefix_len() > 0);
        let known: Vec<IpNet> = connected.chain(routes).collect();
        for (i, prefix) in network.gateway.prefixes.iter().enumerate() {
            if !known.iter().any(|net| net.contains(prefix)) {
                self.error(
                    &format!("dataplane.gateway.prefixes[{i}]"),
                    format!(
                        "{prefix} is in no network of an interface or of a route other than a default route"
                    ),
                    "a part of a network of dataplane.interfaces, or of a route other than a default route",
                );
            }
        }
        if network.gateway.forward && network.gateway.prefixes.is_empty() {
            self.warn(
                "dataplane.gateway.forward",
                "the list of prefixes is empty, so no traffic of backends is forwarded",
                "dataplane.gateway.prefixes with the networks of backends",
            );
        }
        self.masquerade();
    }

    /// Masqueraded traffic must be forwarded, and needs a SNAT address of its family.
    fn masquerade(&self) {
        let network = &self.config.dataplane.network;
        for (i, net) in network.gateway.masquerade.iter().enumerate() {
            let is_v4 = net.addr().is_ipv4();
            let (what, accepted) = if !network.gateway.forward {
                (
                    format!(
                        "the traffic of {net} is not forwarded, because dataplane.gateway.forward is refuse"
                    ),
                    "dataplane.gateway.forward: routes, or no masquerade",
                )
            } else if !network.gateway.prefixes.iter().any(|prefix| prefix.contains(net)) {
                (
                    format!("{net} is in no network of dataplane.gateway.prefixes"),
                    "a network inside one of dataplane.gateway.prefixes",
                )
            } else if !network.snat_addresses.iter().any(|addr| addr.is_ipv4() == is_v4) {
                let family = if is_v4 { "IPv4" } else { "IPv6" };
                (
                    format!("dataplane.snatAddresses has no {family} address"),
                    "a network of the same family as an address in dataplane.snatAddresses",
                )
            } else {
                continue;
            };
            self.error(&format!("dataplane.gateway.masquerade[{i}]"), what, accepted);
        }
    }

    pub(super) fn error(&self, field: &str, what: impl Display, accepted: &str) {
        self.report((field, field), Diagnostic::error, what, accepted);
    }

    fn warn(&self, field: &str, what: impl Display, accepted: &str) {
        self.report((field, field), Diagnostic::warning, what, accepted);
    }

    /// Reports a fault of a field at the location of `at`.
    fn report(
        &self,
        (field, at): (&str, &str),
        severity: fn(String) -> Diagnostic,
        what: impl Display,
        accepted: &str,
    ) {
        let fault = severity(format!("{field}: {what}"));
        self.sheet.push(fault.accepting(accepted).at(self.config.origin.field(at)));
    }
}
