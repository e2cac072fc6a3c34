//! The desired state as Kubernetes objects, in the form that every source produces.
//!
//! A source (the directory or the API server) decodes, defaults and validates, so values here are valid: a port is
//! not zero, a CIDR parses, a protocol is known. Readers (`reconcile`, `pools`, `health`) see only these types and do
//! not know the source. No Kubernetes client types, no I/O, no clock.
//!
//! Invariant: [`Objects`] is keyed by name, so the order in which objects arrive has no effect. Invariant: the place
//! where an object was written ([`Origin`]) is ignored when objects are compared.

mod address_range;
mod choice;
mod endpoints;
mod namespace;
mod origin;
mod pod;
mod pool;
mod resolve;
mod selector;
mod service;
mod stored;

#[cfg(test)]
mod tests;

pub use address_range::{AddressRange, number};
pub use choice::{Choice, Viewpoint, choose};
pub use endpoints::{
    AddressType, Conditions, Endpoint, EndpointAddress, EndpointPort, EndpointSlice, Endpoints, LeftOut,
    NotKept, ObjectRef, SERVICE_NAME_LABEL, Subset,
};
pub use namespace::{Namespace, Node};
pub use origin::{Origin, PATH_START, path_hash};
pub use pod::{ContainerPort, Pod};
pub use pool::{AddressPool, AddressPoolStatus, Pool};
pub use resolve::{
    ENDPOINTS_MAX, EndpointIndex, PodIndex, PortEndpoints, ResolvedEndpoint, ServiceEndpoints, SliceIndex,
    places_of_endpoints, refused_endpoint,
};
pub use selector::{Expression, Operator, Selector};
pub use service::{
    IpFamily, IpFamilyPolicy, Protocol, Service, ServicePort, ServiceType, TargetPort, TrafficPolicy,
};
pub use stored::{Condition, FINALIZER, Ingress, IngressPort, Stored};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::shared_map::SharedMap;

/// Labels, annotations and `matchLabels`.
pub type Labels = BTreeMap<String, String>;

/// A port that can be sent to: never zero.
pub type Port = std::num::NonZeroU16;

/// Namespace and name of an object; the namespace of cluster-wide kinds is empty. Prints `ns/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What all kinds have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identity over time. Where the input has none it is derived from kind, namespace and name.
    pub uid: String,
    /// The creation time, if it is written: it decides which Service keeps a contested address.
    pub creation_time: Option<jiff::Timestamp>,
    /// Set while the object waits for its deletion: `deletionTimestamp`.
    pub deletion_time: Option<jiff::Timestamp>,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// What of the object cannot be used, each with its field. Only a Service, an EndpointSlice or a Node of an API
    /// server has any, which was stored by laxer rules: of a file the object would have been refused.
    pub faults: Vec<Diagnostic>,
    /// Where it was written.
    pub origin: Origin,
}

impl Metadata {
    /// Metadata with only a key, for objects that are not read from a source; the uid is the key itself.
    pub fn new(key: ObjectKey) -> Self {
        Self {
            uid: key.to_string(),
            key,
            creation_time: None,
            deletion_time: None,
            labels: Labels::new(),
            annotations: Labels::new(),
            faults: Vec::new(),
            origin: Origin::unknown(),
        }
    }

    /// The order in which contested things are kept, first come first: by creation time, then UID, then name; what
    /// has no creation time comes last.
    pub fn seniority(&self) -> impl Ord + '_ {
        (self.creation_time.is_none(), self.creation_time, &self.uid, &self.key)
    }
}

/// All objects a source has, at one moment.
///
/// A copy is a few pointers, and an edit of one costs what it changes: see [`SharedMap`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Services by namespace and name.
    pub services: SharedMap<ObjectKey, Arc<Service>>,
    /// EndpointSlices by their own namespace and name (not their Service's).
    pub endpoint_slices: SharedMap<ObjectKey, Arc<EndpointSlice>>,
    /// Legacy Endpoints; the key is that of their Service.
    pub endpoints: SharedMap<ObjectKey, Arc<Endpoints>>,
    /// Pods.
    pub pods: SharedMap<ObjectKey, Arc<Pod>>,
    /// Namespaces by name. One that has objects but is not itself given is not here: see
    /// [`Objects::namespace_labels`].
    pub namespaces: SharedMap<String, Arc<Namespace>>,
    /// Nodes by name.
    pub nodes: SharedMap<String, Arc<Node>>,
    /// AddressPools by name; those of the configuration are not here.
    pub address_pools: SharedMap<String, Arc<AddressPool>>,
    /// Where the API server is reached that the objects are from; loopback addresses are not here.
    pub api_servers: BTreeSet<IpAddr>,
}

impl Objects {
    /// Labels that a `namespaceSelector` sees: those of the Namespace object where there is one, and always
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

    /// Whether load balancers may send to the gateway's own node (`nodeEligible`): not when it is marked for deletion,
    /// or deleted. An appliance, which is on none, is eligible. Where the source need not have Nodes (`lists_nodes`
    /// false: a directory), so is a gateway on a node that is not known.
    pub fn is_eligible(&self, own_node: Option<&str>, lists_nodes: bool) -> bool {
        own_node.is_none_or(|node| match self.nodes.get(node) {
            Some(node) => !node.is_leaving(),
            None => !lists_nodes,
        })
    }
}
