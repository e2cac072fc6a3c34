//! Tests of `parse`: the results, the tolerated irregularities, and the refusals with their reasons.

use super::*;
use crate::testing::Builder;
use crate::testing::builder::{CLIENT_MAC, GATEWAY_MAC, fragments};
use crate::usual::Usual;
use proptest::prelude::*;
use std::collections::BTreeSet;

const C4: &str = "192.0.2.1:1024";
const S4: &str = "203.0.113.5:443";
const C6: &str = "[2001:db8::1]:1024";
const S6: &str = "[2001:db8:1::5]:443";

fn refused(frame: &[u8]) -> Malformed {
    parse(frame).expect_err("the frame is malformed")
}

/// Parses an ICMP error around `quoted` like the pipeline: first the packet, then its quote.
fn quote_refused(frame: &[u8]) -> Malformed {
    quote::parse(frame, &ip(frame)).expect_err("the quote is malformed")
}

fn ndp_refused(frame: &[u8]) -> Malformed {
    ndp::parse(frame, &ip(frame)).expect_err("the message is malformed")
}

/// A neighbour solicitation, possibly truncated.
fn solicitation(hop_limit: u8, body: &[u8]) -> Vec<u8> {
    Builder::icmp("2001:db8::1", "2001:db8::2", 135, 0, [0; 4]).ttl(hop_limit).payload(body).build()
}

/// A reason, and the one with which a frame built for it was refused.
type Case = (Malformed, Malformed);

/// Link layer and ARP.
fn link_layer() -> Vec<Case> {
    use Malformed::*;
    let tcp4 = || Builder::tcp(C4, S4);
    let whole = tcp4().build();
    let arp = arp::request(CLIENT_MAC, [192, 0, 2, 1].into(), [192, 0, 2, 2].into(), None, None);
    let mut arp_ax25 = arp.clone();
    arp_ax25[15] = 3;
    vec![
        (FrameTooLong, refused(&vec![0; 65_536])),
        (EthernetTruncated, refused(&whole[..13])),
        (VlanTruncated, refused(&tcp4().vlan(5).build()[..17])),
        (VlanReserved, refused(&tcp4().vlan(0x0fff).build())),
        (ArpTruncated, refused(&arp[..41])),
        (ArpFormat, refused(&arp_ax25)),
    ]
}

/// The IPv4 header.
fn ipv4() -> Vec<Case> {
    use Malformed::*;
    let tcp4 = || Builder::tcp(C4, S4);
    let udp4 = || Builder::udp(C4, S4);
    let whole = tcp4().build();
    vec![
        (Ipv4Truncated, refused(&whole[..33])),
        (Ipv4Version, refused(&tcp4().version_ihl(0x65).build())),
        (Ipv4HeaderLength, refused(&tcp4().version_ihl(0x44).build())),
        (Ipv4HeaderLength, refused(&udp4().version_ihl(0x4f).build())),
        (Ipv4Options, refused(&udp4().ip_options(&[7, 1, 0, 0]).build())),
        (Ipv4Options, refused(&udp4().ip_options(&[1, 1, 1, 7]).build())),
        (Ipv4Options, refused(&udp4().ip_options(&[7, 5, 0, 0]).build())),
        (Ipv4TotalLength, refused(&tcp4().ip_len(41).build())),
        (Ipv4TotalLength, refused(&tcp4().ip_len(19).build())),
        (Ipv4Checksum, refused(&tcp4().ip_checksum(0).build())),
        (Ipv4Checksum, refused(&tcp4().ip_options(&[1; 8]).ip_checksum(0).build())),
    ]
}

/// The IPv6 header and its extensions.
fn ipv6() -> Vec<Case> {
    use Malformed::*;
    let tcp6 = || Builder::tcp(C6, S6);
    let nine = (0..9).fold(tcp6(), |b, _| b.extension(proto::DESTINATION_OPTIONS, &[]));
    let mut long_extension = tcp6().extension(proto::ROUTING, &[0; 6]).build();
    long_extension[55] = 255;
    vec![
        (Ipv6Truncated, refused(&tcp6().build()[..53])),
        (Ipv6Version, refused(&tcp6().version_ihl(0x40).build())),
        (Ipv6PayloadLength, refused(&tcp6().ip_len(21).build())),
        (
            Ipv6MappedAddress,
            refused(
                &Builder::ip("::ffff:192.0.2.1".parse::<core::net::Ipv6Addr>().unwrap(), "2001:db8::1", 59)
                    .build(),
            ),
        ),
        (Ipv6ExtensionTruncated, refused(&long_extension)),
        (
            Ipv6ExtensionTruncated,
            refused(&Builder::ip("2001:db8::1", "2001:db8::2", proto::ROUTING).payload_len(7).build()),
        ),
        (Ipv6ExtensionChain, refused(&nine.build())),
        (
            Ipv6HopByHopPosition,
            refused(
                &tcp6().extension(proto::DESTINATION_OPTIONS, &[]).extension(proto::HOP_BY_HOP, &[]).build(),
            ),
        ),
    ]
}

/// Source routes and fragments, in both families.
fn routes_and_fragments() -> Vec<Case> {
    use Malformed::*;
    let tcp4 = || Builder::tcp(C4, S4);
    let tcp6 = || Builder::tcp(C6, S6);
    let udp4 = || Builder::udp(C4, S4);
    vec![
        (SourceRoute, refused(&udp4().ip_options(&[131, 3, 4, 0]).build())),
        (SourceRoute, refused(&udp4().ip_options(&[1, 7, 3, 4, 137, 3, 4, 0]).build())),
        (SourceRoute, refused(&tcp6().extension(proto::ROUTING, &[0, 1, 0, 0, 0, 0]).build())),
        (
            SourceRoute,
            refused(
                &tcp6()
                    .extension(proto::HOP_BY_HOP, &[1; 6])
                    .extension(proto::ROUTING, &[4, 9, 0, 0, 0, 0])
                    .build(),
            ),
        ),
        (FragmentLength, refused(&tcp4().payload_len(3).fragment(1, 0, true).build())),
        (FragmentLength, refused(&tcp6().payload_len(3).fragment(1, 24, true).build())),
        (FragmentBeyondEnd, refused(&tcp4().payload_len(80).fragment(1, 65_528, false).build())),
        (FragmentBeyondEnd, refused(&tcp6().payload_len(80).fragment(1, 65_528, false).build())),
        (FragmentInHeader, refused(&tcp4().payload_len(80).fragment(1, 8, false).build())),
        (FragmentInHeader, refused(&tcp4().payload_len(80).fragment(1, 16, true).build())),
        (FragmentInHeader, refused(&tcp6().payload_len(80).fragment(1, 8, false).build())),
    ]
}

/// The transport header.
fn transport() -> Vec<Case> {
    use Malformed::*;
    let tcp4 = || Builder::tcp(C4, S4);
    let tcp6 = || Builder::tcp(C6, S6);
    let udp4 = || Builder::udp(C4, S4);
    let short = |proto| Builder::ip("192.0.2.1", "192.0.2.2", proto).payload_len(7).build();
    vec![
        (TcpTruncated, refused(&Builder::ip("192.0.2.1", "192.0.2.2", proto::TCP).payload_len(19).build())),
        (TcpDataOffset, refused(&tcp4().data_offset(4).build())),
        (TcpDataOffset, refused(&tcp6().data_offset(6).build())),
        (UdpTruncated, refused(&short(proto::UDP))),
        (UdpLength, refused(&udp4().udp_len(7).build())),
        (UdpLength, refused(&udp4().udp_len(9).build())),
        (SctpTruncated, refused(&short(proto::SCTP))),
        (IcmpTruncated, refused(&short(proto::ICMP))),
        (
            Icmpv6Truncated,
            refused(&Builder::ip("2001:db8::1", "2001:db8::2", proto::ICMPV6).payload_len(7).build()),
        ),
    ]
}

/// The packet that an ICMP error quotes.
fn quotes() -> Vec<Case> {
    use Malformed::*;
    let tcp4 = || Builder::tcp(C4, S4);
    let tcp6 = || Builder::tcp(C6, S6);
    let error = |quoted: &[u8]| Builder::icmp("192.0.2.9", "192.0.2.1", 3, 3, [0; 4]).payload(quoted).build();
    let error6 =
        |quoted: &[u8]| Builder::icmp("2001:db8::9", "2001:db8::1", 1, 4, [0; 4]).payload(quoted).build();
    vec![
        (QuoteTruncated, quote_refused(&error(&tcp4().packet()[..27]))),
        (QuoteTruncated, quote_refused(&error(&tcp4().ip_options(&[1; 8]).packet()[..26]))),
        (QuoteTruncated, quote_refused(&error6(&tcp6().packet()[..47]))),
        (QuoteTruncated, quote_refused(&error6(&tcp6().extension(proto::ROUTING, &[0; 6]).packet()[..44]))),
        (QuoteHeader, quote_refused(&error(&tcp4().version_ihl(0x44).packet()))),
        (QuoteHeader, quote_refused(&error(&tcp6().packet()))),
        (QuoteHeader, quote_refused(&error6(&tcp6().version_ihl(0x40).packet()))),
    ]
}

/// Neighbour discovery messages.
fn discovery() -> Vec<Case> {
    use Malformed::*;
    vec![
        (NdpTruncated, ndp_refused(&solicitation(255, &[0; 15]))),
        (
            NdpTruncated,
            ndp_refused(&solicitation(255, &[&[0x20; 16][..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat())),
        ),
        (
            NdpTruncated,
            ndp_refused(&solicitation(255, &[&[0x20; 16][..], &[1, 2, 0, 0, 0, 0, 0, 0]].concat())),
        ),
        (NdpInvalid, ndp_refused(&solicitation(254, &[0x20; 16]))),
        (NdpInvalid, ndp_refused(&solicitation(255, &[0xff; 16]))),
    ]
}

#[test]
fn every_malformed_reason_is_produced() {
    let produced =
        [link_layer(), ipv4(), ipv6(), routes_and_fragments(), transport(), quotes(), discovery()].concat();
    for (i, (expected, found)) in produced.iter().enumerate() {
        assert_eq!(found, expected, "case {i}");
    }
    let seen: BTreeSet<Malformed> = produced.iter().map(|(m, _)| *m).collect();
    assert_eq!(seen, Malformed::ALL.iter().copied().collect(), "each reason has a case");
}

#[test]
fn malformed_names_are_unique_and_in_order() {
    for (i, m) in Malformed::ALL.iter().enumerate() {
        assert_eq!(*m as usize, i);
        assert!(Malformed::ALL[..i].iter().all(|other| other.as_str() != m.as_str()));
    }
}

#[test]
fn ethernet_padding_is_not_part_of_the_packet() {
    let h = ip(&Builder::udp(C4, S4).trailer(18).build());
    assert_eq!((h.l3, h.l4, h.ip_end, h.ip_len()), (14, 34, 42, 28));
    let h = ip(&Builder::udp(C6, S6).vlan(100).trailer(30).build());
    assert_eq!((h.l3, h.l4, h.ip_end), (18, 58, 66));
}

#[test]
fn vlan_tags_are_read_once() {
    let tagged = ip(&Builder::tcp(C4, S4).vlan(3 << 13 | 100).build());
    assert_eq!(tagged.vlan, VlanId::new(100));
    let priority = ip(&Builder::tcp(C4, S4).vlan(5 << 13).build());
    assert_eq!((priority.vlan, priority.l3), (None, 18));
    assert_eq!(parse(&Builder::tcp(C4, S4).vlan(1).vlan(2).build()), Ok(Parsed::Other));
    assert_eq!(parse(&Builder::tcp(C4, S4).ether_type(0x88a8).build()), Ok(Parsed::Other));
}

#[test]
fn ipv4_options_are_stepped_over() {
    let h = ip(&Builder::tcp(C4, S4).ip_options(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0]).build());
    assert_eq!((h.l4, h.src_port, h.dst_port), (14 + 32, 1024, 443));
}

#[test]
fn ipv6_extension_headers_are_stepped_over() {
    let frame = Builder::tcp(C6, S6)
        .extension(proto::HOP_BY_HOP, &[5, 2, 0, 0, 1, 0])
        .extension(proto::DESTINATION_OPTIONS, &[1, 12])
        .extension(proto::ROUTING, &[4, 0])
        .extension(proto::AH, &[0; 22])
        .extension(proto::DESTINATION_OPTIONS, &[0; 14])
        .build();
    let h = ip(&frame);
    assert_eq!((h.proto, h.l4, h.dst_port), (proto::TCP, 54 + 8 + 8 + 8 + 24 + 16, 443));
    assert_eq!(h.l4_checksum, L4Checksum::Tcp);
}

#[test]
fn esp_and_no_next_header_end_the_walk() {
    for last in [proto::ESP, proto::NO_NEXT_HEADER, proto::GRE, 253] {
        let b = Builder::ip("2001:db8::1", "2001:db8::2", last).payload_len(3);
        let h = ip(&b.clone().extension(proto::DESTINATION_OPTIONS, &[]).build());
        assert_eq!((h.proto, h.l4, h.src_port, h.l4_checksum), (last, 62, 0, L4Checksum::None));
        assert_eq!(ip(&b.build()).l4, 54);
    }
}

#[test]
fn icmp_of_the_other_family_is_an_unknown_protocol() {
    let h = ip(&Builder::ip("192.0.2.1", "192.0.2.2", proto::ICMPV6).payload(&[1; 16]).build());
    assert_eq!((h.l4_checksum, h.is_icmp_error()), (L4Checksum::None, false));
    let h = ip(&Builder::ip("2001:db8::1", "2001:db8::2", proto::ICMP).payload(&[3; 16]).build());
    assert_eq!((h.l4_checksum, h.is_icmp_error()), (L4Checksum::None, false));
}

#[test]
fn first_fragments_have_ports_and_later_ones_have_none() {
    for (frame, id) in [
        (Builder::udp(C4, S4).payload_len(40).build(), 0xbeef),
        (Builder::udp(C6, S6).payload_len(40).build(), 0xdead_beef),
    ] {
        let cut: Vec<Headers> = fragments(&frame, id, 16).iter().map(|f| ip(f)).collect();
        assert_eq!(cut.len(), 3);
        assert_eq!((cut[0].fragment, cut[0].dst_port), (Fragment::First { id }, 443));
        assert_eq!(cut[0].l4_checksum, L4Checksum::Udp);
        for (i, later) in cut.iter().enumerate().skip(1) {
            assert_eq!(later.fragment, Fragment::Later { id, offset: 16 * i as u16 });
            assert_eq!((later.proto, later.src_port, later.dst_port), (proto::UDP, 0, 0));
            assert_eq!(later.l4_checksum, L4Checksum::None);
        }
    }
}

#[test]
fn first_fragment_must_contain_the_whole_transport_header() {
    let frame = Builder::tcp(C4, S4).payload_len(40).build();
    let cut = fragments(&frame, 7, 16);
    assert_eq!(refused(&cut[0]), Malformed::TcpTruncated);
    assert_eq!(refused(&cut[1]), Malformed::FragmentInHeader);
    assert_eq!(ip(&cut[2]).fragment, Fragment::Later { id: 7, offset: 32 });
}

#[test]
fn atomic_fragment_is_a_whole_packet() {
    let h = ip(&Builder::tcp(C6, S6).fragment(9, 0, false).build());
    assert_eq!((h.fragment, h.l4, h.dst_port), (Fragment::None, 62, 443));
}

#[test]
fn udp_may_be_shorter_than_its_packet_and_without_checksum() {
    let h = ip(&Builder::udp(C4, S4).payload_len(20).udp_len(18).build());
    assert_eq!(h.l4_checksum, L4Checksum::Udp);
    assert_eq!(ip(&Builder::udp(C4, S4).l4_checksum(0).build()).l4_checksum, L4Checksum::UdpZero);
    assert_eq!(ip(&Builder::udp(C6, S6).l4_checksum(0).build()).l4_checksum, L4Checksum::UdpZero);
}

#[test]
fn transport_checksums_are_left_to_the_end_host() {
    assert_eq!(ip(&Builder::tcp(C4, S4).l4_checksum(0x1234).build()).dst_port, 443);
}

#[test]
fn echo_identifier_stands_for_both_ports() {
    let h = ip(&Builder::echo_request("192.0.2.1", "192.0.2.2", 77, 1).build());
    assert_eq!((h.src_port, h.dst_port, h.is_echo_request(), h.is_icmp_error()), (77, 77, true, false));
    let h = ip(&Builder::echo_request("2001:db8::1", "2001:db8::2", 78, 1).build());
    assert_eq!((h.src_port, h.dst_port, h.is_echo_request(), h.is_icmp_error()), (78, 78, true, false));
}

#[test]
fn arp_is_read_behind_a_tag_too() {
    let vlan = VlanId::new(9);
    let frame = arp::request(CLIENT_MAC, [192, 0, 2, 1].into(), [192, 0, 2, 2].into(), vlan, None);
    let Ok(Parsed::Arp(a)) = parse(&frame) else { panic!("not ARP") };
    assert_eq!((a.operation, a.vlan), (arp::ArpOperation::Request, vlan));
    assert_eq!((a.sender_mac, a.target_ip), (CLIENT_MAC, [192, 0, 2, 2].into()));
}

/// Any frame that the builder can create and `parse` accepts.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let choice = (any::<bool>(), 0..5, 0usize..60, any::<[u16; 2]>());
    let rest = (
        any::<u8>(),
        1u8..,
        prop::option::of(0u16..4095),
        0usize..20,
        prop::collection::vec(0..3u8, 0..4),
        0usize..10,
    );
    (choice, rest).prop_map(|((v4, kind, len, [sport, dport]), (tos, ttl, vlan, trailer, ext, options))| {
        let (c, s): (core::net::IpAddr, core::net::IpAddr) = if v4 {
            ([192, 0, 2, 1].into(), [203, 0, 113, 5].into())
        } else {
            ("2001:db8::1".parse().unwrap(), "2001:db8:1::5".parse().unwrap())
        };
        let mut b = match kind {
            0 => Builder::tcp((c, sport), (s, dport)).tcp_options(&vec![1; len % 41]),
            1 => Builder::udp((c, sport), (s, dport)),
            2 => Builder::sctp((c, sport), (s, dport)),
            3 => Builder::echo_request(c, s, sport, dport),
            _ => Builder::ip(c, s, 253),
        };
        b = b.payload_len(len).tos(tos).ttl(ttl).trailer(trailer);
        if v4 {
            b = b.ip_options(&vec![1; options * 4]);
        } else {
            for x in ext {
                b = b.extension(
                    [proto::ROUTING, proto::DESTINATION_OPTIONS, proto::AH][usize::from(x)],
                    &[0; 6],
                );
            }
        }
        vlan.map_or(b.clone(), |tci| b.vlan(tci)).build()
    })
}

fn check_invariants(frame: &[u8]) {
    if let Some(h) = usual::parse(frame) {
        assert_eq!(parse(frame), Ok(Parsed::Ip(h)), "the short cut and the full parser agree");
    }
    if let Ok(Parsed::Ip(h)) = parse(frame) {
        assert!(u16::from(h.l3) < h.l4 && h.l4 <= h.ip_end && usize::from(h.ip_end) <= frame.len());
        let header = match h.l4_checksum {
            L4Checksum::None => 0,
            L4Checksum::Tcp => 20,
            L4Checksum::Sctp => 12,
            _ => 8,
        };
        assert!(h.ip_end - h.l4 >= header);
        // Functions that take a frame with its headers must accept everything that `parse` accepts.
        let mut copy = frame.to_vec();
        let quoted = quote::parse(frame, &h);
        if let Ok(Some(mut q)) = quoted {
            let to = if q.family == Family::V4 { Addr::v4([1; 4]) } else { Addr::v6([1; 16]) };
            let to = Some(rewrite::Endpoint { addr: to, port: 1 });
            quote::translate(&mut copy, &h, &mut q, to, to);
        }
        let _ = ndp::parse(frame, &h);
        let _ = tcp::reset(frame, &h, GATEWAY_MAC);
        let _ = icmp::reported_mtu(frame, &h);
        let _ = icmp::echo_reply(&mut copy, &h, GATEWAY_MAC);
        let from = if h.family == Family::V4 { Addr::v4([1; 4]) } else { Addr::v6([1; 16]) };
        if icmp::may_answer_with_icmp(frame, &h, icmp::Problem::TimeExceeded) {
            let reply = icmp::error(frame, &h, icmp::Problem::TimeExceeded, GATEWAY_MAC, from);
            assert!(reply.quote.end <= frame.len());
        }
        let mut h = h;
        let to = Some(rewrite::Endpoint { addr: from, port: 9 });
        let _ = rewrite::translate(&mut copy, &mut h, to, to);
    }
    let _ = crate::testing::summary(frame);
    let _ = crate::testing::fields::fields(frame);
}

proptest! {
    #[test]
    fn parse_gives_back_what_was_built(
        v4 in any::<bool>(), src in any::<[u8; 16]>(), dst in any::<[u8; 16]>(), ports in any::<[u16; 2]>(),
        udp in any::<bool>(), tos in any::<u8>(), ttl in any::<u8>(), flags in any::<u8>(),
        vlan in prop::option::of(1u16..4095), len in 0usize..100, df in any::<bool>(),
    ) {
        let address = |b: [u8; 16]| -> core::net::IpAddr {
            if v4 { <[u8; 4]>::try_from(&b[..4]).unwrap().into() } else { b.into() }
        };
        let (src, dst) = (address(src), address(dst));
        let b = if udp {
            Builder::udp((src, ports[0]), (dst, ports[1]))
        } else {
            Builder::tcp((src, ports[0]), (dst, ports[1])).flags(flags)
        };
        let b = b.tos(tos).ttl(ttl).payload_len(len).dont_fragment(df);
        let frame = vlan.map_or(b.clone(), |v| b.vlan(v)).build();
        let h = ip(&frame);
        let usual = v4 && vlan.is_none() && frame.len() >= 48;
        prop_assert_eq!(usual::parse(&frame), usual.then_some(h));
        prop_assert_eq!((h.src.ip(), h.dst.ip(), h.src_port, h.dst_port), (src, dst, ports[0], ports[1]));
        prop_assert_eq!((h.tos, h.ttl, h.vlan.map(VlanId::value)), (tos, ttl, vlan));
        prop_assert_eq!((h.tcp_flags, h.dont_fragment), (if udp { 0 } else { flags }, df || !v4));
        prop_assert_eq!(usize::from(h.ip_end), frame.len());
        prop_assert_eq!(h.ip_end - h.l4, if udp { 8 } else { 20 } + len as u16);
    }

    #[test]
    fn the_short_cut_agrees_with_the_full_parser(
        udp in any::<bool>(), len in 0usize..40, trailer in 0usize..20, cut in 0usize..40,
        at in 12usize..50, byte in any::<u8>(), repair in any::<bool>(),
    ) {
        let b = if udp { Builder::udp(C4, S4) } else { Builder::tcp(C4, S4) };
        let mut frame = b.payload_len(len).trailer(trailer).build();
        if at < frame.len() {
            frame[at] = byte;
        }
        // Otherwise nearly every change of the IP header would fail at its checksum.
        if repair {
            frame[24..26].fill(0);
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame.truncate(frame.len().saturating_sub(cut.saturating_sub(20)));
        let fast = usual::parse(&frame).filter(|h| h.ttl > 1).map(|h| Usual {
            src: usual::words(&h.src),
            dst: usual::words(&h.dst),
            ports: u32::from(h.src_port.swap_bytes()) | u32::from(h.dst_port.swap_bytes()) << 16,
            ip_len: h.ip_len(),
            proto: h.proto,
            flags: h.tcp_flags,
        });
        let station = frame.first_chunk().map_or(0, |mac| usual::station_bits(&MacAddr(*mac)));
        prop_assert_eq!(usual::check(&frame, station), fast);
        prop_assert_eq!(usual::check(&frame, station ^ 1 << 47), None);
        prop_assert_eq!(fast.map(|fast| fast.headers(&frame)), usual::parse(&frame).filter(|h| h.ttl > 1).map(|h| Headers {
            dont_fragment: true,
            ..h
        }));
        prop_assert_eq!(usual::check_v6(&frame, station), None);
        let whole = parse(&frame);
        if let Some(h) = usual::parse(&frame) {
            prop_assert_eq!(whole, Ok(Parsed::Ip(h)));
        } else if let Ok(Parsed::Ip(h)) = whole {
            let plain = matches!(h.l4_checksum, L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero);
            let usual = plain && h.vlan.is_none() && h.family == Family::V4 && h.l4 == 34 && !h.is_fragment();
            prop_assert!(!usual || frame.len() < 48, "a usual packet takes the slow path: {:?}", h);
        }
    }

    #[test]
    fn the_short_cut_of_ipv6_agrees_with_the_parser(
        udp in any::<bool>(), len in 0usize..40, trailer in 0usize..20, cut in 0usize..40,
        at in 12usize..70, byte in any::<u8>(), mapped in 0u8..8,
    ) {
        let b = if udp { Builder::udp(C6, S6) } else { Builder::tcp(C6, S6) };
        let mut frame = b.payload_len(len).trailer(trailer).build();
        for (n, at) in [(0, 22), (1, 38)] {
            if mapped == n {
                frame[at..at + 12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            }
        }
        if at < frame.len() {
            frame[at] = byte;
        }
        frame.truncate(frame.len().saturating_sub(cut.saturating_sub(20)));
        let station = frame.first_chunk().map_or(0, |mac| usual::station_bits(&MacAddr(*mac)));
        let fast = usual::check_v6(&frame, station);
        prop_assert_eq!(usual::check_v6(&frame, station ^ 1 << 47), None);
        prop_assert_eq!(usual::check(&frame, station), None);
        let usual = |h: &Headers| {
            matches!(h.proto, proto::TCP | proto::UDP)
                && h.vlan.is_none() && h.family == Family::V6 && h.l4 == 54 && h.ttl > 1
        };
        let whole = match parse(&frame) {
            Ok(Parsed::Ip(h)) if usual(&h) => Some(h),
            _ => None,
        };
        prop_assert_eq!(fast, whole.map(|h| Usual {
            src: usual::words(&h.src),
            dst: usual::words(&h.dst),
            ports: u32::from(h.src_port.swap_bytes()) | u32::from(h.dst_port.swap_bytes()) << 16,
            ip_len: h.ip_len(),
            proto: h.proto,
            flags: h.tcp_flags,
        }));
        prop_assert_eq!(fast.map(|fast| fast.headers(&frame)), whole);
        if let Some(h) = whole {
            prop_assert_eq!(usual::addr(usual::words::<4>(&h.src)), h.src);
        }
    }

    #[test]
    fn no_bytes_make_anything_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..5usize, proto in any::<u8>(),
    ) {
        let types = [ether_type::IPV4, ether_type::IPV6, ether_type::ARP, ether_type::VLAN];
        if let (Some(ty), true) = (types.get(kind), bytes.len() >= 60) {
            bytes[12..14].copy_from_slice(&ty.to_be_bytes());
            let len = (bytes.len() - 14) as u16;
            match *ty {
                ether_type::IPV4 => {
                    bytes[14] = 0x45;
                    bytes[16..18].copy_from_slice(&len.to_be_bytes());
                    bytes[20..24].copy_from_slice(&[0, 0, 64, [1, 6, 17, 132][usize::from(proto % 4)]]);
                    bytes[24..26].fill(0);
                    let sum = checksum::checksum(&bytes[14..34]);
                    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
                }
                ether_type::IPV6 => {
                    bytes[14] = 0x60;
                    bytes[18..20].copy_from_slice(&(len - 40).to_be_bytes());
                    bytes[20] = [58, 6, 0, 43, 44, 51, 60][usize::from(proto % 7)];
                }
                _ => {}
            }
        }
        check_invariants(&bytes);
    }

    #[test]
    fn damaged_frames_never_panic_and_truncated_ones_are_refused(
        frame in any_frame(), flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let h = ip(&frame);
        check_invariants(&frame);
        let cut = cut.index(frame.len() + 1);
        prop_assert_eq!(parse(&frame[..cut]).is_ok(), cut >= usize::from(h.ip_end));
        let mut damaged = frame;
        for (at, bit) in flips {
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
        }
        check_invariants(&damaged);
    }
}
