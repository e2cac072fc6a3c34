//! A burst: frames that a worker processes together.
//!
//! [`Burst`] is a fixed array of owned mbufs, without heap memory. It dereferences to `[Mbuf]`. A worker has one burst
//! per queue: RX appends to it, TX takes from its front.
//!
//! Invariant: a burst owns its mbufs. Mbufs that TX refuses stay in it, in order; dropping the burst frees them.

use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut, RangeBounds};

use arrayvec::{ArrayVec, CapacityError};
use dpdk_sys as sys;

use crate::mbuf::Mbuf;

/// Up to `N` mbufs, in order.
///
/// ```
/// use dpdk::{Burst, PktPool, PoolConfig, testing};
///
/// let pool = PktPool::new(testing::eal(), &PoolConfig { mbufs: 255, ..PoolConfig::default() })?;
/// let mut burst = Burst::<32>::new();
/// pool.fill(&mut burst)?;
/// burst.retain(|mbuf| mbuf.headroom() > 0);
/// assert_eq!(burst.len(), 32);
/// burst.clear();
/// assert_eq!(pool.available(), 255);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Burst<const N: usize = 32>(ArrayVec<Mbuf, N>);

impl<const N: usize> Burst<N> {
    /// An empty burst.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self(ArrayVec::new())
    }

    /// The number of mbufs that can still be added.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.0.remaining_capacity()
    }

    /// Whether it is full.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Appends an mbuf.
    ///
    /// # Errors
    /// The mbuf, if the burst is full.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        self.0.try_push(mbuf).map_err(CapacityError::element)
    }

    /// Removes the last mbuf.
    #[inline]
    pub fn pop(&mut self) -> Option<Mbuf> {
        self.0.pop()
    }

    /// Removes a range, in order. Mbufs that the caller doesn't consume are freed.
    #[inline]
    pub fn drain(&mut self, range: impl RangeBounds<usize>) -> impl Iterator<Item = Mbuf> + '_ {
        self.0.drain(range)
    }

    /// Removes the mbuf at `index` and replaces it with the last one.
    ///
    /// # Panics
    /// If `index` is not below the length.
    #[inline]
    pub fn swap_remove(&mut self, index: usize) -> Mbuf {
        self.0.swap_remove(index)
    }

    /// Frees the mbufs for which `keep` returns false. The others stay in order.
    #[inline]
    pub fn retain(&mut self, keep: impl FnMut(&mut Mbuf) -> bool) {
        self.0.retain(keep);
    }

    /// Frees all mbufs in one call.
    #[inline]
    pub fn clear(&mut self) {
        let count = u32::try_from(self.0.len()).expect("a burst is small");
        // SAFETY: length 0 is always valid, and nothing else then refers to the first `count` pointers; they are owned
        // mbufs, which rte_pktmbuf_free_bulk consumes.
        unsafe {
            self.0.set_len(0);
            if count > 0 {
                sys::rte_pktmbuf_free_bulk(self.0.as_mut_ptr().cast(), count);
            }
        }
    }

    /// The unused entries after the last mbuf.
    #[inline]
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<Mbuf>] {
        let len = self.0.len();
        // SAFETY: the array has N entries, of which `len` are in use; MaybeUninit allows the rest to be uninitialised.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().add(len).cast(), N - len) }
    }

    /// Adds the first `count` unused entries to the burst.
    ///
    /// # Safety
    /// They are valid mbufs that nobody else owns.
    ///
    /// # Panics
    /// If `count` exceeds the number of unused entries.
    #[inline]
    pub(crate) unsafe fn assume_filled(&mut self, count: usize) {
        assert!(count <= self.remaining(), "C filled at most the unused entries");
        // SAFETY: by the precondition, and `count` fits.
        unsafe { self.0.set_len(self.0.len() + count) };
    }

    /// Removes the first `count` mbufs, which C now owns, and moves the rest to the front.
    ///
    /// # Safety
    /// C has taken ownership of them.
    ///
    /// # Panics
    /// If `count` exceeds the number of mbufs.
    #[inline]
    pub(crate) unsafe fn assume_taken(&mut self, count: usize) {
        let len = self.0.len();
        assert!(count <= len, "C took at most the mbufs of the burst");
        // SAFETY: the range is inside the array. The first `count` are forgotten, not dropped; the others are moved,
        // and the new length excludes their old entries.
        unsafe {
            self.0.set_len(0);
            let start = self.0.as_mut_ptr();
            if count > 0 {
                std::ptr::copy(start.add(count), start, len - count);
            }
            self.0.set_len(len - count);
        }
    }

    /// The array as burst functions expect it.
    #[inline]
    pub(crate) fn as_raw(&mut self) -> *mut *mut sys::rte_mbuf {
        const { assert!(mem::size_of::<Mbuf>() == mem::size_of::<*mut sys::rte_mbuf>()) };
        self.0.as_mut_ptr().cast()
    }
}

impl<const N: usize> Drop for Burst<N> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<const N: usize> Deref for Burst<N> {
    type Target = [Mbuf];

    #[inline]
    fn deref(&self) -> &[Mbuf] {
        &self.0
    }
}

impl<const N: usize> DerefMut for Burst<N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Mbuf] {
        &mut self.0
    }
}
