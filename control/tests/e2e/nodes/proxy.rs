//! The rules of kube-proxy on a node for a Service of type LoadBalancer (mode nftables; mode iptables has the same
//! effect), as far as packets from outside see them.
//!
//! PREROUTING looks up address, protocol and port in `service-ips`, and node ports in `service-nodeports`. With policy
//! Cluster, packets are marked for masquerading and go to a random endpoint on any node. With policy Local, they go
//! only to endpoints of this node and keep the client's address; without such an endpoint they are dropped. No address
//! is bound, because an address that PREROUTING rewrites does not have to be on an interface. Names and order follow
//! the output of `nft list ruleset` on a node of Kubernetes 1.31 and later.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::{Lab, Namespace};

use super::CLUSTER_CIDR;

/// `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Cluster,
    Local,
}

/// A port of a Service in a node's proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyPort {
    /// A part of the names of its chains.
    pub(crate) name: String,
    pub(crate) vip: IpAddr,
    /// `tcp` or `udp`.
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    pub(crate) policy: Policy,
    /// The node and address of every endpoint in the VIP's family.
    pub(crate) endpoints: Vec<(u8, SocketAddr)>,
}

/// Replaces the rules on every node of the lab by those for `ports`.
pub(crate) fn program(lab: &Lab, nodes: u8, ports: &[ProxyPort]) {
    for n in 1..=nodes {
        for family in Family::BOTH {
            let of_family: Vec<&ProxyPort> =
                ports.iter().filter(|port| Family::of(port.vip) == family).collect();
            load(lab, lab.server(n).namespace(), &ruleset(family, n, &of_family));
        }
    }
}

fn load(lab: &Lab, node: &Namespace, rules: &str) {
    let file = lab.directory().join(format!("{}.nft", node.name()));
    std::fs::write(&file, rules).expect("rules written");
    output_of(node.command("nft").arg("-f").arg(&file)).unwrap_or_else(|error| panic!("{error:#}\n{rules}"));
}

fn ruleset(family: Family, node: u8, ports: &[&ProxyPort]) -> String {
    let (ip, kind) = if family == Family::V4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    let own = plan::server(family, node);
    let pods = CLUSTER_CIDR[family as usize];
    let (mut services, mut node_ports, mut without, mut chains) =
        (Vec::new(), Vec::new(), Vec::new(), String::new());
    for port in ports {
        let ProxyPort { name, vip, protocol, port: number, node_port, policy, .. } = port;
        let all: Vec<usize> = (0..port.endpoints.len()).collect();
        let local: Vec<usize> = all.iter().copied().filter(|at| port.endpoints[*at].0 == node).collect();
        if *policy == Policy::Local && local.is_empty() {
            without.push(format!("{vip} . {protocol} . {number} : drop"));
            continue;
        }
        services.push(format!("{vip} . {protocol} . {number} : goto external-{name}"));
        node_ports.extend(node_port.map(|number| format!("{protocol} . {number} : goto external-{name}")));
        writeln!(chains, "chain external-{name} {{").expect("a String");
        if *policy == Policy::Cluster {
            writeln!(chains, "jump mark-for-masquerade\n{}\n}}", choice(name, &all)).expect("a String");
        } else {
            // Pods and the node itself reach every endpoint. Packets from outside reach only endpoints of this node.
            writeln!(
                chains,
                "{ip} saddr {pods} {all}\nfib saddr type local jump mark-for-masquerade\nfib saddr type local {all}\n{}\n}}",
                choice(name, &local),
                all = choice(name, &all)
            )
            .expect("a String");
        }
        for (at, (_, endpoint)) in port.endpoints.iter().enumerate() {
            let address = endpoint.ip();
            writeln!(
                chains,
                "chain endpoint-{name}-{at} {{\n{ip} saddr {address} jump mark-for-masquerade\n\
                 meta l4proto {protocol} dnat to {endpoint}\n}}"
            )
            .expect("a String");
        }
    }
    let elements = |list: &[String]| {
        if list.is_empty() { String::new() } else { format!("elements = {{ {} }}", list.join(", ")) }
    };
    format!(
        "add table {ip} kube-proxy\ndelete table {ip} kube-proxy\ntable {ip} kube-proxy {{\n\
         chain mark-for-masquerade {{\nmeta mark set meta mark or 0x4000\n}}\n\
         {chains}\
         map no-endpoint-services {{ type {kind} . inet_proto . inet_service : verdict\n{without}\n}}\n\
         map service-ips {{ type {kind} . inet_proto . inet_service : verdict\n{services}\n}}\n\
         map service-nodeports {{ type inet_proto . inet_service : verdict\n{node_ports}\n}}\n\
         chain services {{\n{ip} daddr . meta l4proto . th dport vmap @service-ips\n\
         {ip} daddr {own} meta l4proto . th dport vmap @service-nodeports\n}}\n\
         chain service-endpoints-check {{\n{ip} daddr . meta l4proto . th dport vmap @no-endpoint-services\n}}\n\
         chain masquerading {{\nmeta mark & 0x4000 == 0 return\nmeta mark set meta mark xor 0x4000\n\
         masquerade fully-random\n}}\n\
         chain filter-input {{ type filter hook input priority -110; ct state new jump service-endpoints-check; }}\n\
         chain filter-forward {{ type filter hook forward priority -110; ct state new jump service-endpoints-check; \
         ct state invalid drop; }}\n\
         chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}\n\
         chain nat-output {{ type nat hook output priority -100; jump services; }}\n\
         chain nat-postrouting {{ type nat hook postrouting priority srcnat; jump masquerading; }}\n}}\n",
        without = elements(&without),
        services = elements(&services),
        node_ports = elements(&node_ports),
    )
}

/// The rule that randomly selects one of the endpoints at these indices of the port's list.
fn choice(name: &str, indices: &[usize]) -> String {
    let verdicts: Vec<String> =
        indices.iter().enumerate().map(|(n, at)| format!("{n} : goto endpoint-{name}-{at}")).collect();
    format!("numgen random mod {} vmap {{ {} }}", indices.len(), verdicts.join(", "))
}
