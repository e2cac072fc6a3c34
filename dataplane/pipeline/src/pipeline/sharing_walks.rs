//! The state of a worker's export to other gateways: which flows are shared, and the progress of walks through the
//! tables.
//!
//! [`flow_replication`](super::flow_replication) uses it.
//!
//! Invariant: a walk that is requested while another walk is in progress starts after that walk.

use arrayvec::ArrayVec;
use tidegate_conntrack::FlowKey;
use tidegate_conntrack::flow_record::Walks;
use tidegate_snapshot::Snapshot;
use tidegate_spec::limits::SHARING_CORRECTIONS_MAX;

/// Which flows are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedFlows {
    /// Flows in flux.
    InFlux,
    /// Flows in flux, and all NAT flows.
    Nat,
}

/// The completed walks, and the walk in progress.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    pub(super) flows: Option<SharedFlows>,
    pub(super) walk: Option<Walk>,
    /// Flows for which another gateway has an earlier connection of the same client port. They are exported in the next
    /// loop iteration.
    pub(super) contradicted: ArrayVec<FlowKey, SHARING_CORRECTIONS_MAX>,
    /// The requested walks that are done or in progress.
    done: Walks,
    /// The complete walks that have ended.
    walked: u64,
    /// The snapshot of the last walk for flows in flux.
    generation: u64,
}

/// A walk through the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk {
    pub(super) cursor: u64,
    /// Whether it walks only through the DSR tables, after a change of backends.
    pub(super) only_dsr: bool,
    /// Whether it includes flows of other gateways.
    pub(super) is_complete: bool,
}

impl Sharing {
    /// The walks requested so far (`walks`) are skipped.
    pub(super) fn new(flows: Option<SharedFlows>, walks: Walks) -> Self {
        Self { flows, done: walks, walked: walks.complete, ..Self::default() }
    }

    /// Queues a flow for the next iteration. If the queue is full, the other gateway's next walk causes it to be queued
    /// again.
    pub(super) fn contradict(&mut self, key: FlowKey) {
        let _ = self.contradicted.try_push(key);
    }

    /// The complete walks that have ended.
    pub(super) fn walked(&self) -> u64 {
        self.walked
    }

    /// Records the end of the walk in progress.
    pub(super) fn end_walk(&mut self) {
        if self.walk.take().is_some_and(|walk| walk.is_complete) {
            self.walked = self.done.complete;
        }
    }

    /// The walk that is due, if any.
    pub(super) fn next_walk(&mut self, snapshot: &Snapshot, walks: Walks) -> Option<Walk> {
        let is_complete = walks.complete != self.done.complete;
        if is_complete || walks.refreshing != self.done.refreshing {
            (self.done, self.generation) = (walks, snapshot.generation());
            return Some(Walk { cursor: 0, only_dsr: false, is_complete });
        }
        if self.generation != snapshot.generation() {
            self.generation = snapshot.generation();
            return Some(Walk { cursor: 0, only_dsr: true, is_complete: false });
        }
        None
    }
}
