//! Time for workers: nanoseconds derived from the time stamp counter, without a system call.
//!
//! A [`Clock`] is created once and copied to every worker, so that all agree. The counter runs at the same rate on all
//! cores (`constant_tsc`); every machine that DPDK supports has such a counter.
//!
//! Invariant: time never goes back for a worker: [`Clock::now`] is a monotonic function of the counter.

use std::time::{Duration, Instant};

use tidegate_spec::now::Now;

/// Converts cycles to nanoseconds since the clock was created.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: u64,
    /// Nanoseconds per cycle, in units of 2^-32.
    scale: u64,
    hz: u64,
}

impl Clock {
    /// A clock for a counter of `hz` cycles per second, starting now.
    ///
    /// # Panics
    /// If `hz` is 0.
    #[must_use]
    pub fn new(hz: u64) -> Self {
        assert!(hz > 0, "the time stamp counter runs");
        let scale = (u128::from(NANOS_PER_SECOND) << 32) / u128::from(hz);
        Self { origin: cycles(), scale: u64::try_from(scale).expect("a counter faster than 1 Hz"), hz }
    }

    /// A clock for the counter of this machine, at the rate measured by the EAL. Without an EAL, the rate is measured
    /// against the kernel's clock (20 ms, accurate to about 0.01 %).
    #[must_use]
    pub fn calibrated() -> Self {
        match dpdk::cycles::hz() {
            0 => Self::new(measure()),
            hz => Self::new(hz),
        }
    }

    /// The current time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Now {
        self.at(cycles())
    }

    /// The time at a reading of the counter.
    #[inline]
    #[must_use]
    pub fn at(&self, cycles: u64) -> Now {
        // The counter of another core may be behind the origin by a few cycles.
        Now(self.nanos(cycles.saturating_sub(self.origin)))
    }

    /// Converts cycles to nanoseconds.
    #[inline]
    #[must_use]
    pub fn nanos(&self, cycles: u64) -> u64 {
        let nanos = (u128::from(cycles) * u128::from(self.scale)) >> 32;
        // A `u64` is enough for 584 years of nanoseconds.
        nanos as u64
    }

    /// Cycles per second.
    #[must_use]
    pub fn hz(&self) -> u64 {
        self.hz
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The current value of the counter.
#[inline]
#[must_use]
pub fn cycles() -> u64 {
    dpdk::cycles::now()
}

fn measure() -> u64 {
    let (started, first) = (Instant::now(), cycles());
    while started.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let (elapsed, last) = (started.elapsed(), cycles());
    let hz = u128::from(last.saturating_sub(first)) * u128::from(NANOS_PER_SECOND) / elapsed.as_nanos();
    u64::try_from(hz).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_matches_the_rate_even_after_years() {
        let clock = Clock { origin: 1_000, ..Clock::new(2_000_000_000) };
        assert_eq!(clock.at(3_000), Now(1_000));
        assert_eq!(clock.at(500), Now(0), "a core that is a little behind does not wrap");
        let year = 365 * 86_400 * 2_000_000_000_u64;
        let off = clock.at(1_000 + year).0.abs_diff(365 * 86_400 * NANOS_PER_SECOND);
        assert!(off < 1_000_000, "{off} ns in a year");
    }

    #[test]
    fn the_calibrated_clock_keeps_step_with_the_kernels() {
        let clock = Clock::calibrated();
        let (started, first) = (Instant::now(), clock.now());
        while started.elapsed() < Duration::from_millis(50) {
            std::thread::yield_now();
        }
        let (kernel, ours) = (started.elapsed(), clock.now().since(first));
        let off = kernel.abs_diff(ours);
        assert!(off < kernel / 50, "kernel {kernel:?}, ours {ours:?}");
    }
}
