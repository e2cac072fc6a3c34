//! Computes the desired state of each round incrementally from the previous state, and periodically compares it with a
//! state computed from scratch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::SelfCheckConfig;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_policy::reconcile::{DrainTarget, Drains, Input, Memory, Outcome, Reconciler};
use tokio::sync::watch;
use tokio::time::Instant;

use super::configuration::Configuration;
use super::recent_changes::{BackendChanges, RecentChanges};
use super::self_check::{Comparisons, Layer, SelfCheck, Subject};

/// The computation of the desired state.
pub(super) struct Desired {
    reconciler: Reconciler,
    /// Addresses and draining flows.
    pub(super) memory: Memory,
    /// The backends of the previous process, until a round has Services, with which that process's flows are restored.
    pub(super) earlier: Option<Drains>,
    self_check: SelfCheck,
    started: Instant,
    /// When the state changes without an input, relative to `started`.
    reconcile_at: Option<Duration>,
}

impl Desired {
    pub(super) fn new(comparisons: Arc<Comparisons>) -> Self {
        Self {
            reconciler: Reconciler::default(),
            memory: Memory::default(),
            earlier: None,
            self_check: SelfCheck::new(comparisons),
            started: Instant::now(),
            reconcile_at: None,
        }
    }

    /// Changes when a comparison has ended; then call [`Self::heal`].
    pub(super) fn comparisons_end(&self) -> watch::Receiver<()> {
        self.self_check.ends()
    }

    /// The number of comparisons that were due so far.
    pub(super) fn comparisons_due(&self) -> u64 {
        self.self_check.due_count()
    }

    /// Time since the daemon started.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// When the state changes without an input.
    pub(super) fn due(&self) -> Option<Instant> {
        self.reconcile_at.map(|at| self.started + at)
    }

    /// When the next comparison needs a round, even without a change.
    pub(super) fn comparison_due(&self, config: &SelfCheckConfig) -> Option<Instant> {
        self.self_check.due(config)
    }

    /// If a comparison has found a difference, the next round is computed from scratch. Addresses and draining flows
    /// are in `memory` and stay. Returns the layers with a difference.
    pub(super) fn heal(&mut self) -> Vec<Layer> {
        let different = self.self_check.collect();
        if different.iter().any(|layer| matches!(layer, Layer::Reconcile | Layer::Allocation)) {
            self.reconciler = Reconciler::default();
        }
        different
    }

    /// Returns reserved addresses to Services whose manifests had errors, before any other Service can get them.
    pub(super) fn give_back<'a>(&mut self, services: impl Iterator<Item = &'a ObjectKey>) {
        for service in services {
            let allocations = Arc::make_mut(&mut self.memory.allocations);
            if let Some(holdings) = allocations.of_removed.remove(service) {
                allocations.by_service.insert(service.clone(), holdings);
                // The old reconciler caches the addresses of its last round.
                self.reconciler = Reconciler::default();
            }
        }
    }

    /// The desired state, and the subject of a comparison if one is due.
    pub(super) fn reconcile(
        &mut self,
        configuration: &Configuration,
        objects: &Objects,
        verdicts: &Verdicts,
        drained: &BTreeSet<DrainTarget>,
        generation: u64,
    ) -> (Arc<Outcome>, Option<Subject>) {
        if let Some(earlier) = &self.earlier {
            self.memory.drains = earlier.clone();
        }
        let input = Input {
            settings: &configuration.settings,
            objects,
            verdicts,
            drained,
            memory: &self.memory,
            generation,
            now: self.started.elapsed(),
        };
        let outcome = Arc::new(self.reconciler.reconcile(&input));
        self.earlier.take_if(|_| !outcome.spec.services.is_empty());
        if self.reconciler.recomputed() > 0 {
            self.self_check.changed();
        }
        let is_due = self.self_check.is_due(&configuration.config.self_check);
        if is_due {
            self.self_check.takes_round();
        }
        let subject =
            is_due.then(|| Subject { round: self.reconciler.round(&input, &outcome), snapshot: None });
        self.reconcile_at = outcome.reconcile_at;
        self.memory = outcome.memory.clone();
        (outcome, subject)
    }

    /// Stores which backends changed recently, for other gateways.
    pub(super) fn publish_changes(&self, changes: &RecentChanges) {
        changes.store(&self.memory.drains, self.started.elapsed());
    }

    /// Imports changes of backends that another gateway has seen and this one has not. The next round uses them.
    pub(super) fn import_changes(&mut self, moved: &BackendChanges) {
        self.memory.drains.import(moved, self.started.elapsed());
    }

    /// Starts a comparison in the background.
    pub(super) fn compare(&mut self, subject: Subject) {
        self.self_check.begin(subject);
    }
}
