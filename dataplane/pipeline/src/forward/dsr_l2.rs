//! `dsr-l2`: the packet goes to the backend's link address without other changes. The backend has the VIP on its
//! loopback and answers the client itself.
//!
//! It changes the Ethernet addresses and the hop limit: one cache line, no transport checksum.

use tidegate_wire::{Headers, ethernet, rewrite};

use super::{Link, NoHeadroom, cut_trailer};
use crate::frame::Frame;

/// Rewrites the frame for `link`. The packet's hop limit must be above 1.
///
/// # Errors
/// [`NoHeadroom`]; the frame is then unchanged.
#[inline(always)]
pub fn forward<F: Frame>(frame: &mut F, h: &Headers, link: &Link) -> Result<(), NoHeadroom> {
    let bytes = link.rewrite_link_header(frame, h)?;
    let len = bytes.len();
    rewrite::take_hop(&mut bytes[link.header_len()..], h);
    if len > ethernet::FRAME_LEN_MIN && len > link.header_len() + usize::from(h.ip_len()) {
        cut_trailer(frame, link.header_len() + usize::from(h.ip_len()));
    }
    Ok(())
}
