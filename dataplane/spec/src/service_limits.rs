//! The limits of one Service, in plain values.

use std::num::{NonZeroU32, NonZeroU64};

/// The limits of a Service, for all its ports and addresses together. The default has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ServiceLimits {
    /// Flows at the same time (`tidegate.dev/max-connections`).
    pub connections: Option<NonZeroU32>,
    /// New flows per second (`tidegate.dev/max-connection-rate`).
    pub connection_rate: Option<NonZeroU32>,
    /// Bits per second in each direction that passes the gateway (`tidegate.dev/max-bandwidth`), at least 8.
    pub bandwidth: Option<NonZeroU64>,
}

impl ServiceLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether new flows are limited.
    #[must_use]
    pub fn limits_new_flows(&self) -> bool {
        self.connections.is_some() || self.connection_rate.is_some()
    }
}
