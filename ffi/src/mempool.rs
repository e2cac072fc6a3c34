//! Packet memory: pools of mbufs.
//!
//! Creates a pool, allocates mbufs from it, and reports its fill level. Dropping an mbuf returns it. The driver creates
//! one pool per NUMA node at the start; workers allocate mbufs for packets that they create.
//!
//! Invariant: the memory of a pool is freed only when every mbuf has returned and no lcore can still be returning one.
//! Until then, a pool without handles waits in a list, so an [`Mbuf`] may outlive every [`PktPool`] handle.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::burst::Burst;
use crate::eal::Eal;
use crate::error::{Errno, PoolError, PoolExhausted};
use crate::lcore;
use crate::mbuf::Mbuf;

/// Bytes before the frame in every mbuf, for headers to be prepended (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: u16 = sys::RTE_PKTMBUF_HEADROOM as u16;

/// A pool of mbufs. The handle may be cloned and used from any thread.
///
/// ```
/// use dpdk::{PktPool, PoolConfig, testing};
///
/// let pool = PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, ..PoolConfig::default() })?;
/// let mbuf = pool.alloc()?;
/// assert_eq!(pool.available(), 254);
/// drop(mbuf);
/// assert_eq!(pool.available(), 255);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PktPool(Arc<Pool>);

/// The settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Number of mbufs; 2^n - 1 makes the best use of memory.
    pub mbufs: u32,
    /// Mbufs that each lcore caches, at most 512 and at most two thirds of `mbufs`; 0 for no cache.
    pub cache: u32,
    /// Bytes for the frame in each mbuf. [`HEADROOM`] is added to it.
    pub data_room: u16,
    /// The NUMA node, or `None` for any.
    pub socket: Option<i32>,
}

impl Default for PoolConfig {
    /// 8,191 mbufs of 2,048 bytes, 256 in each lcore's cache, on any node.
    fn default() -> Self {
        Self { mbufs: 8191, cache: 256, data_room: 2048, socket: None }
    }
}

impl PktPool {
    /// Creates a pool with all mbufs available.
    ///
    /// # Errors
    /// If a value is out of range or the EAL does not have enough memory.
    pub fn new(eal: &Eal, config: &PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        free_what_waits();
        let mut count = count();
        if count.relied_on > 0 {
            return Err(PoolError::OnlyPool);
        }
        let name = CString::new(format!("pktpool{}", NEXT.fetch_add(1, Ordering::Relaxed)))
            .expect("the name has no NUL byte");
        // DPDK refuses a small pool with a large cache, and one lcore's cache could contain all of its mbufs.
        let cache = config.cache.min(config.mbufs * 2 / 3);
        let buffer_len = config.data_room + HEADROOM;
        // SAFETY: the EAL is initialised (`eal`); the name is a C string that is copied; private size 0 is aligned.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.mbufs,
                cache,
                0,
                buffer_len,
                config.socket.unwrap_or(sys::DPDK_SYS_SOCKET_ANY),
            )
        };
        match NonNull::new(raw) {
            Some(raw) => {
                count.pools += 1;
                Ok(Self(Arc::new(Pool {
                    raw,
                    capacity: config.mbufs,
                    data_room: config.data_room,
                    eal: eal.clone(),
                })))
            }
            None => Err(PoolError::Create {
                mbufs: config.mbufs,
                data_room: u32::from(buffer_len),
                source: Errno::last(),
            }),
        }
    }

    /// Allocates one mbuf: empty, with the default headroom.
    ///
    /// # Errors
    /// If none is left.
    #[inline]
    pub fn alloc(&self) -> Result<Mbuf, PoolExhausted> {
        // SAFETY: the pool lives as long as this handle. A fresh mbuf has no other owner.
        unsafe {
            match NonNull::new(sys::rte_pktmbuf_alloc(self.0.raw.as_ptr())) {
                Some(raw) => Ok(Mbuf::from_raw(raw)),
                None => Err(PoolExhausted),
            }
        }
    }

    /// Fills the burst: allocates as many mbufs as fit and appends them, or allocates none.
    ///
    /// # Errors
    /// If the pool has fewer; the burst is then unchanged.
    pub fn fill<const N: usize>(&self, burst: &mut Burst<N>) -> Result<(), PoolExhausted> {
        let spare = burst.spare();
        let places = spare.len();
        let count = u32::try_from(places).expect("a burst is small");
        // SAFETY: the pool lives as long as this handle; `spare` has space for `count` pointers. If the call returns 0,
        // all of them are valid, fresh and ours.
        unsafe {
            if sys::rte_pktmbuf_alloc_bulk(self.0.raw.as_ptr(), spare.as_mut_ptr().cast(), count) != 0 {
                return Err(PoolExhausted);
            }
            burst.assume_filled(places);
        }
        Ok(())
    }

    /// The total number of mbufs of the pool.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }

    /// The number of free mbufs, including those in lcore caches. Exact only while no thread allocates or frees any.
    /// Visits all lcores: for tests and statistics.
    #[must_use]
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives as long as this handle.
        unsafe { sys::rte_mempool_avail_count(self.as_ptr()) }
    }

    /// Bytes for the frame in each mbuf, without the headroom.
    #[must_use]
    pub fn data_room(&self) -> u16 {
        self.0.data_room
    }

    /// Guarantees that every mbuf of this process is from this pool as long as the result exists. `None` if there is
    /// another pool.
    pub(crate) fn only_pool(&self) -> Option<OnlyPool> {
        free_what_waits();
        let mut count = count();
        (count.pools == 1).then(|| {
            count.relied_on += 1;
            OnlyPool(())
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for PktPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PktPool({} of {} available)", self.available(), self.capacity())
    }
}

impl PoolConfig {
    /// Bytes of DPDK's memory in huge pages that a pool of these settings takes: its mbufs, and the ring of the free ones.
    /// Needs no EAL.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // The ring has a power of two of pointers, more than there are mbufs (rte_mempool_ring.c).
        let ring = (self.mbufs as usize + 1).next_power_of_two() * size_of::<*const ()>();
        self.mbufs as usize * self.mbuf_bytes() + ring
    }

    /// Bytes of one mbuf with its buffer, and what the pool adds to it.
    fn mbuf_bytes(&self) -> usize {
        let element = sys::DPDK_SYS_MBUF_SIZE + u32::from(self.data_room) + u32::from(HEADROOM);
        // SAFETY: computes a sum from the numbers and writes nothing to a null pointer.
        (unsafe { sys::rte_mempool_calc_obj_size(element, 0, std::ptr::null_mut()) }) as usize
    }

    fn check(&self) -> Result<(), PoolError> {
        let refuse = |what, given, accepted| Err(PoolError::Config { what, given, accepted });
        if self.mbufs == 0 || self.mbufs > 1 << 24 {
            return refuse("mbufs", self.mbufs, format!("1 to {}", 1 << 24));
        }
        if self.cache > sys::RTE_MEMPOOL_CACHE_MAX_SIZE {
            return refuse("cache", self.cache, format!("0 to {}", sys::RTE_MEMPOOL_CACHE_MAX_SIZE));
        }
        let most = u16::MAX - HEADROOM;
        if self.data_room == 0 || self.data_room > most {
            return refuse("data_room", u32::from(self.data_room), format!("1 to {most} bytes"));
        }
        Ok(())
    }
}

/// The memory itself, shared by the handles.
struct Pool {
    raw: NonNull<sys::rte_mempool>,
    capacity: u32,
    data_room: u16,
    eal: Eal,
}

// SAFETY: a mempool made by rte_pktmbuf_pool_create with the default flags may be used from any thread at once: the
// shared ring is multi-producer multi-consumer, and each cache belongs to an lcore, which is a single thread.
unsafe impl Send for Pool {}
// SAFETY: as for Send.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    /// No handle is left, so no more mbufs are allocated. The pool is freed once all mbufs have been returned.
    fn drop(&mut self) {
        let parked = Parked { raw: self.raw, capacity: self.capacity, _eal: self.eal.clone() };
        WAITING.lock().unwrap_or_else(PoisonError::into_inner).push(parked);
        free_what_waits();
    }
}

/// While one of these exists, no other pool is created ([`PktPool::only_pool`]).
#[derive(Debug)]
pub(crate) struct OnlyPool(());

impl Drop for OnlyPool {
    fn drop(&mut self) {
        count().relied_on -= 1;
    }
}

/// The pools of this process.
#[derive(Debug)]
struct Count {
    /// Pools that have not been freed, with and without handles.
    pools: usize,
    /// The number of [`OnlyPool`]s.
    relied_on: usize,
}

fn count() -> MutexGuard<'static, Count> {
    static COUNT: Mutex<Count> = Mutex::new(Count { pools: 0, relied_on: 0 });
    COUNT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A counter for names, which must be unique within the process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Pools without handles, which are usually freed soon.
static WAITING: Mutex<Vec<Parked>> = Mutex::new(Vec::new());

/// A pool whose last handle was dropped. Mbufs in use keep it (and the EAL) alive.
struct Parked {
    raw: NonNull<sys::rte_mempool>,
    capacity: u32,
    _eal: Eal,
}

// SAFETY: as for Pool; and nothing allocates from it any more.
unsafe impl Send for Parked {}

impl Parked {
    /// Whether every mbuf has been returned and no thread can be in the middle of returning one.
    ///
    /// rte_mempool counts an object as cached before it has written the pointer to the cache, so the count alone
    /// doesn't show that the lcore has finished. It has finished if the cache belongs to this thread, or if its lcore
    /// has no thread.
    fn is_quiet(&self) -> bool {
        let own = lcore::current();
        // SAFETY: the pool lives, because only `free_what_waits` frees it, and then removes it from the list.
        if unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) } != self.capacity {
            return false;
        }
        (0..sys::RTE_MAX_LCORE).all(|id| {
            // SAFETY: as above; id is below RTE_MAX_LCORE, as both calls require.
            unsafe {
                sys::dpdk_sys_mempool_cached(self.raw.as_ptr(), id) == 0
                    || own == Some(id)
                    || sys::rte_eal_lcore_role(id) == sys::ROLE_OFF
            }
        })
    }
}

/// Frees the parked pools that are quiet. Called when a pool is dropped and when one is created.
fn free_what_waits() {
    let quiet: Vec<Parked> = {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extract_if(.., |parked| parked.is_quiet()).collect()
    };
    for parked in quiet {
        // SAFETY: the pool is quiet and has no handles: no pointer into it is left, and it is no longer in the list.
        unsafe { sys::rte_mempool_free(parked.raw.as_ptr()) };
        count().pools -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn only_pool_requires_a_single_pool_and_prevents_others() {
        let _serial = testing::serial();
        let config = PoolConfig { mbufs: 255, ..PoolConfig::default() };
        let create = || PktPool::new(testing::eal(), &config);
        let (pool, other) = (create().unwrap(), create().unwrap());
        assert!(pool.only_pool().is_none(), "there are two");
        let kept = other.alloc().unwrap();
        drop(other);
        assert!(pool.only_pool().is_none(), "an mbuf of the other still exists");
        drop(kept);
        let promise = pool.only_pool().expect("the only pool");
        assert!(matches!(create(), Err(PoolError::OnlyPool)));
        drop(promise);
        drop(create().unwrap());
    }

    #[test]
    fn the_memory_of_a_pool_is_known_before_there_is_one() {
        let _serial = testing::serial();
        for data_room in [2048, 9064] {
            let config = PoolConfig { mbufs: 255, data_room, ..PoolConfig::default() };
            let pool = PktPool::new(testing::eal(), &config).unwrap();
            let mbufs: Vec<Mbuf> = (0..255).map(|_| pool.alloc().unwrap()).collect();
            let mut addresses: Vec<usize> = mbufs.iter().map(|mbuf| mbuf.data().as_ptr().addr()).collect();
            addresses.sort_unstable();
            // Mbufs are next to each other, except at the end of a page.
            let least = addresses.windows(2).map(|pair| pair[1] - pair[0]).min();
            let (least, expected) = (least.expect("many mbufs"), config.mbuf_bytes());
            // An mbuf doesn't cross a page of 4 KiB, as there are without huge pages.
            let is_alone = (2049..=4096).contains(&expected) && least == 4096;
            assert!(least == expected || is_alone, "{least} instead of {expected}");
            assert!(config.memory_bytes() >= 255 * config.mbuf_bytes() + 256 * 8);
        }
    }

    /// This test is here and not among those on virtual devices because it briefly uses all memory of its process.
    #[test]
    fn too_large_a_pool_is_an_error_and_gives_back_what_it_got() {
        let _serial = testing::serial();
        let error = PktPool::new(testing::eal(), &PoolConfig { mbufs: 1 << 24, ..PoolConfig::default() })
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot create a pool of 16777216 mbufs with 2176 bytes each: Cannot allocate memory (error 12); give \
             DPDK more memory, or request fewer mbufs"
        );
        let pool =
            PktPool::new(testing::eal(), &PoolConfig { mbufs: 100_000, ..PoolConfig::default() }).unwrap();
        assert_eq!(pool.available(), 100_000);
    }
}
