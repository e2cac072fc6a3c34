//! Passes recent changes of backends from the controller, which tracks them, to the thread that shares flows,
//! which sends them to gateways that have not seen the changes.
//!
//! A gateway that has just started doesn't know the removed backends that keep their flows. In DSR modes it
//! would also send flows in flux to other backends.
//!
//! Invariant: the controller never waits here for long: it only stores a copy of its memory, which shares its
//! contents.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_policy::reconcile::Drains;
use tidegate_spec::{BackendChange, ServiceKey};

/// Changes of the backends, by service port.
pub(super) type Moved = Vec<(ServiceKey, BackendChange)>;

/// The memory of the controller after its last round.
#[derive(Debug, Default)]
pub(super) struct MovedSeats {
    last: Mutex<Option<Left>>,
}

#[derive(Debug)]
struct Left {
    drains: Drains,
    /// The time of the round, by the clock of the controller and by that of the system.
    at: (Duration, Instant),
}

impl MovedSeats {
    /// Stores the memory of a round that ended at `now`.
    pub(super) fn leave(&self, drains: &Drains, now: Duration) {
        let left = Left { drains: drains.clone(), at: (now, Instant::now()) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }

    /// The changes that still matter, if there was a round since the last call, and the time to which their
    /// remaining times refer.
    pub(super) fn take(&self) -> Option<(Moved, Instant)> {
        let left = self.last.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (now, at) = left.at;
        Some((left.drains.changes(now).collect(), at))
    }
}
