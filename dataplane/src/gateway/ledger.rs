//! Counts of services and backends across snapshots.
//!
//! A worker counts by index in its [`Tallies`]. A snapshot that needs more indices gets larger tallies, and the index
//! of a removed backend is reused. So the count of a backend is the sum over all tallies of each worker, minus that sum
//! when its id was first seen. The traffic of a service is that of its backends, former ones included.
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
    /// By index.
    services: Vec<Former>,
    /// By index.
    backends: Vec<Origin>,
}

/// The traffic of a service's former backends whose indices others have now.
#[derive(Debug, Clone, Copy)]
struct Former {
    service: ServiceId,
    traffic: [Traffic; 2],
}

/// The owner of a backend's index: the last id that had it.
#[derive(Debug, Clone, Copy)]
struct Origin {
    service: ServiceId,
    /// The sums when the id was first seen.
    counts: BackendCounts,
}

/// The counts of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BackendCounts {
    /// Traffic, by direction.
    pub(super) traffic: [Traffic; 2],
    /// New flows.
    pub(super) connections: u64,
}

impl BackendCounts {
    fn since(self, before: Self) -> Self {
        Self {
            traffic: combine(self.traffic, before.traffic, u64::saturating_sub),
            connections: self.connections.saturating_sub(before.connections),
        }
    }
}

/// The capacity of tallies for this many indices.
pub(super) fn capacity(count: usize) -> usize {
    count.next_power_of_two().max(64)
}

impl Ledger {
    pub(super) fn new(workers: usize) -> Self {
        Self { history: vec![Vec::new(); workers], services: Vec::new(), backends: Vec::new() }
    }

    /// The tallies to publish with a snapshot. The counts of its new ids start at zero. Call it for every snapshot, in
    /// order, because each snapshot lists only the ids that its predecessor lacked.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) -> Vec<Arc<Tallies>> {
        let (services, backends) = (snapshot.service_indices(), snapshot.backend_indices());
        let none = ServiceId::from_raw(u32::MAX);
        let former = Former { service: none, traffic: Default::default() };
        self.services.resize(services.max(self.services.len()), former);
        let unused = Origin { service: none, counts: BackendCounts::default() };
        self.backends.resize(backends.max(self.backends.len()), unused);
        for &id in &snapshot.fresh().services {
            self.services[id.index()] = Former { service: id, traffic: Default::default() };
        }
        for &id in &snapshot.fresh().backends {
            let sums = self.sums(id.index());
            let Origin { service, counts } = self.backends[id.index()];
            if let Some(former) = self.services.get_mut(service.index()).filter(|one| one.service == service)
            {
                former.traffic = combine(former.traffic, sums.since(counts).traffic, u64::wrapping_add);
            }
            let service = snapshot.backend(id).map_or(none, |backend| backend.service);
            self.backends[id.index()] = Origin { service, counts: sums };
        }
        for worker in &mut self.history {
            let enough = worker.last().is_some_and(|tallies| {
                let (for_services, for_backends) = tallies.capacity();
                for_services >= services && for_backends >= backends
            });
            if !enough {
                worker.push(Arc::new(Tallies::with_capacity(capacity(services), capacity(backends))));
            }
        }
        self.history.iter().map(|worker| Arc::clone(worker.last().expect("made above"))).collect()
    }

    /// Traffic of all service ports, by direction, by the index of their ids.
    pub(super) fn traffic(&self) -> Vec<[Traffic; 2]> {
        let mut all: Vec<_> = self.services.iter().map(|one| one.traffic).collect();
        for (index, origin) in self.backends.iter().enumerate() {
            // A backend of a removed service has a service that isn't at its index any more.
            if self.services.get(origin.service.index()).is_some_and(|one| one.service == origin.service) {
                let of_service = &mut all[origin.service.index()];
                let of_backend = self.sums(index).since(origin.counts).traffic;
                *of_service = combine(*of_service, of_backend, u64::wrapping_add);
            }
        }
        all
    }

    /// The counts of a backend.
    pub(super) fn backend(&self, id: BackendId) -> BackendCounts {
        let before = self.backends.get(id.index()).map_or_else(Default::default, |origin| origin.counts);
        self.sums(id.index()).since(before)
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

    /// Packets to a service port that were refused because they came from a default router's own address. Only the
    /// increase is meaningful, as with [`Self::partial`].
    pub(super) fn sent_by_router(&self, id: ServiceId) -> u64 {
        self.all().map(|tallies| tallies.from_router(id.index())).sum()
    }

    /// The number of workers at which a service is under a SYN flood.
    pub(super) fn flooded(&self, id: ServiceId) -> usize {
        let present = self.history.iter().filter_map(|worker| worker.last());
        present.filter(|tallies| tallies.is_flooded(id.index())).count()
    }

    /// The sums over all tallies of the backends that have had an index.
    fn sums(&self, index: usize) -> BackendCounts {
        self.all().fold(BackendCounts::default(), |sum, tallies| BackendCounts {
            traffic: combine(sum.traffic, tallies.traffic(index), u64::wrapping_add),
            connections: sum.connections.wrapping_add(tallies.connections(index)),
        })
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
