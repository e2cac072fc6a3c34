//! Pass 2: the addresses that Services request explicitly.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_model::objects::IpFamily;

use super::Authority;
use super::allocate::{Allocation, Applicant, Granted, describe, failed};

impl Allocation {
    /// Pass 2: grants the addresses that the applicant requests.
    pub(super) fn grant_requested(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let decides = matches!(self.authority(), Authority::Decides { .. });
        if !applicant.wants_load_balancer || applicant.requested.is_empty() || !decides {
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
            // Other Services may take precedence until the address is owned and remembered.
            self.mark_dependent();
            let refused = match by_family.insert(family, *ip) {
                Some(other) => Err((
                    format!("the Service also requests {other}, and can have only one {family} address"),
                    Some("one address for each family".to_owned()),
                )),
                None if !families.contains(&family) => {
                    let wanted = families.iter().map(|f| f.as_str()).collect::<Vec<_>>().join(" and ");
                    Err((
                        format!("the Service can only have an {wanted} address"),
                        Some(format!("an {wanted} address (spec.ipFamilies, spec.ipFamilyPolicy)")),
                    ))
                }
                // The Service will get the address soon, so this is not a fault.
                None if self.is_withheld(applicant, *ip) => {
                    let why = "another Service released it, and not every gateway has withdrawn it yet";
                    granted.pending =
                        Some(format!("Service {} waits for address {ip}: {why}", applicant.key()));
                    continue;
                }
                None => self.pool_of_request(applicant, *ip),
            };
            match refused {
                Ok(pool) => self.assign(applicant, granted, pool, *ip),
                Err((why, accepted)) => {
                    let what = format!("address {ip} of Service {} is not assigned: {why}", applicant.key());
                    granted.pending = Some(what.clone());
                    granted.problems.extend([failed(field.clone(), what, accepted)]);
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
        if let Some(owner) = self.reserved.get(&ip) {
            return Err((format!("it is {owner}"), Some("a free address of a pool".to_owned())));
        }
        let containing = || (0..self.pools.len()).filter(|at| self.pools[*at].contains(ip));
        let Some(first) = containing().next() else {
            let shown: Vec<String> = self.pools.iter().map(describe).collect();
            let accepted = if shown.is_empty() {
                "an address of a pool; no pool is configured".to_owned()
            } else {
                shown.join("; ")
            };
            return Err(("the address is in no pool".to_owned(), Some(accepted)));
        };
        let usable: Vec<usize> = self.usable_pools(applicant).collect();
        let Some(pool) = containing().find(|at| usable.contains(at)) else {
            let name = &self.pools[first].name;
            return match &applicant.pool {
                Some(request) if !request.wanted.is(&self.pools[first]) => Err((
                    format!("the address is in pool {name}, but the Service requests {}", request.wanted),
                    Some(format!("an address of {}", request.wanted)),
                )),
                _ => Err((
                    format!("the selectors of pool {name} do not match this Service and its namespace"),
                    Some(
                        "an address of a pool whose selectors match this Service and its namespace"
                            .to_owned(),
                    ),
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
            let accepted = "fewer addresses for the namespace, or a larger quotaPerNamespace of the pool";
            return Err((self.quota_reached(pool, applicant), Some(accepted.to_owned())));
        }
        self.admits(pool, ip, applicant)
            .map_err(|taken| (taken.to_string(), Some(taken.remedy(&self.pools[pool].name))))?;
        Ok(pool)
    }
}
