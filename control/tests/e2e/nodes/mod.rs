//! Servers of the lab as nodes of a cluster: Pods in namespaces behind them, routes between their networks, and the
//! functions of kube-proxy on each node ([`proxy`]: the rules, [`health`]: the answers).
//!
//! ```text
//!   switch ── s1 = node-1 ── cni0 ── pod-1-1, pod-1-2     Pods of node n: 10.244.n.0/24, fd00:10:244:n::/64
//!          ├─ s2 = node-2 ── cni0 ── pod-2-1              each node routes the others' networks to them
//!          └─ s3 = node-3                                 VIPs are on no interface of any node
//! ```
//! Nodes have only the settings that `deploy/README.md` requires: `rp_filter` is strict on the link, and off or loose
//! on the tunnel device. Clients are reached directly over the link ([`Return::Direct`], for DSR modes) or through the
//! gateway ([`Return::Gateway`], for `nat`).

pub(crate) mod expect;
pub(crate) mod health;
pub(crate) mod proxy;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;
use tidegate_netlab::addresses::{self as plan, Family};
use tidegate_netlab::manifests::{EndpointSpec, node};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace, binary, wait_for};

/// The ports of `tcp-echo` and `udp-echo` in Pods. They differ from the Service's ports, because the node translates.
pub(crate) const POD_TCP_ECHO_PORT: u16 = 17_000;
pub(crate) const POD_UDP_ECHO_PORT: u16 = 17_001;

/// The networks of all Pods, by family.
pub(crate) const CLUSTER_CIDR: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];

/// The networks of all VIPs, by family.
const VIPS: [[&str; 2]; 2] = [plan::ROUTED_VIPS, plan::ON_LINK_VIPS];

/// The maximum start time of programs.
const UP: Duration = Duration::from_secs(60);

/// The path of replies to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// Directly over the link.
    Direct,
    /// By the default route, which is the gateway.
    Gateway,
}

/// A running Pod. It is stopped when it is dropped; its namespace is removed with the lab.
pub(crate) struct Pod {
    pub(crate) node: u8,
    pub(crate) number: u8,
    _programs: [LabProcess; 2],
}

impl Pod {
    /// The name that it sends in every answer.
    pub(crate) fn name(&self) -> String {
        pod_name(self.node, self.number)
    }

    pub(crate) fn address(&self, family: Family) -> IpAddr {
        pod_address(family, self.node, self.number)
    }

    /// The Pod as an endpoint of a Service, in both families.
    pub(crate) fn endpoints(&self) -> [EndpointSpec; 2] {
        Family::BOTH.map(|family| EndpointSpec::ready(self.address(family)).on(&node_name(self.node)))
    }
}

pub(crate) fn node_name(n: u8) -> String {
    format!("node-{n}")
}

pub(crate) fn pod_name(node: u8, number: u8) -> String {
    format!("pod-{node}-{number}")
}

/// The address of Pod `number` (from 1) of node `node`. Number 0 is the node's own address.
pub(crate) fn pod_address(family: Family, node: u8, number: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 244, node, 1 + number).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x244, node.into(), 0, 0, 0, 1 + u16::from(number)).into(),
    }
}

/// The network of a node's Pods.
pub(crate) fn pod_cidr(family: Family, node: u8) -> String {
    match family {
        Family::V4 => format!("10.244.{node}.0/24"),
        Family::V6 => format!("fd00:10:244:{node}::/64"),
    }
}

/// Node objects for every server of the lab.
pub(crate) fn node_objects(nodes: u8) -> String {
    let of_node = |n| node(&node_name(n), &Family::BOTH.map(|family| plan::server(family, n)));
    (1..=nodes).map(of_node).collect::<Vec<_>>().join("---\n")
}

/// Configures the lab's servers as nodes with this many Pods each, and waits until the Pods answer.
pub(crate) fn start(lab: &Lab, pods: &[u8], back: Return) -> Vec<Pod> {
    let nodes = u8::try_from(pods.len()).expect("a few nodes");
    for n in 1..=nodes {
        make_node(lab, n, nodes, back);
    }
    let all = (1..=nodes).zip(pods).flat_map(|(node, count)| (1..=*count).map(move |k| (node, k)));
    let started: Vec<Pod> = all.map(|(node, k)| start_pod(lab, node, k)).collect();
    for pod in &started {
        wait_until_up(lab, pod);
    }
    started
}

fn make_node(lab: &Lab, n: u8, nodes: u8, back: Return) {
    let node = lab.server(n).namespace();
    node.sysctls(&[
        ("ipv4/conf/all/forwarding", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv4/conf/eth0/rp_filter", "1"),
    ])
    .expect("sysctls of a node");
    // Packets from a tunnel have client addresses, but the route to clients uses another device. A device without an
    // IPv4 address drops such packets unless the filter is off. For a device with an address (Calico's tunl0), a loose
    // filter is enough.
    let filter = if n % 2 == 1 {
        "0"
    } else {
        node.ip_batch(&format!("addr add 10.244.{n}.254/32 dev decap0")).expect("an address of the tunnel");
        "2"
    };
    node.sysctls(&[("ipv4/conf/decap0/rp_filter", filter)]).expect("rp_filter of the tunnel");
    node.ip_batch("link add cni0 type bridge forward_delay 0 mcast_snooping 0\nlink set cni0 up")
        .expect("a bridge");
    for family in Family::BOTH {
        let (length, nodad) = if family == Family::V4 { (24, "") } else { (64, " nodad") };
        let mut rules = String::new();
        let mut lines = format!("addr add {}/{length} dev cni0{nodad}\n", pod_address(family, n, 0));
        for other in (1..=nodes).filter(|other| *other != n) {
            lines += &format!("route add {} via {}\n", pod_cidr(family, other), plan::server(family, other));
        }
        // Packets that the proxy does not rewrite must not leave by the default route.
        for (vips, device) in VIPS.iter().flat_map(|vips| ["eth0", "decap0"].map(|device| (vips, device))) {
            rules += &format!("rule add iif {device} to {} blackhole\n", vips[family as usize]);
        }
        if back == Return::Direct {
            lines += &format!("route add {} dev eth0\n", plan::CLIENT_PREFIX[family as usize]);
        }
        node.ip_batch_of(family, &(lines + &rules)).expect("addresses, routes and rules of a node");
    }
}

fn start_pod(lab: &Lab, node: u8, number: u8) -> Pod {
    let name = pod_name(node, number);
    let host = lab.server(node).namespace();
    let namespace = namespace_of(lab, node, number);
    let namespace = Namespace::create(namespace.as_str()).expect("a namespace for the Pod");
    host.ip_batch(&format!(
        "link add v{number} type veth peer name eth0 netns {}\nlink set v{number} master cni0 up",
        namespace.name()
    ))
    .expect("the Pod's link");
    namespace.turn_off_offloads("eth0").expect("ethtool");
    host.turn_off_offloads(&format!("v{number}")).expect("ethtool");
    namespace.ip_batch("link set eth0 up").expect("up");
    for family in Family::BOTH {
        let (length, nodad) = if family == Family::V4 { (24, "") } else { (64, " nodad") };
        let (own, via) = (pod_address(family, node, number), pod_address(family, node, 0));
        let lines = format!("addr add {own}/{length} dev eth0{nodad}\nroute add default via {via}");
        namespace.ip_batch_of(family, &lines).expect("addresses of a Pod");
    }

    let directory = lab.directory().join(&name);
    fs::create_dir(&directory).expect("a directory for the Pod's logs");
    let tools = binary::of_tools(&lab.plan().tidegate).expect("it is built");
    let start = |program: &str, args: &[String]| {
        let arguments =
            [&["lab".to_owned(), program.to_owned(), "--name".to_owned(), name.clone()], args].concat();
        LabProcess::start(&namespace, &directory, program, &tools, &arguments).expect("it starts")
    };
    let bind = Family::BOTH.into_iter().flat_map(|family| {
        let address = SocketAddr::new(pod_address(family, node, number), POD_UDP_ECHO_PORT);
        ["--bind".to_owned(), address.to_string()]
    });
    let programs = [
        start("tcp-echo", &["--port".to_owned(), POD_TCP_ECHO_PORT.to_string()]),
        start("udp-echo", &bind.collect::<Vec<_>>()),
    ];
    Pod { node, number, _programs: programs }
}

fn namespace_of(lab: &Lab, node: u8, number: u8) -> String {
    format!("{}-{}", lab.id(), pod_name(node, number))
}

/// Waits until both programs answer the Pod's own node.
fn wait_until_up(lab: &Lab, pod: &Pod) {
    let outcome = lab.server(pod.node).namespace().enter(|| {
        for family in Family::BOTH {
            let to = SocketAddr::new(pod.address(family), POD_TCP_ECHO_PORT);
            wait_for(&format!("{to}"), UP, || {
                TcpStream::connect_timeout(&to, Duration::from_millis(500)).ok().map(drop)
            })?;
            let to = SocketAddr::new(pod.address(family), POD_UDP_ECHO_PORT);
            wait_for(&format!("{to} (UDP)"), UP, || {
                let socket = UdpSocket::bind(SocketAddr::new(pod_address(family, pod.node, 0), 0)).ok()?;
                socket.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
                socket.send_to(b"up?", to).ok()?;
                socket.recv(&mut [0; 256]).ok().map(drop)
            })?;
        }
        anyhow::Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{}: {error:#}", pod.name()));
}
