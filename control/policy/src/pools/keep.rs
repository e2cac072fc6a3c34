//! Pass 1: a Service keeps its addresses and ports as long as it requests them.
//!
//! Ports that are known to belong to a Service come first ([`confirmed`](super::PreviousAddresses)). These claims were
//! granted together before, so their order doesn't matter. Claims from a less reliable source follow, together with
//! claims whose sharing key has changed: in a conflict, the Service that changed its key loses. Ports that a Service
//! added are claimed in pass 2, like everything new.
//!
//! No change of a pool takes an address from a Service, not even the removal of the pool. With `forceRelease`, the
//! operator takes addresses back: a Service then keeps only what the pool would still assign to it.

use std::net::IpAddr;

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::{IpFamily, ServicePort};

use super::allocate::{Allocation, Applicant, Granted};
use super::{
    Assigned, Authority, Claim, ClaimKind, OwnedAddress, PortKey, Problem, ProblemKind, RequestedPool,
    ReservedBy,
};

/// A pool by name, with its index if it still exists and contains the address.
pub(super) struct From {
    at: Option<usize>,
    name: String,
}

impl Allocation {
    /// Keeps the addresses and ports that are known to belong to the applicant.
    pub(super) fn keep_known(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        if applicant.releasing {
            self.reserve_released(applicant);
        }
        let requested = sorted_ports(applicant);
        for owned in &applicant.previous.confirmed {
            let Some(ports) = &owned.ports else { continue };
            if owned.sharing_key != applicant.sharing_key {
                continue;
            }
            let own: Vec<PortKey> =
                ports.iter().filter(|p| requested.binary_search(p).is_ok()).copied().collect();
            match owned.kind {
                // The address is shared and all ports have changed. `keep_rest` decides whether the Service keeps the
                // address.
                ClaimKind::LoadBalancer
                    if own.is_empty() && owned.sharing_key.is_some() && !applicant.own_ports().is_empty() => {
                }
                ClaimKind::LoadBalancer => self.keep_address(applicant, granted, owned, &own),
                ClaimKind::ExternalIp => self.keep_external(applicant, granted, owned, &own),
            }
        }
    }

    /// Keeps the other previous addresses of the applicant, unless a Service with a better claim has them now.
    pub(super) fn keep_rest(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let requested = sorted_ports(applicant);
        for owned in applicant.previous.all() {
            match owned.kind {
                ClaimKind::LoadBalancer => {
                    if granted.load_balancer.iter().any(|assigned| assigned.address == owned.address) {
                        continue;
                    }
                    let own = self.not_of_others(applicant, owned.address, requested.iter().copied());
                    if !own.is_empty() || applicant.own_ports().is_empty() {
                        self.keep_address(applicant, granted, owned, &own);
                    }
                }
                ClaimKind::ExternalIp => {
                    let previous = owned.ports.as_deref().unwrap_or(&requested);
                    let previous =
                        previous.iter().filter(|port| requested.binary_search(port).is_ok()).copied();
                    let own = self.not_of_others(applicant, owned.address, previous);
                    self.keep_external(applicant, granted, owned, &own);
                }
            }
        }
    }

    /// The given ports, without ports that another Service owns on the address.
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
            self.mark_dependent();
        }
        free
    }

    /// Keeps a LoadBalancer address for the applicant, with these ports. `extend` claims new ones.
    fn keep_address(
        &mut self,
        applicant: &Applicant<'_>,
        granted: &mut Granted,
        owned: &OwnedAddress,
        own: &[PortKey],
    ) {
        let Some(from) = self.address_stays(applicant, granted, owned) else { return };
        let is_as_it_was = owned.sharing_key == applicant.sharing_key && owned.ports.is_some();
        let pool_shares = from.at.is_some_and(|at| self.pools[at].shared_across_namespaces);
        let claim = Claim {
            service: applicant.key(),
            kind: ClaimKind::LoadBalancer,
            ports: own,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: is_as_it_was || pool_shares,
        };
        let is_counted = self.ledger.namespace_owns(&applicant.key().namespace, owned.address);
        if self.try_claim(owned.address, &claim).is_ok() {
            self.count_for_namespace(applicant, from.at, is_counted);
            granted.problems.extend(self.claim_of_gateway(applicant, owned, "spec.type"));
            granted.load_balancer.push(Assigned { address: owned.address, pool: from.name });
            granted.load_balancer.sort_unstable();
        }
    }

    /// The pool of a LoadBalancer address of the applicant, if the applicant may keep the address.
    fn address_stays(
        &self,
        applicant: &Applicant<'_>,
        granted: &Granted,
        owned: &OwnedAddress,
    ) -> Option<From> {
        if !applicant.wants_load_balancer {
            return None;
        }
        let family = IpFamily::of(owned.address);
        let has_family = granted.load_balancer.iter().any(|a| IpFamily::of(a.address) == family);
        let requested = applicant.requested.iter().any(|(ip, _)| *ip == owned.address);
        let requests_other = applicant.requested.iter().any(|(ip, _)| IpFamily::of(*ip) == family);
        if has_family || !self.families(applicant).contains(&family) || (requests_other && !requested) {
            return None;
        }
        // Of the reserved addresses, a Service loses only this gateway's own. The claim of another gateway doesn't
        // count, because that gateway's account may be stolen.
        if self.reserved.get(&owned.address) == Some(&ReservedBy::Gateway) {
            return None;
        }
        let from = self.pool_of_owned(applicant, owned)?;
        let matches_request = applicant.pool.as_ref().is_none_or(|request| {
            let is_it = |at: usize| request.wanted.is(&self.pools[at]);
            owned.requested_pool.as_ref() == Some(&request.wanted)
                || from.at.is_some_and(is_it)
                || matches!(&request.wanted, RequestedPool::Named(name) if *name == from.name)
        });
        (matches_request && !self.is_force_released(applicant, owned, &from)).then_some(from)
    }

    /// The pool from which an address was assigned. If that pool no longer contains the address: a pool that contains
    /// it and that the applicant may use, or else any pool that contains it. `None` if no pool is known, as for a
    /// status that Tidegate did not write.
    pub(super) fn pool_of_owned(&self, applicant: &Applicant<'_>, owned: &OwnedAddress) -> Option<From> {
        let contains = |at: &usize| self.pools[*at].contains(owned.address);
        let is_ours = !owned.pool.is_empty() || applicant.previous.status_is_ours;
        if !is_ours {
            // Another controller wrote the status: the address is adopted if a pool would assign it.
            let mut usable = self.usable_pools(applicant).filter(contains);
            let at = usable.find(|at| !self.over_quota(*at, applicant, owned.address, &[]))?;
            return Some(From { at: Some(at), name: self.pools[at].name.clone() });
        }
        let named = (0..self.pools.len()).find(|at| self.pools[*at].name == owned.pool);
        let at = named
            .filter(contains)
            .or_else(|| self.usable_pools(applicant).find(contains))
            .or_else(|| (0..self.pools.len()).find(contains));
        let name = at.map_or(&owned.pool, |at| &self.pools[at].name);
        Some(From { at, name: name.clone() })
    }

    /// Whether the operator takes the address back, through the pool that assigned it or the pool that contains it
    /// now.
    fn is_force_released(&self, applicant: &Applicant<'_>, owned: &OwnedAddress, from: &From) -> bool {
        let named = (0..self.pools.len()).find(|at| self.pools[*at].name == owned.pool);
        let Some(at) = named.or(from.at) else { return false };
        let pool = &self.pools[at];
        let gives = || {
            pool.contains(owned.address)
                && !pool.disabled
                && (owned.kind == ClaimKind::LoadBalancer || pool.external_ips)
                && pool.admits(&applicant.service.meta.labels, &applicant.namespace_labels)
                && !self.over_quota(at, applicant, owned.address, &[])
        };
        pool.force_release && !gives()
    }

    /// Reports that another gateway, a router, a peer or another load balancer uses an address that the applicant
    /// keeps.
    fn claim_of_gateway(
        &self,
        applicant: &Applicant<'_>,
        owned: &OwnedAddress,
        field: &str,
    ) -> Option<Problem> {
        let address = owned.address;
        let (claim, accepted) = match self.reserved.get(&address)? {
            ReservedBy::OtherGateway(name) => (
                format!("gateway {name} reports {address} as its own address"),
                "another address for that gateway",
            ),
            ReservedBy::Router => (
                format!(
                    "address {address} belongs to a router or neighbour in dataplane.routes or dataplane.neighbors"
                ),
                "a pool without the addresses of routers and neighbours",
            ),
            ReservedBy::OtherLoadBalancer(other) => (
                format!("another load balancer serves Service {other} with address {address}"),
                "pools that do not overlap with the pools of the other load balancer",
            ),
            ReservedBy::Peer => (
                format!(
                    "address {address} belongs to a peer in announce.bgp, flowSharing or dataplane.tunnelPeers"
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
        owned: &OwnedAddress,
        own: &[PortKey],
    ) {
        let service = applicant.service;
        let ip = owned.address;
        let is_requested = service.meta.deletion_time.is_none() && service.external_ips.contains(&ip);
        let may_keep = |owner: &ReservedBy| {
            matches!(owner, ReservedBy::OtherGateway(_) | ReservedBy::OtherLoadBalancer(_))
        };
        let is_reserved = self.reserved.get(&ip).is_some_and(|owner| !may_keep(owner));
        if own.is_empty() || !is_requested || is_reserved {
            return;
        }
        let from = self.pool_of_owned(applicant, owned).filter(|_| !owned.pool.is_empty());
        let Some(from) = from.filter(|from| !self.is_force_released(applicant, owned, from)) else { return };
        let claim = Claim {
            service: applicant.key(),
            kind: ClaimKind::ExternalIp,
            ports: own,
            sharing_key: applicant.sharing_key.as_deref(),
            across_namespaces: owned.sharing_key == applicant.sharing_key,
        };
        let is_counted = self.ledger.namespace_owns(&applicant.key().namespace, ip);
        if self.try_claim(ip, &claim).is_err() {
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
                granted.problems.extend(self.claim_of_gateway(applicant, owned, "spec.externalIPs"));
                granted.external.push((Assigned { address: ip, pool: from.name }, own.to_vec()));
            }
        }
    }

    /// Pass 2: claims new ports of the applicant on the addresses that it keeps. Pass 4: claims the ports that
    /// ListenerSets add, on new addresses.
    pub(super) fn extend(&mut self, applicant: &Applicant<'_>, granted: &mut Granted) {
        let addresses: Vec<IpAddr> = granted.load_balancer.iter().map(|assigned| assigned.address).collect();
        for ip in addresses {
            for (j, port) in applicant.ports().into_iter().enumerate() {
                let is_own = self.ledger.owner(ip, port) == Some(applicant.key());
                if is_own || granted.contested.contains(&(ip, port)) {
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
                let Err(taken) = self.try_claim(ip, &claim) else { continue };
                granted.contested.insert((ip, port));
                granted.problems.add(ProblemKind::Conflict, || Problem {
                    kind: ProblemKind::Conflict,
                    severity: Severity::Error,
                    field: format!("spec.ports[{j}]"),
                    what: format!(
                        "{} port {}{} on address {ip} of Service {} is not programmed: {taken}",
                        port.0,
                        port.1,
                        listener_of(&applicant.service.ports[j]),
                        applicant.key()
                    ),
                    accepted: Some("a port that no other Service has on this address".to_owned()),
                });
            }
        }
    }

    /// Reserves the addresses that a Service releases.
    fn reserve_released(&mut self, applicant: &Applicant<'_>) {
        for owned in applicant.previous.all().filter(|owned| owned.kind == ClaimKind::LoadBalancer) {
            let Some(from) = self.pool_of_owned(applicant, owned) else { continue };
            let ports = owned.ports.clone().unwrap_or_else(|| sorted_ports(applicant));
            let claim = Claim {
                service: applicant.key(),
                kind: ClaimKind::LoadBalancer,
                ports: &ports,
                sharing_key: owned.sharing_key.as_deref().or(applicant.sharing_key.as_deref()),
                across_namespaces: true,
            };
            let sharing_key = claim.sharing_key.map(str::to_owned);
            if self.try_claim(owned.address, &claim).is_ok() {
                let owned =
                    OwnedAddress { pool: from.name, ports: Some(ports), sharing_key, ..owned.clone() };
                self.footprint.releasing.push(owned);
            }
        }
    }

    /// Reserves addresses that the Service loses while they are in the status that Tidegate wrote, or about to be
    /// written there: other gateways serve them until the status changes.
    pub(super) fn reserve_lost(&mut self, applicant: &Applicant<'_>, granted: &Granted) {
        let service = applicant.service;
        if !applicant.wants_load_balancer || *self.authority() == Authority::Follows {
            return;
        }
        let written = service.ingress_ips.iter().copied().filter(|_| applicant.previous.status_is_ours);
        // Without the finalizer, nothing is written.
        let given = applicant.previous.load_balancer().filter(|_| service.stored.is_finalized_by_us());
        let ports = applicant.ports();
        let lost = |ip: &IpAddr| !granted.load_balancer.iter().any(|a| a.address == *ip);
        for ip in written.chain(given).filter(lost) {
            // This applies even if the pool was removed: the address may be in another pool.
            let claim = Claim {
                service: applicant.key(),
                kind: ClaimKind::LoadBalancer,
                ports: &ports,
                sharing_key: applicant.sharing_key.as_deref(),
                across_namespaces: true,
            };
            // If another Service owns the address, its claim already reserves it.
            let _ = self.try_claim(ip, &claim);
        }
    }
}

/// The name of the listener that a port is, with its ListenerSet; empty for a port of a Service.
fn listener_of(port: &ServicePort) -> String {
    port.routed.as_ref().map_or_else(String::new, |_| format!(" (listener {})", port.name))
}

/// The ports that a Service requests, sorted.
fn sorted_ports(applicant: &Applicant<'_>) -> Vec<PortKey> {
    let mut ports = applicant.ports();
    ports.sort_unstable();
    ports
}
