//! The kernel's clock since boot, which all processes share.

use tidegate_host::boot_time;

/// The kernel's clock since boot, in milliseconds modulo 2^32: only differences matter.
pub(super) fn kernel_ms() -> u32 {
    (boot_time().0 / 1_000_000) as u32
}
