//! Limits the segment size in SYNs of services with `mssClamp` to what fits the path in both directions.
//!
//! The last stage calls `limit` for SYNs only, after the packet is rewritten. Both the link on which the SYN arrived
//! and the path to its destination count, because answers in a NAT mode cross both in the other direction.

use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, mss, proto};

use crate::frame::Frame;

/// Whether a packet is a SYN, whose segment size is limited if its service has a limit.
#[inline(always)]
pub(super) fn applies_to(h: &Headers) -> bool {
    h.tcp_flags & flags::SYN != 0 && h.proto == proto::TCP
}

/// Limits the segment size of a SYN to `limit` and to what fits packets of `mtu` bytes. `l4` is the offset of its TCP
/// header in the frame.
#[cold]
#[inline(never)]
pub(super) fn limit<F: Frame>(frame: &mut F, h: &Headers, l4: usize, mtu: usize, limit: u16) {
    let len = usize::from(h.ip_end - h.l4);
    let most = mss::most(h.family, mtu, limit);
    if let Some(segment) = frame.bytes_mut().get_mut(l4..l4 + len) {
        let _ = mss::lower(segment, most);
    }
}
