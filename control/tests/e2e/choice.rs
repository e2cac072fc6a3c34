//! Checks that the hash of the source port selects the backend of a connection, and that the offline tools select the
//! same backend as the traffic.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use tidegate_netlab::addresses::{self as plan, Family, HTTP_PORT, TCP_ECHO_PORT, UDP_ECHO_PORT};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::{GatewayOptions, checksum};

use crate::world::{World, beside_others, tidegate};

const CONNECTIONS: u16 = 1_000;
/// The source port of the first connection of [`replayed`]. The others follow.
pub(crate) const FIRST_PORT: u16 = 20_000;
const WEIGHTS: [u32; 3] = [1, 2, 5];

#[test]
fn a_thousand_connections_match_the_offline_tools() {
    let _machine = beside_others();
    let vip = plan::routed_vip(Family::V4, 9);
    let ports = vec![
        PortSpec::tcp("http", HTTP_PORT),
        PortSpec::tcp("tcp-echo", TCP_ECHO_PORT),
        PortSpec::udp("echo", UDP_ECHO_PORT),
    ];
    let endpoints = (1..).zip(WEIGHTS).map(|(n, weight)| EndpointSpec {
        weight: Some(weight),
        ..EndpointSpec::ready(plan::server(Family::V4, n))
    });
    let manifest = Manifest::new("weighted", "dsr-l2", &[vip], ports).with_endpoints(endpoints);
    let options = GatewayOptions { static_servers: 3, ..GatewayOptions::default() };
    let world = World::start(3, options, &[manifest]);
    let path =
        ModePath { service: "weighted", forwarding: "dsr-l2", family: Family::V4, backends: Family::V4, vip };
    // Wait until every backend is used; otherwise the first connections might go to fewer backends.
    for n in 1..=3 {
        world.wait_until_used(path, &tidegate_netlab::server::name(n));
    }

    let source = plan::client(Family::V4, 8);
    let predicted = replayed(&world, source, path.tcp_echo(), CONNECTIONS);
    let landed: Vec<String> = world.lab.client().enter(|| {
        (0..CONNECTIONS)
            .map(|n| {
                let from = SocketAddr::new(source, FIRST_PORT + n);
                EchoConnection::connect_here(from, path.tcp_echo()).unwrap().answer.backend
            })
            .collect()
    });

    let name_of: BTreeMap<String, String> = (1..=3)
        .map(|n| {
            let address = SocketAddr::new(plan::server(Family::V4, n), TCP_ECHO_PORT);
            (address.to_string(), tidegate_netlab::server::name(n))
        })
        .collect();
    for (n, (predicted, landed)) in predicted.iter().zip(&landed).enumerate() {
        assert_eq!(name_of.get(predicted), Some(landed), "source port {}", usize::from(FIRST_PORT) + n);
    }
    for (weight, name) in WEIGHTS.into_iter().zip(name_of.values()) {
        let got = landed.iter().filter(|backend| *backend == name).count();
        let due = usize::from(CONNECTIONS) * weight as usize / 8;
        // 1,000 draws of at least 1/8: four standard deviations are always under 42, and under 63 for the mean.
        assert!(got.abs_diff(due) <= 63, "{name} of weight {weight} got {got}, its share is {due}");
    }

    let from = SocketAddr::new(source, FIRST_PORT).to_string();
    let explained = world
        .gateway()
        .query(&["explain", "--proto", "tcp", "--src", &from, "--dst", &path.tcp_echo().to_string()])
        .unwrap();
    assert!(explained.contains(&predicted[0]), "explain names {}: {explained}", predicted[0]);
}

/// The backend of each connection's SYN according to `tidegate replay`, offline.
pub(crate) fn replayed(world: &World, source: IpAddr, to: SocketAddr, count: u16) -> Vec<String> {
    let (input, output) = (world.lab.directory().join("in.pcap"), world.lab.directory().join("out.pcap"));
    fs::write(&input, syn_capture(source, to, count)).expect("capture written");
    let mut replay = std::process::Command::new(tidegate());
    replay.arg("replay").arg("-c").arg(config_of(&world.lab)).arg("--in").arg(&input);
    let lines = output_of(replay.arg("--out").arg(&output).arg("--json")).expect("replay succeeds");
    let backends: Vec<String> = lines
        .lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            assert_eq!(record["verdict"], "transmit", "{line}");
            assert_eq!(record["mode"], "dsr-l2", "{line}");
            record["backend"].as_str().expect("a transmitted frame has a backend").to_owned()
        })
        .collect();
    assert_eq!(backends.len(), usize::from(count));
    backends
}

/// A capture (classic pcap, microseconds, Ethernet) of one SYN for each connection.
fn syn_capture(source: IpAddr, to: SocketAddr, count: u16) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(vip)) = (source, to.ip()) else { panic!("IPv4 only") };
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        capture.extend(word.to_le_bytes());
    }
    for n in 0..count {
        let mut ip =
            [&[0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0][..], &source.octets(), &vip.octets()].concat();
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut tcp = [(FIRST_PORT + n).to_be_bytes(), to.port().to_be_bytes()].concat();
        tcp.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
        let sum = checksum(&[&source.octets()[..], &vip.octets(), &[0, 6, 0, 20], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0x0a, 8, 0][..], &ip, &tcp].concat();
        let length = u32::try_from(frame.len()).expect("a short frame");
        for word in [1_700_000_000, u32::from(n), length, length] {
            capture.extend(word.to_le_bytes());
        }
        capture.extend(frame);
    }
    capture
}
