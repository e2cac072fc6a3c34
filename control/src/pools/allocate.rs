//! The three passes that give Services their addresses.
//!
//! 1. Who has an address that is still legal keeps it: from the last call, else from its own status.
//! 2. External IPs and requested addresses (`tidegate.dev/load-balancer-ips`, `spec.loadBalancerIP`).
//! 3. An address chosen from a pool for every Service that still lacks one.
//!
//! So a chosen address never stands in the way of a requested one, unless it was given out before the request
//! was made: first come keeps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{
    Allocations, Assigned, Authority, Claim, ClaimKind, Holder, Ledger, Pool, PoolWish, Problem, ProblemKind,
    Span, Taken,
};
use crate::diagnostic::Severity;
use crate::model::{IpFamily, IpFamilyPolicy, Labels, ObjectKey, Protocol, Service};

/// A Service that wants addresses, with what its annotations say about them.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// The Service; its `external_ips` are claims in any case.
    pub service: &'a Service,
    /// Labels of its namespace.
    pub namespace_labels: Labels,
    /// Whether it gets LoadBalancer addresses from us.
    pub wants_load_balancer: bool,
    /// It had addresses and gives them back: they are nobody's until every gateway has withdrawn them.
    pub leaving: bool,
    /// Addresses that it requests, each with the path of the field that says so.
    pub requested: Vec<(IpAddr, String)>,
    /// The only pools that it takes addresses from.
    pub pool: Option<PoolWish>,
    /// `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<String>,
}

impl Applicant<'_> {
    pub(super) fn key(&self) -> &ObjectKey {
        &self.service.meta.key
    }

    pub(super) fn ports(&self) -> Vec<(Protocol, u16)> {
        self.service.ports.iter().map(|p| (p.protocol, p.port.get())).collect()
    }
}

/// What a Service got.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// Its LoadBalancer addresses, one a family at most, IPv4 first.
    pub load_balancer: Vec<Assigned>,
    /// External IPs that it may use, each with the ports that are its own there.
    pub external: Vec<(Assigned, Vec<(Protocol, u16)>)>,
    /// Why it waits for an address, if it does.
    pub pending: Option<String>,
    /// What it asked for and did not get.
    pub problems: Vec<Problem>,
}

/// How full a pool is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUsage {
    /// The pool's name.
    pub pool: String,
    /// Addresses that it has, of both families.
    pub total: u128,
    /// Addresses held by Services.
    pub assigned: u128,
    /// Addresses never given out because they are the gateway's own.
    pub reserved: u128,
    /// Whether it is being emptied.
    pub disabled: bool,
}

impl PoolUsage {
    /// Addresses that can still be given out.
    #[must_use]
    pub fn free(&self) -> u128 {
        self.total.saturating_sub(self.assigned).saturating_sub(self.reserved)
    }
}

/// The result of [`allocate`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// By Service; one entry for each applicant.
    pub granted: BTreeMap<ObjectKey, Granted>,
    /// What to pass in next time.
    pub allocations: Allocations,
    /// In the order of the pools.
    pub usage: Vec<PoolUsage>,
}

/// Gives every applicant what it may have.
///
/// `reserved` are addresses of the gateway itself, of nodes and of API servers: nobody gets them, whatever pools and
/// Services say; only what was given before it became a node's stays. `previous` is
/// what they had, as [`adopt`](super::adopt()) has it.
#[must_use]
pub fn allocate(
    pools: &[Pool],
    reserved: &BTreeMap<IpAddr, Holder>,
    applicants: &[Applicant<'_>],
    previous: &Allocations,
    authority: &Authority,
) -> Allocated {
    let mut order: Vec<&Applicant<'_>> = applicants.iter().collect();
    order.sort_by(|a, b| a.service.meta.seniority().cmp(&b.service.meta.seniority()));
    let mut allocation = Allocation::new(pools, reserved, authority);
    let mut granted: BTreeMap<ObjectKey, Granted> =
        applicants.iter().map(|a| (a.key().clone(), Granted::default())).collect();
    let mut pass = |step: &mut dyn FnMut(&Applicant<'_>, &mut Granted)| {
        for applicant in &order {
            step(applicant, granted.get_mut(applicant.key()).expect("an entry was made for each applicant"));
        }
    };
    pass(&mut |applicant, granted| allocation.keep(applicant, previous, granted));
    pass(&mut |applicant, granted| {
        allocation.authorise_external(applicant, granted);
        allocation.grant_requested(applicant, granted);
    });
    pass(&mut |applicant, granted| allocation.choose(applicant, granted));

    let usage = allocation.usage();
    let held = granted.iter().filter(|(_, g)| !g.load_balancer.is_empty());
    let held = held.map(|(key, g)| (key.clone(), g.load_balancer.clone()));
    let by_service = held.chain(allocation.leaving).collect();
    Allocated { granted, allocations: Allocations { by_service }, usage }
}

pub(super) struct Allocation<'p> {
    pub(super) pools: &'p [Pool],
    /// Per pool, IPv4 then IPv6.
    pub(super) spans: Vec<[Span; 2]>,
    pub(super) reserved: &'p BTreeMap<IpAddr, Holder>,
    pub(super) ledger: Ledger,
    /// Addresses that a namespace holds in a pool.
    held: BTreeMap<(usize, String), u32>,
    pub(super) authority: &'p Authority,
    /// Addresses of Services that give them back.
    leaving: BTreeMap<ObjectKey, Vec<Assigned>>,
}

impl<'p> Allocation<'p> {
    fn new(pools: &'p [Pool], reserved: &'p BTreeMap<IpAddr, Holder>, authority: &'p Authority) -> Self {
        let spans = pools.iter().map(|p| [p.span(IpFamily::V4), p.span(IpFamily::V6)]).collect();
        let (ledger, held, leaving) = (Ledger::default(), BTreeMap::new(), BTreeMap::new());
        Self { pools, spans, reserved, ledger, held, authority, leaving }
    }

    /// Pass 1: keeps what the applicant had, as far as it may still have it.
    fn keep(&mut self, applicant: &Applicant<'_>, previous: &Allocations, granted: &mut Granted) {
        let had: Vec<IpAddr> = match previous.by_service.get(applicant.key()) {
            Some(assigned) => assigned.iter().map(|a| a.address).collect(),
            None => applicant.service.ingress_ips.clone(),
        };
        if applicant.leaving {
            return self.hold(applicant, &had);
        }
        if !applicant.wants_load_balancer {
            return;
        }
        let families = self.families(applicant);
        for ip in had {
            let family = IpFamily::of(ip);
            let has_family = granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family);
            let requested = || applicant.requested.iter().any(|(r, _)| *r == ip);
            let requests_other = applicant.requested.iter().any(|(r, _)| IpFamily::of(*r) == family);
            if has_family || !families.contains(&family) || (requests_other && !requested()) {
                continue;
            }
            if self.reserved.get(&ip) == Some(&Holder::Gateway) {
                continue;
            }
            let Some(pool) = self.usable_pools(applicant).find(|at| self.pools[*at].contains(ip)) else {
                continue;
            };
            if !self.over_quota(pool, applicant, ip, &[]) && self.admits(pool, ip, applicant).is_ok() {
                self.give(applicant, granted, pool, ip);
            }
        }
    }

    /// Keeps others off what a Service gives back.
    fn hold(&mut self, applicant: &Applicant<'_>, had: &[IpAddr]) {
        let ports = applicant.ports();
        for ip in had {
            let Some(pool) = (0..self.pools.len()).find(|at| self.pools[*at].contains(*ip)) else { continue };
            let claim = self.claim(pool, applicant, &ports);
            if self.ledger.claim(*ip, &claim).is_ok() {
                let assigned = Assigned { address: *ip, pool: self.pools[pool].name.clone() };
                self.leaving.entry(applicant.key().clone()).or_default().push(assigned);
            }
        }
    }

    /// RequireDualStack with one family refused gets none: what was given goes back by never being shown.
    /// The ledger keeps the claim, so nobody moves in while the Service waits.
    pub(super) fn all_or_nothing(&self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let both = applicant.service.ip_family_policy == IpFamilyPolicy::RequireDualStack;
        if both && granted.pending.is_some() {
            granted.load_balancer.clear();
        }
    }

    pub(super) fn give(&mut self, applicant: &Applicant<'_>, granted: &mut Granted, pool: usize, ip: IpAddr) {
        let namespace = &applicant.key().namespace;
        let counted = self.ledger.namespace_holds(namespace, ip);
        let ports = applicant.ports();
        let claim = self.claim(pool, applicant, &ports);
        self.ledger.claim(ip, &claim).expect("each address is given after `admits` or while nobody holds it");
        if !counted {
            *self.held.entry((pool, namespace.clone())).or_default() += 1;
        }
        granted.load_balancer.push(Assigned { address: ip, pool: self.pools[pool].name.clone() });
        granted.load_balancer.sort_unstable();
    }

    pub(super) fn admits(&self, pool: usize, ip: IpAddr, applicant: &Applicant<'_>) -> Result<(), Taken> {
        let ports = applicant.ports();
        self.ledger.admits(ip, &self.claim(pool, applicant, &ports))
    }

    pub(super) fn claim<'a>(
        &self,
        pool: usize,
        applicant: &'a Applicant<'_>,
        ports: &'a [(Protocol, u16)],
    ) -> Claim<'a> {
        Claim {
            service: applicant.key(),
            kind: ClaimKind::LoadBalancer,
            ports,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: self.pools[pool].shared_across_namespaces,
        }
    }

    /// Whether another gateway still serves the address for a Service that gave it back.
    pub(super) fn is_withheld(&self, ip: IpAddr) -> bool {
        matches!(self.authority, Authority::Decides { withheld } if withheld.contains(&ip))
    }

    pub(super) fn withheld_count(&self) -> usize {
        match self.authority {
            Authority::Decides { withheld } => withheld.len(),
            Authority::Follows => 0,
        }
    }

    /// Pools that the applicant may hold addresses of, disabled ones included.
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
        let Some(quota) = self.pools[pool].quota_per_namespace else { return false };
        let namespace = &applicant.key().namespace;
        if self.ledger.namespace_holds(namespace, ip) {
            return false;
        }
        let held = self.held.get(&(pool, namespace.clone())).copied().unwrap_or(0) as usize;
        let chosen = chosen.iter().filter(|(at, _)| *at == pool).count();
        held + chosen >= quota as usize
    }

    pub(super) fn quota_reached(&self, pool: usize, applicant: &Applicant<'_>) -> String {
        let Pool { name, quota_per_namespace, .. } = &self.pools[pool];
        let quota = quota_per_namespace.unwrap_or(u32::MAX);
        format!("namespace {} holds its quota of {quota} in pool {name}", applicant.key().namespace)
    }

    /// The families that the Service is to have: what it says, else those of the addresses that it names,
    /// else what the pools have, IPv4 first.
    pub(super) fn families(&self, applicant: &Applicant<'_>) -> Vec<IpFamily> {
        let service = applicant.service;
        if service.ip_family_policy != IpFamilyPolicy::SingleStack {
            return vec![IpFamily::V4, IpFamily::V6];
        }
        if let Some(first) = service.ip_families.first() {
            return vec![*first];
        }
        let mut named =
            applicant.requested.iter().map(|(ip, _)| *ip).chain(service.cluster_ips.iter().copied());
        if let Some(ip) = named.next() {
            return vec![IpFamily::of(ip)];
        }
        let usable: Vec<usize> = self.usable_pools(applicant).collect();
        let has = |family: &IpFamily| usable.iter().any(|at| self.pools[*at].has_family(*family));
        vec![[IpFamily::V4, IpFamily::V6].into_iter().find(has).unwrap_or(IpFamily::V4)]
    }

    fn usage(&self) -> Vec<PoolUsage> {
        let mut assigned = vec![0_u128; self.pools.len()];
        for ip in self.ledger.held() {
            if let Some(at) = self.pools.iter().position(|p| p.contains(ip)) {
                assigned[at] += 1;
            }
        }
        let usage = |(at, pool): (usize, &Pool)| PoolUsage {
            pool: pool.name.clone(),
            total: self.spans[at].iter().fold(0, |n, s| n.saturating_add(s.size())),
            assigned: assigned[at],
            reserved: self.reserved.keys().filter(|ip| pool.contains(**ip)).count() as u128,
            disabled: pool.disabled,
        };
        self.pools.iter().enumerate().map(usage).collect()
    }
}

pub(super) fn failed(field: String, what: String, accepted: Option<String>) -> Problem {
    Problem { kind: ProblemKind::AllocationFailed, severity: Severity::Error, field, what, accepted }
}

pub(super) fn describe(pool: &Pool) -> String {
    let ranges: Vec<String> = pool.ranges.iter().map(ToString::to_string).collect();
    format!("{} ({})", pool.name, ranges.join(", "))
}
