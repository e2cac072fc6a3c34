//! `dsr-ipip`, `dsr-gue`, `dsr-gre`, `dsr-geneve`: the packet travels inside another IP packet to the backend. The
//! backend removes the outer headers, has the VIP on its loopback, and answers the client itself. The inner and the
//! outer packet may have different families. The headers between the outer IP header and the packet are an
//! [`Encapsulation`]; with the constant [`Encapsulation::Ip`] their code is optimized away.
//!
//! Outer fields: TTL 64; traffic class copied with its ECN bits (RFC 6040 normal mode at the ingress); DF set, so that
//! no router fragments and the identification has no meaning (RFC 6864). The exception is an IPv6 packet of at most
//! 1280 bytes that doesn't fit the tunnel: its sender needn't make it smaller, so the outer packet is fragmented
//! ([`forward_to_be_cut`]), and the backend reassembles it. Three fields depend on [`flow_hash`], to spread flows over
//! the backend's receive queues: the source address if `tunnelSource` is a prefix, the IPv6 flow label (RFC 6438), and
//! the UDP source port.

use tidegate_spec::ids::WorkerIndex;
use tidegate_structures::hash::{outer_hash, selection_hash};
use tidegate_wire::encapsulation::{self, Encapsulation, Ends};
use tidegate_wire::ipv4::{self, Ipv4Header};
use tidegate_wire::ipv6::{self, Ipv6Header};
use tidegate_wire::{Addr, Family, Headers, quote, rewrite};

use super::{Link, NoHeadroom};
use crate::frame::Frame;

pub(super) const OUTER_HOP_LIMIT: u8 = 64;

/// The length of the longest outer headers.
pub const OVERHEAD_MAX: usize = ipv6::HEADER_LEN + encapsulation::HEADER_LEN_MAX;

/// A tunnel: its two ends, of one family, and the headers behind the outer IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// The headers between the outer IP header and the packet.
    pub encapsulation: Encapsulation,
    /// An address of `tunnelSource`.
    pub source: Addr,
    /// The address of the backend.
    pub destination: Addr,
    /// The low bits of [`flow_hash`], for the flow label of an IPv6 header and the source port of a UDP header.
    pub flow_hash: u32,
}

/// Identifications of outer packets that may be fragmented. All workers use the same sources, so each worker has its
/// own range: the lower 16 bits, which are all that IPv4 has, consist of the worker's index above a counter.
#[derive(Debug, Clone)]
pub struct Identifications {
    worker: u32,
    /// How many of the lower 16 bits are the counter.
    bits: u32,
    count: u32,
}

impl Identifications {
    /// The identifications of a worker. `seed` makes the first one unpredictable (RFC 7739).
    #[must_use]
    pub fn new(worker: WorkerIndex, workers: u8, seed: u64) -> Self {
        let bits = u16::BITS - (u8::BITS - workers.max(1).saturating_sub(1).leading_zeros());
        let count = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        Self { worker: u32::from(worker), bits, count }
    }

    /// The next identification.
    pub fn take(&mut self) -> u32 {
        self.count = self.count.wrapping_add(1);
        let low = self.worker << self.bits | self.count & ((1 << self.bits) - 1);
        (self.count >> self.bits) << 16 | low
    }
}

/// A hash of a packet's flow, which is equal for all packets that must take the same path to the backend. Fragments are
/// hashed without ports, since later fragments have none. An ICMP error gets the hash of the flow that it quotes.
#[inline]
#[must_use]
pub fn flow_hash(frame: &[u8], h: &Headers) -> u64 {
    if h.is_fragment() || h.is_icmp_error() {
        return unusual_flow_hash(frame, h);
    }
    outer_hash(selection_hash(&h.src, h.src_port, &h.dst, h.dst_port, h.proto))
}

#[cold]
fn unusual_flow_hash(frame: &[u8], h: &Headers) -> u64 {
    let selection = match quote::parse(frame, h) {
        // The quoted packet was sent to the client.
        Ok(Some(q)) => selection_hash(&q.dst, q.dst_port, &q.src, q.src_port, q.proto),
        _ => selection_hash(&h.src, 0, &h.dst, 0, h.proto),
    };
    outer_hash(selection)
}

/// The length of the outer headers towards a backend of this family, which reduces the MTU.
#[inline(always)]
#[must_use]
pub fn overhead(encapsulation: Encapsulation, outer: Family) -> usize {
    encapsulation.header_len()
        + match outer {
            Family::V4 => ipv4::HEADER_LEN,
            Family::V6 => ipv6::HEADER_LEN,
        }
}

/// Wraps the packet and rewrites the frame for `link`. The packet's hop limit must be above 1.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline(always)]
pub fn forward<F: Frame>(frame: &mut F, h: &Headers, link: &Link, tunnel: &Tunnel) -> Result<(), NoHeadroom> {
    wrap(frame, h, link, tunnel, 0)
}

/// Like [`forward`], but the outer packet may be fragmented: DF is clear in IPv4, and IPv6 gets a Fragment header for a
/// whole packet (RFC 8200 section 4.5), as [`Cut`](tidegate_wire::cut::Cut) requires. No other recent packet between
/// these ends may have the same `identification` (RFC 6864, RFC 8200 section 4.5); IPv4 uses its lower 16 bits.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[cold]
pub fn forward_to_be_cut<F: Frame>(
    frame: &mut F,
    h: &Headers,
    link: &Link,
    tunnel: &Tunnel,
    identification: u32,
) -> Result<(), NoHeadroom> {
    let is_v4 = tunnel.destination.is_v4();
    wrap(frame, h, link, tunnel, if is_v4 { 0 } else { ipv6::FRAGMENT_HEADER_LEN })?;
    let outer = &mut frame.bytes_mut()[link.header_len()..];
    if is_v4 {
        ipv4::identify(outer, identification as u16);
    } else {
        ipv6::write_fragment_header(outer, identification);
    }
    Ok(())
}

/// Adds the outer headers. Leaves `gap` bytes behind the outer IP header unwritten.
#[inline(always)]
fn wrap<F: Frame>(
    frame: &mut F,
    h: &Headers,
    link: &Link,
    tunnel: &Tunnel,
    gap: usize,
) -> Result<(), NoHeadroom> {
    let outer = tunnel.destination.family();
    let shim = tunnel.encapsulation.header_len();
    let front = link.header_len() + overhead(tunnel.encapsulation, outer) + gap;
    let ip_len = h.ip_len();
    if !frame.grow_front(front - usize::from(h.l3)) {
        return Err(NoHeadroom);
    }
    // Ethernet padding of a short frame is not sent through the tunnel.
    let cut = frame.resize(front + usize::from(ip_len));
    debug_assert!(cut, "a frame can always be cut to its packet");
    let bytes = frame.bytes_mut();
    let (head, inner) = bytes.split_at_mut(front);
    let l2 = link.write(head, outer);
    // If the sum overflows, the outer packet is fragmented, and each fragment gets its own length.
    write_outer(&mut head[l2..], h, ip_len.wrapping_add(shim as u16), tunnel, outer);
    rewrite::take_hop(inner, h);
    let ends = Ends { source: &tunnel.source, destination: &tunnel.destination, flow_hash: tunnel.flow_hash };
    tunnel.encapsulation.write(&mut head[front - shim..], inner, h, &ends);
    Ok(())
}

/// Writes the outer IP header, which `payload_len` bytes follow.
#[inline(always)]
fn write_outer(out: &mut [u8], inner: &Headers, payload_len: u16, tunnel: &Tunnel, outer: Family) {
    let next = tunnel.encapsulation.protocol(inner.family);
    match outer {
        Family::V4 => {
            let header = Ipv4Header {
                total_len: (ipv4::HEADER_LEN as u16).wrapping_add(payload_len),
                tos: inner.tos,
                id: 0,
                dont_fragment: true,
                ttl: OUTER_HOP_LIMIT,
                proto: next,
                src: tunnel.source.v4_bytes().into(),
                dst: tunnel.destination.v4_bytes().into(),
            };
            header.write(out);
        }
        Family::V6 => {
            let header = Ipv6Header {
                traffic_class: inner.tos,
                flow_label: tunnel.flow_hash & 0x000f_ffff,
                payload_len,
                next_header: next,
                hop_limit: OUTER_HOP_LIMIT,
                src: (*tunnel.source.bytes()).into(),
                dst: (*tunnel.destination.bytes()).into(),
            };
            header.write(out);
        }
    }
}
