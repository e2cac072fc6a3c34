//! Threads that DPDK knows: a plain thread, pinned to a CPU, that registers itself and so gets an lcore number.
//!
//! What that buys: a mempool keeps a cache for each lcore, so that a worker's mbufs come and go without touching
//! what other threads touch. An unregistered thread works too, but goes to the shared ring each time.
//! Who calls it: each worker, as the first thing it does.
//! Invariant: an [`Lcore`] never leaves the thread that made it.

use std::marker::PhantomData;
use std::mem;

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::{Errno, LcoreError};

/// This thread's registration with DPDK; dropped at the end of the thread's work.
///
/// ```
/// let eal = dpdk::testing::eal();
/// std::thread::spawn(|| {
///     let lcore = dpdk::Lcore::register(eal)?;
///     assert_ne!(lcore.id(), 0, "0 is the main lcore");
///     Ok::<(), dpdk::LcoreError>(())
/// })
/// .join()
/// .expect("the thread does not panic")?;
/// # Ok::<(), dpdk::LcoreError>(())
/// ```
pub struct Lcore {
    id: u32,
    _eal: Eal,
    /// Not Send: rte_thread_unregister acts on the thread that calls it.
    _this_thread: PhantomData<*const ()>,
}

impl Lcore {
    /// Makes this thread an lcore, on the CPUs that it may run on now: pin it first ([`pin`]).
    ///
    /// # Errors
    /// When the thread is an lcore already, or there are no more numbers (`RTE_MAX_LCORE`).
    pub fn register(eal: &Eal) -> Result<Self, LcoreError> {
        if let Some(id) = current() {
            return Err(LcoreError::Registered(id));
        }
        // SAFETY: the EAL is initialised (`eal`), and this thread has no lcore yet.
        if unsafe { sys::rte_thread_register() } < 0 {
            return Err(LcoreError::Register(Errno::last()));
        }
        let id = current().expect("rte_thread_register gave this thread an lcore number");
        Ok(Self { id, _eal: eal.clone(), _this_thread: PhantomData })
    }

    /// [`pin`] and [`Lcore::register`] in one.
    ///
    /// # Errors
    /// As those two.
    pub fn register_on(eal: &Eal, cpu: usize) -> Result<Self, LcoreError> {
        pin(cpu)?;
        Self::register(eal)
    }

    /// The lcore number; not the CPU's.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Lcore {
    fn drop(&mut self) {
        // SAFETY: this is the thread that registered (the type is not Send).
        unsafe { sys::rte_thread_unregister() };
    }
}

/// The lcore number of this thread, if it has one.
#[must_use]
pub fn current() -> Option<u32> {
    // SAFETY: reads a thread-local.
    let id = unsafe { sys::rte_lcore_id() };
    (u64::from(id) != sys::DPDK_SYS_LCORE_ANY).then_some(id)
}

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

/// The CPUs that this thread may run on, ascending.
#[must_use]
pub fn usable_cpus() -> Vec<usize> {
    let set = Affinity::of_this_thread().0;
    let size = usize::try_from(libc::CPU_SETSIZE).expect("a small constant");
    // SAFETY: every index is below CPU_SETSIZE.
    (0..size).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// A set of CPUs, taken from a thread and given back to it.
pub(crate) struct Affinity(libc::cpu_set_t);

impl Affinity {
    pub(crate) fn none() -> Self {
        // SAFETY: cpu_set_t is an array of integers; all zeroes is the empty set.
        Self(unsafe { mem::zeroed() })
    }

    pub(crate) fn of_this_thread() -> Self {
        let mut affinity = Self::none();
        // SAFETY: pid 0 is this thread; the pointer and the size are those of a whole cpu_set_t. It can fail only
        // where the kernel has more than CPU_SETSIZE CPUs; the set stays empty then.
        unsafe { libc::sched_getaffinity(0, mem::size_of::<libc::cpu_set_t>(), &mut affinity.0) };
        affinity
    }

    pub(crate) fn restore(&self) {
        // Taken from this same thread a moment ago, so the kernel takes it; there is nothing to do if it does not.
        let _ = self.apply();
    }

    fn apply(&self) -> std::io::Result<()> {
        // SAFETY: pid 0 is this thread; the pointer and the size are those of a whole cpu_set_t.
        let result = unsafe { libc::sched_setaffinity(0, mem::size_of::<libc::cpu_set_t>(), &self.0) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}
