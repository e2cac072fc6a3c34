//! The transport step of the header checks, shared by both families: lengths, ports, and the few fields that the
//! pipeline reads. Only `ipv4` and `ipv6` call it, never for later fragments.

use super::headers::{Family, L4Checksum, proto};
use super::malformed::Malformed;
use super::sctp;

/// The contents of the transport header; the fields are those of `Headers`.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) tcp_flags: u8,
    pub(crate) icmp_type: u8,
    pub(crate) icmp_code: u8,
    pub(crate) l4_checksum: L4Checksum,
}

impl Transport {
    /// The result for a later fragment, or for a protocol that is not parsed.
    pub(crate) const UNKNOWN: Transport = Transport {
        src_port: 0,
        dst_port: 0,
        tcp_flags: 0,
        icmp_type: 0,
        icmp_code: 0,
        l4_checksum: L4Checksum::None,
    };
}

/// Checks the transport header at the start of `payload`, which ends with the IP packet, and sets its fields in `t`.
/// `whole` is false for a first fragment.
///
/// Always inlined, so that each header field is written once, at its final address. A value that is built in parts in
/// memory and then copied, such as a `Result` with a struct, stalls: the wide loads of the copy wait for the narrow
/// stores. Such stalls took half of the time of `parse`.
#[inline(always)]
pub(crate) fn parse(
    t: &mut Transport,
    proto: u8,
    family: Family,
    whole: bool,
    payload: &[u8],
) -> Result<(), Malformed> {
    match (proto, family) {
        (proto::TCP, _) => {
            let b: &[u8; 20] = payload.first_chunk().ok_or(Malformed::TcpTruncated)?;
            let header_len = usize::from(b[12] >> 4) * 4;
            if header_len < 20 || header_len > payload.len() {
                return Err(Malformed::TcpDataOffset);
            }
            t.ports(b[0], b[1], b[2], b[3]);
            t.tcp_flags = b[13];
            t.l4_checksum = L4Checksum::Tcp;
        }
        (proto::UDP, _) => {
            let b: &[u8; 8] = payload.first_chunk().ok_or(Malformed::UdpTruncated)?;
            let len = usize::from(u16::from_be_bytes([b[4], b[5]]));
            // A first fragment has the length of the whole datagram. A length shorter than the IP payload is valid: UDP
            // options (RFC 9868) follow the datagram.
            if len < 8 || (len > payload.len() && whole) {
                return Err(Malformed::UdpLength);
            }
            t.ports(b[0], b[1], b[2], b[3]);
            t.l4_checksum = if b[6] | b[7] == 0 { L4Checksum::UdpZero } else { L4Checksum::Udp };
        }
        (proto::SCTP, _) => {
            let b: &[u8; 12] = payload.first_chunk().ok_or(Malformed::SctpTruncated)?;
            t.ports(b[0], b[1], b[2], b[3]);
            t.tcp_flags = sctp::kind(payload).0 as u8;
            t.l4_checksum = L4Checksum::Sctp;
        }
        (proto::ICMP, Family::V4) => {
            let b: &[u8; 8] = payload.first_chunk().ok_or(Malformed::IcmpTruncated)?;
            t.icmp(b, matches!(b[0], 0 | 8));
            t.l4_checksum = L4Checksum::Icmp;
        }
        (proto::ICMPV6, Family::V6) => {
            let b: &[u8; 8] = payload.first_chunk().ok_or(Malformed::Icmpv6Truncated)?;
            t.icmp(b, matches!(b[0], 128 | 129));
            t.l4_checksum = L4Checksum::Icmpv6;
        }
        _ => {}
    }
    Ok(())
}

impl Transport {
    #[inline(always)]
    fn ports(&mut self, a: u8, b: u8, c: u8, d: u8) {
        self.src_port = u16::from_be_bytes([a, b]);
        self.dst_port = u16::from_be_bytes([c, d]);
    }

    #[inline(always)]
    fn icmp(&mut self, b: &[u8; 8], echo: bool) {
        self.icmp_type = b[0];
        self.icmp_code = b[1];
        if echo {
            self.ports(b[4], b[5], b[4], b[5]);
        }
    }
}
