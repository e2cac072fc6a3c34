//! Assigns addresses to Services in four passes.
//!
//! 1. Each Service keeps the addresses that it has: the addresses of the previous call, otherwise the addresses in its
//!    status (`keep`).
//! 2. New ports on kept addresses, external IPs and requested addresses (`tidegate.dev/load-balancer-ips`,
//!    `spec.loadBalancerIP`).
//! 3. An address chosen from a pool for every Service that still lacks one.
//! 4. The ports that ListenerSets add to a Gateway, on its new addresses.
//!
//! So a chosen address never blocks a requested one, unless it was assigned before the request was made.
//! [`Allocator`](super::Allocator) decides which Services take part, and in which order.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::{IpFamily, IpFamilyPolicy, Labels, ObjectKey, Pool, Service};

use super::{
    Assigned, Authority, Claim, ClaimConflict, ClaimKind, Ledger, OwnedAddress, PoolRequest, PoolUsage,
    PortKey, PreviousAddresses, Problem, ProblemKind, Problems, ReservedBy, Span,
};

/// A Service and what it requests of the pools.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// The Service. Its `external_ips` are always requested.
    pub service: &'a Service,
    /// Labels of its namespace.
    pub namespace_labels: Labels,
    /// Whether this gateway assigns LoadBalancer addresses to it.
    pub wants_load_balancer: bool,
    /// Whether it is releasing its addresses. No other Service gets them until every gateway has withdrawn them.
    pub releasing: bool,
    /// The addresses that it requests, each with the path of its field.
    pub requested: Vec<(IpAddr, String)>,
    /// The only pools that it accepts addresses from.
    pub pool: Option<PoolRequest>,
    /// `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<String>,
    /// Its previous addresses, from the memory of this gateway or from its own status: see
    /// [`adopted`](super::adopted()).
    pub previous: PreviousAddresses,
}

impl Granted {
    /// The addresses that the applicant owns if it gets this grant.
    pub(super) fn owned(&self, applicant: &Applicant<'_>) -> Vec<OwnedAddress> {
        let request = applicant.pool.as_ref().map(|request| &request.wanted);
        let owned = |assigned: &Assigned, kind, mut ports: Vec<PortKey>| {
            ports.sort_unstable();
            OwnedAddress {
                address: assigned.address,
                kind,
                pool: assigned.pool.clone(),
                ports: Some(ports),
                sharing_key: applicant.sharing_key.clone(),
                requested_pool: request.cloned(),
            }
        };
        let load_balancer = self.load_balancer.iter().map(|assigned| {
            let is_own = |port: &PortKey| !self.contested.contains(&(assigned.address, *port));
            let own = applicant.ports().into_iter().filter(is_own).collect();
            owned(assigned, ClaimKind::LoadBalancer, own)
        });
        let external = self.external.iter().filter(|(_, ports)| !ports.is_empty());
        let external =
            external.map(|(assigned, ports)| owned(assigned, ClaimKind::ExternalIp, ports.clone()));
        load_balancer.chain(external).collect()
    }
}

impl<'a> Applicant<'a> {
    pub(super) fn key(&self) -> &'a ObjectKey {
        &self.service.meta.key
    }

    /// The addresses that it had or requests.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let requested = self.requested.iter().map(|(ip, _)| *ip);
        let service = self.service;
        let written = service.ingress_ips.iter().chain(&service.external_ips).copied();
        self.previous.all().map(|owned| owned.address).chain(requested).chain(written)
    }

    pub(super) fn ports(&self) -> Vec<PortKey> {
        self.service.ports.iter().map(|p| (p.protocol, p.port.get())).collect()
    }

    /// Its ports without those that ListenerSets add to a Gateway. A new address must have them free.
    pub(super) fn own_ports(&self) -> Vec<PortKey> {
        let mut ports = self.ports();
        ports.truncate(ports.len().saturating_sub(self.service.added_ports));
        ports
    }
}

/// The addresses and ports that a Service gets, and the requests that were refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// Its LoadBalancer addresses, at most one of each family, IPv4 first.
    pub load_balancer: Vec<Assigned>,
    /// External IPs that it may use, each with the ports that it owns there.
    pub external: Vec<(Assigned, Vec<PortKey>)>,
    /// Its ports that another Service owns on one of its LoadBalancer addresses.
    pub contested: BTreeSet<(IpAddr, PortKey)>,
    /// Why it has to wait for an address, if it does.
    pub pending: Option<String>,
    /// Its requests that were not granted.
    pub problems: Problems,
}

/// The state of the assignment: all claims, and the usage of the pools.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) pools: Vec<Pool>,
    /// For each pool, the spans for IPv4 and IPv6.
    pub(super) spans: Vec<[Span; 2]>,
    pub(super) reserved: BTreeMap<IpAddr, ReservedBy>,
    pub(super) ledger: Ledger,
    /// For each pool and namespace, the number of addresses in use.
    owned_counts: BTreeMap<(usize, String), u32>,
    authority: Authority,
    /// Pools and families without a free address. Cleared when an address may have become free. Without this cache,
    /// each of thousands of Services that wait for a full pool would search the whole pool whenever any Service
    /// changes.
    full: RefCell<BTreeSet<(usize, IpFamily)>>,
    #[cfg(test)]
    pub(super) searches: Cell<usize>,
    /// The usage of each pool, in the order of `pools`.
    usage: Vec<PoolUsage>,
    pub(super) footprint: Footprint,
    /// Whether the result depends on what other Services own, or may own later.
    is_dependent: Cell<bool>,
}

/// What a Service occupies in an [`Allocation`].
#[derive(Debug, Default)]
pub(super) struct Footprint {
    pub(super) claims: BTreeSet<IpAddr>,
    /// The pool of each of its addresses that counts towards its namespace's quota.
    counted: Vec<usize>,
    pub(super) releasing: Vec<OwnedAddress>,
    /// Whether other Services can change its result without touching an address that it claimed.
    pub(super) is_dependent: bool,
}

impl Allocation {
    pub(super) fn new(
        pools: Vec<Pool>,
        reserved: BTreeMap<IpAddr, ReservedBy>,
        authority: Authority,
    ) -> Self {
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
            owned_counts: BTreeMap::new(),
            authority,
            full: RefCell::default(),
            #[cfg(test)]
            searches: Cell::default(),
            usage,
            footprint: Footprint::default(),
            is_dependent: Cell::new(false),
        }
    }

    /// Runs one step for one applicant and adds its claims to `footprint`.
    pub(super) fn run_step(&mut self, footprint: &mut Footprint, step: impl FnOnce(&mut Self)) {
        std::mem::swap(&mut self.footprint, footprint);
        self.is_dependent.set(false);
        step(self);
        self.footprint.is_dependent |= self.is_dependent.get();
        std::mem::swap(&mut self.footprint, footprint);
    }

    /// Removes everything that a Service occupies.
    pub(super) fn forget(&mut self, service: &ObjectKey, footprint: &Footprint) {
        for ip in &footprint.claims {
            self.ledger.release(*ip, service);
            if !self.ledger.is_owned(*ip) {
                self.full.get_mut().clear();
                self.count(*ip, |assigned| assigned - 1);
            }
        }
        for pool in &footprint.counted {
            let owned = self.owned_counts.get_mut(&(*pool, service.namespace.clone()));
            *owned.expect("it was counted when it was given") -= 1;
        }
    }

    /// Sets the addresses that no Service may get.
    pub(super) fn reserve(&mut self, reserved: BTreeMap<IpAddr, ReservedBy>) {
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

    pub(super) fn usage(&self) -> &[PoolUsage] {
        &self.usage
    }

    fn count(&mut self, ip: IpAddr, by: impl FnOnce(u128) -> u128) {
        if let Some(at) = self.pools.iter().position(|pool| pool.contains(ip)) {
            self.usage[at].assigned = by(self.usage[at].assigned);
        }
    }

    /// Records that the result of the applicant depends on what others own.
    pub(super) fn mark_dependent(&self) {
        self.is_dependent.set(true);
    }

    /// Grants a claim, unless another claim conflicts with it.
    pub(super) fn try_claim(&mut self, ip: IpAddr, claim: &Claim<'_>) -> Result<(), ClaimConflict> {
        let is_new = !self.ledger.is_owned(ip);
        self.ledger.claim(ip, claim).inspect_err(|_| self.is_dependent.set(true))?;
        self.footprint.claims.insert(ip);
        if is_new {
            self.count(ip, |assigned| assigned + 1);
        }
        Ok(())
    }

    /// With RequireDualStack, a Service that lacks an address of one family gets no address at all. The ledger keeps
    /// the claim on the other family's address, so that no other Service gets it while this one waits.
    pub(super) fn all_or_nothing(&self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let both = applicant.service.ip_family_policy == IpFamilyPolicy::RequireDualStack;
        if both && granted.pending.is_some() {
            granted.load_balancer.clear();
        }
    }

    pub(super) fn assign(
        &mut self,
        applicant: &Applicant<'_>,
        granted: &mut Granted,
        pool: usize,
        ip: IpAddr,
    ) {
        let is_counted = self.ledger.namespace_owns(&applicant.key().namespace, ip);
        let ports = applicant.own_ports();
        let claim = self.claim(pool, applicant, &ports);
        self.try_claim(ip, &claim).expect("each address is given after `admits` or while no Service owns it");
        self.count_for_namespace(applicant, Some(pool), is_counted);
        granted.load_balancer.push(Assigned { address: ip, pool: self.pools[pool].name.clone() });
        granted.load_balancer.sort_unstable();
    }

    /// Counts an address towards the quota of the applicant's namespace, unless the namespace already owns the address.
    pub(super) fn count_for_namespace(
        &mut self,
        applicant: &Applicant<'_>,
        pool: Option<usize>,
        is_counted: bool,
    ) {
        let Some(pool) = pool.filter(|_| !is_counted) else { return };
        *self.owned_counts.entry((pool, applicant.key().namespace.clone())).or_default() += 1;
        self.footprint.counted.push(pool);
    }

    pub(super) fn admits(
        &self,
        pool: usize,
        ip: IpAddr,
        applicant: &Applicant<'_>,
    ) -> Result<(), ClaimConflict> {
        let ports = applicant.own_ports();
        self.ledger.admits(ip, &self.claim(pool, applicant, &ports)).inspect_err(|_| self.mark_dependent())
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

    /// Whether the address is reserved: another gateway still serves it for a Service that released it, or its
    /// Service has an error in its manifest. A Service that returns may get its own address back at once.
    pub(super) fn is_withheld(&self, applicant: &Applicant<'_>, ip: IpAddr) -> bool {
        let withheld = matches!(&self.authority, Authority::Decides { withheld } if withheld.contains(&ip));
        let withheld = withheld && !applicant.previous.before_removal.contains(&ip);
        if withheld {
            self.mark_dependent();
        }
        withheld
    }

    pub(super) fn withheld_count(&self) -> usize {
        match &self.authority {
            Authority::Decides { withheld } => withheld.len(),
            Authority::Waits | Authority::Unread | Authority::Follows => 0,
        }
    }

    /// The pools in which the applicant may own addresses, including disabled ones.
    pub(super) fn usable_pools(&self, applicant: &Applicant<'_>) -> impl Iterator<Item = usize> {
        (0..self.pools.len()).filter(|at| {
            let pool = &self.pools[*at];
            applicant.pool.as_ref().is_none_or(|request| request.wanted.is(pool))
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
            && !self.ledger.namespace_owns(&applicant.key().namespace, ip)
            && self.over_quota_by_any(pool, applicant, chosen)
    }

    /// Whether any additional address for the applicant's namespace would exceed the quota of the pool.
    pub(super) fn over_quota_by_any(
        &self,
        pool: usize,
        applicant: &Applicant<'_>,
        chosen: &[(usize, IpAddr)],
    ) -> bool {
        let Some(quota) = self.pools[pool].quota_per_namespace else { return false };
        let namespace = &applicant.key().namespace;
        let owned = self.owned_counts.get(&(pool, namespace.clone())).copied().unwrap_or(0) as usize;
        let chosen = chosen.iter().filter(|(at, _)| *at == pool).count();
        let over = owned + chosen >= quota as usize;
        if over {
            self.mark_dependent();
        }
        over
    }

    pub(super) fn quota_reached(&self, pool: usize, applicant: &Applicant<'_>) -> String {
        let Pool { name, quota_per_namespace, .. } = &self.pools[pool];
        let quota = quota_per_namespace.unwrap_or(u32::MAX);
        format!("namespace {} has reached its quota of {quota} in pool {name}", applicant.key().namespace)
    }

    /// The families that the Service should have: from its spec, otherwise from the addresses that it requests or has,
    /// otherwise from the pools. IPv4 comes first.
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
        // Previous addresses stay, whatever happens to the pools.
        let kept = applicant.previous.all().filter(|owned| owned.kind == ClaimKind::LoadBalancer);
        let kept =
            kept.filter(|owned| self.pool_of_owned(applicant, owned).is_some()).map(|owned| owned.address);
        let mut named = named.chain(kept);
        if let Some(ip) = named.next() {
            return vec![IpFamily::of(ip)];
        }
        let usable: Vec<usize> = self.usable_pools(applicant).collect();
        let has = |family: &IpFamily| usable.iter().any(|at| self.pools[*at].has_family(*family));
        vec![[IpFamily::V4, IpFamily::V6].into_iter().find(has).unwrap_or(IpFamily::V4)]
    }
}

/// The single family of a Service that prefers two families in a single-stack cluster. In a dual-stack cluster the
/// spec lists both families, and the Service has a cluster IP of each. Addresses that the Service requests or already
/// has keep their family.
fn only_family(applicant: &Applicant<'_>) -> Option<IpFamily> {
    let service = applicant.service;
    let [family] = service.ip_families[..] else { return None };
    let prefers_two = service.ip_family_policy == IpFamilyPolicy::PreferDualStack;
    let requested = applicant.requested.iter().map(|(ip, _)| *ip);
    let mut named = requested.chain(applicant.previous.load_balancer());
    let is_single = prefers_two && service.cluster_ips.len() == 1;
    (is_single && named.all(|ip| IpFamily::of(ip) == family)).then_some(family)
}

fn reserved_in(pool: &Pool, reserved: &BTreeMap<IpAddr, ReservedBy>) -> u128 {
    reserved.keys().filter(|ip| pool.contains(**ip)).count() as u128
}

pub(super) fn failed(field: String, what: String, accepted: Option<String>) -> Problem {
    Problem { kind: ProblemKind::AllocationFailed, severity: Severity::Error, field, what, accepted }
}

pub(super) fn describe(pool: &Pool) -> String {
    let ranges: Vec<String> = pool.ranges.iter().map(ToString::to_string).collect();
    format!("{} ({})", pool.name, ranges.join(", "))
}
