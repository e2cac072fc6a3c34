//! The transport step of the header checks, shared by both families: lengths, ports, and the few flags the
//! pipeline asks for. Only `ipv4` and `ipv6` call it, never for later fragments.

use super::headers::{Family, Headers, L4Checksum, proto};
use super::malformed::Malformed;

/// Checks the transport header that begins `payload` and fills its fields in `h`. `payload` ends with the IP
/// packet. `h.proto`, `h.family` and `h.fragment` are set already.
#[inline]
pub(crate) fn parse(h: &mut Headers, payload: &[u8]) -> Result<(), Malformed> {
    match h.proto {
        proto::TCP => {
            let t: &[u8; 20] = payload.first_chunk().ok_or(Malformed::TcpTruncated)?;
            let header_len = usize::from(t[12] >> 4) * 4;
            if header_len < 20 || header_len > payload.len() {
                return Err(Malformed::TcpDataOffset);
            }
            ports(h, t[0], t[1], t[2], t[3]);
            h.tcp_flags = t[13];
            h.l4_checksum = L4Checksum::Tcp;
        }
        proto::UDP => {
            let u: &[u8; 8] = payload.first_chunk().ok_or(Malformed::UdpTruncated)?;
            let len = usize::from(u16::from_be_bytes([u[4], u[5]]));
            // A first fragment carries the length of the whole datagram. A length below that of the IP payload is
            // legal: UDP options (RFC 9868) live behind it.
            if len < 8 || (len > payload.len() && !h.is_fragment()) {
                return Err(Malformed::UdpLength);
            }
            ports(h, u[0], u[1], u[2], u[3]);
            h.l4_checksum = if u[6] | u[7] == 0 { L4Checksum::UdpZero } else { L4Checksum::Udp };
        }
        proto::SCTP => {
            let s: &[u8; 12] = payload.first_chunk().ok_or(Malformed::SctpTruncated)?;
            ports(h, s[0], s[1], s[2], s[3]);
            h.l4_checksum = L4Checksum::Sctp;
        }
        proto::ICMP if h.family == Family::V4 => {
            let i: &[u8; 8] = payload.first_chunk().ok_or(Malformed::IcmpTruncated)?;
            icmp(h, i, i[0] == 8 || i[0] == 0);
            h.l4_checksum = L4Checksum::Icmp;
        }
        proto::ICMPV6 if h.family == Family::V6 => {
            let i: &[u8; 8] = payload.first_chunk().ok_or(Malformed::Icmpv6Truncated)?;
            icmp(h, i, i[0] == 128 || i[0] == 129);
            h.l4_checksum = L4Checksum::Icmpv6;
        }
        _ => {}
    }
    Ok(())
}

#[inline]
fn ports(h: &mut Headers, a: u8, b: u8, c: u8, d: u8) {
    h.src_port = u16::from_be_bytes([a, b]);
    h.dst_port = u16::from_be_bytes([c, d]);
}

#[inline]
fn icmp(h: &mut Headers, i: &[u8; 8], echo: bool) {
    h.icmp_type = i[0];
    h.icmp_code = i[1];
    if echo {
        ports(h, i[4], i[5], i[4], i[5]);
    }
}
