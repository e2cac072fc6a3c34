//! [`Allocator`]: which Service has which address, updated incrementally.
//!
//! All Services that take part get their addresses in three passes (`allocate`). When some of them change, the passes
//! run again only for those that the change can affect, while the others keep what they hold:
//! - Services that changed, or whose memory differs from that of their last turn;
//! - Services whose result depends on others: they were refused because of what another holds, their address was chosen
//!   freely, and others may now come before them, or they have a sharing key and share with nobody;
//! - every Service that holds an address that one of these held or names; and, if a pool has a quota, their
//!   namespaces.
//!
//! The other Services got their addresses in the first two passes, on addresses that no other Service names, so their
//! result does not depend on which Services come before them.
//!
//! Invariant: the result is the one of a new allocator with the same Services and memory (tested over random
//! histories, here and in `reconcile`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{ObjectKey, Pool, Service};
use tidegate_model::shared_map::SharedMap;

use super::allocate::{Allocation, Footprint};
use super::usage::Users;
use super::{Allocations, Applicant, Authority, Granted, Held, Holder, Holdings, PoolUsage};
use crate::largest_first::LargestFirst;

/// From this number of new memories on, a check whether they change anything is cheaper than a second turn for all.
const SETTLE_MIN: usize = 64;

/// The maximum number of removed Services whose addresses are remembered, in case they return. If there are more, those of
/// the namespace that has the most are forgotten.
const DEPARTED_MAX: usize = 4096;

/// The addresses of all Services.
#[derive(Debug)]
pub struct Allocator {
    allocation: Allocation,
    /// A comparison in progress shares it.
    granted: Arc<BTreeMap<ObjectKey, Granted>>,
    footprints: BTreeMap<ObjectKey, Footprint>,
    allocations: Arc<Allocations>,
    users: Users,
    /// Services whose result depends on others.
    hanging: BTreeSet<ObjectKey>,
    /// Services whose memory differs from that of their last turn.
    unsettled: BTreeSet<ObjectKey>,
}

impl Allocator {
    /// An allocator without Services. `reserved` are the addresses of gateways, nodes and API servers. No Service gets
    /// one of them, whatever pools and Services request; only an address that was assigned before it became a node's
    /// stays.
    #[must_use]
    pub fn new(pools: Vec<Pool>, reserved: BTreeMap<IpAddr, Holder>, authority: Authority) -> Self {
        Self {
            allocation: Allocation::new(pools, reserved, authority),
            granted: Arc::default(),
            footprints: BTreeMap::new(),
            allocations: Arc::default(),
            users: Users::default(),
            hanging: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Adopts the addresses that Services held when another allocator ended.
    #[must_use]
    pub fn resuming(mut self, allocations: &Arc<Allocations>) -> Self {
        self.allocations = Arc::clone(allocations);
        for (service, holdings) in &self.allocations.by_service {
            self.users.replace(service, &[], &holdings.held, &self.allocation.pools);
        }
        self
    }

    /// Assigns addresses again to these Services and to all that this affects. Returns the Services whose result
    /// changed, new and removed ones included.
    ///
    /// `applicant` returns the requests of a Service, given its remembered holdings; `None` if it does not take part.
    /// For Services that are not in `changed`, it must return the same as before, except for the earlier addresses.
    pub fn update<'a>(
        &mut self,
        changed: impl IntoIterator<Item = ObjectKey>,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) -> Vec<ObjectKey> {
        let mut again: BTreeSet<ObjectKey> = changed.into_iter().collect();
        again.append(&mut self.unsettled);
        if again.is_empty() {
            return Vec::new();
        }
        again.extend(self.hanging.iter().cloned());
        let again = self.with_neighbours(again, &applicant);
        let mut before: BTreeMap<ObjectKey, Option<Granted>> = BTreeMap::new();
        let mut turns: Vec<Turn<'a>> = Vec::with_capacity(again.len());
        let mut departed = BTreeSet::new();
        for (key, applicant) in again {
            if let Some(footprint) = self.footprints.remove(&key) {
                self.allocation.forget(&key, &footprint);
            }
            self.hanging.remove(&key);
            before.insert(key.clone(), Arc::make_mut(&mut self.granted).remove(&key));
            match applicant {
                Some(applicant) => turns.push(Turn::new(applicant)),
                None if self.depart(&key) => drop(departed.insert(key)),
                None => {}
            }
        }
        if self.allocations.departed.len() > DEPARTED_MAX {
            forget_surplus(&mut Arc::make_mut(&mut self.allocations).departed);
        }
        self.pass_all(&mut turns, &|key| applicant(key, None).map(|applicant| applicant.service));
        let mut gained = BTreeSet::new();
        for Turn { applicant, granted, footprint } in turns {
            let key = applicant.key();
            let held = granted.held(&applicant).into_iter().chain(footprint.leaving.iter().cloned());
            gained.extend(self.remember(key, &applicant.service.meta.uid, held.collect()));
            if footprint.hangs {
                self.hanging.insert(key.clone());
            }
            self.footprints.insert(key.clone(), footprint);
            Arc::make_mut(&mut self.granted).insert(key.clone(), granted);
        }
        self.forget_addresses_of_others(&departed, &gained);
        let differs = |(key, was): &(ObjectKey, Option<Granted>)| self.granted.get(key) != was.as_ref();
        before.into_iter().filter(differs).map(|(key, _)| key).collect()
    }

    /// These Services and those that they affect, each with its current requests.
    fn with_neighbours<'a>(
        &self,
        services: BTreeSet<ObjectKey>,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) -> BTreeMap<ObjectKey, Option<Applicant<'a>>> {
        let has_quota = self.allocation.pools.iter().any(|pool| pool.quota_per_namespace.is_some());
        let mut namespaces: BTreeSet<String> = BTreeSet::new();
        let mut found: BTreeMap<ObjectKey, Option<Applicant<'a>>> = BTreeMap::new();
        let mut left: Vec<ObjectKey> = services.into_iter().collect();
        while let Some(key) = left.pop() {
            if found.contains_key(&key) {
                continue;
            }
            let mut applicant = applicant(&key, self.allocations.by_service.get(&key));
            if let Some(applicant) = &mut applicant {
                let departed = self.allocations.departed.get(&key);
                let departed = departed.filter(|departed| departed.are_of(&applicant.service.meta.uid));
                applicant.had.last = departed.into_iter().flat_map(Holdings::load_balancer).collect();
            }
            let held = self.footprints.get(&key).into_iter().flat_map(|footprint| &footprint.claims);
            let named = applicant.iter().flat_map(Applicant::names);
            for ip in held.copied().chain(named) {
                let others = self.allocation.ledger.holders(ip).filter(|holder| !found.contains_key(*holder));
                left.extend(others.filter(|holder| **holder != key).cloned());
            }
            if has_quota && namespaces.insert(key.namespace.clone()) {
                let from = self.footprints.range(ObjectKey::new(key.namespace.as_str(), "")..);
                let of_namespace = from.map(|(other, _)| other).take_while(|o| o.namespace == key.namespace);
                left.extend(of_namespace.cloned());
            }
            found.insert(key, applicant);
        }
        found
    }

    fn pass_all<'a>(&mut self, turns: &mut [Turn<'a>], service: &dyn Fn(&ObjectKey) -> Option<&'a Service>) {
        turns.sort_by(|a, b| {
            let [a, b] = [a, b].map(|turn| &turn.applicant.service.meta);
            a.seniority().cmp(&b.seniority())
        });
        for Turn { applicant, granted, footprint } in &mut *turns {
            self.allocation.turn(footprint, |allocation| allocation.keep_known(applicant, granted));
        }
        for Turn { applicant, granted, footprint } in &mut *turns {
            self.allocation.turn(footprint, |allocation| {
                allocation.keep_rest(applicant, granted);
                allocation.hold_lost(applicant, granted);
            });
        }
        for Turn { applicant, granted, footprint } in &mut *turns {
            self.allocation.turn(footprint, |allocation| {
                allocation.extend(applicant, granted);
                allocation.authorise_external(applicant, granted);
                allocation.grant_requested(applicant, granted);
            });
        }
        for Turn { applicant, granted, footprint } in &mut *turns {
            self.allocation.turn(footprint, |allocation| allocation.choose(applicant, granted));
        }
        for Turn { applicant, granted, footprint } in turns {
            self.allocation
                .turn(footprint, |allocation| allocation.note_unshared(applicant, granted, service));
        }
    }

    /// Removes the addresses from the memory of removed Services that another Service has had since: those of the
    /// `departed` ones that are held, and the `gained` ones. Only the last holder of an address may have it back while other
    /// gateways still serve it.
    fn forget_addresses_of_others(&mut self, departed: &BTreeSet<ObjectKey>, gained: &BTreeSet<IpAddr>) {
        if departed.is_empty() && gained.is_empty() {
            return;
        }
        let ledger = &self.allocation.ledger;
        let is_lost = |service: &ObjectKey, held: &Held| {
            gained.contains(&held.address) || departed.contains(service) && ledger.is_held(held.address)
        };
        let all = self.allocations.departed.iter();
        let lost = all.filter(|(service, holdings)| holdings.held.iter().any(|held| is_lost(service, held)));
        let rest: Vec<(ObjectKey, Holdings)> = lost
            .map(|(service, holdings)| {
                let kept = holdings.held.iter().filter(|held| !is_lost(service, held)).cloned();
                (service.clone(), Holdings { held: kept.collect(), ..holdings.clone() })
            })
            .collect();
        if rest.is_empty() {
            return;
        }
        let allocations = Arc::make_mut(&mut self.allocations);
        for (service, holdings) in rest {
            match holdings.held.is_empty() {
                true => drop(allocations.departed.remove(&service)),
                false => drop(allocations.departed.insert(service, holdings)),
            }
        }
    }

    /// Records the current holdings of a Service. Returns the addresses that it did not have before.
    fn remember(&mut self, service: &ObjectKey, uid: &str, held: Vec<Held>) -> Vec<IpAddr> {
        let known = self.allocations.by_service.get(service);
        let before = known.map_or(&[][..], |known| &known.held);
        let now = Holdings::new(uid, held);
        let addresses = now.held.iter().map(|held| held.address);
        let gained = addresses.filter(|ip| before.iter().all(|held| held.address != *ip)).collect();
        self.users.replace(service, before, &now.held, &self.allocation.pools);
        let returns = !now.held.is_empty() && self.allocations.departed.contains_key(service);
        let is_same = known.map_or(now.held.is_empty(), |known| *known == now);
        if is_same && !returns {
            return gained;
        }
        let allocations = Arc::make_mut(&mut self.allocations);
        if returns {
            allocations.departed.remove(service);
        }
        if now.held.is_empty() {
            allocations.by_service.remove(service);
        } else {
            allocations.by_service.insert(service.clone(), now);
        }
        self.unsettled.insert(service.clone());
        gained
    }

    /// Removes a Service that no longer takes part. Returns whether it had addresses until now.
    fn depart(&mut self, service: &ObjectKey) -> bool {
        let Some(holdings) = self.allocations.by_service.get(service).cloned() else { return false };
        self.users.replace(service, &holdings.held, &[], &self.allocation.pools);
        let allocations = Arc::make_mut(&mut self.allocations);
        allocations.by_service.remove(service);
        allocations.departed.insert(service.clone(), holdings);
        self.unsettled.insert(service.clone());
        true
    }

    /// If many Services have a memory that they did not have in their turn, checks whether it would make a difference.
    /// If not, they need no second turn. `applicant` is the same as for [`Self::update`].
    pub fn settle<'a>(&mut self, applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>) {
        if self.unsettled.len() >= SETTLE_MIN {
            self.settle_all(applicant);
        }
    }

    pub(super) fn settle_all<'a>(
        &mut self,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) {
        let Allocation { pools, reserved, .. } = &self.allocation;
        let authority = self.allocation.authority();
        let second = Self::new(pools.clone(), reserved.clone(), authority.clone());
        let mut second = second.resuming(&self.allocations);
        let services: Vec<ObjectKey> = self.granted.keys().cloned().collect();
        second.update(services, applicant);
        let same = second.unsettled.is_empty() && second.granted == self.granted;
        if same && second.usage() == self.usage() {
            *self = second;
        }
    }

    /// Sets the addresses that no Service may have. Returns the Services that may be affected, for [`Self::update`].
    pub fn reserve(&mut self, reserved: BTreeMap<IpAddr, Holder>) -> Vec<ObjectKey> {
        let was = &self.allocation.reserved;
        if *was == reserved {
            return Vec::new();
        }
        let gone = was.iter().filter(|(ip, holder)| reserved.get(*ip) != Some(*holder));
        let new = reserved.iter().filter(|(ip, holder)| was.get(*ip) != Some(*holder));
        let holders = gone.chain(new).flat_map(|(ip, _)| self.allocation.ledger.holders(*ip));
        let touched = holders.chain(&self.hanging).cloned().collect();
        self.allocation.reserve(reserved);
        touched
    }

    /// Sets the addresses that other gateways still serve. Returns the Services that may be affected, for
    /// [`Self::update`]; `None` if the deciding gateway has changed, which affects all Services.
    pub fn set_authority(&mut self, authority: &Authority) -> Option<Vec<ObjectKey>> {
        if *self.allocation.authority() == *authority {
            return Some(Vec::new());
        }
        let decides = |authority: &Authority| matches!(authority, Authority::Decides { .. });
        (decides(self.allocation.authority()) && decides(authority)).then(|| {
            self.allocation.set_authority(authority.clone());
            self.hanging.iter().cloned().collect()
        })
    }

    /// The pools that addresses are assigned from.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.allocation.pools
    }

    /// The results by Service, with one entry for each Service that takes part.
    #[must_use]
    pub fn granted(&self) -> &Arc<BTreeMap<ObjectKey, Granted>> {
        &self.granted
    }

    /// The current holdings, for [`adopted`](super::adopted()) in the next turn. The same value as long as nothing
    /// changes.
    #[must_use]
    pub fn allocations(&self) -> &Arc<Allocations> {
        &self.allocations
    }

    /// The usage of the pools in their order, with their users, followed by removed pools that are still in use.
    #[must_use]
    pub fn usage(&self) -> Vec<PoolUsage> {
        self.users.complete(self.allocation.usage())
    }
}

/// Forgets removed Services until the rest fits: again and again one of the namespace that has the most.
fn forget_surplus(departed: &mut SharedMap<ObjectKey, Holdings>) {
    let surplus = departed.len().saturating_sub(DEPARTED_MAX);
    let all: Vec<_> = departed.keys().map(|key| (key.namespace.clone(), 1, key.clone())).collect();
    LargestFirst::new(all).take(surplus).for_each(|key| drop(departed.remove(&key)));
}

#[cfg(test)]
impl Allocator {
    /// The number of searches of a pool so far.
    pub(super) fn searches(&self) -> usize {
        self.allocation.searches.get()
    }
}

/// A Service while it is given its addresses.
struct Turn<'a> {
    applicant: Applicant<'a>,
    granted: Granted,
    footprint: Footprint,
}

impl<'a> Turn<'a> {
    fn new(applicant: Applicant<'a>) -> Self {
        Self { applicant, granted: Granted::default(), footprint: Footprint::default() }
    }
}
