//! Fragments a packet (RFC 791 section 3.2, RFC 8200 section 4.5) that exceeds the MTU of its link.
//!
//! An IPv6 packet is fragmented only if it starts with a Fragment header, which the gateway writes to outer packets
//! that may be fragmented. If the IPv4 packet in a tunnel may be fragmented, the gateway fragments it and gives each
//! fragment the tunnel's header: the receiver of the inner packet reassembles it, and routers on the path see whole
//! packets (RFC 4459 section 3.3 compares the methods). Otherwise it fragments the outer packet, and the end of the
//! tunnel reassembles that one. A fragment may be fragmented again. Identification and DF are kept. Options that must
//! not be copied are only in the first fragment, and no-operations replace them in the others. Drivers call this module
//! because they have the memory for the fragments; the pipeline decides whether a packet may be fragmented.
//!
//! Invariant: the fragments contain each byte of the packet's data once, at its offset.

use super::checksum::{Sum, checksum};
use super::ethernet::{self, ether_type};
use super::{ipv4, ipv6, proto};

const MORE_FRAGMENTS: u16 = 0x2000;
const FLAGS: u16 = 0xc000;
const OFFSET_MASK: u16 = 0x1fff;
const NO_OPERATION: u8 = 1;

/// An IPv6 header and a Fragment header.
const IPV6_HEADERS_LEN: usize = ipv6::HEADER_LEN + ipv6::FRAGMENT_HEADER_LEN;

/// How a packet is fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Offset of the outermost IP header in the frame.
    l3: usize,
    /// Offset of the header of the packet to fragment. Without a tunnel it equals `l3`.
    packet: usize,
    /// Offset of the data of that packet.
    data: usize,
    /// Offset of the end of that packet.
    end: usize,
    /// Bytes of data in all fragments except the last.
    step: usize,
}

impl Cut {
    /// How to fragment the packet at offset `packet` of a frame so that no IP packet on the link exceeds `mtu`.
    /// `packet` is the offset after the Ethernet header, or after the outer headers of a tunnel that this gateway
    /// wrote. `None` if there is neither an IPv4 packet nor an IPv6 packet that starts with a Fragment header, or if
    /// the MTU leaves no space for 8 bytes of data.
    #[must_use]
    pub fn new(frame: &[u8], packet: usize, mtu: usize) -> Option<Self> {
        let tagged = *frame.get(12..14)? == ether_type::VLAN.to_be_bytes();
        let l3 = if tagged { ethernet::HEADER_LEN_MAX } else { ethernet::HEADER_LEN };
        let header: &[u8; ipv4::HEADER_LEN] = frame.get(packet..)?.first_chunk()?;
        let word = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let (header_len, total_len) = match header[0] >> 4 {
            4 => (usize::from(header[0] & 0xf) * 4, word(2)),
            6 if header[6] == proto::FRAGMENT => (IPV6_HEADERS_LEN, ipv6::HEADER_LEN + word(4)),
            _ => return None,
        };
        let (data, end) = (packet + header_len, packet + total_len);
        let sound = header_len >= ipv4::HEADER_LEN && data <= end && end <= frame.len();
        let step = (l3 + mtu).checked_sub(data)? & !7;
        (sound && l3 <= packet && step > 0).then_some(Self { l3, packet, data, end, step })
    }

    /// The number of fragments; one for a packet that fits.
    #[must_use]
    pub fn fragments(&self) -> usize {
        (self.end - self.data).div_ceil(self.step).max(1)
    }

    /// Length of the frame with fragment `n`.
    #[must_use]
    pub fn frame_len(&self, n: usize) -> usize {
        let (start, end) = self.part(n);
        self.data + (end - start)
    }

    /// Writes the frame with fragment `n`.
    ///
    /// # Panics
    /// If `frame` is not the frame that was passed to [`Self::new`], or `out` is not [`Self::frame_len`] bytes long.
    pub fn write(&self, frame: &[u8], n: usize, out: &mut [u8]) {
        let (start, end) = self.part(n);
        let (head, data) = out.split_at_mut(self.data);
        head.copy_from_slice(&frame[..self.data]);
        data.copy_from_slice(&frame[start..end]);
        let header = &mut head[self.packet..];
        if header[0] >> 4 == 6 {
            return self.write_ipv6(header, start, end);
        }
        // The sum of two lengths in a frame whose packet had a 16-bit total length.
        let total_len = (header.len() + (end - start)) as u16;
        header[2..4].copy_from_slice(&total_len.to_be_bytes());
        let flags = u16::from_be_bytes([header[6], header[7]]);
        let more = if end < self.end { MORE_FRAGMENTS } else { flags & MORE_FRAGMENTS };
        // Below 2^13: the packet's own offset and length passed the header checks.
        let offset = (flags & OFFSET_MASK) + ((start - self.data) / 8) as u16;
        header[6..8].copy_from_slice(&(flags & FLAGS | more | offset & OFFSET_MASK).to_be_bytes());
        if n > 0 {
            blank_options(&mut header[ipv4::HEADER_LEN..]);
        }
        set_checksum(header);
        self.write_outer(out, total_len);
    }

    /// Sets the lengths and checksums of the headers before a packet of this length.
    fn write_outer(&self, frame: &mut [u8], packet_len: u16) {
        let outer_len = (self.packet - self.l3) as u16;
        let outer = &mut frame[self.l3..];
        if outer_len == 0 {
            return;
        }
        let len = outer_len + packet_len;
        let (header_len, protocol) = match outer[0] >> 4 {
            4 => {
                outer[2..4].copy_from_slice(&len.to_be_bytes());
                set_checksum(&mut outer[..ipv4::HEADER_LEN]);
                (ipv4::HEADER_LEN, outer[9])
            }
            _ => {
                outer[4..6].copy_from_slice(&(len - ipv6::HEADER_LEN as u16).to_be_bytes());
                (ipv6::HEADER_LEN, outer[6])
            }
        };
        if protocol == proto::UDP && usize::from(outer_len) > header_len {
            let (ip, datagram) = outer.split_at_mut(header_len);
            let len = len - header_len as u16;
            datagram[4..6].copy_from_slice(&len.to_be_bytes());
            // A datagram without a checksum stays without one.
            if datagram[6..8] != [0, 0] {
                datagram[6..8].fill(0);
                let pseudo = Sum::new().bytes(&ip[8..]).u16(u16::from(proto::UDP)).u16(len);
                let sum = pseudo.bytes(&datagram[..usize::from(len)]).finish_udp();
                datagram[6..8].copy_from_slice(&sum.to_be_bytes());
            }
        }
    }

    /// Sets the length and the fragment fields in the headers of an IPv6 fragment.
    fn write_ipv6(&self, header: &mut [u8], start: usize, end: usize) {
        // The length is below the length of the whole packet, which fits in 16 bits. So does the sum of its offset and
        // length.
        let payload_len = (ipv6::FRAGMENT_HEADER_LEN + (end - start)) as u16;
        header[4..6].copy_from_slice(&payload_len.to_be_bytes());
        let field = &mut header[ipv6::HEADER_LEN + 2..ipv6::HEADER_LEN + 4];
        let whole = u16::from_be_bytes([field[0], field[1]]);
        let more = if end < self.end { 1 } else { whole & 1 };
        let offset = (whole & !7).wrapping_add((start - self.data) as u16);
        field.copy_from_slice(&(offset | more).to_be_bytes());
    }

    /// The data of fragment `n`, as offsets in the frame.
    fn part(&self, n: usize) -> (usize, usize) {
        let start = self.data + n * self.step;
        (start, self.end.min(start + self.step))
    }
}

/// Overwrites options without the copied flag (RFC 791 section 3.1), which may only be in the first fragment.
fn blank_options(options: &mut [u8]) {
    let mut at = 0;
    while at < options.len() {
        let len = match options[at] {
            0 => return,
            NO_OPERATION => 1,
            _ => options.get(at + 1).map_or(0, |&len| usize::from(len)),
        };
        let Some(option) = options.get_mut(at..at + len).filter(|option| !option.is_empty()) else { return };
        if option[0] & 0x80 == 0 {
            option.fill(NO_OPERATION);
        }
        at += len;
    }
}

fn set_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipv4::Ipv4Header;
    use crate::testing::builder::Builder;
    use crate::{Fragment, Headers, Parsed, parse};

    fn headers(frame: &[u8]) -> Headers {
        match parse(frame) {
            Ok(Parsed::Ip(h)) => h,
            other => panic!("{other:?}"),
        }
    }

    fn fragments(frame: &[u8], packet: usize, mtu: usize) -> Vec<Vec<u8>> {
        let cut = Cut::new(frame, packet, mtu).expect("it can be cut");
        let fragment = |n| {
            let mut out = vec![0; cut.frame_len(n)];
            cut.write(frame, n, &mut out);
            out
        };
        (0..cut.fragments()).map(fragment).collect()
    }

    /// Reassembles the data of fragments by their offsets.
    fn together(fragments: &[Vec<u8>]) -> (Vec<u8>, bool) {
        let mut whole = Vec::new();
        let mut more = true;
        for fragment in fragments {
            let h = headers(fragment);
            let header_end = usize::from(h.l3) + usize::from(fragment[usize::from(h.l3)] & 0xf) * 4;
            let offset = match h.fragment {
                Fragment::Later { offset, .. } => usize::from(offset),
                _ => 0,
            };
            let data = &fragment[header_end..usize::from(h.ip_end)];
            whole.resize(whole.len().max(offset + data.len()), 0);
            whole[offset..offset + data.len()].copy_from_slice(data);
            more = fragment[20] & 0x20 != 0;
        }
        (whole, more)
    }

    fn udp(len: usize) -> Builder {
        let payload: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        Builder::udp("198.51.100.7:1", "203.0.113.5:53").dont_fragment(false).payload(&payload)
    }

    #[test]
    fn fragments_fit_and_reassemble_to_the_packet() {
        for (len, mtu) in [(1473, 1500), (60_000, 1500), (1400, 68), (1492, 1499), (100, 1500), (0, 68)] {
            let whole = udp(len).build();
            let parts = fragments(&whole, 14, mtu);
            assert!(parts.iter().all(|part| usize::from(headers(part).ip_len()) <= mtu), "{len} {mtu}");
            assert_eq!(together(&parts), (whole[34..].to_vec(), false), "{len} {mtu}");
        }
    }

    #[test]
    fn a_fragment_is_cut_at_its_offset_and_keeps_that_more_follow() {
        let whole = udp(3000).build();
        let parts = fragments(&whole, 14, 1500);
        let again: Vec<Vec<u8>> = parts.iter().flat_map(|part| fragments(part, 14, 576)).collect();
        assert!(again.len() > 5 && again.iter().all(|part| headers(part).is_fragment()));
        assert_eq!(together(&again), (whole[34..].to_vec(), false));
        assert!(together(&fragments(&parts[0], 14, 576)).1);
    }

    #[test]
    fn fragments_in_a_tunnel_have_its_header_with_their_length() {
        let whole = udp(1472).build();
        let outer = Ipv4Header {
            total_len: 1520,
            tos: 0,
            id: 0,
            dont_fragment: true,
            ttl: 64,
            proto: 4,
            src: [10, 0, 0, 254].into(),
            dst: [10, 0, 0, 1].into(),
        };
        let frame = [&whole[..14], &outer.bytes(), &whole[14..]].concat();
        let parts = fragments(&frame, 34, 1500);
        let inner: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| {
                let h = headers(part);
                assert_eq!((h.dst.ip(), h.proto, h.dont_fragment), (outer.dst.into(), 4, true));
                assert_eq!(usize::from(h.ip_end), part.len());
                assert!(h.ip_len() <= 1500);
                [&part[..14], &part[34..]].concat()
            })
            .collect();
        assert_eq!(together(&inner), (whole[34..].to_vec(), false));
    }

    #[test]
    fn options_that_are_not_copied_are_in_the_first_fragment_only() {
        // Record route (7, not copied), then router alert (148, copied).
        let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
        let whole = udp(100).ip_options(&options).build();
        let parts = fragments(&whole, 14, 100);
        assert_eq!(parts[0][34..46], options);
        assert_eq!(parts[1][34..46], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0]);
        assert_eq!(together(&parts), (whole[46..].to_vec(), false));
    }

    #[test]
    fn an_ipv6_packet_is_cut_behind_its_fragment_header() {
        let whole = Builder::udp("[2001:db8::7]:1", "[2001:db8::8]:2").payload_len(1232).build();
        let mut frame = [&whole[..54], &[0; 8], &whole[54..]].concat();
        ipv6::write_fragment_header(&mut frame[14..], 0x0102_0304);
        let parts = fragments(&frame, 14, 1280);
        let mut data = Vec::new();
        for part in &parts {
            let h = headers(part);
            assert!(h.ip_len() <= 1280 && usize::from(h.ip_end) == part.len() && h.is_fragment());
            assert_eq!(part[58..62], [1, 2, 3, 4]);
            let field = u16::from_be_bytes([part[56], part[57]]);
            assert_eq!(usize::from(field & !7), data.len());
            data.extend_from_slice(&part[62..]);
            assert_eq!(field & 1 == 0, data.len() == whole.len() - 54, "the last one");
        }
        assert_eq!((parts.len(), data), (2, whole[54..].to_vec()));
    }

    #[test]
    fn unsplittable_frames_are_not_changed() {
        let whole = udp(100).build();
        assert_eq!(Cut::new(&whole, 14, 27), None, "no space for 8 bytes");
        assert_eq!(Cut::new(&whole[..60], 14, 68), None, "the packet is longer than the frame");
        let v6 = Builder::udp("[2001:db8::7]:1", "[2001:db8::8]:2").payload_len(100).build();
        assert_eq!(Cut::new(&v6, 14, 100), None);
    }
}
