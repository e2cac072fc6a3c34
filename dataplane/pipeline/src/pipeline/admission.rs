//! Removes the flows of clients that are no longer admitted after the source ranges of a service change.
//!
//! Source ranges are checked for the first packet of a flow only, so packets of known flows cost nothing extra. When
//! the ranges change, each worker walks through its flow tables, a few hash buckets in each loop iteration, and
//! removes the flows of clients that are no longer admitted. The next packet of such a flow is treated as a new flow,
//! and is refused. A walk through a million flows takes about a second; until then the flow continues.
//!
//! Invariant: while ranges don't change, the only cost is one comparison.

use tidegate_conntrack::FlowTables;
use tidegate_snapshot::Snapshot;
use tidegate_spec::limits::RECHECK_BUCKETS_PER_ITERATION;
use tidegate_spec::now::Now;

/// The number of walks through the tables for one change. One walk is not enough, because new flows may move other
/// flows between their two hash buckets, past the walk. A flow that both walks miss stays until the next change.
const WALKS: u8 = 2;

/// How far the flows of a worker have been checked.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// [`Snapshot::admission`] of the walk in progress, or of the last one.
    admission: u64,
    remaining_walks: u8,
    cursor: u64,
}

impl Recheck {
    /// See [`Pipeline::recheck`](super::Pipeline::recheck).
    pub(super) fn step(&mut self, flows: &mut FlowTables, snapshot: &Snapshot, now: Now) -> bool {
        if self.admission != snapshot.admission() {
            *self = Self { admission: snapshot.admission(), remaining_walks: WALKS, cursor: 0 };
        }
        if self.remaining_walks == 0 {
            return false;
        }
        let next = flows.sweep(self.cursor, RECHECK_BUCKETS_PER_ITERATION, now, |flow| {
            let service = snapshot.service_by_id(flow.service);
            service.is_none_or(|service| snapshot.admits(service, &flow.client))
        });
        self.cursor = next.unwrap_or(0);
        self.remaining_walks -= u8::from(next.is_none());
        self.remaining_walks > 0
    }
}
