//! Who answers for a Service: EndpointSlices, and the legacy Endpoints.
//!
//! As read: nothing is merged or left out here but what the API says never counts (addresses after the
//! first). What follows for a Service is in `resolve`, whom to choose in `choice`.

use std::net::IpAddr;

use super::{Metadata, ObjectKey, Port, Protocol};

/// The label that ties a slice to its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// `addressType`.
    pub address_type: AddressType,
    /// `ports`; they count for every endpoint of the slice.
    pub ports: Vec<EndpointPort>,
    /// `endpoints` in the order written (origin paths `endpoints[i]`).
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The Service it belongs to, by the label `kubernetes.io/service-name`.
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.meta.labels.get(SERVICE_NAME_LABEL).filter(|n| !n.is_empty())?;
        Some(ObjectKey::new(self.meta.key.namespace.clone(), name.clone()))
    }
}

/// `addressType` of a slice. Only the IP families are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressType {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Names; never served.
    Fqdn,
    /// One that is not known here, of an API server newer than the gateway; never served.
    Unknown,
}

impl AddressType {
    /// The name in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
            Self::Fqdn => "FQDN",
            Self::Unknown => "unknown",
        }
    }
}

/// A port of a slice or of a subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name; matches the Service port's. Empty for the unnamed one.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Number; `None` is not a port that can be served.
    pub port: Option<Port>,
    /// `appProtocol`.
    pub app_protocol: Option<String>,
}

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`, the only one that counts; `None` in slices of names.
    pub address: Option<IpAddr>,
    /// `conditions` as written.
    pub conditions: Conditions,
    /// `nodeName`.
    pub node_name: Option<String>,
    /// `zone`.
    pub zone: Option<String>,
    /// `hints.forZones[].name`.
    pub hint_zones: Vec<String>,
    /// `hints.forNodes[].name`.
    pub hint_nodes: Vec<String>,
    /// `targetRef`.
    pub target_ref: Option<ObjectRef>,
}

/// `conditions` of an endpoint: what is not said has a meaning, given by the methods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `ready`.
    pub ready: Option<bool>,
    /// `serving`.
    pub serving: Option<bool>,
    /// `terminating`.
    pub terminating: Option<bool>,
}

impl Conditions {
    /// Takes new flows. Not said means yes.
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Answers, whether or not it terminates. Not said means yes.
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or(true)
    }

    /// Is going away. Not said means no.
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// `targetRef`: the object behind an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Kind, mostly `Pod`.
    pub kind: String,
    /// Namespace and name.
    pub key: ObjectKey,
}

/// Legacy `v1` Endpoints; namespace and name are those of the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// Name, annotations, origin.
    pub meta: Metadata,
    /// `subsets` (origin paths `subsets[i].addresses[j]`).
    pub subsets: Vec<Subset>,
}

/// One subset: every address serves every port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    /// `addresses`: ready.
    pub addresses: Vec<EndpointAddress>,
    /// `notReadyAddresses`.
    pub not_ready_addresses: Vec<EndpointAddress>,
    /// `ports`.
    pub ports: Vec<EndpointPort>,
}

/// One address of a subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointAddress {
    /// The address.
    pub ip: IpAddr,
    /// `nodeName`.
    pub node_name: Option<String>,
    /// `targetRef`.
    pub target_ref: Option<ObjectRef>,
}
