//! The TCP option "maximum segment size" (RFC 9293 section 3.7.1, RFC 6691): lowers it in a SYN.
//!
//! The option contains the largest segment that the sender of the SYN accepts, without IP and TCP headers and without
//! options. A gateway may lower it so that segments fit a path whose "packet too big" messages get lost. It never
//! raises the value or adds the option: without the option, the other end sends segments that fit every path (536 and
//! 1,220 bytes).
//!
//! Invariant: only the up to 40 bytes of options are read, a malformed option ends the search, and the checksum is
//! updated by difference.

use super::checksum::Delta;
use super::headers::Family;
use super::tcp_options::{kind, next_option};
use super::{ipv4, ipv6, tcp};

/// Kind, length and a number of 16 bits.
const OPTION_LEN: usize = 4;

/// The smallest limit that [`largest`] returns: the segment that fits the IPv4 packet that every host accepts (RFC 9293
/// section 3.7.1), or the smallest IPv6 MTU (RFC 8200 section 5).
#[must_use]
pub const fn smallest(family: Family) -> u16 {
    match family {
        Family::V4 => 536,
        Family::V6 => 1220,
    }
}

/// The value of the option for packets of at most `mtu` bytes: without the IP and TCP headers, and not reduced for
/// options (RFC 6691). It is never below [`smallest`].
#[must_use]
pub fn largest(family: Family, mtu: usize) -> u16 {
    let headers = tcp::HEADER_LEN
        + match family {
            Family::V4 => ipv4::HEADER_LEN,
            Family::V6 => ipv6::HEADER_LEN,
        };
    u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX).max(smallest(family))
}

/// The limit for a service that sets `limit`, on a path for packets of at most `mtu` bytes.
#[must_use]
pub fn most(family: Family, mtu: usize, limit: u16) -> u16 {
    limit.min(largest(family, mtu)).max(smallest(family))
}

/// Lowers the option of a segment, which starts with its TCP header, to `most`. Returns whether it changed.
///
/// A segment that is too short for its own header stays unchanged, as do options after a malformed one.
pub fn lower(segment: &mut [u8], most: u16) -> bool {
    let Some(&data_offset) = segment.get(12) else { return false };
    let header_len = usize::from(data_offset >> 4) * 4;
    let Some(header) = segment.get_mut(..header_len) else { return false };
    let (mut at, mut delta, mut changed) = (0, Delta::new(), false);
    while let Some(option) = header.get(tcp::HEADER_LEN..).and_then(|options| next_option(options, at)) {
        at = option.range.end;
        if option.kind != kind::MSS || option.range.len() != OPTION_LEN {
            continue;
        }
        let value = tcp::HEADER_LEN + option.range.start + 2;
        let old = u16::from_be_bytes([header[value], header[value + 1]]);
        if old > most {
            header[value..value + 2].copy_from_slice(&most.to_be_bytes());
            // At an odd offset, the value's bytes are in two words of the checksum, with swapped positions.
            let [old, new] = [old, most].map(|n| if value.is_multiple_of(2) { n } else { n.swap_bytes() });
            delta = delta.u16(old, new);
            changed = true;
        }
    }
    if changed {
        let check = delta.apply(u16::from_be_bytes([header[16], header[17]]));
        header[16..18].copy_from_slice(&check.to_be_bytes());
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;
    use crate::testing::builder::Builder;
    use crate::{Headers, Parsed, parse, proto, tcp::flags};
    use proptest::prelude::*;

    fn headers(frame: &[u8]) -> Headers {
        match parse(frame) {
            Ok(Parsed::Ip(h)) => h,
            other => panic!("{other:?}"),
        }
    }

    /// A SYN of either family with these options, and the offset of its TCP header.
    fn syn(v6: bool, options: &[u8]) -> (Vec<u8>, usize) {
        let (from, to) =
            if v6 { ("[2001:db8::1]:9", "[2001:db8::2]:80") } else { ("192.0.2.1:9", "192.0.2.2:80") };
        let frame = Builder::tcp(from, to).flags(flags::SYN).tcp_options(options).build();
        let l4 = usize::from(headers(&frame).l4);
        (frame, l4)
    }

    fn is_sound(frame: &[u8]) -> bool {
        let h = headers(frame);
        let segment = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
        let pseudo = Sum::pseudo_header(h.family, &h.src, &h.dst, proto::TCP, segment.len() as u32);
        pseudo.bytes(segment).finish() == 0
    }

    #[test]
    fn the_option_is_lowered_at_every_offset_and_the_checksum_stays_right() {
        for v6 in [false, true] {
            for padding in 0..8 {
                let mut options = vec![kind::NOP; padding];
                options.extend([2, 4, 0x05, 0xb4, 4, 2]);
                options.resize(options.len().next_multiple_of(4), kind::END);
                let (mut frame, l4) = syn(v6, &options);
                assert!(is_sound(&frame));
                let before = frame.clone();
                assert!(!lower(&mut frame[l4..], 1460), "it is no larger than that");
                assert_eq!(frame, before);
                assert!(lower(&mut frame[l4..], 1400));
                assert!(is_sound(&frame), "{padding}");
                let option = l4 + 20 + padding;
                assert_eq!(frame[option..option + 4], [2, 4, 0x05, 0x78]);
                let differ = before.iter().zip(&frame).filter(|(a, b)| a != b).count();
                assert!(differ <= 4, "the option and the checksum, nothing else");
            }
        }
    }

    #[test]
    fn options_that_are_malformed_absent_or_cut_off_stay_as_they_are() {
        let cases: [&[u8]; 9] = [
            &[],
            &[0, 2, 4, 0xff, 0xff, 0, 0, 0],
            &[2, 0, 0xff, 0xff],
            &[2, 1, 0xff, 0xff],
            &[2, 3, 0xff, 0xff],
            &[2, 5, 0xff, 0xff],
            &[1, 1, 1, 2],
            &[1, 1, 2, 4],
            &[8, 0, 2, 4, 0xff, 0xff, 0, 0],
        ];
        for options in cases {
            let (mut frame, l4) = syn(false, options);
            let before = frame.clone();
            assert!(!lower(&mut frame[l4..], 536), "{options:?}");
            assert_eq!(frame, before);
        }
        for len in 0..20 {
            assert!(!lower(&mut vec![0xff; len], 536), "shorter than a header");
        }
    }

    #[test]
    fn the_mss_is_the_mtu_without_headers_and_never_below_the_minimum() {
        assert_eq!(largest(Family::V4, 1500), 1460);
        assert_eq!(largest(Family::V6, 1500), 1440);
        assert_eq!(
            (largest(Family::V4, 100), largest(Family::V6, 1280), largest(Family::V6, 0)),
            (536, 1220, 1220)
        );
        assert_eq!(largest(Family::V4, usize::MAX), u16::MAX);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_break_a_checksum(
            mut segment in proptest::collection::vec(any::<u8>(), 0..80),
            words in 5_u8..16, most in 536_u16..,
        ) {
            if let Some(offset) = segment.get_mut(12) {
                *offset = words << 4;
            }
            let sum = |bytes: &[u8]| Sum::new().bytes(&bytes[..bytes.len() & !1]).folded();
            let (before, len) = (sum(&segment), segment.len());
            let changed = lower(&mut segment, most);
            prop_assert_eq!(segment.len(), len);
            // 0 and 0xffff are the same number in this arithmetic.
            prop_assert_eq!(sum(&segment) % 0xffff, before % 0xffff);
            prop_assert!(!lower(&mut segment, most) || !changed, "once is enough");
        }
    }
}
