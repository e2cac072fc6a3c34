//! Flow state outside the workers' own tables: shared tables, and memory that survives a restart.
//!
//! Promises: shared tables take memory only once a Service needs them. Without a usable directory, flows don't survive
//! a restart, and `WorkerPool::flows_not_kept` says why.

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
    /// `None` for a single worker, which remembers all clients itself.
    pub(super) affinities: Option<Arc<Affinities>>,
    pub(super) associations: Arc<Associations>,
    pub(super) memory: Arc<FlowMemory>,
    pub(super) restoration: Option<Arc<Restoration>>,
    /// The service ports of earlier processes, until they are taken.
    earlier_ports: Mutex<Vec<EarlierPort>>,
    /// Why the directory of flow tables can't be used.
    store_error: Option<String>,
}

impl Flows {
    pub(super) fn new(config: &WorkerPoolConfig, now: Now, on_failure: Option<OnFailure>) -> Self {
        let workers = config.placements.len();
        let clients = config.flow_entries.saturating_mul(workers);
        let affinities = (workers > 1).then(|| Arc::new(Affinities::new(clients, config.seed)));
        let associations = Arc::new(Associations::new(clients, config.seed));
        let shape = Shape {
            workers,
            entries: config.flow_entries,
            steering: config.steering.clone(),
            seed: config.seed,
        };
        let (store, store_error) = match config.flow_store.as_deref() {
            Some(directory) => store(directory, &shape, now),
            None => (None, None),
        };
        let mut memory = FlowMemory::new(workers, config.flow_entries, config.huge_pages, store);
        let earlier_ports = Mutex::new(memory.earlier_ports());
        let restoration = memory.restoration(shape, on_failure);
        Self { affinities, associations, memory: Arc::new(memory), restoration, earlier_ports, store_error }
    }

    /// Allocates the shared tables that the Services of a snapshot need. Call it before workers get the snapshot.
    pub(super) fn allocate_shared(&self, snapshot: &Snapshot) {
        if !self.associations.is_prepared() && snapshot.has_sctp() {
            self.associations.prepare();
        }
        let affinities = self.affinities.as_ref();
        if let Some(affinities) = affinities.filter(|all| !all.is_prepared() && snapshot.has_affinity()) {
            affinities.prepare();
        }
    }

    /// Prepares the memory of flow tables for a snapshot, and starts restoring the flows that its Services had in an
    /// earlier process.
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
        let no_space = "no space for the file of a flow table in dataplane.flowTable.directory";
        let records =
            "new Services, backends and weights cannot be recorded in dataplane.flowTable.directory";
        let lacks = || {
            let lacks_records = || self.memory.lacks_records().then_some(records);
            self.memory.lacks_space().then_some(no_space).or_else(lacks_records).map(str::to_owned)
        };
        let why = self.store_error.clone().or_else(lacks)?;
        Some(format!(
            "a restart will break connections of nat and fullnat, because their flows are not stored: {why}"
        ))
    }

    /// The backend that a client last got at any worker; `None` if affinities are not shared.
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

/// Opens the directory of flow tables. If it can't be used, for example because it is not in memory, returns why: flows
/// then don't survive a restart.
fn store(directory: &Path, shape: &Shape, now: Now) -> (Option<Store>, Option<String>) {
    match Store::open(directory, shape, now) {
        Ok(store) => {
            if let Some(error) = store.error() {
                tracing::warn!(reason = %error, "flows will be lost on a restart");
            }
            let error = store.error().map(ToString::to_string);
            (Some(store), error)
        }
        Err(error) => {
            tracing::warn!(reason = %error, "flows will be lost on a restart");
            (None, Some(error.to_string()))
        }
    }
}
