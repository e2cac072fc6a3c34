//! The sources of frames: addresses of every world, the snapshot in use, and the frames so far.

use tidegate_snapshot::Snapshot;
use tidegate_wire::MacAddr;

/// The number of remembered frames, which may be answered or sent again.
const REMEMBERED: usize = 16;
/// The link address of the second interface.
pub(super) const INSIDE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x03]);
pub(super) const VIPS: [&str; 5] =
    ["203.0.113.1", "203.0.113.2", "2001:db8:1::1", "2001:db8:1::2", "10.0.0.254"];
pub(super) const PORTS: [u16; 3] = [80, 53, 8080];

/// The data from which frames are built.
pub(super) struct Context {
    pub(super) snapshot: Snapshot,
    /// Sent frames, as they left.
    pub(super) sent: Vec<Vec<u8>>,
    /// Received frames, as they arrived.
    pub(super) received: Vec<Vec<u8>>,
}

/// Adds a frame to `list`, which keeps only the last few.
pub(super) fn remember(list: &mut Vec<Vec<u8>>, frame: Vec<u8>) {
    if list.len() == REMEMBERED {
        list.remove(0);
    }
    list.push(frame);
}
