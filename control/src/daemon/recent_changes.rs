//! Passes recent changes of backends from the controller, which tracks them, to the thread that shares flows, which
//! sends them to gateways that have not seen the changes.
//!
//! A gateway that has just started doesn't know the removed backends that keep their flows. In DSR modes it would also
//! send flows in flux to other backends.
//!
//! Invariant: the controller never waits here for long: it only stores a copy of its memory that shares the contents.

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
    /// The time of the round, on the controller's clock and on the system's.
    at: (Duration, Instant),
}

impl RecentChanges {
    /// Stores the memory of a round that ended at `now`.
    pub(super) fn store(&self, drains: &Drains, now: Duration) {
        let saved = Saved { drains: drains.clone(), at: (now, Instant::now()) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
    }

    /// If there was a round since the last call: the changes that still matter, and the time from which their remaining
    /// times count.
    pub(super) fn take(&self) -> Option<(BackendChanges, Instant)> {
        let saved = self.last.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (now, at) = saved.at;
        Some((saved.drains.changes(now).collect(), at))
    }
}
