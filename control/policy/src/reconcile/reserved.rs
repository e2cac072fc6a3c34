//! Addresses that no Service may have: those of gateways, nodes, API servers and routers (`docs/kubernetes.md`, section 7).
//!
//! A Service that could take one of these with `spec.externalIPs` would receive the traffic of others. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tidegate_model::objects::{ObjectKey, Objects, SliceIndex};

use super::settings::Settings;
use crate::pools::Holder;

/// Each address with its owner. The gateway's own addresses take precedence.
pub(super) fn reserved(
    settings: &Settings,
    objects: &Objects,
    slices: &SliceIndex,
) -> BTreeMap<IpAddr, Holder> {
    let network = &settings.network;
    let routers = network.routes.iter().map(|route| route.via);
    let neighbors = routers.chain(network.neighbors.iter().map(|neighbor| neighbor.ip));
    let mut reserved: BTreeMap<IpAddr, Holder> = neighbors.map(|ip| (ip, Holder::Router)).collect();
    for node in objects.nodes.values() {
        for ip in node.internal_ips.iter().chain(&node.external_ips) {
            reserved.insert(*ip, Holder::Node(node.meta.key.name.clone()));
        }
    }
    reserved.extend(api_servers(objects, slices).into_iter().map(|ip| (ip, Holder::ApiServer)));
    let others = settings.other_gateways.iter();
    reserved.extend(others.map(|(ip, name)| (*ip, Holder::OtherGateway(name.clone()))));
    reserved.extend(network.own_addresses().into_iter().map(|ip| (ip, Holder::Gateway)));
    reserved
}

/// The Service of the API server.
pub(super) fn api_server() -> ObjectKey {
    ObjectKey::new("default", "kubernetes")
}

/// The addresses of the Service `kubernetes` in namespace `default`, and of its endpoints; and the address at which the
/// gateway itself reaches an API server, which may be a different one.
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
    // API servers keep one slice, or one for each family, with this name. Slices of other writers have different names.
    let endpoints = slices.of(&key).iter().flat_map(|slice| &slice.endpoints);
    addresses.extend(endpoints.filter_map(|endpoint| endpoint.address));
    addresses
}
