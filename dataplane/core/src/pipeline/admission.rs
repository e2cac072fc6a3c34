//! Known flows whose clients may no longer come in: looked for when the source ranges of a service change.
//!
//! New flows are asked for their source range as they begin; a known flow is not, so that it costs what it costs
//! without ranges. When a snapshot brings other ranges, each worker goes through its flow tables once more beside its
//! packets, some buckets a turn, and forgets the flows of clients that are now left out: their next packet begins a
//! flow, and is refused. Tables of a million flows take a second or so; until then such a flow goes on.
//!
//! Invariant: without a change of ranges nothing here is done but one comparison.

use super::Pipeline;
use crate::limits::RECHECK_BUCKETS_PER_TURN;
use crate::now::Now;
use crate::snapshot::Snapshot;

/// Walks over the tables for one change: new flows move others between their two buckets, past the walk, so one is not
/// enough; a flow that is moved over both in the right moments lives on until the next change.
const WALKS: u8 = 2;

/// How far the flows of a worker have been asked.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    /// [`Snapshot::admission`] of the walk, done or under way.
    admission: u64,
    walks_left: u8,
    cursor: u64,
}

impl Pipeline {
    /// Looks at some more of the known flows when source ranges have changed, and returns whether there are more to
    /// look at. To be called with a new snapshot, and each turn from then on until there are none.
    pub fn recheck(&mut self, snapshot: &Snapshot, now: Now) -> bool {
        if self.recheck.admission != snapshot.admission() {
            self.recheck = Recheck { admission: snapshot.admission(), walks_left: WALKS, cursor: 0 };
        }
        if self.recheck.walks_left == 0 {
            return false;
        }
        let next = self.flows.sweep(self.recheck.cursor, RECHECK_BUCKETS_PER_TURN, now, |flow| {
            let service = snapshot.service_by_id(flow.service);
            service.is_none_or(|service| snapshot.admits(service, &flow.client))
        });
        self.recheck.cursor = next.unwrap_or(0);
        self.recheck.walks_left -= u8::from(next.is_none());
        self.recheck.walks_left > 0
    }
}
