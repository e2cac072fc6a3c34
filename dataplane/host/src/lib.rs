//! What both halves need from the operating system: files that are replaced atomically, programs run as children,
//! requests to the kernel through rtnetlink, and the clock since boot.
//!
//! May depend on: `tidegate-spec` (the type of the time since boot).
//!
//! Invariant: a call affects only the file, the process or the kernel object that its arguments name.
#![deny(unsafe_code)]

pub mod atomic_file;
pub mod child;
pub mod rtnetlink;

use tidegate_spec::ownership::BootTime;

/// The kernel's clock since boot, including suspend. Needs no system call where the kernel provides a vDSO.
#[must_use]
pub fn boot_time() -> BootTime {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    BootTime(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_advances() {
        let before = boot_time();
        assert!(before > BootTime(0) && boot_time() >= before);
    }
}
