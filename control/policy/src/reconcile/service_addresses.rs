//! The addresses on which clients reach the ports of a Service: LoadBalancer addresses, external IPs, the gateway's
//! own addresses for node ports, and cluster IPs. All are in one table of (address, protocol, port).
//!
//! `pools` decides which Service gets an address of a pool, and `own_frontends` which gets a node port or cluster IP.
//!
//! Invariant: no two Services have the same (address, protocol, port).

use std::net::IpAddr;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ObjectKey, Pool, Service, ServicePort, TrafficPolicy};
use tidegate_spec::ownership::Layer2;

use super::finding::{Finding, Reason};
use super::frontend::Frontend;
use super::own_frontends::{Contested, FrontendConflict, cluster_ips, own_frontends};
use super::plan::Plan;
use super::settings::Settings;
use super::view::{EdgeView, PortRefusal, RefusalReason, VipKind, VipView};
use super::vip_announcement;
use crate::pools::Granted;

pub(super) struct ServiceAddresses<'a> {
    granted: &'a Granted,
    /// The gateway's own addresses that serve node ports.
    node_port_vips: Vec<IpAddr>,
    cluster_ips: &'a [IpAddr],
    conflicts: &'a [FrontendConflict],
    service: &'a ObjectKey,
    /// Whether each of its LoadBalancer addresses has a separate Lease: its `externalTrafficPolicy` is Local, or a
    /// Service with that policy may share the address. Every gateway must use the same Lease for an address.
    has_own_lease: bool,
    settings: &'a Settings,
    pools: &'a [Pool],
}

impl<'a> ServiceAddresses<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        plan: Plan<'a>,
        granted: &'a Granted,
        contested: &'a Contested,
        pools: &'a [Pool],
    ) -> Self {
        let service = plan.service;
        Self {
            granted,
            node_port_vips: settings.node_port_vips(),
            cluster_ips: cluster_ips(settings, service),
            conflicts: contested.of(&service.meta.key),
            service: &service.meta.key,
            has_own_lease: service.external_traffic_policy == TrafficPolicy::Local
                || plan.options.addresses.sharing_key.is_some(),
            settings,
            pools,
        }
    }

    /// How the gateway answers ARP and neighbour discovery for a frontend's address. `is_elsewhere`: whether only
    /// other gateways can serve the port there.
    pub(super) fn layer2(&self, frontend: &Frontend, is_elsewhere: bool) -> Layer2 {
        let all = self.granted.load_balancer.iter().chain(self.granted.external.iter().map(|(a, _)| a));
        let pool = all
            .filter(|assigned| assigned.address == frontend.vip)
            .map(|assigned| assigned.pool.as_str())
            .next();
        vip_announcement::layer2(
            &self.edge_of(pool.unwrap_or_default(), frontend.vip),
            frontend.via,
            is_elsewhere,
        )
    }

    fn edge_of(&self, pool: &str, vip: IpAddr) -> EdgeView {
        // External IPs can be shared without a key, so each has a separate Lease.
        let has_own_lease = self.has_own_lease || !self.load_balancer().any(|one| one == vip);
        vip_announcement::edge(
            self.settings,
            self.pools.iter().find(|one| one.name == pool),
            vip,
            has_own_lease,
        )
    }

    /// The maximum number of addresses of a port.
    pub(super) fn addresses_of(&self, port: &ServicePort) -> usize {
        let Self { granted, node_port_vips, cluster_ips, .. } = self;
        let node_ports = if port.node_port.is_some() { node_port_vips.len() } else { 0 };
        granted.load_balancer.len() + granted.external.len() + node_ports + cluster_ips.len()
    }

    pub(super) fn load_balancer(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.granted.load_balancer.iter().map(|assigned| assigned.address)
    }

    /// The external IPs that are not also LoadBalancer addresses.
    pub(super) fn external_ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let all = self.granted.external.iter().map(|(assigned, _)| assigned.address);
        all.filter(|ip| !self.load_balancer().any(|vip| vip == *ip))
    }

    /// The possible frontends of a port, each with the reason why it is refused, if it is; sorted by address and port.
    pub(super) fn of_port(&self, port: &ServicePort) -> Vec<(Frontend, Result<(), PortRefusal>)> {
        let frontend = |vip, number, via| Frontend { vip, protocol: port.protocol, port: number, via };
        let mut found: Vec<(Frontend, Result<(), PortRefusal>)> = Vec::new();
        let number = (port.protocol, port.port.get());
        for vip in self.load_balancer() {
            let is_own = !self.granted.contested.contains(&(vip, number));
            let served = is_own.then_some(()).ok_or_else(taken);
            found.push((frontend(vip, port.port, VipKind::LoadBalancer), served));
        }
        for (assigned, own) in &self.granted.external {
            // An external IP that is also a LoadBalancer address is served as a LoadBalancer address.
            if self.load_balancer().any(|vip| vip == assigned.address) {
                continue;
            }
            let is_own = own.contains(&number);
            let served = is_own.then_some(()).ok_or_else(taken);
            found.push((frontend(assigned.address, port.port, VipKind::ExternalIp), served));
        }
        for own in own_frontends(&self.node_port_vips, self.cluster_ips, port) {
            let conflict = self.conflicts.iter().find(|conflict| conflict.frontend == own);
            let by_itself = conflict.is_some_and(|conflict| conflict.owner == *self.service);
            // An address that is also a LoadBalancer address or an external IP is served as such.
            if by_itself && found.iter().any(|(frontend, _)| frontend.key() == own.key()) {
                continue;
            }
            let refusal = if by_itself { taken_by_itself } else { taken };
            found.push((own, conflict.is_none().then_some(()).ok_or_else(refusal)));
        }
        found.sort_by_key(|(frontend, _)| (frontend.vip, frontend.port, frontend.via));
        found
    }

    /// The addresses for display, sorted.
    pub(super) fn views(&self, service: &Service) -> Vec<VipView> {
        let edge_of = |kind, pool: &str, vip| match kind {
            VipKind::LoadBalancer | VipKind::ExternalIp => self.edge_of(pool, vip),
            VipKind::NodePort | VipKind::ClusterIp => EdgeView::default(),
        };
        let view = |address: IpAddr, kind, pool: &str| VipView {
            address,
            kind,
            pool: pool.to_owned(),
            edge: edge_of(kind, pool, address),
        };
        let load_balancer = self.granted.load_balancer.iter();
        let mut views: Vec<VipView> =
            load_balancer.map(|a| view(a.address, VipKind::LoadBalancer, &a.pool)).collect();
        for (assigned, _) in &self.granted.external {
            if !self.load_balancer().any(|vip| vip == assigned.address) {
                views.push(view(assigned.address, VipKind::ExternalIp, &assigned.pool));
            }
        }
        if service.ports.iter().any(|port| port.node_port.is_some()) {
            views.extend(self.node_port_vips.iter().map(|vip| view(*vip, VipKind::NodePort, "")));
        }
        views.extend(self.cluster_ips.iter().map(|vip| view(*vip, VipKind::ClusterIp, "")));
        views.sort_by_key(|view| (view.address, view.kind.as_str()));
        views
    }

    /// Whether the Service serves this frontend on an address of a pool that is also a cluster IP or an address of
    /// the gateway.
    fn is_served_of_pool(&self, service: &Service, own: &Frontend) -> bool {
        let is_lb = self.load_balancer().any(|vip| vip == own.vip);
        let is_external = self.granted.external.iter().any(|(assigned, ports)| {
            assigned.address == own.vip && ports.contains(&(own.protocol, own.port.get()))
        });
        let has_port = service.ports.iter().any(|p| (p.protocol, p.port) == (own.protocol, own.port));
        has_port && (is_lb || is_external)
    }

    /// Adds findings about ports that belong to other Services.
    pub(super) fn findings(&self, service: &Service, findings: &mut Vec<Finding>) {
        let meta = &service.meta;
        for FrontendConflict { frontend, owner } in self.conflicts {
            if self.is_served_of_pool(service, frontend) {
                continue;
            }
            let found = service.ports.iter().enumerate().find(|(_, port)| {
                port.protocol == frontend.protocol
                    && match frontend.via {
                        VipKind::NodePort => port.node_port == Some(frontend.port),
                        _ => port.port == frontend.port,
                    }
            });
            let Some((i, port)) = found else { continue };
            let (what, field, accepted) = if frontend.via == VipKind::NodePort {
                (
                    frontend.describe(port),
                    format!("spec.ports[{i}].nodePort"),
                    "a node port that nothing else uses",
                )
            } else {
                let what = format!("port {} on cluster IP {}", port.label(), frontend.vip);
                (what, "spec.clusterIPs".to_owned(), "a cluster IP that nothing else uses")
            };
            let (why, reason) = if *owner == meta.key {
                (TAKEN_BY_ITSELF.to_owned(), Reason::PortNotProgrammed)
            } else {
                (format!("the port belongs to Service {owner}"), Reason::Conflict)
            };
            let what = format!("{what} of Service {} is not programmed: {why}", meta.key);
            let diagnostic = Diagnostic::error(what).accepting(accepted);
            findings.push(Finding::at(meta, &field, reason, diagnostic));
        }
    }
}

const TAKEN: &str = "another Service has this port on this address";
const TAKEN_BY_ITSELF: &str = "the Service itself already uses this port on this address: for another port, as its \
    healthCheckNodePort, or because the address is also its LoadBalancer address";

fn taken() -> PortRefusal {
    PortRefusal::new(RefusalReason::Conflict, TAKEN)
}

fn taken_by_itself() -> PortRefusal {
    PortRefusal::new(RefusalReason::NotProgrammed, TAKEN_BY_ITSELF)
}
