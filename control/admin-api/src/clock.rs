//! The clock for the deadlines of requests.

use tidegate_spec::ownership::BootTime;

/// The time of `CLOCK_BOOTTIME`, which also advances while the machine is suspended.
#[must_use]
pub fn boot_time() -> BootTime {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    BootTime(u64::try_from(nanos).unwrap_or(u64::MAX))
}
