//! The clock of the packet path: the CPU's time stamp counter and its frequency.
//!
//! Not here: calendar time, and anything that needs a system call per packet.
//!
//! Invariant: on machines that DPDK supports, the counter runs at the same rate on all cores (`constant_tsc`).

use dpdk_sys as sys;

/// The time stamp counter, in cycles of [`hz`]. Costs some 20 cycles, and is not ordered against other instructions.
#[inline]
#[must_use]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and Linux lets user space read the counter.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: reads a register; no precondition.
    unsafe {
        sys::rte_rdtsc()
    }
}

/// Cycles per second, as measured when the EAL started; 0 before that.
#[must_use]
pub fn hz() -> u64 {
    // SAFETY: returns a global that rte_eal_init sets once.
    unsafe { sys::rte_get_tsc_hz() }
}
