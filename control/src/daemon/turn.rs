//! Whether the daemon's loop comes to the end of its turns.
//!
//! While it hangs, workers forward as before and nothing else changes: no update of an endpoint, no result of a health
//! check, no drain. Other tasks go on, and would show a gateway that is well.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_model::time::whole_seconds;
use tokio::time::Instant;

/// A turn that takes longer hangs. Waits for disks take 2 s each, the first round with millions of backends some ten seconds.
const TURN_MAX: Duration = Duration::from_secs(60);

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

#[cfg(test)]
mod tests {
    use super::*;

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
