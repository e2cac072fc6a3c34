//! Allocates the node ports that an API server would allocate: `nodePort` and `healthCheckNodePort`.
//!
//! The range is 30000 to 32767. Its lowest min(max(16, size/32), 128) ports are the static band, which is used last,
//! so that ports chosen by hand there stay free (KEP-3668). A hash of the Service's name and the port chooses the
//! node port, so it is the same in every run, and another Service changes it only by a collision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{
    ObjectKey, Objects, PATH_START, Port, Protocol, Service, ServiceType, TrafficPolicy, path_hash,
};

const FIRST: u16 = 30_000;
const LAST: u16 = 32_767;
const SIZE: u16 = LAST - FIRST + 1;
/// min(max(16, size/32), 128)
const STATIC_BAND: u16 = 86;

/// The owner of each port.
type Taken = BTreeMap<(Port, Protocol), ObjectKey>;

/// Requested ports that belong to another Service: the Service, and the index of the port, or `None` for
/// `healthCheckNodePort`.
type Refused = BTreeSet<(ObjectKey, Option<usize>)>;

/// First records the ports that Services request, in order, then assigns ports to those that need one. A requested port
/// that belongs to another Service is removed and not replaced: an API server would have refused the whole object.
pub(super) fn allocate(objects: &mut Objects, report: &mut Report) {
    let mut taken = Taken::new();
    let mut refused = Refused::new();
    let mut services: Vec<&Arc<Service>> = objects.services.values().collect();
    services.sort_by(|a, b| a.meta.seniority().cmp(&b.meta.seniority()));
    for service in services {
        let key = &service.meta.key;
        for (i, port) in service.ports.iter().enumerate() {
            if let Some(node_port) = port.node_port {
                let field = format!("spec.ports[{i}].nodePort");
                if !claim(&mut taken, service, node_port, port.protocol, &field, report) {
                    refused.insert((key.clone(), Some(i)));
                }
            }
        }
        if let Some(port) = service.health_check_node_port
            && !claim(&mut taken, service, port, Protocol::Tcp, "spec.healthCheckNodePort", report)
        {
            refused.insert((key.clone(), None));
        }
    }
    let concerned = |service: &Service| {
        let key = &service.meta.key;
        lacks_ports(service) || refused.range((key.clone(), None)..).next().is_some_and(|(k, _)| k == key)
    };
    for service in objects.services.values_mut().filter(|service| concerned(service)) {
        let wants = |protocol, what: &str| (protocol, format!("{} {what}", service.meta.key));
        let mut given = Service::clone(service);
        let numbered = matches!(service.service_type, ServiceType::NodePort)
            || (service.service_type == ServiceType::LoadBalancer && service.allocate_node_ports);
        for (i, port) in given.ports.iter_mut().enumerate() {
            if refused.contains(&(service.meta.key.clone(), Some(i))) {
                port.node_port = None;
            } else if numbered && port.node_port.is_none() {
                let (protocol, seed) = wants(port.protocol, &format!("{}/{}", port.port, port.protocol));
                port.node_port = choose(&mut taken, service, protocol, &seed, report);
            }
        }
        if refused.contains(&(service.meta.key.clone(), None)) {
            given.health_check_node_port = None;
        } else if lacks_health_port(service) {
            let (protocol, seed) = wants(Protocol::Tcp, "health");
            given.health_check_node_port = choose(&mut taken, service, protocol, &seed, report);
        }
        *service = Arc::new(given);
    }
}

fn lacks_ports(service: &Service) -> bool {
    let numbered = match service.service_type {
        ServiceType::NodePort => true,
        ServiceType::LoadBalancer => service.allocate_node_ports,
        ServiceType::ClusterIp | ServiceType::ExternalName => false,
    };
    (numbered && service.ports.iter().any(|p| p.node_port.is_none())) || lacks_health_port(service)
}

fn lacks_health_port(service: &Service) -> bool {
    service.service_type == ServiceType::LoadBalancer
        && service.external_traffic_policy == TrafficPolicy::Local
        && service.health_check_node_port.is_none()
}

/// Claims the port for the Service. Returns whether it was free.
fn claim(
    taken: &mut Taken,
    service: &Service,
    port: Port,
    protocol: Protocol,
    field: &str,
    report: &mut Report,
) -> bool {
    let key = &service.meta.key;
    if let Some(owner) = taken.get(&(port, protocol)) {
        report.push(
            Diagnostic::error(format!("{field}: {port}/{protocol} is already taken by Service {owner}"))
                .accepting("a free port; or omit the field")
                .at(service.meta.origin.field(field)),
        );
        return false;
    }
    taken.insert((port, protocol), key.clone());
    true
}

fn choose(
    taken: &mut Taken,
    service: &Service,
    protocol: Protocol,
    seed: &str,
    report: &mut Report,
) -> Option<Port> {
    let dynamic = SIZE - STATIC_BAND;
    let start = u16::try_from(path_hash(PATH_START, seed) % u64::from(dynamic)).expect("less than a u16");
    let upper = (0..dynamic).map(|i| FIRST + STATIC_BAND + (start + i) % dynamic);
    let lower = (0..STATIC_BAND).map(|i| FIRST + i);
    let free = upper.chain(lower).filter_map(Port::new).find(|p| !taken.contains_key(&(*p, protocol)));
    match free {
        Some(port) => {
            taken.insert((port, protocol), service.meta.key.clone());
        }
        None => report.push(
            Diagnostic::warning(format!(
                "no free {protocol} node port is left for Service {}",
                service.meta.key
            ))
            .accepting("fewer Services with node ports, or allocateLoadBalancerNodePorts: false")
            .at(service.meta.origin.location()),
        ),
    }
    free
}
