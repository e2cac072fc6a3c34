//! The kernel's clock since boot, which all processes share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_spec::now::Now;

/// The difference between the kernel's clock, now at `kernel_ms`, and a worker's clock, in milliseconds modulo 2^32.
#[must_use]
pub(super) fn clock_difference(kernel_ms: u32, now: Now) -> u32 {
    kernel_ms.wrapping_sub(now.millis())
}

/// The kernel's clock since boot, including the time during which the machine was suspended.
pub(super) fn kernel_ms() -> u32 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    // Truncation is intended: only differences matter.
    (seconds.as_millis() as u32).wrapping_add(u32::try_from(time.tv_nsec / 1_000_000).unwrap_or(0))
}
