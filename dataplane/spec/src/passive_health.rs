//! How a Service port reacts to backends that refuse or ignore new connections, in plain values.

use std::time::Duration;

/// The rules of passive health (`health.passive`). They apply to TCP in the modes `nat` and `fullnat`, where answers
/// pass through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PassiveHealth {
    /// The number of consecutive connections that a backend refuses or ignores before it is set aside; with 0, none is
    /// set aside.
    pub failures: u8,
    /// How many other backends are tried for a connection that a backend refuses, at most
    /// [`limits::RETRIES_MAX`](crate::limits::RETRIES_MAX).
    pub retries: u8,
    /// For how long a backend is set aside, below 2^31 ms.
    pub set_aside: Duration,
    /// The largest share of the backends of the port that may be set aside at the same time, in percent.
    pub share_max: u8,
}

impl Default for PassiveHealth {
    fn default() -> Self {
        Self { failures: 3, retries: 2, set_aside: Duration::from_secs(10), share_max: 50 }
    }
}

impl PassiveHealth {
    /// Whether the rules have any effect.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.failures > 0 || self.retries > 0
    }
}
