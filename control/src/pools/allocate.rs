//! The three passes that give Services their addresses.
//!
//! 1. Who has an address that is still legal keeps it: from the last call, else from its own status.
//! 2. External IPs and requested addresses (`tidegate.dev/load-balancer-ips`, `spec.loadBalancerIP`).
//! 3. An address chosen from a pool for every Service that still lacks one.
//!
//! So a chosen address never stands in the way of a requested one, unless it was given out before the request
//! was made: first come keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{
    Allocations, Assigned, Claim, ClaimKind, Ledger, Pool, PoolWish, Problem, ProblemKind, Span, WantedPool,
};
use crate::diagnostic::Severity;
use crate::model::{IpFamily, IpFamilyPolicy, Labels, ObjectKey, Protocol, Service, refused_endpoint};

/// A Service that wants addresses, with what its annotations say about them.
#[derive(Debug, Clone)]
pub struct Applicant<'a> {
    /// The Service; its `external_ips` are claims in any case.
    pub service: &'a Service,
    /// Labels of its namespace.
    pub namespace_labels: Labels,
    /// Whether it gets LoadBalancer addresses from us.
    pub wants_load_balancer: bool,
    /// Addresses that it requests, each with the path of the field that says so.
    pub requested: Vec<(IpAddr, String)>,
    /// The only pools that it takes addresses from.
    pub pool: Option<PoolWish>,
    /// `tidegate.dev/allow-shared-ip`.
    pub sharing_key: Option<String>,
}

impl Applicant<'_> {
    fn key(&self) -> &ObjectKey {
        &self.service.meta.key
    }

    fn ports(&self) -> Vec<(Protocol, u16)> {
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
/// `reserved` are addresses of the gateway itself: nobody gets them, whatever pools and Services say.
#[must_use]
pub fn allocate(
    pools: &[Pool],
    reserved: &BTreeSet<IpAddr>,
    applicants: &[Applicant<'_>],
    previous: &Allocations,
) -> Allocated {
    let mut order: Vec<&Applicant<'_>> = applicants.iter().collect();
    order.sort_by_key(|a| {
        let meta = &a.service.meta;
        (meta.creation_time.is_none(), meta.creation_time, &meta.uid, &meta.key)
    });
    let mut allocation = Allocation::new(pools, reserved);
    let mut granted: BTreeMap<ObjectKey, Granted> =
        applicants.iter().map(|a| (a.key().clone(), Granted::default())).collect();
    let mut pass = |step: &mut dyn FnMut(&Applicant<'_>, &mut Granted)| {
        for applicant in &order {
            step(applicant, granted.get_mut(applicant.key()).expect("an entry was made for each applicant"));
        }
    };
    pass(&mut |applicant, granted| allocation.adopt(applicant, previous, granted));
    pass(&mut |applicant, granted| {
        allocation.authorise_external(applicant, granted);
        allocation.grant_requested(applicant, granted);
    });
    pass(&mut |applicant, granted| allocation.choose(applicant, granted));

    let usage = allocation.usage();
    let held = granted.iter().filter(|(_, g)| !g.load_balancer.is_empty());
    let by_service = held.map(|(key, g)| (key.clone(), g.load_balancer.clone())).collect();
    Allocated { granted, allocations: Allocations { by_service }, usage }
}

struct Allocation<'p> {
    pools: &'p [Pool],
    /// Per pool, IPv4 then IPv6.
    spans: Vec<[Span; 2]>,
    reserved: &'p BTreeSet<IpAddr>,
    ledger: Ledger,
    /// Addresses that a namespace holds in a pool.
    held: BTreeMap<(usize, String), u32>,
}

impl<'p> Allocation<'p> {
    fn new(pools: &'p [Pool], reserved: &'p BTreeSet<IpAddr>) -> Self {
        let spans = pools.iter().map(|p| [p.span(IpFamily::V4), p.span(IpFamily::V6)]).collect();
        Self { pools, spans, reserved, ledger: Ledger::default(), held: BTreeMap::new() }
    }

    /// Pass 1: keeps what the applicant had, as far as it may still have it.
    fn adopt(&mut self, applicant: &Applicant<'_>, previous: &Allocations, granted: &mut Granted) {
        if !applicant.wants_load_balancer {
            return;
        }
        let had: Vec<IpAddr> = match previous.by_service.get(applicant.key()) {
            Some(assigned) => assigned.iter().map(|a| a.address).collect(),
            None => applicant.service.ingress_ips.clone(),
        };
        let families = self.families(applicant);
        for ip in had {
            let family = IpFamily::of(ip);
            let has_family = granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family);
            let requested = || applicant.requested.iter().any(|(r, _)| *r == ip);
            let requests_other = applicant.requested.iter().any(|(r, _)| IpFamily::of(*r) == family);
            if has_family || !families.contains(&family) || (requests_other && !requested()) {
                continue;
            }
            if self.reserved.contains(&ip) {
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

    /// Pass 2: the external IPs that a pool authorises, port by port.
    fn authorise_external(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let mut seen = BTreeSet::new();
        for (i, ip) in applicant.service.external_ips.iter().enumerate() {
            if !seen.insert(*ip) {
                continue;
            }
            let field = format!("spec.externalIPs[{i}]");
            let pool = match self.authorising_pool(applicant, *ip) {
                Ok(pool) => pool,
                Err((why, accepted)) => {
                    granted.problems.push(Problem {
                        kind: ProblemKind::ExternalIpDenied,
                        severity: Severity::Error,
                        field,
                        what: format!("external IP {ip} of Service {} is denied: {why}", applicant.key()),
                        accepted: Some(accepted),
                    });
                    continue;
                }
            };
            let mut ports = Vec::new();
            for (j, port) in applicant.ports().into_iter().enumerate() {
                let claim = Claim {
                    service: applicant.key(),
                    kind: ClaimKind::ExternalIp,
                    ports: &[port],
                    sharing_key: applicant.sharing_key.as_deref(),
                    across_namespaces: self.pools[pool].shared_across_namespaces,
                };
                match self.ledger.claim(*ip, &claim) {
                    Ok(()) => ports.push(port),
                    Err(taken) => granted.problems.push(Problem {
                        kind: ProblemKind::Conflict,
                        severity: Severity::Error,
                        field: format!("spec.ports[{j}]"),
                        what: format!(
                            "{} port {} on external IP {ip} of Service {} is not programmed: {taken}",
                            port.0,
                            port.1,
                            applicant.key()
                        ),
                        accepted: Some(
                            "a port that no other Service has on this address; an address of type LoadBalancer \
                             is shared under one tidegate.dev/allow-shared-ip key"
                                .to_owned(),
                        ),
                    }),
                }
            }
            granted.external.push((Assigned { address: *ip, pool: self.pools[pool].name.clone() }, ports));
        }
    }

    fn authorising_pool(&self, applicant: &Applicant<'_>, ip: IpAddr) -> Result<usize, (String, String)> {
        let authorising: Vec<&Pool> = self.pools.iter().filter(|p| p.external_ips).collect();
        let accepted = if authorising.is_empty() {
            "an address of a pool with externalIPs: true; no pool has it".to_owned()
        } else {
            let shown: Vec<String> = authorising.iter().map(|p| describe(p)).collect();
            format!("an address of a pool with externalIPs: true: {}", shown.join("; "))
        };
        if let Some(why) = refused_endpoint(ip) {
            return Err((format!("a {why} address"), accepted));
        }
        if self.reserved.contains(&ip) {
            return Err(("an address of the gateway itself".to_owned(), accepted));
        }
        let containing = || self.pools.iter().enumerate().filter(|(_, p)| p.contains(ip));
        let admits = |p: &Pool| p.admits(&applicant.service.meta.labels, &applicant.namespace_labels);
        if let Some((at, _)) = containing().find(|(_, p)| p.external_ips && admits(p)) {
            return Ok(at);
        }
        let why = match containing().find(|(_, p)| p.external_ips).or_else(|| containing().next()) {
            Some((_, p)) if p.external_ips => {
                format!("the selectors of pool {} do not match this Service and namespace", p.name)
            }
            Some((_, p)) => format!("pool {} does not authorise external IPs", p.name),
            None => "it is in no pool".to_owned(),
        };
        Err((why, accepted))
    }

    /// Pass 2: addresses that the applicant names.
    fn grant_requested(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if !applicant.wants_load_balancer || applicant.requested.is_empty() {
            return;
        }
        let families = self.families(applicant);
        let mut by_family: BTreeMap<IpFamily, IpAddr> = BTreeMap::new();
        for (ip, field) in &applicant.requested {
            let family = IpFamily::of(*ip);
            if granted.load_balancer.iter().any(|a| a.address == *ip) {
                by_family.insert(family, *ip);
                continue;
            }
            let refused = match by_family.insert(family, *ip) {
                Some(other) => Err((
                    format!("{other} is requested as well, and a Service has one {family} address"),
                    Some("one address for each family".to_owned()),
                )),
                None if !families.contains(&family) => {
                    let wanted: Vec<&str> = families.iter().map(|f| f.as_str()).collect();
                    Err((
                        format!("the Service is not {family}"),
                        Some(format!("{} (spec.ipFamilies, spec.ipFamilyPolicy)", wanted.join(" and "))),
                    ))
                }
                None => self.pool_of_request(applicant, *ip),
            };
            match refused {
                Ok(pool) => self.give(applicant, granted, pool, *ip),
                Err((why, accepted)) => {
                    let what = format!("address {ip} of Service {} is not given: {why}", applicant.key());
                    granted.pending = Some(what.clone());
                    granted.problems.push(failed(field.clone(), what, accepted));
                }
            }
        }
        self.all_or_nothing(applicant, granted);
    }

    fn pool_of_request(
        &self,
        applicant: &Applicant<'_>,
        ip: IpAddr,
    ) -> Result<usize, (String, Option<String>)> {
        if self.reserved.contains(&ip) {
            return Err((
                "an address of the gateway itself".to_owned(),
                Some("a free address of a pool".to_owned()),
            ));
        }
        let containing = || (0..self.pools.len()).filter(|at| self.pools[*at].contains(ip));
        let Some(first) = containing().next() else {
            let shown: Vec<String> = self.pools.iter().map(describe).collect();
            let accepted = if shown.is_empty() {
                "an address of a pool; there is none".to_owned()
            } else {
                shown.join("; ")
            };
            return Err(("it is in no pool".to_owned(), Some(accepted)));
        };
        let usable: Vec<usize> = self.usable_pools(applicant).collect();
        let Some(pool) = containing().find(|at| usable.contains(at)) else {
            let name = &self.pools[first].name;
            return match &applicant.pool {
                Some(wish) if !wish.wanted.is(&self.pools[first]) => Err((
                    format!("it is in pool {name}, and the Service asks for {}", wish.wanted),
                    Some(format!("an address of {}", wish.wanted)),
                )),
                _ => Err((
                    format!("the selectors of pool {name} do not match this Service and namespace"),
                    Some("an address of a pool whose selectors match".to_owned()),
                )),
            };
        };
        if self.pools[pool].disabled {
            return Err((
                format!("pool {} is disabled", self.pools[pool].name),
                Some("an address of a pool that is not disabled".to_owned()),
            ));
        }
        if self.over_quota(pool, applicant, ip, &[]) {
            return Err((self.quota_reached(pool, applicant), None));
        }
        self.admits(pool, ip, applicant).map_err(|taken| {
            (
                taken.to_string(),
                Some(
                    "a free address, or the same tidegate.dev/allow-shared-ip key on all Services that share it, \
                     with ports that differ"
                        .to_owned(),
                ),
            )
        })?;
        Ok(pool)
    }

    /// Pass 3: an address for every family that still lacks one.
    fn choose(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if !applicant.wants_load_balancer || granted.pending.is_some() {
            return;
        }
        let field = match &applicant.pool {
            Some(wish) if !self.pools.iter().any(|p| wish.wanted.is(p)) => {
                let (what, accepted) = self.no_such_pool(applicant, &wish.wanted);
                granted.pending = Some(what.clone());
                granted.problems.push(failed(wish.field.clone(), what, Some(accepted)));
                return;
            }
            Some(wish) => wish.field.clone(),
            None => "spec.type".to_owned(),
        };
        let mut chosen: Vec<(usize, IpAddr)> = Vec::new();
        let mut missing: Vec<(IpFamily, String)> = Vec::new();
        for family in self.families(applicant) {
            if granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family) {
                continue;
            }
            match self.free_address(applicant, family, &chosen) {
                Ok(found) => chosen.push(found),
                Err(why) => missing.push((family, why)),
            }
        }
        let nothing = granted.load_balancer.is_empty() && chosen.is_empty();
        let all_or_nothing = applicant.service.ip_family_policy == IpFamilyPolicy::RequireDualStack;
        if !missing.is_empty() {
            let shown: Vec<String> =
                missing.iter().map(|(f, why)| format!("no {f} address: {why}")).collect();
            let shown = shown.join("; ");
            if nothing || all_or_nothing {
                let what = format!("Service {} waits for an address: {shown}", applicant.key());
                granted.pending = Some(what.clone());
                let accepted = Some("a pool with a free address that this Service may use".to_owned());
                granted.problems.push(failed(field, what, accepted));
            } else {
                granted.problems.push(Problem {
                    kind: ProblemKind::FamilyFallback,
                    severity: Severity::Warning,
                    field: "spec.ipFamilyPolicy".to_owned(),
                    what: format!("Service {} has one family only: {shown}", applicant.key()),
                    accepted: None,
                });
            }
        }
        if granted.pending.is_none() {
            for (pool, ip) in chosen {
                self.give(applicant, granted, pool, ip);
            }
        }
        self.all_or_nothing(applicant, granted);
    }

    /// What is said of a wish that no pool answers to.
    fn no_such_pool(&self, applicant: &Applicant<'_>, wanted: &WantedPool) -> (String, String) {
        let key = applicant.key();
        match wanted {
            WantedPool::Named(name) => {
                let names: Vec<&str> = self.pools.iter().map(|p| p.name.as_str()).collect();
                let none = "no pool is configured".to_owned();
                (
                    format!("Service {key} asks for pool {name:?}, which is not configured"),
                    if names.is_empty() { none } else { names.join(", ") },
                )
            }
            WantedPool::Internal => (
                format!("Service {key} asks for an internal address, and there is not {wanted}"),
                "tidegate.dev/address-pool with the name of a pool, or that label on one".to_owned(),
            ),
        }
    }

    /// A free address of the family, from the first pool that has one for this applicant.
    fn free_address(
        &self,
        applicant: &Applicant<'_>,
        family: IpFamily,
        chosen: &[(usize, IpAddr)],
    ) -> Result<(usize, IpAddr), String> {
        let mut why = Vec::new();
        for at in 0..self.pools.len() {
            let pool = &self.pools[at];
            let named = applicant.pool.as_ref().is_some_and(|wish| wish.wanted.is(pool));
            if applicant.pool.is_some() && !named {
                continue;
            }
            let name = &pool.name;
            if !pool.has_family(family) {
                why.push(format!("pool {name} has none"));
            } else if pool.disabled {
                why.push(format!("pool {name} is disabled"));
            } else if !named && !pool.auto_assign {
                why.push(format!("pool {name} is given out on request only (autoAssign: false)"));
            } else if !pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels) {
                why.push(format!("the selectors of pool {name} do not match"));
            } else if let Some(ip) = self.shared_address(at, applicant, family) {
                return Ok((at, ip));
            } else if let Some(ip) = self.unheld_address(at, applicant, family) {
                if self.over_quota(at, applicant, ip, chosen) {
                    why.push(self.quota_reached(at, applicant));
                } else {
                    return Ok((at, ip));
                }
            } else {
                why.push(format!("pool {name} is full"));
            }
        }
        if why.is_empty() {
            why.push("no pool is configured".to_owned());
        }
        Err(why.join(", "))
    }

    /// An address that others with the same sharing key hold already.
    fn shared_address(&self, pool: usize, applicant: &Applicant<'_>, family: IpFamily) -> Option<IpAddr> {
        let key = applicant.sharing_key.as_deref()?;
        self.ledger.shared_under(key).find(|ip| {
            IpFamily::of(*ip) == family
                && self.pools[pool].contains(*ip)
                && !self.over_quota(pool, applicant, *ip, &[])
                && self.admits(pool, *ip, applicant).is_ok()
        })
    }

    /// The first address that nobody holds, looking from where the Service's name hashes to; dynamic band
    /// first. The start from a hash keeps addresses where they are when Services come and go.
    fn unheld_address(&self, pool: usize, applicant: &Applicant<'_>, family: IpFamily) -> Option<IpAddr> {
        let span = &self.spans[pool][usize::from(family == IpFamily::V6)];
        let probes_max = (self.ledger.held_count() + self.reserved.len() + 1) as u128;
        let hash = u128::from(stable_hash(applicant.key()));
        span.bands().into_iter().find_map(|band| {
            let probes = band.size.min(probes_max);
            (0..probes)
                .filter_map(|i| span.at(band.start + (hash % band.size + i) % band.size))
                .find(|ip| !self.ledger.is_held(*ip) && !self.reserved.contains(ip))
        })
    }

    /// RequireDualStack with one family refused gets none: what was given goes back by never being shown.
    /// The ledger keeps the claim, so nobody moves in while the Service waits.
    fn all_or_nothing(&self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let both = applicant.service.ip_family_policy == IpFamilyPolicy::RequireDualStack;
        if both && granted.pending.is_some() {
            granted.load_balancer.clear();
        }
    }

    fn give(&mut self, applicant: &Applicant<'_>, granted: &mut Granted, pool: usize, ip: IpAddr) {
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

    fn admits(&self, pool: usize, ip: IpAddr, applicant: &Applicant<'_>) -> Result<(), super::Taken> {
        let ports = applicant.ports();
        self.ledger.admits(ip, &self.claim(pool, applicant, &ports))
    }

    fn claim<'a>(
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

    /// Pools that the applicant may hold addresses of, disabled ones included.
    fn usable_pools(&self, applicant: &Applicant<'_>) -> impl Iterator<Item = usize> {
        (0..self.pools.len()).filter(|at| {
            let pool = &self.pools[*at];
            applicant.pool.as_ref().is_none_or(|wish| wish.wanted.is(pool))
                && pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels)
        })
    }

    /// Whether one more address would exceed the quota of the applicant's namespace.
    fn over_quota(
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

    fn quota_reached(&self, pool: usize, applicant: &Applicant<'_>) -> String {
        let Pool { name, quota_per_namespace, .. } = &self.pools[pool];
        let quota = quota_per_namespace.unwrap_or(u32::MAX);
        format!("namespace {} holds its quota of {quota} in pool {name}", applicant.key().namespace)
    }

    /// The families that the Service is to have: what it says, else those of the addresses that it names,
    /// else what the pools have, IPv4 first.
    fn families(&self, applicant: &Applicant<'_>) -> Vec<IpFamily> {
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
            reserved: self.reserved.iter().filter(|ip| pool.contains(**ip)).count() as u128,
            disabled: pool.disabled,
        };
        self.pools.iter().enumerate().map(usage).collect()
    }
}

fn failed(field: String, what: String, accepted: Option<String>) -> Problem {
    Problem { kind: ProblemKind::AllocationFailed, severity: Severity::Error, field, what, accepted }
}

fn describe(pool: &Pool) -> String {
    let ranges: Vec<String> = pool.ranges.iter().map(ToString::to_string).collect();
    format!("{} ({})", pool.name, ranges.join(", "))
}

/// FNV-1a of `namespace/name`, finished so that all bits depend on all of it. Fixed: gateways of different
/// versions must agree.
fn stable_hash(key: &ObjectKey) -> u64 {
    let fold = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    let bytes = key.namespace.bytes().chain([b'/']).chain(key.name.bytes());
    let mut h = bytes.fold(0xcbf2_9ce4_8422_2325, fold);
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^ (h >> 33)
}
