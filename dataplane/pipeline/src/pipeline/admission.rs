//! Finds known flows whose clients are no longer admitted, when the source ranges of a service change.
//!
//! The source range is checked when a flow begins and not for each packet, so that a packet of a known flow costs the
//! same as without ranges. When a snapshot has other ranges, each worker walks through its flow tables once, some
//! buckets in each turn between packets, and removes the flows of clients that are no longer admitted: their next
//! packet begins a flow, and is refused. Tables of a million flows take about a second; until then such a flow
//! continues.
//!
//! Invariant: without a change of ranges the only cost is one comparison.

use tidegate_conntrack::FlowTables;
use tidegate_snapshot::Snapshot;
use tidegate_spec::limits::RECHECK_BUCKETS_PER_TURN;
use tidegate_spec::now::Now;

/// Walks over the tables for one change. New flows may move other flows between their two buckets, past the walk, so
/// one walk is not enough. A flow that is moved past both walks stays until the next change.
const WALKS: u8 = 2;

/// How far the flows of a worker have been checked.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// [`Snapshot::admission`] of the walk in progress, or of the last one.
    admission: u64,
    walks_left: u8,
    cursor: u64,
}

impl Recheck {
    /// See [`Pipeline::recheck`](super::Pipeline::recheck).
    pub(super) fn turn(&mut self, flows: &mut FlowTables, snapshot: &Snapshot, now: Now) -> bool {
        if self.admission != snapshot.admission() {
            *self = Self { admission: snapshot.admission(), walks_left: WALKS, cursor: 0 };
        }
        if self.walks_left == 0 {
            return false;
        }
        let next = flows.sweep(self.cursor, RECHECK_BUCKETS_PER_TURN, now, |flow| {
            let service = snapshot.service_by_id(flow.service);
            service.is_none_or(|service| snapshot.admits(service, &flow.client))
        });
        self.cursor = next.unwrap_or(0);
        self.walks_left -= u8::from(next.is_none());
        self.walks_left > 0
    }
}
