//! What the workers remember of flows beyond their own tables: the tables that they share, and the memory that outlives
//! the process.
//!
//! Promises: shared tables take memory only once a Service needs them. Without a usable directory the flows end with the
//! process, and `WorkerPool::flows_not_kept` says why.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_conntrack::FlowKey;
use tidegate_conntrack::affinities::Affinities;
use tidegate_conntrack::associations::Associations;
use tidegate_snapshot::Snapshot;
use tidegate_spec::EarlierPort;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;

use super::config::WorkerPoolConfig;
use crate::flow_memory::{FlowMemory, Restoration, Shape, Store};
use crate::gateway::threads::OnFailure;

/// The shared tables, and the memory of all tables.
pub(super) struct Flows {
    /// `None` for a single worker: it remembers all clients itself.
    pub(super) affinities: Option<Arc<Affinities>>,
    pub(super) associations: Arc<Associations>,
    pub(super) memory: Arc<FlowMemory>,
    pub(super) restoration: Option<Arc<Restoration>>,
    /// The service ports of earlier processes, until they are taken.
    earlier_ports: Mutex<Vec<EarlierPort>>,
    /// Why the directory of flow tables cannot be used.
    store_trouble: Option<String>,
}

impl Flows {
    pub(super) fn new(config: &WorkerPoolConfig, now: Now, on_failure: Option<OnFailure>) -> Self {
        let workers = config.places.len();
        let clients = config.flow_entries.saturating_mul(workers);
        let affinities = (workers > 1).then(|| Arc::new(Affinities::new(clients, config.seed)));
        let associations = Arc::new(Associations::new(clients, config.seed));
        let shape = Shape {
            workers,
            entries: config.flow_entries,
            steering: config.steering.clone(),
            seed: config.seed,
        };
        let (store, store_trouble) = match config.flow_store.as_deref() {
            Some(directory) => store(directory, &shape, now),
            None => (None, None),
        };
        let mut memory = FlowMemory::new(workers, config.flow_entries, config.huge_pages, store);
        let earlier_ports = Mutex::new(memory.earlier_ports());
        let restoration = memory.restoration(shape, on_failure);
        Self { affinities, associations, memory: Arc::new(memory), restoration, earlier_ports, store_trouble }
    }

    /// Allocates the tables that the workers share, before they get the first Service that needs them.
    pub(super) fn allocate_shared(&self, snapshot: &Snapshot) {
        if !self.associations.is_prepared() && snapshot.has_sctp() {
            self.associations.prepare();
        }
        let affinities = self.affinities.as_ref();
        if let Some(affinities) = affinities.filter(|all| !all.is_prepared() && snapshot.has_affinity()) {
            affinities.prepare();
        }
    }

    /// Prepares the memory of flow tables for a snapshot, and the flows that its Services had in an earlier process.
    pub(super) fn prepare(&self, snapshot: &Snapshot) {
        self.memory.prepare(snapshot);
        if let Some(restoration) = &self.restoration {
            restoration.begin(snapshot);
        }
    }

    /// See `WorkerPool::take_earlier_ports`.
    pub(super) fn take_earlier_ports(&self) -> Vec<EarlierPort> {
        std::mem::take(&mut *self.earlier_ports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// See `WorkerPool::flows_not_kept`.
    pub(super) fn not_kept(&self) -> Option<String> {
        let room = "there is no room for the file of a flow table in dataplane.flowTable.directory";
        let records =
            "new Services, backends and weights cannot be recorded in dataplane.flowTable.directory";
        let lacks = || {
            let lacks_records = || self.memory.lacks_records().then_some(records);
            self.memory.lacks_room().then_some(room).or_else(lacks_records).map(str::to_owned)
        };
        let why = self.store_trouble.clone().or_else(lacks)?;
        Some(format!(
            "flows end with this process, so a restart breaks connections of nat and fullnat: {why}"
        ))
    }

    /// The backend that a client last got at any worker, if the workers share that.
    pub(super) fn affinity(
        &self,
        service: ServiceId,
        client: Addr,
        timeout_ms: u32,
        now: Now,
    ) -> Option<BackendId> {
        self.affinities.as_ref()?.find(&FlowKey::affinity(service, client), timeout_ms, now)
    }
}

/// Opens the directory of flow tables, or says why it cannot be used. Without it, the flows end with this process. On a file
/// system that is not in memory that is how the gateway is meant to work.
fn store(directory: &Path, shape: &Shape, now: Now) -> (Option<Store>, Option<String>) {
    match Store::open(directory, shape, now) {
        Ok(store) => {
            if let Some(error) = store.trouble() {
                tracing::warn!(reason = %error, "flows end with this process");
            }
            let trouble = store.trouble().map(ToString::to_string);
            (Some(store), trouble)
        }
        Err(error) => {
            tracing::warn!(reason = %error, "flows end with this process");
            (None, Some(error.to_string()))
        }
    }
}
