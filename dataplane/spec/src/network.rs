//! The network of the gateway in plain values: interfaces, routes, and the gateway's own addresses.
//!
//! The configuration, the settings of `reconcile` and the spec of a snapshot share this type. The configuration
//! contains the interfaces as configured; [`NetworkSpec::with_interfaces`] replaces them by the running interfaces,
//! whose link addresses are known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::MacAddr;

use super::source_rate::SourceRate;
use super::tunnel_prefix::TunnelPrefix;
use crate::source_lists::SourceLists;

/// The network state that all services share. It determines how a backend is reached. `I` is the type of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSpec<I = InterfaceSpec> {
    /// `dataplane.interfaces`; the position is the interface index used everywhere else.
    pub interfaces: Vec<I>,
    /// `dataplane.routes`: the routes in addition to the connected ones. The longest prefix wins.
    pub routes: Vec<RouteSpec>,
    /// `dataplane.neighbors`: the fixed neighbours. All others are resolved.
    pub neighbors: Vec<NeighborSpec>,
    /// `dataplane.snatAddresses`: source addresses of `fullnat`, of either family.
    pub snat_addresses: Vec<IpAddr>,
    /// `dataplane.tunnelSource`: outer sources of IPv4 tunnels.
    pub tunnel_source_v4: Option<TunnelPrefix>,
    /// `dataplane.tunnelSource`: outer sources of IPv6 tunnels.
    pub tunnel_source_v6: Option<TunnelPrefix>,
    /// `dataplane.tunnelPeers`: the addresses of gateways whose tunnel packets are decapsulated.
    pub tunnel_peers: Vec<IpAddr>,
    /// `dataplane.gateway`: the networks of backends whose own traffic arrives here.
    pub gateway: GatewaySpec,
    /// `protection.deny` and `protection.allow`.
    pub sources: Arc<SourceLists>,
    /// `protection.newConnections`: the rate of new flows of each source prefix; `None` for no limit.
    pub source_rate: Option<SourceRate>,
    /// `dataplane.unknownFlows`, `services.unservedPorts`, `dataplane.routersAsClients`, `dataplane.oversized`,
    /// `protection.synCookies` and `selectionKey`.
    pub policy: Policy,
}

impl<I> Default for NetworkSpec<I> {
    /// No interface, no route, no address, and the default policy.
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            routes: Vec::new(),
            neighbors: Vec::new(),
            snat_addresses: Vec::new(),
            tunnel_source_v4: None,
            tunnel_source_v6: None,
            tunnel_peers: Vec::new(),
            gateway: GatewaySpec::default(),
            sources: Arc::default(),
            source_rate: None,
            policy: Policy::default(),
        }
    }
}

impl<I> NetworkSpec<I> {
    /// A copy with other interfaces, in the same order.
    #[must_use]
    pub fn with_interfaces<J>(&self, interfaces: Vec<J>) -> NetworkSpec<J> {
        NetworkSpec {
            interfaces,
            routes: self.routes.clone(),
            neighbors: self.neighbors.clone(),
            snat_addresses: self.snat_addresses.clone(),
            tunnel_source_v4: self.tunnel_source_v4,
            tunnel_source_v6: self.tunnel_source_v6,
            tunnel_peers: self.tunnel_peers.clone(),
            gateway: self.gateway.clone(),
            sources: Arc::clone(&self.sources),
            source_rate: self.source_rate,
            policy: self.policy,
        }
    }

    /// The outer sources of tunnels, at most one of each family.
    pub fn tunnel_sources(&self) -> impl Iterator<Item = &TunnelPrefix> {
        [&self.tunnel_source_v4, &self.tunnel_source_v6].into_iter().flatten()
    }
}

impl NetworkSpec {
    /// The addresses of the interfaces with their on-link prefixes.
    pub fn interface_addresses(&self) -> impl Iterator<Item = &IpNet> {
        self.interfaces.iter().flat_map(|interface| &interface.addresses)
    }

    /// Whether an address is on the link of one of the interfaces.
    #[must_use]
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.interface_addresses().any(|net| net.contains(&ip))
    }

    /// The network and directed broadcast addresses of the interfaces' IPv4 networks, which no host can have, each with
    /// the longest network that contains it. A network of two addresses has neither (RFC 3021), and the first address
    /// of an IPv6 network is an anycast address of hosts.
    #[must_use]
    pub fn hostless_addresses(&self) -> BTreeMap<IpAddr, IpNet> {
        let networks: BTreeSet<IpNet> = self.interface_addresses().map(IpNet::trunc).collect();
        let is_narrowest = |ip: IpAddr, net: &IpNet| {
            !networks.iter().any(|other| other.contains(&ip) && other.prefix_len() > net.prefix_len())
        };
        let with_hosts = networks.iter().filter(|net| net.addr().is_ipv4() && net.prefix_len() <= 30);
        let edges = with_hosts.flat_map(|net| [(net.network(), *net), (net.broadcast(), *net)]);
        edges.filter(|(ip, net)| is_narrowest(*ip, net)).collect()
    }

    /// The gateway's own addresses: of interfaces, for SNAT, and of tunnels. No Service may have them. Tunnel sources
    /// of 256 addresses or more (IPv6 prefixes) are left out; the configuration checks their overlaps.
    #[must_use]
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        const LISTED_MAX: u32 = 255;
        let interfaces = self.interface_addresses().map(IpNet::addr);
        let listed = self.tunnel_sources().filter(|source| source.count() <= LISTED_MAX);
        let tunnels = listed.flat_map(TunnelPrefix::addresses);
        interfaces.chain(self.snat_addresses.iter().copied()).chain(tunnels).collect()
    }
}

/// What happens to traffic that backends originate, if their default route leads to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GatewaySpec {
    /// Their networks. Traffic of other sources that is not for the gateway goes to the kernel.
    pub prefixes: Vec<IpNet>,
    /// Whether their traffic is forwarded by the routes. Otherwise it is refused.
    pub forward: bool,
    /// The parts of these networks whose traffic is masqueraded: it leaves with a SNAT address as its source, unless it
    /// goes to one of `prefixes`.
    pub masquerade: Vec<IpNet>,
}

/// How the gateway treats packets that it may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether a TCP segment of an unknown flow, in a mode that translates, is answered with a reset: its connection
    /// was lost with the state of a gateway, and its ends should not wait for a timeout.
    pub reset_unknown_flows: bool,
    /// Whether a packet to a port that a VIP does not serve is answered with a reset or ICMP port unreachable.
    pub reject_unserved_ports: bool,
    /// Whether next hops of default routes may be clients of services, because they masquerade the hosts behind them.
    pub serve_routers: bool,
    /// Whether IPv4 packets without DF that don't fit the path are sent in fragments (RFC 791 section 2.3). Otherwise
    /// they are answered like packets with DF.
    pub fragment_ipv4: bool,
    /// When new connections of services that translate are answered with SYN cookies.
    pub syn_cookies: SynCookies,
    /// The secret by which backends are chosen, equal on all gateways. Without a secret, clients can choose their
    /// backends.
    pub selection_key: Option<SelectionKey>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            reset_unknown_flows: true,
            reject_unserved_ports: true,
            serve_routers: false,
            fragment_ipv4: true,
            syn_cookies: SynCookies::Off,
            selection_key: None,
        }
    }
}

tidegate_wire::named! {
    /// When the SYN of a new TCP connection is answered with a SYN cookie instead of creating a flow, in modes that
    /// translate (`protection.synCookies`).
    #[derive(Default)]
    pub enum SynCookies {
        /// Never.
        #[default]
        Off => "off",
        /// While a service has many flows that are not established.
        Auto => "auto",
        /// Always.
        Always => "always",
    }
}

/// One port of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// The name in the configuration (`uplink`).
    pub name: String,
    /// Source address of all sent frames, and the expected destination of received unicast frames.
    pub mac: MacAddr,
    /// The largest IP packet in bytes, without Ethernet header and tag.
    pub mtu: u16,
    /// The 802.1Q tag of every frame on this interface, 1..=4094.
    pub vlan: Option<u16>,
    /// Its own addresses with their on-link prefixes. Packets to them are punted, unless a service uses the address.
    pub addresses: Vec<IpNet>,
}

/// A route: packets to `to` are sent to the neighbour `via`, which must be on-link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Destination prefix.
    pub to: IpNet,
    /// Next hop. Its family may differ from that of `to` (RFC 5549).
    pub via: IpAddr,
}

/// A neighbour whose link address is configured and never resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeighborSpec {
    /// Address of the neighbour.
    pub ip: IpAddr,
    /// Its link address.
    pub mac: MacAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostless_addresses_are_the_ends_of_ipv4_networks_of_a_30_or_shorter() {
        let hostless = |addresses: &[&str]| {
            let interface = InterfaceSpec {
                name: "uplink".to_owned(),
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                vlan: None,
                addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            };
            let network = NetworkSpec { interfaces: vec![interface], ..NetworkSpec::default() };
            network.hostless_addresses().iter().map(|(ip, net)| format!("{ip} {net}")).collect::<Vec<_>>()
        };
        let both = ["192.0.2.0 192.0.2.0/24", "192.0.2.255 192.0.2.0/24"];
        assert_eq!(hostless(&["192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64"]), both);
        assert_eq!(hostless(&["192.0.2.5/30"]), ["192.0.2.4 192.0.2.4/30", "192.0.2.7 192.0.2.4/30"]);
        assert_eq!(hostless(&["192.0.2.4/31", "192.0.2.9/32"]), [""; 0]);
        // A host of the narrower network has the broadcast address of the wider one.
        assert_eq!(hostless(&["192.0.2.2/24", "192.0.2.254/31"]), ["192.0.2.0 192.0.2.0/24"]);
    }

    #[test]
    fn own_addresses_are_those_of_interfaces_snat_and_short_tunnel_prefixes() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let network = NetworkSpec {
            interfaces: vec![InterfaceSpec {
                name: "uplink".to_owned(),
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                vlan: None,
                addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
            }],
            snat_addresses: vec![ip("192.0.2.3")],
            tunnel_source_v4: Some("10.0.0.0/30".parse().unwrap()),
            tunnel_source_v6: Some("2001:db8:1::/64".parse().unwrap()),
            ..NetworkSpec::default()
        };
        let expected = ["192.0.2.2", "192.0.2.3", "10.0.0.1", "10.0.0.2", "2001:db8::2"];
        assert_eq!(network.own_addresses(), expected.map(ip).into());
    }
}
