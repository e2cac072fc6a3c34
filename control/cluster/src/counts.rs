//! Counters of writes and events, and the state of the leader election, for metrics and status.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Counters since the start, and the current state.
#[derive(Debug, Default)]
pub struct Counts {
    leads: AtomicBool,
    pending: AtomicU64,
    done: AtomicU64,
    conflict: AtomicU64,
    throttled: AtomicU64,
    failed: AtomicU64,
    lines_left_out: AtomicU64,
    events_sent: AtomicU64,
    events_dropped: AtomicU64,
    events_failed: AtomicU64,
    compared: AtomicU64,
    different: AtomicU64,
    candidate: RwLock<Candidate>,
}

/// The state of this gateway in the leader election, as text for display.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the leader, as far as this gateway knows.
    pub leader: Option<String>,
    /// Why this gateway can't lead, regardless of the other gateways.
    pub cannot_lead: Option<String>,
    /// Why the status of this gateway can't be written, although the API server responds.
    pub status_failure: Option<String>,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Conflict,
    Throttled,
    Failed,
}

/// The result of sending an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventEnded {
    Sent,
    Dropped,
    Failed,
}

/// The values of [`Counts`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Whether this gateway leads.
    pub leads: bool,
    /// The number of queued writes.
    pub pending: u64,
    /// Writes by result, under the label values of the metric: success, conflict, throttled, failure.
    pub writes: [(&'static str, u64); 4],
    /// The number of failed writes that were not logged.
    pub log_lines_left_out: u64,
    /// Events by result.
    pub events: [(&'static str, u64); 3],
    /// How many plans were compared with one that skips no Service, and how many of them differed.
    pub comparisons: (u64, u64),
}

impl Reading {
    /// The number of failed writes.
    #[must_use]
    pub fn writes_failed(&self) -> u64 {
        let [_, _, _, (_, failed)] = self.writes;
        failed
    }
}

impl Counts {
    pub(super) fn ended(&self, how: Ended) {
        let counter = match how {
            Ended::Done => &self.done,
            Ended::Conflict => &self.conflict,
            Ended::Throttled => &self.throttled,
            Ended::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed write that was not logged.
    pub(super) fn line_left_out(&self) {
        self.lines_left_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn event(&self, how: EventEnded) {
        let counter = match how {
            EventEnded::Sent => &self.events_sent,
            EventEnded::Dropped => &self.events_dropped,
            EventEnded::Failed => &self.events_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn compared(&self, is_different: bool) {
        self.compared.fetch_add(1, Ordering::Relaxed);
        self.different.fetch_add(u64::from(is_different), Ordering::Relaxed);
    }

    pub(super) fn set_leadership(&self, leads: bool, pending: usize) {
        self.leads.store(leads, Ordering::Relaxed);
        self.pending.store(pending as u64, Ordering::Relaxed);
    }

    /// Sets the state of the gateway in the election.
    pub(super) fn set_candidate(&self, candidate: Candidate) {
        let mut current = self.candidate.write().unwrap_or_else(PoisonError::into_inner);
        if *current != candidate {
            *current = candidate;
        }
    }

    /// The state of the gateway in the election.
    #[must_use]
    pub fn candidate(&self) -> Candidate {
        self.candidate.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All current values.
    #[must_use]
    pub fn read(&self) -> Reading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            leads: self.leads.load(Ordering::Relaxed),
            pending: read(&self.pending),
            writes: [
                ("success", read(&self.done)),
                ("conflict", read(&self.conflict)),
                ("throttled", read(&self.throttled)),
                ("failure", read(&self.failed)),
            ],
            log_lines_left_out: read(&self.lines_left_out),
            events: [
                ("success", read(&self.events_sent)),
                ("dropped", read(&self.events_dropped)),
                ("failure", read(&self.events_failed)),
            ],
            comparisons: (read(&self.compared), read(&self.different)),
        }
    }
}
