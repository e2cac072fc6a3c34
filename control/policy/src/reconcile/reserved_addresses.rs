//! Addresses that no Service may get: the addresses of gateways, nodes, API servers, routers and peers, and of Services
//! that another load balancer serves (`docs/kubernetes.md`, sections 6 and 7).
//!
//! A Service that took over one of these with `spec.externalIPs` would receive other hosts' traffic. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_model::objects::{ObjectKey, Objects, Service, SliceIndex};

use super::settings::Settings;
use crate::pools::{FIELD_MANAGER, ReservedBy};

/// Each address with its owner. The gateway's own addresses take precedence.
pub(super) fn reserved(
    settings: &Settings,
    objects: &Objects,
    slices: &SliceIndex,
) -> BTreeMap<IpAddr, ReservedBy> {
    let network = &settings.network;
    let routers = network.routes.iter().map(|route| route.via);
    let neighbors = routers.chain(network.neighbors.iter().map(|neighbor| neighbor.ip));
    let of_others = objects.services.values().flat_map(|service| {
        let owner = ReservedBy::OtherLoadBalancer(service.meta.key.clone());
        of_other_load_balancer(settings, service).into_iter().map(move |ip| (ip, owner.clone()))
    });
    let mut reserved: BTreeMap<IpAddr, ReservedBy> = of_others.collect();
    reserved.extend(neighbors.map(|ip| (ip, ReservedBy::Router)));
    reserved.extend(settings.peers.iter().chain(&network.tunnel_peers).map(|ip| (*ip, ReservedBy::Peer)));
    for node in objects.nodes.values() {
        for ip in node.internal_ips.iter().chain(&node.external_ips) {
            reserved.insert(*ip, ReservedBy::Node(node.meta.key.name.clone()));
        }
    }
    reserved.extend(api_servers(objects, slices).into_iter().map(|ip| (ip, ReservedBy::ApiServer)));
    let others = settings.other_gateways.iter();
    reserved.extend(others.map(|(ip, name)| (*ip, ReservedBy::OtherGateway(name.clone()))));
    reserved.extend(network.own_addresses().into_iter().map(|ip| (ip, ReservedBy::Gateway)));
    reserved
}

/// The addresses that another load balancer assigned to the Service, according to its status. External IPs that are
/// repeated there don't count, because the Service itself requests them.
pub(super) fn of_other_load_balancer(settings: &Settings, service: &Service) -> Vec<IpAddr> {
    let stored = &service.stored;
    let is_ours = settings.claims(service)
        || stored.is_finalized_by_us()
        || stored.ingress_managers.iter().any(|manager| manager == FIELD_MANAGER);
    let given = service.ingress_ips.iter().filter(|ip| !is_ours && !service.external_ips.contains(ip));
    given.copied().collect()
}

pub(super) fn api_server() -> ObjectKey {
    ObjectKey::new("default", "kubernetes")
}

/// The addresses of the Service `kubernetes` in namespace `default` and of its endpoints. The address at which the
/// gateway itself reaches the API server is included too, because it may be a different address.
fn api_servers(objects: &Objects, slices: &SliceIndex) -> Vec<IpAddr> {
    let key = api_server();
    let mut addresses: Vec<IpAddr> = objects.api_servers.iter().copied().collect();
    if let Some(service) = objects.services.get(&key) {
        addresses.extend(service.cluster_ips.iter().copied());
    }
    if let Some(endpoints) = objects.endpoints.get(&key) {
        let of_subset =
            endpoints.subsets.iter().flat_map(|s| s.addresses.iter().chain(&s.not_ready_addresses));
        addresses.extend(of_subset.map(|address| address.ip));
    }
    // API servers keep one slice with this name, or one for each family. Slices of other writers have different
    // names.
    let endpoints = slices.of(&key).iter().flat_map(|slice| &slice.endpoints);
    addresses.extend(endpoints.filter_map(|endpoint| endpoint.address));
    addresses
}
