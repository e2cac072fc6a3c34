//! The cluster of [`world`](crate::world) in the form of an API server: JSON, with Nodes, Pods and Namespaces. The
//! Services have the addresses and conditions that an earlier gateway wrote.
//!
//! Services with an odd number are UDP, so that packets can be sent to them without a connection.
//!
//! Invariant: equal numbers give equal clusters.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use tidegate_model::objects::{Endpoint, EndpointSlice, FINALIZER, Protocol};
use tidegate_policy::pools::{FIELD_MANAGER, OwnedAddress, record};

use crate::world::{self, PODS_PER_NODE, Size};

/// The address range of Services.
pub const POOL: &str = "172.16.0.0/12";
/// The `name` of that pool.
pub const POOL_NAME: &str = "public";
/// The port of every Service.
pub const PORT: u16 = 80;
/// The port of every endpoint.
pub const TARGET_PORT: u16 = 8080;

/// Optional parts of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Services have the address, finalizer and conditions that a gateway writes.
    pub has_status: bool,
    /// The number of TCP Services that request health checks by TCP.
    pub checked: usize,
    /// There is a Pod for each endpoint.
    pub has_pods: bool,
}

/// Whether the Service with this number is UDP.
#[must_use]
pub fn is_udp(service: usize) -> bool {
    service % 2 == 1
}

/// The address of the Service with this number, after a gateway has assigned it.
#[must_use]
pub fn vip(service: usize) -> IpAddr {
    let n = u32::try_from(service).expect("a Service of 172.16.0.0/12");
    Ipv4Addr::from_bits(0xac10_0000 + 256 + n).into()
}

/// All objects. `singles` further Services with one endpoint each follow: [`single_service`], [`single`].
pub fn objects(size: Size, singles: usize, variant: Variant) -> impl Iterator<Item = Value> {
    let numbers = (0..size.services).chain((0..singles).map(move |k| single_service(size, k)));
    let services = numbers.map(move |n| service(n, variant));
    let slices = (0..size.services).flat_map(move |n| world::slices(size, n).map(move |s| slice(n, &s)));
    let more = (0..singles).map(move |k| single_slice(single_service(size, k), single(k, false)));
    let nodes = (0..size.all().div_ceil(PODS_PER_NODE)).map(node);
    let pods = (0..if variant.has_pods { size.all() } else { 0 }).map(move |n| pod(n / size.endpoints, n));
    services.chain(slices).chain(more).chain(nodes).chain(pods)
}

/// The number of a Service with a single endpoint. It is UDP.
#[must_use]
pub fn single_service(size: Size, k: usize) -> usize {
    (size.services | 1) + 2 * k
}

/// The endpoint of a Service with a single one. It alternates between two addresses.
#[must_use]
pub fn single(k: usize, other: bool) -> IpAddr {
    let (high, low) = (u8::try_from(k / 128).expect("few"), u8::try_from(k % 128).expect("below 128"));
    Ipv4Addr::new(10, 254, high, low * 2 + u8::from(other)).into()
}

/// A Service of type LoadBalancer.
#[must_use]
pub fn service(n: usize, variant: Variant) -> Value {
    let key = world::key(n);
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": key.namespace, "name": key.name, "labels": {"app": format!("app-{n}")}},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": "tidegate.dev/gateway",
            "allocateLoadBalancerNodePorts": false,
            "selector": {"app": format!("app-{n}")},
            "ports": [{"name": "http", "port": PORT, "targetPort": TARGET_PORT, "protocol": protocol(n)}],
        },
    });
    if !is_udp(n) && n / 2 < variant.checked {
        service["metadata"]["annotations"] = json!({"tidegate.dev/health-check-protocol": "tcp"});
    }
    if variant.has_status {
        let ip = vip(n);
        let proto = if is_udp(n) { Protocol::Udp } else { Protocol::Tcp };
        let owned = OwnedAddress {
            pool: POOL_NAME.to_owned(),
            ports: Some(vec![(proto, PORT)]),
            ..OwnedAddress::of_status(ip)
        };
        let condition = |kind: &str, status: &str, reason: &str, message: String| {
            json!({
                "type": format!("tidegate.dev/{kind}"), "status": status, "reason": reason, "message": message,
                "observedGeneration": 0, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        service["metadata"]["finalizers"] = json!([FINALIZER]);
        service["metadata"]["managedFields"] = json!([{
            "manager": FIELD_MANAGER, "operation": "Apply", "apiVersion": "v1", "subresource": "status",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}},
        }]);
        service["status"] = json!({
            "loadBalancer": {"ingress": [{"ip": ip, "ipMode": "Proxy"}]},
            "conditions": [
                condition("Allocated", "True", "Allocated", format!("{ip} from pool {POOL_NAME}")),
                condition("Programmed", "True", "Programmed", "every port is forwarded with fullnat".to_owned()),
                condition("Healthy", "True", "BackendsUp", "every port has an active backend".to_owned()),
                condition("Conflicted", "False", "NoConflict", String::new()),
                condition("Holds", "True", "Recorded", record(&[owned])),
            ],
        });
    }
    service
}

fn protocol(service: usize) -> &'static str {
    if is_udp(service) { "UDP" } else { "TCP" }
}

/// A slice of the Service with this number.
#[must_use]
pub fn slice(service: usize, slice: &EndpointSlice) -> Value {
    let meta = &slice.meta;
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": meta.key.namespace, "name": meta.key.name, "labels": meta.labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": TARGET_PORT, "protocol": protocol(service)}],
        "endpoints": slice.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// The slice of a Service whose only endpoint has this address.
#[must_use]
pub fn single_slice(service: usize, address: IpAddr) -> Value {
    let one = Size { services: service + 1, endpoints: 1 };
    let mut only = world::slices(one, service).next().expect("a Service has a slice");
    only.endpoints[0].address = Some(address);
    slice(service, &only)
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let target = endpoint.target_ref.as_ref().map(
        |target| json!({"kind": target.kind, "namespace": target.key.namespace, "name": target.key.name}),
    );
    json!({
        "addresses": [endpoint.address],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": endpoint.node_name,
        "zone": endpoint.zone,
        "targetRef": target,
    })
}

fn node(n: usize) -> Value {
    let (high, low) = (n / 200, n % 200);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": format!("worker-{n}.cluster.example"),
            "labels": {
                "kubernetes.io/hostname": format!("worker-{n}"),
                "topology.kubernetes.io/zone": format!("zone-{}", n % 3),
            },
        },
        "spec": {"providerID": format!("metal://rack-{high}/{low}")},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("10.64.{high}.{low}")}]},
    })
}

fn pod(service: usize, n: usize) -> Value {
    let one = world::endpoint(service, n);
    let key = one.target_ref.expect("of a Pod").key;
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": key.namespace, "name": key.name,
            "labels": {"app": format!("app-{service}"), "pod-template-hash": "7d9c6b8f5d"},
        },
        "spec": {"nodeName": one.node_name, "containers": [{"name": "web", "image": "web"}]},
        "status": {"phase": "Running", "podIP": one.address},
    })
}
