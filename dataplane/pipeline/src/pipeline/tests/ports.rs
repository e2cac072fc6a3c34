//! Local ports of `fullnat`, and the client ports of `nat` with a backend that two services share.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_conntrack::EvictionReason;
use tidegate_spec::limits::SNAT_PORT_MIN;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};
use tidegate_wire::tcp::flags::{ACK, FIN, RST, SYN};

use super::connection::{Connection, client, ends};
use super::lab::{Lab, ROUTER_MAC, ip, service, spec};
use crate::forward::snat_ports::{Steering, owner_of_port};
use crate::pipeline::Arrival;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const OTHER: &str = "203.0.113.5:81";
/// The ports of one SNAT address for one backend.
const PORTS: u32 = 0x1_0000 - SNAT_PORT_MIN as u32;

fn fullnat() -> Lab {
    let one = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &["10.0.0.1:80"]);
    Lab::new(vec![one]).with_entries(200_000)
}

#[test]
fn a_closed_flow_releases_its_port() {
    let mut lab = fullnat();
    let long = Connection::open(&mut lab, client(0), VIP).unwrap();
    // All connections are opened within a second, so no flow times out.
    for n in 1..=PORTS + 5_000 {
        let connection =
            Connection::open(&mut lab, client(n), VIP).unwrap_or_else(|why| panic!("{why} at {n}"));
        assert_ne!(connection.local, long.local, "an established flow keeps its port");
        connection.close(&mut lab);
    }
    long.continues(&mut lab);
    assert!(lab.pipeline.flows().counters().evictions(EvictionReason::PortReused) > 5_000);
}

#[test]
fn a_flow_that_the_client_resets_releases_its_port() {
    let mut lab = fullnat();
    for n in 0..PORTS + 2_000 {
        if n % 10_000 == 0 {
            lab.wait(Duration::from_secs(1));
        }
        let connection =
            Connection::open(&mut lab, client(n), VIP).unwrap_or_else(|why| panic!("{why} at {n}"));
        connection.query_tcp(&mut lab, RST);
    }
}

#[test]
fn spoofed_syns_block_no_port_that_a_connection_needs() {
    let mut lab = fullnat();
    let before = Connection::open(&mut lab, client(0), VIP).unwrap();
    for n in 1..=2 * PORTS {
        lab.wait(Duration::from_micros(100));
        Connection::send_syn(&mut lab, client(n), VIP).unwrap_or_else(|why| panic!("{why} at {n}"));
        if n % 1_000 == 0 {
            // The handshake of this connection takes as long as 500 SYNs.
            let real = Connection::send_syn(&mut lab, client(1_000_000 + n), VIP).unwrap();
            for m in 0..500 {
                Connection::send_syn(&mut lab, client(2_000_000 + 500 * n + m), VIP).unwrap();
            }
            real.answer_tcp(&mut lab, SYN | ACK);
            real.query_tcp(&mut lab, ACK);
        }
    }
    before.continues(&mut lab);
}

/// The long form is `TIDEGATE_SNAT_SECONDS=300 cargo test -p tidegate-pipeline twenty_thousand`. Ten seconds use all
/// ports one and a half times.
#[test]
fn twenty_thousand_new_connections_a_second_are_never_refused() {
    let seconds = std::env::var("TIDEGATE_SNAT_SECONDS").map_or(10, |text| text.parse().unwrap());
    let one = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &["10.0.0.1:80", "10.0.0.2:80"]);
    let mut lab = Lab::new(vec![one]).with_entries(1 << 20);
    let long: Vec<Connection> =
        (0..100).map(|n| Connection::open(&mut lab, client(n), VIP).unwrap()).collect();
    for ms in 0..1000 * seconds {
        lab.wait(Duration::from_millis(1));
        for n in 0..20 {
            let from = client((100 + 20 * ms + n) % 100_000_000);
            match Connection::open(&mut lab, from, VIP) {
                Ok(connection) => connection.close(&mut lab),
                Err(why) => panic!("{why} after {ms} ms"),
            }
            lab.pipeline.age(lab.now);
        }
        if ms % 60_000 == 0 {
            long.iter().for_each(|connection| connection.continues(&mut lab));
        }
    }
    long.iter().for_each(|connection| connection.continues(&mut lab));
}

#[test]
fn a_port_is_reused_as_late_as_possible() {
    let mut lab = fullnat();
    let mut ports = HashSet::new();
    for n in 0..PORTS {
        let connection = Connection::open(&mut lab, client(n), VIP).unwrap();
        connection.close(&mut lab);
        assert!(ports.insert(connection.local.port()), "after {n} of {PORTS}");
    }
}

#[test]
fn established_flows_keep_their_ports_when_all_are_in_use() {
    let mut lab = fullnat();
    let connections: Vec<Connection> =
        (0..PORTS).map(|n| Connection::open(&mut lab, client(n), VIP).unwrap()).collect();
    for n in PORTS..PORTS + 100 {
        assert_eq!(Connection::open(&mut lab, client(n), VIP), Err(Refusal::SnatPortsExhausted));
    }
    connections[7].close(&mut lab);
    let more = 2 * PORTS / tidegate_spec::limits::SNAT_PORT_PROBES as u32;
    let found = (0..more).find_map(|n| Connection::open(&mut lab, client(2 * PORTS + n), VIP).ok());
    assert_eq!(found.expect("the rotation reaches it").local, connections[7].local);
    for connection in connections.iter().step_by(501) {
        connection.continues(&mut lab);
    }
}

#[test]
fn a_busy_half_closed_connection_keeps_its_port() {
    let mut lab = fullnat();
    let half = Connection::open(&mut lab, client(0), VIP).unwrap();
    half.query_tcp(&mut lab, FIN | ACK);
    for n in 1..=PORTS + 100 {
        if n % 5_000 == 0 {
            lab.wait(Duration::from_millis(500));
            half.answer_tcp(&mut lab, ACK);
        }
        Connection::open(&mut lab, client(n), VIP).unwrap().close(&mut lab);
    }
    half.answer_tcp(&mut lab, ACK);
}

#[test]
fn every_snat_address_adds_its_ports() {
    let one = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &["10.0.0.1:80"]);
    let mut spec = SnapshotSpec { services: vec![one.into()], ..spec() };
    spec.network.snat_addresses.extend((240..252).map(|n| ip(&format!("10.0.0.{n}"))));
    let mut lab = Lab::with_spec(spec).with_entries(200_000);
    let mut used = HashSet::new();
    for n in 0..2 * PORTS {
        let connection =
            Connection::open(&mut lab, client(n), VIP).unwrap_or_else(|why| panic!("{why} at {n}"));
        assert!(used.insert(connection.local));
    }
    let addresses: HashSet<_> = used.iter().map(SocketAddr::ip).collect();
    assert_eq!(addresses.len(), 13);
}

/// Two service ports in `nat` mode with the same backend.
fn shared(protocol: Protocol) -> Lab {
    let of = |vip| service(ForwardingMode::Nat, protocol, vip, &["10.0.0.1:80"]);
    Lab::new(vec![of(VIP), of(OTHER)]).with_entries(100_000)
}

#[test]
fn one_client_port_reaches_one_backend_through_two_service_ports() {
    let mut lab = shared(Protocol::Tcp);
    let first = Connection::open(&mut lab, client(1), VIP).unwrap();
    let second = Connection::open(&mut lab, client(1), OTHER).unwrap();
    assert_eq!(first.local, first.client);
    assert_eq!((second.local.ip(), second.backend), (second.client.ip(), first.backend));
    assert_ne!(second.local.port(), second.client.port());
    for connection in [first, second, first, second] {
        connection.continues(&mut lab);
    }
    second.close(&mut lab);
    first.continues(&mut lab);
}

#[test]
fn datagrams_through_two_service_ports_are_not_mixed_up() {
    let mut lab = shared(Protocol::Udp);
    let first = Connection::query(&mut lab, client(1), VIP).unwrap();
    let second = Connection::query(&mut lab, client(1), OTHER).unwrap();
    assert_ne!(first.local, second.local);
    for connection in [first, second] {
        connection.answer(&mut lab);
    }
    assert_eq!(Connection::query(&mut lab, client(1), OTHER), Ok(second));
}

#[test]
fn a_flow_that_is_over_releases_the_clients_port_at_once() {
    for end in [FIN | ACK, RST] {
        let mut lab = shared(Protocol::Tcp);
        let first = Connection::open(&mut lab, client(1), VIP).unwrap();
        first.query_tcp(&mut lab, FIN | ACK);
        first.answer_tcp(&mut lab, end);
        let second = Connection::open(&mut lab, client(1), OTHER).unwrap();
        assert_eq!(second.local, second.client);
        assert!(first.is_forgotten(&mut lab), "both entries were removed");
    }
}

#[test]
fn a_reopened_connection_keeps_the_clients_port() {
    let mut lab = shared(Protocol::Tcp);
    for _ in 0..3 {
        let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
        assert_eq!(connection.local, connection.client);
        connection.close(&mut lab);
    }
}

#[test]
fn an_unanswered_handshake_releases_the_clients_port() {
    let mut lab = shared(Protocol::Tcp);
    Connection::send_syn(&mut lab, client(1), VIP).unwrap();
    lab.wait(Duration::from_secs(1));
    let second = Connection::open(&mut lab, client(1), OTHER).unwrap();
    assert_eq!(second.local, second.client);
}

#[test]
fn replies_to_a_port_that_nat_changed_reach_the_owner() {
    let services = [VIP, OTHER].map(|vip| service(ForwardingMode::Nat, Protocol::Udp, vip, &["10.0.0.1:80"]));
    let spec = SnapshotSpec { services: services.map(Into::into).into(), ..spec() };
    let mut labs = [0, 1, 2].map(|n| Lab::worker(spec.clone(), n, 3, Steering::Partition));
    for n in 0..60 {
        for vip in [VIP, OTHER] {
            let there = Builder::udp(client(n), vip).mac(ROUTER_MAC, GATEWAY_MAC).build();
            let owner = match labs[0].receive(&there).verdict {
                Verdict::HandOver(owner) => usize::from(owner),
                _ => 0,
            };
            if owner != 0 {
                labs[owner].receive_as(Arrival::HandedOver(0, 0), &there).sent(TransmitReason::Forward);
            }
            // A second packet shows the translation of the flow.
            let result = labs[owner].receive_as(Arrival::HandedOver(0, 0), &there);
            let (local, backend) = ends(result.sent(TransmitReason::Forward));
            assert_eq!(local == client(n), vip == VIP);
            let back = Builder::udp(backend, local).mac(super::lab::backend_mac(1), GATEWAY_MAC).build();
            let result = labs[owner].receive(&back);
            assert_eq!(ends(result.sent(TransmitReason::Reply)), (vip.parse().unwrap(), client(n)));
        }
    }
}

#[test]
fn the_client_of_a_changed_port_gets_icmp_errors() {
    let mut lab = shared(Protocol::Udp);
    Connection::query(&mut lab, client(1), VIP).unwrap();
    let second = Connection::query(&mut lab, client(1), OTHER).unwrap();
    // An error from a router behind the gateway, about a packet to the backend.
    let quoted = Builder::udp(second.local, second.backend).packet();
    let error = Builder::icmp(ip("10.0.0.9"), second.local.ip(), 3, 4, [0; 4]).payload(&quoted);
    let result = lab.send(error);
    let sent = result.sent(TransmitReason::IcmpError);
    let expected = Builder::udp(client(1), OTHER).packet();
    // The addresses and ports of the quote, after the Ethernet, IPv4 and ICMP headers.
    let quote = &sent[14 + 20 + 8..];
    assert_eq!((&quote[12..20], &quote[20..24]), (&expected[12..20], &expected[20..24]));
}

#[test]
fn rotating_ports_stay_with_their_worker() {
    let one = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &["10.0.0.1:80"]);
    let spec = SnapshotSpec { services: vec![one.into()], ..spec() };
    let mut lab = Lab::worker(spec, 1, 2, Steering::Partition);
    // There are more flows than the table's capacity: ended flows are evicted.
    for n in 0..3 * PORTS / 2 {
        if lab.send(Builder::tcp(client(n), VIP).flags(SYN)).verdict == Verdict::HandOver(0) {
            continue;
        }
        let connection =
            Connection::open(&mut lab, client(n), VIP).unwrap_or_else(|why| panic!("{why} at {n}"));
        assert_eq!(owner_of_port(connection.local.port(), 2), 1);
        connection.close(&mut lab);
    }
}
