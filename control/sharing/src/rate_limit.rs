//! A rate limit.
//!
//! Invariant: nothing here reads a clock.

use std::time::Duration;

/// Allows a number of actions per second, with bursts of about a fifth of that number.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    /// When all used capacity is available again.
    until: Duration,
}

impl RateLimit {
    /// Whether an action is allowed.
    pub(crate) fn allows(&self, now: Duration) -> bool {
        self.until.saturating_sub(now) < Duration::from_millis(200)
    }

    /// Uses capacity for one action. Returns whether the action is allowed.
    pub(crate) fn take(&mut self, per_second: u32, now: Duration) -> bool {
        let is_allowed = self.allows(now);
        if is_allowed {
            self.until = self.until.max(now) + Duration::from_secs(1) / per_second.max(1);
        }
        is_allowed
    }
}
