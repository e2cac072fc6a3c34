//! Pass 3: chooses an address for every Service that still needs one.
//!
//! Each Service ranks the addresses of a pool by a hash of the Service and the address, and gets the free address
//! with the highest rank. So the choice depends neither on the order of Services nor on the other addresses of the
//! pool: two gateways with the same Services choose the same addresses, and extending a pool changes few choices. The
//! order matters only if the first choice is already in use.

use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::fnv::{self, fnv1a};
use tidegate_model::objects::{IpFamily, IpFamilyPolicy, ObjectKey, Service, number};
use tidegate_model::yaml::text;

use super::allocate::{Allocation, Applicant, Granted, failed};
use super::{Authority, Problem, ProblemKind, RequestedPool};

/// The maximum number of addresses with its sharing key that are checked to explain why a Service shares none of them.
const UNSHARED_COMPARED_MAX: usize = 32;

impl Allocation {
    /// Pass 3: chooses an address for every family that still lacks one.
    pub(super) fn choose(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if !applicant.wants_load_balancer || granted.pending.is_some() {
            return;
        }
        let waits_for = match self.authority() {
            Authority::Follows => Some("the leader to assign an address"),
            Authority::Waits => Some("every gateway to confirm that it has withdrawn released addresses"),
            Authority::Unread => Some("permission to read Gateways, which may have any address of the pools"),
            Authority::Decides { .. } => None,
        };
        if let Some(whom) = waits_for {
            if granted.load_balancer.is_empty() {
                granted.pending = Some(format!("Service {} waits for {whom}", applicant.key()));
            }
            return;
        }
        let field = match &applicant.pool {
            Some(request) if !self.pools.iter().any(|p| request.wanted.is(p)) => {
                let (what, accepted) = self.no_such_pool(applicant, &request.wanted);
                granted.pending = Some(what.clone());
                granted.problems.extend([failed(request.field.clone(), what, Some(accepted))]);
                return;
            }
            Some(request) => request.field.clone(),
            None => "spec.type".to_owned(),
        };
        let mut chosen: Vec<(usize, IpAddr)> = Vec::new();
        let mut missing: Vec<(IpFamily, String)> = Vec::new();
        for family in self.families(applicant) {
            if granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family) {
                continue;
            }
            match self.free_address(applicant, family, &chosen) {
                // Once the Service owns the address, it keeps it. Until then, another Service may take precedence.
                Ok(found) => {
                    self.mark_dependent();
                    chosen.push(found);
                }
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
                granted.problems.extend([failed(field, what, accepted)]);
            } else {
                granted.problems.extend([Problem {
                    kind: ProblemKind::FamilyFallback,
                    severity: Severity::Warning,
                    field: "spec.ipFamilyPolicy".to_owned(),
                    what: format!("Service {} has addresses of only one family: {shown}", applicant.key()),
                    accepted: None,
                }]);
            }
        }
        if granted.pending.is_none() {
            for (pool, ip) in chosen {
                self.assign(applicant, granted, pool, ip);
            }
        }
        self.all_or_nothing(applicant, granted);
    }

    /// The message about a request that no pool matches.
    fn no_such_pool(&self, applicant: &Applicant<'_>, wanted: &RequestedPool) -> (String, String) {
        let key = applicant.key();
        match wanted {
            RequestedPool::Named(name) => {
                let name = text::shown(name);
                let names: Vec<&str> = self.pools.iter().map(|p| p.name.as_str()).collect();
                let none = "the name of a pool; no pool is configured".to_owned();
                (
                    format!("Service {key} requests pool {name:?}, which is not configured"),
                    if names.is_empty() { none } else { names.join(", ") },
                )
            }
            RequestedPool::Internal => (
                format!("Service {key} requests {wanted}, but no pool has this label"),
                "tidegate.dev/address-pool with the name of a pool, or a pool with this label".to_owned(),
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
            let named = applicant.pool.as_ref().is_some_and(|request| request.wanted.is(pool));
            if applicant.pool.is_some() && !named {
                continue;
            }
            let name = &pool.name;
            if !pool.has_family(family) {
                why.push(format!("pool {name} has no {family} addresses"));
            } else if pool.disabled {
                why.push(format!("pool {name} is disabled"));
            } else if !named && !pool.auto_assign {
                why.push(format!("pool {name} assigns addresses on request only (autoAssign: false)"));
            } else if !pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels) {
                why.push(format!("the selectors of pool {name} do not match this Service and its namespace"));
            } else if let Some(ip) = self.shared_address(at, applicant, family) {
                return Ok((at, ip));
            } else if self.over_quota_by_any(at, applicant, chosen) {
                // Checked before the search: thousands of Services may exceed a quota.
                why.push(self.quota_reached(at, applicant));
            } else if let Some(ip) = self
                .last_address(at, applicant, family)
                .or_else(|| self.unowned_address(at, applicant, family))
            {
                return Ok((at, ip));
            } else {
                self.mark_dependent();
                why.push(self.full(at, family));
            }
        }
        if why.is_empty() {
            why.push("no pool is configured".to_owned());
        }
        Err(why.join(", "))
    }

    /// Reports that a pool has no free address, and whether it can have one at all.
    fn full(&self, at: usize, family: IpFamily) -> String {
        let (pool, reserved) = (&self.pools[at], self.usage()[at].reserved);
        let is_in = |ip: &&IpAddr| IpFamily::of(**ip) == family && pool.contains(**ip);
        let first = self.reserved.keys().filter(|_| reserved > 0).find(is_in);
        match first.map(|ip| (ip, &self.reserved[ip])) {
            Some((ip, owner)) => format!(
                "pool {} is full; {reserved} of its addresses cannot be assigned, such as {ip}, which is {owner}",
                pool.name
            ),
            None => format!("pool {} is full", pool.name),
        }
    }

    /// An address that other Services with the same sharing key already use.
    fn shared_address(&self, pool: usize, applicant: &Applicant<'_>, family: IpFamily) -> Option<IpAddr> {
        let key = applicant.sharing_key.as_deref()?;
        self.ledger.shared_under(key).find(|ip| {
            IpFamily::of(*ip) == family
                && self.pools[pool].contains(*ip)
                && !self.over_quota(pool, applicant, *ip, &[])
                && self.admits(pool, *ip, applicant).is_ok()
        })
    }

    /// After pass 3: for each address that a Service with a sharing key uses alone, records why it doesn't share an
    /// address of an older Service with this key. `service` looks up a Service that takes part.
    pub(super) fn note_unshared<'a>(
        &self,
        applicant: &Applicant<'a>,
        granted: &mut Granted,
        service: &dyn Fn(&ObjectKey) -> Option<&'a Service>,
    ) {
        if applicant.sharing_key.is_none() {
            return;
        }
        for own in &granted.load_balancer {
            let family = IpFamily::of(own.address);
            let is_requested = applicant.requested.iter().any(|(ip, _)| IpFamily::of(*ip) == family);
            let is_alone = self.ledger.owners(own.address).all(|owner| owner == applicant.key());
            if is_alone && !is_requested {
                // Other Services may get this key, or addresses under it.
                self.mark_dependent();
                granted.problems.extend(self.not_shared(applicant, own.address, service));
            }
        }
    }

    /// Why a Service with a sharing key has its own address instead of one that others with this key have.
    fn not_shared<'a>(
        &self,
        applicant: &Applicant<'a>,
        own: IpAddr,
        service: &dyn Fn(&ObjectKey) -> Option<&'a Service>,
    ) -> Option<Problem> {
        let family = IpFamily::of(own);
        let shared = self.ledger.shared_under(applicant.sharing_key.as_deref()?);
        let mut refused = None;
        // Every update repeats this for every Service with a sharing key, so the number of addresses is limited.
        let others = shared.filter(|ip| *ip != own && IpFamily::of(*ip) == family);
        for ip in others.take(UNSHARED_COMPARED_MAX) {
            let Some(pool) = self.usable_pools(applicant).find(|at| self.pools[*at].contains(ip)) else {
                continue;
            };
            // If the Service could share this address now, it merely keeps its own address: nothing to report.
            let taken = self.admits(pool, ip, applicant).err()?;
            let is_senior = |other: &Service| other.meta.seniority() < applicant.service.meta.seniority();
            if refused.is_none() && service(taken.owner()).is_some_and(is_senior) {
                refused = Some((pool, ip, taken));
            }
        }
        let (pool, ip, taken) = refused?;
        Some(Problem {
            kind: ProblemKind::NotShared,
            severity: Severity::Warning,
            field: "metadata.annotations[tidegate.dev/allow-shared-ip]".to_owned(),
            what: format!(
                "Service {} has a separate address, because it cannot share {ip} with the other Services that have its \
                 sharing key: {taken}",
                applicant.key()
            ),
            accepted: Some(taken.remedy(&self.pools[pool].name)),
        })
    }

    /// The free address with the highest rank, from the dynamic band first. If a band is too large to rank as a
    /// whole, it tries a sequence of positions derived from the Service's name, and then all addresses in order from
    /// the end of that sequence.
    fn unowned_address(&self, pool: usize, applicant: &Applicant<'_>, family: IpFamily) -> Option<IpAddr> {
        if self.is_known_full(pool, family) {
            return None;
        }
        #[cfg(test)]
        self.searches.set(self.searches.get() + 1);
        let span = &self.spans[pool][usize::from(family == IpFamily::V6)];
        let taken = self.ledger.owned_count() + self.reserved.len() + self.withheld_count();
        let probes_max = (taken + 1) as u128;
        let service = stable_hash(applicant.key());
        let is_free = |ip: &IpAddr| self.is_free(applicant, *ip);
        let found = span.bands().into_iter().find_map(|band| {
            if band.size <= RANKED_MAX {
                let all = (0..band.size).filter_map(|i| span.at(band.start + i)).filter(is_free);
                return all.max_by_key(|ip| rank(service, *ip));
            }
            let position = |i: u64| u128::from(mixed(service ^ mixed(i))) % band.size;
            let first = (0..PROBES).map(position).find_map(|at| span.at(band.start + at).filter(is_free));
            let from = position(PROBES);
            let probes = band.size.min(probes_max);
            let rest =
                || (0..probes).filter_map(|i| span.at(band.start + (from + i) % band.size)).find(is_free);
            first.or_else(rest)
        });
        if found.is_none() {
            self.found_full(pool, family);
        }
        found
    }

    /// Whether the address is free and may be assigned to the applicant.
    fn is_free(&self, applicant: &Applicant<'_>, ip: IpAddr) -> bool {
        !self.ledger.is_owned(ip) && !self.reserved.contains_key(&ip) && !self.is_withheld(applicant, ip)
    }

    /// The address that the Service had before it was removed, if it is free.
    fn last_address(&self, pool: usize, applicant: &Applicant<'_>, family: IpFamily) -> Option<IpAddr> {
        let mut last =
            applicant.previous.before_removal.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        last.find(|ip| self.pools[pool].contains(*ip) && self.is_free(applicant, *ip))
    }
}

/// The maximum size of a band that is ranked as a whole, which takes some microseconds.
const RANKED_MAX: u128 = 4096;
/// The number of positions that are tried in a larger band before it is searched in order. This is enough for a band
/// that is nearly full.
const PROBES: u64 = 64;

/// FNV-1a of `namespace/name` with a finalizer, so that all bits depend on the whole text. It must not change,
/// because gateways of different versions must agree.
fn stable_hash(key: &ObjectKey) -> u64 {
    let bytes = key.namespace.bytes().chain([b'/']).chain(key.name.bytes());
    mixed(fnv1a(fnv::START, bytes))
}

/// The finalizer of MurmurHash3: every bit of the result depends on all bits. It must not change, like [`stable_hash`].
fn mixed(mut h: u64) -> u64 {
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

/// The rank of an address for a Service; ties go to the higher address.
fn rank(service: u64, ip: IpAddr) -> (u64, IpAddr) {
    let number = number(ip);
    let (high, low) = ((number >> 64) as u64, number as u64);
    (mixed(service ^ mixed(low ^ mixed(high))), ip)
}
