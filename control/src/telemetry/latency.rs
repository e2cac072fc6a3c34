//! Merges the durations that several threads recorded into one distribution for each kind.
//!
//! Writers count in the histogram buckets of [`tidegate_structures::histogram`]. This module converts them to an HDR
//! histogram, which provides quantiles for `status -o wide` and cumulative counts for `/metrics`.
//!
//! Invariant: a shown value is at most 4 % above the recorded one, and never more than 1 % below it: the recorder's
//! resolution is 1/32, the histogram's 1/128. Counts and sums are exact.

use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate_dataplane::gateway::Stats;
use tidegate_structures::histogram::Durations;

use super::timings::Reading;

/// The number of decimal digits that the histogram distinguishes; the recorder distinguishes fewer.
const DIGITS: u8 = 2;

/// Bounds in seconds. A burst of 32 packets takes some microseconds; a worker that the kernel interrupts takes
/// milliseconds.
pub(super) const WORKER_ITERATION: &[f64] =
    &[1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1];

/// Bounds in seconds. The slow path sleeps up to 4 ms.
pub(super) const PUNT_QUEUE: &[f64] =
    &[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0];

/// Bounds in seconds. Timeouts are from 100 ms to a minute.
pub(super) const HEALTH_CHECK: &[f64] =
    &[1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

/// Bounds in seconds. A worker under load applies a snapshot within one loop iteration, a sleeping one within a
/// millisecond.
pub(super) const PUBLICATION: &[f64] =
    &[5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 1.0, 5.0];

/// All kinds of recorded durations.
#[derive(Debug)]
pub struct Latencies {
    /// Loop iterations that had work, over all workers.
    pub worker_iteration: Latency,
    /// The time from when a worker queued a frame for the kernel until the slow path dequeued it.
    pub punt_queue: Latency,
    /// The time from the start of a health check to its result or its timeout.
    pub health_check: Latency,
    /// The time from the publication of a snapshot to the workers until each of them has applied it.
    pub publication: Latency,
}

impl Latencies {
    /// Merges the records of the dataplane, the health checks and the daemon's loop.
    #[must_use]
    pub fn merge(stats: &Stats, health_checks: &Durations, publications: &Durations) -> Self {
        Self {
            worker_iteration: Latency::merge(&stats.iterations),
            punt_queue: Latency::merge([&stats.punt_queue]),
            health_check: Latency::merge([health_checks]),
            publication: Latency::merge([publications]),
        }
    }

    /// All kinds, with the names in `status`.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Latency); 4] {
        [
            ("worker-turn", &self.worker_iteration),
            ("punt-queue", &self.punt_queue),
            ("health-check", &self.health_check),
            ("publication", &self.publication),
        ]
    }
}

/// One kind of duration.
#[derive(Debug)]
pub struct Latency {
    /// Nanoseconds.
    histogram: Histogram<u64>,
    sum: Duration,
}

impl Latency {
    /// Merges the records of several writers, in nanoseconds.
    fn merge<'a>(recorded: impl IntoIterator<Item = &'a Durations>) -> Self {
        let mut histogram = Histogram::new(DIGITS).expect("hdrhistogram has up to 5 digits");
        let mut sum = 0_u64;
        for one in recorded {
            for &(nanos, count) in one.buckets() {
                histogram.record_n(nanos, count).expect("the histogram grows as far as it has to");
            }
            sum = sum.saturating_add(one.sum());
        }
        Self { histogram, sum: Duration::from_nanos(sum) }
    }

    /// The number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The duration that this fraction of all records does not exceed; 0 without records. `part` is from 0 to 1.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(part))
    }

    /// The longest duration; 0 without records.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max())
    }

    /// Cumulative counts up to bounds in seconds, ascending.
    pub(super) fn reading(&self, bounds: &[f64]) -> Reading {
        let nanos = |bound: f64| Duration::from_secs_f64(bound).as_nanos() as u64;
        let upto = |&bound: &f64| (bound, self.histogram.count_between(0, nanos(bound)));
        Reading { cumulative: bounds.iter().map(upto).collect(), count: self.count(), sum: self.sum }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_structures::histogram::Recorder;

    use super::*;

    fn recorded(nanos: impl IntoIterator<Item = u64>) -> Durations {
        let recorder = Recorder::default();
        nanos.into_iter().for_each(|one| recorder.record(one));
        recorder.read()
    }

    fn is_near(shown: Duration, nanos: u64) -> bool {
        let (shown, exact) = (shown.as_nanos() as f64, nanos as f64);
        (0.99 * exact..=1.04 * exact).contains(&shown)
    }

    #[test]
    fn quantiles_of_two_workers_are_merged_within_four_percent() {
        // A thousand iterations of 1 to 1,000 µs, divided between two workers.
        let of = |odd: u64| recorded((1..=1000).filter(move |n| n % 2 == odd).map(|n| n * 1000));
        let merged = Latency::merge([&of(0), &of(1)]);
        assert_eq!(merged.count(), 1000);
        assert_eq!(merged.reading(WORKER_ITERATION).sum, Duration::from_micros(500_500));
        assert!(is_near(merged.quantile(0.5), 500_000), "{:?}", merged.quantile(0.5));
        assert!(is_near(merged.quantile(0.99), 990_000), "{:?}", merged.quantile(0.99));
        assert!(is_near(merged.max(), 1_000_000), "{:?}", merged.max());
    }

    #[test]
    fn every_magnitude_is_shown_within_four_percent() {
        for shift in 0..40 {
            let nanos = 0xfe_dcba_9876 >> shift;
            let merged = Latency::merge([&recorded([nanos])]);
            assert!(is_near(merged.max(), nanos), "{nanos} is shown as {:?}", merged.max());
        }
    }

    #[test]
    fn unrecorded_values_are_zero() {
        let none = Latency::merge([]);
        assert_eq!((none.count(), none.quantile(0.99), none.max()), (0, Duration::ZERO, Duration::ZERO));
        assert!(none.reading(PUBLICATION).cumulative.iter().all(|&(_, count)| count == 0));
    }

    #[test]
    fn cumulative_counts_end_with_what_is_within_the_last_bound() {
        let merged = Latency::merge([&recorded([500, 1_500, 1_500, 3_000_000, 9_000_000_000])]);
        let reading = merged.reading(WORKER_ITERATION);
        let upto =
            |bound: f64| reading.cumulative.iter().find(|(le, _)| *le == bound).map(|(_, count)| *count);
        assert_eq!([1e-6, 2e-6, 2e-3, 5e-3, 1e-1].map(upto), [1, 3, 3, 4, 4].map(Some));
        assert_eq!((reading.count, reading.sum), (5, Duration::from_nanos(9_003_003_500)));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [WORKER_ITERATION, PUNT_QUEUE, HEALTH_CHECK, PUBLICATION] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
