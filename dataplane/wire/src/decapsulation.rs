//! Finds the packet in the tunnel packet of another gateway, and propagates its ECN field (RFC 6040).
//!
//! | | read | source |
//! |---|---|---|
//! | IP-in-IP | IPv4 and IPv6 in either family | RFC 2003, RFC 2473, RFC 4213 |
//! | GUE, port 6080 | variant 1, and variant 0 without flags | draft-ietf-intarea-gue-09 sections 3 and 4 |
//! | GRE | with and without a key; no checksum, no sequence numbers | RFC 2784, RFC 2890 |
//! | Geneve, port 6081 | options that are not critical are skipped | RFC 8926 |
//!
//! The caller decides from which senders packets are decapsulated.

use super::checksum::{Delta, Sum};
use super::encapsulation::{GENEVE_PORT, GUE_PORT};
use super::ethernet::ether_type;
use super::headers::{Family, Headers, L4Checksum, proto};
use super::{ipv4, udp};

/// Why a tunnel packet is not decapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The outer packet is a fragment.
    #[error("the outer packet is a fragment")]
    Fragment,
    /// The headers of the tunnel are truncated, have an unsupported format, or contain no IP packet.
    #[error("the headers of the tunnel cannot be read")]
    Headers,
    /// The outer packet reports congestion, and the inner sender doesn't support ECN (RFC 6040 section 4.2).
    #[error("the tunnel reports congestion, but the inner packet does not support ECN")]
    Congestion,
}

/// Whether a packet has a protocol or a port of a tunnel.
#[must_use]
pub fn is_tunnel(h: &Headers) -> bool {
    match h.proto {
        proto::IPIP | proto::IPV6 | proto::GRE => true,
        proto::UDP => matches!(h.dst_port, GUE_PORT | GENEVE_PORT),
        _ => false,
    }
}

/// Offset of the inner packet in a frame with a tunnel packet, and the family of the inner packet.
///
/// # Errors
/// [`Closed::Fragment`] and [`Closed::Headers`].
pub fn inner(frame: &[u8], h: &Headers) -> Result<(usize, Family), Closed> {
    if h.is_fragment() {
        return Err(Closed::Fragment);
    }
    let (l4, end) = (usize::from(h.l4), usize::from(h.ip_end));
    let payload = frame.get(l4..end).ok_or(Closed::Headers)?;
    let (headers, family) = match h.proto {
        proto::IPIP => (0, Some(Family::V4)),
        proto::IPV6 => (0, Some(Family::V6)),
        proto::GRE => gre(payload)?,
        _ => {
            let behind = udp_payload(payload, h)?;
            let (headers, family) = if h.dst_port == GENEVE_PORT { geneve(behind)? } else { gue(behind)? };
            (udp::HEADER_LEN + headers, family)
        }
    };
    let found = match payload.get(headers).map(|byte| byte >> 4) {
        Some(4) => Family::V4,
        Some(6) => Family::V6,
        _ => return Err(Closed::Headers),
    };
    if family.is_some_and(|family| family != found) {
        return Err(Closed::Headers);
    }
    Ok((l4 + headers, found))
}

/// Propagates congestion that the outer packet reports to `packet`, the inner one.
///
/// # Errors
/// [`Closed::Congestion`]; the packet is then unchanged.
pub fn take_congestion(packet: &mut [u8], family: Family, outer_tos: u8) -> Result<(), Closed> {
    let Some(&[first, second]) = packet.first_chunk() else { return Err(Closed::Headers) };
    match family {
        Family::V4 => {
            let ip: &mut [u8; ipv4::HEADER_LEN] = packet.first_chunk_mut().ok_or(Closed::Headers)?;
            let tos = second & !3 | ecn(outer_tos & 3, second & 3)?;
            ip[1] = tos;
            let words = [second, tos].map(|tos| u16::from_be_bytes([first, tos]));
            ipv4::apply_delta(ip, Delta::new().u16(words[0], words[1]));
        }
        // Version, traffic class and flow label (RFC 8200 section 3).
        Family::V6 => packet[1] = second & !0x30 | ecn(outer_tos & 3, second >> 4 & 3)? << 4,
    }
    Ok(())
}

/// The ECN field of a packet that leaves its tunnel (RFC 6040 section 4.2).
fn ecn(outer: u8, inner: u8) -> Result<u8, Closed> {
    const NOT_ECT: u8 = 0;
    const ECT_1: u8 = 1;
    const CE: u8 = 3;
    match (inner, outer) {
        (NOT_ECT, CE) => Err(Closed::Congestion),
        (NOT_ECT, _) | (CE, _) => Ok(inner),
        (_, CE) => Ok(CE),
        (_, ECT_1) => Ok(ECT_1),
        _ => Ok(inner),
    }
}

/// The bytes after a UDP header with a correct checksum. IPv6 packets without one are refused (RFC 8200 section 8.1).
fn udp_payload<'p>(payload: &'p [u8], h: &Headers) -> Result<&'p [u8], Closed> {
    let Some(&[_, _, _, _, a, b, ..]) = payload.first_chunk::<{ udp::HEADER_LEN }>() else {
        return Err(Closed::Headers);
    };
    let len = u16::from_be_bytes([a, b]);
    let datagram = payload.get(..usize::from(len)).ok_or(Closed::Headers)?;
    let has_sum = h.l4_checksum != L4Checksum::UdpZero;
    let sum = Sum::pseudo_header(h.family, &h.src, &h.dst, proto::UDP, len.into()).bytes(datagram);
    if has_sum && sum.finish() != 0 || !has_sum && h.family == Family::V6 {
        return Err(Closed::Headers);
    }
    datagram.get(udp::HEADER_LEN..).ok_or(Closed::Headers)
}

type Inner = (usize, Option<Family>);

fn gue(behind: &[u8]) -> Result<Inner, Closed> {
    match behind.first_chunk::<4>().ok_or(Closed::Headers)? {
        // Variant 1: the first bits are an IP version.
        [first, ..] if first >> 6 == 1 => Ok((0, None)),
        // Variant 0, no control message, no optional fields, no flags.
        [0, proto::IPIP, 0, 0] => Ok((4, Some(Family::V4))),
        [0, proto::IPV6, 0, 0] => Ok((4, Some(Family::V6))),
        _ => Err(Closed::Headers),
    }
}

fn gre(payload: &[u8]) -> Result<Inner, Closed> {
    let &[a, b, c, d] = payload.first_chunk::<4>().ok_or(Closed::Headers)?;
    let family = family_of(u16::from_be_bytes([c, d]))?;
    match [a, b] {
        [0, 0] => Ok((4, Some(family))),
        // A key.
        [0x20, 0] => Ok((8, Some(family))),
        _ => Err(Closed::Headers),
    }
}

fn geneve(behind: &[u8]) -> Result<Inner, Closed> {
    let &[first, flags, c, d, ..] = behind.first_chunk::<8>().ok_or(Closed::Headers)?;
    // Version 0; no control packet, no critical option (RFC 8926 section 3.4).
    if first >> 6 != 0 || flags & 0xc0 != 0 {
        return Err(Closed::Headers);
    }
    Ok((8 + usize::from(first & 0x3f) * 4, Some(family_of(u16::from_be_bytes([c, d]))?)))
}

fn family_of(kind: u16) -> Result<Family, Closed> {
    match kind {
        ether_type::IPV4 => Ok(Family::V4),
        ether_type::IPV6 => Ok(Family::V6),
        _ => Err(Closed::Headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6040 figure 4: for each inner field the result with the outer Not-ECT, ECT(0), ECT(1), CE.
    const FIGURE_4: [(u8, [Option<u8>; 4]); 4] = [
        (0b00, [Some(0b00), Some(0b00), Some(0b00), None]),
        (0b10, [Some(0b10), Some(0b10), Some(0b01), Some(0b11)]),
        (0b01, [Some(0b01), Some(0b01), Some(0b01), Some(0b11)]),
        (0b11, [Some(0b11), Some(0b11), Some(0b11), Some(0b11)]),
    ];

    #[test]
    fn congestion_is_propagated_as_the_rfc_requires_and_dscp_stays() {
        for (inner, results) in FIGURE_4 {
            for (outer, expected) in [0b00, 0b10, 0b01, 0b11].into_iter().zip(results) {
                let mut v4 = [0x45, 0xb8 | inner, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
                let sum = super::super::checksum::checksum(&v4);
                v4[10..12].copy_from_slice(&sum.to_be_bytes());
                let mut v6 = [0x6b, 0x85 | inner << 4, 0xaa, 0xaa];
                let (before4, before6) = (v4, v6);
                let taken = [
                    take_congestion(&mut v4, Family::V4, 0xfc | outer),
                    take_congestion(&mut v6, Family::V6, outer),
                ];
                match expected {
                    Some(ecn) => {
                        assert_eq!(taken, [Ok(()); 2]);
                        assert_eq!((v4[1], v6), (0xb8 | ecn, [0x6b, 0x85 | ecn << 4, 0xaa, 0xaa]));
                        assert_eq!(super::super::checksum::checksum(&v4), 0);
                    }
                    None => {
                        assert_eq!(taken, [Err(Closed::Congestion); 2]);
                        assert_eq!((v4, v6), (before4, before6));
                    }
                }
            }
        }
    }
}
