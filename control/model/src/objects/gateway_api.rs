//! The objects of the Gateway API that a layer-4 gateway reads: GatewayClass, Gateway, ListenerSet, TCPRoute, UDPRoute
//! and ReferenceGrant (gateway-api.sigs.k8s.io, version v1 of each kind).
//!
//! Values are valid, with the defaults of the definitions applied. Which routes attach to which listeners, and what
//! their conditions say, is decided by `policy::gateway_api`.

use ipnet::IpNet;

use super::{Condition, FINALIZER, Labels, Metadata, ObjectKey, ObjectVersion, Port, Protocol, Selector};

/// The API group of all these kinds.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The version of all these kinds.
pub const API_VERSION: &str = "gateway.networking.k8s.io/v1";

/// `spec.controllerName` of the GatewayClasses that Tidegate implements.
pub const CONTROLLER: &str = "tidegate.dev/gateway";

/// A GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayClass {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `metadata.generation`, 0 in files.
    pub generation: i64,
    /// `spec.controllerName`.
    pub controller: String,
    /// Whether `spec.parametersRef` is set.
    pub has_parameters: bool,
    /// `status`.
    pub status: GatewayClassStatus,
}

/// `status` of a GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayClassStatus {
    /// `conditions`.
    pub conditions: Vec<Condition>,
    /// The names of `supportedFeatures`, sorted.
    pub supported_features: Vec<String>,
}

/// A Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gateway {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `metadata.generation`, 0 in files.
    pub generation: i64,
    /// The version in which the object last changed.
    pub version: ObjectVersion,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// Field managers that own `status.addresses`, by `metadata.managedFields`.
    pub address_managers: Vec<String>,
    /// `spec.gatewayClassName`.
    pub class: String,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// `spec.addresses`.
    pub addresses: Vec<GatewayAddress>,
    /// `spec.infrastructure.labels`.
    pub infrastructure_labels: Labels,
    /// `spec.infrastructure.annotations`. The annotations of Services have their effect here.
    pub infrastructure_annotations: Labels,
    /// The admitted clients, by the annotation `service.beta.kubernetes.io/load-balancer-source-ranges` of
    /// `spec.infrastructure`; empty admits all.
    pub source_ranges: Vec<IpNet>,
    /// Whether `spec.infrastructure.parametersRef` is set.
    pub has_parameters: bool,
    /// `spec.allowedListeners.namespaces`, default [`FromNamespaces::None`].
    pub allowed_listeners: FromNamespaces,
    /// `status`.
    pub status: GatewayStatus,
}

impl Gateway {
    /// Whether it has our [`FINALIZER`].
    #[must_use]
    pub fn is_finalized_by_us(&self) -> bool {
        self.finalizers.iter().any(|f| f == FINALIZER)
    }
}

/// One of `spec.addresses` or `status.addresses`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayAddress {
    /// `type`: `IPAddress` (the default), `Hostname` or a name with a domain.
    pub kind: String,
    /// `value`; empty requests any address.
    pub value: String,
}

/// `status` of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayStatus {
    /// `addresses`.
    pub addresses: Vec<GatewayAddress>,
    /// `conditions`.
    pub conditions: Vec<Condition>,
    /// `listeners`.
    pub listeners: Vec<ListenerStatus>,
    /// `attachedListenerSets`.
    pub attached_listener_sets: Option<i64>,
}

/// The status of one listener of a Gateway or ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerStatus {
    /// `name`.
    pub name: String,
    /// `supportedKinds`.
    pub supported_kinds: Vec<RouteKind>,
    /// `attachedRoutes`.
    pub attached_routes: i64,
    /// `conditions`.
    pub conditions: Vec<Condition>,
}

/// One of the `listeners` of a Gateway or ListenerSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// `name`, unique within the object.
    pub name: String,
    /// `hostname`.
    pub hostname: Option<String>,
    /// `port`.
    pub port: Port,
    /// `protocol`: `TCP`, `UDP`, `TLS`, `HTTP`, `HTTPS` or a name with a domain.
    pub protocol: String,
    /// `allowedRoutes.kinds`; empty means all kinds that the protocol supports.
    pub allowed_kinds: Vec<RouteKind>,
    /// `allowedRoutes.namespaces`, default [`FromNamespaces::Same`].
    pub allowed_namespaces: FromNamespaces,
}

/// A kind of route, as in `allowedRoutes.kinds` and `supportedKinds`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKind {
    /// `group`, default [`GROUP`].
    pub group: String,
    /// `kind`.
    pub kind: String,
}

/// The namespaces from which objects may attach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FromNamespaces {
    /// No namespace.
    #[default]
    None,
    /// All namespaces.
    All,
    /// The namespace of the Gateway or ListenerSet.
    Same,
    /// The namespaces whose labels match.
    Selector(Selector),
}

/// A ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerSet {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `metadata.generation`, 0 in files.
    pub generation: i64,
    /// Field managers that own parts of `status`, by `metadata.managedFields`.
    pub status_managers: Vec<String>,
    /// `spec.parentRef`, with the namespace of the ListenerSet as default.
    pub parent: ParentRef,
    /// `spec.listeners`.
    pub listeners: Vec<Listener>,
    /// `status`.
    pub status: ListenerSetStatus,
}

/// `status` of a ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerSetStatus {
    /// `conditions`.
    pub conditions: Vec<Condition>,
    /// `listeners`.
    pub listeners: Vec<ListenerStatus>,
}

/// A TCPRoute or UDPRoute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `metadata.generation`, 0 in files.
    pub generation: i64,
    /// TCP for a TCPRoute, UDP for a UDPRoute.
    pub protocol: Protocol,
    /// `spec.parentRefs`.
    pub parents: Vec<ParentRef>,
    /// `spec.rules`.
    pub rules: Vec<RouteRule>,
    /// `status.parents`, including those of other controllers.
    pub status: Vec<RouteParentStatus>,
}

impl Route {
    /// The kind as written in manifests.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        route_kind(self.protocol)
    }
}

/// The kind of the routes of a protocol.
#[must_use]
pub fn route_kind(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Udp => "UDPRoute",
        Protocol::Tcp | Protocol::Sctp => "TCPRoute",
    }
}

/// A reference to a Gateway or ListenerSet.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParentRef {
    /// `group`, default [`GROUP`].
    pub group: String,
    /// `kind`, default `Gateway`.
    pub kind: String,
    /// `namespace` as written; `None` means the namespace of the object with the reference.
    pub namespace: Option<String>,
    /// `name`.
    pub name: String,
    /// `sectionName`: only the listener with this name.
    pub section_name: Option<String>,
    /// `port`: only listeners with this port.
    pub port: Option<Port>,
}

impl ParentRef {
    /// The key of the parent, for a reference in `namespace`.
    #[must_use]
    pub fn key(&self, namespace: &str) -> ObjectKey {
        ObjectKey::new(self.namespace.as_deref().unwrap_or(namespace), self.name.as_str())
    }
}

/// One of the `rules` of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteRule {
    /// `name`.
    pub name: Option<String>,
    /// `backendRefs`.
    pub backends: Vec<BackendRef>,
}

/// One of the `backendRefs` of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendRef {
    /// `group`, default the core group, which is empty.
    pub group: String,
    /// `kind`, default `Service`.
    pub kind: String,
    /// `namespace` as written; `None` means the namespace of the route.
    pub namespace: Option<String>,
    /// `name`.
    pub name: String,
    /// `port`, required for a Service.
    pub port: Option<Port>,
    /// `weight`, 0 to 1,000,000, default 1.
    pub weight: u32,
}

/// One of `status.parents` of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteParentStatus {
    /// `parentRef`.
    pub parent: ParentRef,
    /// `controllerName`.
    pub controller: String,
    /// `conditions`.
    pub conditions: Vec<Condition>,
}

/// A ReferenceGrant: objects of other namespaces that may refer to objects of its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceGrant {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `spec.from`.
    pub from: Vec<GrantFrom>,
    /// `spec.to`.
    pub to: Vec<GrantTo>,
}

/// One of `spec.from` of a ReferenceGrant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantFrom {
    /// `group`.
    pub group: String,
    /// `kind`.
    pub kind: String,
    /// `namespace`.
    pub namespace: String,
}

/// One of `spec.to` of a ReferenceGrant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantTo {
    /// `group`.
    pub group: String,
    /// `kind`.
    pub kind: String,
    /// `name`; `None` means all objects of the kind.
    pub name: Option<String>,
}
