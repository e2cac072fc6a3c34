//! A fast path of the header checks for untagged, unfragmented IPv4 packets without options, with TCP or UDP.
//!
//! Nearly every packet is one. Its headers are at fixed offsets, so the checks of [`super::parse`] need no branch
//! that traffic could mispredict (TCP and UDP may alternate) and everything stays in registers. It takes a third of
//! the instructions of the full parser, which handles all other packets and all errors. The pipeline calls it.
//!
//! Invariant: if this returns `Some`, `parse` returns the same headers (a property in `tests/checks.rs`).

use std::hint::select_unpredictable;

use super::addr::Addr;
use super::headers::{Family, Fragment, Headers, L4Checksum, proto};
use super::ipv4;

/// The length of the Ethernet and IPv4 headers and the TCP header up to its flags.
const LEN: usize = 48;
const L3: usize = 14;
const L4: usize = L3 + ipv4::HEADER_LEN;

/// The headers of a usual packet. `None` does not mean that the packet is invalid.
///
/// Always inlined, for the reason given at `transport::parse`.
#[inline(always)]
#[must_use]
pub fn parse(frame: &[u8]) -> Option<Headers> {
    let b: &[u8; LEN] = frame.first_chunk()?;
    let ip: &[u8; ipv4::HEADER_LEN] = b[L3..].first_chunk()?;
    let be16 = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    // The ethertype of IPv4, then version 4 and a header of five words.
    if be16(12) != 0x0800 || ip[0] != 0x45 || ipv4::is_fragment(ip) {
        return None;
    }
    let is_tcp = ip[9] == proto::TCP;
    if !(is_tcp | (ip[9] == proto::UDP)) {
        return None;
    }
    let total_len = be16(L3 + 2);
    // The data offset of TCP and the length of UDP are at least the length of their header and within the packet. So
    // the header, and all that is read here, is within the packet.
    let tcp_len = u32::from(b[L4 + 12] >> 4) * 4;
    let len = select_unpredictable(is_tcp, tcp_len, u32::from(be16(L4 + 4)));
    let len_min = select_unpredictable(is_tcp, 20, 8);
    let ip_end = L3 + usize::from(total_len);
    if len < len_min
        || ipv4::HEADER_LEN as u32 + len > u32::from(total_len)
        || ip_end > frame.len()
        || frame.len() > usize::from(u16::MAX)
        || !ipv4::sum_ok(ip)
    {
        return None;
    }
    let udp = if be16(L4 + 6) == 0 { L4Checksum::UdpZero } else { L4Checksum::Udp };
    Some(Headers {
        src: Addr::v4([ip[12], ip[13], ip[14], ip[15]]),
        dst: Addr::v4([ip[16], ip[17], ip[18], ip[19]]),
        fragment: Fragment::None,
        l4: L4 as u16,
        ip_end: ip_end as u16,
        src_port: be16(L4),
        dst_port: be16(L4 + 2),
        vlan: None,
        l3: L3 as u8,
        family: Family::V4,
        proto: ip[9],
        tcp_flags: select_unpredictable(is_tcp, b[L4 + 13], 0),
        icmp_type: 0,
        icmp_code: 0,
        ttl: ip[8],
        tos: ip[1],
        dont_fragment: ipv4::dont_fragment(ip),
        l4_checksum: select_unpredictable(is_tcp, L4Checksum::Tcp, udp),
    })
}
