//! The state of the publication of desired states, for status and metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use jiff::Timestamp;
use tidegate_model::time::whole_seconds;

use crate::telemetry::Timings;

/// Why the latest desired state cannot be published, while the last good one keeps forwarding.
#[derive(Debug, Clone)]
pub(super) struct PublishFailure {
    /// The error of the dataplane.
    pub(super) why: String,
    /// The time of the first of the consecutive failures.
    pub(super) since: Timestamp,
}

impl std::fmt::Display for PublishFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = whole_seconds(self.since);
        write!(
            f,
            "publishing the latest state has failed since {since}; the last good state is in use: {}",
            self.why
        )
    }
}

/// The state of publications.
#[derive(Debug, Default)]
pub(super) struct Publications {
    desired: AtomicU64,
    failures: AtomicU64,
    failure: RwLock<Option<PublishFailure>>,
    timings: Timings,
}

impl Publications {
    /// How long updates took.
    pub(super) fn timings(&self) -> &Timings {
        &self.timings
    }

    /// The latest generation that was published.
    pub(super) fn desired(&self) -> u64 {
        self.desired.load(Ordering::Relaxed)
    }

    /// Records that this generation was published to the workers.
    pub(super) fn desire(&self, generation: u64) {
        self.desired.store(generation, Ordering::Relaxed);
    }

    /// The number of failed publications.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Why the latest desired state is not published, if it isn't.
    pub(super) fn failure(&self) -> Option<PublishFailure> {
        self.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a publication failed. Returns whether the failure is new: the first in a row, or with another
    /// reason than the last.
    pub(super) fn failed(&self, why: &str) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut failure = self.failure.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = failure.as_ref().is_none_or(|failure| failure.why != why);
        let since = failure.as_ref().map_or_else(Timestamp::now, |failure| failure.since);
        *failure = Some(PublishFailure { why: why.to_owned(), since });
        is_new
    }

    /// Records that the latest desired state is published. Returns whether publishing failed before.
    pub(super) fn succeeded(&self) -> bool {
        if self.failure().is_none() {
            return false;
        }
        self.failure.write().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}
