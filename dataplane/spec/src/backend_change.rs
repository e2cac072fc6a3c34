//! Recent changes of the backends of a service port, as gateways send them to each other.

use std::net::SocketAddr;
use std::time::Duration;

/// A recent change of the backends of a service port, for a gateway that has not seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChange {
    /// The weight of a backend has changed, and the Service tracks former owners.
    WeightChanged(WeightChange),
    /// A backend was removed and keeps its flows.
    Removed(RemovedBackend),
}

impl BackendChange {
    /// How long the change still matters.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self {
            Self::WeightChanged(seat) => seat.remaining,
            Self::Removed(backend) => backend.remaining,
        }
    }

    /// The change as it is after this time; `None` if it no longer matters.
    #[must_use]
    pub fn after(&self, passed: Duration) -> Option<Self> {
        let remaining = self.remaining().saturating_sub(passed);
        (!remaining.is_zero()).then_some(match *self {
            Self::WeightChanged(seat) => Self::WeightChanged(WeightChange { remaining, ..seat }),
            Self::Removed(backend) => Self::Removed(RemovedBackend { remaining, ..backend }),
        })
    }
}

/// A backend that was removed from its Service and keeps its flows until the drain timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedBackend {
    /// [`owner_mark`](crate::owner_mark) of the Service, because another Service may get the port.
    pub owner: u32,
    /// The backend.
    pub backend: SocketAddr,
    /// The remaining drain timeout.
    pub remaining: Duration,
}

/// A recent change of a backend's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightChange {
    /// The backend.
    pub backend: SocketAddr,
    /// Its weight at the start of the window; 0 if it took no new flows.
    pub former: u16,
    /// The remaining window.
    pub remaining: Duration,
}
