//! What a worker remembers of what it tells other gateways: which flows, and how far it has walked through its tables.
//!
//! [`flow_replication`](super::flow_replication) uses it.
//!
//! Invariant: a walk that is asked for while another one is in progress is made after it.

use arrayvec::ArrayVec;
use tidegate_conntrack::FlowKey;
use tidegate_conntrack::flow_record::Walks;
use tidegate_snapshot::Snapshot;
use tidegate_spec::limits::SHARING_CONTRADICTED_MAX;

/// Which flows are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedFlows {
    /// Flows in flux.
    InFlux,
    /// Flows in flux, and all NAT flows.
    Nat,
}

/// What a worker has told, and the walk in progress.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    pub(super) flows: Option<SharedFlows>,
    pub(super) walk: Option<Walk>,
    /// Flows of which another gateway has an earlier connection of the same client port, to be told in the next turn.
    pub(super) contradicted: ArrayVec<FlowKey, SHARING_CONTRADICTED_MAX>,
    /// The walks that were done or are in progress.
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
    /// Only DSR tables: the backends have changed.
    pub(super) only_dsr: bool,
    /// Flows that came from others, too.
    pub(super) is_complete: bool,
}

impl Sharing {
    /// Nothing is told yet. Walks that were asked for before do not count.
    pub(super) fn new(flows: Option<SharedFlows>, walks: Walks) -> Self {
        Self { flows, done: walks, walked: walks.complete, ..Self::default() }
    }

    /// Tells of a flow in the next turn. If too many wait, the next walk of the other gateway brings it here again.
    pub(super) fn contradict(&mut self, key: FlowKey) {
        let _ = self.contradicted.try_push(key);
    }

    /// The complete walks that have ended.
    pub(super) fn walked(&self) -> u64 {
        self.walked
    }

    /// The walk in progress has ended.
    pub(super) fn end_walk(&mut self) {
        if self.walk.take().is_some_and(|walk| walk.is_complete) {
            self.walked = self.done.complete;
        }
    }

    /// The walk that is due.
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
