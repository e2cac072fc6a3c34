//! Tests of in-place changes. The builder creates the expected frame from scratch, with equal bytes and checksums.

use super::*;
use crate::testing::builder::fragments;
use crate::testing::{Builder, assert_only_changed};
use core::net::{IpAddr, SocketAddr};
use proptest::prelude::*;
use rewrite::{Endpoint, SctpFragment, translate};

fn endpoint(s: SocketAddr) -> Endpoint {
    Endpoint { addr: s.ip().into(), port: s.port() }
}

fn sockets(v4: bool) -> impl Strategy<Value = SocketAddr> {
    (any::<[u8; 16]>(), any::<u16>()).prop_map(move |(b, port)| {
        let ip: IpAddr = if v4 { <[u8; 4]>::try_from(&b[..4]).unwrap().into() } else { b.into() };
        SocketAddr::new(ip, port)
    })
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp,
    Udp,
    UdpZero,
    Sctp,
}

fn build(kind: Kind, src: SocketAddr, dst: SocketAddr, len: usize) -> Vec<u8> {
    match kind {
        Kind::Tcp => Builder::tcp(src, dst),
        Kind::Udp => Builder::udp(src, dst),
        Kind::UdpZero => Builder::udp(src, dst).l4_checksum(0),
        Kind::Sctp => Builder::sctp(src, dst),
    }
    .payload_len(len)
    .trailer(3)
    .build()
}

fn four(v4: bool) -> impl Strategy<Value = [SocketAddr; 4]> {
    [sockets(v4), sockets(v4), sockets(v4), sockets(v4)]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Tcp), Just(Kind::Udp), Just(Kind::UdpZero), Just(Kind::Sctp)]
}

proptest! {
    #[test]
    fn translated_packet_equals_one_built_so(
        [a, b, c, d] in any::<bool>().prop_flat_map(four), kind in kinds(), len in 0usize..70,
        change in any::<[bool; 2]>(),
    ) {
        let mut frame = build(kind, a, b, len);
        let mut h = ip(&frame);
        let (src, dst) = (change[0].then_some(c), change[1].then_some(d));
        translate(&mut frame, &mut h, src.map(endpoint), dst.map(endpoint)).unwrap();
        let wanted = build(kind, src.unwrap_or(a), dst.unwrap_or(b), len);
        prop_assert!(frame == wanted, "{}", crate::testing::diff(&wanted, &frame));
        prop_assert_eq!(h, ip(&frame));
    }

    #[test]
    fn translated_fragments_reassemble_to_the_translated_packet(
        [a, b, c, d] in any::<bool>().prop_flat_map(four), udp in any::<bool>(), len in 40usize..120,
    ) {
        let whole = |src, dst| {
            let b = if udp { Builder::udp(src, dst) } else { Builder::tcp(src, dst) };
            b.payload_len(len).build()
        };
        let wanted = fragments(&whole(c, d), 77, 24);
        for (mut frame, wanted) in fragments(&whole(a, b), 77, 24).into_iter().zip(wanted) {
            let mut h = ip(&frame);
            translate(&mut frame, &mut h, Some(endpoint(c)), Some(endpoint(d))).unwrap();
            prop_assert_eq!(frame, wanted);
        }
    }

    #[test]
    fn translated_quote_equals_one_built_so(
        (v4, [a, b, c, d]) in any::<bool>().prop_flat_map(|v4| (Just(v4), four(v4))),
        kind in kinds(), cut in 8usize..60, change in any::<[bool; 2]>(),
    ) {
        // If only the first byte of a TCP checksum is quoted, it cannot be updated.
        prop_assume!(cut != 17);
        let error = |src: SocketAddr, dst: SocketAddr| {
            let mut quoted = build(kind, src, dst, 20).split_off(14);
            quoted.truncate(cut + if v4 { 20 } else { 40 });
            if matches!(kind, Kind::Sctp) {
                // The quoted CRC is not updated, so it is not compared.
                let l4 = if v4 { 20 } else { 40 };
                let end = quoted.len().min(l4 + 12);
                quoted[l4 + 8..end].fill(0);
            }
            let (from, to): (IpAddr, IpAddr) = if v4 {
                ([198, 51, 100, 1].into(), [192, 0, 2, 1].into())
            } else {
                ("2001:db8::77".parse().unwrap(), "2001:db8::78".parse().unwrap())
            };
            let (ty, code) = if v4 { (3, 4) } else { (2, 0) };
            let e = match (from, to) {
                (IpAddr::V4(f), IpAddr::V4(t)) => Builder::icmp(f, t, ty, code, [0, 0, 5, 0]),
                (IpAddr::V6(f), IpAddr::V6(t)) => Builder::icmp(f, t, ty, code, [0, 0, 5, 0]),
                _ => unreachable!(),
            };
            e.payload(&quoted).build()
        };
        let mut frame = error(a, b);
        let h = ip(&frame);
        let mut q = quote::parse(&frame, &h).unwrap().unwrap();
        prop_assert_eq!((q.src.ip(), q.src_port, q.dst.ip(), q.dst_port), (a.ip(), a.port(), b.ip(), b.port()));
        let (src, dst) = (change[0].then_some(c), change[1].then_some(d));
        quote::translate(&mut frame, &h, &mut q, src.map(endpoint), dst.map(endpoint));
        let wanted = error(src.unwrap_or(a), dst.unwrap_or(b));
        prop_assert!(frame == wanted, "{}", crate::testing::diff(&wanted, &frame));
        prop_assert_eq!(Some(q), quote::parse(&frame, &ip(&frame)).unwrap());
    }

    #[test]
    fn a_hop_taken_equals_a_packet_built_so(
        [a, b, ..] in any::<bool>().prop_flat_map(four), ttl in 2u8.., tos in any::<u8>(), label in 0u32..1 << 20,
    ) {
        let built = |ttl| Builder::tcp(a, b).ttl(ttl).tos(tos).flow_label(label).build();
        let mut frame = built(ttl);
        let h = ip(&frame);
        rewrite::take_hop(&mut frame[usize::from(h.l3)..], &h);
        prop_assert_eq!(&frame, &built(ttl - 1));
    }

    #[test]
    fn written_headers_equal_built_ones(
        [a, b, ..] in any::<bool>().prop_flat_map(four), tos in any::<u8>(), id in any::<u16>(), ttl in any::<u8>(),
        df in any::<bool>(), label in 0u32..1 << 20, len in 0u16..50,
    ) {
        let (wanted, mut out) = match (a.ip(), b.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Ipv4Header {
                    total_len: 20 + len, tos, id, dont_fragment: df, ttl, proto: 4, src, dst,
                };
                (Builder::ip(src, dst, 4), header.bytes().to_vec())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Ipv6Header {
                    traffic_class: tos, flow_label: label, payload_len: len, next_header: 4, hop_limit: ttl, src, dst,
                };
                (Builder::ip(src, dst, 4), header.bytes().to_vec())
            }
            _ => unreachable!(),
        };
        let wanted = wanted.tos(tos).id(id).ttl(ttl).dont_fragment(df).flow_label(label)
            .payload_len(len.into()).packet();
        out.extend(&wanted[wanted.len() - usize::from(len)..]);
        prop_assert_eq!(out, wanted);
    }
}

#[test]
fn translation_changes_nothing_but_what_it_names() {
    let to = Some(Endpoint { addr: Addr::v4([10, 0, 0, 7]), port: 8080 });
    let before = Builder::tcp("192.0.2.1:1024", "203.0.113.5:443").payload_len(9).vlan(7).trailer(2).build();
    let mut after = before.clone();
    translate(&mut after, &mut ip(&before), None, to).unwrap();
    assert_only_changed(&before, &after, &["ipv4.dst", "ipv4.checksum", "tcp.dst_port", "tcp.checksum"]);

    let to = Some(Endpoint { addr: Addr::v6([0x20; 16]), port: 8080 });
    let before = Builder::udp("[2001:db8::1]:1024", "[2001:db8::2]:53").extension(60, &[]).build();
    let mut after = before.clone();
    translate(&mut after, &mut ip(&before), to, None).unwrap();
    assert_only_changed(&before, &after, &["ipv6.src", "udp.src_port", "udp.checksum"]);
}

#[test]
fn udp_checksum_that_comes_to_zero_is_sent_as_ones() {
    let dst = |port| SocketAddr::from(([203, 0, 113, 5], port));
    let built = |port| Builder::udp("192.0.2.1:1024", dst(port)).payload(b"x").build();
    let port =
        (1..=u16::MAX).find(|p| built(*p)[40..42] == [0xff, 0xff]).expect("one port in 65,535 gives it");
    let mut frame = built(port ^ 0x5555);
    let mut h = ip(&frame);
    translate(&mut frame, &mut h, None, Some(endpoint(dst(port)))).unwrap();
    assert_eq!(frame, built(port));
}

#[test]
fn damaged_checksums_stay_damaged() {
    for b in [
        Builder::tcp("192.0.2.1:1024", "203.0.113.5:443"),
        Builder::udp("192.0.2.1:1024", "203.0.113.5:443"),
        Builder::sctp("192.0.2.1:1024", "203.0.113.5:443"),
    ] {
        let mut frame = b.clone().payload(b"good").build();
        let last = frame.len() - 1;
        frame[last] ^= 0x10;
        let mut h = ip(&frame);
        let to: SocketAddr = "10.0.0.7:8080".parse().unwrap();
        translate(&mut frame, &mut h, None, Some(endpoint(to))).unwrap();
        frame[last] ^= 0x10;
        let mut good = b.payload(b"good").build();
        let mut h = ip(&good);
        translate(&mut good, &mut h, None, Some(endpoint(to))).unwrap();
        assert_eq!(frame, good, "the error in the data is all that differs, so the checksum detects it");
    }
}

#[test]
fn sctp_fragment_keeps_its_ports_or_is_refused_untouched() {
    let whole = Builder::sctp("192.0.2.1:1024", "203.0.113.5:443").payload_len(60).build();
    let first = fragments(&whole, 5, 32).swap_remove(0);
    let mut frame = first.clone();
    let mut h = ip(&frame);
    let to = |port| Some(Endpoint { addr: Addr::v4([10, 0, 0, 7]), port });
    assert_eq!(translate(&mut frame, &mut h, None, to(8080)), Err(SctpFragment));
    assert_eq!((&frame, h), (&first, ip(&first)));
    assert_eq!(translate(&mut frame, &mut h, None, to(443)), Ok(()));
    assert_only_changed(&first, &frame, &["ipv4.dst", "ipv4.checksum"]);
}

#[test]
fn echo_identifier_is_translated_as_the_port_of_its_sender() {
    for (client, server, new) in
        [("192.0.2.1", "192.0.2.2", "10.0.0.9"), ("2001:db8::1", "2001:db8::2", "2001:db8::9")]
    {
        let mut frame = Builder::echo_request(client, server, 7, 1).payload(b"ping").build();
        let to = Endpoint { addr: new.parse::<IpAddr>().unwrap().into(), port: 99 };
        let mut h = ip(&frame);
        translate(&mut frame, &mut h, Some(to), None).unwrap();
        assert_eq!(frame, Builder::echo_request(new, server, 99, 1).payload(b"ping").build());
        assert_eq!(h, ip(&frame));
    }
}
