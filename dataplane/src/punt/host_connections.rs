//! Records the host's own connections and requests as seen on the taps. This distinguishes an answer to a health check,
//! a BGP session or an ARP request of the kernel from a flood to the gateway's own address.
//!
//! The slow path records the frames that the kernel sends, and workers look up each frame for the kernel. A connection
//! is recorded when the host opens it and kept while the host sends on it. The host's answers to other hosts are not
//! recorded, because a flood of SYNs to an open port would then raise its own class. BGP sessions are an exception:
//! either side may open one, and it carries data only after a handshake. BFD is recorded by its port, because each side
//! sends from its own port; a BFD daemon sends only to configured peers.
//!
//! Invariant: one writer, lock-free readers, a fixed size. A connection whose record is lost still works, but its
//! packets share a class with unsolicited traffic.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_spec::now::Now;
use tidegate_wire::arp::ArpOperation;
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Addr, Headers, Parsed, proto, quote};

/// Sets of cells.
const SETS: usize = 16_384;
/// Cells per set.
const CELLS_PER_SET: usize = 4;
/// How long a new connection of the host, or its request for a neighbour, is remembered after the first frame.
const OPENING: Duration = Duration::from_secs(15);
/// How long a connection is remembered after the host last sent on it.
const OPEN: Duration = Duration::from_secs(600);
/// How long a connection is remembered after the host has closed it.
const CLOSED: Duration = Duration::from_secs(5);
/// The port of BGP (RFC 4271).
pub(super) const BGP_PORT: u16 = 179;
/// The ports of BFD control packets: single hop (RFC 5881) and multihop (RFC 5883).
const BFD_PORTS: [u16; 2] = [3784, 4784];
/// The first ephemeral port of Linux hosts (default range).
const EPHEMERAL_MIN: u16 = 32_768;
/// A pseudo protocol number for ARP and neighbour discovery.
const LINK: u8 = 255;

/// The connections of the host.
#[derive(Debug)]
pub struct HostConnections {
    /// Upper half: part of the hash. Lower half: the second at which the connection is forgotten.
    cells: Box<[[AtomicU64; CELLS_PER_SET]]>,
    hasher: RandomState,
    /// The UDP port from which the host talks to peer gateways; 0 if it doesn't.
    gateway_port: AtomicU16,
}

/// The endpoints of a connection: protocol, remote address and port, local port.
type Endpoints = (u8, Addr, u16, u16);

impl Default for HostConnections {
    fn default() -> Self {
        Self {
            cells: (0..SETS).map(|_| Default::default()).collect(),
            hasher: RandomState::new(),
            gateway_port: AtomicU16::new(0),
        }
    }
}

impl HostConnections {
    /// Sets the UDP port from which the host talks to peer gateways. Their replies then don't count as unsolicited.
    pub fn set_gateway_port(&self, port: u16) {
        self.gateway_port.store(port, Ordering::Relaxed);
    }

    /// Records a frame of the kernel. Only the slow path calls it.
    pub fn note(&self, now: Now, frame: &[u8]) {
        match tidegate_wire::parse(frame) {
            Ok(Parsed::Arp(packet)) if packet.operation == ArpOperation::Request => {
                self.keep(now, (LINK, packet.target_ip.into(), 0, 0), OPENING);
            }
            Ok(Parsed::Ip(h)) => self.note_packet(now, frame, &h),
            _ => {}
        }
    }

    fn note_packet(&self, now: Now, frame: &[u8], h: &Headers) {
        if let Ok(Some(Ndp::Solicitation { target, .. })) = ndp::parse(frame, h) {
            return self.keep(now, (LINK, target.into(), 0, 0), OPENING);
        }
        let endpoints = (h.proto, h.dst, h.dst_port, h.src_port);
        match h.proto {
            proto::TCP => {
                let opens = h.tcp_flags & (flags::SYN | flags::ACK) == flags::SYN;
                let ends_it = h.tcp_flags & (flags::FIN | flags::RST) != 0;
                if opens {
                    self.keep(now, endpoints, OPENING);
                } else if self.knows(now, endpoints) {
                    self.keep(now, endpoints, if ends_it { CLOSED } else { OPEN });
                } else if is_bgp(h) && !ends_it && carries_data(frame, h) {
                    self.keep(now, endpoints, OPEN);
                }
            }
            proto::UDP if BFD_PORTS.contains(&h.dst_port) => {
                self.keep(now, (proto::UDP, h.dst, 0, h.dst_port), OPENING);
            }
            // An SCTP health check sends one INIT, and one ABORT after the answer.
            proto::SCTP => self.keep(now, endpoints, OPENING),
            proto::UDP
                if h.src_port >= EPHEMERAL_MIN
                    || h.dst_port < 1024
                    || h.src_port == self.gateway_port.load(Ordering::Relaxed) =>
            {
                self.keep(now, endpoints, OPENING);
            }
            proto::ICMP | proto::ICMPV6 if is_echo_request(h) => self.keep(now, endpoints, OPENING),
            _ => {}
        }
    }

    /// Whether a packet for the kernel belongs to a connection of the host, or is an ICMP error about one.
    #[must_use]
    pub fn has(&self, now: Now, frame: &[u8], h: &Headers) -> bool {
        if let Ok(Some(quoted)) = quote::parse(frame, h) {
            return self.knows(now, (quoted.proto, quoted.dst, quoted.dst_port, quoted.src_port));
        }
        if h.proto == proto::UDP && BFD_PORTS.contains(&h.dst_port) {
            // A peer on the link sends with this hop limit (RFC 5881 section 5). Packets from farther away can't have
            // it.
            let is_near = h.dst_port != BFD_PORTS[0] || h.ttl == 255;
            return is_near && self.knows(now, (proto::UDP, h.src, 0, h.dst_port));
        }
        self.knows(now, (h.proto, h.src, h.src_port, h.dst_port))
    }

    /// Whether a frame for the kernel belongs to a connection of the host, or is an ICMP error about one.
    #[must_use]
    pub fn is_answer(&self, now: Now, frame: &[u8]) -> bool {
        matches!(tidegate_wire::parse(frame), Ok(Parsed::Ip(h)) if self.has(now, frame, &h))
    }

    /// Whether the kernel has recently requested the link address of this neighbour.
    #[must_use]
    pub fn has_requested(&self, now: Now, neighbor: Addr) -> bool {
        self.knows(now, (LINK, neighbor, 0, 0))
    }

    fn knows(&self, now: Now, endpoints: Endpoints) -> bool {
        let (set, tag) = self.index(endpoints);
        let second = seconds(now);
        self.cells[set].iter().any(|cell| {
            let cell = cell.load(Ordering::Relaxed);
            cell >> 32 == tag && cell & u64::from(u32::MAX) > second
        })
    }

    fn keep(&self, now: Now, endpoints: Endpoints, time: Duration) {
        let (set, tag) = self.index(endpoints);
        let until = seconds(now.plus(time)) + 1;
        let cells = &self.cells[set];
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let same = cells.iter().find(|cell| load(cell) >> 32 == tag);
        // Otherwise, use the cell that expires first or has already expired.
        let first = || cells.iter().min_by_key(|cell| load(cell) & u64::from(u32::MAX));
        if let Some(cell) = same.or_else(first) {
            cell.store(tag << 32 | until, Ordering::Relaxed);
        }
    }

    fn index(&self, endpoints: Endpoints) -> (usize, u64) {
        let (proto, remote, port, local) = endpoints;
        let hash = self.hasher.hash_one((proto, remote.bytes(), port, local));
        // The low bits select the set; the remainder is below `SETS`.
        (hash as usize % SETS, hash >> 32)
    }
}

fn seconds(now: Now) -> u64 {
    (now.0 / 1_000_000_000) & u64::from(u32::MAX)
}

pub(super) fn is_bgp(h: &Headers) -> bool {
    h.proto == proto::TCP && (h.src_port == BGP_PORT || h.dst_port == BGP_PORT)
}

fn is_echo_request(h: &Headers) -> bool {
    matches!((h.proto, h.icmp_type), (proto::ICMP, 8) | (proto::ICMPV6, 128))
}

/// Whether a TCP segment has a payload.
fn carries_data(frame: &[u8], h: &Headers) -> bool {
    let offset = frame.get(usize::from(h.l4) + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    usize::from(h.l4) + offset < usize::from(h.ip_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_pipeline::testing::Builder;
    use tidegate_wire::{MacAddr, arp, parse};

    const HOST: &str = "192.0.2.2:40001";
    const BACKEND: &str = "10.0.0.7:80";

    #[test]
    fn packets_of_peer_gateways_count_as_answers() {
        let (own, now) = (HostConnections::default(), Now(5_000_000_000));
        let from = Builder::udp("192.0.2.2:10358", "192.0.2.4:10358");
        let to = || Builder::udp("192.0.2.4:10358", "192.0.2.2:10358");
        own.note(now, &from.build());
        assert!(!has(&own, now, to()), "this port is not known to belong to a gateway");
        own.set_gateway_port(10_358);
        own.note(now, &from.build());
        assert!(has(&own, now, to()));
        assert!(!has(&own, now, Builder::udp("192.0.2.9:10358", "192.0.2.2:10358")));
    }

    #[allow(clippy::needless_pass_by_value, reason = "the caller builds it in place")]
    fn has(own: &HostConnections, now: Now, builder: Builder) -> bool {
        let frame = builder.build();
        let Ok(Parsed::Ip(h)) = parse(&frame) else { panic!("not IP") };
        own.has(now, &frame, &h)
    }

    fn at(seconds: u64) -> Now {
        Now(seconds * 1_000_000_000)
    }

    #[test]
    fn answers_to_the_hosts_connections_are_known_and_other_packets_are_not() {
        let own = HostConnections::default();
        let answer = || Builder::tcp(BACKEND, HOST).flags(flags::SYN | flags::ACK);
        assert!(!has(&own, at(1), answer()));
        own.note(at(1), &Builder::tcp(HOST, BACKEND).flags(flags::SYN).build());
        assert!(has(&own, at(2), answer()));
        assert!(!has(&own, at(2), Builder::tcp("10.0.0.7:81", HOST).flags(flags::SYN | flags::ACK)));
        assert!(!has(&own, at(2), Builder::udp(BACKEND, HOST)));
        assert!(!has(&own, at(30), answer()), "it was never established");
        own.note(at(31), &Builder::tcp(HOST, BACKEND).flags(flags::SYN).build());
        own.note(at(31), &Builder::tcp(HOST, BACKEND).flags(flags::ACK).build());
        assert!(has(&own, at(600), answer()));
        own.note(at(600), &Builder::tcp(HOST, BACKEND).flags(flags::FIN | flags::ACK).build());
        assert!(!has(&own, at(610), answer()), "the host has closed it");
    }

    #[test]
    fn a_flood_that_the_host_answers_does_not_become_the_hosts_own() {
        let own = HostConnections::default();
        for answer in [flags::SYN | flags::ACK, flags::RST | flags::ACK, flags::ACK] {
            own.note(at(1), &Builder::tcp("192.0.2.2:22", "198.51.100.7:4000").flags(answer).build());
        }
        own.note(
            at(1),
            &Builder::tcp("192.0.2.2:179", "198.51.100.7:4000").flags(flags::SYN | flags::ACK).build(),
        );
        own.note(at(1), &Builder::udp("192.0.2.2:5000", "198.51.100.7:4000").build());
        assert!(!has(&own, at(1), Builder::tcp("198.51.100.7:4000", "192.0.2.2:22").flags(flags::ACK)));
        assert!(!has(&own, at(1), Builder::tcp("198.51.100.7:4000", "192.0.2.2:179").flags(flags::ACK)));
        assert!(!has(&own, at(1), Builder::udp("198.51.100.7:4000", "192.0.2.2:5000")));
    }

    #[test]
    fn bgp_sessions_that_the_peer_opened_are_known_once_they_carry_data() {
        let own = HostConnections::default();
        let data = Builder::tcp("192.0.2.2:179", "192.0.2.1:5000").flags(flags::ACK).payload(b"keepalive");
        own.note(at(1), &data.build());
        assert!(has(&own, at(2), Builder::tcp("192.0.2.1:5000", "192.0.2.2:179").flags(flags::ACK)));
    }

    #[test]
    fn bfd_of_a_peer_on_the_link_is_known_and_that_of_others_is_not() {
        let own = HostConnections::default();
        let from =
            |source: &str, ttl| Builder::udp(format!("{source}:50000").as_str(), "192.0.2.2:3784").ttl(ttl);
        assert!(!has(&own, at(1), from("192.0.2.1", 255)), "the host has not sent any");
        own.note(at(1), &Builder::udp("192.0.2.2:49152", "192.0.2.1:3784").ttl(255).build());
        assert!(has(&own, at(2), from("192.0.2.1", 255)));
        assert!(!has(&own, at(2), from("192.0.2.1", 254)), "it was forged farther away");
        assert!(!has(&own, at(2), from("192.0.2.9", 255)));
        own.note(at(3), &Builder::udp("192.0.2.2:49152", "198.51.100.1:4784").build());
        assert!(has(&own, at(4), Builder::udp("198.51.100.1:50000", "192.0.2.2:4784")), "several hops away");
    }

    #[test]
    fn errors_about_own_connections_and_answers_to_own_questions_are_known() {
        let own = HostConnections::default();
        let syn = Builder::tcp(HOST, BACKEND).flags(flags::SYN);
        own.note(at(1), &syn.build());
        let quoted = Builder::tcp(HOST, BACKEND).flags(flags::SYN).packet();
        let (router, host) = (
            "192.0.2.1".parse::<std::net::IpAddr>().unwrap(),
            "192.0.2.2".parse::<std::net::IpAddr>().unwrap(),
        );
        assert!(has(&own, at(1), Builder::icmp(router, host, 3, 4, [0, 0, 5, 0]).payload(&quoted)));
        let other = Builder::tcp("192.0.2.2:40002", BACKEND).packet();
        assert!(!has(&own, at(1), Builder::icmp(router, host, 3, 4, [0, 0, 5, 0]).payload(&other)));
        let (ours, target) = ("192.0.2.2".parse().unwrap(), "192.0.2.1".parse().unwrap());
        own.note(at(1), &arp::request(MacAddr([2, 0, 0, 0, 0, 2]), ours, target, None, None));
        assert!(own.has_requested(at(2), Addr::from(target)) && !own.has_requested(at(2), Addr::from(ours)));
    }

    #[test]
    fn many_short_connections_do_not_push_out_one_that_lasts() {
        let own = HostConnections::default();
        own.note(at(1), &Builder::tcp(HOST, BACKEND).flags(flags::SYN).build());
        own.note(at(1), &Builder::tcp(HOST, BACKEND).flags(flags::ACK).build());
        for n in 0..200_000_u32 {
            let remote = (std::net::IpAddr::from([10, 1, (n >> 8) as u8, n as u8]), 1000 + (n >> 16) as u16);
            own.keep(at(2 + u64::from(n / 10_000)), (6, remote.0.into(), remote.1, 50_000), OPENING);
        }
        assert!(has(&own, at(25), Builder::tcp(BACKEND, HOST).flags(flags::ACK)));
    }
}
