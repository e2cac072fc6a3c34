//! A lock between creating a namespace or a process and removing labs. Without it, something created while its lab is
//! removed would be left behind.

use std::sync::{Mutex, PoisonError};

/// Locked while something is created or removed. The signal handler never releases it, so that no new namespace is
/// created, and no other thread cleans up, before the process exits.
static CHANGING: Mutex<()> = Mutex::new(());

/// Calls `make`, which creates a namespace or starts a process, while no lab is being removed.
pub(super) fn changing<T>(make: impl FnOnce() -> T) -> T {
    let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    make()
}
