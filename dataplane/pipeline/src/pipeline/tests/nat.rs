//! Translation in both directions: the client communicates with the VIP, the backend with the translated client
//! address.

use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, ethernet, parse};

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service, spec};
use crate::forward::snat_ports::{Steering, owner_of_port};
use crate::pipeline::{Arrival, FlowNote};
use crate::testing::builder::{Builder, GATEWAY_MAC};
use crate::testing::{assert_only_changed, summary};

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}: {}", summary(frame)),
    }
}

const CASES: [(&str, &str, &str, &str); 2] = [
    ("198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:8080", "10.0.0.253"),
    ("[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:8080", "fd00::fd"),
];

/// The fields of `side` in the family, and the fields that a hop changes.
fn fields(client: &str, side: &[&str]) -> Vec<String> {
    let v6 = client.starts_with('[');
    let hop: &[&str] = if v6 { &["ipv6.hop_limit"] } else { &["ipv4.ttl", "ipv4.checksum"] };
    let family = if v6 { "ipv6." } else { "ipv4." };
    let side = side.iter().map(|field| field.replace("ip.", family));
    side.chain(["eth.dst", "eth.src"].iter().chain(hop).map(|&field| field.to_owned())).collect()
}

fn assert_changed(client: &str, before: &[u8], after: &[u8], side: &[&str]) {
    let allowed = fields(client, side);
    assert_only_changed(before, after, &allowed.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn nat_translates_the_destination_of_requests_and_the_source_of_replies() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let l4 = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
        for (client, vip, backend, _) in CASES {
            let mut lab = Lab::new(vec![service(ForwardingMode::Nat, protocol, vip, &[backend])]);
            let make = |from, to| match protocol {
                Protocol::Tcp => Builder::tcp(from, to).flags(flags::SYN),
                _ => Builder::udp(from, to),
            };
            let there = make(client, vip).mac(ROUTER_MAC, GATEWAY_MAC).payload(b"question").build();
            let result = lab.receive(&there);
            let sent = result.sent(TransmitReason::Forward);
            let (dst_port, checksum) = (format!("{l4}.dst_port"), format!("{l4}.checksum"));
            assert_changed(client, &there, sent, &["ip.dst", &dst_port, &checksum]);
            let h = headers(sent);
            assert_eq!((std::net::SocketAddr::new(h.dst.ip(), h.dst_port)), backend.parse().unwrap());
            assert_eq!(ethernet::destination(sent), backend_mac(1));

            let back = make(backend, client).mac(backend_mac(1), GATEWAY_MAC).payload(b"answer");
            let back =
                if protocol == Protocol::Tcp { back.flags(flags::SYN | flags::ACK) } else { back }.build();
            let result = lab.receive(&back);
            let sent = result.sent(TransmitReason::Reply);
            let (src_port, checksum) = (format!("{l4}.src_port"), format!("{l4}.checksum"));
            assert_changed(client, &back, sent, &["ip.src", &src_port, &checksum]);
            let h = headers(sent);
            assert_eq!((std::net::SocketAddr::new(h.src.ip(), h.src_port)), vip.parse().unwrap());
            assert_eq!(ethernet::destination(sent), ROUTER_MAC);
            assert_eq!(result.note.flow, FlowNote::Known);
        }
    }
}

#[test]
fn fullnat_translates_both_ends_in_both_directions() {
    for (client, vip, backend, snat) in CASES {
        let mut lab = Lab::new(vec![service(ForwardingMode::FullNat, Protocol::Udp, vip, &[backend])]);
        let there = Builder::udp(client, vip).mac(ROUTER_MAC, GATEWAY_MAC).payload(b"question").build();
        let result = lab.receive(&there);
        let sent = result.sent(TransmitReason::Forward);
        assert_changed(
            client,
            &there,
            sent,
            &["ip.src", "ip.dst", "udp.src_port", "udp.dst_port", "udp.checksum"],
        );
        let h = headers(sent);
        assert_eq!(
            (h.src.ip(), h.dst.ip(), h.dst_port),
            (ip(snat), backend.parse::<std::net::SocketAddr>().unwrap().ip(), 8080)
        );

        let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
        let back = Builder::udp(backend, local).mac(backend_mac(1), GATEWAY_MAC).payload(b"answer").build();
        let result = lab.receive(&back);
        let sent = result.sent(TransmitReason::Reply);
        assert_changed(
            client,
            &back,
            sent,
            &["ip.src", "ip.dst", "udp.src_port", "udp.dst_port", "udp.checksum"],
        );
        let h = headers(sent);
        assert_eq!(std::net::SocketAddr::new(h.src.ip(), h.src_port), vip.parse().unwrap());
        assert_eq!(std::net::SocketAddr::new(h.dst.ip(), h.dst_port), client.parse().unwrap());
    }
}

#[test]
fn fullnat_flows_to_one_backend_have_different_ports() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::FullNat, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
    let mut ports = std::collections::BTreeSet::new();
    for client in 0..2000 {
        let from = format!("198.51.{}.{}:1234", client / 250, client % 250 + 1);
        let result = lab.send(Builder::udp(from.as_str(), "203.0.113.5:53"));
        assert!(ports.insert(headers(result.sent(TransmitReason::Forward)).src_port));
    }
}

#[test]
fn a_segment_of_an_unknown_connection_is_not_translated() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        let mut lab = Lab::new(vec![service(mode, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80"])]);
        let result = lab.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::ACK));
        result.sent(TransmitReason::NoFlow);
        assert_eq!(lab.pipeline.flows().live(), 0);
    }
}

#[test]
fn without_a_flow_packets_to_a_snat_address_are_dropped() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::FullNat, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
    let from_backend = |to: &str| Builder::udp("10.0.0.1:53", to);
    assert_eq!(lab.send(from_backend("10.0.0.253:5000")).refused(), Refusal::NoSnatFlow);
    assert_eq!(lab.send(from_backend("10.0.0.254:5000")).verdict, Verdict::Punt(PuntReason::Local));
    assert_eq!(lab.send(from_backend("192.0.2.99:5000")).verdict, Verdict::Punt(PuntReason::NotOurs));
    assert_eq!(lab.send(Builder::udp("10.0.0.9:53", "10.0.0.253:5000")).refused(), Refusal::NoSnatFlow);
}

fn two_workers(mode: ForwardingMode) -> [Lab; 2] {
    let services = vec![service(mode, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]).into()];
    [0, 1].map(|n| {
        Lab::worker(SnapshotSpec { services: services.clone(), ..spec() }, n, 2, Steering::Partition)
    })
}

#[test]
fn a_fullnat_reply_at_the_wrong_worker_is_handed_to_the_owner_of_its_port() {
    let mut labs = two_workers(ForwardingMode::FullNat);
    for client in 0..50 {
        let from = format!("198.51.100.{}:1234", client + 1);
        let there = Builder::udp(from.as_str(), "203.0.113.5:53").mac(ROUTER_MAC, GATEWAY_MAC).build();
        let (owner, result) = match labs[client % 2].receive(&there) {
            FrameResult { verdict: Verdict::HandOver(owner), .. } => {
                let owner = usize::from(owner);
                (owner, labs[owner].receive_as(Arrival::HandedOver(0, 0), &there))
            }
            result => (client % 2, result),
        };
        let h = headers(result.sent(TransmitReason::Forward));
        assert_eq!(usize::from(owner_of_port(h.src_port, 2)), owner);
        let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
        let back = Builder::udp("10.0.0.1:53", local).mac(backend_mac(1), GATEWAY_MAC).build();
        assert_eq!(labs[1 - owner].receive(&back).verdict, Verdict::HandOver(owner as u8));
        labs[owner].receive_as(Arrival::HandedOver(0, 0), &back).sent(TransmitReason::Reply);
    }
}

#[test]
fn both_directions_of_a_nat_flow_reach_one_worker() {
    let mut labs = two_workers(ForwardingMode::Nat);
    let mut owned = [0, 0];
    for client in 0..50 {
        let from = format!("198.51.100.{}:1234", client + 1);
        let there = Builder::udp(from.as_str(), "203.0.113.5:53").mac(ROUTER_MAC, GATEWAY_MAC).build();
        let back = Builder::udp("10.0.0.1:53", from.as_str()).mac(backend_mac(1), GATEWAY_MAC).build();
        let owner = match labs[0].receive(&there).verdict {
            Verdict::HandOver(owner) => usize::from(owner),
            Verdict::Transmit { .. } => 0,
            other => panic!("{other:?}"),
        };
        owned[owner] += 1;
        if owner == 1 {
            labs[1].receive_as(Arrival::HandedOver(0, 0), &there).sent(TransmitReason::Forward);
        }
        assert_eq!(labs[1 - owner].receive(&back).verdict, Verdict::HandOver(owner as u8));
        labs[owner].receive(&back).sent(TransmitReason::Reply);
    }
    assert!(owned.iter().all(|&n| n > 10), "{owned:?}");
}

#[test]
fn a_frame_that_no_worker_owns_is_not_handed_over_repeatedly() {
    let mut labs = two_workers(ForwardingMode::Nat);
    let there = Builder::udp("198.51.100.1:1234", "203.0.113.5:53").mac(ROUTER_MAC, GATEWAY_MAC).build();
    let stranger = usize::from(matches!(labs[0].receive(&there).verdict, Verdict::Transmit { .. }));
    let result = labs[stranger].receive_as(Arrival::HandedOver(0, 0), &there);
    assert_eq!(result.refused(), Refusal::HandOverLoop);
}
