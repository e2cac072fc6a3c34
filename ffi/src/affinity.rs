//! The CPUs on which a thread may run.

use std::mem;

use crate::error::LcoreError;

/// Pins this thread to one CPU.
///
/// # Errors
/// When there is no such CPU, or this process may not use it.
pub fn pin(cpu: usize) -> Result<(), LcoreError> {
    let failed = |source| LcoreError::Pin { cpu, usable: usable_cpus(), source };
    if cpu >= usize::try_from(libc::CPU_SETSIZE).expect("a small constant") {
        return Err(failed(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut affinity = Affinity::none();
    // SAFETY: cpu is below CPU_SETSIZE, so the bit lies inside the set.
    unsafe { libc::CPU_SET(cpu, &mut affinity.0) };
    affinity.apply().map_err(failed)
}

/// The CPUs that this thread may run on, in ascending order.
#[must_use]
pub fn usable_cpus() -> Vec<usize> {
    let set = Affinity::of_this_thread().0;
    let size = usize::try_from(libc::CPU_SETSIZE).expect("a small constant");
    // SAFETY: every index is below CPU_SETSIZE.
    (0..size).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// A set of CPUs, read from a thread to be restored later.
pub(crate) struct Affinity(libc::cpu_set_t);

impl Affinity {
    pub(crate) fn none() -> Self {
        // SAFETY: cpu_set_t is an array of integers; all zeroes is the empty set.
        Self(unsafe { mem::zeroed() })
    }

    pub(crate) fn of_this_thread() -> Self {
        let mut affinity = Self::none();
        // SAFETY: pid 0 is this thread; pointer and size describe a whole cpu_set_t. The call can fail only if the
        // kernel has more than CPU_SETSIZE CPUs; the set then stays empty.
        unsafe { libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut affinity.0) };
        affinity
    }

    pub(crate) fn restore(&self) {
        // The set was read from this thread a moment ago, so the kernel should accept it. An error couldn't be handled
        // anyway.
        let _ = self.apply();
    }

    fn apply(&self) -> std::io::Result<()> {
        // SAFETY: pid 0 is this thread; pointer and size describe a whole cpu_set_t.
        let result = unsafe { libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &self.0) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}
