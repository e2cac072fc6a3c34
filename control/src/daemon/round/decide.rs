//! The second phase of a round: computes the desired state from the inputs.
//!
//! Invariant: if the addresses of Services are stored here, they are saved before the next phase lets anybody use one.

use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::SelfCheckConfig;
use tidegate_policy::reconcile::{Drains, Memory, Outcome};
use tokio::sync::watch;
use tokio::time::Instant;

use super::gather::{Gathered, Gatherer, Given};
use crate::daemon::address_file::AddressFile;
use crate::daemon::desired::Desired;
use crate::daemon::recent_changes::BackendChanges;
use crate::daemon::self_check::{Layer, Subject};
use crate::daemon::state::State;

/// The computation of the desired state, and the file of its addresses.
pub(in crate::daemon) struct Decider {
    desired: Desired,
    /// The file of the addresses of Services, if there is no API server.
    addresses: Option<AddressFile>,
    /// Whether a comparison has found a difference in the snapshot, so that the next snapshot is compiled from scratch.
    recompiles: bool,
    state: Arc<State>,
}

/// A desired state that no worker has received yet.
#[must_use = "a desired state is published"]
pub(in crate::daemon) struct Decided<'a> {
    pub(super) gathered: Gathered<'a>,
    pub(super) outcome: Arc<Outcome>,
    /// The subject of a comparison, if one is due.
    pub(super) subject: Option<Subject>,
    /// The number of comparisons that were due so far.
    pub(super) comparisons: u64,
    recompiles: bool,
}

impl Decider {
    pub(in crate::daemon) fn new(state: Arc<State>) -> Self {
        let desired = Desired::new(Arc::clone(&state.comparisons));
        Self { desired, addresses: None, recompiles: false, state }
    }

    /// Keeps these backends of the previous process until the first Services arrive.
    pub(in crate::daemon) fn keep_earlier(&mut self, earlier: Drains) {
        self.desired.earlier = Some(earlier);
    }

    /// Loads the addresses that Services had in the last run, and saves changes from now on.
    pub(in crate::daemon) fn resume(&mut self, mut addresses: AddressFile) {
        self.desired.memory.allocations = addresses.load();
        self.addresses = Some(addresses);
    }

    /// Changes when a comparison of incremental results has ended; then call [`Self::heal`].
    pub(in crate::daemon) fn comparisons_end(&self) -> watch::Receiver<()> {
        self.desired.comparisons_end()
    }

    /// Imports changes of backends that another gateway has seen and this one has not. The next round uses them.
    pub(in crate::daemon) fn import_changes(&mut self, moved: &BackendChanges) {
        self.desired.import_changes(moved);
    }

    /// When a round is due even without a change.
    pub(in crate::daemon) fn due(&self, config: &SelfCheckConfig, has_objects: bool) -> Option<Instant> {
        let save_at = self.addresses.as_ref().and_then(AddressFile::due);
        // Before the first objects, there is no round to compare.
        let compare_at = if has_objects { self.desired.comparison_due(config) } else { None };
        [save_at, compare_at, self.desired.due()].into_iter().flatten().min()
    }

    /// The addresses that Services have.
    pub(in crate::daemon) fn given(&self) -> Given<'_> {
        Given { allocations: &self.desired.memory.allocations, are_kept_here: self.addresses.is_some() }
    }

    /// What the next round is computed from in addition to the inputs: the memory, and the time since the start.
    pub(in crate::daemon) fn memory(&self) -> (Memory, Duration) {
        (self.desired.memory.clone(), self.desired.now())
    }

    /// If a comparison has found a difference, the next round is computed from scratch. Returns whether that round is
    /// due now. Addresses and draining flows are kept.
    pub(in crate::daemon) fn heal(&mut self) -> bool {
        let different = self.desired.heal();
        self.recompiles |= different.contains(&Layer::Snapshot);
        !different.is_empty()
    }

    /// Publishes for display what could not be saved.
    pub(in crate::daemon) fn show_unsaved(&self, inputs: &Gatherer) {
        let addresses = self.addresses.as_ref().and_then(AddressFile::trouble);
        let drained = inputs.drained.trouble().map(str::to_owned);
        self.state.leave_unsaved([addresses, drained, inputs.copies.trouble()]);
    }

    /// Computes the desired state, which has this generation. From now on, other gateways can query the changes of
    /// backends.
    pub(in crate::daemon) async fn decide<'a>(
        &mut self,
        gathered: Gathered<'a>,
        generation: u64,
    ) -> Decided<'a> {
        let inputs = gathered.inputs;
        self.desired.give_back(gathered.mended.iter());
        self.heal();
        let (outcome, subject) = self.desired.reconcile(
            &inputs.configuration,
            &gathered.manifests.objects,
            &inputs.verdicts,
            inputs.drained.targets(),
            generation,
        );
        self.desired.publish_changes(&self.state.recent_changes);
        if let Some(addresses) = &mut self.addresses {
            // Addresses are saved before anybody can use them, so that a restart assigns them to the same Services.
            addresses.save(&self.desired.memory.allocations).await;
        }
        self.show_unsaved(inputs);
        let comparisons = self.desired.comparisons_due();
        Decided { gathered, outcome, subject, comparisons, recompiles: std::mem::take(&mut self.recompiles) }
    }

    /// Starts a comparison in the background.
    pub(in crate::daemon) fn compare(&mut self, subject: Subject) {
        self.desired.compare(subject);
    }
}

impl Decided<'_> {
    /// Whether the snapshot must be compiled from scratch.
    pub(super) fn recompiles(&self) -> bool {
        self.recompiles
    }
}
