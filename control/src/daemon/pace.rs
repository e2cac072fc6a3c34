//! How fast rounds follow each other.
//!
//! Invariant: rounds take at most half of the time of the loop's thread, unless one takes more than a second.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum pause between two rounds. Changes during a pause are handled together.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The maximum pause, which follows a round of at least this duration.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When the next round may start. A single change does not wait. Changes that arrive during a round and the pause after
/// it are handled together, so that rounds take at most half of the thread's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    next: Instant,
}

impl Pace {
    /// The first round may start now.
    pub(super) fn begin() -> Self {
        Self { next: Instant::now() }
    }

    /// When the next round may start.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Records that a round ended, and how much CPU time it used.
    pub(super) fn ended(&mut self, took: Duration) {
        self.next = Instant::now() + took.clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_single_change_is_immediate_and_rounds_take_half_of_the_time() {
        let mut pace = Pace::begin();
        let pause = |pace: Pace| pace.next().saturating_duration_since(Instant::now());
        assert_eq!(pause(pace), Duration::ZERO);
        for (took, expected) in [(1, 10), (10, 10), (300, 300), (5_000, 1_000)] {
            pace.ended(Duration::from_millis(took));
            assert_eq!(pause(pace), Duration::from_millis(expected), "after a round of {took} ms");
            tokio::time::advance(Duration::from_millis(2_000)).await;
            assert_eq!(pause(pace), Duration::ZERO);
        }
    }
}
