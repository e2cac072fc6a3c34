//! The queues between the workers and the thread that talks to other gateways about flows.
//!
//! A worker tells of its flows ([`Pipeline::share`](tidegate_pipeline::pipeline::Pipeline::share)) and takes those of other
//! gateways, a few in each turn. The queues are bounded; nobody waits at a full one. What a worker cannot tell is counted
//! and repeated by a walk of the tables. The other direction holds the other gateway back until there is room.
//!
//! Invariant: one thread reads `told` and writes `learnt`, and each worker the other ends of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use tidegate_conntrack::flow_record::FlowNews;
use tidegate_conntrack::flow_record::Walks;
use tidegate_pipeline::pipeline::{ImportOutcome, SharedFlows};
use tidegate_structures::counter::Counter;

/// Messages that wait in each direction.
const QUEUED_MAX: usize = 8_192;
/// Messages of other gateways that a worker takes in one turn.
pub(super) const LEARNT_PER_TURN: usize = 32;

/// The queues of one worker.
#[derive(Debug)]
pub struct SharingQueues {
    pub(super) told: ArrayQueue<FlowNews>,
    pub(super) learnt: ArrayQueue<FlowNews>,
    /// Messages that the full queue did not take.
    pub(super) lost: Counter,
    /// The complete walks that have ended: what they found is in `told`.
    pub(super) walked: AtomicU64,
    /// What became of the messages of other gateways.
    pub(super) outcomes: [Counter; ImportOutcome::COUNT],
}

impl SharingQueues {
    fn new() -> Self {
        Self {
            told: ArrayQueue::new(QUEUED_MAX),
            learnt: ArrayQueue::new(QUEUED_MAX),
            lost: Counter::default(),
            walked: AtomicU64::new(0),
            outcomes: Default::default(),
        }
    }
}

/// The queues of all workers, and which walks they should make.
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

    /// Passes the messages of workers to `take`, up to `most` of each worker. Returns whether there may be more.
    pub fn take_told(&self, most: usize, mut take: impl FnMut(FlowNews)) -> bool {
        let mut is_more = false;
        for queues in &self.workers {
            let mut taken = 0;
            while taken < most
                && let Some(news) = queues.told.pop()
            {
                take(news);
                taken += 1;
            }
            is_more |= taken == most;
        }
        is_more
    }

    /// Gives a message of another gateway to every worker. Returns false, and gives it to none, if a queue is full.
    #[must_use]
    pub fn learn(&self, news: &FlowNews) -> bool {
        // Only this thread adds messages, so there is still room below.
        if self.workers.iter().any(|queues| queues.learnt.is_full()) {
            return false;
        }
        for queues in &self.workers {
            let _ = queues.learnt.push(*news);
        }
        true
    }

    /// Sets which walks workers should have made, and whether they may go on with them.
    pub fn set_walks(&self, walks: Walks, may_walk: bool) {
        self.refreshing.store(walks.refreshing, Ordering::Relaxed);
        self.complete.store(walks.complete, Ordering::Relaxed);
        self.may_walk.store(may_walk, Ordering::Relaxed);
    }

    /// The complete walks that all workers have made. What they found is given to the next [`Self::take_told`].
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.workers.iter().map(|queues| queues.walked.load(Ordering::Acquire)).min().unwrap_or(u64::MAX)
    }

    /// Whether the workers have taken every message of other gateways.
    #[must_use]
    pub fn has_learned_all(&self) -> bool {
        self.workers.iter().all(|queues| queues.learnt.is_empty())
    }

    /// Messages of workers that were lost because a queue was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.workers.iter().map(|queues| queues.lost.value()).sum()
    }

    /// What became of the messages of other gateways, by [`ImportOutcome`]. Each worker that gets a message counts it.
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

    /// Whether this worker may go on with a walk: there is room for what it finds in a turn.
    pub(super) fn may_walk(&self, worker: usize) -> bool {
        self.may_walk.load(Ordering::Relaxed) && self.workers[worker].told.len() < QUEUED_MAX / 2
    }

    pub(super) fn queues(&self, worker: usize) -> &SharingQueues {
        &self.workers[worker]
    }
}
