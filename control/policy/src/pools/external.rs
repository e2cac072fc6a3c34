//! Pass 2, external IPs: each is honoured if a pool authorises it.
//!
//! Otherwise anyone who can create a Service could take over any address (CVE-2020-8554). Ports of one external IP
//! may belong to different Services; a Service that claimed a port first keeps it. A disabled pool authorises nothing
//! new. External IPs count towards the quota of a namespace like all other addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::{Pool, refused_endpoint};

use super::allocate::{Allocation, Applicant, Granted, describe};
use super::{Assigned, Claim, ClaimConflict, ClaimKind, PortKey, Problem, ProblemKind};

impl Allocation {
    /// Pass 2: the external IPs that a pool authorises, port by port.
    pub(super) fn authorise_external(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if applicant.service.meta.deletion_time.is_some() {
            return;
        }
        let kept = std::mem::take(&mut granted.external);
        let mut seen = BTreeSet::new();
        for (i, ip) in applicant.service.external_ips.iter().enumerate() {
            if !seen.insert(*ip) {
                continue;
            }
            let kept = kept.iter().find(|(assigned, _)| assigned.address == *ip);
            self.authorise_one(applicant, granted, (i, *ip), kept);
        }
    }

    fn authorise_one(
        &mut self,
        applicant: &Applicant<'_>,
        granted: &mut Granted,
        (at, ip): (usize, IpAddr),
        kept: Option<&(Assigned, Vec<PortKey>)>,
    ) {
        let own = kept.map_or(&[][..], |(_, ports)| ports);
        let all = applicant.ports();
        let pool = match self.authorising_pool(applicant, ip) {
            // The Service already owns all its ports on the address, so no pool has to authorise it.
            None if kept.is_some() && all.iter().all(|port| own.binary_search(port).is_ok()) => None,
            Some(pool) => Some(pool),
            None => {
                // The address is not among its claims, and the reason for the refusal may change.
                self.mark_dependent();
                granted
                    .problems
                    .add(ProblemKind::ExternalIpDenied, || self.denied(applicant, (at, ip), kept.is_some()));
                None
            }
        };
        let Some(pool) = pool else {
            granted.external.extend(kept.cloned());
            return;
        };
        let mut is_counted = self.ledger.namespace_owns(&applicant.key().namespace, ip);
        let mut ports = Vec::new();
        for (j, port) in all.into_iter().enumerate() {
            if own.binary_search(&port).is_ok() {
                ports.push(port);
                continue;
            }
            let claim = Claim {
                service: applicant.key(),
                kind: ClaimKind::ExternalIp,
                ports: &[port],
                sharing_key: applicant.sharing_key.as_deref(),
                across_namespaces: self.pools[pool].shared_across_namespaces,
            };
            match self.try_claim(ip, &claim) {
                Ok(()) => {
                    self.count_for_namespace(applicant, Some(pool), is_counted);
                    is_counted = true;
                    ports.push(port);
                }
                Err(taken) => granted
                    .problems
                    .add(ProblemKind::Conflict, || not_programmed(applicant, ip, (j, port), &taken)),
            }
        }
        let name = kept.map_or_else(|| self.pools[pool].name.clone(), |(assigned, _)| assigned.pool.clone());
        granted.external.push((Assigned { address: ip, pool: name }, ports));
    }

    /// Reports that no pool authorises the address. `is_kept`: whether the Service already has ports on it.
    fn denied(&self, applicant: &Applicant<'_>, (at, ip): (usize, IpAddr), is_kept: bool) -> Problem {
        let (why, accepted) = self.why_denied(applicant, ip);
        let what = match is_kept {
            false => format!("external IP {ip} of Service {} is denied: {why}", applicant.key()),
            true => format!(
                "external IP {ip} of Service {} is no longer authorised: {why}; the Service keeps its ports on \
                 the address, and new ports are refused",
                applicant.key()
            ),
        };
        Problem {
            kind: ProblemKind::ExternalIpDenied,
            severity: Severity::Error,
            field: format!("spec.externalIPs[{at}]"),
            what,
            accepted: Some(accepted),
        }
    }

    fn authorising_pool(&self, applicant: &Applicant<'_>, ip: IpAddr) -> Option<usize> {
        if refused_endpoint(ip).is_some() || self.reserved.contains_key(&ip) {
            return None;
        }
        let mut of_pool = self.pools.iter().enumerate().filter(|(_, pool)| {
            pool.external_ips && pool.contains(ip) && !pool.disabled && self.admits_service(pool, applicant)
        });
        of_pool.find(|(at, _)| !self.over_quota(*at, applicant, ip, &[])).map(|(at, _)| at)
    }

    fn admits_service(&self, pool: &Pool, applicant: &Applicant<'_>) -> bool {
        pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels)
    }

    /// Why no pool authorises the address, and what a pool would authorise.
    fn why_denied(&self, applicant: &Applicant<'_>, ip: IpAddr) -> (String, String) {
        let authorising: Vec<&Pool> = self.pools.iter().filter(|p| p.external_ips).collect();
        let accepted = if authorising.is_empty() {
            "an address of a pool with externalIPs: true; there is no such pool".to_owned()
        } else {
            let shown: Vec<String> = authorising.iter().map(|p| describe(p)).collect();
            format!("an address of a pool with externalIPs: true: {}", shown.join("; "))
        };
        if let Some(why) = refused_endpoint(ip) {
            return (format!("the address is {why}"), accepted);
        }
        if let Some(owner) = self.reserved.get(&ip) {
            return (format!("it is {owner}"), accepted);
        }
        let containing = || self.pools.iter().enumerate().filter(|(_, p)| p.contains(ip));
        let of_pool = containing().filter(|(_, p)| p.external_ips && self.admits_service(p, applicant));
        if let Some((at, pool)) = of_pool.clone().find(|(_, pool)| !pool.disabled).or(of_pool.clone().next())
        {
            let why = if pool.disabled {
                format!("pool {} is disabled", pool.name)
            } else {
                self.quota_reached(at, applicant)
            };
            return (why, accepted);
        }
        let why = match containing().find(|(_, p)| p.external_ips).or_else(|| containing().next()) {
            Some((_, p)) if p.external_ips => {
                format!("the selectors of pool {} do not match this Service and its namespace", p.name)
            }
            Some((_, p)) => format!("pool {} does not authorise external IPs", p.name),
            None => "the address is in no pool".to_owned(),
        };
        (why, accepted)
    }
}

/// Reports that another Service has the port on the address.
fn not_programmed(
    applicant: &Applicant<'_>,
    ip: IpAddr,
    (at, port): (usize, PortKey),
    taken: &ClaimConflict,
) -> Problem {
    Problem {
        kind: ProblemKind::Conflict,
        severity: Severity::Error,
        field: format!("spec.ports[{at}]"),
        what: format!(
            "{} port {} on external IP {ip} of Service {} is not programmed: {taken}",
            port.0,
            port.1,
            applicant.key()
        ),
        accepted: Some(
            "a port that no other Service has on this address; to share the address of a Service of type \
             LoadBalancer, also the same tidegate.dev/allow-shared-ip key on both Services"
                .to_owned(),
        ),
    }
}
