//! The watched kinds of objects: their path, the selector, and the fields that are kept.
//!
//! Each kind has an entry in [`KINDS`]. `source::manifest` decodes the fields, as for files. A new kind needs a decoder
//! there, a field in [`Objects`], and an entry here.

use tidegate_model::config::GatewayApi;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_model::yaml::Node;

use crate::manifest::Object;

/// A kind that is listed and watched in all namespaces.
#[derive(Debug)]
pub(super) struct Kind {
    /// The name as in manifests.
    pub(super) name: &'static str,
    /// The path of the collection.
    pub(super) path: &'static str,
    /// Label selector; empty for all objects.
    pub(super) labels: &'static str,
    /// The parts of the object that are kept in addition to its metadata: keys of the object, each with the keys below
    /// it to keep, or all if none is listed. If the list is empty, the whole object is kept.
    pub(super) keep: &'static [(&'static str, &'static [&'static str])],
    /// Whether the gateway continues if the API server doesn't have the kind (404: there are no objects, unless there
    /// were some before), or doesn't allow the gateway to read it (403: the known objects stay).
    pub(super) optional: bool,
    /// Whether it is a kind of the Gateway API, whose definitions most clusters lack.
    pub(super) is_gateway_api: bool,
    /// Selects the objects to keep, if labels can't express it. Only the metadata of such kinds is requested.
    pub(super) only: Option<fn(&Node) -> bool>,
    /// Stores the object in its map.
    pub(super) put: fn(&mut Objects, &ObjectKey, &Object),
    /// Removes the object of this key.
    pub(super) remove: fn(&mut Objects, &ObjectKey),
}

/// The default: all objects, complete.
const KIND: Kind = Kind {
    name: "",
    path: "",
    labels: "",
    keep: &[],
    optional: false,
    is_gateway_api: false,
    only: None,
    put: |_, _, _| {},
    remove: |_, _| {},
};

/// `kind!(NAME, field of Objects, key of ObjectKey, path, fields that differ from the default)`
macro_rules! kind {
    ($name:ident, $field:ident, $key:expr, $path:literal $(, $rest:ident: $value:expr)*) => {
        Kind {
            name: stringify!($name),
            path: $path,
            put: |objects, key, object| {
                if let Object::$name(object) = object {
                    objects.$field.insert($key(key), object.clone());
                }
            },
            remove: |objects, key| {
                objects.$field.remove(&$key(key));
            },
            $($rest: $value,)*
            ..KIND
        }
    };
}

/// A kind of the Gateway API: `gateway_api!(NAME, field of Objects, key of ObjectKey, path, fields to keep)`
macro_rules! gateway_api {
    ($name:ident, $field:ident, $key:expr, $path:literal, $keep:expr) => {
        kind!(
            $name,
            $field,
            $key,
            $path,
            keep: $keep,
            optional: true,
            is_gateway_api: true
        )
    };
}

fn whole(key: &ObjectKey) -> ObjectKey {
    key.clone()
}

fn name(key: &ObjectKey) -> String {
    key.name.clone()
}

/// Selects slices of a Service, except those of other proxies. Slices of headless Services are included, because routes
/// may name these Services. Services are not selected by the API server: a Service that gets the label of another proxy
/// would look deleted, and the status written to it would remain.
const SLICES: &str = "!service.kubernetes.io/service-proxy-name,kubernetes.io/service-name";
/// Selects slices like kube-proxy. Without routes, those of headless Services aren't used, and there may be many.
const SLICES_WITHOUT_HEADLESS: &str =
    "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name,kubernetes.io/service-name";
/// Many other fields of a Node change every few minutes.
const NODE: &[(&str, &[&str])] = &[("spec", &["podCIDR", "podCIDRs", "taints"]), ("status", &["addresses"])];

/// The weight is the only data that the gateway needs from Pods; slices contain the rest.
fn has_weight(pod: &Node) -> bool {
    let annotations = pod.entry("metadata").and_then(|e| e.node.entry("annotations"));
    annotations.is_some_and(|e| e.node.entry("tidegate.dev/weight").is_some())
}

/// Only metadata.
const METADATA: &[(&str, &[&str])] = &[("metadata", &[])];

const SERVICE_CIDR: &[(&str, &[&str])] = &[("spec", &["cidrs"])];

const GATEWAY_CLASS: &[(&str, &[&str])] = &[("spec", &["controllerName", "parametersRef"]), ("status", &[])];
const GATEWAY_SPEC: &[(&str, &[&str])] = &[
    ("spec", &["gatewayClassName", "listeners", "addresses", "infrastructure", "allowedListeners"]),
    ("status", &[]),
];
const SPEC_AND_STATUS: &[(&str, &[&str])] = &[("spec", &[]), ("status", &[])];
const SPEC: &[(&str, &[&str])] = &[("spec", &[])];

/// The index of Services in [`KINDS`].
pub(super) const SERVICE: KindIndex = 0;
/// The index of EndpointSlices in [`KINDS`].
pub(super) const SLICE: KindIndex = 1;
/// The index of AddressPools in [`KINDS`].
pub(super) const POOL: KindIndex = 4;
/// The index of Gateways in [`KINDS`].
pub(super) const GATEWAY: KindIndex = 8;

/// Nothing is published before all of these were listed.
pub(super) const KINDS: &[Kind] = &[
    kind!(Service, services, whole, "/api/v1/services"),
    kind!(EndpointSlice, endpoint_slices, whole, "/apis/discovery.k8s.io/v1/endpointslices", labels: SLICES),
    kind!(Node, nodes, name, "/api/v1/nodes", keep: NODE),
    kind!(Namespace, namespaces, name, "/api/v1/namespaces", keep: METADATA),
    kind!(AddressPool, address_pools, name, "/apis/tidegate.dev/v1alpha1/addresspools", optional: true),
    kind!(Pod, pods, whole, "/api/v1/pods", only: Some(has_weight), keep: METADATA, optional: true),
    // Kubernetes 1.33.
    kind!(
        ServiceCIDR,
        service_cidrs,
        name,
        "/apis/networking.k8s.io/v1/servicecidrs",
        keep: SERVICE_CIDR,
        optional: true
    ),
    gateway_api!(
        GatewayClass,
        gateway_classes,
        name,
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
        GATEWAY_CLASS
    ),
    gateway_api!(Gateway, gateways, whole, "/apis/gateway.networking.k8s.io/v1/gateways", GATEWAY_SPEC),
    gateway_api!(
        ListenerSet,
        listener_sets,
        whole,
        "/apis/gateway.networking.k8s.io/v1/listenersets",
        SPEC_AND_STATUS
    ),
    gateway_api!(
        TCPRoute,
        tcp_routes,
        whole,
        "/apis/gateway.networking.k8s.io/v1/tcproutes",
        SPEC_AND_STATUS
    ),
    gateway_api!(
        UDPRoute,
        udp_routes,
        whole,
        "/apis/gateway.networking.k8s.io/v1/udproutes",
        SPEC_AND_STATUS
    ),
    gateway_api!(
        ReferenceGrant,
        reference_grants,
        whole,
        "/apis/gateway.networking.k8s.io/v1/referencegrants",
        SPEC
    ),
];

/// A kind, as an index in [`KINDS`].
pub(super) type KindIndex = usize;

const SLICE_WITHOUT_HEADLESS: &Kind = &Kind { labels: SLICES_WITHOUT_HEADLESS, ..KINDS[SLICE] };

/// The kind at this index of [`KINDS`], with the objects that the configuration requires.
pub(super) fn kind_for(index: KindIndex, gateway_api: GatewayApi) -> &'static Kind {
    if index == SLICE && !gateway_api.is_read() { SLICE_WITHOUT_HEADLESS } else { &KINDS[index] }
}
