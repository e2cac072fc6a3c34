//! The context of a burst: the state used to process its frames, and where the frames came from.

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::{InterfaceIndex, WorkerIndex};

/// The context of a burst, shared by its frames.
#[derive(Debug, Clone, Copy)]
pub struct View<'s> {
    /// The forwarding state.
    pub snapshot: &'s Snapshot,
    /// Link addresses of next hops.
    pub neighbors: &'s NeighborTable,
    /// Per-service and per-backend counts of this worker.
    pub tallies: &'s Tallies,
}

/// The arrival of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// From the wire, through this interface.
    Wire(InterfaceIndex),
    /// From this worker, which received the burst through this interface.
    HandedOver(InterfaceIndex, WorkerIndex),
    /// From another worker, after this number of hand-overs (at least two). Only fragments whose first fragment another
    /// worker saw, and ICMP errors about a flow that any worker may own, are handed over more than once.
    HandedOverAgain(InterfaceIndex, u8),
}

impl Arrival {
    /// The interface that received the frames.
    #[must_use]
    pub fn interface(self) -> InterfaceIndex {
        match self {
            Self::Wire(interface) | Self::HandedOver(interface, _) | Self::HandedOverAgain(interface, _) => {
                interface
            }
        }
    }

    /// The number of times that the frames were handed over.
    #[must_use]
    pub fn hand_overs(self) -> u8 {
        match self {
            Self::Wire(_) => 0,
            Self::HandedOver(..) => 1,
            Self::HandedOverAgain(_, hand_overs) => hand_overs,
        }
    }

    /// The arrival of these frames at the next worker, after the worker `by` has handed them over.
    #[must_use]
    pub fn handed_over(self, by: WorkerIndex) -> Self {
        match self {
            Self::Wire(interface) => Self::HandedOver(interface, by),
            Self::HandedOver(interface, _) => Self::HandedOverAgain(interface, 2),
            Self::HandedOverAgain(interface, hand_overs) => {
                Self::HandedOverAgain(interface, hand_overs.saturating_add(1))
            }
        }
    }
}
