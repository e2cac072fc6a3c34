//! The Service as which a Gateway is served: its listeners are ports, and `infrastructure` has the labels and
//! annotations.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{Gateway, GatewayAddress};
use tidegate_model::objects::{
    Ingress, IpFamilyPolicy, Metadata, ObjectKey, Routed, Service, ServicePort, ServiceType, Stored,
    TargetPort,
};

use super::listeners::Site;
use crate::reconcile::LOAD_BALANCER_IPS;

/// The type of an address that pools assign.
const IP_ADDRESS: &str = "IPAddress";

/// Why `spec.addresses` cannot be granted by any pool.
pub(super) fn address_fault(gateway: &Gateway) -> Option<String> {
    let unsupported = gateway.addresses.iter().find(|address| address.kind != IP_ADDRESS)?;
    Some(format!("spec.addresses: type {} is not supported; supported: {IP_ADDRESS}", unsupported.kind))
}

/// The Service. If the Gateway is not accepted, it serves nothing, keeps the addresses that it has, and gets no new one.
pub(super) fn served(
    gateway: &Gateway,
    is_accepted: bool,
    sites: &[Site<'_>],
    routed: Vec<Option<Arc<Routed>>>,
) -> Arc<Service> {
    let port = |(site, routed): (&Site<'_>, Option<Arc<Routed>>)| {
        let (port, protocol) = site.state.served.filter(|_| is_accepted)?;
        Some(ServicePort {
            name: site.label(),
            protocol,
            app_protocol: None,
            port,
            target_port: TargetPort::Number(port),
            node_port: None,
            routed: Some(routed.unwrap_or_default()),
        })
    };
    let of_sets = sites.iter().filter(|site| site.set.is_some() && site.state.served.is_some());
    Arc::new(Service {
        service_type: ServiceType::LoadBalancer,
        gets_no_address: !is_accepted,
        added_ports: if is_accepted { of_sets.count() } else { 0 },
        ports: sites.iter().zip(routed).filter_map(port).collect(),
        allocate_node_ports: false,
        ..released(gateway)
    })
}

/// The Service of a Gateway that requests nothing (any longer).
pub(super) fn released(gateway: &Gateway) -> Service {
    let ingress_ips = assigned(&gateway.status.addresses);
    let ingress = |ip: &IpAddr| Ingress { ip: Some(*ip), ..Ingress::default() };
    let Metadata { key, uid, creation_time, arrival, deletion_time, faults, origin, .. } =
        gateway.meta.clone();
    let mut annotations = gateway.infrastructure_annotations.clone();
    let (any, requested): (Vec<&str>, Vec<&str>) =
        gateway.addresses.iter().map(|a| a.value.as_str()).partition(|value| value.is_empty());
    if !requested.is_empty() {
        annotations.insert(LOAD_BALANCER_IPS.to_owned(), requested.join(","));
    }
    let named = annotations.get(LOAD_BALANCER_IPS).map_or(0, |list| list.split(',').count());
    let mut labels = gateway.meta.labels.clone();
    labels.extend(gateway.infrastructure_labels.clone());
    let key = ObjectKey::of_gateway(&key.namespace, &key.name);
    let mut service = Service::new(Metadata {
        key,
        uid,
        creation_time,
        arrival,
        deletion_time,
        labels,
        annotations,
        faults,
        origin,
    });
    service.stored = Stored {
        version: gateway.version,
        generation: gateway.generation,
        finalizers: gateway.finalizers.clone(),
        ingress: ingress_ips.iter().map(ingress).collect(),
        conditions: gateway.status.conditions.clone(),
        ingress_managers: gateway.address_managers.clone(),
    };
    // Two addresses are one of each family.
    if named + any.len() > 1 {
        service.ip_family_policy = IpFamilyPolicy::PreferDualStack;
    }
    service.ingress_ips = ingress_ips;
    service.source_ranges.clone_from(&gateway.source_ranges);
    service
}

fn assigned(addresses: &[GatewayAddress]) -> Vec<IpAddr> {
    addresses.iter().filter(|a| a.kind == IP_ADDRESS).filter_map(|a| a.value.parse().ok()).collect()
}
