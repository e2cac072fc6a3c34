//! ICMP (RFC 792) and ICMPv6 (RFC 4443): errors that answer a packet, and echo replies built in place.
//!
//! An error is returned as the bytes to put before the quoted packet, so that the caller can trim its frame and prepend
//! them without copying the packet. The caller applies rate limits and selects the source address.
//!
//! Invariant: [`error`] is called only after [`may_answer_with_icmp`] returned true.

use super::addr::Addr;
use super::checksum::{Delta, Sum};
use super::ethernet::{self, EthernetHeader, MacAddr, ether_type};
use super::headers::{Family, Headers, L4Checksum, proto};
use super::ipv4::{self, Ipv4Header};
use super::ipv6::Ipv6Header;
use arrayvec::ArrayVec;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::Range;

/// The maximum length of an IPv4 error as an IP packet (RFC 1812 4.3.2.3).
pub const ERROR_LEN_MAX_V4: usize = 576;
/// The maximum length of an IPv6 error as an IP packet (RFC 4443 2.4 (c)).
pub const ERROR_LEN_MAX_V6: usize = 1280;

/// The problem of the packet that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No service on this port: 3/3, ICMPv6 1/4.
    PortUnreachable,
    /// The host does not answer: 3/1, ICMPv6 1/3.
    HostUnreachable,
    /// No route: 3/0, ICMPv6 1/0.
    NoRoute,
    /// Forbidden by policy: 3/13, ICMPv6 1/1.
    AdminProhibited,
    /// Longer than the next hop accepts: 3/4 (RFC 1191), ICMPv6 2/0.
    TooBig {
        /// Bytes of the largest IP packet that would pass.
        mtu: u16,
    },
    /// TTL or hop limit is used up: 11/0, ICMPv6 3/0.
    TimeExceeded,
}

impl Problem {
    /// Type and code.
    pub const fn type_and_code(self, family: Family) -> (u8, u8) {
        match (family, self) {
            (Family::V4, Problem::NoRoute) => (3, 0),
            (Family::V4, Problem::HostUnreachable) => (3, 1),
            (Family::V4, Problem::PortUnreachable) => (3, 3),
            (Family::V4, Problem::TooBig { .. }) => (3, 4),
            (Family::V4, Problem::AdminProhibited) => (3, 13),
            (Family::V4, Problem::TimeExceeded) => (11, 0),
            (Family::V6, Problem::NoRoute) => (1, 0),
            (Family::V6, Problem::AdminProhibited) => (1, 1),
            (Family::V6, Problem::HostUnreachable) => (1, 3),
            (Family::V6, Problem::PortUnreachable) => (1, 4),
            (Family::V6, Problem::TooBig { .. }) => (2, 0),
            (Family::V6, Problem::TimeExceeded) => (3, 0),
        }
    }
}

/// Whether an ICMP error may answer this packet (RFC 1122 3.2.2, RFC 1812 4.3.2.7, RFC 4443 2.4 (e)). It may not if the
/// packet is an ICMP error, a redirect or a later fragment, if its source is not a single host, or if its link or IP
/// destination is a group. Only packet-too-big in IPv6 may answer packets to groups, because path MTU discovery of
/// multicast needs it. The caller must check directed broadcasts, since only it knows the prefixes.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn may_answer_with_icmp(frame: &[u8], h: &Headers, problem: Problem) -> bool {
    if h.is_icmp_error() || h.is_redirect() || h.is_later_fragment() || !h.src.is_single_host() {
        return false;
    }
    let to_many = ethernet::destination(frame).is_multicast() || !h.dst.is_single_host();
    let too_big_v6 = h.family == Family::V6 && matches!(problem, Problem::TooBig { .. });
    !to_many || (too_big_v6 && h.dst != Addr::UNSPECIFIED)
}

/// An error that answers a packet. The new frame is `header` followed by `frame[quote]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// Ethernet, IP and ICMP header, with correct checksums.
    pub header: ArrayVec<u8, 66>,
    /// The part of the answered frame that is quoted.
    pub quote: Range<usize>,
}

/// Builds the error that answers `frame`. It is sent from `from` at `mac` to the station that sent the frame.
///
/// # Panics
/// When `h` does not belong to this frame, or `from` has the other family.
pub fn error(frame: &[u8], h: &Headers, problem: Problem, mac: MacAddr, from: Addr) -> ErrorReply {
    assert_eq!(from.is_v4(), h.family == Family::V4, "an error has the family of the packet it answers");
    let (headers_len, len_max, ether_type) = match h.family {
        Family::V4 => (20 + 8, ERROR_LEN_MAX_V4, ether_type::IPV4),
        Family::V6 => (40 + 8, ERROR_LEN_MAX_V6, ether_type::IPV6),
    };
    let start = usize::from(h.l3);
    let quote = start..usize::from(h.ip_end).min(start + len_max - headers_len);

    let mut out = [0; 66];
    let l2 =
        EthernetHeader { dst: ethernet::source(frame), src: mac, vlan: h.vlan, ether_type }.write(&mut out);
    // The length is at most 1,280.
    let icmp_len = (8 + quote.len()) as u16;
    let l3 = match h.family {
        Family::V4 => Ipv4Header {
            total_len: 20 + icmp_len,
            // RFC 1812 4.3.2.5: precedence 6, internetwork control.
            tos: 0xc0,
            id: 0,
            dont_fragment: true,
            ttl: 64,
            proto: proto::ICMP,
            src: Ipv4Addr::from(from.v4_bytes()),
            dst: Ipv4Addr::from(h.src.v4_bytes()),
        }
        .write(&mut out[l2..]),
        Family::V6 => Ipv6Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: icmp_len,
            next_header: proto::ICMPV6,
            hop_limit: 64,
            src: Ipv6Addr::from(*from.bytes()),
            dst: Ipv6Addr::from(*h.src.bytes()),
        }
        .write(&mut out[l2..]),
    };
    let l4 = l2 + l3;
    let icmp = icmp_header(h, problem, from, icmp_len, &frame[quote.clone()]);
    out[l4..l4 + 8].copy_from_slice(&icmp);
    ErrorReply { header: ArrayVec::try_from(&out[..l4 + 8]).expect("66 bytes at most"), quote }
}

fn icmp_header(h: &Headers, problem: Problem, from: Addr, icmp_len: u16, quote: &[u8]) -> [u8; 8] {
    let (icmp_type, code) = problem.type_and_code(h.family);
    let mut icmp = [icmp_type, code, 0, 0, 0, 0, 0, 0];
    if let Problem::TooBig { mtu } = problem {
        // RFC 1191 4: the lower 16 bits of the unused word; RFC 4443 3.2: the whole word.
        icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
    }
    let sum = match h.family {
        Family::V4 => Sum::new(),
        Family::V6 => Sum::pseudo_header(Family::V6, &from, &h.src, proto::ICMPV6, u32::from(icmp_len)),
    };
    let check = sum.bytes(&icmp).bytes(quote).finish();
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    icmp
}

/// Converts an echo request, or the first fragment of one, to its reply in place: addresses are swapped, the frame
/// returns from `mac` to the station that sent it, and the TTL is 64. Checksums are updated by difference, so a damaged
/// request gives an equally damaged reply.
///
/// Returns false and changes nothing if it is not an echo request, is a later fragment, or its source or destination is
/// not a single host. IPv4 options stay.
///
/// # Panics
/// When `h` does not belong to this frame.
#[must_use]
pub fn echo_reply(frame: &mut [u8], h: &Headers, mac: MacAddr) -> bool {
    if !h.is_echo_request() || h.is_later_fragment() || !send_back(frame, h, mac) {
        return false;
    }
    let (old, new) = match h.family {
        Family::V4 => (8, 0),
        Family::V6 => (128, 129),
    };
    let icmp: &mut [u8; 8] = frame[usize::from(h.l4)..].first_chunk_mut().expect("parse saw 8 bytes of ICMP");
    icmp[0] = new;
    // If the difference gives 0, this writes 0xffff, which is correct for every message. 0 would be wrong for a reply
    // that consists of zeros.
    let check =
        Delta::new().u16(old << 8, u16::from(new) << 8).apply_udp(u16::from_be_bytes([icmp[2], icmp[3]]));
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    true
}

/// Converts a later fragment of an echo request to the corresponding fragment of the reply, as [`echo_reply`] does with
/// the first. Data and identification stay.
///
/// Returns false and changes nothing if it is not a later fragment, or its source or destination is not a single host.
///
/// # Panics
/// When `h` does not belong to this frame.
#[must_use]
pub fn echo_fragment(frame: &mut [u8], h: &Headers, mac: MacAddr) -> bool {
    h.is_later_fragment() && send_back(frame, h, mac)
}

/// Swaps the addresses of a packet between two hosts, in both layers, and resets its hop limit.
fn send_back(frame: &mut [u8], h: &Headers, mac: MacAddr) -> bool {
    if !h.src.is_single_host() || !h.dst.is_single_host() {
        return false;
    }
    let back = ethernet::source(frame);
    ethernet::set_addresses(frame, back, mac);
    let l3 = usize::from(h.l3);
    // Swapping source and destination changes no checksum, since the same words are summed.
    match h.family {
        Family::V4 => {
            let ip: &mut [u8; 20] = frame[l3..].first_chunk_mut().expect("parse saw a whole IPv4 header");
            ip[12..16].copy_from_slice(&h.dst.v4_bytes());
            ip[16..20].copy_from_slice(&h.src.v4_bytes());
            ip[8] = 64;
            ipv4::apply_delta(ip, Delta::new().u16(u16::from(h.ttl) << 8, 64 << 8));
        }
        Family::V6 => {
            let ip: &mut [u8; 40] = frame[l3..].first_chunk_mut().expect("parse saw a whole IPv6 header");
            ip[8..24].copy_from_slice(h.dst.bytes());
            ip[24..40].copy_from_slice(h.src.bytes());
            ip[7] = 64;
        }
    }
    true
}

/// True when an ICMP or ICMPv6 message is complete and its checksum is correct.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn checksum_ok(frame: &[u8], h: &Headers) -> bool {
    let sum = match h.l4_checksum {
        L4Checksum::Icmp => Sum::new(),
        L4Checksum::Icmpv6 => {
            Sum::pseudo_header(Family::V6, &h.src, &h.dst, proto::ICMPV6, u32::from(h.ip_end - h.l4))
        }
        _ => return false,
    };
    !h.is_fragment() && sum.bytes(&frame[usize::from(h.l4)..usize::from(h.ip_end)]).finish() == 0
}

/// The MTU that a fragmentation-needed or packet-too-big error reports; `None` for other packets. An IPv4 router older
/// than RFC 1191 reports 0. Values above 65,535 are returned as 65,535.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn reported_mtu(frame: &[u8], h: &Headers) -> Option<u16> {
    let icmp: &[u8; 8] = frame.get(usize::from(h.l4)..)?.first_chunk()?;
    match (h.l4_checksum, h.icmp_type, h.icmp_code) {
        (L4Checksum::Icmp, 3, 4) => Some(u16::from_be_bytes([icmp[6], icmp[7]])),
        (L4Checksum::Icmpv6, 2, _) => {
            let mtu = u32::from_be_bytes([icmp[4], icmp[5], icmp[6], icmp[7]]);
            Some(u16::try_from(mtu).unwrap_or(u16::MAX))
        }
        _ => None,
    }
}
