//! The Internet checksum: in full (RFC 1071) and by difference (RFC 1624).
//!
//! Both keep a 64-bit running sum of big-endian words and fold it once at the end. Updates by difference use equation 3
//! of RFC 1624, `HC' = ~(~HC + ~m + m')`, which handles the two representations of zero: the result is 0xffff only if
//! the full sum would be. Used by header writers, rewrites and reply builders.
//!
//! Invariant: a sum is over whole 16-bit words; only the last slice added may have an odd length.

use super::addr::Addr;
use super::headers::Family;

/// A running RFC 1071 sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// A sum without any words.
    #[inline]
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// The sum of the pseudo header of TCP, UDP and ICMPv6 (RFC 9293 3.1, RFC 8200 8.1). `len` is the length of the
    /// transport packet in bytes.
    #[inline]
    pub fn pseudo_header(family: Family, src: &Addr, dst: &Addr, proto: u8, len: u32) -> Sum {
        let sum = match family {
            Family::V4 => Sum::new().bytes(&src.v4_bytes()).bytes(&dst.v4_bytes()),
            Family::V6 => Sum::new().bytes(src.bytes()).bytes(dst.bytes()),
        };
        sum.u32(len).u16(u16::from(proto))
    }

    /// Adds one word.
    #[inline]
    #[must_use]
    pub const fn u16(self, word: u16) -> Sum {
        Sum(self.0 + word as u64)
    }

    /// Adds two words.
    #[inline]
    #[must_use]
    pub const fn u32(self, words: u32) -> Sum {
        Sum(self.0 + words as u64)
    }

    /// Adds bytes; an odd last byte counts as the upper half of a word, so nothing may be added after it.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        // Sums of words in native order can be vectorized; one swap after folding gives an equal sum (RFC 1071, 2 (B)).
        let (words, tail) = bytes.as_chunks::<4>();
        let mut sum: u64 = 0;
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        sum += u64::from(u32::from_ne_bytes(last));
        Sum(self.0 + u64::from(u16::from_be(fold(sum))))
    }

    /// The checksum as written to the header. It is 0 over data that includes a correct checksum.
    #[inline]
    pub const fn finish(self) -> u16 {
        !fold(self.0)
    }

    /// Like [`Self::finish`], for UDP: a computed 0 is sent as 0xffff (RFC 768).
    #[inline]
    pub const fn finish_udp(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            sum => sum,
        }
    }

    /// The sum without complement, which NICs with checksum offload expect in the field.
    #[inline]
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }
}

/// The checksum of one slice.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

/// The effect of replaced words on any checksum that covers them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u64);

impl Delta {
    /// A delta of no changes.
    #[inline]
    pub const fn new() -> Delta {
        Delta(0)
    }

    /// Adds the replacement of one word.
    #[inline]
    #[must_use]
    pub const fn u16(self, old: u16, new: u16) -> Delta {
        Delta(self.0 + !old as u64 + new as u64)
    }

    /// Adds the replacement of two words.
    #[inline]
    #[must_use]
    pub const fn u32(self, old: u32, new: u32) -> Delta {
        Delta(self.0 + !old as u64 + new as u64)
    }

    /// Adds the replacement of an IPv6 address.
    #[inline]
    #[must_use]
    pub fn bytes16(self, old: &[u8; 16], new: &[u8; 16]) -> Delta {
        let (old, _) = old.as_chunks::<4>();
        let (new, _) = new.as_chunks::<4>();
        let mut delta = self;
        for (o, n) in old.iter().zip(new) {
            delta = delta.u32(u32::from_be_bytes(*o), u32::from_be_bytes(*n));
        }
        delta
    }

    /// Adds the replacement of a region whose sums before and after are known.
    #[inline]
    #[must_use]
    pub const fn sums(self, old: Sum, new: Sum) -> Delta {
        self.u16(old.folded(), new.folded())
    }

    /// The checksum after the replacement.
    #[inline]
    pub const fn apply(self, check: u16) -> u16 {
        !fold(self.0 + !check as u64)
    }

    /// Like [`Self::apply`], for UDP with a checksum: a computed 0 is sent as 0xffff.
    #[inline]
    pub const fn apply_udp(self, check: u16) -> u16 {
        match self.apply(check) {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// The IPv4 header checksum after the TTL was decremented by one: [`Delta`] for that change, in five instructions.
#[inline]
pub const fn after_hop(check: u16) -> u16 {
    // ~m + m' of equation 3, for any TTL: 0xffff - 0x0100.
    let sum = !check as u32 + 0xfeff;
    // The sum is at most 0x1fefe, so one carry is sufficient.
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Adds end-around carries until 16 bits are left. A nonzero sum never folds to 0.
#[inline]
const fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 4.1, word by word.
    fn oracle(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        !(sum as u16)
    }

    #[test]
    fn matches_the_example_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn a_hop_changes_the_checksum_as_the_difference_does() {
        for check in 0..=u16::MAX {
            for ttl in [2_u16, 64, 255] {
                let difference = Delta::new().u16(ttl << 8 | 6, (ttl - 1) << 8 | 6);
                assert_eq!(after_hop(check), difference.apply(check), "{check:#x} {ttl}");
            }
        }
    }

    #[test]
    fn matches_the_example_of_rfc_1624() {
        // Section 4: HC = DD2F, m = 5555, m' = 3285 gives 0000.
        assert_eq!(Delta::new().u16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
    }

    proptest! {
        #[test]
        fn full_sum_equals_the_plain_loop(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(checksum(&bytes), oracle(&bytes));
        }

        #[test]
        fn sum_over_even_parts_equals_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0usize..50,
        ) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(Sum::new().bytes(a).bytes(b).finish(), oracle(&bytes));
        }

        /// A leading 0x01 ensures that the data is not all zero, the only case without a unique checksum.
        #[test]
        fn difference_equals_the_full_sum(
            mut bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 60),
            at in 1usize..5, new in any::<[u8; 16]>(), kind in 0..3,
        ) {
            bytes[0] = 1;
            let before = oracle(&bytes);
            let at = at * 2;
            let delta = match kind {
                0 => {
                    let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                    bytes[at..at + 2].copy_from_slice(&new[..2]);
                    Delta::new().u16(old, u16::from_be_bytes([new[0], new[1]]))
                }
                1 => {
                    let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
                    bytes[at..at + 4].copy_from_slice(&new[..4]);
                    Delta::new().u32(old, u32::from_be_bytes(new[..4].try_into().unwrap()))
                }
                _ => {
                    let old: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
                    bytes[at..at + 16].copy_from_slice(&new);
                    Delta::new().bytes16(&old, &new)
                }
            };
            prop_assert_eq!(delta.apply(before), oracle(&bytes));
        }
    }
}
