//! What others may look at while the daemon runs: the last round, and the dataplane behind it.
//!
//! Written by the controller after each round; read by the admin socket, metrics and health ports, each of which takes
//! an [`Arc`] and never holds up a round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tidegate_core::snapshot::Problem;
use tidegate_dataplane::gateway::Dataplane;

use crate::config::GatewayConfig;
use crate::diagnostic::Report;
use crate::health::CheckCounts;
use crate::reconcile::Outcome;
use crate::source::directory::SourceUpdate;

/// What a round of the controller came to.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// The desired state, and what was not granted.
    pub(super) outcome: Outcome,
    /// What the dataplane leaves out.
    pub(super) problems: Vec<Problem>,
    /// What it was made from.
    pub(super) manifests: SourceUpdate,
    /// Faults of the configuration when it was last read.
    pub(super) config_report: Report,
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    pub(super) name: String,
    pub(super) dataplane: Arc<Dataplane>,
    pub(super) checks: Arc<CheckCounts>,
    pub(super) started: SystemTime,
    desired: AtomicU64,
    /// Since when the workers have owed the desired generation; `None` while they owe nothing.
    owed_since: RwLock<Option<Instant>>,
    last: RwLock<Option<(Arc<Round>, SystemTime)>>,
    leaving: AtomicBool,
}

impl State {
    pub(super) fn new(config: &GatewayConfig, dataplane: Arc<Dataplane>, checks: Arc<CheckCounts>) -> Self {
        Self {
            name: config.name.clone(),
            dataplane,
            checks,
            started: SystemTime::now(),
            desired: AtomicU64::new(0),
            owed_since: RwLock::new(None),
            last: RwLock::new(None),
            leaving: AtomicBool::new(false),
        }
    }

    /// A round is over. `took` from reconcile to applied; `change` from when a change of the manifests was seen.
    pub(super) fn round(&self, round: Round, took: Duration, change: Option<Duration>) {
        let _ = (took, change);
        *self.last.write().unwrap_or_else(PoisonError::into_inner) =
            Some((Arc::new(round), SystemTime::now()));
    }

    /// The last round and when it ended.
    pub(super) fn last(&self) -> Option<(Arc<Round>, SystemTime)> {
        self.last.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the dataplane leaves out since the last round.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.last().map(|(round, _)| round.problems.clone()).unwrap_or_default()
    }

    /// This generation is to be applied.
    pub(super) fn desire(&self, generation: u64) {
        self.desired.store(generation, Ordering::Relaxed);
        let mut owed = self.owed_since.write().unwrap_or_else(PoisonError::into_inner);
        owed.get_or_insert_with(Instant::now);
    }

    /// The newest generation that was to be applied.
    pub(super) fn desired(&self) -> u64 {
        self.desired.load(Ordering::Relaxed)
    }

    /// For how long the workers have owed the newest generation.
    pub(super) fn overdue(&self) -> Duration {
        let mut owed = self.owed_since.write().unwrap_or_else(PoisonError::into_inner);
        if self.dataplane.applied_generation() >= self.desired() {
            *owed = None;
        }
        owed.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The end has begun: not ready any more.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the end has begun.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }
}
