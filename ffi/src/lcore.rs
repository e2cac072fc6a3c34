//! Threads registered with DPDK: a thread pins itself to a CPU, registers itself and gets an lcore number.
//!
//! A mempool has a cache per lcore, so registered threads such as workers allocate and free mbufs without touching
//! shared memory. An unregistered thread uses the shared ring each time.
//!
//! Invariant: an [`Lcore`] never leaves the thread that created it.

use std::marker::PhantomData;

use dpdk_sys as sys;

pub use crate::affinity::{pin, usable_cpus};
use crate::eal::Eal;
use crate::error::{Errno, LcoreError};

/// This thread's registration with DPDK; drop it when the thread has finished its work.
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
    /// Makes this thread an lcore on the CPUs that it may currently run on. Pin it first ([`pin`]).
    ///
    /// # Errors
    /// If the thread is already an lcore, or no lcore number is left (`RTE_MAX_LCORE`).
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

    /// Calls [`pin`] and [`Lcore::register`].
    ///
    /// # Errors
    /// The errors of both functions.
    pub fn register_on(eal: &Eal, cpu: usize) -> Result<Self, LcoreError> {
        pin(cpu)?;
        Self::register(eal)
    }

    /// The lcore number. It is not the number of the CPU.
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
