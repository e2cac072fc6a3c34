//! Puts a PROXY protocol header in front of a client's data, and adjusts the sequence numbers of
//! both directions (`nat` and `fullnat`).
//!
//! The functions change bytes inside one packet; [`nat`](super::nat) and [`fullnat`](super::fullnat) then replace its
//! addresses. All checksums are updated by difference.

use tidegate_conntrack::Stream;
use tidegate_wire::checksum::{Delta, Sum};
use tidegate_wire::ethernet;
use tidegate_wire::tcp::{self, flags};
use tidegate_wire::tcp_options::{self, kind};
use tidegate_wire::udp;
use tidegate_wire::{Family, Headers, L4Checksum, ipv4, quote};

use super::NoHeadroom;
use crate::frame::Frame;

/// The lowest value to which the maximum segment size in a SYN ACK is reduced.
const MSS_MIN: u16 = 64;

/// The identifier of Fast Open at the beginning of an experimental option: Fast Open had no kind of
/// its own before RFC 7413 (section 4.1.1).
const FAST_OPEN_EXPERIMENT: [u8; 2] = [0xf9, 0x89];

/// The sequence number of a checked TCP packet.
#[inline]
#[must_use]
pub fn sequence(frame: &[u8], h: &Headers) -> u32 {
    word(frame, usize::from(h.l4) + 4)
}

/// The acknowledgement number of a checked TCP packet. It has no meaning if the ACK flag is clear.
#[inline]
#[must_use]
pub fn acknowledgement(frame: &[u8], h: &Headers) -> u32 {
    word(frame, usize::from(h.l4) + 8)
}

fn word(frame: &[u8], at: usize) -> u32 {
    let bytes: &[u8; 4] = frame[at..].first_chunk().expect("parse saw a whole TCP header");
    u32::from_be_bytes(*bytes)
}

/// Puts `header` in front of the data of a TCP segment or a datagram that is not a fragment. In a segment with urgent
/// data the urgent pointer grows too. Ethernet padding is cut. `spare` bytes of headroom must remain.
///
/// # Errors
/// [`NoHeadroom`], also if the packet would be longer than an IP packet can be; the frame is then unchanged.
pub fn insert<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    header: &[u8],
    spare: usize,
) -> Result<(), NoHeadroom> {
    let (count, l4, end) = (header.len(), usize::from(h.l4), usize::from(h.ip_end));
    let grown_end = h.ip_end.checked_add(count as u16).ok_or(NoHeadroom)?;
    let data = l4 + l4_header_len(frame.bytes(), h);
    let covered = covered_end(frame.bytes(), h);
    if !frame.grow_front(count + spare) {
        return Err(NoHeadroom);
    }
    frame.shrink_front(spare);
    // Cut Ethernet padding, which would otherwise follow the longer packet.
    let cut = frame.resize(count + end);
    debug_assert!(cut, "a frame can always be cut to its packet");
    let bytes = frame.bytes_mut();
    let before = Sum::new().bytes(&bytes[count + data..count + covered]);
    bytes.copy_within(count..count + data, 0);
    bytes[data..data + count].copy_from_slice(header);
    let after = Sum::new().bytes(&bytes[data..count + covered]);
    h.ip_end = grown_end;
    set_ip_len(bytes, h, h.ip_len());
    let (old_len, new_len) = ((end - l4) as u32, (count + end - l4) as u32);
    let delta = Delta::new().sums(before, after);
    match h.l4_checksum {
        L4Checksum::Tcp => {
            let mut delta = delta.u32(old_len, new_len);
            let t: &mut [u8; tcp::HEADER_LEN] =
                bytes[l4..].first_chunk_mut().expect("parse saw a whole TCP header");
            if h.tcp_flags & flags::URG != 0 {
                let old = u16::from_be_bytes([t[18], t[19]]);
                let new = old.saturating_add(count as u16);
                delta = delta.u16(old, new);
                t[18..20].copy_from_slice(&new.to_be_bytes());
            }
            let check = delta.apply(u16::from_be_bytes([t[16], t[17]]));
            t[16..18].copy_from_slice(&check.to_be_bytes());
        }
        L4Checksum::Udp | L4Checksum::UdpZero => {
            let u: &mut [u8; udp::HEADER_LEN] =
                bytes[l4..].first_chunk_mut().expect("parse saw a whole UDP header");
            let old = u16::from_be_bytes([u[4], u[5]]);
            // The sum is below the length of the IP packet, which was checked.
            let new = old.saturating_add(count as u16);
            u[4..6].copy_from_slice(&new.to_be_bytes());
            if h.l4_checksum == L4Checksum::Udp {
                // The length is in the header and in the pseudo header.
                let delta = delta.u16(old, new).u16(old, new);
                let check = delta.apply_udp(u16::from_be_bytes([u[6], u[7]]));
                u[6..8].copy_from_slice(&check.to_be_bytes());
            }
        }
        _ => {}
    }
    Ok(())
}

/// Adds the length of the header to the sequence number of a client's segment.
pub fn shift(frame: &mut [u8], h: &Headers, stream: &Stream) {
    edit_tcp(frame, h, |tcp| set_word(tcp, 4, |seq| stream.to_backend(seq)));
}

/// Removes the data and the Fast Open option of a client's SYN (RFC 7413), so that the header precedes all data. The
/// client sends the data again after the handshake. Removed bytes are zeroed.
pub fn trim_syn<F: Frame>(frame: &mut F, h: &mut Headers) {
    let (l3, l4, end) = (usize::from(h.l3), usize::from(h.l4), usize::from(h.ip_end));
    edit_tcp(frame.bytes_mut(), h, |tcp| {
        tcp_options::edit_options(&mut tcp[tcp::HEADER_LEN..], |option, bytes| {
            let experiment = matches!(option, kind::EXPERIMENT_1 | kind::EXPERIMENT_2)
                && bytes.get(2..4) == Some(&FAST_OPEN_EXPERIMENT[..]);
            if option == kind::FAST_OPEN || experiment {
                bytes.fill(kind::NOP);
            }
        });
    });
    let bytes = frame.bytes_mut();
    let data = l4 + l4_header_len(bytes, h);
    if data == end {
        return;
    }
    let removed = Sum::new().bytes(&bytes[data..end]);
    bytes[data..end].fill(0);
    let delta = Delta::new().sums(removed, Sum::new()).u32((end - l4) as u32, (data - l4) as u32);
    set_ip_len(bytes, h, (data - l3) as u16);
    apply(&mut bytes[l4..], delta);
    h.ip_end = data as u16;
    let len = bytes.len().min(data.max(ethernet::FRAME_LEN_MIN));
    let cut = frame.resize(len);
    debug_assert!(cut, "a frame can always be cut");
}

/// Changes the numbers that the backend acknowledges to those that the client knows: the acknowledgement number and the
/// blocks of selective acknowledgements (RFC 2018, RFC 2883). Empty blocks are removed.
pub fn to_client(frame: &mut [u8], h: &Headers, stream: &Stream) {
    if h.tcp_flags & flags::ACK == 0 {
        return;
    }
    edit_tcp(frame, h, |tcp| {
        set_word(tcp, 8, |ack| stream.to_client(ack));
        tcp_options::edit_options(&mut tcp[tcp::HEADER_LEN..], |option, bytes| {
            if option == kind::SACK {
                unshift_blocks(bytes, stream);
            }
        });
    });
}

/// Reduces the maximum segment size in a backend's SYN ACK by the length of the header, so that the
/// backend accepts the client's first segment with the header.
pub fn announce_smaller_segments(frame: &mut [u8], h: &Headers, stream: &Stream) {
    edit_tcp(frame, h, |tcp| {
        tcp_options::edit_options(&mut tcp[tcp::HEADER_LEN..], |option, bytes| {
            if let (kind::MSS, &mut [_, _, high, low]) = (option, &mut *bytes) {
                let mss = u16::from_be_bytes([high, low]);
                let smaller = mss.saturating_sub(u16::from(stream.header_len)).max(MSS_MIN).min(mss);
                bytes[2..4].copy_from_slice(&smaller.to_be_bytes());
            }
        });
    });
}

/// Translates an ICMP error about a client's segment back: restores the quoted sequence number and, until the backend
/// has acknowledged the header, reduces a reported path MTU by the length of the header.
#[cold]
pub fn error_to_client(frame: &mut [u8], h: &Headers, stream: &Stream) {
    quote::set_sequence(frame, h, |seq| stream.to_client(seq));
    if !stream.acknowledged {
        reduce_mtu(frame, h, u16::from(stream.header_len));
    }
}

/// Reduces the path MTU that an ICMP error reports to a client by the length of a header.
#[cold]
pub fn reduce_mtu(frame: &mut [u8], h: &Headers, by: u16) {
    let icmp = &mut frame[usize::from(h.l4)..];
    // In ICMPv6 the field is longer, and its upper half is zero for every real path MTU.
    let smallest = match (h.family, h.icmp_type, h.icmp_code) {
        // A router that doesn't know the MTU writes zero (RFC 1191 section 4).
        (Family::V4, 3, 4) => 68,
        (Family::V6, 2, _) if icmp[4..6] == [0, 0] => 1280,
        _ => return,
    };
    let mtu = u16::from_be_bytes([icmp[6], icmp[7]]);
    let smaller = mtu.saturating_sub(by).max(smallest).min(mtu);
    icmp[6..8].copy_from_slice(&smaller.to_be_bytes());
    let check = Delta::new().u16(mtu, smaller).apply(u16::from_be_bytes([icmp[2], icmp[3]]));
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
}

/// Changes the blocks of one SACK option. `option` includes kind and length.
fn unshift_blocks(option: &mut [u8], stream: &Stream) {
    let mut kept = 2;
    for at in (2..option.len()).step_by(8) {
        let Some(&[a, b, c, d, e, f, g, h]) = option[at..].first_chunk() else { break };
        let left = stream.to_client(u32::from_be_bytes([a, b, c, d]));
        let right = stream.to_client(u32::from_be_bytes([e, f, g, h]));
        if left != right {
            option[kept..kept + 4].copy_from_slice(&left.to_be_bytes());
            option[kept + 4..kept + 8].copy_from_slice(&right.to_be_bytes());
            kept += 8;
        }
    }
    // The length is at most 40 bytes. If no block is left, the option itself is removed.
    option[1] = kept as u8;
    let unused = if kept == 2 { 0 } else { kept };
    option[unused..].fill(kind::NOP);
}

/// Changes the TCP header of a packet with `edit`, then updates the checksum.
pub(super) fn edit_tcp(frame: &mut [u8], h: &Headers, edit: impl FnOnce(&mut [u8])) {
    let (l4, len) = (usize::from(h.l4), l4_header_len(frame, h));
    let tcp = &mut frame[l4..l4 + len];
    let before = Sum::new().bytes(tcp);
    edit(tcp);
    let after = Sum::new().bytes(tcp);
    apply(tcp, Delta::new().sums(before, after));
}

/// Updates the checksum of a TCP header.
pub(super) fn apply(tcp: &mut [u8], delta: Delta) {
    let check = delta.apply(u16::from_be_bytes([tcp[16], tcp[17]]));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
}

pub(super) fn set_word(bytes: &mut [u8], at: usize, change: impl FnOnce(u32) -> u32) {
    let word: &mut [u8; 4] = bytes[at..].first_chunk_mut().expect("parse saw a whole TCP header");
    *word = change(u32::from_be_bytes(*word)).to_be_bytes();
}

/// Bytes of the TCP header with its options, or of the UDP header.
pub(super) fn l4_header_len(frame: &[u8], h: &Headers) -> usize {
    match h.l4_checksum {
        L4Checksum::Tcp => usize::from(frame[usize::from(h.l4) + 12] >> 4) * 4,
        _ => udp::HEADER_LEN,
    }
}

/// The offset just behind the data that the checksum covers. UDP options (RFC 9868) follow a datagram.
fn covered_end(frame: &[u8], h: &Headers) -> usize {
    let (l4, end) = (usize::from(h.l4), usize::from(h.ip_end));
    match h.l4_checksum {
        L4Checksum::Udp | L4Checksum::UdpZero => {
            let len = usize::from(u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]));
            (l4 + len.max(udp::HEADER_LEN)).min(end)
        }
        _ => end,
    }
}

/// Sets the length of the IP packet, its header included.
pub(super) fn set_ip_len(frame: &mut [u8], h: &Headers, len: u16) {
    let l3 = usize::from(h.l3);
    match h.family {
        Family::V4 => {
            let ip: &mut [u8; 20] = frame[l3..].first_chunk_mut().expect("parse saw a whole IPv4 header");
            let delta = Delta::new().u16(u16::from_be_bytes([ip[2], ip[3]]), len);
            ip[2..4].copy_from_slice(&len.to_be_bytes());
            ipv4::apply_delta(ip, delta);
        }
        Family::V6 => {
            let payload = len.saturating_sub(40);
            frame[l3 + 4..l3 + 6].copy_from_slice(&payload.to_be_bytes());
        }
    }
}
