//! Connects the rounds with the cluster writer: passes it each round, and gets the known state of the other gateways.

use std::sync::Arc;
use std::time::Duration;

use tidegate_cluster::plan::Observation;
use tidegate_cluster::{ClusterWriter, PeerReleases, ReleaseTracker};
use tidegate_policy::pools::{Allocations, Authority};
use tidegate_policy::reconcile::Settings;
use tidegate_source::SourceUpdate;
use tokio::time::Instant;

use crate::telemetry::Generations;

/// If the workers did not apply a round in time, it is checked again after this time, because other gateways may be
/// waiting until this one reports a withdrawal.
const APPLY_AGAIN: Duration = Duration::from_secs(1);

/// The daemon's side of the cluster writer.
pub(super) struct Cluster {
    /// The writer, if the objects come from an API server.
    writer: Option<ClusterWriter>,
    peer_releases: PeerReleases,
    releases: ReleaseTracker,
    /// When to pass the last round to the writer again.
    offer_at: Option<Instant>,
}

impl Cluster {
    pub(super) fn new(writer: Option<ClusterWriter>) -> Self {
        Self {
            writer,
            peer_releases: PeerReleases::default(),
            releases: ReleaseTracker::default(),
            offer_at: None,
        }
    }

    /// Whether the objects come from an API server.
    pub(super) fn is_used(&self) -> bool {
        self.writer.is_some()
    }

    /// When a round is due because the workers have not applied the last one yet.
    pub(super) fn due(&self) -> Option<Instant> {
        self.offer_at
    }

    /// Sets what is known about the other gateways.
    pub(super) fn set_peers(&mut self, peer_releases: &PeerReleases) {
        if self.peer_releases != *peer_releases {
            self.peer_releases = peer_releases.clone();
        }
    }

    /// Sets which gateway decides on addresses in this round, and which addresses are withheld because other gateways
    /// may still serve them. `given` are the addresses that Services have.
    pub(super) fn check_peers(
        &mut self,
        manifests: &SourceUpdate,
        given: &Arc<Allocations>,
        settings: &mut Settings,
    ) {
        if !self.is_used() {
            return;
        }
        self.releases.observe(&manifests.objects.services, given, manifests.version, &self.peer_releases);
        settings.authority = match self.releases.authority(&self.peer_releases) {
            Authority::Decides { .. } if manifests.gateways_unknown => Authority::Unread,
            authority => authority,
        };
        settings.other_gateways = Arc::clone(&self.peer_releases.addresses);
    }

    /// Passes a round to the writer. `observation` is called with whether this gateway decides on addresses, and the
    /// version that every gateway must apply before all free addresses can be assigned.
    pub(super) fn offer(
        &mut self,
        generations: Generations,
        observation: impl FnOnce(bool, Option<u64>) -> Observation,
    ) {
        // The round is checked again even without a writer, because the status of the Services depends on that.
        let is_behind = generations.applied < generations.desired;
        self.offer_at = is_behind.then(|| Instant::now() + APPLY_AGAIN);
        if let Some(writer) = &self.writer {
            writer.offer(observation(self.peer_releases.leads, self.releases.waits_for(&self.peer_releases)));
        }
    }

    /// Asks the writer to shut down normally.
    pub(super) async fn leave(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.shut_down().await;
        }
    }
}
