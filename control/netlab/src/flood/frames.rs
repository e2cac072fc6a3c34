//! The frames of each flood: templates whose addresses, ports and numbers vary from frame to frame.
//!
//! A template is a complete frame with correct checksums. Filling it writes new values to some of its 16-bit words and
//! updates the checksums that cover them (RFC 1624), so a sender spends no time on building frames.
//!
//! Invariant: frame `n` of a template is a function of `n` alone, and every frame has correct checksums.

use super::super::addresses::{CLIENT_MAC, GATEWAY_MAC};
use crate::checksum::{checksum, folded};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The Ethernet address of the flooding host.
const ATTACKER_MAC: [u8; 6] = [2, 0, 0, 0, 0x0f, 0xff];

/// The target of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The address that is flooded.
    pub vip: IpAddr,
    /// A TCP port that is served there.
    pub tcp: u16,
    /// A UDP port that is served there.
    pub udp: u16,
}

/// A kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SYNs, each from a new source.
    Syn,
    /// UDP datagrams, each from a new source.
    UdpOne,
    /// Two UDP datagrams from each source.
    UdpTwo,
    /// SYN+ACKs that answer nothing.
    SynAck,
    /// RSTs that belong to no connection.
    Rst,
    /// ICMP echo requests.
    Echo,
    /// First fragments without the rest, and later fragments without the first.
    Fragments,
    /// ARP requests and replies, neighbour solicitations and advertisements, all from hosts that do not exist.
    Neighbors,
    /// IPv6 only: packets from random sources on the link, and unsolicited advertisements.
    Ipv6Neighbors,
    /// Datagrams whose TTL or hop limit is 1.
    TtlOne,
    /// SYNs and echo requests from sources behind a next hop that never answers, and from hosts on the link that do not
    /// exist: an answer would need a link address that cannot be resolved.
    NoNextHop,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Syn,
        Self::UdpOne,
        Self::UdpTwo,
        Self::SynAck,
        Self::Rst,
        Self::Echo,
        Self::Fragments,
        Self::Neighbors,
        Self::Ipv6Neighbors,
        Self::TtlOne,
        Self::NoNextHop,
    ];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Syn => "syn",
            Self::UdpOne => "udp, 1 packet a flow",
            Self::UdpTwo => "udp, 2 packets a flow",
            Self::SynAck => "syn+ack",
            Self::Rst => "rst",
            Self::Echo => "icmp echo",
            Self::Fragments => "fragments",
            Self::Neighbors => "arp and nd",
            Self::Ipv6Neighbors => "ipv6 sources and forged nd",
            Self::TtlOne => "ttl 1",
            Self::NoNextHop => "unresolvable next hops",
        }
    }

    /// The number of consecutive frames of a template with the same fields.
    fn repeats(self) -> u64 {
        if self == Self::UdpTwo { 2 } else { 1 }
    }
}

/// The networks of the sources of floods. Servers do not answer them; the gateway has routes to all but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    /// [`FAR`]: behind a router that exists.
    Far,
    /// [`UNREACHABLE`]: behind a router that does not.
    Unreachable,
    /// On the clients' link, at addresses that no host has.
    OnLink,
}

/// Sources behind a router that exists, by family.
pub const FAR: [&str; 2] = ["10.0.0.0/9", "2001:db8:bad::/48"];
/// Sources behind a router that does not exist, by family.
pub const UNREACHABLE: [&str; 2] = ["10.128.0.0/9", "2001:db8:dead::/48"];
/// Sources on the clients' link that no host has, by family.
pub const NO_HOST: [&str; 2] = ["198.51.100.128/26", "2001:db8:c:0:8000::/65"];
/// The router of [`UNREACHABLE`], by family: an address on the clients' link that no host has.
pub const NO_ROUTER: [&str; 2] = ["198.51.100.251", "2001:db8:c::fb"];

/// A 16-bit word that varies: its position, its random bits, and the checksums that cover it.
#[derive(Clone, Debug)]
struct Word {
    at: usize,
    random: u16,
    checksums: Vec<usize>,
}

/// A frame with the words that vary.
#[derive(Clone, Debug)]
pub struct Template {
    frame: Vec<u8>,
    words: Vec<Word>,
    repeats: u64,
}

impl Template {
    /// Fills in the fields of frame number `n`.
    pub fn fill(&mut self, n: u64) -> &[u8] {
        let mut random = 0;
        for (index, word) in self.words.iter().enumerate() {
            if index % 4 == 0 {
                random = mixed((n / self.repeats) ^ ((index as u64) << 56));
            }
            let old = u16::from_be_bytes([self.frame[word.at], self.frame[word.at + 1]]);
            let new = (old & !word.random) | (random as u16 & word.random);
            random >>= 16;
            self.frame[word.at..word.at + 2].copy_from_slice(&new.to_be_bytes());
            for &at in &word.checksums {
                let sum = u16::from_be_bytes([self.frame[at], self.frame[at + 1]]);
                // RFC 1624, equation 3.
                let sum = !folded(u32::from(!sum) + u32::from(!old) + u32::from(new));
                self.frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        &self.frame
    }
}

/// The templates of a flood of `kind` at all of `targets`, to be sent alternately.
#[must_use]
pub fn templates(kind: Kind, targets: &[Target]) -> Vec<Template> {
    let mut all: Vec<Template> = targets.iter().flat_map(|target| of_target(kind, *target)).collect();
    all.iter_mut().for_each(|template| template.repeats = kind.repeats());
    all
}

fn of_target(kind: Kind, target: Target) -> Vec<Template> {
    let far = |what| packet(target, Sources::Far, what);
    match kind {
        Kind::Syn => vec![far(Payload::Tcp(SYN))],
        Kind::SynAck => vec![far(Payload::Tcp(SYN | ACK))],
        Kind::Rst => vec![far(Payload::Tcp(RST))],
        Kind::UdpOne | Kind::UdpTwo => vec![far(Payload::Udp)],
        Kind::Echo => vec![far(Payload::Echo)],
        Kind::Fragments => vec![far(Payload::FirstFragment), far(Payload::LaterFragment)],
        Kind::TtlOne => vec![far(Payload::Expiring)],
        Kind::NoNextHop => [Sources::Unreachable, Sources::OnLink]
            .into_iter()
            .flat_map(|sources| [Payload::Tcp(SYN), Payload::Echo].map(|what| packet(target, sources, what)))
            .collect(),
        Kind::Neighbors => match target.vip {
            IpAddr::V4(vip) => vec![arp(vip, false), arp(vip, true)],
            IpAddr::V6(vip) => vec![solicitation(vip), advertisement()],
        },
        Kind::Ipv6Neighbors => match target.vip {
            IpAddr::V4(_) => Vec::new(),
            IpAddr::V6(vip) => {
                let echo = packet(target, Sources::OnLink, Payload::Echo);
                vec![solicitation(vip), advertisement(), echo]
            }
        },
    }
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

#[derive(Clone, Copy)]
enum Payload {
    Tcp(u8),
    Udp,
    Expiring,
    Echo,
    FirstFragment,
    LaterFragment,
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

fn packet(target: Target, sources: Sources, what: Payload) -> Template {
    match target.vip {
        IpAddr::V4(vip) => packet_v4(vip, target, sources, what),
        IpAddr::V6(vip) => packet_v6(vip, target, sources, what),
    }
}

fn packet_v4(vip: Ipv4Addr, target: Target, sources: Sources, what: Payload) -> Template {
    // Base and random bits of the source. On the link it is 198.51.100.128 to .191, which no host has.
    let (source, random) = match sources {
        Sources::Far => (Ipv4Addr::new(10, 0, 0, 0), [0x007f, 0xffff]),
        Sources::Unreachable => (Ipv4Addr::new(10, 128, 0, 0), [0x007f, 0xffff]),
        Sources::OnLink => (Ipv4Addr::new(198, 51, 100, 128), [0, 0x003f]),
    };
    let (protocol, mut segment, checksum) = transport(what, target, 1);
    let fragment: u16 = match what {
        Payload::FirstFragment => 0x2000,
        // At offset 64, and the last fragment of its packet.
        Payload::LaterFragment => 8,
        _ => 0,
    };
    let ttl = if matches!(what, Payload::Expiring) { 1 } else { 64 };
    let total = u16::try_from(20 + segment.len()).expect("a short packet");
    let mut header = [&[0x45, 0][..], &total.to_be_bytes(), &[0, 1], &fragment.to_be_bytes()].concat();
    header.extend([ttl, protocol, 0, 0]);
    header.extend(source.octets());
    header.extend(vip.octets());
    put_sum(&mut header, 10, &[]);
    let covers_addresses = protocol != 1;
    if let Some(at) = checksum {
        let addresses = [source.octets(), vip.octets()].concat();
        let pseudo =
            if covers_addresses { pseudo_header(&addresses, &segment, protocol) } else { Vec::new() };
        put_sum(&mut segment, at, &pseudo);
    }
    let ip = ETHERNET;
    let inner = ip + 20;
    let sum = checksum.map(|at| inner + at);
    let of_address: Vec<usize> = [ip + 10].into_iter().chain(sum.filter(|_| covers_addresses)).collect();
    let mut words = vec![
        Word { at: ip + 12, random: random[0], checksums: of_address.clone() },
        Word { at: ip + 14, random: random[1], checksums: of_address },
    ];
    words.extend(words_of(what, inner, sum));
    if fragment != 0 {
        words.push(Word { at: ip + 4, random: 0xffff, checksums: vec![ip + 10] });
    }
    template(GATEWAY, 0x0800, &[header, segment].concat(), words)
}

fn packet_v6(vip: Ipv6Addr, target: Target, sources: Sources, what: Payload) -> Template {
    let source = match sources {
        Sources::Far => Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0),
        Sources::Unreachable => Ipv6Addr::new(0x2001, 0xdb8, 0xdead, 0, 0, 0, 0, 0),
        Sources::OnLink => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0x8000, 0, 0, 0),
    };
    let (protocol, mut segment, checksum) = transport(what, target, 58);
    let addresses = [source.octets(), vip.octets()].concat();
    if let Some(at) = checksum {
        let pseudo = pseudo_header(&addresses, &segment, protocol);
        put_sum(&mut segment, at, &pseudo);
    }
    let ip = ETHERNET;
    let mut inner = ip + 40;
    let mut next = protocol;
    let mut words = Vec::new();
    if let Payload::FirstFragment | Payload::LaterFragment = what {
        let offset: u16 = if matches!(what, Payload::FirstFragment) { 1 } else { 64 };
        let header = [&[protocol, 0][..], &offset.to_be_bytes(), &[0; 4]].concat();
        segment.splice(0..0, header);
        words.push(Word { at: inner + 4, random: 0xffff, checksums: Vec::new() });
        words.push(Word { at: inner + 6, random: 0xffff, checksums: Vec::new() });
        (inner, next) = (inner + 8, 44);
    }
    let sum = checksum.map(|at| inner + at);
    let covering: Vec<usize> = sum.into_iter().collect();
    words.extend(random_address(ip + 8 + 10, &covering));
    words.extend(words_of(what, inner, sum));
    let hops = if matches!(what, Payload::Expiring) { 1 } else { 64 };
    let length = u16::try_from(segment.len()).expect("a short packet").to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &length, &[next, hops], &addresses].concat();
    template(GATEWAY, 0x86dd, &[header, segment].concat(), words)
}

/// Protocol number, segment without its checksum, and the position of the checksum.
fn transport(what: Payload, target: Target, icmp: u8) -> (u8, Vec<u8>, Option<usize>) {
    let udp = |length: u16| {
        let ports = [40_000_u16, target.udp].map(u16::to_be_bytes).concat();
        [&ports[..], &length.to_be_bytes(), &[0, 0], &[b'x'; 16]].concat()
    };
    match what {
        Payload::Tcp(flags) => {
            let ports = [40_000_u16, target.tcp].map(u16::to_be_bytes).concat();
            let acknowledged = if flags & ACK == 0 { [0; 4] } else { [9; 4] };
            let rest = [0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
            (6, [&ports[..], &[1; 4], &acknowledged, &rest].concat(), Some(16))
        }
        Payload::Udp | Payload::Expiring => (17, udp(24), Some(6)),
        // The length of the whole datagram, which is incomplete. Its checksum cannot be correct.
        Payload::FirstFragment => (17, udp(72), Some(6)),
        Payload::LaterFragment => (17, vec![b'y'; 8], None),
        Payload::Echo => {
            let kind = if icmp == 1 { 8 } else { 128 };
            (icmp, [&[kind, 0, 0, 0, 0, 1, 0, 1][..], &[b'z'; 16]].concat(), Some(2))
        }
    }
}

/// The words of a segment that vary: source port and sequence number, or the identifiers of an echo.
fn words_of(what: Payload, segment: usize, sum: Option<usize>) -> Vec<Word> {
    let checksums: Vec<usize> = sum.into_iter().collect();
    let word = |at: usize, random: u16| Word { at: segment + at, random, checksums: checksums.clone() };
    match what {
        // The lowest port is 40,000 & !0x3fff = 32,768.
        Payload::Tcp(_) => vec![word(0, 0x3fff), word(4, 0xffff), word(6, 0xffff)],
        Payload::Udp | Payload::Expiring | Payload::FirstFragment => vec![word(0, 0x3fff)],
        Payload::Echo => vec![word(4, 0xffff), word(6, 0xffff)],
        Payload::LaterFragment => Vec::new(),
    }
}

/// The last six bytes of an IPv6 address, which vary.
fn random_address(at: usize, checksums: &[usize]) -> Vec<Word> {
    let word = |n: usize| Word { at: at + 2 * n, random: 0xffff, checksums: checksums.to_vec() };
    (0..3).map(word).collect()
}

/// An ARP request for `vip`, or an unsolicited reply, from a host 198.51.100.128 to .191.
fn arp(vip: Ipv4Addr, reply: bool) -> Template {
    let (code, to) = if reply { (2, GATEWAY) } else { (1, BROADCAST) };
    let mut body = vec![0, 1, 8, 0, 6, 4, 0, code];
    body.extend(ATTACKER_MAC);
    body.extend(Ipv4Addr::new(198, 51, 100, 128).octets());
    let (hardware, address) = if reply { (mac(GATEWAY), GATEWAY_V4) } else { ([0; 6], vip) };
    body.extend(hardware);
    body.extend(address.octets());
    // The sender's Ethernet address varies in its last two bytes, its IPv4 address in its last six bits.
    let word = |at, random| Word { at: ETHERNET + at, random, checksums: Vec::new() };
    template(to, 0x0806, &body, vec![word(12, 0xffff), word(16, 0x003f)])
}

/// A solicitation for `vip` from a host on the link that does not exist, with its Ethernet address.
fn solicitation(vip: Ipv6Addr) -> Template {
    let [.., a, b, c] = vip.octets();
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    neighbor_message(135, [0; 4], vip, 1, group, &format!("33:33:ff:{a:02x}:{b:02x}:{c:02x}"))
}

/// An unsolicited advertisement to the gateway from a host on the link that does not exist.
fn advertisement() -> Template {
    let host = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0x8000, 0, 0, 0);
    // The flags Solicited and Override.
    neighbor_message(136, [0x60, 0, 0, 0], host, 2, GATEWAY_V6, GATEWAY)
}

fn neighbor_message(
    kind: u8,
    flags: [u8; 4],
    about: Ipv6Addr,
    option: u8,
    to: Ipv6Addr,
    link: &str,
) -> Template {
    let source = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0x8000, 0, 0, 0);
    let addresses = [source.octets(), to.octets()].concat();
    let mut message = vec![kind, 0, 0, 0];
    message.extend(flags);
    message.extend(about.octets());
    message.extend([option, 1]);
    message.extend(ATTACKER_MAC);
    let pseudo = pseudo_header(&addresses, &message, 58);
    put_sum(&mut message, 2, &pseudo);
    let header = [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &addresses].concat();
    let (ip, icmp) = (ETHERNET, ETHERNET + 40);
    let mut words = random_address(ip + 18, &[icmp + 2]);
    if kind == 136 {
        words.extend(random_address(icmp + 8 + 10, &[icmp + 2]));
    }
    words.push(Word { at: icmp + 24 + 6, random: 0xffff, checksums: vec![icmp + 2] });
    template(link, 0x86dd, &[header, message].concat(), words)
}

const GATEWAY: &str = GATEWAY_MAC;
const BROADCAST: &str = "ff:ff:ff:ff:ff:ff";
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 2);

fn template(to: &str, ethertype: u16, packet: &[u8], words: Vec<Word>) -> Template {
    debug_assert_ne!(to, CLIENT_MAC, "floods are for the gateway");
    let mut frame = [&mac(to)[..], &ATTACKER_MAC, &ethertype.to_be_bytes(), packet].concat();
    // The minimum length of an Ethernet frame.
    frame.resize(frame.len().max(60), 0);
    Template { frame, words, repeats: 1 }
}

fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().expect("six bytes in hexadecimal")
}

/// The pseudo-headers of both families have the same sum: addresses, length, protocol.
fn pseudo_header(addresses: &[u8], segment: &[u8], protocol: u8) -> Vec<u8> {
    let length = u16::try_from(segment.len()).expect("a short packet").to_be_bytes();
    [addresses, &length, &[0, protocol]].concat()
}

/// Writes the checksum of `bytes` and `more` at `at`, which contains zeros.
fn put_sum(bytes: &mut [u8], at: usize, more: &[u8]) {
    let sum = checksum(&[bytes, more].concat());
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The finaliser of SplitMix64: a bijection, so different numbers give different values.
fn mixed(n: u64) -> u64 {
    let n = (n.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn targets() -> [Target; 2] {
        ["203.0.113.7", "2001:db8:1::7"].map(|vip| Target { vip: vip.parse().unwrap(), tcp: 7000, udp: 9 })
    }

    /// Asserts that the complement of the sum over everything that a checksum covers is 0.
    fn assert_right_checksums(kind: Kind, frame: &[u8]) {
        let ip = &frame[ETHERNET..];
        let (protocol, addresses, segment) = match frame[12..14] {
            [8, 0] => {
                assert_eq!(checksum(&ip[..20]), 0, "{kind:?}: IPv4 header");
                let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                (ip[9], &ip[12..20], &ip[20..total])
            }
            [0x86, 0xdd] => {
                let total = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                let (next, at) = if ip[6] == 44 { (ip[40], 48) } else { (ip[6], 40) };
                (next, &ip[8..40], &ip[at..total])
            }
            _ => return,
        };
        let pseudo = if protocol == 1 { Vec::new() } else { pseudo_header(addresses, segment, protocol) };
        // The checksum of a single fragment cannot be checked: the first covers only its own data, and the later one
        // has no header.
        if kind != Kind::Fragments || segment.len() == 24 {
            assert_eq!(checksum(&[&pseudo, segment].concat()), 0, "{kind:?}: {frame:02x?}");
        }
    }

    #[test]
    fn every_frame_has_right_checksums_and_differs_from_the_others() {
        for kind in Kind::ALL {
            for mut template in templates(kind, &targets()) {
                let mut seen = HashSet::new();
                for n in 0..2_000 {
                    let frame = template.fill(n);
                    assert_right_checksums(kind, frame);
                    seen.insert(frame.to_vec());
                }
                let expected = if kind == Kind::UdpTwo { 1_000 } else { 1_900 };
                assert!(seen.len() >= expected, "{kind:?}: {} different frames", seen.len());
            }
        }
    }
}
