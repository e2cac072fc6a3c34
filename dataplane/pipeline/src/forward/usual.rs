//! Rewrites usual packets ([`tidegate_wire::usual`]) in the fast path. The result is the same as in the forwarding
//! modes, with fewer steps. Frames are untagged on arrival and on departure.
//!
//! Invariant: each function produces the bytes of its mode (`pipeline/tests/fast_path.rs`).

use tidegate_wire::checksum::after_hop;
use tidegate_wire::encapsulation::{Encapsulation, Ends, GueVariant, source_port};
use tidegate_wire::ethernet::ether_type;
use tidegate_wire::udp::{self, UdpHeader};
use tidegate_wire::usual::{Usual, addr};
use tidegate_wire::{Family, ethernet, ipv4, ipv6, proto};

use super::tunnel::OUTER_HOP_LIMIT;
use super::{NoHeadroom, cut_trailer};
use crate::frame::Frame;

/// The offset of the IP header.
const L3: usize = ethernet::HEADER_LEN;
/// The Ethernet and IPv4 headers, which are rewritten without a tunnel.
const HEAD: usize = L3 + ipv4::HEADER_LEN;
/// The Ethernet and IPv6 headers.
const HEAD_V6: usize = L3 + ipv6::HEADER_LEN;

/// The link addresses of a frame to be sent: its first twelve bytes, as little-endian numbers.
#[derive(Debug, Clone, Copy)]
pub struct LinkHead {
    first: u64,
    rest: u32,
}

impl LinkHead {
    /// Takes the link addresses in the form of [`station_bits`](tidegate_wire::usual::station_bits).
    #[inline(always)]
    #[must_use]
    pub fn new(destination: u64, source: u64) -> Self {
        Self { first: destination | source << 48, rest: (source >> 16) as u32 }
    }

    #[inline(always)]
    fn write<const N: usize>(self, out: &mut [u8; N]) {
        out[..8].copy_from_slice(&self.first.to_le_bytes());
        out[8..12].copy_from_slice(&self.rest.to_le_bytes());
    }
}

/// Rewrites a packet for `dsr-l2`, with addresses of `A` words.
#[inline(always)]
pub fn send_on_link<F: Frame, const A: usize>(frame: &mut F, ip_len: u16, head: LinkHead) {
    let bytes = frame.bytes_mut();
    let len = bytes.len();
    let there = "a checked packet has its headers";
    if A == 1 {
        let b: &mut [u8; HEAD] = bytes.first_chunk_mut().expect(there);
        head.write(b);
        decrement_hop_limit(b);
    } else {
        let b: &mut [u8; HEAD_V6] = bytes.first_chunk_mut().expect(there);
        head.write(b);
        b[L3 + 7] = b[L3 + 7].wrapping_sub(1);
    }
    cut(frame, len, L3 + usize::from(ip_len));
}

/// The new addresses and ports of a packet, in the form of [`Usual`].
#[derive(Debug, Clone, Copy)]
pub struct Translation<const A: usize> {
    src: [u32; A],
    dst: [u32; A],
    ports: u32,
}

impl<const A: usize> Translation<A> {
    /// Takes the new source and destination: addresses in the form of [`Usual`], ports in host order.
    #[inline(always)]
    #[must_use]
    pub fn new((src, src_port): ([u32; A], u16), (dst, dst_port): ([u32; A], u16)) -> Self {
        let ports = u32::from(src_port.swap_bytes()) | u32::from(dst_port.swap_bytes()) << 16;
        Self { src, dst, ports }
    }
}

/// Rewrites a packet for `nat` or `fullnat`, in either direction. `new` has the old value of an address or port that
/// stays.
#[inline(always)]
pub fn translate<F: Frame, const A: usize>(
    frame: &mut F,
    old: &Usual<A>,
    head: LinkHead,
    new: &Translation<A>,
) {
    let bytes = frame.bytes_mut();
    let len = bytes.len();
    // Sums of the bytes as little-endian words: the sum does not depend on the order of bytes (RFC 1071, 2 (B)).
    let mut addresses = 0;
    for n in 0..A {
        addresses += u64::from(!old.src[n]) + u64::from(new.src[n]);
        addresses += u64::from(!old.dst[n]) + u64::from(new.dst[n]);
    }
    let there = "a checked packet has its headers";
    if A == 1 {
        let front: &mut [u8; HEAD] = bytes.first_chunk_mut().expect(there);
        head.write(front);
        front[L3 + 8] = front[L3 + 8].wrapping_sub(1);
        // 0xfffe is the checksum difference for a hop limit lowered by 1, in the low byte of its word.
        let check = u16::from_le_bytes([front[L3 + 10], front[L3 + 11]]);
        let check = !folded(u64::from(!check) + 0xfffe + addresses);
        front[L3 + 10..L3 + 12].copy_from_slice(&check.to_le_bytes());
        front[L3 + 12..L3 + 16].copy_from_slice(&new.src[0].to_le_bytes());
        front[L3 + 16..L3 + 20].copy_from_slice(&new.dst[0].to_le_bytes());
    } else {
        let front: &mut [u8; HEAD_V6] = bytes.first_chunk_mut().expect(there);
        head.write(front);
        front[L3 + 7] = front[L3 + 7].wrapping_sub(1);
        for (n, word) in new.src.iter().chain(&new.dst).enumerate() {
            front[L3 + 8 + 4 * n..L3 + 12 + 4 * n].copy_from_slice(&word.to_le_bytes());
        }
    }
    let all = addresses + u64::from(!old.ports) + u64::from(new.ports);
    let l4: &mut [u8; 8] = bytes[Usual::<A>::L4..].first_chunk_mut().expect(there);
    l4[..4].copy_from_slice(&new.ports.to_le_bytes());
    if old.proto == proto::TCP {
        let field: &mut [u8; 2] = bytes[Usual::<A>::L4 + 16..].first_chunk_mut().expect(there);
        *field = (!folded(u64::from(!u16::from_le_bytes(*field)) + all)).to_le_bytes();
    } else {
        let field: &mut [u8; 2] = l4[6..].first_chunk_mut().expect("it has eight bytes");
        let check = u16::from_le_bytes(*field);
        if check != 0 {
            let sum = !folded(u64::from(!check) + all);
            // A computed 0 is sent as 0xffff (RFC 768).
            *field = (if sum == 0 { 0xffff } else { sum }).to_le_bytes();
        }
    }
    cut(frame, len, L3 + usize::from(old.ip_len));
}

/// The outer IPv4 header of a packet in a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct OuterV4 {
    /// The headers behind the outer IPv4 header.
    pub encapsulation: Encapsulation,
    /// The source address, in the form of [`Usual`].
    pub source: u32,
    /// The backend's address, in the form of [`Usual`].
    pub destination: u32,
    /// The low bits of the flow's hash, for headers that have a field for them.
    pub flow_hash: u32,
}

/// Wraps a packet for a tunnel over IPv4, like [`tunnel::forward`](super::tunnel::forward), if it fits.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline(always)]
pub fn wrap_in_ipv4<F: Frame, const A: usize>(
    frame: &mut F,
    packet: &Usual<A>,
    head: LinkHead,
    outer: &OuterV4,
) -> Result<(), NoHeadroom> {
    let there = "a checked packet has its headers";
    let shim = outer.encapsulation.header_len();
    let front = HEAD + shim;
    // This writes only a bare IP header, or one with a UDP header without checksum.
    let udp_port = match outer.encapsulation {
        Encapsulation::Gue { variant: GueVariant::Direct, port } => Some(port),
        _ => None,
    };
    let headers = (shim > 0 && udp_port.is_none()).then(|| packet.headers(frame.bytes()));
    if !frame.grow_front(front - L3) {
        return Err(NoHeadroom);
    }
    // Ethernet padding of a short frame is not sent through the tunnel.
    let cut = frame.resize(front + usize::from(packet.ip_len));
    debug_assert!(cut, "a frame can always be cut to its packet");
    let (head_bytes, inner) = frame.bytes_mut().split_at_mut(front);
    let class = if A == 1 { inner[1] } else { inner[0] << 4 | inner[1] >> 4 };
    let b: &mut [u8; HEAD] = head_bytes.first_chunk_mut().expect("the front has the outer header");
    head.write(b);
    let proto = outer.encapsulation.protocol(if A == 1 { Family::V4 } else { Family::V6 });
    // The fields as little-endian words, since the sum does not depend on the order of bytes (RFC 1071, 2 (B)): version,
    // length of the header, traffic class and length; DF; hop limit and protocol.
    let total_len = packet.ip_len + (ipv4::HEADER_LEN + shim) as u16;
    let first = 0x45 | u32::from(class) << 8 | u32::from(total_len.swap_bytes()) << 16;
    let (second, third) = (0x0040_0000_u32, u32::from(OUTER_HOP_LIMIT) | u32::from(proto) << 8);
    let sum = u64::from(first) + u64::from(second) + u64::from(third);
    let check = !folded(sum + u64::from(outer.source) + u64::from(outer.destination));
    b[12..14].copy_from_slice(&ether_type::IPV4.to_be_bytes());
    b[L3..L3 + 4].copy_from_slice(&first.to_le_bytes());
    b[L3 + 4..L3 + 8].copy_from_slice(&second.to_le_bytes());
    b[L3 + 8..L3 + 12].copy_from_slice(&(third | u32::from(check) << 16).to_le_bytes());
    b[L3 + 12..L3 + 16].copy_from_slice(&outer.source.to_le_bytes());
    b[L3 + 16..L3 + 20].copy_from_slice(&outer.destination.to_le_bytes());
    if A == 1 {
        let ip: &mut [u8; 12] = inner.first_chunk_mut().expect(there);
        ip[8] = ip[8].wrapping_sub(1);
        let check = after_hop(u16::from_be_bytes([ip[10], ip[11]]));
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        inner[7] = inner[7].wrapping_sub(1);
    }
    if let Some(dst_port) = udp_port {
        let (src_port, len) = (source_port(outer.flow_hash), packet.ip_len + udp::HEADER_LEN as u16);
        let header = UdpHeader { src_port, dst_port, len };
        head_bytes[HEAD..HEAD + udp::HEADER_LEN].copy_from_slice(&header.bytes());
    }
    if let Some(h) = headers {
        let (source, destination) = (addr([outer.source]), addr([outer.destination]));
        let ends = Ends { source: &source, destination: &destination, flow_hash: outer.flow_hash };
        outer.encapsulation.write(&mut head_bytes[HEAD..], inner, &h, &ends);
    }
    Ok(())
}

/// Adds the end-around carries of a sum of at most 2^37. A non-zero sum never folds to 0.
#[inline(always)]
fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    // The second sum is at most 0xffff + 2, so a third one has at most 16 bits.
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[inline(always)]
fn decrement_hop_limit(b: &mut [u8; HEAD]) {
    b[L3 + 8] = b[L3 + 8].wrapping_sub(1);
    let check = after_hop(u16::from_be_bytes([b[L3 + 10], b[L3 + 11]]));
    b[L3 + 10..L3 + 12].copy_from_slice(&check.to_be_bytes());
}

/// Cuts the bytes behind the packet, but keeps the padding of a short frame.
#[inline(always)]
fn cut<F: Frame>(frame: &mut F, len: usize, end: usize) {
    if len > ethernet::FRAME_LEN_MIN && len > end {
        cut_trailer(frame, end);
    }
}
