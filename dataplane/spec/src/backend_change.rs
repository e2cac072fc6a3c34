//! Recent changes of the backends of a service port, as gateways tell them each other.

use std::net::SocketAddr;
use std::time::Duration;

/// A recent change of the backends of a service port, for a gateway that has not seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChange {
    /// The weight of a backend has changed, and the Service follows its seats.
    Moved(MovedSeat),
    /// A backend has left and keeps its flows.
    Left(LeftBackend),
}

impl BackendChange {
    /// How long the change still matters.
    #[must_use]
    pub fn left(&self) -> Duration {
        match self {
            Self::Moved(seat) => seat.left,
            Self::Left(backend) => backend.left,
        }
    }

    /// The same change after this time; `None` if it no longer matters.
    #[must_use]
    pub fn after(&self, passed: Duration) -> Option<Self> {
        let left = self.left().saturating_sub(passed);
        (!left.is_zero()).then_some(match *self {
            Self::Moved(seat) => Self::Moved(MovedSeat { left, ..seat }),
            Self::Left(backend) => Self::Left(LeftBackend { left, ..backend }),
        })
    }
}

/// A backend that has left its Service and keeps its flows until the drain timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftBackend {
    /// The mark of the Service ([`owner_mark`](crate::owner_mark)): another one may get the port.
    pub owner: u32,
    /// The backend.
    pub backend: SocketAddr,
    /// The rest of the drain timeout.
    pub left: Duration,
}

/// A backend whose weight changed lately, as gateways tell it each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedSeat {
    /// The backend.
    pub backend: SocketAddr,
    /// Its weight at the beginning of the window; 0 if it took no new flows.
    pub former: u16,
    /// The rest of the window.
    pub left: Duration,
}
