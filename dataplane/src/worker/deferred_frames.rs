//! Frames of a burst that are neither sent nor dropped at once: fragments that wait for their first fragment, and frames
//! that do not fit their link.

use tidegate_pipeline::pipeline::{Arrival, Oversized};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::verdict::{TransmitReason, Verdict};

/// The reasons for which frames of a batch may still wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayWait {
    /// Fragments may wait for their first fragment, and all frames for the link address of their next hop.
    Yes,
    /// Only for the link address: the frames are fragments that have already waited.
    ForNeighbor,
    /// None: the frames have already waited.
    No,
}

/// A fragment that waits for its first fragment.
#[derive(Debug)]
pub(super) struct HeldFragment<F> {
    pub(super) arrival: Arrival,
    pub(super) frame: F,
    /// Its verdict if the first fragment is not seen.
    pub(super) verdict: Verdict,
}

/// A frame that does not fit its link.
#[derive(Debug)]
pub(super) struct TooLong<F> {
    pub(super) interface: InterfaceIndex,
    pub(super) why: TransmitReason,
    pub(super) oversized: Oversized,
    pub(super) frame: F,
}
