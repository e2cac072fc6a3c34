//! Durations of updates, which the daemon's loop records and every scrape reads.
//!
//! Recording uses atomics only, so [`Timings`] is shared by reference. Nothing here reads a clock.

use std::time::Duration;

use tidegate_structures::histogram::Recorder;

/// The durations that the daemon measures, in nanoseconds. There is one for the life of the process. Only the daemon's
/// loop records.
#[derive(Debug, Default)]
pub struct Timings {
    pub(super) publication: Recorder,
    pub(super) sync: Recorder,
    pub(super) programming: Recorder,
}

impl Timings {
    /// Records one reconcile: from its inputs to a snapshot that was published to the workers, or refused.
    pub fn observe_sync(&self, took: Duration) {
        self.sync.record(nanos(took));
    }

    /// Records one change: from when the source noticed it until every worker had applied it.
    pub fn observe_programming(&self, took: Duration) {
        self.programming.record(nanos(took));
    }

    /// Records one snapshot: from its publication until every worker has applied it.
    pub fn observe_publication(&self, took: Duration) {
        self.publication.record(nanos(took));
    }
}

fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
