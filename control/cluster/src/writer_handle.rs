//! The handle of the writer: the daemon starts a [`ClusterWriter`], passes it each round, and reads from it what is
//! known about the other gateways.
//!
//! The daemon never waits for it: a channel stores the newest round until `writer` receives it, and shutdown has a time
//! limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate_source::SourceState;
use tidegate_source::kubernetes::Connector;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::counts::Counts;
use super::drain_annotation::DrainAnnotation;
use super::elect::{self, Candidacy, Leadership};
use super::event_recorder::Recorder;
use super::plan::{Identity, Observation};
use super::releases::PeerReleases;
use super::sharing_peers::SharingPeers;
use super::writer::{Inputs, Outputs, Writer};

/// The maximum duration of the shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_millis(1500);

/// Writes to a cluster until it is dropped or shut down.
#[derive(Debug)]
pub struct ClusterWriter {
    observed: watch::Sender<Option<Observation>>,
    peer_releases: watch::Receiver<PeerReleases>,
    name_taken: watch::Receiver<Option<String>>,
    drain_annotation: watch::Receiver<DrainAnnotation>,
    flow_peers: FlowPeers,
    ends: watch::Sender<bool>,
    counts: Arc<Counts>,
    ended: watch::Receiver<bool>,
    tasks: Vec<AbortHandle>,
    /// The identity of this run of the gateway as a holder of Leases.
    holder: String,
}

impl ClusterWriter {
    /// Starts to take part in the election and to write, on the runtime of the caller. `name` is the gateway's name,
    /// `namespace` the namespace of the Lease. `source` shows whether the API server is connected, and `refresh`
    /// requests a new list of the Services.
    ///
    /// # Panics
    /// Outside of a Tokio runtime with time and I/O.
    #[must_use]
    pub fn start(
        connector: &Arc<Connector>,
        name: &str,
        node: Option<&str>,
        namespace: &str,
        source: watch::Receiver<SourceState>,
        refresh: Arc<Notify>,
    ) -> Self {
        let identity =
            Identity { name: name.to_owned(), instance: instance(), node: node.map(str::to_owned) };
        let counts = Arc::<Counts>::default();
        let (observed, observations) = watch::channel(None);
        let (peer_releases_sender, peer_releases) = watch::channel(PeerReleases::default());
        let (candidacy_sender, candidacy) = watch::channel(Candidacy::NotYet);
        let (name_sender, name_taken) = watch::channel(None);
        let (drain_sender, drain_annotation) = watch::channel(DrainAnnotation::Unknown);
        let (sharing_sender, known) = watch::channel(None);
        let flow_peers = FlowPeers { known, poll_now: Arc::default() };
        let (ends, shutdown) = watch::channel(false);
        let (is_over, ended) = watch::channel(false);
        let (leading, leadership) = watch::channel(Leadership::default());
        let (recorder, recording) =
            Recorder::new(Arc::clone(connector), identity.name.clone(), Arc::clone(&counts));
        let holder = format!("{}_{}", identity.name, identity.instance);
        let election =
            elect::run(Arc::clone(connector), namespace.to_owned(), holder.clone(), leading, candidacy);
        let poll_now = Arc::clone(&flow_peers.poll_now);
        let inputs = Inputs { observations, source, leadership, shutdown, poll_now };
        let outputs = Outputs {
            peer_releases: peer_releases_sender,
            candidacy: candidacy_sender,
            name_taken: name_sender,
            drain_annotation: drain_sender,
            sharing_peers: sharing_sender,
            refresh,
        };
        let writer =
            Writer::new(Arc::clone(connector), identity, Arc::clone(&counts), recorder, inputs, outputs);
        let writing = async move {
            // The Lease is released after the last write.
            tokio::join!(writer.run(), election);
            is_over.send_replace(true);
        };
        let tasks = vec![tokio::spawn(recording).abort_handle(), tokio::spawn(writing).abort_handle()];
        Self {
            observed,
            peer_releases,
            name_taken,
            drain_annotation,
            flow_peers,
            ends,
            counts,
            ended,
            tasks,
            holder,
        }
    }

    /// The identity of this run of the gateway as a holder of Leases.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// The background tasks, to detect whether one has ended. They run until [`Self::shut_down`].
    #[must_use]
    pub fn tasks(&self) -> &[AbortHandle] {
        &self.tasks
    }

    /// Passes on a round. Never waits.
    pub fn offer(&self, observation: Observation) {
        self.observed.send_replace(Some(observation));
    }

    /// The state of the other gateways, and which one assigns addresses.
    #[must_use]
    pub fn peer_releases(&self) -> watch::Receiver<PeerReleases> {
        self.peer_releases.clone()
    }

    /// The other gateway with this gateway's name, once it is known. This gateway then never leads.
    #[must_use]
    pub fn name_taken(&self) -> watch::Receiver<Option<String>> {
        self.name_taken.clone()
    }

    /// The drain annotation of this gateway's `GatewayStatus`.
    #[must_use]
    pub fn drain_annotation(&self) -> watch::Receiver<DrainAnnotation> {
        self.drain_annotation.clone()
    }

    /// The gateways with which flows can be shared.
    #[must_use]
    pub fn flow_peers(&self) -> FlowPeers {
        self.flow_peers.clone()
    }

    /// The counters of writes and events.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Shuts down: stops writing, sets `stopped` in the status of this gateway, and releases the Lease. It ends within
    /// 1.5 s, whatever the API server does.
    pub async fn shut_down(&self) {
        self.ends.send_replace(true);
        let mut ended = self.ended.clone();
        // If it takes longer, the Lease expires.
        let _ = timeout(SHUTDOWN_MAX, ended.wait_for(|over| *over)).await;
    }
}

/// The gateways with which flows can be shared, from their `GatewayStatus`.
#[derive(Debug, Clone)]
pub struct FlowPeers {
    known: watch::Receiver<Option<SharingPeers>>,
    poll_now: Arc<Notify>,
}

impl FlowPeers {
    /// The known gateways if they have changed since the last call; `None` also before any are known. While the API
    /// server doesn't respond, they stay unchanged.
    pub fn changed(&mut self) -> Option<SharingPeers> {
        // After the writer has ended, nothing changes anymore.
        if !self.known.has_changed().unwrap_or(false) {
            return None;
        }
        self.known.borrow_and_update().clone()
    }

    /// Requests a poll soon, because an unknown gateway wants to share flows. Polls happen at most once a second.
    pub fn poll_soon(&self) {
        self.poll_now.notify_one();
    }
}

impl Drop for ClusterWriter {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// An identifier that is unique to this run.
fn instance() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}
