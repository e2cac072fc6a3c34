//! The counters and gauges of one worker, beside the fates of frames, which `tidegate_core::counters` has.
//!
//! Invariant: each has one writer, the worker, which uses plain loads and stores; anyone reads them with relaxed loads.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::conntrack::EvictionReason;
use tidegate_core::counters::Counter;
use tidegate_core::histogram::Recorder;
use tidegate_core::verdict::AnswerKind;

use crate::punt::class::{ClassCounters, PuntClass};

/// Where a worker's cycles went, and what it did beside forwarding.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopCounters {
    /// Turns that had work, each with its cycles.
    pub busy: Recorder,
    /// Cycles of turns that had none, sleep included.
    pub idle_cycles: Counter,
    /// Turns of the loop.
    pub turns: Counter,
    /// Frames that went through the pipeline.
    pub frames: Counter,
    /// Frames sent for the kernel and the resolver.
    pub injected: Counter,
    /// Injected frames dropped because the transmit queue was full.
    pub injected_dropped: Counter,
    /// Neighbour events lost because the resolver's queue was full.
    pub neighbor_events_lost: Counter,
    /// Frames for the kernel, by their class.
    pub punts: [ClassCounters; PuntClass::COUNT],
    /// Flows remembered now.
    pub flows: Gauge,
    /// Flows that left their tables, by [`EvictionReason`].
    pub evictions: [Gauge; EvictionReason::COUNT],
    /// New flows not taken in.
    pub flows_refused: Gauge,
    /// Answers that a limit suppressed, by [`AnswerKind`].
    pub answers_suppressed: [Gauge; AnswerKind::COUNT],
}

/// A number that its one writer sets and anyone reads.
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
