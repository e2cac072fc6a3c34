//! A lock between creating a namespace or a process and removing labs. Without it, something created while its lab is
//! removed would be left behind.

use std::sync::{Mutex, PoisonError};

/// Held while something is made or undone. The signal handler never gives it back, so that nothing new comes to
/// stand, and nobody else cleans up, between its work and the end of the process.
static CHANGING: Mutex<()> = Mutex::new(());

/// Makes a namespace or starts a process by `make`: not while labs are being undone.
pub(super) fn changing<T>(make: impl FnOnce() -> T) -> T {
    let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    make()
}
