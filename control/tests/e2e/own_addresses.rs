//! Services on addresses outside the pools: node ports on the gateway's own addresses, and cluster IPs.

use std::net::{IpAddr, SocketAddr};

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{
    self as plan, Family, GATEWAY_FOR_CLIENTS, GATEWAY_FOR_SERVERS, HTTP_PORT, HTTP_TARGET_PORT,
    TCP_ECHO_PORT, UDP_ECHO_PORT,
};
use tidegate_netlab::client::{EchoConnection, SILENCE, curl_many, spread, udp_request};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec, VipRequest};

use crate::world::{World, beside_others};

const HTTP_NODE_PORT: u16 = 30_080;
const TCP_ECHO_NODE_PORT: u16 = 30_700;
const UDP_ECHO_NODE_PORT: u16 = 30_701;

/// Cluster IPs, and the range that is routed to the gateway, by family.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.10", "fd00:10:96::a"];
const SERVICE_CIDR: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

#[test]
fn node_ports_are_served_only_on_allowed_own_addresses() {
    let _machine = beside_others();
    for forwarding in ["nat", "fullnat"] {
        let options = GatewayOptions {
            node_port_addresses: plan::CLIENT_PREFIX.map(str::to_owned).to_vec(),
            ..GatewayOptions::default()
        };
        let vips = Family::BOTH.map(|family| plan::routed_vip(family, 7));
        let ports = vec![
            PortSpec::tcp("http", HTTP_PORT).to(HTTP_TARGET_PORT).at_node_port(HTTP_NODE_PORT),
            PortSpec::tcp("tcp-echo", TCP_ECHO_PORT).at_node_port(TCP_ECHO_NODE_PORT),
            PortSpec::udp("echo", UDP_ECHO_PORT).at_node_port(UDP_ECHO_NODE_PORT),
        ];
        let mut service = Manifest::new("by-node-port", forwarding, &vips, ports).with_endpoints(endpoints());
        // Source ranges apply to LoadBalancer addresses only.
        service.source_ranges = vec!["192.0.2.0/24".to_owned(), "2001:db8::/64".to_owned()];
        let world = World::start(3, options, &[service]);
        for family in Family::BOTH {
            let name = format!("{forwarding} {family}");
            let own = address(GATEWAY_FOR_CLIENTS, family);
            let mut connection =
                world.wait_until(&name, || connect(&world, family, own, TCP_ECHO_NODE_PORT).ok());
            connection.ping().unwrap();
            let source = connection.local().unwrap().ip();
            let seen =
                if forwarding == "fullnat" { address(plan::SNAT, family) } else { plan::client(family, 2) };
            assert_eq!((connection.answer.client.ip(), source), (seen, plan::client(family, 2)), "{name}");

            let url = format!("http://{}/", SocketAddr::new(own, HTTP_NODE_PORT));
            let answers = curl_many(world.lab.client(), &url, 40, &[]).unwrap();
            assert_eq!((answers.received.len(), answers.errors.as_str()), (40, ""), "{name}: HTTP");
            assert_eq!(spread(&answers.received).len(), 3, "{name}: {:?}", spread(&answers.received));
            let (from, to) = (SocketAddr::new(source, 0), SocketAddr::new(own, UDP_ECHO_NODE_PORT));
            udp_request(world.lab.client(), from, to, "node port?").unwrap();

            // The address on the servers' side is not in services.nodePortAddresses, so nothing listens there.
            let other = address(GATEWAY_FOR_SERVERS, family);
            let length = if family == Family::V4 { 32 } else { 128 };
            let route = format!("route add {other}/{length} via {own}");
            world.lab.client().ip_batch(&route).unwrap();
            let error = connect(&world, family, other, TCP_ECHO_NODE_PORT).expect_err("not allowed there");
            let refused = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            assert_eq!(refused, Some(std::io::ErrorKind::ConnectionRefused), "{name}: {error:#}");
        }
    }
}

#[test]
fn own_cluster_ips_are_served_and_follow_the_internal_traffic_policy() {
    let _machine = beside_others();
    for forwarding in ["nat", "fullnat"] {
        let options = GatewayOptions { own_cluster_ips: true, ..GatewayOptions::default() };
        let vips = CLUSTER_IPS.map(|text| text.parse::<IpAddr>().unwrap());
        let ports = vec![
            PortSpec::tcp("http", HTTP_PORT).to(HTTP_TARGET_PORT),
            PortSpec::tcp("tcp-echo", TCP_ECHO_PORT),
            PortSpec::udp("echo", UDP_ECHO_PORT),
        ];
        let mut service = Manifest::new("internal", forwarding, &vips, ports).with_endpoints(endpoints());
        service.vip_request = VipRequest::ClusterIps;
        let world = World::start(3, options, std::slice::from_ref(&service));
        for (family, (cidr, via)) in
            Family::BOTH.into_iter().zip(SERVICE_CIDR.into_iter().zip(GATEWAY_FOR_CLIENTS))
        {
            world.lab.client().ip_batch_of(family, &format!("route add {cidr} via {via}")).unwrap();
        }
        let mut open = Vec::new();
        for family in Family::BOTH {
            let (name, vip) = (format!("{forwarding} {family}"), vips[family as usize]);
            open.push(world.wait_until(&name, || connect(&world, family, vip, TCP_ECHO_PORT).ok()));
            let url = format!("http://{}/", SocketAddr::new(vip, HTTP_PORT));
            let answers = curl_many(world.lab.client(), &url, 40, &[]).unwrap();
            assert_eq!((answers.received.len(), answers.errors.as_str()), (40, ""), "{name}: HTTP");
            assert_eq!(spread(&answers.received).len(), 3, "{name}: {:?}", spread(&answers.received));
            let from = SocketAddr::new(plan::client(family, 2), 0);
            udp_request(world.lab.client(), from, SocketAddr::new(vip, UDP_ECHO_PORT), "cluster IP?")
                .unwrap();
        }

        // No endpoint is on the gateway's node, because the gateway is outside the cluster. With policy Local no
        // endpoint remains, and packets are dropped.
        service.spec.push("internalTrafficPolicy: Local".to_owned());
        world.write(&[service]);
        for (family, vip) in Family::BOTH.into_iter().zip(vips) {
            let what = format!("{forwarding} {family} to drop");
            let source = SocketAddr::new(plan::client(family, 2), 0);
            let error = world.wait_until(&what, || {
                let to = SocketAddr::new(vip, TCP_ECHO_PORT);
                world.lab.client().enter(|| EchoConnection::connect_within(SILENCE, source, to)).err()
            });
            let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            assert_eq!(kind, Some(std::io::ErrorKind::TimedOut), "{what}: {error:#}");
        }
        for connection in &mut open {
            connection.ping().expect("a flow outlives the change of policy, as its endpoint drains");
        }
    }
}

fn endpoints() -> impl Iterator<Item = EndpointSpec> {
    (1..=3).flat_map(|n| Family::BOTH.map(|family| EndpointSpec::ready(plan::server(family, n))))
}

fn address(of: [&str; 2], family: Family) -> IpAddr {
    of[family as usize].parse().expect("the plan has addresses")
}

fn connect(world: &World, family: Family, to: IpAddr, port: u16) -> anyhow::Result<EchoConnection> {
    let source = SocketAddr::new(plan::client(family, 2), 0);
    EchoConnection::connect(world.lab.client(), source, SocketAddr::new(to, port))
}
