//! The result of the last round, which other tasks read.
//!
//! Invariant: readers get an [`Arc`] and never delay a round.

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
    /// Findings of this gateway alone.
    pub(super) own_findings: Vec<Finding>,
    /// Services whose latest state the workers have not applied yet.
    pub(super) unapplied: Arc<BTreeSet<ObjectKey>>,
    /// Parts that the dataplane ignores.
    pub(super) problems: Vec<Problem>,
    /// The objects from which the state was computed.
    pub(super) manifests: SourceUpdate,
    /// Targets that the operator drained.
    pub(super) drained: BTreeSet<DrainTarget>,
    /// When it ended.
    pub(super) ended: Timestamp,
}

impl Round {
    /// What was not granted, and the findings of this gateway alone.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.outcome.findings.iter().chain(&self.own_findings)
    }
}

/// The last round, and counts over all rounds.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    last: RwLock<Option<Arc<Round>>>,
    suppressed_lines: AtomicU64,
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

    /// Counts suppressed log lines.
    pub(super) fn count_suppressed_lines(&self, count: u64) {
        self.suppressed_lines.fetch_add(count, Ordering::Relaxed);
    }

    /// The number of suppressed log lines.
    pub(super) fn suppressed_lines(&self) -> u64 {
        self.suppressed_lines.load(Ordering::Relaxed)
    }
}
