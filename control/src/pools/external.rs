//! Pass 2, the external IPs: each is honoured where a pool authorises it.
//!
//! Anyone who may create a Service could otherwise take any address (CVE-2020-8554). Ports of one external IP may
//! belong to different Services; who claimed a port first keeps it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::allocate::{Allocation, Applicant, Granted, describe};
use super::{Assigned, Claim, ClaimKind, Pool, Problem, ProblemKind};
use crate::diagnostic::Severity;
use crate::model::refused_endpoint;

impl Allocation {
    /// Pass 2: the external IPs that a pool authorises, port by port.
    pub(super) fn authorise_external(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if applicant.service.meta.deletion_time.is_some() {
            return;
        }
        let mut seen = BTreeSet::new();
        for (i, ip) in applicant.service.external_ips.iter().enumerate() {
            if !seen.insert(*ip) {
                continue;
            }
            let field = format!("spec.externalIPs[{i}]");
            let pool = match self.authorising_pool(applicant, *ip) {
                Ok(pool) => pool,
                Err((why, accepted)) => {
                    // It is not among its claims, and why it is denied may change.
                    self.hangs();
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
                match self.take(*ip, &claim) {
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
        if let Some(holder) = self.reserved.get(&ip) {
            return Err((holder.to_string(), accepted));
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
}
