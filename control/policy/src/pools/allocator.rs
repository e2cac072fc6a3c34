//! [`Allocator`]: which Service has which address, updated incrementally.
//!
//! Addresses are assigned in passes (`allocate`) over all Services that take part. When some Services change, the
//! passes run again only for Services that the change can affect:
//! - Services that changed, or whose previous addresses have changed since their last computation;
//! - Services whose result depends on others: they were refused because of another Service, or their address was
//!   chosen freely and other Services may now take precedence, or they have a sharing key and no Service to share
//!   with;
//! - every Service that owns an address that one of the above owned or requests and, if any pool has a quota, all
//!   Services in their namespaces.
//!
//! All other Services got addresses in the first two passes that no other Service requests. Their result doesn't depend
//! on the order of Services.
//!
//! Invariant: a new allocator with the same Services and previous addresses has the same result (tested over random
//! histories, here and in `reconcile`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{ObjectKey, Pool, Service};
use tidegate_model::shared_map::SharedMap;

use super::allocate::{Allocation, Footprint};
use super::usage::Users;
use super::{Allocations, Applicant, Authority, Granted, Holdings, OwnedAddress, PoolUsage, ReservedBy};
use crate::largest_first::LargestFirst;

/// If the previous addresses of at least this many Services have changed, checking whether that affects any result is
/// cheaper than recomputing these Services.
const STABILIZE_MIN: usize = 64;

/// The maximum number of removed Services whose addresses are remembered in case they return. If there are more, the
/// namespace with the most loses some.
const REMOVED_MAX: usize = 4096;

/// The addresses of all Services.
#[derive(Debug)]
pub struct Allocator {
    allocation: Allocation,
    /// Shared with a comparison in progress.
    granted: Arc<BTreeMap<ObjectKey, Granted>>,
    footprints: BTreeMap<ObjectKey, Footprint>,
    allocations: Arc<Allocations>,
    users: Users,
    /// Services whose result depends on others.
    dependent: BTreeSet<ObjectKey>,
    /// Services whose previous addresses have changed since their last computation.
    stale: BTreeSet<ObjectKey>,
}

impl Allocator {
    /// An allocator without Services. No Service gets one of the `reserved` addresses (of gateways, nodes, API servers
    /// and others), even if a pool contains it. A Service that already has one as its LoadBalancer address keeps it,
    /// unless it is this gateway's own address.
    #[must_use]
    pub fn new(pools: Vec<Pool>, reserved: BTreeMap<IpAddr, ReservedBy>, authority: Authority) -> Self {
        Self {
            allocation: Allocation::new(pools, reserved, authority),
            granted: Arc::default(),
            footprints: BTreeMap::new(),
            allocations: Arc::default(),
            users: Users::default(),
            dependent: BTreeSet::new(),
            stale: BTreeSet::new(),
        }
    }

    /// Adopts the addresses that another allocator assigned.
    #[must_use]
    pub fn resuming(mut self, allocations: &Arc<Allocations>) -> Self {
        self.allocations = Arc::clone(allocations);
        for (service, holdings) in &self.allocations.by_service {
            self.users.replace(service, &[], &holdings.addresses, &self.allocation.pools);
        }
        self
    }

    /// Assigns addresses again to the `changed` Services and to all Services that this affects. Returns the Services
    /// whose result changed, including new and removed ones.
    ///
    /// `applicant` returns the requests of a Service, given its remembered addresses, or `None` if it doesn't take
    /// part. For Services that are not in `changed`, it must return the same requests as before, except for the
    /// previous addresses.
    pub fn update<'a>(
        &mut self,
        changed: impl IntoIterator<Item = ObjectKey>,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) -> Vec<ObjectKey> {
        let mut again: BTreeSet<ObjectKey> = changed.into_iter().collect();
        again.append(&mut self.stale);
        if again.is_empty() {
            return Vec::new();
        }
        again.extend(self.dependent.iter().cloned());
        let again = self.with_affected(again, &applicant);
        let mut before: BTreeMap<ObjectKey, Option<Granted>> = BTreeMap::new();
        let mut computations: Vec<Computation<'a>> = Vec::with_capacity(again.len());
        let mut removed = BTreeSet::new();
        for (key, applicant) in again {
            if let Some(footprint) = self.footprints.remove(&key) {
                self.allocation.forget(&key, &footprint);
            }
            self.dependent.remove(&key);
            before.insert(key.clone(), Arc::make_mut(&mut self.granted).remove(&key));
            match applicant {
                Some(applicant) => computations.push(Computation::new(applicant)),
                None if self.remove(&key) => drop(removed.insert(key)),
                None => {}
            }
        }
        if self.allocations.of_removed.len() > REMOVED_MAX {
            forget_surplus(&mut Arc::make_mut(&mut self.allocations).of_removed);
        }
        self.pass_all(&mut computations, &|key| applicant(key, None).map(|applicant| applicant.service));
        let mut gained = BTreeSet::new();
        for Computation { applicant, granted, footprint } in computations {
            let key = applicant.key();
            let owned = granted.owned(&applicant).into_iter().chain(footprint.releasing.iter().cloned());
            gained.extend(self.remember(key, &applicant.service.meta.uid, owned.collect()));
            if footprint.is_dependent {
                self.dependent.insert(key.clone());
            }
            self.footprints.insert(key.clone(), footprint);
            Arc::make_mut(&mut self.granted).insert(key.clone(), granted);
        }
        self.forget_addresses_of_others(&removed, &gained);
        let differs = |(key, was): &(ObjectKey, Option<Granted>)| self.granted.get(key) != was.as_ref();
        before.into_iter().filter(differs).map(|(key, _)| key).collect()
    }

    /// `services` and all Services that they affect, each with its current requests.
    fn with_affected<'a>(
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
                let removed = self.allocations.of_removed.get(&key);
                let removed = removed.filter(|removed| removed.are_of(&applicant.service.meta.uid));
                applicant.previous.before_removal =
                    removed.into_iter().flat_map(Holdings::load_balancer).collect();
            }
            let owned = self.footprints.get(&key).into_iter().flat_map(|footprint| &footprint.claims);
            let named = applicant.iter().flat_map(Applicant::addresses);
            for ip in owned.copied().chain(named) {
                let others = self.allocation.ledger.owners(ip).filter(|owner| !found.contains_key(*owner));
                left.extend(others.filter(|owner| **owner != key).cloned());
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

    fn pass_all<'a>(
        &mut self,
        computations: &mut [Computation<'a>],
        service: &dyn Fn(&ObjectKey) -> Option<&'a Service>,
    ) {
        computations.sort_by(|a, b| {
            let [a, b] = [a, b].map(|run_step| &run_step.applicant.service.meta);
            a.seniority().cmp(&b.seniority())
        });
        for Computation { applicant, granted, footprint } in &mut *computations {
            self.allocation.run_step(footprint, |allocation| allocation.keep_known(applicant, granted));
        }
        for Computation { applicant, granted, footprint } in &mut *computations {
            self.allocation.run_step(footprint, |allocation| {
                allocation.keep_rest(applicant, granted);
                allocation.reserve_lost(applicant, granted);
            });
        }
        for Computation { applicant, granted, footprint } in &mut *computations {
            self.allocation.run_step(footprint, |allocation| {
                allocation.extend(applicant, granted);
                allocation.authorise_external(applicant, granted);
                allocation.grant_requested(applicant, granted);
            });
        }
        for Computation { applicant, granted, footprint } in &mut *computations {
            self.allocation.run_step(footprint, |allocation| allocation.choose(applicant, granted));
        }
        for Computation { applicant, granted, footprint } in &mut *computations {
            if applicant.service.added_ports > 0 {
                self.allocation.run_step(footprint, |allocation| allocation.extend(applicant, granted));
            }
        }
        for Computation { applicant, granted, footprint } in computations {
            self.allocation
                .run_step(footprint, |allocation| allocation.note_unshared(applicant, granted, service));
        }
    }

    /// Forgets addresses of removed Services that another Service owns now: addresses of the newly `removed` Services
    /// that are in use, and all that were `gained`. Only the last owner of an address may get it back while other
    /// gateways still serve it.
    fn forget_addresses_of_others(&mut self, removed: &BTreeSet<ObjectKey>, gained: &BTreeSet<IpAddr>) {
        if removed.is_empty() && gained.is_empty() {
            return;
        }
        let ledger = &self.allocation.ledger;
        let is_lost = |service: &ObjectKey, owned: &OwnedAddress| {
            gained.contains(&owned.address) || removed.contains(service) && ledger.is_owned(owned.address)
        };
        let all = self.allocations.of_removed.iter();
        let lost =
            all.filter(|(service, holdings)| holdings.addresses.iter().any(|owned| is_lost(service, owned)));
        let rest: Vec<(ObjectKey, Holdings)> = lost
            .map(|(service, holdings)| {
                let kept = holdings.addresses.iter().filter(|owned| !is_lost(service, owned)).cloned();
                (service.clone(), Holdings { addresses: kept.collect(), ..holdings.clone() })
            })
            .collect();
        if rest.is_empty() {
            return;
        }
        let allocations = Arc::make_mut(&mut self.allocations);
        for (service, holdings) in rest {
            match holdings.addresses.is_empty() {
                true => drop(allocations.of_removed.remove(&service)),
                false => drop(allocations.of_removed.insert(service, holdings)),
            }
        }
    }

    /// Records the current addresses of a Service. Returns the addresses that it did not have before.
    fn remember(&mut self, service: &ObjectKey, uid: &str, owned: Vec<OwnedAddress>) -> Vec<IpAddr> {
        let known = self.allocations.by_service.get(service);
        let before = known.map_or(&[][..], |known| &known.addresses);
        let now = Holdings::new(uid, owned);
        let addresses = now.addresses.iter().map(|owned| owned.address);
        let gained = addresses.filter(|ip| before.iter().all(|owned| owned.address != *ip)).collect();
        self.users.replace(service, before, &now.addresses, &self.allocation.pools);
        let returns = !now.addresses.is_empty() && self.allocations.of_removed.contains_key(service);
        let is_same = known.map_or(now.addresses.is_empty(), |known| *known == now);
        if is_same && !returns {
            return gained;
        }
        let allocations = Arc::make_mut(&mut self.allocations);
        if returns {
            allocations.of_removed.remove(service);
        }
        if now.addresses.is_empty() {
            allocations.by_service.remove(service);
        } else {
            allocations.by_service.insert(service.clone(), now);
        }
        self.stale.insert(service.clone());
        gained
    }

    /// Removes a Service that no longer takes part. Returns whether it had addresses.
    fn remove(&mut self, service: &ObjectKey) -> bool {
        let Some(holdings) = self.allocations.by_service.get(service).cloned() else { return false };
        self.users.replace(service, &holdings.addresses, &[], &self.allocation.pools);
        let allocations = Arc::make_mut(&mut self.allocations);
        allocations.by_service.remove(service);
        allocations.of_removed.insert(service.clone(), holdings);
        self.stale.insert(service.clone());
        true
    }

    /// If the previous addresses of many Services have changed since their last computation, checks whether that
    /// affects any result. If not, no Service is recomputed. For `applicant`, see [`Self::update`].
    pub fn stabilize<'a>(
        &mut self,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) {
        if self.stale.len() >= STABILIZE_MIN {
            self.stabilize_all(applicant);
        }
    }

    pub(super) fn stabilize_all<'a>(
        &mut self,
        applicant: impl Fn(&ObjectKey, Option<&Holdings>) -> Option<Applicant<'a>>,
    ) {
        let Allocation { pools, reserved, .. } = &self.allocation;
        let authority = self.allocation.authority();
        let second = Self::new(pools.clone(), reserved.clone(), authority.clone());
        let mut second = second.resuming(&self.allocations);
        let services: Vec<ObjectKey> = self.granted.keys().cloned().collect();
        second.update(services, applicant);
        let same = second.stale.is_empty() && second.granted == self.granted;
        if same && second.usage() == self.usage() {
            *self = second;
        }
    }

    /// Sets the addresses that no Service may get. Returns the Services that may be affected, for [`Self::update`].
    pub fn reserve(&mut self, reserved: BTreeMap<IpAddr, ReservedBy>) -> Vec<ObjectKey> {
        let was = &self.allocation.reserved;
        if *was == reserved {
            return Vec::new();
        }
        let gone = was.iter().filter(|(ip, owner)| reserved.get(*ip) != Some(*owner));
        let new = reserved.iter().filter(|(ip, owner)| was.get(*ip) != Some(*owner));
        let owners = gone.chain(new).flat_map(|(ip, _)| self.allocation.ledger.owners(*ip));
        let touched = owners.chain(&self.dependent).cloned().collect();
        self.allocation.reserve(reserved);
        touched
    }

    /// Sets the addresses that other gateways still serve. Returns the Services that may be affected, for
    /// [`Self::update`], or `None` if another gateway decides now, which affects all Services.
    pub fn set_authority(&mut self, authority: &Authority) -> Option<Vec<ObjectKey>> {
        if *self.allocation.authority() == *authority {
            return Some(Vec::new());
        }
        let decides = |authority: &Authority| matches!(authority, Authority::Decides { .. });
        (decides(self.allocation.authority()) && decides(authority)).then(|| {
            self.allocation.set_authority(authority.clone());
            self.dependent.iter().cloned().collect()
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

    /// The current addresses of all Services, for [`adopted`](super::adopted()) in the next call. The value is shared
    /// as long as nothing changes.
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

/// Forgets removed Services until [`REMOVED_MAX`] are left, repeatedly one from the namespace with the most.
fn forget_surplus(removed: &mut SharedMap<ObjectKey, Holdings>) {
    let surplus = removed.len().saturating_sub(REMOVED_MAX);
    let all: Vec<_> = removed.keys().map(|key| (key.namespace.clone(), 1, key.clone())).collect();
    LargestFirst::new(all).take(surplus).for_each(|key| drop(removed.remove(&key)));
}

#[cfg(test)]
impl Allocator {
    pub(super) fn searches(&self) -> usize {
        self.allocation.searches.get()
    }
}

/// A Service whose addresses are being computed.
struct Computation<'a> {
    applicant: Applicant<'a>,
    granted: Granted,
    footprint: Footprint,
}

impl<'a> Computation<'a> {
    fn new(applicant: Applicant<'a>) -> Self {
        Self { applicant, granted: Granted::default(), footprint: Footprint::default() }
    }
}
