//! Detects a hung daemon loop.
//!
//! While the loop hangs, workers keep forwarding, but nothing changes any more: no update of an endpoint, no result of
//! a health check, no drain. Other tasks continue, and every health check would still pass. [`Iteration`] is for
//! people; [`Progress`] is for whatever restarts the gateway.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_model::time::whole_seconds;
use tokio::time::Instant;

/// An iteration that takes longer counts as hung. Each wait for a disk may take 2 s, and the first round with millions
/// of backends about ten seconds.
const ITERATION_MAX: Duration = Duration::from_secs(60);

/// Without progress for this time, the loop counts as hung. This is half of `WatchdogSec` in `deploy/systemd`. The
/// liveness probe in `deploy/kubernetes` adds about as much.
const STANDSTILL_MAX: Duration = Duration::from_secs(45);

/// The current iteration of the loop.
#[derive(Debug, Default)]
pub(super) struct Iteration(Mutex<Option<(Instant, Timestamp)>>);

impl Iteration {
    /// The loop has work to do.
    pub(super) fn begin(&self) {
        *self.inner() = Some((Instant::now(), Timestamp::now()));
    }

    /// The loop is waiting for work.
    pub(super) fn end(&self) {
        *self.inner() = None;
    }

    /// Why changes have no effect, as text for display.
    pub(super) fn trouble(&self) -> Option<String> {
        let (began, since) = (*self.inner())?;
        (began.elapsed() > ITERATION_MAX).then(|| {
            let since = whole_seconds(since);
            format!("the daemon's main loop has been busy since {since}: changes are delayed")
        })
    }

    fn inner(&self) -> MutexGuard<'_, Option<(Instant, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the loop, and the dataplane's check for hung threads, were last seen to make progress. The watchdog of a
/// supervisor ([`super::supervisor`]) uses the same information.
#[derive(Debug)]
pub(super) struct Progress(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    at: Instant,
    hang_checks: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Seen { at: Instant::now(), hang_checks: 0 }))
    }
}

impl Progress {
    /// Records progress of the loop. `hang_checks` counts the dataplane's checks for hung threads: while it doesn't
    /// increase, nothing is recorded.
    pub(super) fn seen(&self, hang_checks: u64) {
        let mut seen = self.inner();
        if seen.hang_checks != hang_checks {
            *seen = Seen { at: Instant::now(), hang_checks };
        }
    }

    /// Whether the loop and the check for hung threads make progress. An API server that does not answer, or a state
    /// that cannot be published, stops neither.
    pub(super) fn loop_alive(&self) -> bool {
        self.inner().at.elapsed() <= STANDSTILL_MAX
    }

    fn inner(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hung_loop_or_check_is_detected_until_both_make_progress() {
        let progress = Progress::default();
        let beyond = STANDSTILL_MAX + Duration::from_millis(1);
        tokio::time::advance(STANDSTILL_MAX).await;
        assert!(progress.loop_alive(), "it starts");
        progress.seen(1);
        tokio::time::advance(beyond).await;
        assert!(!progress.loop_alive(), "the loop hangs");
        progress.seen(1);
        assert!(!progress.loop_alive(), "the check for hung threads hung");
        progress.seen(2);
        assert!(progress.loop_alive());
        tokio::time::advance(beyond).await;
        progress.seen(3);
        assert!(progress.loop_alive(), "both made progress");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_iteration_is_reported_and_a_wait_between_two_is_not() {
        let iteration = Iteration::default();
        iteration.begin();
        tokio::time::advance(ITERATION_MAX).await;
        assert_eq!(iteration.trouble(), None);
        iteration.end();
        tokio::time::advance(ITERATION_MAX * 100).await;
        assert_eq!(iteration.trouble(), None, "it waits for work");
        iteration.begin();
        tokio::time::advance(ITERATION_MAX * 2).await;
        assert!(
            iteration
                .trouble()
                .is_some_and(|why| why.starts_with("the daemon's main loop has been busy since "))
        );
        iteration.end();
        assert_eq!(iteration.trouble(), None);
    }
}
