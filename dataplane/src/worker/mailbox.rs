//! What other threads send to a worker (frames to transmit, and queries), and how it sleeps and is woken.
//!
//! The queues are bounded and lock-free. Any thread may add items; only the worker removes them. A thread that adds an
//! item here or to one of the [`rings`](super::rings) wakes the worker if it sleeps: one system call per sleep, none
//! while it runs.
//!
//! Loom checks the wake-up (`tests/loom_mailbox.rs`).
//!
//! Invariant: no thread waits here. A full queue returns the item, and the caller counts it.

use std::sync::OnceLock;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;

use super::Query;
use crate::sync::{AtomicBool, Ordering, Queue, Thread, current, fence, park_timeout};

/// Maximum number of queued frames from the kernel and the resolver.
pub const INJECTED_MAX: usize = 1024;
/// Maximum number of queued queries.
pub const QUERIES_MAX: usize = 8;

/// The items queued for one worker.
#[derive(Debug)]
pub struct Mailbox<F> {
    injected: Queue<(InterfaceIndex, F)>,
    queries: Queue<Query>,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<F> Mailbox<F> {
    /// An empty mailbox for a worker that has not started.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(INJECTED_MAX)
    }

    /// An empty mailbox for this many frames.
    #[must_use]
    pub fn with_capacity(injected: usize) -> Self {
        Self {
            injected: Queue::new(injected),
            queries: Queue::new(QUERIES_MAX),
            sleeping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Queues a frame to be sent unchanged on `interface`.
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn inject(&self, interface: InterfaceIndex, frame: F) -> Result<(), F> {
        self.injected.push((interface, frame)).map_err(|(_, frame)| frame)?;
        self.wake();
        Ok(())
    }

    /// Queues a query, which the worker answers between bursts.
    ///
    /// # Errors
    /// The query, if the queue is full.
    pub fn query(&self, query: Query) -> Result<(), Query> {
        self.queries.push(query)?;
        self.wake();
        Ok(())
    }

    /// Wakes the worker if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Pairs with the store in `begin_sleep`: either the worker sees the new item, or this thread sees that the
        // worker sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        if self.sleeping.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Frees all queued frames.
    pub fn drain(&self) {
        while self.injected.pop().is_some() {}
    }

    /// The worker's thread calls this before its first sleep.
    pub fn belongs_to_this_thread(&self) {
        // Only the first call has an effect; later calls come from the same thread.
        let _ = self.thread.set(current());
    }

    /// Sleeps until another thread wakes the worker or `at_most` has passed. Returns at once if an item is queued here
    /// or `others_are_empty` returns false. Only the worker calls it.
    pub fn sleep(&self, at_most: Duration, others_are_empty: impl FnOnce() -> bool) {
        if self.begin_sleep(others_are_empty) {
            park_timeout(at_most);
            self.end_sleep();
        }
    }

    /// Announces that the worker is about to sleep. Returns false if an item is queued.
    fn begin_sleep(&self, others_are_empty: impl FnOnce() -> bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = self.is_empty() && others_are_empty();
        if !idle {
            self.end_sleep();
        }
        idle
    }

    fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// The next frame to send unchanged. Only the worker calls it.
    #[inline]
    #[must_use]
    pub fn next_injected(&self) -> Option<(InterfaceIndex, F)> {
        self.injected.pop()
    }

    #[inline]
    pub(super) fn next_query(&self) -> Option<Query> {
        self.queries.pop()
    }

    /// Whether the mailbox is empty. Costs a few loads per loop iteration.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.injected.is_empty() && self.queries.is_empty()
    }
}

impl<F> Default for Mailbox<F> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queued_items_keep_the_worker_awake_and_are_bounded() {
        let mailbox = Mailbox::with_capacity(1);
        assert!(mailbox.begin_sleep(|| true));
        mailbox.end_sleep();
        assert!(!mailbox.begin_sleep(|| false));
        mailbox.inject(0, 7).unwrap();
        assert!(!mailbox.begin_sleep(|| true));
        assert_eq!(mailbox.inject(0, 8), Err(8));
        assert_eq!(mailbox.next_injected(), Some((0, 7)));
        assert!(mailbox.is_empty());
    }
}
