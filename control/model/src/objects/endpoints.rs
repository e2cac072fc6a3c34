//! The endpoints of a Service as written: EndpointSlices, and the legacy Endpoints.
//!
//! Nothing is merged or left out here, except what the API ignores (addresses after the first). `resolve` merges them
//! for a Service, and `endpoint_choice` chooses among them.

use std::net::IpAddr;

use super::{Labels, Metadata, ObjectKey, Port, Protocol};

/// The label that assigns a slice to its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// `addressType`.
    pub address_type: AddressType,
    /// `ports`, which apply to every endpoint of the slice.
    pub ports: Vec<EndpointPort>,
    /// `endpoints` in the order written (origin paths `endpoints[i]`). Empty if they are [`left_out`](Self::left_out).
    pub endpoints: Vec<Endpoint>,
    /// Set if the source does not keep the endpoints, because they exceed a limit.
    pub left_out: Option<LeftOut>,
}

/// The size of a slice whose endpoints are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// The number of endpoints that it lists.
    pub endpoints: usize,
    /// [`EndpointSlice::size`] of the whole slice.
    pub bytes: usize,
    /// The reason.
    pub why: NotKept,
}

/// Why the endpoints of a slice are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotKept {
    /// The slices of its Service list more endpoints than one Service may have.
    TooManyEndpoints,
    /// The slices of its namespace exceed the namespace's share, and its Service is among the newest.
    NamespaceShare,
    /// The endpoints fit again, but the source has not read them yet.
    Awaited,
}

/// The bytes that a slice, a port and an endpoint take in memory without their texts, decoded and as JSON together,
/// because a source keeps both. So each text counts twice.
const SLICE_BYTES: usize = 1024;
const PORT_BYTES: usize = 192;
const ENDPOINT_BYTES: usize = 512;
const HINT_BYTES: usize = 64;
const FAULT_BYTES: usize = 512;
/// If the endpoints of a slice are not kept, its ports are kept up to this size, so that the demand of the Service can
/// be counted.
const LEFT_OUT_PORTS_BYTES_MAX: usize = 4096;

impl EndpointSlice {
    /// The number of endpoints that it lists, kept or not.
    pub fn endpoint_count(&self) -> usize {
        self.left_out.map_or(self.endpoints.len(), |left_out| left_out.endpoints)
    }

    /// The estimated size of the whole slice in memory, in bytes. Equal slices have equal sizes, whatever their source.
    pub fn size(&self) -> usize {
        if let Some(left_out) = self.left_out {
            return left_out.bytes;
        }
        let meta = &self.meta;
        let pairs = meta.labels.iter().chain(&meta.annotations);
        let texts = meta.key.namespace.len() + meta.key.name.len() + meta.uid.len();
        let texts = texts + pairs.map(|(key, value)| HINT_BYTES + key.len() + value.len()).sum::<usize>();
        let endpoint = |endpoint: &Endpoint| {
            let hints = endpoint.hint_zones.iter().chain(&endpoint.hint_nodes);
            let target = endpoint.target_ref.as_ref();
            let target = target.map_or(0, |t| t.kind.len() + t.key.namespace.len() + t.key.name.len());
            let named = [&endpoint.node_name, &endpoint.zone].into_iter().flatten().map(String::len);
            let texts = target + named.sum::<usize>();
            ENDPOINT_BYTES + 2 * texts + hints.map(|hint| HINT_BYTES + 2 * hint.len()).sum::<usize>()
        };
        SLICE_BYTES
            + 2 * texts
            + meta.faults.len() * FAULT_BYTES
            + self.ports_size()
            + self.endpoints.iter().map(endpoint).sum::<usize>()
    }

    fn ports_size(&self) -> usize {
        let port = |port: &EndpointPort| {
            PORT_BYTES + 2 * (port.name.len() + port.app_protocol.as_ref().map_or(0, String::len))
        };
        self.ports.iter().map(port).sum()
    }

    /// The slice without its endpoints and other large parts. It records the slice's existence, its Service, and how
    /// much it lists.
    pub fn left_out(&self, why: NotKept) -> Self {
        let left_out = LeftOut { endpoints: self.endpoint_count(), bytes: self.size(), why };
        let service = self.meta.labels.get(SERVICE_NAME_LABEL);
        let labels = service.map(|name| (SERVICE_NAME_LABEL.to_owned(), name.clone()));
        let meta = Metadata {
            labels: labels.into_iter().collect(),
            annotations: Labels::new(),
            faults: Vec::new(),
            ..self.meta.clone()
        };
        let keeps_ports = self.ports_size() <= LEFT_OUT_PORTS_BYTES_MAX;
        Self {
            meta,
            address_type: self.address_type,
            ports: if keeps_ports { self.ports.clone() } else { Vec::new() },
            endpoints: Vec::new(),
            left_out: Some(left_out),
        }
    }

    /// The Service that it belongs to, by its label `kubernetes.io/service-name`.
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.meta.labels.get(SERVICE_NAME_LABEL).filter(|n| !n.is_empty())?;
        Some(ObjectKey::new(self.meta.key.namespace.clone(), name.clone()))
    }
}

tidegate_wire::named! {
    /// `addressType` of a slice. Only the IP families are served.
    pub enum AddressType {
        /// IPv4.
        V4 => "IPv4",
        /// IPv6.
        V6 => "IPv6",
        /// Names, which are never served.
        Fqdn => "FQDN",
        /// An unknown type, from an API server that is newer than the gateway; never served.
        Unknown => "unknown",
    }
}

/// A port of a slice or of a subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name, which matches the Service port's; empty for an unnamed port.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Number; a port with `None` cannot be served.
    pub port: Option<Port>,
    /// `appProtocol`.
    pub app_protocol: Option<String>,
}

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`, the only address that is used; `None` in slices of names.
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

/// `conditions` of an endpoint. The methods define what an absent condition means.
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
    /// Whether it takes new flows. An absent condition means that it does.
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Whether it answers, even if it terminates. An absent condition means that it does.
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or(true)
    }

    /// Whether it is terminating. An absent condition means that it is not.
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }
}

/// `targetRef`: the object behind an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    /// Kind, usually `Pod`.
    pub kind: String,
    /// Namespace and name.
    pub key: ObjectKey,
}

/// Legacy `v1` Endpoints, with the namespace and name of the Service.
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
    /// `addresses`, which are ready.
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
