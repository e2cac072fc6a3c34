//! The frontends of a Service that are not on addresses of pools: node ports on the gateway's own addresses, and
//! ports on cluster IPs. If several Services claim the same frontend, this module decides which one gets it.
//!
//! Addresses from a pool and health-check node ports take precedence, then the oldest Service by creation time and UID.
//! [`Contested`] keeps all claims by (address, protocol, port), so that a changed Service is compared only with
//! Services that claim the same frontends. If the gateway serves neither node ports nor cluster IPs, nothing is stored.
//!
//! Invariant: the first claim on an (address, protocol, port) is the owner's, in whatever order claims arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use tidegate_model::objects::{ObjectKey, Protocol, Service, ServicePort};
use tidegate_spec::ServiceKey;

use super::frontend::Frontend;
use super::health_check_node_ports::health_check_node_port;
use super::settings::Settings;
use super::view::VipKind;
use crate::pools::Granted;

pub(super) fn cluster_ips<'a>(settings: &Settings, service: &'a Service) -> &'a [IpAddr] {
    if settings.services.own_cluster_ips { &service.cluster_ips } else { &[] }
}

/// The frontends of a port that are not on addresses of pools.
pub(super) fn own_frontends(
    node_port_vips: &[IpAddr],
    cluster_ips: &[IpAddr],
    port: &ServicePort,
) -> impl Iterator<Item = Frontend> {
    let frontend =
        |vip: &IpAddr, number, via| Frontend { vip: *vip, protocol: port.protocol, port: number, via };
    let by_node_port = port.node_port.into_iter().flat_map(move |number| {
        node_port_vips.iter().map(move |vip| frontend(vip, number, VipKind::NodePort))
    });
    by_node_port.chain(cluster_ips.iter().map(move |vip| frontend(vip, port.port, VipKind::ClusterIp)))
}

/// Whether a Service has frontends that are not on addresses of pools.
pub(super) fn has_own_frontends(settings: &Settings, service: &Service) -> bool {
    let by_node_port = !settings.services.node_port_addresses.is_empty()
        && service.ports.iter().any(|port| port.node_port.is_some());
    by_node_port || !cluster_ips(settings, service).is_empty()
}

/// A frontend that a Service requests but that belongs to another Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrontendConflict {
    pub(super) frontend: Frontend,
    pub(super) owner: ObjectKey,
}

/// All claims, and the conflicting node ports and cluster IPs.
#[derive(Debug, Default)]
pub(super) struct Contested {
    claims: HashMap<ServiceKey, BTreeSet<Claim>>,
    by_service: BTreeMap<ObjectKey, Claims>,
    /// By the Service that does not get the frontend.
    conflicts: BTreeMap<ObjectKey, Vec<FrontendConflict>>,
}

/// A claim of a Service. The lowest claim wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    rank: Rank,
    service: ObjectKey,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The address is from a pool, or the port is a health-check node port.
    Fixed,
    /// By age: [`seniority`](tidegate_model::objects::Metadata::seniority) without the key.
    Own(bool, Option<jiff::Timestamp>, String),
}

#[derive(Debug)]
pub(super) struct Claims {
    fixed: Vec<Frontend>,
    /// Each frontend, with whether its address is also from a pool.
    own: Vec<(Frontend, bool)>,
    age: Rank,
}

impl Claims {
    /// Collects the claims; `None` if the Service has no claim that others could contest.
    pub(super) fn new(settings: &Settings, service: &Service, granted: &Granted) -> Option<Self> {
        let node_port_vips = settings.node_port_vips();
        if node_port_vips.is_empty() && !settings.services.own_cluster_ips {
            return None;
        }
        let load_balancer = granted.load_balancer.iter().map(|a| a.address);
        let of_pools: Vec<IpAddr> =
            load_balancer.chain(granted.external.iter().map(|(a, _)| a.address)).collect();
        let frontend = |vip: &IpAddr, protocol, port, via| Frontend { vip: *vip, protocol, port, via };
        let mut fixed = Vec::new();
        for port in &service.ports {
            fixed.extend(
                of_pools.iter().map(|vip| frontend(vip, port.protocol, port.port, VipKind::LoadBalancer)),
            );
        }
        if let Some(port) = health_check_node_port(service) {
            fixed.extend(
                node_port_vips.iter().map(|vip| frontend(vip, Protocol::Tcp, port, VipKind::NodePort)),
            );
        }
        let cluster_ips = cluster_ips(settings, service);
        let own = service.ports.iter().flat_map(|port| own_frontends(&node_port_vips, cluster_ips, port));
        let own = own.map(|frontend| (frontend, of_pools.contains(&frontend.vip))).collect();
        let meta = &service.meta;
        let age = Rank::Own(meta.creation_time.is_none(), meta.creation_time, meta.uid.clone());
        Some(Self { fixed, own, age })
    }

    fn all(&self) -> impl Iterator<Item = (ServiceKey, &Rank)> {
        let fixed = self.fixed.iter().map(|frontend| (frontend.key(), &Rank::Fixed));
        fixed.chain(self.own.iter().map(|(frontend, _)| (frontend.key(), &self.age)))
    }
}

impl Contested {
    /// The frontends that a Service requests but that belong to other Services.
    pub(super) fn of(&self, service: &ObjectKey) -> &[FrontendConflict] {
        self.conflicts.get(service).map_or(&[], Vec::as_slice)
    }

    /// Updates the claims of Services. Returns the Services whose conflicts changed.
    pub(super) fn update(
        &mut self,
        changes: impl IntoIterator<Item = (ObjectKey, Option<Claims>)>,
    ) -> Vec<ObjectKey> {
        let mut services: BTreeSet<ObjectKey> = BTreeSet::new();
        let mut frontends: BTreeSet<ServiceKey> = BTreeSet::new();
        for (service, claims) in changes {
            let was = self.by_service.remove(&service);
            if was.is_none() && claims.is_none() {
                continue;
            }
            for (frontend, rank) in was.iter().flat_map(Claims::all) {
                let claim = Claim { rank: rank.clone(), service: service.clone() };
                if let Some(claims) = self.claims.get_mut(&frontend) {
                    claims.remove(&claim);
                    if claims.is_empty() {
                        self.claims.remove(&frontend);
                    }
                }
                frontends.insert(frontend);
            }
            for (frontend, rank) in claims.iter().flat_map(Claims::all) {
                let claim = Claim { rank: rank.clone(), service: service.clone() };
                self.claims.entry(frontend).or_default().insert(claim);
                frontends.insert(frontend);
            }
            if let Some(claims) = claims {
                self.by_service.insert(service.clone(), claims);
            }
            services.insert(service);
        }
        let claims = frontends.iter().filter_map(|frontend| self.claims.get(frontend)).flatten();
        services.extend(claims.map(|claim| claim.service.clone()));
        services.into_iter().filter(|service| self.update_conflicts(service)).collect()
    }

    /// Determines which frontends of a Service belong to others. Returns whether the result changed.
    fn update_conflicts(&mut self, service: &ObjectKey) -> bool {
        let own = self.by_service.get(service).map_or(&[][..], |claims| &claims.own);
        let conflict = |(frontend, of_pool): &(Frontend, bool)| {
            let owner = &self.claims[&frontend.key()].first().expect("its own claim is among them").service;
            // If a LoadBalancer address of the Service is also its cluster IP, it is served as a LoadBalancer
            // address.
            let contested = owner != service || *of_pool;
            contested.then(|| FrontendConflict { frontend: *frontend, owner: owner.clone() })
        };
        let conflicts: Vec<FrontendConflict> = own.iter().filter_map(conflict).collect();
        if self.of(service) == conflicts {
            return false;
        }
        if conflicts.is_empty() {
            self.conflicts.remove(service);
        } else {
            self.conflicts.insert(service.clone(), conflicts);
        }
        true
    }
}
