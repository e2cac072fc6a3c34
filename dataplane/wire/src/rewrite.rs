//! In-place changes of a checked packet: addresses and ports (NAT), hop limit, traffic class.
//!
//! Every change updates the checksums by difference, so a packet that arrives damaged leaves equally damaged and the
//! end host detects it. The `Headers` are updated together with the frame. The forwarding modes choose the new values.
//!
//! Invariant: only the named fields and the checksums over them change (`tests/rewrites.rs` compares the bytes).

use super::addr::Addr;
use super::checksum::{Delta, after_hop};
use super::headers::{Family, Headers, L4Checksum};
use super::ipv4;
use super::sctp::Kind;
use super::sctp_parameters;

/// An address and a port that replace another pair of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Address.
    pub addr: Addr,
    /// Port; for ICMP echo the identifier.
    pub port: u16,
}

/// The packet is the first fragment of an SCTP packet whose ports or parameters would change. The gateway can't update
/// the CRC, because it also covers bytes in other fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checksum of a fragmented SCTP packet cannot be updated when the gateway changes the packet")]
pub struct SctpFragment;

/// Replaces source and/or destination in the IP header and in TCP, UDP and SCTP ports. In later fragments it replaces
/// only the addresses. An INIT or INIT ACK loses its offer of address changes, and also its list of addresses if its
/// source is replaced ([`sctp_parameters::hide`]). In an ICMP echo request `src.port` becomes the identifier, in a
/// reply `dst.port` does.
///
/// # Errors
/// [`SctpFragment`]; nothing has changed then.
///
/// # Panics
/// When `h` does not belong to this frame, or an endpoint has the other family.
// Inlined because a call per packet would cost the NAT modes 12 instructions.
#[inline(always)]
pub fn translate(
    frame: &mut [u8],
    h: &mut Headers,
    src: Option<Endpoint>,
    dst: Option<Endpoint>,
) -> Result<(), SctpFragment> {
    let new_src_port = src.map_or(h.src_port, |e| e.port);
    let new_dst_port = dst.map_or(h.dst_port, |e| e.port);
    if h.l4_checksum == L4Checksum::Sctp
        && h.is_fragment()
        && changes_sctp(frame, h, src.is_some(), (new_src_port, new_dst_port))
    {
        return Err(SctpFragment);
    }
    let addresses = match h.family {
        Family::V4 => replace_v4(frame, h, src.map(|e| e.addr), dst.map(|e| e.addr)),
        Family::V6 => replace_v6(frame, h, src.map(|e| e.addr), dst.map(|e| e.addr)),
    };
    let l4 = usize::from(h.l4);
    match h.l4_checksum {
        L4Checksum::Tcp => {
            let t: &mut [u8; 20] = frame[l4..].first_chunk_mut().expect("parse saw a whole TCP header");
            let delta = replace_ports(addresses, &mut t[..4], h, new_src_port, new_dst_port);
            let check = delta.apply(u16::from_be_bytes([t[16], t[17]]));
            t[16..18].copy_from_slice(&check.to_be_bytes());
        }
        L4Checksum::Udp | L4Checksum::UdpZero => {
            let u: &mut [u8; 8] = frame[l4..].first_chunk_mut().expect("parse saw a whole UDP header");
            let delta = replace_ports(addresses, &mut u[..4], h, new_src_port, new_dst_port);
            if h.l4_checksum == L4Checksum::Udp {
                let check = delta.apply_udp(u16::from_be_bytes([u[6], u[7]]));
                u[6..8].copy_from_slice(&check.to_be_bytes());
            }
        }
        L4Checksum::Sctp => translate_sctp(frame, h, src.is_some(), (new_src_port, new_dst_port)),
        L4Checksum::Icmp => translate_icmp(frame, h, Delta::new(), src, dst),
        L4Checksum::Icmpv6 => translate_icmp(frame, h, addresses, src, dst),
        L4Checksum::None => {}
    }
    Ok(())
}

/// Replaces IPv4 addresses. Returns the delta for the pseudo header.
#[inline]
fn replace_v4(frame: &mut [u8], h: &mut Headers, src: Option<Addr>, dst: Option<Addr>) -> Delta {
    let ip: &mut [u8; 20] =
        frame[usize::from(h.l3)..].first_chunk_mut().expect("parse saw a whole IPv4 header");
    let mut delta = Delta::new();
    if let Some(new) = src {
        assert!(new.is_v4(), "an IPv4 packet is given IPv4 addresses");
        delta = delta.u32(u32::from_be_bytes(h.src.v4_bytes()), u32::from_be_bytes(new.v4_bytes()));
        ip[12..16].copy_from_slice(&new.v4_bytes());
        h.src = new;
    }
    if let Some(new) = dst {
        assert!(new.is_v4(), "an IPv4 packet is given IPv4 addresses");
        delta = delta.u32(u32::from_be_bytes(h.dst.v4_bytes()), u32::from_be_bytes(new.v4_bytes()));
        ip[16..20].copy_from_slice(&new.v4_bytes());
        h.dst = new;
    }
    ipv4::apply_delta(ip, delta);
    delta
}

/// Replaces IPv6 addresses. Returns the delta for the pseudo header. If a routing header has segments left, the pseudo
/// header should contain its last address instead (RFC 8200 8.1), but such packets are addressed to a router on the
/// path, never to a service.
#[inline]
fn replace_v6(frame: &mut [u8], h: &mut Headers, src: Option<Addr>, dst: Option<Addr>) -> Delta {
    let ip: &mut [u8; 40] =
        frame[usize::from(h.l3)..].first_chunk_mut().expect("parse saw a whole IPv6 header");
    let mut delta = Delta::new();
    if let Some(new) = src {
        assert!(!new.is_v4(), "an IPv6 packet is given IPv6 addresses");
        delta = delta.bytes16(h.src.bytes(), new.bytes());
        ip[8..24].copy_from_slice(new.bytes());
        h.src = new;
    }
    if let Some(new) = dst {
        assert!(!new.is_v4(), "an IPv6 packet is given IPv6 addresses");
        delta = delta.bytes16(h.dst.bytes(), new.bytes());
        ip[24..40].copy_from_slice(new.bytes());
        h.dst = new;
    }
    delta
}

#[inline]
fn replace_ports(delta: Delta, ports: &mut [u8], h: &mut Headers, src: u16, dst: u16) -> Delta {
    let delta = delta.u16(h.src_port, src).u16(h.dst_port, dst);
    ports[..2].copy_from_slice(&src.to_be_bytes());
    ports[2..4].copy_from_slice(&dst.to_be_bytes());
    h.src_port = src;
    h.dst_port = dst;
    delta
}

/// Whether the bytes of an SCTP packet change if it gets these ports (source, destination).
#[cold]
#[inline(never)]
#[must_use]
pub fn changes_sctp(frame: &[u8], h: &Headers, hides_source: bool, ports: (u16, u16)) -> bool {
    ports != (h.src_port, h.dst_port)
        || (sctp_parameters::concerns(Kind::from_bits(h.tcp_flags))
            && frame
                .get(usize::from(h.l4)..usize::from(h.ip_end))
                .is_some_and(|packet| sctp_parameters::would_hide(packet, hides_source)))
}

/// CRC32c is linear: for two packets of one length, crc(a) ^ crc(b) depends only on a ^ b. Applying that difference to
/// the received field keeps a damaged packet damaged; a recomputed CRC would hide the damage.
#[cold]
#[inline(never)]
fn translate_sctp(frame: &mut [u8], h: &mut Headers, hides_source: bool, (src, dst): (u16, u16)) {
    if !changes_sctp(frame, h, hides_source, (src, dst)) {
        return;
    }
    let packet = &mut frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let before = super::sctp::crc32c(packet);
    packet[..2].copy_from_slice(&src.to_be_bytes());
    packet[2..4].copy_from_slice(&dst.to_be_bytes());
    if sctp_parameters::concerns(Kind::from_bits(h.tcp_flags)) {
        sctp_parameters::hide(packet, hides_source);
    }
    let after = super::sctp::crc32c(packet);
    for (field, (b, a)) in packet[8..12].iter_mut().zip(before.iter().zip(after)) {
        *field ^= b ^ a;
    }
    h.src_port = src;
    h.dst_port = dst;
}

#[cold]
#[inline(never)]
fn translate_icmp(
    frame: &mut [u8],
    h: &mut Headers,
    mut delta: Delta,
    src: Option<Endpoint>,
    dst: Option<Endpoint>,
) {
    let identifier = match (h.family, h.icmp_type) {
        (Family::V4, 8) | (Family::V6, 128) => src,
        (Family::V4, 0) | (Family::V6, 129) => dst,
        _ => None,
    };
    let l4 = usize::from(h.l4);
    let i: &mut [u8; 8] = frame[l4..].first_chunk_mut().expect("parse saw 8 bytes of ICMP");
    if let Some(new) = identifier {
        delta = delta.u16(h.src_port, new.port);
        i[4..6].copy_from_slice(&new.port.to_be_bytes());
        h.src_port = new.port;
        h.dst_port = new.port;
    }
    let check = delta.apply(u16::from_be_bytes([i[2], i[3]]));
    i[2..4].copy_from_slice(&check.to_be_bytes());
}

/// Sets the DSCP, which is below 64. The ECN bits of the same byte stay (RFC 2474 section 3, RFC 3168 section 5).
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn set_dscp(frame: &mut [u8], h: &Headers, dscp: u8) {
    let packet = &mut frame[usize::from(h.l3)..];
    match h.family {
        Family::V4 => {
            let ip: &mut [u8; 20] = packet.first_chunk_mut().expect("parse saw a whole IPv4 header");
            let before = u16::from_be_bytes([ip[0], ip[1]]);
            ip[1] = dscp << 2 | ip[1] & 3;
            let delta = Delta::new().u16(before, u16::from_be_bytes([ip[0], ip[1]]));
            ipv4::apply_delta(ip, delta);
        }
        // Version, traffic class and flow label (RFC 8200 section 3).
        Family::V6 => {
            packet[0] = packet[0] & 0xf0 | dscp >> 2;
            packet[1] = dscp << 6 | packet[1] & 0x3f;
        }
    }
}

/// Decrements the TTL or hop limit, which must be above 1, of the packet that `packet` starts with. The offsets in `h`
/// are ignored, and `h` doesn't change.
///
/// # Panics
/// When the packet is shorter than `h` requires.
#[inline(always)]
pub fn take_hop(packet: &mut [u8], h: &Headers) {
    debug_assert!(h.ttl > 1, "packets whose hop limit expires are answered");
    match h.family {
        Family::V4 => {
            let ip: &mut [u8; 20] = packet.first_chunk_mut().expect("parse saw a whole IPv4 header");
            ip[8] = h.ttl.wrapping_sub(1);
            let check = after_hop(u16::from_be_bytes([ip[10], ip[11]]));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
        }
        Family::V6 => packet[7] = h.ttl.wrapping_sub(1),
    }
}
