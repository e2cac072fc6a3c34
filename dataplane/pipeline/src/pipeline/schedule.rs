//! The state of one worker for schedulers whose choice depends on the worker: `wrr`, `lc`, `sed` and `nq`.
//!
//! For `wrr` the state is the position in the ring of each service. For the others it is the load of each backend: the
//! flow tables count this worker's load exactly, and workers exchange their loads. Every [`LOADS_SHARED_MS`], each
//! worker writes the loads of its backends to its own tallies and reads the other workers' loads, a few backends in
//! each loop iteration. So choosing a backend touches no shared memory and no lock, and the loads of other workers are
//! at most two intervals and one walk old.
//!
//! Invariant: without a service that chooses by load, the only cost is one comparison in each iteration.

use std::sync::Arc;

use tidegate_conntrack::FlowTables;
use tidegate_select::loads::{Load, LoadSelector};
use tidegate_select::round_robin::RoundRobin;
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::{BackendId, ServiceId, WorkerIndex};
use tidegate_spec::limits::{
    BACKENDS_MAX, LOADS_SHARED_MS, LOADS_SHARED_PER_ITERATION, RECHECK_BUCKETS_PER_ITERATION, SERVICES_MAX,
};
use tidegate_spec::now::Now;
use tidegate_structures::hash::mix;

#[derive(Debug)]
pub(super) struct Schedule {
    worker: WorkerIndex,
    workers: u8,
    /// The next ring position of each service, by index of its id.
    next: Box<[u32]>,
    /// The loads of backends by the flows of other workers ([`Load::word`]), by index of the backend's id.
    remote: Box<[u64]>,
    /// A random number, replaced with each choice by load.
    random: u64,
    /// Whether the flow tables count the loads of all flows.
    is_counted: bool,
    walk: Walk,
}

/// The walk over the backends whose loads are shared.
#[derive(Debug, Default)]
struct Walk {
    /// When the current walk began.
    began: u32,
    /// The index of the service among those that choose by load, and of the backend among the service's members.
    service: usize,
    member: usize,
    is_over: bool,
}

impl Schedule {
    pub(super) fn new(worker: WorkerIndex, workers: u8, seed: u64) -> Self {
        Self {
            worker,
            workers: workers.max(1),
            // Zeroed pages that are never touched cost no memory.
            next: vec![0; SERVICES_MAX].into_boxed_slice(),
            remote: vec![0; BACKENDS_MAX].into_boxed_slice(),
            random: mix(seed ^ u64::from(worker)),
            is_counted: false,
            walk: Walk::default(),
        }
    }

    /// The next backend of the ring.
    pub(super) fn next_in_ring(&mut self, service: ServiceId, round_robin: &RoundRobin) -> Option<BackendId> {
        let next = self.next.get_mut(service.index())?;
        let position = *next;
        *next = if position + 1 >= round_robin.len() { 0 } else { position + 1 };
        // Workers start at different positions, so that they don't all choose the same backend. The product is at
        // most 2^17 * 2^6.
        let start = round_robin.len() * u32::from(self.worker) / u32::from(self.workers);
        round_robin.owner(position + start)
    }

    /// The backend with the lowest load relative to its weight.
    pub(super) fn least(
        &mut self,
        service: &Service,
        loaded: &LoadSelector,
        flows: &mut FlowTables,
    ) -> Option<BackendId> {
        self.least_where(service, loaded, flows, |_| true)
    }

    /// [`Self::least`] among the backends that are `allowed`; `None` if no compared backend is.
    #[inline]
    pub(super) fn least_where(
        &mut self,
        service: &Service,
        loaded: &LoadSelector,
        flows: &mut FlowTables,
        allowed: impl Fn(BackendId) -> bool,
    ) -> Option<BackendId> {
        if !self.is_counted {
            // If the tables are empty, counting starts now. Otherwise they are walked through between packets.
            self.is_counted = flows.count_loads(0, |_| true);
        }
        self.random = mix(self.random);
        let (clients, is_dsr) = (service.vip.family(), service.mode.is_dsr());
        let remote = |id: BackendId| self.remote.get(id.index()).map_or(0, |&word| word);
        let load = |id: BackendId| flows.load(is_dsr, clients, id).plus(Load::from_word(remote(id)));
        // A backend with this load comes after all others.
        let most = Load { active: u32::MAX, ended: u32::MAX };
        let load = |id: BackendId| if allowed(id) { load(id) } else { most };
        loaded.least(self.random, if is_dsr { 1 } else { 2 }, load).filter(|&id| allowed(id))
    }

    /// See [`Pipeline::share_loads`](super::Pipeline::share_loads).
    #[cold]
    pub(super) fn share(
        &mut self,
        snapshot: &Snapshot,
        tallies: &[Arc<Tallies>],
        flows: &mut FlowTables,
        now: Now,
    ) {
        if !self.is_counted {
            let buckets = RECHECK_BUCKETS_PER_ITERATION as usize;
            self.is_counted = flows.count_loads(buckets, |id| snapshot.backend(id).is_some());
        }
        if self.walk.is_over {
            if now.millis().wrapping_sub(self.walk.began) < LOADS_SHARED_MS {
                return;
            }
            self.walk = Walk { began: now.millis(), ..Walk::default() };
        }
        let mut remaining = LOADS_SHARED_PER_ITERATION;
        while remaining > 0 {
            let Some(&id) = snapshot.compared().get(self.walk.service) else {
                self.walk.is_over = true;
                return;
            };
            let shared = self.share_some(snapshot.service_by_id(id), tallies, flows, remaining);
            remaining = remaining.saturating_sub(shared.max(1));
        }
    }

    /// Shares the loads of up to `most` backends of a service. Returns their number.
    fn share_some(
        &mut self,
        service: Option<&Service>,
        tallies: &[Arc<Tallies>],
        flows: &FlowTables,
        most: usize,
    ) -> usize {
        let Some((service, Selector::Loads(loaded))) = service.map(|service| (service, service.selector()))
        else {
            (self.walk.service, self.walk.member) = (self.walk.service + 1, 0);
            return 0;
        };
        let (clients, is_dsr) = (service.vip.family(), service.mode.is_dsr());
        let members = loaded.members.get(self.walk.member..).unwrap_or(&[]);
        let own = usize::from(self.worker);
        for member in members.iter().take(most) {
            let id = member.owner;
            if let Some(own) = tallies.get(own) {
                own.publish_load(id, flows.load(is_dsr, clients, id));
            }
            let others = tallies.iter().enumerate().filter(|&(worker, _)| worker != own);
            let sum = others.fold(Load::default(), |sum, (_, theirs)| sum.plus(theirs.load(id)));
            if let Some(word) = self.remote.get_mut(id.index()) {
                *word = sum.word();
            }
        }
        let shared = members.len().min(most);
        self.walk.member += shared;
        if shared == members.len() {
            (self.walk.service, self.walk.member) = (self.walk.service + 1, 0);
        }
        shared
    }
}
