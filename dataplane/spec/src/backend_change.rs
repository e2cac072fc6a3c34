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
    /// How long other gateways still need the change.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self {
            Self::WeightChanged(change) => change.remaining,
            Self::Removed(backend) => backend.remaining,
        }
    }

    /// The change after `passed` has elapsed; `None` if it has expired by then.
    #[must_use]
    pub fn after(&self, passed: Duration) -> Option<Self> {
        let remaining = self.remaining().saturating_sub(passed);
        (!remaining.is_zero()).then_some(match *self {
            Self::WeightChanged(change) => Self::WeightChanged(WeightChange { remaining, ..change }),
            Self::Removed(backend) => Self::Removed(RemovedBackend { remaining, ..backend }),
        })
    }
}

/// A backend that was removed from its Service and keeps its flows until the drain timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedBackend {
    /// [`owner_mark`](crate::owner_mark) of the Service, because the service port may go to another Service.
    pub owner: u32,
    /// The backend.
    pub backend: SocketAddr,
    /// The remaining drain timeout.
    pub remaining: Duration,
}

/// A change of a backend's weight in its window (`docs/selection.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightChange {
    /// The backend.
    pub backend: SocketAddr,
    /// Its weight at the start of the window; 0 if it took no new flows.
    pub former: u16,
    /// The rest of the window.
    pub remaining: Duration,
}
