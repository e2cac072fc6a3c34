//! The clock that all processes share: the kernel's, since boot.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_spec::now::Now;

/// The kernel's clock, which shows `kernel_ms`, minus a worker's, in milliseconds modulo 2^32.
#[must_use]
pub(super) fn clock_difference(kernel_ms: u32, now: Now) -> u32 {
    kernel_ms.wrapping_sub(now.millis())
}

/// The kernel's clock since boot, which counts the time in which the machine sleeps.
pub(super) fn kernel_ms() -> u32 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    // The truncation is intended: only differences count.
    (seconds.as_millis() as u32).wrapping_add(u32::try_from(time.tv_nsec / 1_000_000).unwrap_or(0))
}
