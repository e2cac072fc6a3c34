//! Service ports of removed Services. Their flows continue until the drain timeout, and belong to the Service again
//! if it returns before that.
//!
//! State in, state out, as with removed backends (`drain`). The dataplane keeps each port of a removed Service,
//! without new flows ([`NoEndpoints::Unserved`]) and without its address: the address is free, or another Service has
//! it. If another Service has the port by then, the port belongs to that one.
//!
//! The room for them is limited. If there are more, those of the namespace that has the most are forgotten, so that a
//! namespace that creates and deletes Services all the time takes nothing from the others.
//!
//! Invariant: if a Service stays and loses a port, or is refused, nothing is kept for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;
use tidegate_spec::limits::{BACKENDS_MAX, SERVICES_MAX};
use tidegate_spec::ownership::Layer2;
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, FormerWeight, NoEndpoints, ServiceKey, SharedService,
};

use super::demand::Demand;
use super::drain::Drains;
use crate::largest_first::LargestFirst;

/// The programmed service ports, and those of removed Services.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Leavings {
    /// The ports of existing Services.
    programmed: SharedMap<ServiceKey, SharedService>,
    left: Arc<BTreeMap<ServiceKey, Left>>,
}

impl Eq for Leavings {}

#[derive(Debug, Clone, PartialEq)]
struct Left {
    spec: SharedService,
    until: Duration,
}

impl Left {
    fn backends(&self) -> usize {
        self.spec.backends.len()
    }
}

/// A limit for the ports of removed Services of all namespaces together.
#[derive(Debug, Clone, Copy)]
struct Room {
    ports: usize,
    backends: usize,
}

impl Room {
    /// The room in memory: with the usual limits 65,536 ports and 524,288 backends.
    fn in_memory(limits: &Demand) -> Self {
        Self { ports: limits.frontends / 16, backends: limits.backends / 6 }
    }
}

impl Leavings {
    /// The next state when these ports are programmed. `is_here` returns whether a Service is one of ours; `drains` is
    /// the memory of the last call; `limits` are those of all Services together.
    pub(super) fn step(
        &self,
        programmed: &SharedMap<ServiceKey, SharedService>,
        drains: &Drains,
        is_here: impl Fn(&ObjectKey) -> bool,
        limits: &Demand,
        now: Duration,
    ) -> Self {
        let gone = self.programmed.diff(programmed).filter_map(|change| match change.after {
            Some(_) => None,
            None => change.before,
        });
        let mut come = Vec::new();
        for spec in gone.filter(|spec| !is_here(&owner(spec))) {
            let until = now + drains.timeout(&spec.key).unwrap_or_default();
            if until > now {
                come.push((spec.key, Left { spec: without_new_flows(spec), until }));
            }
        }
        let stays = |key: &ServiceKey, left: &Left| {
            left.until > now && programmed.get(key).is_none() && !is_here(&owner(&left.spec))
        };
        let unchanged = come.is_empty() && self.left.iter().all(|(key, left)| stays(key, left));
        let left = if unchanged {
            Arc::clone(&self.left)
        } else {
            let stay = self.left.iter().filter(|(key, left)| stays(key, left));
            let mut all: BTreeMap<ServiceKey, Left> =
                stay.map(|(key, left)| (*key, left.clone())).chain(come).collect();
            for key in surplus(&all, Room::in_memory(limits)) {
                all.remove(&key);
            }
            Arc::new(all)
        };
        Self { programmed: programmed.clone(), left }
    }

    /// Adds the ports of removed Services to those for the dataplane, in the order of keys. Those that exceed the limit
    /// of a gateway are left out: their flows end early, and everything else is forwarded.
    pub(super) fn add_to(&self, specs: &mut Vec<SharedService>) {
        if self.left.is_empty() {
            return;
        }
        let backends = specs.iter().map(|spec| spec.backends.len()).sum();
        let room = Room {
            ports: SERVICES_MAX.saturating_sub(specs.len()),
            backends: BACKENDS_MAX.saturating_sub(backends),
        };
        let surplus = surplus(&self.left, room);
        let fitting = self.left.iter().filter(|(key, _)| !surplus.contains(*key));
        specs.extend(fitting.map(|(_, left)| left.spec.clone()));
        specs.sort_by_key(|spec| spec.key);
    }

    /// When the next of them is forgotten.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.left.values().map(|left| left.until).min()
    }

    /// Whether both are the same. Does not compare contents.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.programmed.is_same(&other.programmed) && Arc::ptr_eq(&self.left, &other.left)
    }
}

/// A size of a port.
type Size = fn(&Left) -> usize;

/// The ports for which there is no room: of the namespace that has the most, those that end first, again and again.
fn surplus(left: &BTreeMap<ServiceKey, Left>, room: Room) -> BTreeSet<ServiceKey> {
    let mut surplus = BTreeSet::new();
    let sizes: [(Size, usize); 2] = [(|_| 1, room.ports), (Left::backends, room.backends)];
    for (size, max) in sizes {
        let stay = || left.iter().filter(|(key, _)| !surplus.contains(*key));
        let mut total: usize = stay().map(|(_, one)| size(one)).sum();
        if total <= max {
            continue;
        }
        let mut ports: Vec<_> = stay()
            .map(|(key, one)| (one.until, *key, size(one), one.spec.namespace.as_str()))
            .filter(|(_, _, size, _)| *size > 0)
            .collect();
        ports.sort_unstable_by(|a, b| b.cmp(a));
        let ports = ports.into_iter().map(|(_, key, size, namespace)| (namespace, size, (key, size)));
        let mut largest = LargestFirst::new(ports);
        while total > max
            && let Some((key, size)) = largest.next()
        {
            surplus.insert(key);
            total -= size;
        }
    }
    surplus
}

fn owner(spec: &SharedService) -> ObjectKey {
    ObjectKey::new(spec.namespace.as_str(), spec.name.as_str())
}

fn without_new_flows(spec: &SharedService) -> SharedService {
    let mut left = spec.clone();
    left.no_endpoints = NoEndpoints::Unserved;
    left.layer2 = Layer2::Answered;
    if let FlowTracking::OnChange(moved) | FlowTracking::AlwaysAfter(moved) = &left.flow_tracking {
        // No backend takes new flows from now on, and flows without an entry follow the weights until now.
        let known = |b: &BackendSpec| moved.iter().any(|m| (m.address, m.port) == (b.address, b.port));
        let active = left.backends.iter().filter(|b| b.state == BackendState::Active && !known(b));
        let former = |b: &BackendSpec| FormerWeight { address: b.address, port: b.port, weight: b.weight };
        let moved = moved.iter().copied().chain(active.map(former)).collect();
        left.flow_tracking = match left.flow_tracking {
            FlowTracking::AlwaysAfter(_) => FlowTracking::AlwaysAfter(moved),
            _ => FlowTracking::OnChange(moved),
        };
    }
    for backend in &mut left.backends {
        if backend.state == BackendState::Active {
            backend.state = BackendState::Draining;
        }
    }
    left
}
