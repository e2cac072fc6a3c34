//! Service ports of removed Services, and listeners that a Gateway lost. Their flows continue until the drain timeout,
//! and belong to the Service or Gateway again if it gets the port back before then.
//!
//! State in, state out, as with removed backends (`drain`). The dataplane keeps each removed port, but without new
//! flows ([`NoEndpoints::Unserved`]) and without its address: the address is free, or belongs to another Service or to
//! other listeners. If another Service or listener gets the port, the removed port is dropped.
//!
//! A Gateway may have listeners of several teams. An edit of one of them, of the Gateway, or of a namespace's labels
//! may remove listeners of the others, so the reason why a Gateway lost a port doesn't matter. A removed port keeps
//! the source ranges and the forwarding mode that it had.
//!
//! Their number is limited. If there are too many, some are forgotten from the namespace with the most, so that a
//! namespace that constantly creates and deletes Services takes nothing from the others.
//!
//! Invariant: if a Service that isn't a Gateway stays but loses a port, or is refused, nothing is kept for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::{SharedMap, differences};
use tidegate_spec::limits::{BACKENDS_MAX, SERVICES_MAX};
use tidegate_spec::ownership::Layer2;
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, FormerWeight, NoEndpoints, ServiceKey, SharedService,
};

use super::demand::Demand;
use super::drain::Drains;
use crate::largest_first::LargestFirst;

/// The programmed service ports, and the removed ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemovedPorts {
    /// The ports that existing Services have now.
    programmed: SharedMap<ServiceKey, SharedService>,
    removed: Arc<BTreeMap<ServiceKey, RemovedPort>>,
}

impl Eq for RemovedPorts {}

#[derive(Debug, Clone, PartialEq)]
struct RemovedPort {
    spec: SharedService,
    until: Duration,
}

impl RemovedPort {
    fn backends(&self) -> usize {
        self.spec.backends.len()
    }
}

/// A limit for the removed ports of all namespaces together.
#[derive(Debug, Clone, Copy)]
struct Capacity {
    ports: usize,
    backends: usize,
}

impl Capacity {
    /// The capacity in memory: by default 65,536 ports and 524,288 backends.
    fn in_memory(limits: &Demand) -> Self {
        Self { ports: limits.frontends / 16, backends: limits.backends / 6 }
    }
}

impl RemovedPorts {
    /// The next state when these ports are programmed. `is_here` returns whether a Service is one of ours; `drains` is
    /// the memory of the last call; `limits` are the limits for all Services together.
    pub(super) fn step(
        &self,
        programmed: &SharedMap<ServiceKey, SharedService>,
        drains: &Drains,
        is_here: impl Fn(&ObjectKey) -> bool,
        limits: &Demand,
        now: Duration,
    ) -> Self {
        let gone = differences(&self.programmed, programmed).filter_map(|change| match change.after {
            Some(_) => None,
            None => change.before,
        });
        // A Gateway may lose the listeners of other teams while it stays.
        let is_kept = |spec: &SharedService| {
            let owner = owner(spec);
            owner.gateway_name().is_some() || !is_here(&owner)
        };
        let mut added = Vec::new();
        for spec in gone.filter(|spec| is_kept(spec)) {
            let until = now + drains.timeout(&spec.key).unwrap_or_default();
            if until > now {
                added.push((spec.key, RemovedPort { spec: without_new_flows(spec), until }));
            }
        }
        let stays = |key: &ServiceKey, removed: &RemovedPort| {
            removed.until > now && programmed.get(key).is_none() && is_kept(&removed.spec)
        };
        let unchanged = added.is_empty() && self.removed.iter().all(|(key, removed)| stays(key, removed));
        let removed = if unchanged {
            Arc::clone(&self.removed)
        } else {
            let stay = self.removed.iter().filter(|(key, removed)| stays(key, removed));
            let mut all: BTreeMap<ServiceKey, RemovedPort> =
                stay.map(|(key, removed)| (*key, removed.clone())).chain(added).collect();
            for key in surplus(&all, Capacity::in_memory(limits)) {
                all.remove(&key);
            }
            Arc::new(all)
        };
        Self { programmed: programmed.clone(), removed }
    }

    /// Adds the removed ports to `specs`, in the order of keys. Ports that exceed the gateway's limits are left out:
    /// their flows end early, and everything else is forwarded.
    pub(super) fn add_to(&self, specs: &mut Vec<SharedService>) {
        if self.removed.is_empty() {
            return;
        }
        let backends = specs.iter().map(|spec| spec.backends.len()).sum();
        let capacity = Capacity {
            ports: SERVICES_MAX.saturating_sub(specs.len()),
            backends: BACKENDS_MAX.saturating_sub(backends),
        };
        let surplus = surplus(&self.removed, capacity);
        let fitting = self.removed.iter().filter(|(key, _)| !surplus.contains(*key));
        specs.extend(fitting.map(|(_, removed)| removed.spec.clone()));
        specs.sort_by_key(|spec| spec.key);
    }

    /// When the next removed port is forgotten.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.removed.values().map(|removed| removed.until).min()
    }

    /// Whether both are the same copy. Does not compare contents.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.programmed.ptr_eq(&other.programmed) && Arc::ptr_eq(&self.removed, &other.removed)
    }
}

type Size = fn(&RemovedPort) -> usize;

/// The ports that don't fit: repeatedly the port that ends first, from the namespace with the most.
fn surplus(removed: &BTreeMap<ServiceKey, RemovedPort>, capacity: Capacity) -> BTreeSet<ServiceKey> {
    let mut surplus = BTreeSet::new();
    let sizes: [(Size, usize); 2] = [(|_| 1, capacity.ports), (RemovedPort::backends, capacity.backends)];
    for (size, max) in sizes {
        let stay = || removed.iter().filter(|(key, _)| !surplus.contains(*key));
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
    let mut removed = spec.clone();
    removed.no_endpoints = NoEndpoints::Unserved;
    removed.layer2 = Layer2::Answered;
    if let FlowTracking::OnChange(moved) | FlowTracking::AlwaysAfter(moved) = &removed.flow_tracking {
        // No backend takes new flows any more, and flows without an entry follow the weights used so far.
        let known = |b: &BackendSpec| moved.iter().any(|m| (m.address, m.port) == (b.address, b.port));
        let active = removed.backends.iter().filter(|b| b.state == BackendState::Active && !known(b));
        let former = |b: &BackendSpec| FormerWeight { address: b.address, port: b.port, weight: b.weight };
        let moved = moved.iter().copied().chain(active.map(former)).collect();
        removed.flow_tracking = match removed.flow_tracking {
            FlowTracking::AlwaysAfter(_) => FlowTracking::AlwaysAfter(moved),
            _ => FlowTracking::OnChange(moved),
        };
    }
    for backend in &mut removed.backends {
        if backend.state == BackendState::Active {
            backend.state = BackendState::Draining;
        }
    }
    removed
}
