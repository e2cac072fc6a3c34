//! A cluster with a number of Services, each with a number of endpoints in slices of at most 100, and its gateway.
//!
//! The objects are in the form of a source: Pods with names, nodes and zones, slices with the labels of their owners.
//! Pods are in 10.128.0.0/9 behind a router, Services have addresses of 172.16.0.0/12, and the forwarding mode is
//! `fullnat`.
//!
//! Invariant: the same numbers give the same world.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{
    BackendRef, CONTROLLER, FromNamespaces, GROUP, Gateway, GatewayClass, Listener, ParentRef, Route,
    RouteRule,
};
use tidegate_model::objects::{
    AddressType, Conditions, Endpoint, EndpointPort, EndpointSlice, Metadata, Namespace, Node, ObjectKey,
    ObjectRef, Objects, Pool, Port, Protocol, SERVICE_NAME_LABEL, Service, ServicePort, ServiceType,
    TargetPort,
};
use tidegate_policy::reconcile::Settings;
use tidegate_spec::testing;
use tidegate_spec::{NeighborSpec, NetworkSpec, RouteSpec};
use tidegate_wire::MacAddr;

/// The maximum number of endpoints in a slice: the default of the endpoint slice controller.
const SLICE_MAX: usize = 100;
/// The number of endpoints on one node: the limit of the kubelet.
pub const PODS_PER_NODE: usize = 110;
const SERVICES_PER_NAMESPACE: usize = 100;

/// The gateway's link address.
pub const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The size of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Services of type LoadBalancer with one port.
    pub services: usize,
    /// Endpoints of each Service.
    pub endpoints: usize,
}

impl Size {
    /// The number of endpoints of all Services.
    #[must_use]
    pub fn all(self) -> usize {
        self.services * self.endpoints
    }

    /// The number of nodes with endpoints.
    #[must_use]
    pub fn nodes(self) -> usize {
        self.all().div_ceil(PODS_PER_NODE)
    }
}

/// A node in its zone. The router is its next hop.
#[must_use]
pub fn node(n: usize) -> Node {
    let mut node = Node::new(Metadata::new(ObjectKey::new("", format!("worker-{n}.cluster.example"))));
    let labels = [
        ("kubernetes.io/hostname", format!("worker-{n}")),
        ("topology.kubernetes.io/zone", format!("zone-{}", n % 3)),
    ];
    node.meta.labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
    let n = u32::try_from(n).expect("a node of 10.64.0.0/16");
    node.internal_ips = vec![Ipv4Addr::from_bits(0x0a40_0000 + 256 + n).into()];
    node
}

/// A namespace with a hundred Services.
#[must_use]
pub fn namespace(n: usize) -> Namespace {
    let mut meta = Metadata::new(ObjectKey::new("", format!("team-{n}")));
    meta.labels.insert("kubernetes.io/metadata.name".into(), format!("team-{n}"));
    Namespace { meta }
}

/// The namespace and name of a Service. There are a hundred Services in each namespace.
#[must_use]
pub fn key(service: usize) -> ObjectKey {
    ObjectKey::new(format!("team-{}", service / SERVICES_PER_NAMESPACE), format!("service-{service}"))
}

/// The address of the endpoint with this number.
#[must_use]
pub fn pod_ip(endpoint: usize) -> IpAddr {
    let n = u32::try_from(endpoint).expect("an endpoint of 10.128.0.0/9");
    Ipv4Addr::from_bits(0x0a80_0000 + 256 + n).into()
}

/// The objects of the cluster.
#[must_use]
pub fn objects(size: Size) -> Objects {
    let services = (0..size.services).map(service).map(|s| (s.meta.key.clone(), Arc::new(s)));
    let slices = (0..size.services).flat_map(|n| slices(size, n));
    Objects {
        services: services.collect(),
        endpoint_slices: slices.map(|s| (s.meta.key.clone(), Arc::new(s))).collect(),
        nodes: (0..size.nodes()).map(node).map(|n| (n.meta.key.name.clone(), Arc::new(n))).collect(),
        namespaces: (0..size.services.div_ceil(SERVICES_PER_NAMESPACE))
            .map(namespace)
            .map(|n| (n.meta.key.name.clone(), Arc::new(n)))
            .collect(),
        ..Objects::default()
    }
}

/// The number of listeners of a Gateway, each with a route to one Service.
pub const ROUTES_PER_GATEWAY: usize = 10;

/// Objects with Gateways instead of Services of type LoadBalancer: one for each ten Services, with a listener
/// and a TCPRoute for each of these.
#[must_use]
pub fn behind_gateways(mut objects: Objects, size: Size) -> Objects {
    let class = GatewayClass { controller: CONTROLLER.to_owned(), ..GatewayClass::default() };
    objects.gateway_classes.insert("tidegate".to_owned(), Arc::new(class));
    for first in (0..size.services).step_by(ROUTES_PER_GATEWAY) {
        let services = first..(first + ROUTES_PER_GATEWAY).min(size.services);
        let ObjectKey { namespace, name } = key(first);
        let gateway = ObjectKey::new(namespace.as_str(), name.as_str());
        let mut listeners = Vec::new();
        for (port, n) in (8000..).zip(services) {
            let port = Port::new(port).expect("not zero");
            let mut exposed = service(n);
            exposed.service_type = ServiceType::ClusterIp;
            let backend = BackendRef {
                group: String::new(),
                kind: "Service".to_owned(),
                namespace: None,
                name: exposed.meta.key.name.clone(),
                port: Some(exposed.ports[0].port),
                weight: 1,
            };
            let parent = ParentRef {
                group: GROUP.to_owned(),
                kind: "Gateway".to_owned(),
                name: name.clone(),
                port: Some(port),
                ..ParentRef::default()
            };
            let route = Route {
                meta: Metadata::new(exposed.meta.key.clone()),
                generation: 1,
                protocol: Protocol::Tcp,
                parents: vec![parent],
                rules: vec![RouteRule { name: None, backends: vec![backend] }],
                status: Vec::new(),
            };
            objects.tcp_routes.insert(route.meta.key.clone(), Arc::new(route));
            objects.services.insert(exposed.meta.key.clone(), Arc::new(exposed));
            listeners.push(Listener {
                name: format!("port-{port}"),
                hostname: None,
                port,
                protocol: "TCP".to_owned(),
                allowed_kinds: Vec::new(),
                allowed_namespaces: FromNamespaces::Same,
            });
        }
        let gateway = Gateway {
            meta: Metadata::new(gateway),
            class: "tidegate".to_owned(),
            listeners,
            ..Gateway::default()
        };
        objects.gateways.insert(gateway.meta.key.clone(), Arc::new(gateway));
    }
    objects
}

/// A Service with port 80 and target port 8080.
#[must_use]
pub fn service(n: usize) -> Service {
    let mut service = Service::new(Metadata::new(key(n)));
    service.service_type = ServiceType::LoadBalancer;
    service.ports = vec![ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: Port::new(80).expect("not zero"),
        target_port: TargetPort::Number(Port::new(8080).expect("not zero")),
        node_port: None,
        routed: None,
    }];
    service.allocate_node_ports = false;
    service.meta.labels.insert("app".into(), format!("app-{n}"));
    service.selector.insert("app".into(), format!("app-{n}"));
    service
}

/// The slices of one Service.
pub fn slices(size: Size, n: usize) -> impl Iterator<Item = EndpointSlice> {
    let first = n * size.endpoints;
    (0..size.endpoints).step_by(SLICE_MAX).map(move |from| {
        let to = (from + SLICE_MAX).min(size.endpoints);
        let service = key(n);
        let name = format!("{}-{:05x}", service.name, from / SLICE_MAX);
        let mut meta = Metadata::new(ObjectKey::new(service.namespace, name));
        meta.labels.insert(SERVICE_NAME_LABEL.into(), service.name);
        let managed_by = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
        meta.labels.insert(managed_by.0.into(), managed_by.1.into());
        EndpointSlice {
            meta,
            address_type: AddressType::V4,
            ports: vec![EndpointPort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: Port::new(8080),
                app_protocol: None,
            }],
            endpoints: (from..to).map(|at| endpoint(n, first + at)).collect(),
            left_out: None,
        }
    })
}

/// The endpoint of a Service with this number.
#[must_use]
pub fn endpoint(service: usize, endpoint: usize) -> Endpoint {
    let node = endpoint / PODS_PER_NODE;
    let ObjectKey { namespace, name } = key(service);
    Endpoint {
        address: Some(pod_ip(endpoint)),
        conditions: Conditions { ready: Some(true), serving: Some(true), terminating: Some(false) },
        node_name: Some(format!("worker-{node}.cluster.example")),
        zone: Some(format!("zone-{}", node % 3)),
        hint_zones: Vec::new(),
        hint_nodes: Vec::new(),
        target_ref: Some(ObjectRef {
            kind: "Pod".into(),
            key: ObjectKey::new(namespace, format!("{name}-7d9c6b8f5d-{endpoint:05x}")),
        }),
    }
}

/// The settings of a gateway with one interface.
#[must_use]
pub fn settings() -> Settings {
    let parse = |text: &str| text.parse().expect("an address of this world");
    let net = |text: &str| text.parse::<ipnet::IpNet>().expect("a network of this world");
    Settings {
        network: NetworkSpec {
            interfaces: vec![testing::interface(GATEWAY_MAC, &["10.0.0.1/16"])],
            routes: vec![RouteSpec { to: net("0.0.0.0/0"), via: parse("10.0.0.254") }],
            neighbors: vec![NeighborSpec { ip: parse("10.0.0.254"), mac: MacAddr([2, 0, 0, 0, 0, 0xfe]) }],
            snat_addresses: (3..35).map(|n| IpAddr::from([10, 0, 0, n])).collect(),
            ..NetworkSpec::default()
        }
        .into(),
        pools: vec![Pool::new("public", vec![net("172.16.0.0/12").into()])],
        ..Settings::default()
    }
}
