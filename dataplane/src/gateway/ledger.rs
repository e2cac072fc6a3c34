//! Counts of services and backends across snapshots.
//!
//! A worker counts by index in its [`Tallies`]. A snapshot that needs more indices gets larger tallies, and the index
//! of a removed service is reused. So the count of a service is the sum over all tallies of each worker, minus that sum
//! when its id was first seen.
//!
//! Invariant: the counts of an id never decrease while it exists. Packets that a worker counts for the previous id of
//! an index before it applies the new snapshot are attributed to the new id.

use std::sync::Arc;

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, Traffic};
use tidegate_spec::ids::{BackendId, ServiceId};

/// The counts of services and backends.
#[derive(Debug)]
pub(super) struct Ledger {
    /// All tallies that each worker has had. Capacities double, so there are at most a few dozen.
    history: Vec<Vec<Arc<Tallies>>>,
    /// The sums when the current id of an index was first seen, by index.
    services: Vec<[Traffic; 2]>,
    backends: Vec<u64>,
}

impl Ledger {
    pub(super) fn new(workers: usize) -> Self {
        Self { history: vec![Vec::new(); workers], services: Vec::new(), backends: Vec::new() }
    }

    /// The tallies to publish with a snapshot. The counts of its new ids start at zero. Call it for every snapshot, in
    /// order, because each snapshot lists only the ids that its predecessor lacked.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) -> Vec<Arc<Tallies>> {
        let (services, backends) = (snapshot.service_indices(), snapshot.backend_indices());
        self.services.resize(services.max(self.services.len()), Default::default());
        self.backends.resize(backends.max(self.backends.len()), 0);
        for &id in &snapshot.fresh().services {
            self.services[id.index()] = self.service_sum(id);
        }
        for &id in &snapshot.fresh().backends {
            self.backends[id.index()] = self.backend_sum(id);
        }
        for worker in &mut self.history {
            let enough = worker.last().is_some_and(|tallies| {
                let (for_services, for_backends) = tallies.capacity();
                for_services >= services && for_backends >= backends
            });
            if !enough {
                let capacity = |count: usize| count.next_power_of_two().max(64);
                worker.push(Arc::new(Tallies::with_capacity(capacity(services), capacity(backends))));
            }
        }
        self.history.iter().map(|worker| Arc::clone(worker.last().expect("made above"))).collect()
    }

    /// Traffic of a service port, by direction.
    pub(super) fn service(&self, id: ServiceId) -> [Traffic; 2] {
        let base = self.services.get(id.index()).copied().unwrap_or_default();
        combine(self.service_sum(id), base, u64::saturating_sub)
    }

    /// New flows of a backend.
    pub(super) fn connections(&self, id: BackendId) -> u64 {
        self.backend_sum(id).saturating_sub(self.backends.get(id.index()).copied().unwrap_or_default())
    }

    /// The number of workers that have set a backend aside.
    pub(super) fn set_aside(&self, id: BackendId) -> usize {
        let present = self.history.iter().filter_map(|worker| worker.last());
        present.filter(|tallies| tallies.is_set_aside(id.index())).count()
    }

    /// Sampled packets to a service port with a partial checksum. They may include packets to an earlier service that
    /// had this index, so only the increase is meaningful.
    pub(super) fn partial(&self, id: ServiceId) -> u64 {
        self.all().map(|tallies| tallies.partial(id.index())).sum()
    }

    /// The number of workers at which a service is under a SYN flood.
    pub(super) fn flooded(&self, id: ServiceId) -> usize {
        let present = self.history.iter().filter_map(|worker| worker.last());
        present.filter(|tallies| tallies.is_flooded(id.index())).count()
    }

    fn service_sum(&self, id: ServiceId) -> [Traffic; 2] {
        let of_workers = self.all().map(|tallies| tallies.service(id.index()));
        of_workers.fold(Default::default(), |sum, one| combine(sum, one, u64::wrapping_add))
    }

    fn backend_sum(&self, id: BackendId) -> u64 {
        self.all().map(|tallies| tallies.connections(id.index())).sum()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Tallies>> {
        self.history.iter().flatten()
    }
}

/// Packets and bytes of each direction, combined by `of`.
fn combine(one: [Traffic; 2], other: [Traffic; 2], of: fn(u64, u64) -> u64) -> [Traffic; 2] {
    std::array::from_fn(|n| Traffic {
        packets: of(one[n].packets, other[n].packets),
        bytes: of(one[n].bytes, other[n].bytes),
    })
}
