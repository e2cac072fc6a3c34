//! Passes recent changes of backends from the controller, which tracks them, to the thread that shares flows, which
//! sends them to gateways that have not seen the changes.
//!
//! A gateway that has just started doesn't know the removed backends that keep their flows. In DSR modes it would also
//! send flows in flux to other backends.
//!
//! Invariant: the controller never waits here for long: it only stores a copy of its memory, which shares its contents.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_policy::reconcile::Drains;
use tidegate_spec::{BackendChange, ServiceKey};

/// Changes of the backends, by service port.
pub(super) type BackendChanges = Vec<(ServiceKey, BackendChange)>;

/// The memory of the controller after its last round.
#[derive(Debug, Default)]
pub(super) struct RecentChanges {
    last: Mutex<Option<Saved>>,
}

#[derive(Debug)]
struct Saved {
    drains: Drains,
    /// The time of the round, by the clock of the controller and by that of the system.
    at: (Duration, Instant),
}

impl RecentChanges {
    /// Stores the memory of a round that ended at `now`.
    pub(super) fn store(&self, drains: &Drains, now: Duration) {
        let saved = Saved { drains: drains.clone(), at: (now, Instant::now()) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
    }

    /// The changes that still matter, if there was a round since the last call, and the time to which their remaining
    /// times refer.
    pub(super) fn take(&self) -> Option<(BackendChanges, Instant)> {
        let saved = self.last.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (now, at) = saved.at;
        Some((saved.drains.changes(now).collect(), at))
    }
}
