//! The counters and gauges of one worker, except the verdicts on frames, which `tidegate_snapshot::counters` counts.
//!
//! Invariant: each has one writer, the worker, which uses plain loads and stores. Any thread reads them with relaxed
//! loads.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_conntrack::EvictionReason;
use tidegate_spec::verdict::AnswerKind;
use tidegate_structures::counter::Counter;
use tidegate_structures::histogram::Recorder;

use crate::punt::class::{ClassCounters, PuntClass};

/// How a worker's cycles were spent, and its activities other than forwarding.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopCounters {
    /// Turns that had work, each with its cycles.
    pub busy: Recorder,
    /// Cycles of turns without work, including sleep.
    pub idle_cycles: Counter,
    /// Turns of the loop.
    pub turns: Counter,
    /// 1 while the worker restores the flows of an earlier process, which takes one turn, however many there are.
    pub restoring: Gauge,
    /// Frames that passed through the pipeline.
    pub frames: Counter,
    /// Frames sent for the kernel and the resolver.
    pub injected: Counter,
    /// Injected frames dropped because the transmit queue was full.
    pub injected_dropped: Counter,
    /// Packets of a sample that RSS brought to the computed worker.
    pub arrivals_as_computed: Counter,
    /// Packets of the sample that it brought to another one.
    pub arrivals_elsewhere: Counter,
    /// Neighbour events lost because the resolver's queue was full.
    pub neighbor_events_lost: Counter,
    /// Frames for the kernel, by class.
    pub punts: [ClassCounters; PuntClass::COUNT],
    /// The current number of flows.
    pub flows: Gauge,
    /// Flows that left their tables, by [`EvictionReason`].
    pub evictions: [Gauge; EvictionReason::COUNT],
    /// New flows that were refused.
    pub flows_refused: Gauge,
    /// How often a backend was set aside because it refused or ignored new connections.
    pub backends_set_aside: Gauge,
    /// How often one of these answered again.
    pub backends_returned: Gauge,
    /// SYN cookies sent, accepted and refused.
    pub syn_cookies: [Gauge; 3],
    /// Services that use SYN cookies because they are under flood.
    pub services_under_flood: Gauge,
    /// Answers that a limit suppressed, by [`AnswerKind`].
    pub answers_suppressed: [Gauge; AnswerKind::COUNT],
}

/// A number that its single writer sets and any thread reads.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value a moment ago.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
