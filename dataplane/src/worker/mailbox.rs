//! Everything by which other threads reach a worker: frames handed over, reports of first fragments, frames to send,
//! questions.
//!
//! Bounded queues without locks; many may put in, only the worker takes out. A thread that puts something in wakes a
//! worker that sleeps: one system call per sleep, none while it runs.
//!
//! The wake-up is checked by loom (`tests/loom_mailbox.rs`).
//!
//! Invariant: no thread waits here. A full queue returns the item, and the caller counts it.

use std::sync::OnceLock;
use std::time::Duration;

use tidegate_core::fragments::FragmentKey;
use tidegate_core::ids::{InterfaceIndex, WorkerIndex};
use tidegate_core::pipeline::Arrival;

use super::Question;
use crate::sync::{AtomicBool, Ordering, Queue, Thread, current, fence, park_timeout};

/// Frames that other workers may have waiting here: two full receive rings' worth.
pub const HANDED_OVER_MAX: usize = 2048;
/// Frames from the kernel and the resolver that may wait here.
pub const INJECTED_MAX: usize = 1024;
/// News of first fragments that may wait here. What finds no room is lost: later fragments of that datagram which arrive
/// at another worker than the first are dropped as `fragment_unknown`.
pub const FRAGMENT_NEWS_MAX: usize = 1024;
/// Questions that may wait here.
pub const QUESTIONS_MAX: usize = 8;

/// What waits for one worker.
#[derive(Debug)]
pub struct Mailbox<F> {
    handed_over: Queue<(Arrival, F)>,
    fragments: Queue<(FragmentKey, WorkerIndex)>,
    injected: Queue<(InterfaceIndex, F)>,
    questions: Queue<Question>,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<F> Mailbox<F> {
    /// An empty one, for a worker that is not started yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(HANDED_OVER_MAX, INJECTED_MAX)
    }

    /// An empty one with other bounds.
    #[must_use]
    pub fn with_capacity(handed_over: usize, injected: usize) -> Self {
        Self {
            handed_over: Queue::new(handed_over),
            fragments: Queue::new(FRAGMENT_NEWS_MAX),
            injected: Queue::new(injected),
            questions: Queue::new(QUESTIONS_MAX),
            sleeping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Gives a frame to this worker, who holds its flow; `arrival` is how it arrives here.
    ///
    /// # Errors
    /// When the ring is full: gives it back.
    #[inline]
    pub fn redirect(&self, arrival: Arrival, frame: F) -> Result<(), F> {
        self.handed_over.push((arrival, frame)).map_err(|(_, frame)| frame)?;
        self.wake();
        Ok(())
    }

    /// Tells this worker that `owner` has, or is about to get, the first fragment of a datagram.
    ///
    /// # Errors
    /// When too much news waits.
    pub fn tell_of_fragment(
        &self,
        key: FragmentKey,
        owner: WorkerIndex,
    ) -> Result<(), (FragmentKey, WorkerIndex)> {
        self.fragments.push((key, owner))?;
        self.wake();
        Ok(())
    }

    /// Has this worker send a frame by `interface`, as it is.
    ///
    /// # Errors
    /// When the queue is full: gives it back.
    pub fn inject(&self, interface: InterfaceIndex, frame: F) -> Result<(), F> {
        self.injected.push((interface, frame)).map_err(|(_, frame)| frame)?;
        self.wake();
        Ok(())
    }

    /// Asks the worker something; it answers when it likes.
    ///
    /// # Errors
    /// When too many questions wait: gives it back.
    pub fn ask(&self, question: Question) -> Result<(), Question> {
        self.questions.push(question)?;
        self.wake();
        Ok(())
    }

    /// Ends the worker's sleep, if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // Pairs with the store in `begin_sleep`: either the worker sees what was put in, or we see that it sleeps.
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

    /// Frees every frame that waits.
    pub fn drain(&self) {
        while self.handed_over.pop().is_some() {}
        while self.injected.pop().is_some() {}
    }

    /// Called by the worker's thread before its first sleep.
    pub fn belongs_to_this_thread(&self) {
        // A second call is by the same thread: a worker has one.
        let _ = self.thread.set(current());
    }

    /// Sleeps until something is put in, but no longer than this, and not at all when something waits. For the worker.
    pub fn sleep(&self, at_most: Duration) {
        if self.begin_sleep() {
            park_timeout(at_most);
            self.end_sleep();
        }
    }

    /// The worker is about to sleep; false when there is something to do after all.
    fn begin_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = self.is_empty();
        if !idle {
            self.end_sleep();
        }
        idle
    }

    fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn next_handed_over(&self) -> Option<(Arrival, F)> {
        self.handed_over.pop()
    }

    #[inline]
    pub(super) fn next_fragment(&self) -> Option<(FragmentKey, WorkerIndex)> {
        self.fragments.pop()
    }

    /// The next frame to be sent as it is. For the worker.
    #[inline]
    #[must_use]
    pub fn next_injected(&self) -> Option<(InterfaceIndex, F)> {
        self.injected.pop()
    }

    #[inline]
    pub(super) fn next_question(&self) -> Option<Question> {
        self.questions.pop()
    }

    /// Whether anything waits. A few loads; called once per turn of the loop.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.handed_over.is_empty()
            && self.injected.is_empty()
            && self.questions.is_empty()
            && self.fragments.is_empty()
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
        let mailbox = Mailbox::with_capacity(1, 1);
        assert!(mailbox.begin_sleep());
        mailbox.end_sleep();
        mailbox.inject(0, 7).unwrap();
        assert!(!mailbox.begin_sleep());
        assert_eq!(mailbox.inject(0, 8), Err(8));
        let arrival = Arrival::HandedOver(1);
        mailbox.redirect(arrival, 9).unwrap();
        assert_eq!((mailbox.next_injected(), mailbox.next_handed_over()), (Some((0, 7)), Some((arrival, 9))));
        assert!(mailbox.is_empty());
    }
}
