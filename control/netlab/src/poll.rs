//! Waits for a condition with a time limit. The lab uses no other kind of wait.
//!
//! Invariant: no caller sleeps for a fixed time. When the time limit ends, the error names the condition.

use anyhow::{Result, bail};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two probes: short compared with the waits, and long enough to leave the cores to others.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);

/// Probes until there is a value, and returns it with the elapsed time.
///
/// # Errors
/// When `bound` has passed; the message contains `what`.
pub fn timed_wait_for<T>(
    what: &str,
    bound: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<(T, Duration)> {
    let begin = Instant::now();
    loop {
        if let Some(value) = probe() {
            return Ok((value, begin.elapsed()));
        }
        if begin.elapsed() >= bound {
            bail!("timed out after {bound:?} waiting for {what}");
        }
        thread::sleep(PROBE_INTERVAL);
    }
}

/// Probes until there is a value. See [`timed_wait_for`].
///
/// # Errors
/// When `bound` has passed; the message contains `what`.
pub fn wait_for<T>(what: &str, bound: Duration, probe: impl FnMut() -> Option<T>) -> Result<T> {
    timed_wait_for(what, bound, probe).map(|(value, _)| value)
}
