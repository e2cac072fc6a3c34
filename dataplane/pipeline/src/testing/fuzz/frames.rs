//! Builds frames by choice: valid frames of every kind, frames with a falsified field, truncated frames, frames with
//! flipped bits, and noise.
//!
//! They use the addresses of the world. Some repeat earlier frames, answer them like a backend, or quote them in ICMP
//! errors, so that runs get past the header checks to flows, translation and fragments.

use std::net::{IpAddr, Ipv6Addr};

use tidegate_wire::checksum::checksum;
use tidegate_wire::rewrite::{self, Endpoint};
use tidegate_wire::sctp::chunk;
use tidegate_wire::tcp::{flags, segment};
use tidegate_wire::{Family, Headers, L4Checksum, MacAddr, Parsed, VlanId, arp, ndp, parse, proto};

use super::choices::Choices;
use super::context::{Context, INSIDE_MAC, PORTS, VIPS};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};
use crate::testing::lab::{ROUTER_MAC, backend_mac, ip};

const CLIENTS_V4: [&str; 8] = [
    "198.51.100.7",
    "198.51.100.8",
    "10.0.0.77",
    "198.51.100.9",
    "127.0.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "203.0.113.1",
];
const CLIENTS_V6: [&str; 8] = [
    "2001:db8::7",
    "2001:db8::8",
    "fd00::77",
    "2001:db8::9",
    "::1",
    "::",
    "::ffff:192.0.2.1",
    "2001:db8:1::1",
];
const OTHERS: [&str; 8] = [
    "10.0.0.253",
    "fd00::fd",
    "10.0.0.254",
    "fd00::fe",
    "255.255.255.255",
    "ff02::1:ff00:1",
    "192.0.2.9",
    "2001:db8:9::9",
];

/// The link data of frames: the gateway's address on the link, and the tag.
pub(super) type Link = (MacAddr, Option<u16>);

/// Adds one frame, or the fragments of one packet, to `burst`.
pub(super) fn make(context: &Context, link: Link, choices: &mut Choices<'_>, burst: &mut Vec<Vec<u8>>) {
    let first = burst.len();
    match choices.below(16) {
        0 => burst.push(choices.bytes(120).to_vec()),
        1 => burst.push(announcement(choices)),
        2 => again(&context.received, choices, burst),
        3 | 4 => burst.push(answer(context, link, choices)),
        5 => burst.push(error(context, link, choices)),
        6 => fragments(context, link, choices, burst),
        7 => {
            let other = unmatched(choices);
            burst.push(add_unusual_headers(choices, link, other));
        }
        _ => {
            let request = request(context, choices);
            burst.push(add_unusual_headers(choices, link, request));
        }
    }
    for frame in &mut burst[first..] {
        if choices.one_in(4) {
            damage(choices, frame);
        }
    }
}

/// Another gateway, and the address of ours that it sends to.
pub(super) const PEER: &str = "10.0.0.9";
const OUR_ADDRESS: &str = "10.0.0.254";

const OUTER_LEN: usize = 20;

/// Puts the packet of every 16th frame into an IP-in-IP packet of the other gateway. The bytes of the frame decide, so
/// that stored inputs keep their meaning.
pub(super) fn hand_over(frame: &mut Vec<u8>) {
    let sum: usize = frame.iter().map(|byte| usize::from(*byte)).sum();
    let Some(h) = headers(frame).filter(|_| sum.is_multiple_of(16)) else { return };
    let (l3, end) = (usize::from(h.l3), usize::from(h.ip_end));
    let kind = if h.family == Family::V4 { proto::IPIP } else { proto::IPV6 };
    let around = |kind| Builder::ip(ip(PEER), ip(OUR_ADDRESS), kind).payload(&frame[l3..end]);
    let outer = match sum / 16 % 16 {
        // Congestion for packets without ECN support, which are dropped.
        0 if h.tos & 3 == 0 => around(kind).tos(3),
        // Without a header of GRE.
        1 => around(proto::GRE),
        2 => around(kind).dont_fragment(false).fragment(7, 0, true),
        _ => around(kind),
    };
    let outer = outer.packet();
    let mut handed_over = frame[..l3].to_vec();
    handed_over[l3 - 2..].copy_from_slice(&[8, 0]);
    *frame = [handed_over, outer].concat();
}

/// The frame that [`hand_over`] put into a tunnel.
pub(super) fn handed_over(frame: &[u8]) -> Option<Vec<u8>> {
    let h = headers(frame)?;
    let ends = (h.src.ip(), h.dst.ip()) == (ip(PEER), ip(OUR_ADDRESS));
    if !ends || !matches!(h.proto, proto::IPIP | proto::IPV6) {
        return None;
    }
    let (mut link, packet) = (frame[..usize::from(h.l3)].to_vec(), &frame[usize::from(h.l3) + OUTER_LEN..]);
    let ether_type = if h.proto == proto::IPIP { [8, 0] } else { [0x86, 0xdd] };
    let at = link.len() - 2;
    link[at..].copy_from_slice(&ether_type);
    Some([&link, packet].concat())
}

fn client(choices: &mut Choices<'_>, of: IpAddr) -> (IpAddr, u16) {
    let list = if of.is_ipv4() { &CLIENTS_V4 } else { &CLIENTS_V6 };
    // Usually one of the first four, which are hosts.
    let at = choices.below(32);
    let port = choices.pick(&[40_000, 40_001, 40_002, 40_003, 1, 0]);
    if at == 31 {
        // A backend of several services.
        return (ip(if of.is_ipv4() { "10.0.0.1" } else { "fd00::1" }), port);
    }
    (ip(list[if at < 8 { at } else { at % 4 }]), port)
}

fn tcp_flags(choices: &mut Choices<'_>) -> u8 {
    match choices.below(8) {
        0..3 => flags::SYN,
        3 => flags::FIN | flags::ACK,
        4 => flags::RST,
        5 => choices.byte(),
        _ => flags::ACK,
    }
}

/// Builds a packet to a service port, usually an existing one.
fn request(context: &Context, choices: &mut Choices<'_>) -> Builder {
    let services = context.snapshot.services();
    let (vip, port, protocol) = match services.len() {
        0 => (ip(choices.pick(&VIPS)), choices.pick(&PORTS), 17),
        _ if choices.one_in(16) => {
            (ip(choices.pick(&VIPS)), choices.pick(&PORTS), choices.pick(&[6, 17, 132]))
        }
        count => {
            let (service, _) = services.into_iter().nth(choices.below(count)).expect("below their number");
            (service.vip.ip(), service.port, service.protocol.number())
        }
    };
    let (from, to) = (client(choices, vip), (vip, port));
    match protocol {
        proto::UDP => Builder::udp(from, to),
        proto::SCTP => association(choices, from, to),
        _ => Builder::tcp(from, to).flags(tcp_flags(choices)).seq_ack(choices.u32(), 7),
    }
}

/// Builds an SCTP packet of an association, with a tag of a few, so that some are right.
fn association(choices: &mut Choices<'_>, from: (IpAddr, u16), to: (IpAddr, u16)) -> Builder {
    let tag = choices.pick(&[1, 2, 3]);
    match choices.below(8) {
        0 | 1 => Builder::sctp_init(from, to, tag),
        2 => {
            let fields = [&tag.to_be_bytes()[..], &[0; 12]].concat();
            Builder::sctp(from, to).chunk(chunk::INIT_ACK, 0, &fields)
        }
        3 => Builder::sctp(from, to).tag(tag).chunk(chunk::COOKIE_ECHO, 0, &[0; 8]),
        4 => Builder::sctp(from, to).tag(tag).chunk(chunk::SHUTDOWN, 0, &[0; 4]),
        5 => Builder::sctp(from, to).tag(tag).chunk(chunk::ABORT, choices.pick(&[0, 1]), &[]),
        6 => Builder::sctp(from, to).payload(choices.bytes(24)),
        _ => Builder::sctp(from, to).tag(tag).chunk(chunk::DATA, 3, &[0; 16]),
    }
}

/// Builds packets that match no service: pings, other ICMP, other protocols, other destinations.
fn unmatched(choices: &mut Choices<'_>) -> Builder {
    let to = ip(if choices.one_in(2) { choices.pick(&OTHERS) } else { choices.pick(&VIPS) });
    let (from, port) = client(choices, to);
    match choices.below(5) {
        0 => Builder::echo_request(from, to, port, 1),
        1 => Builder::icmp(from, to, choices.byte(), choices.byte() % 6, [0; 4]),
        2 => Builder::ip(from, to, choices.byte()),
        3 => Builder::udp((from, port), (to, choices.u16())),
        _ => Builder::tcp((from, port), (to, choices.u16())).flags(tcp_flags(choices)),
    }
}

/// Sets the link data of a frame from the router to the gateway.
fn on((mac, vlan): Link, b: Builder) -> Builder {
    let b = b.mac(ROUTER_MAC, mac);
    match vlan {
        Some(tag) => b.vlan(tag),
        None => b,
    }
}

/// Adds headers and trailing bytes that are valid but unusual, or falsified.
fn add_unusual_headers(choices: &mut Choices<'_>, link: Link, b: Builder) -> Vec<u8> {
    let mut b = on(link, b);
    for _ in 0..choices.below(6).saturating_sub(2) {
        b = match choices.below(24) {
            0 => b.vlan(choices.pick(&[100, 7, 0, 0xe064, 0x0fff])),
            1 if choices.one_in(4) => b.ip_options(choices.bytes(8)),
            1 => b.ip_options(&vec![1; choices.below(40)]),
            2 => b.extension(proto::HOP_BY_HOP, &[1; 6]),
            3 => b.extension(proto::ROUTING, choices.bytes(6)),
            4 => b.extension(proto::DESTINATION_OPTIONS, &[0; 14]),
            5 => b.extension(choices.pick(&[proto::AH, proto::FRAGMENT]), &[0; 10]),
            6 => b.ttl(choices.pick(&[1, 0, 2, 255])),
            7 => b.tos(choices.byte()),
            8 => b.dont_fragment(false),
            9 => b.fragment(
                u32::from(choices.byte() % 4),
                u16::from(choices.byte() % 4) * 8,
                choices.one_in(2),
            ),
            10 => b.payload_len(choices.pick(&[1500, 1452, 9000, 540, 1])),
            11 => b.trailer(choices.below(60)),
            12 => b.l4_checksum(choices.pick(&[0, 1, 0xffff])),
            13 => b.ip_len(choices.u16()),
            14 => b.udp_len(choices.u16() % 40),
            15 => b.data_offset(choices.byte() % 16),
            16 => b.version_ihl(choices.byte()),
            17 => b.mac(
                ROUTER_MAC,
                choices.pick(&[INSIDE_MAC, MacAddr::BROADCAST, MacAddr([2, 9, 9, 9, 9, 9])]),
            ),
            18 => (0..9).fold(b, |b, _| b.extension(proto::DESTINATION_OPTIONS, &[])),
            _ => {
                let len = choices.below(64);
                b.payload(choices.bytes(len))
            }
        };
    }
    b.build()
}

fn headers(frame: &[u8]) -> Option<Headers> {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => Some(h),
        _ => None,
    }
}

fn again(list: &[Vec<u8>], choices: &mut Choices<'_>, burst: &mut Vec<Vec<u8>>) {
    let frame = if list.is_empty() { Vec::new() } else { list[choices.below(list.len())].clone() };
    for _ in 0..1 + choices.below(3) {
        burst.push(frame.clone());
    }
}

/// Redirects some packets from backends' networks to a VIP to a host outside. The bytes of the frame decide, so that
/// stored inputs keep their meaning.
pub(super) fn redirect_outside(frame: &mut [u8]) {
    let Ok(Parsed::Ip(mut h)) = parse(frame) else { return };
    let of_backends = ["10.0.0.77", "fd00::77"].contains(&h.src.ip().to_string().as_str());
    let to_vip = VIPS.contains(&h.dst.ip().to_string().as_str());
    if !of_backends || !to_vip || h.is_icmp_error() || !checksum(frame).is_multiple_of(4) {
        return;
    }
    let outside = ip(if h.src.is_v4() { "192.0.2.9" } else { "2001:db8:9::9" });
    let outside = Endpoint { addr: outside.into(), port: h.dst_port };
    // SCTP is not masqueraded, and its fragments cannot be translated.
    if h.proto != proto::SCTP && rewrite::translate(frame, &mut h, None, Some(outside)).is_ok() {
        // The router is the next hop, so it must not be the sender.
        frame[6..12].copy_from_slice(&backend_mac(1).0);
    }
}

/// Builds a possible answer to an earlier frame.
fn answer(context: &Context, link: Link, choices: &mut Choices<'_>) -> Vec<u8> {
    let sent = if context.sent.is_empty() {
        &[]
    } else {
        context.sent[choices.below(context.sent.len())].as_slice()
    };
    let Some(h) = headers(sent) else { return choices.bytes(60).to_vec() };
    let (from, to) = ((h.dst.ip(), h.dst_port), (h.src.ip(), h.src_port));
    let b = match h.l4_checksum {
        L4Checksum::Tcp => {
            let all = [flags::SYN | flags::ACK, flags::ACK, flags::FIN | flags::ACK, flags::RST];
            match (choices.pick(&all), segment(sent, &h)) {
                // Like a host without a listener. The frame decides, so that stored inputs keep their meaning.
                (flags::RST, Some(syn)) if h.ttl % 2 == 1 => {
                    let ack = syn.seq.wrapping_add(syn.len);
                    Builder::tcp(from, to).flags(flags::RST | flags::ACK).seq_ack(0, ack)
                }
                // With the right sequence numbers, so that handshakes with SYN cookies complete.
                (flags, Some(sent)) => {
                    Builder::tcp(from, to).flags(flags).seq_ack(sent.ack, sent.seq.wrapping_add(sent.len))
                }
                (flags, None) => Builder::tcp(from, to).flags(flags),
            }
        }
        L4Checksum::Sctp => association(choices, from, to),
        // Only a masqueraded echo has a SNAT address as its source.
        _ if h.is_echo_request() && ["10.0.0.253", "fd00::fd"].contains(&to.0.to_string().as_str()) => {
            let ([a, b], kind) = (to.1.to_be_bytes(), if to.0.is_ipv4() { 0 } else { 129 });
            Builder::icmp(from.0, to.0, kind, 0, [a, b, 0, 1])
        }
        L4Checksum::Icmp | L4Checksum::Icmpv6 => Builder::echo_request(from.0, to.0, 1, 1),
        _ => Builder::udp(from, to),
    };
    add_unusual_headers(choices, link, b)
}

/// Builds an ICMP error about a sent frame, or about an answer of a VIP to a client.
fn error(context: &Context, link: Link, choices: &mut Choices<'_>) -> Vec<u8> {
    let about_answer = choices.one_in(2);
    let list = if about_answer { &context.received } else { &context.sent };
    let about = if list.is_empty() { &[] } else { list[choices.below(list.len())].as_slice() };
    let Some(h) = headers(about) else { return choices.bytes(60).to_vec() };
    let quoted = if about_answer {
        let (vip, client) = ((h.dst.ip(), h.dst_port), (h.src.ip(), h.src_port));
        match h.l4_checksum {
            L4Checksum::Tcp => Builder::tcp(vip, client).payload_len(choices.below(100)).packet(),
            L4Checksum::Sctp => Builder::sctp(vip, client).payload_len(8).packet(),
            _ => Builder::udp(vip, client).payload_len(choices.below(100)).packet(),
        }
    } else {
        about[usize::from(h.l3)..usize::from(h.ip_end)].to_vec()
    };
    let to = if about_answer { h.dst } else { h.src }.ip();
    let router = ip(if to.is_ipv4() { "192.0.2.1" } else { "2001:db8:ffff::1" });
    let (kind, code) = choices.pick(&if to.is_ipv4() {
        [(3u8, 4u8), (11, 0), (3, 1), (12, 0)]
    } else {
        [(2, 0), (3, 0), (1, 4), (4, 1)]
    });
    let cut = quoted.len().min(choices.pick(&[576, 28, 48, 56, 8, 100]));
    let b = Builder::icmp(router, to, kind, code, [0, 0, 5, 0]).payload(&quoted[..cut]);
    add_unusual_headers(choices, link, b)
}

/// Splits one packet into fragments, in order or not, possibly without the first.
fn fragments(context: &Context, (mac, _): Link, choices: &mut Choices<'_>, burst: &mut Vec<Vec<u8>>) {
    let whole = request(context, choices).dont_fragment(false).payload_len(200 + choices.below(200));
    // The function that splits packets does not support tags.
    let whole = whole.mac(ROUTER_MAC, mac).build();
    let step = choices.pick(&[64, 128, 24, 200]);
    let mut parts = builder::fragments(&whole, u32::from(choices.byte() % 4), step);
    if choices.one_in(3) {
        parts.reverse();
    }
    if choices.one_in(3) {
        parts.swap_remove(0);
    }
    burst.extend(parts);
}

/// Builds ARP and neighbour discovery packets.
fn announcement(choices: &mut Choices<'_>) -> Vec<u8> {
    let vlan = choices.pick(&[None, None, VlanId::new(100)]);
    let mac = choices.pick(&[ROUTER_MAC, MacAddr::ZERO, MacAddr::BROADCAST]);
    let known = choices.pick(&[None, Some(GATEWAY_MAC)]);
    let v4 = choices.pick(&["203.0.113.1", "10.0.0.253", "10.0.0.254", "10.0.0.99", "0.0.0.0"]);
    let v4 = v4.parse().expect("written right");
    let v6: Ipv6Addr = choices
        .pick(&["2001:db8:1::1", "fd00::fd", "fd00::fe", "fd00::99", "::"])
        .parse()
        .expect("written right");
    let from6 = choices.pick(&["fd00::77", "::", "ff02::1"]).parse().expect("written right");
    match choices.below(4) {
        0 => arp::request(
            mac,
            choices.pick(&[[10, 0, 0, 77], [0; 4], [203, 0, 113, 1]]).into(),
            v4,
            vlan,
            known,
        )
        .to_vec(),
        1 => arp::announcement(mac, v4, vlan).to_vec(),
        2 => ndp::announcement(mac, v6, vlan).to_vec(),
        _ => ndp::solicitation(mac, from6, v6, vlan, known).to_vec(),
    }
}

/// Damages bits, bytes and lengths, as a broken link or an attacker might.
fn damage(choices: &mut Choices<'_>, frame: &mut Vec<u8>) {
    if frame.is_empty() {
        return;
    }
    for _ in 0..1 + choices.below(3) {
        // Usually in the headers.
        let at = choices.below(frame.len().min(80));
        match choices.below(6) {
            0 => frame[at] = choices.byte(),
            1 => frame.truncate(at.max(1)),
            2 => frame.extend_from_slice(choices.bytes(20)),
            3 => {
                let cut = frame.len() - choices.below(frame.len());
                frame.truncate(cut);
            }
            _ => frame[at] ^= 1 << choices.below(8),
        }
    }
    if choices.one_in(2) {
        repair(frame);
    }
}

/// Corrects the IPv4 header checksum, so that the damage gets past that check.
fn repair(frame: &mut [u8]) {
    let l3 = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    let header_len = frame.get(l3).map_or(0, |first| usize::from(first & 0xf) * 4);
    if let Some(header) = frame.get_mut(l3..l3 + header_len)
        && header_len >= 20
    {
        header[10..12].fill(0);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}
