//! Tests of the frames that answer other frames. The test builder creates the expected frames.

use super::*;
use crate::testing::Builder;
use crate::testing::builder::{CLIENT_MAC, GATEWAY_MAC, fragments};
use core::net::{Ipv4Addr, Ipv6Addr};
use icmp::{Problem, may_answer_with_icmp};
use ndp::Ndp;
use tcp::flags::{ACK, FIN, PSH, RST, SYN};

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x99]);
const C4: &str = "192.0.2.1:1024";
const S4: &str = "203.0.113.5:443";
const C6: &str = "[2001:db8::1]:1024";
const S6: &str = "[2001:db8:1::5]:443";

fn reset(frame: &[u8]) -> Option<Vec<u8>> {
    tcp::reset(frame, &ip(frame), OUR_MAC).map(|f| bytes(&f).to_vec())
}

fn wanted_reset(c: &str, s: &str, seq: u32, ack: u32, flags: u8) -> Builder {
    Builder::tcp(s, c).mac(OUR_MAC, CLIENT_MAC).window(0).seq_ack(seq, ack).flags(flags)
}

#[test]
fn reset_without_ack_acknowledges_the_segment() {
    for (c, s) in [(C4, S4), (C6, S6)] {
        let syn = Builder::tcp(c, s).flags(SYN).seq_ack(u32::MAX, 0).build();
        assert_eq!(reset(&syn), Some(wanted_reset(c, s, 0, 0, RST | ACK).build()));
        let odd =
            Builder::tcp(c, s).flags(SYN | FIN).seq_ack(100, 0).tcp_options(&[1; 8]).payload_len(5).build();
        assert_eq!(reset(&odd), Some(wanted_reset(c, s, 0, 107, RST | ACK).build()));
    }
}

#[test]
fn reset_of_an_acknowledging_segment_takes_its_number() {
    for (c, s) in [(C4, S4), (C6, S6)] {
        let data =
            Builder::tcp(c, s).flags(ACK | PSH).seq_ack(5, 4_000_000_000).payload_len(10).vlan(12).build();
        assert_eq!(reset(&data), Some(wanted_reset(c, s, 4_000_000_000, 0, RST).vlan(12).build()));
    }
}

#[test]
fn reset_ignores_ethernet_padding() {
    let syn = Builder::tcp(C4, S4).flags(SYN).seq_ack(9, 0).trailer(6).build();
    assert_eq!(reset(&syn), Some(wanted_reset(C4, S4, 0, 10, RST | ACK).build()));
}

#[test]
fn reset_is_never_sent_to_a_reset_a_fragment_or_a_group() {
    assert_eq!(reset(&Builder::tcp(C4, S4).flags(RST).build()), None);
    assert_eq!(reset(&Builder::tcp(C4, S4).flags(RST | ACK).build()), None);
    assert_eq!(reset(&fragments(&Builder::tcp(C4, S4).payload_len(40).build(), 1, 24)[0]), None);
    assert_eq!(reset(&Builder::udp(C4, S4).build()), None);
    for src in ["0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1", "127.0.0.1:1"] {
        assert_eq!(reset(&Builder::tcp(src, S4).flags(SYN).build()), None, "{src}");
    }
    assert_eq!(reset(&Builder::tcp(C6, "[ff02::1]:5").flags(SYN).build()), None);
}

#[track_caller]
fn error(frame: &[u8], problem: Problem, from: &str) -> Vec<u8> {
    let h = ip(frame);
    assert!(may_answer_with_icmp(frame, &h, problem));
    let from = from.parse::<core::net::IpAddr>().unwrap().into();
    let reply = icmp::error(frame, &h, problem, OUR_MAC, from);
    [&reply.header[..], &frame[reply.quote]].concat()
}

#[test]
fn icmp_errors_quote_the_packet_with_the_right_type_and_code() {
    let problems = [
        (Problem::NoRoute, (3, 0), (1, 0)),
        (Problem::HostUnreachable, (3, 1), (1, 3)),
        (Problem::PortUnreachable, (3, 3), (1, 4)),
        (Problem::AdminProhibited, (3, 13), (1, 1)),
        (Problem::TimeExceeded, (11, 0), (3, 0)),
        (Problem::TooBig { mtu: 1420 }, (3, 4), (2, 0)),
    ];
    let p4 = Builder::udp(C4, S4).payload_len(10).trailer(5);
    let p6 = Builder::udp(C6, S6).payload_len(11).vlan(8);
    for (problem, (t4, c4), (t6, c6)) in problems {
        let rest = if let Problem::TooBig { .. } = problem { [0, 0, 5, 140] } else { [0; 4] };
        let wanted = Builder::icmp("203.0.113.1", "192.0.2.1", t4, c4, rest)
            .mac(OUR_MAC, CLIENT_MAC)
            .tos(0xc0)
            .payload(&p4.packet());
        let frame = error(&p4.build(), problem, "203.0.113.1");
        assert_eq!(frame, wanted.build(), "{problem:?}");
        let h = ip(&frame);
        assert!(icmp::checksum_ok(&frame, &h) && h.is_icmp_error());
        assert_eq!(icmp::reported_mtu(&frame, &h), (t4 == 3 && c4 == 4).then_some(1420));

        let wanted = Builder::icmp("2001:db8:1::1", "2001:db8::1", t6, c6, rest)
            .mac(OUR_MAC, CLIENT_MAC)
            .vlan(8)
            .payload(&p6.packet());
        let frame = error(&p6.build(), problem, "2001:db8:1::1");
        assert_eq!(frame, wanted.build(), "{problem:?}");
        assert!(icmp::checksum_ok(&frame, &ip(&frame)));
        assert_eq!(icmp::reported_mtu(&frame, &ip(&frame)), (t6 == 2).then_some(1420));
    }
}

#[test]
fn icmp_errors_stay_within_576_and_1280_bytes() {
    let long = Builder::udp(C4, S4).payload_len(1400).build();
    assert_eq!(ip(&error(&long, Problem::PortUnreachable, "203.0.113.1")).ip_len(), 576);
    let long = Builder::udp(C6, S6).payload_len(1400).vlan(3).build();
    let frame = error(&long, Problem::PortUnreachable, "2001:db8:1::1");
    assert_eq!(ip(&frame).ip_len(), 1280);
    let q = quote::parse(&frame, &ip(&frame)).unwrap().unwrap();
    assert_eq!((q.src_port, q.dst_port, q.proto), (1024, 443, proto::UDP));
}

#[test]
fn icmp_errors_are_not_sent_where_the_rfcs_forbid() {
    let may = |frame: &[u8], problem| may_answer_with_icmp(frame, &ip(frame), problem);
    let unreachable = Problem::PortUnreachable;
    let quoted = Builder::udp(C4, S4).packet();
    for ty in [3, 4, 5, 11, 12] {
        let e = Builder::icmp("192.0.2.1", "192.0.2.2", ty, 0, [0; 4]).payload(&quoted).build();
        assert!(!may(&e, unreachable), "type {ty}");
    }
    for ty in [1, 2, 3, 4, 100, 127, 137] {
        let e = Builder::icmp("2001:db8::1", "2001:db8::2", ty, 0, [0; 4]).payload(&quoted).build();
        assert!(!may(&e, unreachable), "type {ty}");
    }
    assert!(may(&Builder::echo_request("192.0.2.1", "192.0.2.2", 1, 1).build(), Problem::TimeExceeded));
    let cut = fragments(&Builder::udp(C4, S4).payload_len(40).build(), 1, 24);
    assert!(may(&cut[0], unreachable) && !may(&cut[1], unreachable));
    for (src, dst) in [
        ("0.0.0.0:1", S4),
        ("127.0.0.1:1", S4),
        ("224.0.0.5:1", S4),
        ("240.0.0.1:1", S4),
        (C4, "224.0.0.1:1"),
        (C4, "255.255.255.255:1"),
        ("[::]:1", S6),
        ("[::1]:1", S6),
        ("[ff02::1]:1", S6),
        (C6, "[ff02::1]:1"),
    ] {
        assert!(!may(&Builder::udp(src, dst).build(), unreachable), "{src} {dst}");
    }
    let broadcast = Builder::udp(C4, S4).mac(CLIENT_MAC, MacAddr::BROADCAST).build();
    assert!(!may(&broadcast, unreachable) && !may(&broadcast, Problem::TooBig { mtu: 1280 }));
    // RFC 4443 2.4 (e.3): the only exception.
    let group = Builder::udp(C6, "[ff0e::1]:5").mac(CLIENT_MAC, MacAddr([0x33, 0x33, 0, 0, 0, 1])).build();
    assert!(may(&group, Problem::TooBig { mtu: 1280 }) && !may(&group, Problem::TimeExceeded));
}

#[test]
fn echo_replies_are_what_a_host_would_send() {
    for (client, vip, reply) in [("192.0.2.1", "203.0.113.5", 0), ("2001:db8::1", "2001:db8:1::5", 129)] {
        let mut frame =
            Builder::echo_request(client, vip, 7, 3).ttl(9).tos(4).payload_len(57).vlan(5).trailer(1).build();
        let h = ip(&frame);
        assert!(icmp::checksum_ok(&frame, &h));
        assert!(icmp::echo_reply(&mut frame, &h, OUR_MAC));
        let wanted = Builder::icmp(vip, client, reply, 0, [0, 7, 0, 3])
            .mac(OUR_MAC, CLIENT_MAC)
            .tos(4)
            .payload_len(57)
            .vlan(5)
            .trailer(1);
        assert_eq!(frame, wanted.build());
    }
}

#[test]
fn only_echo_requests_between_unicast_addresses_are_answered() {
    let reply = Builder::icmp("192.0.2.1", "203.0.113.5", 0, 0, [0; 4]).build();
    let group = Builder::echo_request("192.0.2.1", "224.0.0.1", 7, 3).build();
    let from_nobody = Builder::echo_request("::", "2001:db8::1", 7, 3).build();
    for frame in [reply, group, from_nobody] {
        let mut after = frame.clone();
        assert!(!icmp::echo_reply(&mut after, &ip(&frame), OUR_MAC));
        assert_eq!(after, frame);
    }
}

#[test]
fn arp_requests_are_answered_to_their_sender() {
    let (ours, theirs) = (Ipv4Addr::new(203, 0, 113, 5), Ipv4Addr::new(192, 0, 2, 1));
    let vlan = VlanId::new(30);
    let request = arp::request(CLIENT_MAC, theirs, ours, vlan, None);
    assert_eq!(ethernet::destination(&request), MacAddr::BROADCAST);
    let Ok(Parsed::Arp(request)) = parse(&request) else { panic!("not ARP") };
    let reply = arp::reply(&request, OUR_MAC);
    assert_eq!((ethernet::destination(&reply), ethernet::source(&reply)), (CLIENT_MAC, OUR_MAC));
    let Ok(Parsed::Arp(reply)) = parse(&reply) else { panic!("not ARP") };
    let wanted = ArpPacket {
        operation: arp::ArpOperation::Reply,
        sender_mac: OUR_MAC,
        sender_ip: ours,
        target_mac: CLIENT_MAC,
        target_ip: theirs,
        vlan,
    };
    assert_eq!(reply, wanted);
    let poll = arp::request(OUR_MAC, ours, theirs, None, Some(CLIENT_MAC));
    assert_eq!(ethernet::destination(&poll), CLIENT_MAC);
}

fn read_ndp(frame: &[u8]) -> Ndp {
    ndp::parse(frame, &ip(frame)).unwrap().expect("neighbour discovery")
}

#[test]
fn solicitations_are_answered_by_advertisements() {
    let (ours, theirs) = ("2001:db8:1::5".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let request = ndp::solicitation(CLIENT_MAC, theirs, ours, VlanId::new(4), None);
    let h = ip(&request);
    assert_eq!(h.dst.to_string(), "ff02::1:ff00:5");
    assert_eq!(ethernet::destination(&request), MacAddr([0x33, 0x33, 0xff, 0, 0, 5]));
    assert_eq!(read_ndp(&request), Ndp::Solicitation { target: ours, source_mac: Some(CLIENT_MAC) });

    let answer = ndp::answer(&request, &h, ours, OUR_MAC);
    let a = ip(&answer);
    assert_eq!((a.src.ip(), a.dst.ip(), a.vlan, a.ttl), (ours.into(), theirs.into(), VlanId::new(4), 255));
    assert_eq!((ethernet::destination(&answer), ethernet::source(&answer)), (CLIENT_MAC, OUR_MAC));
    let wanted = |solicited| Ndp::Advertisement {
        target: ours,
        target_mac: Some(OUR_MAC),
        router: false,
        solicited,
        overrides: true,
    };
    assert_eq!(read_ndp(&answer), wanted(true));

    let announcement = ndp::announcement(OUR_MAC, ours, None);
    assert_eq!(ip(&announcement).dst.to_string(), "ff02::1");
    assert_eq!(read_ndp(&announcement), wanted(false));
    let poll = ndp::solicitation(OUR_MAC, ours, theirs, None, Some(CLIENT_MAC));
    assert_eq!((ethernet::destination(&poll), ip(&poll).dst.ip()), (CLIENT_MAC, theirs.into()));
}

#[test]
fn address_probe_is_answered_to_all_nodes() {
    let ours: Ipv6Addr = "2001:db8:1::5".parse().unwrap();
    let probe = ndp::solicitation(CLIENT_MAC, Ipv6Addr::UNSPECIFIED, ours, None, None);
    assert_eq!(read_ndp(&probe), Ndp::Solicitation { target: ours, source_mac: None });
    let answer = ndp::answer(&probe, &ip(&probe), ours, OUR_MAC);
    assert_eq!(ip(&answer).dst.to_string(), "ff02::1");
    assert!(matches!(read_ndp(&answer), Ndp::Advertisement { solicited: false, .. }));
}

#[test]
fn neighbour_discovery_is_believed_only_as_rfc_4861_allows() {
    let target = [0x20; 16];
    let message = |src: &str, dst: &str, ty, rest, options: &[u8]| {
        Builder::icmp(src, dst, ty, 0, rest).ttl(255).payload(&[&target[..], options].concat())
    };
    let refused = |b: Builder| {
        let frame = b.build();
        assert_eq!(ndp::parse(&frame, &ip(&frame)), Err(Malformed::NdpInvalid));
    };
    let option = [1, 1, 2, 0, 0, 0, 0, 1];
    refused(message("2001:db8::1", "2001:db8::2", 135, [0; 4], &[]).ttl(64));
    refused(message("2001:db8::1", "2001:db8::2", 135, [0; 4], &[]).l4_checksum(1));
    refused(message("::", "ff02::1:ff20:2020", 135, [0; 4], &option));
    refused(message("::", "2001:db8::2", 135, [0; 4], &[]));
    refused(message("2001:db8::1", "ff02::1", 136, [0x60, 0, 0, 0], &[]));
    let good = message(
        "2001:db8::1",
        "2001:db8::2",
        135,
        [0; 4],
        &[&[14, 1, 0, 0, 0, 0, 0, 0][..], &option].concat(),
    );
    assert_eq!(
        read_ndp(&good.build()),
        Ndp::Solicitation { target: target.into(), source_mac: Some(MacAddr([2, 0, 0, 0, 0, 1])) }
    );
    let echo = Builder::echo_request("2001:db8::1", "2001:db8::2", 1, 1).build();
    assert_eq!(ndp::parse(&echo, &ip(&echo)), Ok(None));
}

#[test]
fn quotes_are_found_behind_options_and_extension_headers() {
    let quoted = Builder::tcp(C4, S4).ip_options(&[1; 12]).packet();
    let frame = Builder::icmp("198.51.100.1", "192.0.2.1", 11, 0, [0; 4]).payload(&quoted[..40]).build();
    let q = quote::parse(&frame, &ip(&frame)).unwrap().unwrap();
    assert_eq!((q.l3, q.l4, q.src_port, q.dst_port), (42, 42 + 32, 1024, 443));

    let quoted = Builder::udp(C6, S6).extension(60, &[]).fragment(3, 0, true).payload_len(8).packet();
    let frame = Builder::icmp("2001:db8::9", "2001:db8::1", 3, 0, [0; 4]).payload(&quoted[..64]).build();
    let q = quote::parse(&frame, &ip(&frame)).unwrap().unwrap();
    assert_eq!((q.fragment, q.dst_port, q.l4 - q.l3), (Fragment::First { id: 3 }, 443, 56));

    let quoted = Builder::udp(C4, S4).fragment(3, 16, false).payload_len(8).packet();
    let frame = Builder::icmp("198.51.100.1", "192.0.2.1", 11, 1, [0; 4]).payload(&quoted[..20]).build();
    let q = quote::parse(&frame, &ip(&frame)).unwrap().unwrap();
    assert_eq!((q.fragment, q.src_port), (Fragment::Later { id: 3, offset: 16 }, 0));

    let echo = Builder::echo_request("192.0.2.1", "203.0.113.5", 55, 1);
    assert_eq!(quote::parse(&echo.build(), &ip(&echo.build())), Ok(None));
    let frame = Builder::icmp("198.51.100.1", "192.0.2.1", 3, 1, [0; 4]).payload(&echo.packet()).build();
    let q = quote::parse(&frame, &ip(&frame)).unwrap().unwrap();
    assert_eq!((q.src_port, q.dst_port, q.proto), (55, 55, proto::ICMP));
}

#[test]
fn default_macs_of_the_builder_are_the_ones_tests_expect() {
    let frame = Builder::udp(C4, S4).build();
    assert_eq!((ethernet::source(&frame), ethernet::destination(&frame)), (CLIENT_MAC, GATEWAY_MAC));
}
