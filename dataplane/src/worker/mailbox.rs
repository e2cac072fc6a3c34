//! What other threads than workers send to a worker, frames to send and queries; and its sleep and wake-up.
//!
//! The queues are bounded and without locks. Any thread may add items, and only the worker removes them. A thread that
//! adds an item, here or to one of the [`rings`](super::rings) between workers, wakes a worker that sleeps: one system
//! call per sleep, none while it runs.
//!
//! The wake-up is checked by loom (`tests/loom_mailbox.rs`).
//!
//! Invariant: no thread waits here. A full queue returns the item, and the caller counts it.

use std::sync::OnceLock;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;

use super::Question;
use crate::sync::{AtomicBool, Ordering, Queue, Thread, current, fence, park_timeout};

/// Frames from the kernel and the resolver that may wait here.
pub const INJECTED_MAX: usize = 1024;
/// Queries that may wait here.
pub const QUESTIONS_MAX: usize = 8;

/// The items that wait for one worker.
#[derive(Debug)]
pub struct Mailbox<F> {
    injected: Queue<(InterfaceIndex, F)>,
    questions: Queue<Question>,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<F> Mailbox<F> {
    /// An empty mailbox, for a worker that is not started yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(INJECTED_MAX)
    }

    /// An empty mailbox with another limit of frames.
    #[must_use]
    pub fn with_capacity(injected: usize) -> Self {
        Self {
            injected: Queue::new(injected),
            questions: Queue::new(QUESTIONS_MAX),
            sleeping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Makes this worker send a frame, unchanged, on `interface`.
    ///
    /// # Errors
    /// The frame, if the queue is full.
    pub fn inject(&self, interface: InterfaceIndex, frame: F) -> Result<(), F> {
        self.injected.push((interface, frame)).map_err(|(_, frame)| frame)?;
        self.wake();
        Ok(())
    }

    /// Sends a query to the worker, which answers it between bursts.
    ///
    /// # Errors
    /// The query, if too many are waiting.
    pub fn ask(&self, question: Question) -> Result<(), Question> {
        self.questions.push(question)?;
        self.wake();
        Ok(())
    }

    /// Wakes the worker if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Pairs with the store in `begin_sleep`: either the worker sees the new item, or this thread sees that it
        // sleeps.
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

    /// Frees all waiting frames.
    pub fn drain(&self) {
        while self.injected.pop().is_some() {}
    }

    /// The worker's thread calls this before its first sleep.
    pub fn belongs_to_this_thread(&self) {
        // A second call comes from the same thread: a worker has only one.
        let _ = self.thread.set(current());
    }

    /// Sleeps until another thread wakes the worker, at most for this time, and not at all if an item is waiting here or
    /// `others_are_empty` returns false. Called by the worker.
    pub fn sleep(&self, at_most: Duration, others_are_empty: impl FnOnce() -> bool) {
        if self.begin_sleep(others_are_empty) {
            park_timeout(at_most);
            self.end_sleep();
        }
    }

    /// Announces that the worker is about to sleep. Returns false if an item is waiting.
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

    /// The next frame to be sent unchanged. Called by the worker.
    #[inline]
    #[must_use]
    pub fn next_injected(&self) -> Option<(InterfaceIndex, F)> {
        self.injected.pop()
    }

    #[inline]
    pub(super) fn next_question(&self) -> Option<Question> {
        self.questions.pop()
    }

    /// Whether the mailbox is empty. A few loads; called once per turn of the loop.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.injected.is_empty() && self.questions.is_empty()
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
    fn what_waits_keeps_the_worker_awake_and_is_bounded() {
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
