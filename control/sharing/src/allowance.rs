//! Limits how often something is done.
//!
//! Invariant: nothing here reads a clock.

use std::time::Duration;

/// A number of actions in a second, of which a fifth may come at once.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// When all that was used is available again.
    until: Duration,
}

impl Allowance {
    /// Whether an action is allowed.
    pub(crate) fn has(&self, now: Duration) -> bool {
        self.until.saturating_sub(now) < Duration::from_millis(200)
    }

    /// Uses an action, if one is allowed. Returns whether it is.
    pub(crate) fn take(&mut self, per_second: u32, now: Duration) -> bool {
        let has = self.has(now);
        if has {
            self.until = self.until.max(now) + Duration::from_secs(1) / per_second.max(1);
        }
        has
    }
}
