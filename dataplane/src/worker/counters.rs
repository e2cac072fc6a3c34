//! Counters and gauges of one worker, except verdicts on frames, which `tidegate_snapshot::counters` counts.
//!
//! Invariant: each value has one writer, its worker, which uses plain loads and stores. Any thread may read it with
//! relaxed loads.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_conntrack::EvictionReason;
use tidegate_spec::verdict::AnswerKind;
use tidegate_structures::counter::Counter;
use tidegate_structures::histogram::Recorder;

use crate::punt::class::{ClassCounters, PuntClass};

/// How a worker spends its cycles, and what it does besides forwarding.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopCounters {
    /// Loop iterations that had work, with the cycles of each.
    pub busy: Recorder,
    /// Cycles of iterations without work, including sleep.
    pub idle_cycles: Counter,
    /// Loop iterations.
    pub iterations: Counter,
    /// 1 while the worker restores the flows of an earlier process. That takes one iteration, however many flows there
    /// are.
    pub restoring: Gauge,
    /// Frames processed by the pipeline.
    pub frames: Counter,
    /// Frames sent for the kernel and the resolver.
    pub injected: Counter,
    /// Injected frames dropped because the transmit queue was full.
    pub injected_dropped: Counter,
    /// Sampled packets that RSS delivered to the expected worker.
    pub arrivals_as_computed: Counter,
    /// Sampled packets that RSS delivered to another worker.
    pub arrivals_elsewhere: Counter,
    /// Neighbour events lost because the resolver's queue was full.
    pub neighbor_events_lost: Counter,
    /// Frames for the kernel, by class.
    pub punts: [ClassCounters; PuntClass::COUNT],
    /// The current number of flows.
    pub flows: Gauge,
    /// Flows removed from the tables, by [`EvictionReason`].
    pub evictions: [Gauge; EvictionReason::COUNT],
    /// New flows that were refused.
    pub flows_refused: Gauge,
    /// How often a backend was set aside because it refused or ignored new connections.
    pub backends_set_aside: Gauge,
    /// How often a backend that was set aside accepted connections again.
    pub backends_returned: Gauge,
    /// SYN cookies sent, accepted and refused.
    pub syn_cookies: [Gauge; 3],
    /// Services under SYN flood, for which SYN cookies are sent.
    pub services_under_flood: Gauge,
    /// Replies that a rate limit suppressed, by [`AnswerKind`].
    pub answers_suppressed: [Gauge; AnswerKind::COUNT],
}

/// A number that one thread sets and any thread reads.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The last value that was set.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
