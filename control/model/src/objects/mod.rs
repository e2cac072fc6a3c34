//! The desired state as Kubernetes objects, in the form that every source produces.
//!
//! A source (the directory or the API server) decodes objects, applies defaults and validates the result, so values
//! here are valid: a port is not zero, a CIDR parses, a protocol is known. Readers (`reconcile`, `pools`, `health`) see
//! only these types and don't know the source. No Kubernetes client types, no I/O, no clock.
//!
//! Invariant: [`Objects`] is keyed by name, so the order in which objects arrive has no effect. Invariant:
//! comparisons of objects ignore where an object was written ([`Origin`]).

mod address_range;
mod endpoint_choice;
mod endpoints;
pub mod gateway_api;
mod namespace;
mod origin;
mod pod;
mod pool;
mod resolve;
mod route;
mod selector;
mod service;
mod stored;
mod tls_secret;

#[cfg(test)]
mod tests;

pub use address_range::{AddressRange, number};
pub use endpoint_choice::{Choice, Viewpoint, choose};
pub use endpoints::{
    AddressType, Conditions, Endpoint, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, LeftOut,
    NotKept, ObjectRef, SERVICE_NAME_LABEL, Subset,
};
pub use gateway_api::{Gateway, GatewayClass, ListenerSet, ReferenceGrant, Route};
pub use namespace::{Namespace, Node, ServiceCidr};
pub use origin::{Origin, PATH_START, path_hash};
pub use pod::{ContainerPort, Pod};
pub use pool::{AddressPool, AddressPoolStatus, AnnounceMethods, Pool};
pub use resolve::{
    ENDPOINTS_MAX, EndpointIndex, EndpointShare, PodIndex, PortEndpoints, ResolvedEndpoint, ServiceEndpoints,
    SliceIndex, endpoint_locations, refused_endpoint,
};
pub use route::{
    COMMUNITIES_MAX, COMMUNITY_ACCEPTED, Community, LOCAL_PREF_ACCEPTED, MED_ACCEPTED, PREPENDS_ACCEPTED,
    PREPENDS_MAX, PoolRoutes, RouteAttributes, communities,
};
pub use selector::{Expression, Operator, Selector};
pub use service::{
    IpFamily, IpFamilyPolicy, Protocol, Routed, RoutedBackend, Service, ServicePort, ServiceType, TargetPort,
    TrafficPolicy,
};
pub use stored::{Condition, FINALIZER, Ingress, IngressPort, ObjectVersion, Stored};
pub use tls_secret::TlsSecret;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::shared_map::SharedMap;

/// Labels, annotations and `matchLabels`.
pub type Labels = BTreeMap<String, String>;

/// A port number that is never zero.
pub type Port = std::num::NonZeroU16;

const GATEWAY_PREFIX: &str = "gateway/";

/// Namespace and name of an object; the namespace of cluster-wide kinds is empty. Prints `ns/name`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, empty for cluster-wide kinds.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

impl ObjectKey {
    /// The key of `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key under which a Gateway is served: `NAMESPACE/gateway/NAME`. No Service has it, because names contain no
    /// slash.
    pub fn of_gateway(namespace: &str, name: &str) -> Self {
        Self::new(namespace, format!("{GATEWAY_PREFIX}{name}"))
    }

    /// The name of the Gateway that is served under this key; `None` if it is another object.
    pub fn gateway_name(&self) -> Option<&str> {
        self.name.strip_prefix(GATEWAY_PREFIX)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The metadata that all kinds have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The identity of the object. If the input has none, it is derived from kind, namespace and name.
    pub uid: String,
    /// The creation time, if known. It decides which Service keeps a contested address.
    pub creation_time: Option<jiff::Timestamp>,
    /// The order in which ListenerSets and routes without a creation time appeared in a directory: 0 for those that were
    /// there when the gateway started, and for all other objects.
    pub arrival: u64,
    /// `deletionTimestamp`, which is set while the object waits for its deletion.
    pub deletion_time: Option<jiff::Timestamp>,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// The parts of the object that cannot be used, each with its field. A Service, an EndpointSlice or a Node from an
    /// API server may have some if it was stored under laxer rules. Of the objects in files, only EndpointSlices can
    /// have faults; other objects with faults are refused.
    pub faults: Vec<Diagnostic>,
    /// Where it was written.
    pub origin: Origin,
}

impl Metadata {
    /// Metadata with only a key, for objects that are not read from a source. The uid is the key itself.
    pub fn new(key: ObjectKey) -> Self {
        Self { uid: key.to_string(), key, ..Self::default() }
    }

    /// The order of precedence for contested addresses and ports: by creation time, then UID, then name. An object
    /// without a creation time comes last.
    pub fn seniority(&self) -> impl Ord + '_ {
        (self.creation_time.is_none(), self.creation_time, &self.uid, &self.key)
    }
}

/// All objects of a source at one moment.
///
/// A copy costs a few pointers, and an edit costs only what it changes: see [`SharedMap`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Services by namespace and name.
    pub services: SharedMap<ObjectKey, Arc<Service>>,
    /// EndpointSlices by their own namespace and name (not their Service's).
    pub endpoint_slices: SharedMap<ObjectKey, Arc<EndpointSlice>>,
    /// Legacy Endpoints, by the key of their Service.
    pub endpoints: SharedMap<ObjectKey, Arc<Endpoints>>,
    /// Pods.
    pub pods: SharedMap<ObjectKey, Arc<Pod>>,
    /// Namespaces by name. A namespace that contains objects but has no Namespace object is not included: see
    /// [`Objects::namespace_labels`].
    pub namespaces: SharedMap<String, Arc<Namespace>>,
    /// Nodes by name.
    pub nodes: SharedMap<String, Arc<Node>>,
    /// AddressPools by name, without the pools of the configuration.
    pub address_pools: SharedMap<String, Arc<AddressPool>>,
    /// ServiceCIDRs by name.
    pub service_cidrs: SharedMap<String, Arc<ServiceCidr>>,
    /// GatewayClasses by name.
    pub gateway_classes: SharedMap<String, Arc<GatewayClass>>,
    /// Gateways.
    pub gateways: SharedMap<ObjectKey, Arc<Gateway>>,
    /// ListenerSets.
    pub listener_sets: SharedMap<ObjectKey, Arc<ListenerSet>>,
    /// TCPRoutes.
    pub tcp_routes: SharedMap<ObjectKey, Arc<Route>>,
    /// UDPRoutes.
    pub udp_routes: SharedMap<ObjectKey, Arc<Route>>,
    /// ReferenceGrants.
    pub reference_grants: SharedMap<ObjectKey, Arc<ReferenceGrant>>,
    /// Secrets of type `kubernetes.io/tls`. Always empty in a gateway, which reads no Secrets.
    pub tls_secrets: SharedMap<ObjectKey, Arc<TlsSecret>>,
    /// The addresses of the API server that the objects come from, without loopback addresses.
    pub api_servers: BTreeSet<IpAddr>,
}

impl Objects {
    /// The labels that a `namespaceSelector` matches: the labels of the Namespace object, if there is one, and always
    /// `kubernetes.io/metadata.name`, which an API server sets on every namespace.
    pub fn namespace_labels(&self, name: &str) -> Labels {
        let mut labels = self.namespaces.get(name).map(|n| n.meta.labels.clone()).unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
        labels
    }

    /// The zone of a node by its `topology.kubernetes.io/zone` label.
    pub fn zone_of(&self, node: &str) -> Option<&str> {
        self.nodes.get(node)?.zone()
    }

    /// Whether load balancers may send to the gateway's own node (`nodeEligible`): not if the node is marked for
    /// deletion or deleted. An appliance without a node is eligible. If the source doesn't have to contain Nodes
    /// (`lists_nodes` is false: a directory) and contains none, a gateway on an unknown node is eligible too.
    pub fn is_eligible(&self, own_node: Option<&str>, lists_nodes: bool) -> bool {
        own_node.is_none_or(|node| match self.nodes.get(node) {
            Some(node) => !node.is_leaving(),
            None => !lists_nodes && self.nodes.is_empty(),
        })
    }
}
