//! The options of a TCP header (RFC 9293 section 3.2): a walk over them, and the kinds that the gateway changes.
//!
//! Invariant: no panic for any input. The walk ends at the first option with an invalid length.

use core::ops::Range;

/// Option kinds (IANA "TCP Option Kind Numbers").
pub mod kind {
    #![allow(missing_docs, reason = "the names are the IANA keywords")]
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const MSS: u8 = 2;
    pub const SACK_PERMITTED: u8 = 4;
    pub const SACK: u8 = 5;
    pub const TIMESTAMPS: u8 = 8;
    pub const FAST_OPEN: u8 = 34;
    pub const EXPERIMENT_1: u8 = 253;
    pub const EXPERIMENT_2: u8 = 254;
    /// "TCP option address", which has no number of its own at IANA.
    pub const TOA: u8 = EXPERIMENT_2;
}

/// One option, except padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpOption {
    /// Its kind.
    pub kind: u8,
    /// Its bytes within the options, including kind and length.
    pub range: Range<usize>,
}

/// The next option at or after `at` in `options`, which contains the header's bytes after the first 20. Padding is
/// skipped. `None` at the end, or if the length of the option is invalid. Pass the end of its range as the next `at`.
#[must_use]
pub fn next_option(options: &[u8], mut at: usize) -> Option<TcpOption> {
    while *options.get(at)? == kind::NOP {
        at += 1;
    }
    let kind = options[at];
    if kind == kind::END {
        return None;
    }
    let len = usize::from(*options.get(at + 1)?);
    (len >= 2 && at + len <= options.len()).then(|| TcpOption { kind, range: at..at + len })
}

/// Calls `edit` with kind and bytes of each option. The bytes include kind and length.
pub fn edit_options(options: &mut [u8], mut edit: impl FnMut(u8, &mut [u8])) {
    let mut at = 0;
    while let Some(option) = next_option(options, at) {
        at = option.range.end;
        edit(option.kind, &mut options[option.range]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds(options: &[u8]) -> Vec<(u8, usize)> {
        let mut all = Vec::new();
        edit_options(&mut options.to_vec(), |kind, bytes| all.push((kind, bytes.len())));
        all
    }

    #[test]
    fn the_walk_passes_padding_and_ends_at_the_end_or_at_a_wrong_length() {
        assert_eq!(kinds(&[2, 4, 5, 180, 1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]), [(2, 4), (8, 10)]);
        assert_eq!(kinds(&[1, 0, 2, 4, 5, 180]), []);
        assert_eq!(kinds(&[4, 2, 2, 1, 5, 180]), [(4, 2)]);
        assert_eq!(kinds(&[4, 2, 2, 5, 5, 180]), [(4, 2)]);
        assert_eq!(kinds(&[4, 2, 1, 2]), [(4, 2)]);
        assert_eq!(kinds(&[]), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_a_panic(options in proptest::collection::vec(any::<u8>(), 0..41)) {
            let total: usize = kinds(&options).iter().map(|(_, len)| len).sum();
            prop_assert!(total <= options.len());
        }
    }
}
