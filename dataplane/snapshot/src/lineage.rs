//! The spec of a snapshot and the parts left out: the start of the next compile.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use imbl::Vector;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::{NetworkSpec, Problem, Protocol, ServiceKey, Shared, SharedService, SnapshotSpec};
use tidegate_wire::Addr;

/// The sort key of a service: IPv4-mapped address, protocol, port.
pub(super) type SortKey = (Addr, Protocol, u16);

pub(super) fn sort_key(key: &ServiceKey) -> SortKey {
    (key.vip.into(), key.protocol, key.port)
}

/// The input of the next compile in addition to the tables. Workers do not read it.
#[derive(Debug)]
pub(super) struct Lineage {
    /// The network of the spec.
    pub(super) network: Shared<NetworkSpec>,
    /// The services, in the order in which the spec listed them.
    pub(super) services: Vector<SharedService>,
    /// The position of each service in the order of keys; `None` if the spec lists them in that order.
    pub(super) ranks: Option<Arc<[u32]>>,
    /// The number of backends in the spec, including those left out.
    pub(super) backends: usize,
    pub(super) problems: Problems,
    pub(super) fresh: Fresh,
    /// Whether next hops and announced addresses are unchanged since the previous snapshot.
    pub(super) same_outside: bool,
}

impl Lineage {
    /// All problems of the spec.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.all()
    }

    /// For comparisons: the parts of the stored spec that differ from `spec`, and the stored counts.
    pub(super) fn basis(&self, spec: &SnapshotSpec) -> impl Debug {
        let Self { network, services, ranks, backends, problems: _, fresh: _, same_outside: _ } = self;
        let other = services.iter().zip(&spec.services).find(|(known, given)| known != given);
        let other = other.map(|(known, _)| known.clone());
        (services.len(), other, *network == spec.network, *backends, ranks.clone())
    }
}

/// The ids that the previous snapshot did not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fresh {
    /// Ids of service ports.
    pub services: Box<[ServiceId]>,
    /// Ids of backends.
    pub backends: Box<[BackendId]>,
}

/// Problems by the objects that they concern, so that the problems of unchanged objects are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct Problems {
    pub(super) network: Vec<Problem>,
    /// Problems of backends, by their service.
    pub(super) left_out: BTreeMap<SortKey, Vec<Problem>>,
    pub(super) neighbors: Vec<Problem>,
    /// Problems of the selection, by the service.
    pub(super) selection: BTreeMap<SortKey, Problem>,
}

impl Problems {
    pub(super) fn left_out(&mut self, service: SortKey, found: Vec<Problem>) {
        if found.is_empty() {
            self.left_out.remove(&service);
        } else {
            self.left_out.insert(service, found);
        }
    }

    pub(super) fn selection(&mut self, service: SortKey, found: Option<Problem>) {
        match found {
            Some(problem) => self.selection.insert(service, problem),
            None => self.selection.remove(&service),
        };
    }

    /// Whether a part is left out because the neighbour table was full.
    pub(super) fn is_neighbor_table_full(&self) -> bool {
        let mut all = self.network.iter().chain(self.left_out.values().flatten()).chain(&self.neighbors);
        all.any(Problem::is_neighbor_table_full)
    }

    pub(super) fn all(&self) -> Vec<Problem> {
        let of_backends = self.left_out.values().flatten();
        let all =
            self.network.iter().chain(of_backends).chain(&self.neighbors).chain(self.selection.values());
        all.cloned().collect()
    }
}
