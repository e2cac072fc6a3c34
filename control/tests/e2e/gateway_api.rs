//! Gateways and their routes on real traffic (Gateway API v1): the weights of backends in every mode, rejected shares,
//! and connections that outlive changes of weights.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, UDP_ECHO_PORT};
use tidegate_netlab::client::{BackendAnswer, EchoConnection, connect_here};
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::put;

use crate::world::{World, beside_others, lab};

const CONNECTIONS: u16 = 1_000;
const FIRST_PORT: u16 = 20_000;
const MODES: [&str; 4] = ["dsr-l2", "dsr-ipip", "nat", "fullnat"];
/// The limit of one connection attempt on a busy machine.
const ANSWER: Duration = Duration::from_secs(20);

/// A Service without addresses of its own for each server: `s1`, `s2`, ...
fn services(servers: u8) -> String {
    let one = |n: u8| {
        let address = plan::server(Family::V4, n);
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: s{n}, namespace: lab}}
spec:
  ports: [{{name: tcp, port: {TCP_ECHO_PORT}}}, {{name: udp, port: {UDP_ECHO_PORT}, protocol: UDP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{n}-1, namespace: lab, labels: {{kubernetes.io/service-name: s{n}}}}}
addressType: IPv4
ports: [{{name: tcp, port: {TCP_ECHO_PORT}}}, {{name: udp, port: {UDP_ECHO_PORT}, protocol: UDP}}]
endpoints: [{{addresses: ['{address}']}}]
---
"
        )
    };
    let class = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tidegate}
spec: {controllerName: tidegate.dev/gateway}
---
";
    (1..=servers).map(one).chain([class.to_owned()]).collect()
}

fn vip(mode: &str) -> IpAddr {
    let at = (1..).zip(MODES).find(|(_, name)| *name == mode);
    plan::routed_vip(Family::V4, at.expect("a mode").0)
}

/// A Gateway named after its mode, with a TCP and a UDP listener and a route to these backends on each.
fn gateway(mode: &str, backends: &[(&str, u32)]) -> String {
    let vip = vip(mode);
    let mut text = format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {mode}, namespace: lab}}
spec:
  gatewayClassName: tidegate
  addresses: [{{value: '{vip}'}}]
  infrastructure: {{annotations: {{tidegate.dev/forwarding: {mode}}}}}
  listeners:
    - {{name: tcp, port: {TCP_ECHO_PORT}, protocol: TCP}}
    - {{name: udp, port: {UDP_ECHO_PORT}, protocol: UDP}}
---
"
    );
    for (kind, section, port) in [("TCPRoute", "tcp", TCP_ECHO_PORT), ("UDPRoute", "udp", UDP_ECHO_PORT)] {
        let refs =
            backends.iter().map(|(name, weight)| format!("{{name: {name}, port: {port}, weight: {weight}}}"));
        let refs = refs.collect::<Vec<_>>().join(", ");
        write!(
            text,
            "
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {mode}, namespace: lab}}
spec: {{parentRefs: [{{name: {mode}, sectionName: {section}}}], rules: [{{backendRefs: [{refs}]}}]}}
---
"
        )
        .expect("text");
    }
    text
}

fn world(gateways: &str) -> World {
    let world = World::over(lab(3), GatewayOptions::default(), &[], &services(3));
    put(&manifests_of(&world.lab), "gateways.yaml", gateways).expect("a file");
    world
}

/// Waits until the backends of the TCP listener of a Gateway have these weights.
fn wait_for_weights(world: &World, mode: &str, weights: &[u16]) {
    world.wait_until(&format!("weights {weights:?} of {mode}"), || {
        let ports = world.ports_at(vip(mode)).ok()?;
        let of_tcp = ports.iter().find(|port| port["port"] == TCP_ECHO_PORT)?["backends"].as_array()?.iter();
        let active = of_tcp.filter(|backend| backend["state"] == "active");
        active
            .filter_map(|backend| backend["weight"].as_u64())
            .eq(weights.iter().copied().map(u64::from))
            .then_some(())
    });
}

/// Where connections from successive source ports end: the backend, or `refused`.
fn tcp(world: &World, to: SocketAddr) -> BTreeMap<String, u16> {
    let source = plan::client(Family::V4, 1);
    world.lab.client().enter(|| {
        let mut ends = BTreeMap::new();
        for port in FIRST_PORT..FIRST_PORT + CONNECTIONS {
            let from = SocketAddr::new(source, port);
            let end = match EchoConnection::connect_within(ANSWER, from, to) {
                Ok(connection) => connection.answer.backend,
                Err(error) => {
                    let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                    assert_eq!(io, Some(ErrorKind::ConnectionRefused), "{error:#}");
                    "refused".to_owned()
                }
            };
            *ends.entry(end).or_default() += 1;
        }
        ends
    })
}

/// Where datagrams from successive source ports end.
fn udp(world: &World, to: SocketAddr) -> BTreeMap<String, u16> {
    let source = plan::client(Family::V4, 2);
    world.lab.client().enter(|| {
        let mut ends = BTreeMap::new();
        for port in FIRST_PORT..FIRST_PORT + CONNECTIONS {
            *ends.entry(udp_end(SocketAddr::new(source, port), to)).or_default() += 1;
        }
        ends
    })
}

/// Where datagrams from this source end: the backend, or `refused`.
fn udp_end(from: SocketAddr, to: SocketAddr) -> String {
    let socket = UdpSocket::bind(from).and_then(|socket| socket.connect(to).map(|()| socket));
    let socket = socket.expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let mut buffer = [0; 2048];
    let tries = ANSWER.as_millis() / 500;
    for _ in 0..tries {
        match socket.send(b"hello").and_then(|_| socket.recv(&mut buffer)) {
            Ok(length) => {
                let answer = BackendAnswer::parse(&String::from_utf8_lossy(&buffer[..length]));
                return answer.expect("the answer of a server").backend;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return "refused".to_owned(),
            // Without an answer in time, a busy machine has lost it.
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            }
        }
    }
    panic!("{to} does not answer {from}");
}

/// Asserts that the shares are those of the weights, in percent, within 5 %: four standard deviations of 1,000 flows
/// are less than 6.4 %, and the choice depends only on addresses and ports, so a result repeats.
fn assert_shares(ends: &BTreeMap<String, u16>, shares: &[(&str, u16)]) {
    for (name, percent) in shares {
        let got = ends.get(*name).copied().unwrap_or(0);
        let due = CONNECTIONS / 100 * percent;
        assert!(got.abs_diff(due) <= CONNECTIONS / 20, "{name} has {got} of {CONNECTIONS}: {ends:?}");
    }
    assert_eq!(ends.len(), shares.iter().filter(|(_, percent)| *percent > 0).count(), "{ends:?}");
}

#[test]
fn weights_between_services_apply_in_every_mode() {
    let _machine = beside_others();
    let all: String = MODES.iter().map(|mode| gateway(mode, &[("s1", 70), ("s2", 30), ("s3", 0)])).collect();
    let world = world(&all);
    let [one, two] = [1, 2].map(tidegate_netlab::server::name);
    for mode in MODES {
        wait_for_weights(&world, mode, &[7, 3]);
        let shares = [(one.as_str(), 70), (two.as_str(), 30)];
        assert_shares(&tcp(&world, SocketAddr::new(vip(mode), TCP_ECHO_PORT)), &shares);
        assert_shares(&udp(&world, SocketAddr::new(vip(mode), UDP_ECHO_PORT)), &shares);
    }
}

#[test]
fn an_invalid_backend_rejects_its_share_and_known_connections_live() {
    let _machine = beside_others();
    let all = |backends: &[(&str, u32)]| MODES.iter().map(|mode| gateway(mode, backends)).collect::<String>();
    let world = world(&all(&[("s1", 20)]));
    let one = tidegate_netlab::server::name(1);
    let mut known = Vec::new();
    for mode in MODES {
        wait_for_weights(&world, mode, &[1]);
        let to = SocketAddr::new(vip(mode), TCP_ECHO_PORT);
        let source = SocketAddr::new(plan::client(Family::V4, 3), 0);
        known.extend(
            (0..20).map(|_| EchoConnection::connect(world.lab.client(), source, to).expect("it answers")),
        );
    }
    put(&manifests_of(&world.lab), "gateways.yaml", &all(&[("s1", 20), ("none", 80)])).expect("a file");
    let probe = plan::client(Family::V4, 4);
    for mode in MODES {
        let to = SocketAddr::new(vip(mode), TCP_ECHO_PORT);
        world.wait_until(&format!("a rejected connection of {mode}"), || {
            world.lab.client().enter(|| connect_here(ANSWER, SocketAddr::new(probe, 0), to)).err()
        });
        let shares = [(one.as_str(), 20), ("refused", 80)];
        let ends = tcp(&world, to);
        assert_shares(&ends, &shares);
        assert!(ends["refused"].abs_diff(800) <= 40, "{ends:?}");
        assert_shares(&udp(&world, SocketAddr::new(vip(mode), UDP_ECHO_PORT)), &shares);
    }
    for connection in &mut known {
        connection.ping_late(ANSWER).expect("a known connection lives");
    }
}

#[test]
fn a_thousand_connections_outlive_every_change_of_weights() {
    let _machine = beside_others();
    let world = world(&gateway("nat", &[("s1", 100), ("s2", 0)]));
    wait_for_weights(&world, "nat", &[1]);
    let to = SocketAddr::new(vip("nat"), TCP_ECHO_PORT);
    let source = SocketAddr::new(plan::client(Family::V4, 5), 0);
    let mut connections: Vec<EchoConnection> = (0..CONNECTIONS)
        .map(|_| EchoConnection::connect(world.lab.client(), source, to).expect("it answers"))
        .collect();
    for (steps, weights) in [
        (&[("s1", 75), ("s2", 25)][..], &[3, 1][..]),
        (&[("s1", 50), ("s2", 50)], &[1, 1]),
        (&[("s1", 25), ("s2", 25), ("s3", 50)], &[1, 1, 2]),
        (&[("s2", 100), ("none", 900)], &[1]),
    ] {
        put(&manifests_of(&world.lab), "gateways.yaml", &gateway("nat", steps)).expect("a file");
        wait_for_weights(&world, "nat", weights);
        for connection in &mut connections {
            connection.ping_late(ANSWER).expect("a connection lives");
        }
    }
}
