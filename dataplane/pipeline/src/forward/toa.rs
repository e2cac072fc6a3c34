//! Puts the TOA option, which carries the client's address and port to a backend, in front of a
//! client's TCP options (`fullnat`).
//!
//! A backend's kernel module reads the first such option of the segment that ends the handshake. TOA options from the
//! client itself are removed, so that it can't claim another address. Sequence numbers stay. The checksum is updated by
//! difference.

use arrayvec::ArrayVec;
use tidegate_wire::Headers;
use tidegate_wire::checksum::{Delta, Sum};
use tidegate_wire::tcp;
use tidegate_wire::tcp_options::{kind, next_option};

use super::NoHeadroom;
use super::proxy_protocol::{apply, l4_header_len, set_ip_len};
use crate::frame::Frame;

const OPTIONS_LEN_MAX: usize = 40;

/// Puts `option`, whose length is a multiple of 4, in front of the options of a TCP segment that is not a fragment. If
/// the client's other options don't fit, only its timestamps stay. An established connection can do without the rest:
/// SACK is advisory (RFC 2018 section 8), and MPTCP falls back to TCP (RFC 8684 section 3.7). Ethernet padding is cut.
/// `spare` bytes of headroom must remain.
///
/// # Errors
/// [`NoHeadroom`], also if the packet would be longer than an IP packet can be; the frame is then unchanged.
pub fn insert<F: Frame>(
    frame: &mut F,
    h: &mut Headers,
    option: &[u8],
    spare: usize,
) -> Result<(), NoHeadroom> {
    let (l4, end) = (usize::from(h.l4), usize::from(h.ip_end));
    let (fixed, data) = (l4 + tcp::HEADER_LEN, l4 + l4_header_len(frame.bytes(), h));
    let options = with_option(option, &frame.bytes()[fixed..data]);
    let grown = fixed + options.len();
    let count = grown - data;
    let grown_end = h.ip_end.checked_add(count as u16).ok_or(NoHeadroom)?;
    if !frame.grow_front(count + spare) {
        return Err(NoHeadroom);
    }
    frame.shrink_front(spare);
    // Cut Ethernet padding, which would otherwise follow the longer packet.
    let cut = frame.resize(count + end);
    debug_assert!(cut, "a frame can always be cut to its packet");
    let bytes = frame.bytes_mut();
    let before = Sum::new().bytes(&bytes[count + l4..count + data]);
    bytes.copy_within(count..count + fixed, 0);
    bytes[fixed..grown].copy_from_slice(&options);
    // The header has at most 15 words.
    let words = ((grown - l4) / 4) as u8;
    bytes[l4 + 12] = words << 4 | bytes[l4 + 12] & 0x0f;
    let after = Sum::new().bytes(&bytes[l4..grown]);
    h.ip_end = grown_end;
    set_ip_len(bytes, h, h.ip_len());
    let delta = Delta::new().sums(before, after).u32((end - l4) as u32, (count + end - l4) as u32);
    apply(&mut bytes[l4..], delta);
    Ok(())
}

/// `option`, followed by the options of a segment. The result isn't shorter than `old`, and its length is a multiple of
/// 4.
fn with_option(option: &[u8], old: &[u8]) -> ArrayVec<u8, OPTIONS_LEN_MAX> {
    let mut options = ArrayVec::new();
    let mut put = |bytes: &[u8]| {
        let fits = options.try_extend_from_slice(bytes);
        debug_assert!(fits.is_ok(), "the option and the timestamps fit");
    };
    put(option);
    if option.len() + old.len() <= OPTIONS_LEN_MAX {
        put(old);
        let kept = &mut options[option.len()..];
        let mut at = 0;
        while let Some(found) = next_option(kept, at) {
            at = found.range.end;
            if found.kind == kind::TOA {
                kept[found.range].fill(kind::NOP);
            }
        }
        return options;
    }
    let mut at = 0;
    while let Some(found) = next_option(old, at) {
        at = found.range.end;
        if found.kind == kind::TIMESTAMPS && found.range.len() == TIMESTAMPS_LEN {
            put(&[kind::NOP, kind::NOP]);
            put(&old[found.range]);
            break;
        }
    }
    while options.len() < old.len() || !options.len().is_multiple_of(4) {
        options.push(kind::NOP);
    }
    options
}

/// Bytes of the option with timestamps (RFC 7323 section 3.2).
const TIMESTAMPS_LEN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTION: [u8; 8] = [254, 8, 0x30, 0x39, 192, 0, 2, 202];
    const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5];

    #[test]
    fn the_option_is_first_and_the_clients_own_one_is_removed() {
        assert_eq!(with_option(&OPTION, &[])[..], OPTION);
        assert_eq!(with_option(&OPTION, &TIMESTAMPS)[..], [&OPTION[..], &TIMESTAMPS].concat());
        let forged = [&TIMESTAMPS[..], &[254, 8, 0, 80, 10, 0, 0, 1]].concat();
        let expected = [&OPTION[..], &TIMESTAMPS, &[1; 8]].concat();
        assert_eq!(with_option(&OPTION, &forged)[..], expected);
        let long = [&OPTION[..2], &[1; 18]].concat();
        let crowded = [&[5, 18][..], &[7; 16], &[1, 1], &TIMESTAMPS].concat();
        let expected = [&long[..], &TIMESTAMPS].concat();
        assert_eq!(with_option(&long, &crowded)[..], expected, "of the others, the timestamps stay");
        let too_long = [&[30, 40][..], &[0xfe; 38]].concat();
        assert_eq!(with_option(&OPTION, &too_long)[..], [&OPTION[..], &[1; 32]].concat());
    }

    proptest! {
        #[test]
        fn any_options_fit_and_ours_is_the_only_toa(
            words in proptest::collection::vec(any::<[u8; 4]>(), 0..=10), v6: bool,
        ) {
            let old = words.concat();
            let ours = [&[254, if v6 { 20 } else { 8 }][..], &[9; 18]].concat();
            let ours = &ours[..usize::from(ours[1])];
            let new = with_option(ours, &old);
            prop_assert!(new.len() >= old.len() && new.len() <= 40 && new.len().is_multiple_of(4));
            prop_assert!(new.starts_with(ours));
            let (mut at, mut found) = (0, 0);
            while let Some(option) = next_option(&new, at) {
                at = option.range.end;
                found += usize::from(option.kind == kind::TOA);
            }
            prop_assert_eq!(found, 1);
        }
    }
}
