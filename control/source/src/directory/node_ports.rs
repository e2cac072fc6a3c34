//! Allocates the node ports that an API server would allocate: `nodePort` and `healthCheckNodePort`.
//!
//! The range is 30000 to 32767. Its lowest min(max(16, size/32), 128) ports are the static band, which is used last, so
//! that ports chosen by hand there stay free (KEP-3668). A hash of the Service's name and the port selects the node
//! port, so that it is the same in every run, and another Service changes it only through a collision. If several ports
//! of a Service have the same number with different protocols, they get the same node port where it is free.

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

/// The lowest port that is not in the static band.
const FIRST_DYNAMIC: u16 = FIRST + STATIC_BAND;

/// The owner of each port, and the free ports of the range.
#[derive(Default)]
struct Ports {
    owners: BTreeMap<(Port, Protocol), ObjectKey>,
    /// Stored, so that even many requests are refused quickly when no port is free.
    free: BTreeMap<Protocol, BTreeSet<u16>>,
}

impl Ports {
    fn take(&mut self, port: Port, protocol: Protocol, owner: &ObjectKey) {
        self.owners.insert((port, protocol), owner.clone());
        self.free_of(protocol).remove(&port.get());
    }

    fn is_free(&self, port: Port, protocol: Protocol) -> bool {
        !self.owners.contains_key(&(port, protocol))
    }

    fn free_of(&mut self, protocol: Protocol) -> &mut BTreeSet<u16> {
        self.free.entry(protocol).or_insert_with(|| (FIRST..=LAST).collect())
    }

    /// The first free port from `start` on, wrapping around to the lowest dynamic port. If none is free, the first free
    /// port of the static band.
    fn next_free(&mut self, protocol: Protocol, start: u16) -> Option<Port> {
        let free = self.free_of(protocol);
        let found = free.range(start..).chain(free.range(FIRST_DYNAMIC..start)).next();
        found.or_else(|| free.first()).copied().and_then(Port::new)
    }
}

/// Requested ports that belong to another Service: the Service, and the index of the port, or `None` for
/// `healthCheckNodePort`.
type Refused = BTreeSet<(ObjectKey, Option<usize>)>;

/// Records the ports that Services request, in order, then assigns ports to those that need one. A requested port that
/// belongs to another Service is removed and not replaced, because an API server would have refused the whole object.
pub(super) fn allocate(objects: &mut Objects, report: &mut Report) {
    let mut ports = Ports::default();
    let mut refused = Refused::new();
    let mut services: Vec<&Arc<Service>> = objects.services.values().collect();
    services.sort_by(|a, b| a.meta.seniority().cmp(&b.meta.seniority()));
    for service in services {
        let key = &service.meta.key;
        for (i, port) in service.ports.iter().enumerate() {
            if let Some(node_port) = port.node_port {
                let field = format!("spec.ports[{i}].nodePort");
                if !claim(&mut ports, service, node_port, port.protocol, &field, report) {
                    refused.insert((key.clone(), Some(i)));
                }
            }
        }
        if let Some(port) = service.health_check_node_port
            && !claim(&mut ports, service, port, Protocol::Tcp, "spec.healthCheckNodePort", report)
        {
            refused.insert((key.clone(), None));
        }
    }
    let concerned = |service: &Service| {
        let key = &service.meta.key;
        lacks_ports(service) || refused.range((key.clone(), None)..).next().is_some_and(|(k, _)| k == key)
    };
    let keys = objects.services.iter().filter(|(_, service)| concerned(service)).map(|(key, _)| key.clone());
    for key in keys.collect::<Vec<ObjectKey>>() {
        let service = &objects.services[&key];
        let wants = |protocol, what: &str| (protocol, format!("{} {what}", service.meta.key));
        let mut given = Service::clone(service);
        let numbered = matches!(service.service_type, ServiceType::NodePort)
            || (service.service_type == ServiceType::LoadBalancer && service.allocate_node_ports);
        let is_refused = |i| refused.contains(&(service.meta.key.clone(), Some(i)));
        // The node port for each port number: the first one that is requested or assigned.
        let mut of_number: BTreeMap<Port, Port> = BTreeMap::new();
        for (i, port) in given.ports.iter_mut().enumerate() {
            port.node_port = port.node_port.filter(|_| !is_refused(i));
            if let Some(node_port) = port.node_port {
                of_number.entry(port.port).or_insert(node_port);
            }
        }
        for (i, port) in given.ports.iter_mut().enumerate() {
            if !numbered || port.node_port.is_some() || is_refused(i) {
                continue;
            }
            let same = of_number.get(&port.port).copied().filter(|same| ports.is_free(*same, port.protocol));
            port.node_port = if let Some(same) = same {
                ports.take(same, port.protocol, &service.meta.key);
                Some(same)
            } else {
                let (protocol, seed) = wants(port.protocol, &format!("{}/{}", port.port, port.protocol));
                choose(&mut ports, service, protocol, &seed, report)
            };
            if let Some(node_port) = port.node_port {
                of_number.entry(port.port).or_insert(node_port);
            }
        }
        if refused.contains(&(service.meta.key.clone(), None)) {
            given.health_check_node_port = None;
        } else if lacks_health_port(service) {
            let (protocol, seed) = wants(Protocol::Tcp, "health");
            given.health_check_node_port = choose(&mut ports, service, protocol, &seed, report);
        }
        objects.services.insert(key, Arc::new(given));
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

/// Claims a port for the Service. Returns whether it was free.
fn claim(
    ports: &mut Ports,
    service: &Service,
    port: Port,
    protocol: Protocol,
    field: &str,
    report: &mut Report,
) -> bool {
    let key = &service.meta.key;
    if let Some(owner) = ports.owners.get(&(port, protocol)) {
        report.push(
            Diagnostic::error(format!("{field}: {port}/{protocol} is already taken by Service {owner}"))
                .accepting("a free port; or omit the field")
                .at(service.meta.origin.field(field)),
        );
        return false;
    }
    ports.take(port, protocol, key);
    true
}

fn choose(
    ports: &mut Ports,
    service: &Service,
    protocol: Protocol,
    seed: &str,
    report: &mut Report,
) -> Option<Port> {
    let dynamic = SIZE - STATIC_BAND;
    let offset = u16::try_from(path_hash(PATH_START, seed) % u64::from(dynamic)).expect("less than a u16");
    let free = ports.next_free(protocol, FIRST_DYNAMIC + offset);
    match free {
        Some(port) => ports.take(port, protocol, &service.meta.key),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The specified order of selection: each port in turn until one is free.
    fn scan(ports: &Ports, protocol: Protocol, start: u16) -> Option<Port> {
        let all = (start..=LAST).chain(FIRST_DYNAMIC..start).chain(FIRST..FIRST_DYNAMIC);
        all.filter_map(Port::new).find(|port| !ports.owners.contains_key(&(*port, protocol)))
    }

    fn protocols() -> impl Strategy<Value = Protocol> {
        prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
    }

    proptest! {
        #[test]
        fn the_port_is_the_first_one_that_a_scan_of_the_range_finds(
            // Ports that Services request, some outside of the range, in runs that may exhaust a band.
            runs in prop::collection::vec((protocols(), FIRST - 100..=LAST + 100, 1_u16..2_900), 0..4),
            chosen in prop::collection::vec((protocols(), FIRST_DYNAMIC..=LAST), 1..100),
        ) {
            let (mut ports, owner) = (Ports::default(), ObjectKey::new("a", "a"));
            for (protocol, first, count) in runs {
                for port in (first..=first.saturating_add(count)).filter_map(Port::new) {
                    ports.take(port, protocol, &owner);
                }
            }
            for (protocol, start) in chosen {
                let expected = scan(&ports, protocol, start);
                prop_assert_eq!(ports.next_free(protocol, start), expected);
                if let Some(port) = expected {
                    ports.take(port, protocol, &owner);
                }
            }
        }
    }

    #[test]
    fn no_port_is_free_once_all_are_assigned() {
        let (mut ports, owner) = (Ports::default(), ObjectKey::new("a", "a"));
        for start in FIRST_DYNAMIC..FIRST_DYNAMIC + SIZE {
            let start = start.min(LAST);
            let port = ports.next_free(Protocol::Tcp, start).expect("a port is free");
            ports.take(port, Protocol::Tcp, &owner);
        }
        assert!(ports.free[&Protocol::Tcp].is_empty());
        assert_eq!(ports.next_free(Protocol::Tcp, FIRST_DYNAMIC), None);
        assert_eq!(ports.next_free(Protocol::Udp, LAST), Port::new(LAST));
    }
}
