//! The durations that the threads of the gateway record, by kind, and the bounds with which `/metrics` shows them.
//!
//! Invariant: a shown value is at most 4 % above the recorded one. Counts and sums are exact.

use tidegate_dataplane::gateway::Stats;
use tidegate_structures::histogram::Durations;

use super::timings::Timings;

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

/// Bounds in seconds. A sync takes well below a millisecond for 10 services, and up to seconds for 100,000 endpoints.
pub(super) const SYNC: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Bounds in seconds, dense around the target values of 20 and 50 ms. Durations include the debounce of 10 ms to 1 s.
pub(super) const PROGRAMMING: &[f64] =
    &[0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];

/// All kinds of recorded durations that `status` shows, in nanoseconds.
#[derive(Debug)]
pub struct Latencies {
    /// Loop iterations that had work, over all workers.
    pub worker_iteration: Durations,
    /// The time from when a worker queued a frame for the kernel until the slow path dequeued it.
    pub punt_queue: Durations,
    /// The time from the start of a health check to its result or its timeout.
    pub health_check: Durations,
    /// The time from the publication of a snapshot to the workers until each of them has applied it.
    pub publication: Durations,
}

impl Latencies {
    /// Merges the records of the dataplane, the health checks and the daemon's loop.
    #[must_use]
    pub fn merge(stats: &Stats, health_checks: Durations, timings: &Timings) -> Self {
        Self {
            worker_iteration: Durations::merged(&stats.iterations),
            punt_queue: stats.punt_queue.clone(),
            health_check: health_checks,
            publication: timings.publication.read(),
        }
    }

    /// All kinds, with the names in `status`.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Durations); 4] {
        [
            ("worker-turn", &self.worker_iteration),
            ("punt-queue", &self.punt_queue),
            ("health-check", &self.health_check),
            ("publication", &self.publication),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend() {
        for bounds in [WORKER_ITERATION, PUNT_QUEUE, HEALTH_CHECK, PUBLICATION, SYNC, PROGRAMMING] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
