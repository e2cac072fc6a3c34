//! Counters of writes and events, and the state of the leader election, for metrics and status.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Counters since the start, and the current state.
#[derive(Debug, Default)]
pub struct Counts {
    leads: AtomicBool,
    pending: AtomicU64,
    writes: [AtomicU64; Ended::COUNT],
    lines_left_out: AtomicU64,
    events: [AtomicU64; EventEnded::COUNT],
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

tidegate_spec::named! {
    /// The result of a write, under its label value of the metric.
    pub(super) enum Ended {
        Done => "success",
        Conflict => "conflict",
        Throttled => "throttled",
        Failed => "failure",
    }
}

tidegate_spec::named! {
    /// The result of sending an event, under its label value of the metric.
    pub(super) enum EventEnded {
        Sent => "success",
        Dropped => "dropped",
        Failed => "failure",
    }
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
        self.writes[how as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed write that was not logged.
    pub(super) fn line_left_out(&self) {
        self.lines_left_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn event(&self, how: EventEnded) {
        self.events[how as usize].fetch_add(1, Ordering::Relaxed);
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
            writes: Ended::ALL.map(|how| (how.as_str(), read(&self.writes[how as usize]))),
            log_lines_left_out: read(&self.lines_left_out),
            events: EventEnded::ALL.map(|how| (how.as_str(), read(&self.events[how as usize]))),
            comparisons: (read(&self.compared), read(&self.different)),
        }
    }
}
