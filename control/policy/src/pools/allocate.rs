//! Assigns addresses to Services in three passes.
//!
//! 1. Each Service keeps what it has: from the last call, otherwise from its own status (`keep`).
//! 2. New ports on kept addresses, external IPs and requested addresses (`tidegate.dev/load-balancer-ips`,
//!    `spec.loadBalancerIP`).
//! 3. An address chosen from a pool for every Service that still lacks one.
//!
//! So a chosen address never blocks a requested one, unless it was assigned before the request was made.
//! [`Allocator`](super::Allocator) decides which Services take part, and in which order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::{IpFamily, IpFamilyPolicy, Labels, ObjectKey, Pool, Service};

use super::{
    Assigned, Authority, Claim, ClaimKind, Had, Held, Holder, Ledger, PoolUsage, PoolWish, PortKey, Problem,
    ProblemKind, Problems, Span, Taken,
};

/// A Service that requests addresses, with its annotations about them.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// The Service. Its `external_ips` are always requested.
    pub service: &'a Service,
    /// Labels of its namespace.
    pub namespace_labels: Labels,
    /// Whether this gateway gives it LoadBalancer addresses.
    pub wants_load_balancer: bool,
    /// It had addresses and releases them. No Service gets them until every gateway has withdrawn them.
    pub leaving: bool,
    /// Addresses that it requests, each with the path of its field.
    pub requested: Vec<(IpAddr, String)>,
    /// The only pools that it accepts addresses from.
    pub pool: Option<PoolWish>,
    /// `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<String>,
    /// Its earlier addresses, from the memory of this gateway or from its own status: see
    /// [`adopted`](super::adopted()).
    pub had: Had,
}

impl Granted {
    /// The addresses that the applicant holds by this grant.
    pub(super) fn held(&self, applicant: &Applicant<'_>) -> Vec<Held> {
        let wish = applicant.pool.as_ref().map(|wish| &wish.wanted);
        let held = |assigned: &Assigned, kind, mut ports: Vec<PortKey>| {
            ports.sort_unstable();
            Held {
                address: assigned.address,
                kind,
                pool: assigned.pool.clone(),
                ports: Some(ports),
                sharing_key: applicant.sharing_key.clone(),
                wish: wish.cloned(),
            }
        };
        let load_balancer = self.load_balancer.iter().map(|assigned| {
            let is_own = |port: &PortKey| !self.contested.contains(&(assigned.address, *port));
            let own = applicant.ports().into_iter().filter(is_own).collect();
            held(assigned, ClaimKind::LoadBalancer, own)
        });
        let external = self.external.iter().filter(|(_, ports)| !ports.is_empty());
        let external = external.map(|(assigned, ports)| held(assigned, ClaimKind::ExternalIp, ports.clone()));
        load_balancer.chain(external).collect()
    }
}

impl<'a> Applicant<'a> {
    pub(super) fn key(&self) -> &'a ObjectKey {
        &self.service.meta.key
    }

    /// Addresses that it had or requests.
    pub(super) fn names(&self) -> impl Iterator<Item = IpAddr> {
        let requested = self.requested.iter().map(|(ip, _)| *ip);
        let service = self.service;
        let written = service.ingress_ips.iter().chain(&service.external_ips).copied();
        self.had.all().map(|held| held.address).chain(requested).chain(written)
    }

    pub(super) fn ports(&self) -> Vec<PortKey> {
        self.service.ports.iter().map(|p| (p.protocol, p.port.get())).collect()
    }
}

/// The result for a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// Its LoadBalancer addresses, at most one of each family, IPv4 first.
    pub load_balancer: Vec<Assigned>,
    /// External IPs that it may use, each with the ports that it owns there.
    pub external: Vec<(Assigned, Vec<PortKey>)>,
    /// Ports of its LoadBalancer addresses that another Service owns there.
    pub contested: BTreeSet<(IpAddr, PortKey)>,
    /// Why it has to wait for an address, if it does.
    pub pending: Option<String>,
    /// Its requests that were not granted.
    pub problems: Problems,
}

/// The claims of all Services, while they are given addresses one after another.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) pools: Vec<Pool>,
    /// For each pool, IPv4 then IPv6.
    pub(super) spans: Vec<[Span; 2]>,
    pub(super) reserved: BTreeMap<IpAddr, Holder>,
    pub(super) ledger: Ledger,
    /// The number of addresses of a pool that a namespace holds.
    held: BTreeMap<(usize, String), u32>,
    authority: Authority,
    /// Pools and families without a free address, until one may be free again. Otherwise each of thousands of Services
    /// that wait for a full pool would search the whole pool at every change of any Service.
    full: RefCell<BTreeSet<(usize, IpFamily)>>,
    /// The number of searches of a pool.
    #[cfg(test)]
    pub(super) searches: Cell<usize>,
    /// In the order of the pools.
    usage: Vec<PoolUsage>,
    /// The footprint of the current Service.
    pub(super) footprint: Footprint,
    /// Whether its result depends on what other Services hold, or may hold later.
    hangs: Cell<bool>,
}

/// The traces of a Service in an [`Allocation`].
#[derive(Debug, Default)]
pub(super) struct Footprint {
    /// Addresses that it claimed.
    pub(super) claims: BTreeSet<IpAddr>,
    /// The pools in which its addresses count for its namespace, once for each such address.
    counted: Vec<usize>,
    /// The addresses that it releases.
    pub(super) leaving: Vec<Held>,
    /// Whether other Services may change its result without touching an address that it claimed.
    pub(super) hangs: bool,
}

impl Allocation {
    pub(super) fn new(pools: Vec<Pool>, reserved: BTreeMap<IpAddr, Holder>, authority: Authority) -> Self {
        let spans: Vec<[Span; 2]> =
            pools.iter().map(|p| [Span::of(p, IpFamily::V4), Span::of(p, IpFamily::V6)]).collect();
        let usage = |(pool, spans): (&Pool, &[Span; 2])| PoolUsage {
            pool: pool.name.clone(),
            ranges: pool.ranges.clone(),
            total: spans.iter().fold(0, |n, s| n.saturating_add(s.size())),
            reserved: reserved_in(pool, &reserved),
            disabled: pool.disabled,
            gateway_selector: pool.gateway_selector.clone(),
            announce: pool.announce,
            routes: pool.routes.clone(),
            ..PoolUsage::default()
        };
        let usage = pools.iter().zip(&spans).map(usage).collect();
        Self {
            pools,
            spans,
            reserved,
            ledger: Ledger::default(),
            held: BTreeMap::new(),
            authority,
            full: RefCell::default(),
            #[cfg(test)]
            searches: Cell::default(),
            usage,
            footprint: Footprint::default(),
            hangs: Cell::new(false),
        }
    }

    /// Performs one step for one applicant.
    pub(super) fn turn(&mut self, footprint: &mut Footprint, step: impl FnOnce(&mut Self)) {
        std::mem::swap(&mut self.footprint, footprint);
        self.hangs.set(false);
        step(self);
        self.footprint.hangs |= self.hangs.get();
        std::mem::swap(&mut self.footprint, footprint);
    }

    /// Removes all traces of a Service.
    pub(super) fn forget(&mut self, service: &ObjectKey, footprint: &Footprint) {
        for ip in &footprint.claims {
            self.ledger.release(*ip, service);
            if !self.ledger.is_held(*ip) {
                self.full.get_mut().clear();
                self.count(*ip, |assigned| assigned - 1);
            }
        }
        for pool in &footprint.counted {
            let held = self.held.get_mut(&(*pool, service.namespace.clone()));
            *held.expect("it was counted when it was given") -= 1;
        }
    }

    /// Sets the addresses that no Service may have.
    pub(super) fn reserve(&mut self, reserved: BTreeMap<IpAddr, Holder>) {
        self.reserved = reserved;
        self.full.get_mut().clear();
        for (usage, pool) in self.usage.iter_mut().zip(&self.pools) {
            usage.reserved = reserved_in(pool, &self.reserved);
        }
    }

    /// Which gateway decides, and which addresses other gateways still serve.
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Sets the authority.
    pub(super) fn set_authority(&mut self, authority: Authority) {
        self.authority = authority;
        self.full.get_mut().clear();
    }

    /// Whether the last search of this pool and family found no free address, and none has become free since.
    pub(super) fn is_known_full(&self, pool: usize, family: IpFamily) -> bool {
        self.full.borrow().contains(&(pool, family))
    }

    /// Records that no address of this pool and family is free.
    pub(super) fn found_full(&self, pool: usize, family: IpFamily) {
        self.full.borrow_mut().insert((pool, family));
    }

    /// The usage of the pools.
    pub(super) fn usage(&self) -> &[PoolUsage] {
        &self.usage
    }

    fn count(&mut self, ip: IpAddr, by: impl FnOnce(u128) -> u128) {
        if let Some(at) = self.pools.iter().position(|pool| pool.contains(ip)) {
            self.usage[at].assigned = by(self.usage[at].assigned);
        }
    }

    /// Records that the result of the applicant depends on what others hold.
    pub(super) fn hangs(&self) {
        self.hangs.set(true);
    }

    /// Grants a claim, if nothing is in its way.
    pub(super) fn take(&mut self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), Taken> {
        let is_new = !self.ledger.is_held(ip);
        self.ledger.claim(ip, claim).inspect_err(|_| self.hangs.set(true))?;
        self.footprint.claims.insert(ip);
        if is_new {
            self.count(ip, |assigned| assigned + 1);
        }
        Ok(())
    }

    /// With RequireDualStack, a Service with one refused family gets no address: the other one is hidden. The ledger
    /// keeps its claim, so no other Service gets it while this one waits.
    pub(super) fn all_or_nothing(&self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let both = applicant.service.ip_family_policy == IpFamilyPolicy::RequireDualStack;
        if both && granted.pending.is_some() {
            granted.load_balancer.clear();
        }
    }

    pub(super) fn give(&mut self, applicant: &Applicant<'_>, granted: &mut Granted, pool: usize, ip: IpAddr) {
        let is_counted = self.ledger.namespace_holds(&applicant.key().namespace, ip);
        let ports = applicant.ports();
        let claim = self.claim(pool, applicant, &ports);
        self.take(ip, &claim).expect("each address is given after `admits` or while nobody holds it");
        self.count_for_namespace(applicant, Some(pool), is_counted);
        granted.load_balancer.push(Assigned { address: ip, pool: self.pools[pool].name.clone() });
        granted.load_balancer.sort_unstable();
    }

    /// Counts an address for the quota of the applicant's namespace, unless it was already counted for another of its
    /// Services.
    pub(super) fn count_for_namespace(
        &mut self,
        applicant: &Applicant<'_>,
        pool: Option<usize>,
        is_counted: bool,
    ) {
        let Some(pool) = pool.filter(|_| !is_counted) else { return };
        *self.held.entry((pool, applicant.key().namespace.clone())).or_default() += 1;
        self.footprint.counted.push(pool);
    }

    pub(super) fn admits(&self, pool: usize, ip: IpAddr, applicant: &Applicant<'_>) -> Result<(), Taken> {
        let ports = applicant.ports();
        self.ledger.admits(ip, &self.claim(pool, applicant, &ports)).inspect_err(|_| self.hangs())
    }

    pub(super) fn claim<'a>(
        &self,
        pool: usize,
        applicant: &'a Applicant<'_>,
        ports: &'a [PortKey],
    ) -> Claim<'a> {
        Claim {
            service: applicant.key(),
            kind: ClaimKind::LoadBalancer,
            ports,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: self.pools[pool].shared_across_namespaces,
        }
    }

    /// Whether another gateway still serves the address for another Service that released it, or it waits for a Service
    /// whose manifest has an error. A Service that returns may have its own address back at once.
    pub(super) fn is_withheld(&self, applicant: &Applicant<'_>, ip: IpAddr) -> bool {
        let withheld = matches!(&self.authority, Authority::Decides { withheld } if withheld.contains(&ip));
        let withheld = withheld && !applicant.had.last.contains(&ip);
        if withheld {
            self.hangs();
        }
        withheld
    }

    pub(super) fn withheld_count(&self) -> usize {
        match &self.authority {
            Authority::Decides { withheld } => withheld.len(),
            Authority::Waits | Authority::Follows => 0,
        }
    }

    /// The pools that the applicant may hold addresses from, disabled ones included.
    pub(super) fn usable_pools(&self, applicant: &Applicant<'_>) -> impl Iterator<Item = usize> {
        (0..self.pools.len()).filter(|at| {
            let pool = &self.pools[*at];
            applicant.pool.as_ref().is_none_or(|wish| wish.wanted.is(pool))
                && pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels)
        })
    }

    /// Whether one more address would exceed the quota of the applicant's namespace.
    pub(super) fn over_quota(
        &self,
        pool: usize,
        applicant: &Applicant<'_>,
        ip: IpAddr,
        chosen: &[(usize, IpAddr)],
    ) -> bool {
        self.pools[pool].quota_per_namespace.is_some()
            && !self.ledger.namespace_holds(&applicant.key().namespace, ip)
            && self.over_quota_by_any(pool, applicant, chosen)
    }

    /// Whether one more address for the applicant's namespace would exceed the quota of the pool, whichever address it
    /// is.
    pub(super) fn over_quota_by_any(
        &self,
        pool: usize,
        applicant: &Applicant<'_>,
        chosen: &[(usize, IpAddr)],
    ) -> bool {
        let Some(quota) = self.pools[pool].quota_per_namespace else { return false };
        let namespace = &applicant.key().namespace;
        let held = self.held.get(&(pool, namespace.clone())).copied().unwrap_or(0) as usize;
        let chosen = chosen.iter().filter(|(at, _)| *at == pool).count();
        let over = held + chosen >= quota as usize;
        if over {
            self.hangs();
        }
        over
    }

    pub(super) fn quota_reached(&self, pool: usize, applicant: &Applicant<'_>) -> String {
        let Pool { name, quota_per_namespace, .. } = &self.pools[pool];
        let quota = quota_per_namespace.unwrap_or(u32::MAX);
        format!("namespace {} holds its quota of {quota} in pool {name}", applicant.key().namespace)
    }

    /// The families that the Service should have: those in its spec, otherwise those of the addresses that it requests,
    /// otherwise those that the pools have, IPv4 first.
    pub(super) fn families(&self, applicant: &Applicant<'_>) -> Vec<IpFamily> {
        let service = applicant.service;
        if service.ip_family_policy != IpFamilyPolicy::SingleStack {
            return only_family(applicant)
                .map_or_else(|| vec![IpFamily::V4, IpFamily::V6], |only| vec![only]);
        }
        if let Some(first) = service.ip_families.first() {
            return vec![*first];
        }
        let named = applicant.requested.iter().map(|(ip, _)| *ip).chain(service.cluster_ips.iter().copied());
        // Addresses that it has stay, whatever happens to the pools.
        let kept = applicant.had.all().filter(|held| held.kind == ClaimKind::LoadBalancer);
        let kept = kept.filter(|held| self.pool_of_held(applicant, held).is_some()).map(|held| held.address);
        let mut named = named.chain(kept);
        if let Some(ip) = named.next() {
            return vec![IpFamily::of(ip)];
        }
        let usable: Vec<usize> = self.usable_pools(applicant).collect();
        let has = |family: &IpFamily| usable.iter().any(|at| self.pools[*at].has_family(*family));
        vec![[IpFamily::V4, IpFamily::V6].into_iter().find(has).unwrap_or(IpFamily::V4)]
    }
}

/// The family of a Service that prefers two in a cluster that has one: a cluster with two lists both, and gives a cluster IP
/// of each. Addresses that the Service requests or has keep their family.
fn only_family(applicant: &Applicant<'_>) -> Option<IpFamily> {
    let service = applicant.service;
    let [family] = service.ip_families[..] else { return None };
    let prefers_two = service.ip_family_policy == IpFamilyPolicy::PreferDualStack;
    let requested = applicant.requested.iter().map(|(ip, _)| *ip);
    let mut named = requested.chain(applicant.had.load_balancer());
    let is_single = prefers_two && service.cluster_ips.len() == 1;
    (is_single && named.all(|ip| IpFamily::of(ip) == family)).then_some(family)
}

fn reserved_in(pool: &Pool, reserved: &BTreeMap<IpAddr, Holder>) -> u128 {
    reserved.keys().filter(|ip| pool.contains(**ip)).count() as u128
}

pub(super) fn failed(field: String, what: String, accepted: Option<String>) -> Problem {
    Problem { kind: ProblemKind::AllocationFailed, severity: Severity::Error, field, what, accepted }
}

pub(super) fn describe(pool: &Pool) -> String {
    let ranges: Vec<String> = pool.ranges.iter().map(ToString::to_string).collect();
    format!("{} ({})", pool.name, ranges.join(", "))
}
