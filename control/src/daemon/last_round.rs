//! The result of the last round, which other tasks read.
//!
//! Invariant: who reads takes an [`Arc`], and never delays a round.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::{DrainTarget, Finding, Outcome};
use tidegate_source::SourceUpdate;
use tidegate_spec::Problem;

/// The result of a round of the controller.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// The desired state, and what was not granted.
    pub(super) outcome: Arc<Outcome>,
    /// What this gateway alone found.
    pub(super) own_findings: Vec<Finding>,
    /// Services whose newest state the workers have not applied yet.
    pub(super) unapplied: Arc<BTreeSet<ObjectKey>>,
    /// Parts that the dataplane leaves out.
    pub(super) problems: Vec<Problem>,
    /// The objects from which it was computed.
    pub(super) manifests: SourceUpdate,
    /// Targets that the operator drained.
    pub(super) drained: BTreeSet<DrainTarget>,
    /// When it ended.
    pub(super) ended: Timestamp,
}

impl Round {
    /// What was not granted, and what this gateway alone found.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.outcome.findings.iter().chain(&self.own_findings)
    }
}

/// The last round, and what all of them have counted.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    last: RwLock<Option<Arc<Round>>>,
    lines_left_out: AtomicU64,
}

impl Rounds {
    /// The last round.
    pub(super) fn last(&self) -> Option<Arc<Round>> {
        self.last.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the last round.
    pub(super) fn replace(&self, round: Round) {
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(round));
    }

    /// Counts log lines that were left out.
    pub(super) fn leave_lines_out(&self, count: u64) {
        self.lines_left_out.fetch_add(count, Ordering::Relaxed);
    }

    /// Log lines that were left out.
    pub(super) fn lines_left_out(&self) -> u64 {
        self.lines_left_out.load(Ordering::Relaxed)
    }
}
