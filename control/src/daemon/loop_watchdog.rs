//! Whether the daemon's loop comes to the end of its turns, and goes on.
//!
//! While it hangs, workers forward as before and nothing else changes: no update of an endpoint, no result of a health
//! check, no drain. Other tasks go on, and would show a gateway that is well. [`Turn`] is for people, [`Progress`] for who
//! restarts the gateway.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_model::time::whole_seconds;
use tokio::time::Instant;

/// A turn that takes longer hangs. Waits for disks take 2 s each, the first round with millions of backends some ten seconds.
const TURN_MAX: Duration = Duration::from_secs(60);

/// What has not gone on for this time hangs. It is half the time of the unit in `deploy/systemd`. The liveness probe in
/// `deploy/kubernetes` adds about as much.
const STANDSTILL_MAX: Duration = Duration::from_secs(45);

/// The turn of the loop that is under way.
#[derive(Debug, Default)]
pub(super) struct Turn(Mutex<Option<(Instant, Timestamp)>>);

impl Turn {
    /// The loop has something to do.
    pub(super) fn begin(&self) {
        *self.inner() = Some((Instant::now(), Timestamp::now()));
    }

    /// The loop waits for something to do.
    pub(super) fn end(&self) {
        *self.inner() = None;
    }

    /// Why changes have no effect, as text for display.
    pub(super) fn trouble(&self) -> Option<String> {
        let (began, since) = (*self.inner())?;
        (began.elapsed() > TURN_MAX).then(|| {
            let since = whole_seconds(since);
            format!("the daemon's loop has not ended its turn since {since}: changes wait for that")
        })
    }

    fn inner(&self) -> MutexGuard<'_, Option<(Instant, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the loop, and the dataplane's watch over hanging threads, were last seen to go on. The watchdog of a supervisor
/// ([`super::supervisor`]) hears the same.
#[derive(Debug)]
pub(super) struct Progress(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    at: Instant,
    looks: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Seen { at: Instant::now(), looks: 0 }))
    }
}

impl Progress {
    /// The loop goes on. `looks` is how often the dataplane has looked for hanging threads: while it stands still, nothing
    /// counts as seen.
    pub(super) fn seen(&self, looks: u64) {
        let mut seen = self.inner();
        if seen.looks != looks {
            *seen = Seen { at: Instant::now(), looks };
        }
    }

    /// Whether both go on. An API server that does not answer, or a state that cannot be published, stops neither.
    pub(super) fn goes_on(&self) -> bool {
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
    async fn a_loop_or_a_watch_that_stands_still_does_not_go_on_until_both_are_seen() {
        let progress = Progress::default();
        let beyond = STANDSTILL_MAX + Duration::from_millis(1);
        tokio::time::advance(STANDSTILL_MAX).await;
        assert!(progress.goes_on(), "it starts");
        progress.seen(1);
        tokio::time::advance(beyond).await;
        assert!(!progress.goes_on(), "the loop stands still");
        progress.seen(1);
        assert!(!progress.goes_on(), "the watch over hanging threads has stood still");
        progress.seen(2);
        assert!(progress.goes_on());
        tokio::time::advance(beyond).await;
        progress.seen(3);
        assert!(progress.goes_on(), "a pause that is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_end_is_told_and_a_wait_between_two_is_not() {
        let turn = Turn::default();
        turn.begin();
        tokio::time::advance(TURN_MAX).await;
        assert_eq!(turn.trouble(), None);
        turn.end();
        tokio::time::advance(TURN_MAX * 100).await;
        assert_eq!(turn.trouble(), None, "it waits for something to do");
        turn.begin();
        tokio::time::advance(TURN_MAX * 2).await;
        assert!(
            turn.trouble()
                .is_some_and(|why| why.starts_with("the daemon's loop has not ended its turn since "))
        );
        turn.end();
        assert_eq!(turn.trouble(), None);
    }
}
