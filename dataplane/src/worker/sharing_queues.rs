//! The queues between the workers and the thread that exchanges flows with peer gateways.
//!
//! In each loop iteration, a worker exports a few flow updates
//! ([`Pipeline::share`](tidegate_pipeline::pipeline::Pipeline::share)) and imports a few. The queues are bounded, and
//! no thread waits. Updates that don't fit the export queue are counted, and a later walk of the tables sends them
//! again. A full import queue delays the peer.
//!
//! Invariant: one thread reads `exports` and writes `imports`; each worker has the other ends of its own queues.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_conntrack::flow_record::Walks;
use tidegate_pipeline::pipeline::{ImportOutcome, SharedFlows};
use tidegate_structures::counter::Counter;

/// Capacity of a queue.
const QUEUED_MAX: usize = 8_192;
/// Updates that a worker imports per loop iteration.
pub(super) const IMPORTS_PER_ITERATION: usize = 32;

/// The queues of one worker.
#[derive(Debug)]
pub struct SharingQueues {
    pub(super) exports: ArrayQueue<FlowUpdate>,
    pub(super) imports: ArrayQueue<FlowUpdate>,
    /// Updates that didn't fit the queue.
    pub(super) lost: Counter,
    /// Completed full walks; their results are in `exports`.
    pub(super) walked: AtomicU64,
    /// Results of importing updates.
    pub(super) outcomes: [Counter; ImportOutcome::COUNT],
}

impl SharingQueues {
    fn new() -> Self {
        Self {
            exports: ArrayQueue::new(QUEUED_MAX),
            imports: ArrayQueue::new(QUEUED_MAX),
            lost: Counter::default(),
            walked: AtomicU64::new(0),
            outcomes: Default::default(),
        }
    }
}

/// The queues of all workers, and the walks that they should do.
#[derive(Debug)]
pub struct Sharing {
    flows: SharedFlows,
    workers: Box<[SharingQueues]>,
    refreshing: AtomicU64,
    complete: AtomicU64,
    may_walk: AtomicBool,
}

impl Sharing {
    /// Empty queues for this number of workers.
    #[must_use]
    pub fn new(flows: SharedFlows, workers: usize) -> Self {
        Self {
            flows,
            workers: (0..workers).map(|_| SharingQueues::new()).collect(),
            refreshing: AtomicU64::new(0),
            complete: AtomicU64::new(0),
            may_walk: AtomicBool::new(false),
        }
    }

    /// Which flows are shared.
    #[must_use]
    pub fn flows(&self) -> SharedFlows {
        self.flows
    }

    /// Passes up to `most` updates of each worker to `take`. Returns whether there may be more.
    pub fn drain_exports(&self, most: usize, mut take: impl FnMut(FlowUpdate)) -> bool {
        let mut is_more = false;
        for queues in &self.workers {
            let mut taken = 0;
            while taken < most
                && let Some(update) = queues.exports.pop()
            {
                take(update);
                taken += 1;
            }
            is_more |= taken == most;
        }
        is_more
    }

    /// Passes an update of a peer to every worker. Returns false, and passes it to none, if a queue is full.
    #[must_use]
    pub fn import(&self, update: &FlowUpdate) -> bool {
        // Only this thread adds updates, so the queues can't fill up before the pushes below.
        if self.workers.iter().any(|queues| queues.imports.is_full()) {
            return false;
        }
        for queues in &self.workers {
            let _ = queues.imports.push(*update);
        }
        true
    }

    /// Sets which walks the workers should do, and whether they may continue with them.
    pub fn set_walks(&self, walks: Walks, may_walk: bool) {
        self.refreshing.store(walks.refreshing, Ordering::Relaxed);
        self.complete.store(walks.complete, Ordering::Relaxed);
        self.may_walk.store(may_walk, Ordering::Relaxed);
    }

    /// Full walks that all workers have completed. The next [`Self::drain_exports`] returns their results.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.workers.iter().map(|queues| queues.walked.load(Ordering::Acquire)).min().unwrap_or(u64::MAX)
    }

    /// Whether the workers have imported every update of peers.
    #[must_use]
    pub fn has_imported_all(&self) -> bool {
        self.workers.iter().all(|queues| queues.imports.is_empty())
    }

    /// Updates of workers that were lost because a queue was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.workers.iter().map(|queues| queues.lost.value()).sum()
    }

    /// Results of importing updates, by [`ImportOutcome`]. Each worker counts every update.
    #[must_use]
    pub fn outcomes(&self) -> [u64; ImportOutcome::COUNT] {
        std::array::from_fn(|n| self.workers.iter().map(|queues| queues.outcomes[n].value()).sum())
    }

    pub(super) fn walks(&self) -> Walks {
        Walks {
            refreshing: self.refreshing.load(Ordering::Relaxed),
            complete: self.complete.load(Ordering::Relaxed),
        }
    }

    /// Whether this worker may continue a walk: its queue has capacity for the results of an iteration.
    pub(super) fn may_walk(&self, worker: usize) -> bool {
        self.may_walk.load(Ordering::Relaxed) && self.workers[worker].exports.len() < QUEUED_MAX / 2
    }

    pub(super) fn queues(&self, worker: usize) -> &SharingQueues {
        &self.workers[worker]
    }
}
