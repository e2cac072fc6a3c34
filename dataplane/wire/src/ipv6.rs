//! IPv6 (RFC 8200): the header check with a bounded walk over extension headers, and writing an outer header.
//!
//! The walk covers hop-by-hop, routing, destination options, fragment and authentication headers. ESP, no-next-header
//! and anything unknown end the walk and are the packet's protocol. Options are not checked: only their addressees
//! interpret them. A routing header with segments left is refused. Jumbograms (RFC 2675) don't fit Ethernet and fail
//! the length check.
//!
//! Invariant: at most [`EXTENSION_HEADERS_MAX`] extension headers are read, whatever the packet contains.

use super::addr::Addr;
use super::headers::{Family, Fragment, Headers, proto};
use super::ipv4;
use super::malformed::Malformed;
use super::transport::{self, Transport};
use super::vlan::VlanId;
use core::net::Ipv6Addr;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Bytes of a Fragment header.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// Maximum number of extension headers. RFC 8200 4.1 recommends orders with at most 7 (hop-by-hop, destination options
/// twice, routing, fragment, AH, ESP); 8 allows for one more.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// Writes the Fragment header of an unfragmented packet after a header that [`Ipv6Header::write`] wrote 8 bytes before
/// the payload.
///
/// # Panics
/// When `packet` is shorter than 48 bytes.
pub fn write_fragment_header(packet: &mut [u8], identification: u32) {
    let payload_len = u16::from_be_bytes([packet[4], packet[5]]) + FRAGMENT_HEADER_LEN as u16;
    packet[4..6].copy_from_slice(&payload_len.to_be_bytes());
    packet[HEADER_LEN] = std::mem::replace(&mut packet[6], proto::FRAGMENT);
    packet[HEADER_LEN + 1..HEADER_LEN + 4].fill(0);
    packet[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&identification.to_be_bytes());
}

/// Checks the packet that follows an Ethernet header of `l3` bytes.
///
/// # Errors
/// `Ipv6*`, `Fragment*`, and the errors of the transport header.
#[inline(always)]
pub fn parse(packet: &[u8], l3: u8, vlan: Option<VlanId>) -> Result<Headers, Malformed> {
    let (p, rest) = packet.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Ipv6Truncated)?;
    if p[0] >> 4 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let payload_len = u16::from_be_bytes([p[4], p[5]]);
    let payload = rest.get(..usize::from(payload_len)).ok_or(Malformed::Ipv6PayloadLength)?;
    let mut src = [0; 16];
    let mut dst = [0; 16];
    src.copy_from_slice(&p[8..24]);
    dst.copy_from_slice(&p[24..40]);
    let (src, dst) = (Addr::v6(src), Addr::v6(dst));
    if src.is_v4() || dst.is_v4() {
        return Err(Malformed::Ipv6MappedAddress);
    }
    let walk = if is_extension(p[6]) {
        walk(p[6], payload)?
    } else {
        Walk { proto: p[6], len: 0, fragment: Fragment::None }
    };
    let mut t = Transport::UNKNOWN;
    if !matches!(walk.fragment, Fragment::Later { .. }) {
        let whole = matches!(walk.fragment, Fragment::None);
        transport::parse(&mut t, walk.proto, Family::V6, whole, &payload[walk.len..])?;
    }
    let end_of_header = u16::from(l3) + HEADER_LEN as u16;
    Ok(Headers {
        src,
        dst,
        fragment: walk.fragment,
        // Both fit: the offsets are inside a frame of at most 65,535 bytes.
        l4: end_of_header + walk.len as u16,
        ip_end: end_of_header + payload_len,
        src_port: t.src_port,
        dst_port: t.dst_port,
        vlan,
        l3,
        family: Family::V6,
        proto: walk.proto,
        tcp_flags: t.tcp_flags,
        icmp_type: t.icmp_type,
        icmp_code: t.icmp_code,
        ttl: p[7],
        tos: (p[0] << 4) | (p[1] >> 4),
        dont_fragment: true,
        l4_checksum: t.l4_checksum,
    })
}

/// Whether a checked packet has an authentication header (RFC 4302) before the transport header: its integrity check
/// covers addresses and ports. False for IPv4, where the authentication header is the packet's protocol.
///
/// # Panics
/// When `h` does not belong to this frame.
#[inline]
pub fn is_authenticated(frame: &[u8], h: &Headers) -> bool {
    let has_extensions = h.family == Family::V6 && usize::from(h.l4 - u16::from(h.l3)) > HEADER_LEN;
    has_extensions && has_authentication(frame, h)
}

#[cold]
fn has_authentication(frame: &[u8], h: &Headers) -> bool {
    let (first, end) = (usize::from(h.l3) + HEADER_LEN, usize::from(h.l4));
    let (mut next, mut at) = (frame[usize::from(h.l3) + 6], first);
    while at < end && next != proto::AH {
        let len = if next == proto::FRAGMENT { 8 } else { (usize::from(frame[at + 1]) + 1) * 8 };
        (next, at) = (frame[at], at + len);
    }
    at < end
}

/// True for the headers that the walk skips.
#[inline]
pub(crate) const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        proto::HOP_BY_HOP | proto::ROUTING | proto::FRAGMENT | proto::AH | proto::DESTINATION_OPTIONS
    )
}

/// The result of a walk over extension headers.
pub struct Walk {
    /// The protocol at the end of the walk. For a later fragment, the protocol that its fragment header names.
    pub proto: u8,
    /// Bytes of all extension headers.
    pub len: usize,
    /// The fields of the fragment header, if there is one.
    pub fragment: Fragment,
}

/// Like [`walk`], for a packet that an ICMP error quotes and may truncate. A chain that ends beyond the packet counts
/// as a truncated quote, and lengths of fragments are not checked.
pub(crate) fn walk_quoted(next: u8, payload: &[u8]) -> Result<Walk, Malformed> {
    walk_headers(next, payload, true).map_err(|reason| match reason {
        Malformed::Ipv6ExtensionTruncated => Malformed::QuoteTruncated,
        other => other,
    })
}

/// Walks from the first extension header, of type `next`, at the start of `payload`.
#[cold]
#[inline(never)]
fn walk(next: u8, payload: &[u8]) -> Result<Walk, Malformed> {
    walk_headers(next, payload, false)
}

fn walk_headers(mut next: u8, payload: &[u8], quoted: bool) -> Result<Walk, Malformed> {
    let mut at = 0;
    let mut fragment = Fragment::None;
    let mut count = 0;
    while is_extension(next) {
        if count == EXTENSION_HEADERS_MAX {
            return Err(Malformed::Ipv6ExtensionChain);
        }
        if next == proto::HOP_BY_HOP && count > 0 {
            return Err(Malformed::Ipv6HopByHopPosition);
        }
        let rest = &payload[at..];
        let x: &[u8; 8] = rest.first_chunk().ok_or(Malformed::Ipv6ExtensionTruncated)?;
        let len = match next {
            proto::FRAGMENT => 8,
            // RFC 4302 2.2: in 4-byte units, minus 2.
            proto::AH => (usize::from(x[1]) + 2) * 4,
            _ => (usize::from(x[1]) + 1) * 8,
        };
        if len > rest.len() {
            return Err(Malformed::Ipv6ExtensionTruncated);
        }
        // A routing header without segments left has been processed, and is skipped like any other header (RFC 8200
        // 4.4).
        if next == proto::ROUTING && x[3] > 0 && !quoted {
            return Err(Malformed::SourceRoute);
        }
        if next == proto::FRAGMENT {
            let word = u16::from_be_bytes([x[2], x[3]]);
            let (offset, more) = (word & 0xfff8, word & 1 != 0);
            // Offset 0 without the M flag is the atomic fragment of RFC 6946: a whole packet.
            if more || offset != 0 {
                let id = u32::from_be_bytes([x[4], x[5], x[6], x[7]]);
                let len = if quoted { 8 } else { rest.len() - len };
                fragment = ipv4::fragment((id, x[0]), offset, more, len, at)?;
            }
        }
        next = x[0];
        at += len;
        count += 1;
        if matches!(fragment, Fragment::Later { .. }) {
            break;
        }
    }
    Ok(Walk { proto: next, len: at, fragment })
}

/// An IPv6 header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits; the upper 12 are ignored.
    pub flow_label: u32,
    /// Bytes that follow this header.
    pub payload_len: u16,
    /// The next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6Header {
    /// The 40 bytes.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0x000f_ffff);
        b[..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..40].copy_from_slice(&self.dst.octets());
        b
    }

    /// Writes the header at the beginning of `out` and returns its length, 40.
    ///
    /// # Panics
    /// When `out` is shorter than 40 bytes.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        out[..HEADER_LEN].copy_from_slice(&self.bytes());
        HEADER_LEN
    }
}
