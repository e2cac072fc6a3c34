//! TCP (RFC 9293): flags, a typed view of a segment, and the reset that answers a segment.

use super::checksum::Sum;
use super::ethernet::{self, EthernetHeader, MacAddr, SmallFrame, ether_type};
use super::headers::{Family, Headers, L4Checksum, proto};
use super::ipv4::Ipv4Header;
use super::ipv6::Ipv6Header;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The lower eight control bits.
pub mod flags {
    #![allow(missing_docs, reason = "the names are those of RFC 9293 3.1")]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// The fields of a segment that a reset or a state machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number. It has no meaning without ACK.
    pub ack: u32,
    /// Control bits.
    pub flags: u8,
    /// Header with options, in bytes.
    pub header_len: u8,
    /// SEG.LEN: the number of data bytes, plus one each for SYN and FIN.
    pub len: u32,
}

/// The segment of a checked frame; `None` if it is not TCP, or is a fragment (whose length is unknown).
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn segment(frame: &[u8], h: &Headers) -> Option<Segment> {
    if h.l4_checksum != L4Checksum::Tcp || h.is_fragment() {
        return None;
    }
    let tcp = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let t: &[u8; HEADER_LEN] = tcp.first_chunk().expect("parse saw a whole TCP header");
    let header_len = (t[12] >> 4) * 4;
    let phantom = u32::from(h.tcp_flags & flags::SYN != 0) + u32::from(h.tcp_flags & flags::FIN != 0);
    Some(Segment {
        seq: u32::from_be_bytes([t[4], t[5], t[6], t[7]]),
        ack: u32::from_be_bytes([t[8], t[9], t[10], t[11]]),
        flags: h.tcp_flags,
        header_len,
        len: (tcp.len() - usize::from(header_len)) as u32 + phantom,
    })
}

/// The reset that answers a segment without a connection (RFC 9293 3.5.2, group 1), sent from `mac` back to the station
/// that sent the frame.
///
/// `None` if no reset may be sent: for other protocols, for resets and fragments, and if the source or destination is
/// not a single host.
///
/// # Panics
/// When `h` does not belong to this frame.
pub fn reset(frame: &[u8], h: &Headers, mac: MacAddr) -> Option<SmallFrame> {
    let segment = segment(frame, h)?;
    if segment.flags & flags::RST != 0 || !h.src.is_single_host() || !h.dst.is_single_host() {
        return None;
    }
    let (seq, ack, control) = if segment.flags & flags::ACK != 0 {
        (segment.ack, 0, flags::RST)
    } else {
        (0, segment.seq.wrapping_add(segment.len), flags::RST | flags::ACK)
    };
    let mut tcp = [0; HEADER_LEN];
    tcp[..2].copy_from_slice(&h.dst_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&h.src_port.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = control;
    let pseudo = Sum::pseudo_header(h.family, &h.dst, &h.src, proto::TCP, HEADER_LEN as u32);
    let check = pseudo.bytes(&tcp).finish();
    tcp[16..18].copy_from_slice(&check.to_be_bytes());

    let mut out = [0; 18 + 40 + HEADER_LEN];
    let l3 = answer_headers(&mut out, frame, h, mac, proto::TCP, HEADER_LEN as u16);
    out[l3..l3 + HEADER_LEN].copy_from_slice(&tcp);
    Some(SmallFrame::try_from(&out[..l3 + HEADER_LEN]).expect("78 bytes at most, the frame has 128"))
}

/// Writes the Ethernet and IP headers of an answer from `h.dst` to `h.src`, and returns the offset of its payload.
fn answer_headers(
    out: &mut [u8],
    frame: &[u8],
    h: &Headers,
    mac: MacAddr,
    proto: u8,
    payload_len: u16,
) -> usize {
    let ether_type = match h.family {
        Family::V4 => ether_type::IPV4,
        Family::V6 => ether_type::IPV6,
    };
    let l2 = EthernetHeader { dst: ethernet::source(frame), src: mac, vlan: h.vlan, ether_type }.write(out);
    let l3 = match h.family {
        Family::V4 => Ipv4Header {
            total_len: 20 + payload_len,
            tos: 0,
            id: 0,
            dont_fragment: true,
            ttl: 64,
            proto,
            src: Ipv4Addr::from(h.dst.v4_bytes()),
            dst: Ipv4Addr::from(h.src.v4_bytes()),
        }
        .write(&mut out[l2..]),
        Family::V6 => Ipv6Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len,
            next_header: proto,
            hop_limit: 64,
            src: Ipv6Addr::from(*h.dst.bytes()),
            dst: Ipv6Addr::from(*h.src.bytes()),
        }
        .write(&mut out[l2..]),
    };
    l2 + l3
}
