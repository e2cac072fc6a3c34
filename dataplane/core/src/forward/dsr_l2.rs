//! `dsr-l2`: the packet goes to the backend's link address as it is; the backend has the VIP on its loopback
//! and answers the client itself.
//!
//! Touches the Ethernet addresses and the hop limit: one cache line, no transport checksum.

use super::{Link, NoRoom};
use crate::frame::Frame;
use crate::wire::{Headers, rewrite};

/// Sends the packet over `link`.
///
/// # Errors
/// [`NoRoom`]; then the frame is as it came.
#[inline]
pub fn forward<F: Frame>(frame: &mut F, h: &mut Headers, link: &Link) -> Result<(), NoRoom> {
    link.put_on(frame, h)?;
    // The header may have moved with the tag; all offsets move alike.
    let shift = link.header_len() as i32 - i32::from(h.l3);
    shift_offsets(h, shift);
    let alive = rewrite::decrement_hop_limit(frame.bytes_mut(), h);
    debug_assert!(alive, "the pipeline has answered packets whose hop limit ends here");
    Ok(())
}

/// Keeps the offsets true after the Ethernet header changed its length by `shift`.
#[inline]
pub(super) fn shift_offsets(h: &mut Headers, shift: i32) {
    if shift != 0 {
        // Offsets are below 65,536 and the shift is one tag: they stay in range.
        h.l3 = (i32::from(h.l3) + shift) as u8;
        h.l4 = (i32::from(h.l4) + shift) as u16;
        h.ip_end = (i32::from(h.ip_end) + shift) as u16;
    }
}
