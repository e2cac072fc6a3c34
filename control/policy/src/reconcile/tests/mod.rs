//! Tests of Services with assertions on the outcome. This file has the initial state that they share.

mod client_address;
mod compare;
mod conformance;
mod edits;
mod health;
mod incremental;
mod lifecycle;
mod order;
mod refusals;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{
    AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, IpFamilyPolicy, Metadata, Node,
    ObjectKey, ObjectRef, Objects, Pod, Pool, Port, Protocol, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy,
};
use tidegate_spec::testing;
use tidegate_spec::{BackendState, NetworkSpec, RouteSpec, ServiceSpec, SnapshotSpec};
use tidegate_wire::MacAddr;

use super::*;

pub(super) fn ip(s: &str) -> IpAddr {
    s.parse().expect("tests use valid addresses")
}

pub(super) fn port(n: u16) -> Port {
    Port::new(n).expect("tests use ports above zero")
}

pub(super) fn pool(name: &str, networks: &[&str]) -> Pool {
    Pool::new(name, networks.iter().map(|n| n.parse::<ipnet::IpNet>().expect("a network").into()).collect())
}

/// A gateway with one link, addresses for every mode, and the pools `public` and `edge` (external IPs).
pub(super) fn settings() -> Settings {
    let mut edge = pool("edge", &["198.51.100.0/28", "2001:db8:2::/124"]);
    edge.auto_assign = false;
    edge.external_ips = true;
    Settings {
        network: NetworkSpec {
            interfaces: vec![testing::interface(
                MacAddr([2, 0, 0, 0, 0, 2]),
                &["10.0.0.1/16", "2001:db8::1/64"],
            )],
            snat_addresses: vec![ip("10.0.0.3"), ip("2001:db8::3")],
            tunnel_source_v4: Some("10.0.0.1".parse().expect("an address")),
            tunnel_source_v6: Some("2001:db8::1".parse().expect("an address")),
            ..NetworkSpec::default()
        }
        .into(),
        pools: vec![pool("public", &["203.0.113.0/28", "2001:db8:1::/124"]), edge],
        ..Settings::default()
    }
}

pub(super) fn service_port(name: &str, protocol: Protocol, number: u16, target: u16) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        app_protocol: None,
        port: port(number),
        target_port: TargetPort::Number(port(target)),
        node_port: None,
        routed: None,
    }
}

/// `default/NAME` of type LoadBalancer with `http` 80/TCP to 8080.
pub(super) fn service(name: &str) -> Service {
    let mut service = Service::new(Metadata::new(ObjectKey::new("default", name)));
    service.service_type = ServiceType::LoadBalancer;
    service.ports = vec![service_port("http", Protocol::Tcp, 80, 8080)];
    service
}

/// `default/NAME` of type ClusterIP with an external IP.
pub(super) fn external(name: &str, address: &str) -> Service {
    Service { service_type: ServiceType::ClusterIp, external_ips: vec![ip(address)], ..service(name) }
}

pub(super) fn annotated(mut service: Service, key: &str, value: &str) -> Service {
    service.meta.annotations.insert(key.into(), value.into());
    service
}

pub(super) fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: Some(ip(address)),
        conditions: Conditions::default(),
        node_name: None,
        zone: None,
        hint_zones: vec![],
        hint_nodes: vec![],
        target_ref: None,
    }
}

pub(super) fn with(mut endpoint: Endpoint, ready: bool, serving: bool, terminating: bool) -> Endpoint {
    endpoint.conditions =
        Conditions { ready: Some(ready), serving: Some(serving), terminating: Some(terminating) };
    endpoint
}

pub(super) fn on(mut endpoint: Endpoint, node: &str) -> Endpoint {
    endpoint.node_name = Some(node.into());
    endpoint
}

pub(super) fn slice(
    name: &str,
    of: &str,
    ports: &[(&str, Protocol, u16)],
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let mut meta = Metadata::new(ObjectKey::new("default", name));
    meta.labels.insert("kubernetes.io/service-name".into(), of.into());
    let v6 = endpoints.first().and_then(|e| e.address).is_some_and(|a| a.is_ipv6());
    EndpointSlice {
        meta,
        address_type: if v6 { AddressType::V6 } else { AddressType::V4 },
        ports: ports
            .iter()
            .map(|(name, protocol, number)| EndpointPort {
                name: (*name).into(),
                protocol: *protocol,
                port: Some(port(*number)),
                app_protocol: None,
            })
            .collect(),
        endpoints,
        left_out: None,
    }
}

/// The slice that fits [`service`].
pub(super) fn http(of: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    slice(&format!("{of}-{}", endpoints.len()), of, &[("http", Protocol::Tcp, 8080)], endpoints)
}

/// A node with these InternalIPs.
pub(super) fn node(name: &str, internal_ips: &[&str]) -> Node {
    let mut node = Node::new(Metadata::new(ObjectKey::new("", name)));
    node.internal_ips = internal_ips.iter().map(|address| ip(address)).collect();
    node
}

/// The objects of a manifest, which must be valid.
pub(super) fn read(yaml: &str) -> Objects {
    let (objects, report) = load(yaml);
    assert!(!report.has_errors(), "{report}");
    objects
}

/// The valid objects of a manifest in a directory, and the faults of the others.
pub(super) fn load(yaml: &str) -> (Objects, tidegate_model::diagnostic::Report) {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("objects.yaml"), yaml).expect("a file");
    tidegate_source::directory::DirectorySource::load(directory.path())
}

/// The inputs of repeated reconciles.
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) objects: Objects,
    pub(super) verdicts: Verdicts,
    pub(super) drained: BTreeSet<DrainTarget>,
    pub(super) memory: Memory,
    pub(super) now: Duration,
}

impl World {
    pub(super) fn new(services: Vec<Service>, slices: Vec<EndpointSlice>) -> Self {
        let mut world = Self {
            settings: settings(),
            objects: Objects::default(),
            verdicts: Verdicts::default(),
            drained: BTreeSet::new(),
            memory: Memory::default(),
            now: Duration::from_secs(100),
        };
        services.into_iter().for_each(|s| world.put(s));
        world.set_slices(slices);
        world
    }

    pub(super) fn put(&mut self, service: Service) {
        self.objects.services.insert(service.meta.key.clone(), Arc::new(service));
    }

    pub(super) fn put_node(&mut self, node: Node) {
        self.objects.nodes.insert(node.meta.key.name.clone(), Arc::new(node));
    }

    pub(super) fn set_slices(&mut self, slices: Vec<EndpointSlice>) {
        self.objects.endpoint_slices =
            slices.into_iter().map(|s| (s.meta.key.clone(), Arc::new(s))).collect();
    }

    /// Reconciles without keeping the memory.
    pub(super) fn look(&self) -> Outcome {
        reconcile(&self.input())
    }

    pub(super) fn input(&self) -> Input<'_> {
        Input {
            settings: &self.settings,
            objects: &self.objects,
            verdicts: &self.verdicts,
            drained: &self.drained,
            memory: &self.memory,
            generation: 1,
            now: self.now,
        }
    }

    /// Reconciles and keeps the memory, as the daemon does.
    pub(super) fn step(&mut self) -> Outcome {
        let outcome = self.look();
        self.memory = outcome.memory.clone();
        outcome
    }
}

/// The single service port of an outcome.
pub(super) fn only(outcome: &Outcome) -> &ServiceSpec {
    assert_eq!(outcome.spec.services.len(), 1, "{:?}\n{:#?}", outcome.spec.services, outcome.findings);
    &outcome.spec.services[0]
}

/// `address:port weight` of each active backend.
pub(super) fn weights(service: &ServiceSpec) -> Vec<String> {
    let active = service.backends.iter().filter(|b| b.state == BackendState::Active);
    active.map(|b| format!("{} {}", SocketAddr::new(b.address, b.port), b.weight)).collect()
}

/// `address:port state` of each backend.
pub(super) fn states(service: &ServiceSpec) -> Vec<String> {
    let show = |state| match state {
        BackendState::Active => "active",
        BackendState::Draining => "draining",
        BackendState::Down => "down",
    };
    service
        .backends
        .iter()
        .map(|b| format!("{} {}", SocketAddr::new(b.address, b.port), show(b.state)))
        .collect()
}

pub(super) fn messages(outcome: &Outcome) -> Vec<String> {
    outcome.findings.iter().map(|f| f.diagnostic.to_string()).collect()
}
