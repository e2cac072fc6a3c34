//! Refusals: each has a frame that causes it and stays unchanged.

use std::time::Duration;

use tidegate_spec::testing;
use tidegate_spec::verdict::{DropReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, InterfaceSpec, NeighborSpec, Protocol, SnapshotSpec};
use tidegate_wire::{MacAddr, Malformed};

use super::lab::{Lab, ROUTER_MAC, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Arrival, NeighborEvent};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

fn dns() -> Lab {
    Lab::new(vec![
        service(ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]),
        service(ForwardingMode::DsrL2, Protocol::Udp, "[2001:db8:1::5]:53", &["[fd00::1]:53"]),
    ])
}

fn query() -> Builder {
    Builder::udp("198.51.100.7:40000", "203.0.113.5:53")
}

#[test]
fn refusals_of_a_packet_to_a_vip_name_their_reason() {
    let icmp = |kind, code| {
        Builder::icmp(super::lab::ip("198.51.100.7"), super::lab::ip("203.0.113.5"), kind, code, [0; 4])
    };
    let quote = Builder::udp("203.0.113.5:99", "198.51.100.7:40000").packet();
    for (builder, reason) in [
        (Builder::udp("198.51.100.7:40000", "203.0.113.5:54"), Refusal::NoService),
        (Builder::tcp("198.51.100.7:40000", "203.0.113.5:53"), Refusal::NoService),
        (Builder::udp("127.0.0.1:40000", "203.0.113.5:53"), Refusal::BadSource),
        (Builder::udp("224.0.0.1:40000", "203.0.113.5:53"), Refusal::BadSource),
        (
            Builder::ip(super::lab::ip("198.51.100.7"), super::lab::ip("203.0.113.5"), 47),
            Refusal::UnsupportedProtocol,
        ),
        (icmp(13, 0), Refusal::IcmpUnsupported),
        (icmp(3, 4).payload(&quote), Refusal::IcmpErrorUnknown),
        (query().vlan(7), Refusal::VlanMismatch),
    ] {
        let mut lab = dns();
        lab.change(|spec| spec.network.policy.reject_unserved_ports = false);
        assert_eq!(lab.send(builder).refused(), reason);
    }
}

#[test]
fn frames_for_another_station_are_not_touched() {
    let mut lab = dns();
    let frame = query().mac(ROUTER_MAC, MacAddr([2, 9, 9, 9, 9, 9])).build();
    assert_eq!(lab.receive(&frame).refused(), Refusal::OtherStation);
}

#[test]
fn malformed_frames_are_dropped_with_their_reason() {
    let mut lab = dns();
    for (frame, reason) in [
        (vec![0; 13], Malformed::EthernetTruncated),
        (query().ip_checksum(0xdead).build(), Malformed::Ipv4Checksum),
        (query().udp_len(7).build(), Malformed::UdpLength),
        (query().version_ihl(0x4f).build(), Malformed::Ipv4HeaderLength),
    ] {
        assert_eq!(lab.receive(&frame).verdict, Verdict::Drop(DropReason::Malformed(reason)));
        assert_eq!(lab.counters.drops(reason.into()), 1);
    }
}

#[test]
fn an_unresolved_next_hop_is_reported_and_the_packet_may_be_retried() {
    let mut spec = spec();
    spec.network.neighbors.clear();
    spec.services =
        vec![service(ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]).into()];
    let mut lab = Lab::with_spec(spec);
    let result = lab.send(query());
    assert_eq!(result.refused(), Refusal::NeighborUnresolved);
    let addr = super::lab::ip("10.0.0.1").into();
    assert_eq!(result.events, [NeighborEvent::Wanted { interface: 0, addr }]);
    lab.neighbors.set_resolved(lab.neighbors.lookup(0, &addr).unwrap(), super::lab::backend_mac(1));
    lab.send(query()).sent(TransmitReason::Forward);
}

#[test]
fn a_reply_without_a_route_to_its_client_is_dropped() {
    let mut spec = spec();
    spec.network.routes.clear();
    spec.services =
        vec![service(ForwardingMode::Nat, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]).into()];
    let mut lab = Lab::with_spec(spec);
    lab.send(query()).sent(TransmitReason::Forward);
    let result = lab.send(Builder::udp("10.0.0.1:53", "198.51.100.7:40000"));
    assert_eq!(result.refused(), Refusal::NoRoute);
}

#[test]
fn packets_that_must_not_be_answered_are_dropped() {
    let mut lab = dns();
    // An ICMP error is never answered with another (RFC 1122 3.2.2).
    let error = |len| {
        let quoted = Builder::udp("203.0.113.5:53", "198.51.100.7:40000").payload_len(len).packet();
        Builder::icmp("192.0.2.1", "203.0.113.5", 3, 3, [0; 4]).payload(&quoted)
    };
    assert_eq!(lab.send(error(0).ttl(1)).refused(), Refusal::TtlExceeded);
    assert_eq!(lab.send(error(1480)).refused(), Refusal::TooBig);
}

#[test]
fn a_frame_without_headroom_is_refused_unchanged() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::DsrIpip, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
    let result = lab.receive_tight(&query().mac(ROUTER_MAC, GATEWAY_MAC).build());
    assert_eq!(result.refused(), Refusal::NoHeadroom);
}

#[test]
fn an_icmp_error_without_headroom_for_a_tag_is_refused_unchanged() {
    let mut spec = spec();
    let inside = testing::interface(MacAddr([2, 0, 0, 0, 0, 3]), &["10.1.0.254/24"]);
    spec.network.interfaces.push(InterfaceSpec { name: "inside".into(), vlan: Some(7), ..inside });
    spec.network
        .neighbors
        .push(NeighborSpec { ip: super::lab::ip("10.1.0.1"), mac: super::lab::backend_mac(1) });
    spec.services =
        vec![service(ForwardingMode::Nat, Protocol::Udp, "203.0.113.5:53", &["10.1.0.1:53"]).into()];
    let mut lab = Lab::with_spec(spec);
    let result = lab.send(query());
    assert_eq!(result.verdict, Verdict::Transmit { interface: 1, why: TransmitReason::Forward });
    let quoted = Builder::udp("203.0.113.5:53", "198.51.100.7:40000").packet();
    let (router, vip) = (super::lab::ip("192.0.2.1"), super::lab::ip("203.0.113.5"));
    let error =
        Builder::icmp(router, vip, 3, 4, [0; 4]).payload(&quoted).mac(ROUTER_MAC, GATEWAY_MAC).build();
    assert_eq!(lab.receive_tight(&error).refused(), Refusal::NoHeadroom);
    let result = lab.receive(&error);
    assert_eq!(result.verdict, Verdict::Transmit { interface: 1, why: TransmitReason::IcmpError });
}

#[test]
fn fragments_follow_their_first_one_and_are_refused_without_it() {
    for mode in ForwardingMode::ALL {
        let mut lab =
            Lab::new(vec![service(mode, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53", "10.0.0.2:53"])]);
        let whole = query().dont_fragment(false).payload_len(1200).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let parts = builder::fragments(&whole, 77, 512);
        assert!(parts.len() > 2);
        assert_eq!(lab.receive(&parts[1]).refused(), Refusal::FragmentUnknown);
        let first = lab.receive(&parts[0]);
        first.sent(TransmitReason::Forward);
        for part in &parts[1..] {
            let result = lab.receive(part);
            let sent = result.sent(TransmitReason::Forward);
            assert_eq!(sent[..12], first.frame[..12], "{mode}: to the same station");
            assert_eq!(sent[26..34], first.frame[26..34], "{mode}: between the same addresses");
        }
        lab.wait(crate::fragments::LIFETIME + Duration::from_secs(1));
        assert_eq!(lab.receive(&parts[1]).refused(), Refusal::FragmentUnknown);
    }
}

#[test]
fn fragments_that_arrive_together_follow_their_first() {
    for mode in ForwardingMode::ALL {
        let mut lab =
            Lab::new(vec![service(mode, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53", "10.0.0.2:53"])]);
        let whole = query().dont_fragment(false).payload_len(1200).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let results = lab.receive_burst(&builder::fragments(&whole, 77, 512));
        assert_eq!(results.len(), 3);
        for result in &results {
            result.sent(TransmitReason::Forward);
            assert_eq!(result.frame[..12], results[0].frame[..12], "{mode}: to the same station");
        }
    }
}

#[test]
fn fragments_follow_their_first_one_to_the_owner_of_the_flow() {
    let services =
        vec![service(ForwardingMode::Nat, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]).into()];
    let spec = SnapshotSpec { services, ..spec() };
    let mut receiving = Lab::worker(spec.clone(), 1, 2, Steering::Partition);
    let mut home = Lab::worker(spec, 0, 2, Steering::Partition);
    let client = super::lab::ip("198.51.100.7");
    let parts = (40_000..)
        .map(|port| {
            let whole = Builder::udp((client, port), "203.0.113.5:53").dont_fragment(false).payload_len(1200);
            builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), u32::from(port), 512)
        })
        .find(|parts| receiving.receive(&parts[0]).verdict == Verdict::HandOver(0))
        .unwrap();
    for part in &parts {
        assert_eq!(receiving.receive(part).verdict, Verdict::HandOver(0));
        home.receive_as(Arrival::HandedOver(0, 0), part).sent(TransmitReason::Forward);
    }
}

#[test]
fn sctp_in_fragments_is_not_translated() {
    let mut lab = Lab::with_spec(SnapshotSpec {
        services: vec![
            service(ForwardingMode::FullNat, Protocol::Sctp, "203.0.113.5:53", &["10.0.0.1:53"]).into(),
        ],
        ..spec()
    });
    let init = Builder::sctp_init("198.51.100.7:40000", "203.0.113.5:53", 7);
    let whole = init.chunk(0x80, 0, &[0; 600]).dont_fragment(false);
    let parts = builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), 78, 256);
    assert_eq!(lab.receive(&parts[0]).refused(), Refusal::SctpFragment);
}

#[test]
fn sctp_in_fragments_passes_nat_where_the_ports_stay() {
    for (port, passes) in [(53, true), (54, false)] {
        let backend = format!("10.0.0.1:{port}");
        let mut lab =
            Lab::new(vec![service(ForwardingMode::Nat, Protocol::Sctp, "203.0.113.5:53", &[&*backend])]);
        let (client, vip) = ("198.51.100.7:40000", "203.0.113.5:53");
        lab.send(Builder::sctp_init(client, vip, 7)).sent(TransmitReason::Forward);
        let whole = Builder::sctp(client, vip).chunk(0, 3, &[1; 600]).dont_fragment(false);
        let parts = builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), 78, 256);
        let results: Vec<_> = parts.iter().map(|part| lab.receive(part)).collect();
        if passes {
            let sent: Vec<&[u8]> =
                results.iter().map(|result| result.sent(TransmitReason::Forward)).collect();
            let (first, part) = (&sent[0][14 + 20..], &parts[0][14 + 20..]);
            assert_eq!(&first[..part.len()], part, "ports and checksum stay");
        } else {
            assert_eq!(results[0].refused(), Refusal::SctpFragment);
        }
    }
}
