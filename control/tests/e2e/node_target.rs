//! Target `node` in traffic. The nodes behave like nodes with kube-proxy: they accept packets for VIPs that are not on
//! any interface, translate them to Pods on the same or another node, and answer the client directly (DSR) or through
//! the gateway.

use std::net::{IpAddr, SocketAddr};

use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, UDP_ECHO_PORT, client};
use tidegate_netlab::client::{BackendAnswer, EchoConnection, spread, udp_request};
use tidegate_netlab::manifests::{EndpointState, Manifest, PortSpec};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::{GatewayOptions, Lab};

use crate::nodes::expect::{assert_every_pod_answered, masqueraded_by, seen, wait_until_weighted};
use crate::nodes::health::{HealthAnswer, HealthPort};
use crate::nodes::proxy::{Policy, ProxyPort, program};
use crate::nodes::{self, POD_TCP_ECHO_PORT, POD_UDP_ECHO_PORT, Pod, Return};
use crate::world::{World, assert_alive, beside_others, lab_with};

const NODES: u8 = 3;
/// The number of Pods on each node. The last node has none.
const PODS: [u8; 3] = [2, 1, 0];
const TCP_ECHO_NODE_PORT: u16 = 30_700;
const UDP_ECHO_NODE_PORT: u16 = 30_701;
const HEALTH_NODE_PORT: u16 = 31_500;
/// `/healthz` of kube-proxy.
const PROXY_HEALTHZ: u16 = 10_256;

/// Services of one policy, one for each mode, on nodes with a proxy each.
struct Cluster {
    // Declared before the world, because they use its lab.
    health: Vec<HealthPort>,
    pods: Vec<Pod>,
    policy: Policy,
    services: Vec<Manifest>,
    world: World,
}

impl Cluster {
    fn start(modes: &[&'static str], policy: Policy, back: Return) -> Self {
        let lab = lab_with(NODES, Vec::new());
        let pods = nodes::start(&lab, &PODS, back);
        let services: Vec<Manifest> = modes.iter().map(|mode| service(mode, policy, pods.iter())).collect();
        program(&lab, NODES, &proxy_ports(&services, policy, &pods));
        let health = health_ports(&lab, modes, policy);
        let world = World::over(lab, GatewayOptions::default(), &services, &nodes::node_objects(NODES));
        let cluster = Self { health, pods, policy, services, world };
        for path in cluster.paths() {
            cluster.world.wait_until_served(path);
        }
        cluster
    }

    /// The node's answer to the health checks of a mode's Service.
    fn health(&self, mode: &str, node: u8) -> &HealthPort {
        let of_mode = match self.policy {
            Policy::Cluster => 0,
            Policy::Local => self.services.iter().position(|s| s.forwarding == mode).expect("a mode of ours"),
        };
        &self.health[of_mode * usize::from(NODES) + usize::from(node) - 1]
    }

    fn paths(&self) -> Vec<ModePath> {
        let path = |service: &Manifest, family: Family| ModePath {
            service: service.forwarding,
            forwarding: service.forwarding,
            family,
            backends: family,
            vip: vip(service.forwarding, family),
        };
        self.services.iter().flat_map(|service| Family::BOTH.map(|family| path(service, family))).collect()
    }

    /// Waits until the nodes with Pods have answered a few more health checks.
    fn wait_until_checked(&self, mode: &str) {
        let times = || [1, 2].map(|node| self.health(mode, node).requests());
        let before = times();
        self.world.wait_until("more health checks", || {
            times().iter().zip(before).all(|(now, before)| *now >= before + 5).then_some(())
        });
    }

    /// Opens `count` connections one after the other.
    fn connections(&self, path: ModePath, count: u8) -> Vec<EchoConnection> {
        let source = SocketAddr::new(client(path.family, 1), 0);
        self.world.lab.client().enter(|| {
            (0..count)
                .map(|_| EchoConnection::connect_here(source, path.tcp_echo()).expect("a node takes it"))
                .collect()
        })
    }

    /// Sends `count` datagrams, each from its own port.
    fn datagrams(&self, path: ModePath, count: u8) -> Vec<BackendAnswer> {
        let source = SocketAddr::new(client(path.family, 2), 0);
        let request = |n| {
            udp_request(self.world.lab.client(), source, path.udp_echo(), &format!("datagram {n}"))
                .expect("a Pod answers")
        };
        (0..count).map(request).collect()
    }
}

#[test]
fn policy_cluster_every_node_gets_a_share_and_reaches_all_pods() {
    let _machine = beside_others();
    for (modes, back) in BY_RETURN {
        let cluster = Cluster::start(modes, Policy::Cluster, back);
        let mut open = Vec::new();
        for path in cluster.paths() {
            let name = format!("{} {}", path.label(), path.family);
            wait_until_weighted(&cluster.world, path, &[(1, 1), (2, 1), (3, 1)]);
            let connections = cluster.connections(path, 60);
            let answers: Vec<BackendAnswer> =
                connections.iter().map(|connection| connection.answer.clone()).collect();
            assert_every_pod_answered(&name, &answers, &cluster.pods);
            // The proxy masquerades: Pods see the node that received the packet, which may be the node without Pods.
            assert_eq!(masqueraded_by(path, NODES, &answers), [1, 2, 3].into(), "{name}: TCP");
            let answers = cluster.datagrams(path, 60);
            assert_every_pod_answered(&name, &answers, &cluster.pods);
            assert_eq!(masqueraded_by(path, NODES, &answers), [1, 2, 3].into(), "{name}: UDP");
            open.extend(connections.into_iter().map(|connection| (path, connection)));
        }
        cluster.world.wait_until("every proxy to be checked", || {
            cluster.health.iter().all(|port| port.requests() > 0).then_some(())
        });
        assert_alive("over nodes", &mut open);

        // An unhealthy proxy removes its node, but only for new flows.
        cluster.health("", 3).set_answer(HealthAnswer::SICK);
        for path in cluster.paths() {
            wait_until_weighted(&cluster.world, path, &[(1, 1), (2, 1)]);
            let answers: Vec<BackendAnswer> =
                cluster.connections(path, 30).iter().map(|connection| connection.answer.clone()).collect();
            assert_eq!(
                masqueraded_by(path, NODES, &answers),
                [1, 2].into(),
                "{} {}",
                path.label(),
                path.family
            );
        }
        assert_alive("after a proxy fell sick", &mut open);
    }
}

#[test]
fn policy_local_shares_follow_the_weight_header_and_pods_see_the_client() {
    let _machine = beside_others();
    for (modes, back) in BY_RETURN {
        let cluster = Cluster::start(modes, Policy::Local, back);
        let mut open = Vec::new();
        for path in cluster.paths() {
            let name = format!("{} {}", path.label(), path.family);
            // The nodes have two, one and no Pods. The node without Pods gets no traffic, because its proxy would drop
            // it.
            wait_until_weighted(&cluster.world, path, &[(1, 2), (2, 1)]);
            let connections = cluster.connections(path, 90);
            let answers: Vec<BackendAnswer> =
                connections.iter().map(|connection| connection.answer.clone()).collect();
            assert_every_pod_answered(&name, &answers, &cluster.pods);
            // 90 draws of 2/3: five standard deviations are 22.4.
            let first = answers.iter().filter(|answer| answer.backend.starts_with("pod-1-")).count();
            assert!(first.abs_diff(60) <= 23, "{name}: node-1 got {first} of 90, its share is 60");
            for connection in &connections {
                let own = connection.local().unwrap();
                assert_eq!(connection.answer.client.ip(), path.seen_client(own.ip()), "{name}");
                let kept = path.forwarding == "fullnat" || connection.answer.client.port() == own.port();
                assert!(kept, "{name}: {:?} from port {}", connection.answer, own.port());
            }
            let answers = cluster.datagrams(path, 60);
            assert_every_pod_answered(&name, &answers, &cluster.pods);
            assert_eq!(seen(&answers), [path.seen_client(client(path.family, 2))].into(), "{name}: UDP");
            open.extend(connections.into_iter().map(|connection| (path, connection)));
        }
        assert_alive("over nodes", &mut open);

        // Only the header changes the shares; the slices do not change.
        for mode in modes {
            cluster.health(mode, 1).set_answer(HealthAnswer::endpoints(1));
            cluster.health(mode, 2).set_answer(HealthAnswer::endpoints(9));
        }
        for path in cluster.paths() {
            let name = format!("{} {}", path.label(), path.family);
            wait_until_weighted(&cluster.world, path, &[(1, 1), (2, 9)]);
            let answers: Vec<BackendAnswer> =
                cluster.connections(path, 60).iter().map(|connection| connection.answer.clone()).collect();
            let second = answers.iter().filter(|answer| answer.backend.starts_with("pod-2-")).count();
            // 60 draws of 9/10: five standard deviations are 11.6.
            assert!(second.abs_diff(54) <= 12, "{name}: node-2 got {second} of 60, its share is 54");
        }
        assert_alive("after weights changed", &mut open);

        // A proxy without endpoints reports this before the slices do.
        for mode in modes {
            cluster.health(mode, 2).set_answer(HealthAnswer::endpoints(0));
        }
        for path in cluster.paths() {
            wait_until_weighted(&cluster.world, path, &[(1, 1)]);
            let answers: Vec<BackendAnswer> =
                cluster.connections(path, 20).iter().map(|connection| connection.answer.clone()).collect();
            assert!(
                answers.iter().all(|answer| answer.backend.starts_with("pod-1-")),
                "{:?}",
                spread(&answers)
            );
        }
        assert_alive("after a node lost its endpoints", &mut open);

        // An older proxy reports no weight, so the weight of the slices applies.
        for mode in modes {
            cluster.health(mode, 1).set_answer(HealthAnswer::HEALTHY);
            cluster.health(mode, 2).set_answer(HealthAnswer::HEALTHY);
        }
        for path in cluster.paths() {
            wait_until_weighted(&cluster.world, path, &[(1, 2), (2, 1)]);
        }
        assert_alive("with proxies that report no weight", &mut open);
    }
}

#[test]
fn policy_local_a_node_with_terminating_pods_keeps_its_connections() {
    let _machine = beside_others();
    let mut cluster = Cluster::start(&["dsr-l2", "dsr-ipip"], Policy::Local, Return::Direct);
    let mut open: Vec<(ModePath, EchoConnection)> = Vec::new();
    for path in cluster.paths() {
        open.extend(cluster.connections(path, 20).into_iter().map(|connection| (path, connection)));
    }
    assert!(open.iter().any(|(_, connection)| connection.answer.backend == "pod-2-1"));
    let mut services = cluster.services.clone();
    for endpoint in services.iter_mut().flat_map(|service| &mut service.endpoints) {
        if endpoint.node.as_deref() == Some("node-2") {
            endpoint.state = EndpointState::Terminating;
        }
    }
    cluster.world.write(&services);
    for mode in ["dsr-l2", "dsr-ipip"] {
        cluster.health(mode, 2).set_answer(HealthAnswer::endpoints(0));
    }
    for path in cluster.paths() {
        wait_until_weighted(&cluster.world, path, &[(1, 2)]);
        let answers: Vec<BackendAnswer> =
            cluster.connections(path, 20).iter().map(|connection| connection.answer.clone()).collect();
        assert!(answers.iter().all(|answer| answer.backend.starts_with("pod-1-")), "{:?}", spread(&answers));
    }
    assert_alive("while the Pods of a node terminate", &mut open);

    // The last endpoints terminate too. Proxies without endpoints answer 503, and still use endpoints that serve. The
    // gateway does the same.
    for endpoint in services.iter_mut().flat_map(|service| &mut service.endpoints) {
        endpoint.state = EndpointState::Terminating;
    }
    cluster.world.write(&services);
    for mode in ["dsr-l2", "dsr-ipip"] {
        cluster.health(mode, 1).set_answer(HealthAnswer::endpoints(0));
    }
    for mode in ["dsr-l2", "dsr-ipip"] {
        cluster.wait_until_checked(mode);
    }
    for path in cluster.paths() {
        wait_until_weighted(&cluster.world, path, &[(1, 2), (2, 1)]);
        cluster.connections(path, 20);
    }
    assert_alive("while all Pods terminate", &mut open);
    cluster.services = services;
}

#[test]
fn full_frames_fit_the_tunnel_to_a_node() {
    let _machine = beside_others();
    let cluster = Cluster::start(&["dsr-ipip"], Policy::Local, Return::Direct);
    for path in cluster.paths() {
        // Frames of 1,500 bytes do not fit together with an outer header, so the client must be notified.
        let line = "x".repeat(64 << 10);
        for mut connection in cluster.connections(path, 6) {
            let name = format!("{} {} to {}", path.label(), path.family, connection.answer.backend);
            connection.exchange(&line).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }
}

/// The modes, grouped by the path of replies.
const BY_RETURN: [(&[&str], Return); 2] =
    [(&["dsr-l2", "dsr-ipip"], Return::Direct), (&["nat", "fullnat"], Return::Gateway)];

fn vip(mode: &str, family: Family) -> IpAddr {
    match mode {
        "dsr-l2" => plan::on_link_vip(family, 3),
        "dsr-ipip" => plan::routed_vip(family, 21),
        "nat" => plan::routed_vip(family, 22),
        _ => plan::routed_vip(family, 23),
    }
}

/// A number that separates the ports of a mode from those of other modes.
fn offset(mode: &str) -> u16 {
    match mode {
        "dsr-l2" => 0,
        "dsr-ipip" => 10,
        "nat" => 20,
        _ => 30,
    }
}

fn service<'a>(mode: &'static str, policy: Policy, pods: impl Iterator<Item = &'a Pod>) -> Manifest {
    let ports = vec![
        PortSpec::tcp("tcp-echo", TCP_ECHO_PORT)
            .to(POD_TCP_ECHO_PORT)
            .at_node_port(TCP_ECHO_NODE_PORT + offset(mode)),
        PortSpec::udp("echo", UDP_ECHO_PORT)
            .to(POD_UDP_ECHO_PORT)
            .at_node_port(UDP_ECHO_NODE_PORT + offset(mode)),
    ];
    let vips = Family::BOTH.map(|family| vip(mode, family));
    let mut service = Manifest::new(mode, mode, &vips, ports).with_endpoints(pods.flat_map(Pod::endpoints));
    service.annotations.push(("tidegate.dev/target", "node".to_owned()));
    if policy == Policy::Local {
        service.health_check_node_port = Some(HEALTH_NODE_PORT + offset(mode));
    }
    service
}

fn proxy_ports(services: &[Manifest], policy: Policy, pods: &[Pod]) -> Vec<ProxyPort> {
    let mut ports = Vec::new();
    for service in services {
        for (vip, port) in
            service.vips.iter().flat_map(|vip| service.ports.iter().map(move |port| (vip, port)))
        {
            let family = Family::of(*vip);
            ports.push(ProxyPort {
                name: format!("{}-{}", service.name, port.name),
                vip: *vip,
                protocol: if port.protocol == "TCP" { "tcp" } else { "udp" },
                port: port.port,
                node_port: port.node_port,
                policy,
                endpoints: pods
                    .iter()
                    .map(|pod| (pod.node, SocketAddr::new(pod.address(family), port.target_port)))
                    .collect(),
            });
        }
    }
    ports
}

/// Opens a port on each node for each Service (policy Local), or one on each node for its proxy (Cluster).
fn health_ports(lab: &Lab, modes: &[&str], policy: Policy) -> Vec<HealthPort> {
    let open = |n: u8, port: u16, answer| HealthPort::open(lab.server(n).namespace(), port, answer);
    match policy {
        Policy::Cluster => (1..=NODES).map(|n| open(n, PROXY_HEALTHZ, HealthAnswer::HEALTHY)).collect(),
        Policy::Local => modes
            .iter()
            .flat_map(|mode| (1..=NODES).map(move |n| (n, HEALTH_NODE_PORT + offset(mode))))
            .map(|(n, port)| open(n, port, HealthAnswer::endpoints(PODS[usize::from(n) - 1].into())))
            .collect(),
    }
}
