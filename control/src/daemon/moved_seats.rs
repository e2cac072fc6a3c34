//! Which backends changed lately, between the controller, which follows them, and the exchange with other gateways, which
//! sends them to gateways that have not seen the changes.
//!
//! A gateway that has just started doesn't know the backends that have left and keep their flows. In DSR modes it would
//! also send flows in flux elsewhere.
//!
//! Invariant: the controller never waits here for long: it only leaves a copy of its memory, which shares everything.

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
    /// When that was, by the clock of the controller and by that of the system.
    at: (Duration, Instant),
}

impl MovedSeats {
    /// Leaves the memory of a round that ended at `now`.
    pub(super) fn leave(&self, drains: &Drains, now: Duration) {
        let left = Left { drains: drains.clone(), at: (now, Instant::now()) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
    }

    /// The changes that still matter, if there was a round since the last call, and when the remaining times were these.
    pub(super) fn take(&self) -> Option<(Moved, Instant)> {
        let left = self.last.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (now, at) = left.at;
        Some((left.drains.changes(now).collect(), at))
    }
}
