//! Pass 3: an address chosen for every Service that still lacks one.
//!
//! The search begins where the Service's name hashes to, so that what is given does not depend on who else is there.

use std::net::IpAddr;

use super::allocate::{Allocation, Applicant, Granted, failed};
use super::{Authority, Problem, ProblemKind, WantedPool};
use crate::diagnostic::Severity;
use crate::model::{IpFamily, IpFamilyPolicy, ObjectKey};

impl Allocation {
    /// Pass 3: an address for every family that still lacks one.
    pub(super) fn choose(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if !applicant.wants_load_balancer || granted.pending.is_some() {
            return;
        }
        let waits_for = match self.authority {
            Authority::Follows => Some("the leading gateway to give it an address"),
            Authority::Waits => Some("every gateway to say that it serves nothing that was given back"),
            Authority::Decides { .. } => None,
        };
        if let Some(whom) = waits_for {
            if granted.load_balancer.is_empty() {
                granted.pending = Some(format!("Service {} waits for {whom}", applicant.key()));
            }
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
                // Once it holds it, it keeps it; until then another may come first.
                Ok(found) => {
                    self.hangs();
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
                self.hangs();
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
        let taken = self.ledger.held_count() + self.reserved.len() + self.withheld_count();
        let probes_max = (taken + 1) as u128;
        let hash = u128::from(stable_hash(applicant.key()));
        span.bands().into_iter().find_map(|band| {
            let probes = band.size.min(probes_max);
            (0..probes).filter_map(|i| span.at(band.start + (hash % band.size + i) % band.size)).find(|ip| {
                !self.ledger.is_held(*ip) && !self.reserved.contains_key(ip) && !self.is_withheld(*ip)
            })
        })
    }
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
