//! Pass 1: a Service keeps the addresses and ports that it has, as long as it requests them.
//!
//! First come the ports that are known to belong to a Service ([`Had::firm`](super::Had)). These claims were granted
//! together before, so their order does not matter. Then come claims from a less reliable source, and claims under a
//! sharing key that has changed: the Service that changed its key loses. Ports that a Service added are claimed in
//! pass 2, like everything new.
//!
//! A change of a pool takes nothing from a Service: neither its addresses, its quota, its selectors nor its removal.
//! The operator takes addresses back with `forceRelease`: then a Service keeps only what the pool would still assign
//! to it.

use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::IpFamily;

use super::allocate::{Allocation, Applicant, Granted};
use super::{Assigned, Authority, Claim, ClaimKind, Held, Holder, PortKey, Problem, ProblemKind, WantedPool};

/// A pool: its index, if it still exists and contains the address, and its name.
pub(super) struct From {
    at: Option<usize>,
    name: String,
}

impl Allocation {
    /// Keeps the addresses and ports that are known to belong to the applicant.
    pub(super) fn keep_known(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if applicant.leaving {
            self.hold(applicant);
        }
        let asked = sorted_ports(applicant);
        for held in &applicant.had.firm {
            let Some(ports) = &held.ports else { continue };
            if held.sharing_key != applicant.sharing_key {
                continue;
            }
            let own: Vec<PortKey> =
                ports.iter().filter(|p| asked.binary_search(p).is_ok()).copied().collect();
            match held.kind {
                // The address is shared and the ports are different ones: whether it may stay there is decided after
                // the others.
                ClaimKind::LoadBalancer
                    if own.is_empty() && held.sharing_key.is_some() && !asked.is_empty() => {}
                ClaimKind::LoadBalancer => self.keep_address(applicant, granted, held, &own),
                ClaimKind::ExternalIp => self.keep_external(applicant, granted, held, &own),
            }
        }
    }

    /// Keeps the rest of its earlier addresses, unless a Service with a better claim has them now.
    pub(super) fn keep_rest(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let asked = sorted_ports(applicant);
        for held in applicant.had.all() {
            match held.kind {
                ClaimKind::LoadBalancer => {
                    if granted.load_balancer.iter().any(|assigned| assigned.address == held.address) {
                        continue;
                    }
                    let own = self.not_of_others(applicant, held.address, asked.iter().copied());
                    if !own.is_empty() || asked.is_empty() {
                        self.keep_address(applicant, granted, held, &own);
                    }
                }
                ClaimKind::ExternalIp => {
                    let had = held.ports.as_deref().unwrap_or(&asked);
                    let had = had.iter().filter(|port| asked.binary_search(port).is_ok()).copied();
                    let own = self.not_of_others(applicant, held.address, had);
                    self.keep_external(applicant, granted, held, &own);
                }
            }
        }
    }

    /// The ports among these that no other Service owns on the address.
    fn not_of_others(
        &self,
        applicant: &Applicant<'_>,
        ip: IpAddr,
        ports: impl Iterator<Item = PortKey>,
    ) -> Vec<PortKey> {
        let is_free =
            |port: &PortKey| self.ledger.owner(ip, *port).is_none_or(|owner| owner == applicant.key());
        let (free, taken): (Vec<PortKey>, Vec<PortKey>) = ports.partition(is_free);
        if !taken.is_empty() {
            self.hangs();
        }
        free
    }

    /// Keeps a LoadBalancer address for the applicant, initially with these ports.
    fn keep_address(
        &mut self,
        applicant: &Applicant<'_>,
        granted: &mut Granted,
        held: &Held,
        own: &[PortKey],
    ) {
        let Some(from) = self.address_stays(applicant, granted, held) else { return };
        let is_as_it_was = held.sharing_key == applicant.sharing_key && held.ports.is_some();
        let pool_shares = from.at.is_some_and(|at| self.pools[at].shared_across_namespaces);
        let claim = Claim {
            service: applicant.key(),
            kind: ClaimKind::LoadBalancer,
            ports: own,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: is_as_it_was || pool_shares,
        };
        let is_counted = self.ledger.namespace_holds(&applicant.key().namespace, held.address);
        if self.take(held.address, &claim).is_ok() {
            self.count_for_namespace(applicant, from.at, is_counted);
            granted.problems.extend(self.claim_of_gateway(applicant, held, "spec.type"));
            granted.load_balancer.push(Assigned { address: held.address, pool: from.name });
            granted.load_balancer.sort_unstable();
        }
    }

    /// The pool of a LoadBalancer address of the applicant, if it may keep the address.
    fn address_stays(&self, applicant: &Applicant<'_>, granted: &Granted, held: &Held) -> Option<From> {
        if !applicant.wants_load_balancer {
            return None;
        }
        let family = IpFamily::of(held.address);
        let has_family = granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family);
        let requested = applicant.requested.iter().any(|(ip, _)| *ip == held.address);
        let requests_other = applicant.requested.iter().any(|(ip, _)| IpFamily::of(*ip) == family);
        if has_family || !self.families(applicant).contains(&family) || (requests_other && !requested) {
            return None;
        }
        // Another gateway's claim on an address takes it from no Service: its account may be stolen.
        if self.reserved.get(&held.address) == Some(&Holder::Gateway) {
            return None;
        }
        let from = self.pool_of_held(applicant, held)?;
        let wished = applicant.pool.as_ref().is_none_or(|wish| {
            let is_it = |at: usize| wish.wanted.is(&self.pools[at]);
            held.wish.as_ref() == Some(&wish.wanted)
                || from.at.is_some_and(is_it)
                || matches!(&wish.wanted, WantedPool::Named(name) if *name == from.name)
        });
        (wished && !self.takes_back(applicant, held, &from)).then_some(from)
    }

    /// The pool from which an address was assigned. If that pool no longer has it: one that the applicant may use, or
    /// any pool that has it. `None` if no pool is known, as for a status that we did not write.
    pub(super) fn pool_of_held(&self, applicant: &Applicant<'_>, held: &Held) -> Option<From> {
        let contains = |at: &usize| self.pools[*at].contains(held.address);
        let is_ours = !held.pool.is_empty() || applicant.had.status_is_ours;
        if !is_ours {
            // Another controller wrote it: the address is adopted if a pool would assign it.
            let mut usable = self.usable_pools(applicant).filter(contains);
            let at = usable.find(|at| !self.over_quota(*at, applicant, held.address, &[]))?;
            return Some(From { at: Some(at), name: self.pools[at].name.clone() });
        }
        let named = (0..self.pools.len()).find(|at| self.pools[*at].name == held.pool);
        let at = named
            .filter(contains)
            .or_else(|| self.usable_pools(applicant).find(contains))
            .or_else(|| (0..self.pools.len()).find(contains));
        let name = at.map_or(&held.pool, |at| &self.pools[at].name);
        Some(From { at, name: name.clone() })
    }

    /// Whether the operator takes the address back, through the pool that it was assigned from, or that contains it
    /// now.
    fn takes_back(&self, applicant: &Applicant<'_>, held: &Held, from: &From) -> bool {
        let named = (0..self.pools.len()).find(|at| self.pools[*at].name == held.pool);
        let Some(at) = named.or(from.at) else { return false };
        let pool = &self.pools[at];
        let gives = || {
            pool.contains(held.address)
                && !pool.disabled
                && (held.kind == ClaimKind::LoadBalancer || pool.external_ips)
                && pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels)
                && !self.over_quota(at, applicant, held.address, &[])
        };
        pool.force_release && !gives()
    }

    /// The problem that another gateway, a router or another load balancer has an address that the applicant keeps.
    fn claim_of_gateway(&self, applicant: &Applicant<'_>, held: &Held, field: &str) -> Option<Problem> {
        let address = held.address;
        let (claim, accepted) = match self.reserved.get(&address)? {
            Holder::OtherGateway(name) => (
                format!("gateway {name} says that address {address} is its own"),
                "another address for that gateway",
            ),
            Holder::Router => (
                format!("address {address} is that of a router or a fixed neighbour of the gateway"),
                "a pool without the addresses of routers",
            ),
            Holder::OtherLoadBalancer(other) => (
                format!("another load balancer serves Service {other} with address {address}"),
                "pools of the two load balancers that do not overlap",
            ),
            Holder::Peer => (
                format!(
                    "address {address} is that of a peer in announce.bgp, flowSharing or dataplane.tunnelPeers"
                ),
                "a pool without the addresses of peers",
            ),
            _ => return None,
        };
        let key = applicant.key();
        Some(Problem {
            kind: ProblemKind::Conflict,
            severity: Severity::Warning,
            field: field.to_owned(),
            what: format!("{claim}; Service {key} had the address first and keeps it"),
            accepted: Some(accepted.to_owned()),
        })
    }

    /// Keeps ports of an external IP for the applicant.
    fn keep_external(
        &mut self,
        applicant: &Applicant<'_>,
        granted: &mut Granted,
        held: &Held,
        own: &[PortKey],
    ) {
        let service = applicant.service;
        let ip = held.address;
        let asks = service.meta.deletion_time.is_none() && service.external_ips.contains(&ip);
        let may_keep =
            |holder: &Holder| matches!(holder, Holder::OtherGateway(_) | Holder::OtherLoadBalancer(_));
        let is_reserved = self.reserved.get(&ip).is_some_and(|holder| !may_keep(holder));
        if own.is_empty() || !asks || is_reserved {
            return;
        }
        let from = self.pool_of_held(applicant, held).filter(|_| !held.pool.is_empty());
        let Some(from) = from.filter(|from| !self.takes_back(applicant, held, from)) else { return };
        let claim = Claim {
            service: applicant.key(),
            kind: ClaimKind::ExternalIp,
            ports: own,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: held.sharing_key == applicant.sharing_key,
        };
        let is_counted = self.ledger.namespace_holds(&applicant.key().namespace, ip);
        if self.take(ip, &claim).is_err() {
            return;
        }
        self.count_for_namespace(applicant, from.at, is_counted);
        match granted.external.iter_mut().find(|(assigned, _)| assigned.address == ip) {
            Some((_, ports)) => {
                ports.extend(own);
                ports.sort_unstable();
                ports.dedup();
            }
            None => {
                granted.problems.extend(self.claim_of_gateway(applicant, held, "spec.externalIPs"));
                granted.external.push((Assigned { address: ip, pool: from.name }, own.to_vec()));
            }
        }
    }

    /// Pass 2: claims new ports of the applicant on the addresses that it keeps.
    pub(super) fn extend(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let addresses: Vec<IpAddr> = granted.load_balancer.iter().map(|assigned| assigned.address).collect();
        for ip in addresses {
            for (j, port) in applicant.ports().into_iter().enumerate() {
                if self.ledger.owner(ip, port) == Some(applicant.key()) {
                    continue;
                }
                let claim = Claim {
                    service: applicant.key(),
                    kind: ClaimKind::LoadBalancer,
                    ports: &[port],
                    sharing_key: applicant.sharing_key.as_deref(),
                    // The Service already has the address.
                    across_namespaces: true,
                };
                let Err(taken) = self.take(ip, &claim) else { continue };
                granted.contested.insert((ip, port));
                granted.problems.add(ProblemKind::Conflict, || Problem {
                    kind: ProblemKind::Conflict,
                    severity: Severity::Error,
                    field: format!("spec.ports[{j}]"),
                    what: format!(
                        "{} port {} on address {ip} of Service {} is not programmed: {taken}",
                        port.0,
                        port.1,
                        applicant.key()
                    ),
                    accepted: Some("a port that no other Service has on this address".to_owned()),
                });
            }
        }
    }

    /// Reserves the addresses that a Service releases.
    fn hold(&mut self, applicant: &Applicant<'_>) {
        for held in applicant.had.all().filter(|held| held.kind == ClaimKind::LoadBalancer) {
            let Some(from) = self.pool_of_held(applicant, held) else { continue };
            let ports = held.ports.clone().unwrap_or_else(|| sorted_ports(applicant));
            let claim = Claim {
                service: applicant.key(),
                kind: ClaimKind::LoadBalancer,
                ports: &ports,
                sharing_key: held.sharing_key.as_deref().or(applicant.sharing_key.as_deref()),
                across_namespaces: true,
            };
            let sharing_key = claim.sharing_key.map(str::to_owned);
            if self.take(held.address, &claim).is_ok() {
                let held = Held { pool: from.name, ports: Some(ports), sharing_key, ..held.clone() };
                self.footprint.leaving.push(held);
            }
        }
    }

    /// Reserves the addresses that the Service will lose but that are still in the status that we wrote, or about to be
    /// written: other gateways serve them until the status changes.
    pub(super) fn hold_lost(&mut self, applicant: &Applicant<'_>, granted: &Granted) {
        let service = applicant.service;
        if !applicant.wants_load_balancer || *self.authority() == Authority::Follows {
            return;
        }
        let written = service.ingress_ips.iter().copied().filter(|_| applicant.had.status_is_ours);
        // Without the finalizer nothing is written.
        let given = applicant.had.load_balancer().filter(|_| service.stored.is_finalized_by_us());
        let ports = applicant.ports();
        let lost = |ip: &IpAddr| !granted.load_balancer.iter().any(|a| a.address == *ip);
        for ip in written.chain(given).filter(lost) {
            // This applies even if its pool was removed: the address may be in another one.
            let claim = Claim {
                service: applicant.key(),
                kind: ClaimKind::LoadBalancer,
                ports: &ports,
                sharing_key: applicant.sharing_key.as_deref(),
                across_namespaces: true,
            };
            // If another Service holds it, its claim already reserves the address.
            let _ = self.take(ip, &claim);
        }
    }
}

/// The ports that a Service requests, sorted.
fn sorted_ports(applicant: &Applicant<'_>) -> Vec<PortKey> {
    let mut ports = applicant.ports();
    ports.sort_unstable();
    ports
}
