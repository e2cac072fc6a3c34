//! Frames of a burst that are neither sent nor dropped at once: fragments waiting for their first fragment, and frames
//! that exceed the MTU of their link.

use tidegate_pipeline::pipeline::{Arrival, Oversized};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::verdict::{TransmitReason, Verdict};

/// What the frames of a batch may still wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayWait {
    /// Fragments may wait for their first fragment, and all frames for the link address of their next hop.
    Yes,
    /// Only the link address: these fragments have already waited for their first fragment.
    ForNeighbor,
    /// Nothing: these frames have already waited.
    No,
}

/// A fragment waiting for the first fragment of its datagram.
#[derive(Debug)]
pub(super) struct PendingFragment<F> {
    pub(super) arrival: Arrival,
    pub(super) frame: F,
    /// The verdict if the first fragment doesn't arrive.
    pub(super) verdict: Verdict,
}

/// A frame that exceeds the MTU of its link.
#[derive(Debug)]
pub(super) struct TooLong<F> {
    pub(super) interface: InterfaceIndex,
    pub(super) why: TransmitReason,
    pub(super) oversized: Oversized,
    pub(super) frame: F,
}
