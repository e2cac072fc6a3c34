//! All data that other threads send to a worker: frames handed over, reports of first fragments and of ended SCTP
//! associations, frames to send, queries.
//!
//! The queues are bounded and without locks. Any thread may add items, and only the worker removes them. A thread that
//! adds an item wakes a worker that sleeps: one system call per sleep, none while it runs.
//!
//! The wake-up is checked by loom (`tests/loom_mailbox.rs`).
//!
//! Invariant: no thread waits here. A full queue returns the item, and the caller counts it.

use std::sync::OnceLock;
use std::time::Duration;

use tidegate_core::associations::EndedPath;
use tidegate_core::fragments::FragmentKey;
use tidegate_core::ids::{InterfaceIndex, WorkerIndex};
use tidegate_core::pipeline::Arrival;

use super::Question;
use crate::sync::{AtomicBool, Ordering, Queue, Thread, current, fence, park_timeout};

/// Frames handed over by other workers that may wait here: as many as two full receive rings.
pub const HANDED_OVER_MAX: usize = 2048;
/// Frames from the kernel and the resolver that may wait here.
pub const INJECTED_MAX: usize = 1024;
/// Reports that may wait here. A report without room is lost. If it was of a first fragment, later fragments of that
/// datagram that arrive at a different worker from the first are dropped as `fragment_unknown`. If it was of an ended
/// association, the flow of its path lasts until its idle timeout.
pub const REPORTS_MAX: usize = 1024;
/// Queries that may wait here.
pub const QUESTIONS_MAX: usize = 8;

/// A report for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// What another worker has seen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    /// This worker has, or is about to get, the first fragment of a datagram.
    FirstFragment(FragmentKey, WorkerIndex),
    /// An SCTP association has ended of which this worker has a path.
    EndedPath(EndedPath),
}

/// The items that wait for one worker.
#[derive(Debug)]
pub struct Mailbox<F> {
    handed_over: Queue<(Arrival, F)>,
    reports: Queue<Report>,
    injected: Queue<(InterfaceIndex, F)>,
    questions: Queue<Question>,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl<F> Mailbox<F> {
    /// An empty mailbox, for a worker that is not started yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(HANDED_OVER_MAX, INJECTED_MAX)
    }

    /// An empty mailbox with other limits.
    #[must_use]
    pub fn with_capacity(handed_over: usize, injected: usize) -> Self {
        Self {
            handed_over: Queue::new(handed_over),
            reports: Queue::new(REPORTS_MAX),
            injected: Queue::new(injected),
            questions: Queue::new(QUESTIONS_MAX),
            sleeping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Hands a frame over to this worker, which holds its flow. `arrival` is the arrival at this worker.
    ///
    /// # Errors
    /// The frame, if the ring is full.
    #[inline]
    pub fn redirect(&self, arrival: Arrival, frame: F) -> Result<(), F> {
        self.handed_over.push((arrival, frame)).map_err(|(_, frame)| frame)?;
        self.wake();
        Ok(())
    }

    /// Informs this worker that `owner` has, or is about to get, the first fragment of a datagram.
    ///
    /// # Errors
    /// [`NoRoom`] if too many reports are waiting.
    pub fn tell_of_fragment(&self, key: FragmentKey, owner: WorkerIndex) -> Result<(), NoRoom> {
        self.tell(Report::FirstFragment(key, owner))
    }

    /// Informs this worker that an SCTP association has ended of which it has a path.
    ///
    /// # Errors
    /// [`NoRoom`] if too many reports are waiting.
    pub fn tell_of_ended_path(&self, path: EndedPath) -> Result<(), NoRoom> {
        self.tell(Report::EndedPath(path))
    }

    fn tell(&self, report: Report) -> Result<(), NoRoom> {
        self.reports.push(report).map_err(|_| NoRoom)?;
        self.wake();
        Ok(())
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
        while self.handed_over.pop().is_some() {}
        while self.injected.pop().is_some() {}
    }

    /// The worker's thread calls this before its first sleep.
    pub fn belongs_to_this_thread(&self) {
        // A second call comes from the same thread: a worker has only one.
        let _ = self.thread.set(current());
    }

    /// Sleeps until an item is added, at most for this time, and not at all if an item is waiting. Called by the
    /// worker.
    pub fn sleep(&self, at_most: Duration) {
        if self.begin_sleep() {
            park_timeout(at_most);
            self.end_sleep();
        }
    }

    /// Announces that the worker is about to sleep. Returns false if an item is waiting.
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
    pub(super) fn next_report(&self) -> Option<Report> {
        self.reports.pop()
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
        self.handed_over.is_empty()
            && self.injected.is_empty()
            && self.questions.is_empty()
            && self.reports.is_empty()
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
