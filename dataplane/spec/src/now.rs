//! Time as an argument.
//!
//! Invariant: nothing in the packet path reads a clock. Workers pass the nanoseconds of the time-stamp counter, replay
//! passes the capture's timestamps, tests pass any value.

use std::time::Duration;

/// Nanoseconds since an epoch that the caller chooses; never decreasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now(pub u64);

impl Now {
    /// Milliseconds, as flow entries store them. They wrap after 49 days; compare with [`u32::wrapping_sub`].
    #[inline]
    #[must_use]
    pub fn millis(self) -> u32 {
        // The truncation is intended: ages are differences modulo 2^32.
        (self.0 / 1_000_000) as u32
    }

    /// The time `after` this one.
    #[must_use]
    pub fn plus(self, after: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The duration from `earlier` to this time, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
