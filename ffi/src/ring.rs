//! Passes mbufs from one thread to another: a bounded lock-free ring.
//!
//! The two ends of a single-producer single-consumer `rte_ring`. Workers use it for frames that another worker must
//! process; tests build ports from rings.
//!
//! Invariant: each end has one handle, which is borrowed mutably to use it. Mbufs left in the ring when both ends are
//! dropped are freed.

use std::ffi::CString;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use crate::burst::Burst;
use crate::eal::Eal;
use crate::error::{Errno, RingError};

/// Creates a ring for up to `capacity` mbufs, on NUMA node `socket` or any.
///
/// # Errors
/// If `capacity` is 0 or at least 2^30, or there is not enough memory.
///
/// ```
/// use dpdk::{Burst, PktPool, PoolConfig, ring, testing};
///
/// let pool = PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, ..PoolConfig::default() })?;
/// let (mut sender, mut receiver) = ring::channel(testing::eal(), 20, None)?;
/// let mut burst = Burst::<32>::new();
/// pool.fill(&mut burst)?;
/// assert_eq!(sender.send(&mut burst), 20);
/// assert_eq!(burst.len(), 12, "the ring is full: the rest stays");
/// # burst.clear();
/// assert_eq!(receiver.receive(&mut burst), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn channel(
    eal: &Eal,
    capacity: u32,
    socket: Option<i32>,
) -> Result<(RingSender, RingReceiver), RingError> {
    let ring = Arc::new(Ring::new(eal, capacity, socket)?);
    Ok((RingSender(Arc::clone(&ring)), RingReceiver(ring)))
}

/// The producing end.
#[derive(Debug)]
pub struct RingSender(Arc<Ring>);

/// The consuming end.
#[derive(Debug)]
pub struct RingReceiver(Arc<Ring>);

impl RingSender {
    /// Moves mbufs from the front of the burst to the ring until it is full, and returns their number. The rest stays
    /// in the burst.
    #[inline]
    pub fn send<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let count = u32::try_from(burst.len()).expect("a burst is small");
        // SAFETY: the ring lives as long as this end; we are its only producer; the burst contains `count` pointers.
        // The ring owns the first `sent` of them from then on.
        unsafe {
            let sent = sys::rte_ring_enqueue_burst(
                self.0.raw.as_ptr(),
                burst.as_raw().cast(),
                count,
                ptr::null_mut(),
            );
            burst.assume_taken(sent as usize);
            sent as usize
        }
    }
}

impl RingReceiver {
    /// Moves mbufs from the ring to the burst while the burst has capacity, and returns their number.
    #[inline]
    pub fn receive<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        self.0.drain_into(burst)
    }
}

/// A ring of mbufs. At any time, at most one thread adds mbufs and at most one removes them.
pub(crate) struct Ring {
    raw: NonNull<sys::rte_ring>,
    _eal: Eal,
}

// SAFETY: rte_ring synchronises its two sides with atomics, and each side is used by one thread at a time: through a
// mutable borrow of its only handle, or by the port that was built from the ring.
unsafe impl Send for Ring {}
// SAFETY: as for Send.
unsafe impl Sync for Ring {}

impl Ring {
    pub(crate) fn new(eal: &Eal, capacity: u32, socket: Option<i32>) -> Result<Self, RingError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Larger capacities overflow rte_ring's own arithmetic.
        if capacity == 0 || capacity >= 1 << 30 {
            return Err(RingError { capacity, source: Errno::from_return(libc::EINVAL) });
        }
        let name =
            CString::new(format!("ring{}", NEXT.fetch_add(1, Ordering::Relaxed))).expect("no NUL byte in it");
        // With RING_F_EXACT_SZ, rte_ring rounds the size up itself.
        let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ | sys::RING_F_EXACT_SZ;
        let socket = socket.unwrap_or(sys::DPDK_SYS_SOCKET_ANY);
        // SAFETY: the EAL is initialised (`eal`); the name is a C string that is copied.
        let raw = unsafe { sys::rte_ring_create(name.as_ptr(), capacity, socket, flags) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, _eal: eal.clone() }),
            None => Err(RingError { capacity, source: Errno::last() }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_ring {
        self.raw.as_ptr()
    }

    /// The caller must be the only consumer.
    #[inline]
    fn drain_into<const N: usize>(&self, burst: &mut Burst<N>) -> usize {
        let spare = burst.spare();
        let count = u32::try_from(spare.len()).expect("a burst is small");
        // SAFETY: the ring lives; the caller is its only consumer at this time; `spare` has space for `count` pointers;
        // the ring contains only mbufs that a burst or a port put there.
        unsafe {
            let received = sys::rte_ring_dequeue_burst(
                self.raw.as_ptr(),
                spare.as_mut_ptr().cast(),
                count,
                ptr::null_mut(),
            );
            burst.assume_filled(received as usize);
            received as usize
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut burst = Burst::<32>::new();
        while self.drain_into(&mut burst) > 0 {
            burst.clear();
        }
        // SAFETY: both ends are gone, and so is any port built from the ring (the port owns it); the ring is empty.
        unsafe { sys::rte_ring_free(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the ring lives; counting is allowed at any time.
        write!(f, "Ring({} mbufs)", unsafe { sys::rte_ring_count(self.raw.as_ptr()) })
    }
}
