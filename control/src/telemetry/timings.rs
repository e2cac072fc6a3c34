//! Histograms of update durations, which the daemon records and every scrape reads.
//!
//! It uses atomics only, so [`Timings`] is shared by reference. Nothing here reads a clock.
//!
//! Invariant: in one reading, the histogram buckets add up to the count, even if others record at the same time. Only
//! the sum may differ, by the values that are being recorded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_structures::histogram::{Durations, Recorder};

/// The durations that the daemon measures. There is one for the life of the process.
#[derive(Debug)]
pub struct Timings {
    /// Only the daemon's loop writes it.
    publication: Recorder,
    pub(super) sync: Histogram,
    pub(super) programming: Histogram,
}

/// Bounds in seconds. A sync takes well below a millisecond for 10 services, and up to seconds for 100,000 endpoints.
const SYNC: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Bounds in seconds, dense around the target values of 20 and 50 ms. Durations include the debounce of 10 ms to 1 s.
const PROGRAMMING: &[f64] =
    &[0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];

impl Default for Timings {
    fn default() -> Self {
        Self {
            publication: Recorder::default(),
            sync: Histogram::new(SYNC),
            programming: Histogram::new(PROGRAMMING),
        }
    }
}

impl Timings {
    /// Records one reconcile: from its inputs to a snapshot that was published to the workers, or refused.
    pub fn observe_sync(&self, took: Duration) {
        self.sync.observe(took);
    }

    /// Records one change: from when the source noticed it until every worker had applied it.
    pub fn observe_programming(&self, took: Duration) {
        self.programming.observe(took);
    }

    /// Records one snapshot: from its publication until every worker has applied it. Only one thread at a time may call
    /// this.
    pub fn observe_publication(&self, took: Duration) {
        self.publication.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All publications, in nanoseconds.
    pub(crate) fn publications(&self) -> Durations {
        self.publication.read()
    }
}

/// Durations counted in histogram buckets, with bounds in seconds.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// One count for each bound, and one for values above all of them.
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug)]
pub(super) struct Reading {
    /// (bound in seconds, observations at or below it), without the infinite bound, which is `count`.
    pub(super) cumulative: Vec<(f64, u64)>,
    pub(super) count: u64,
    pub(super) sum: Duration,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_ns: AtomicU64::new(0) }
    }

    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        // A `u64` is enough for 584 years of nanoseconds.
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Reading {
        let mut count = 0;
        let mut upto = |one: &AtomicU64| {
            count += one.load(Ordering::Relaxed);
            count
        };
        // `zip` ends with the bounds. The last count is added below.
        let cumulative = self.bounds.iter().copied().zip(self.counts.iter().map(&mut upto)).collect();
        let count = upto(&self.counts[self.bounds.len()]);
        let sum = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed));
        Reading { cumulative, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_is_in_its_bucket() {
        let histogram = Histogram::new(&[0.01, 0.1]);
        for ms in [9, 10, 11, 100, 101] {
            histogram.observe(Duration::from_millis(ms));
        }
        let reading = histogram.read();
        assert_eq!(reading.cumulative, [(0.01, 2), (0.1, 4)]);
        assert_eq!((reading.count, reading.sum), (5, Duration::from_millis(231)));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [SYNC, PROGRAMMING] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
