//! A Service: the addresses and ports that it requests, and how to serve them.
//!
//! Values are valid, with defaults applied (kubernetes.io/docs/reference, core/v1 `Service`). `pools` and `reconcile`
//! decide which of its requests are granted.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
pub use tidegate_spec::Protocol;

use super::{Labels, Metadata, ObjectKey, Port, Stored};

/// A Service of any type. Its fields are flat, like those of Kubernetes' `ServiceSpec`, so that readers find each field
/// by its name in the API documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Name, labels, annotations, origin.
    pub meta: Metadata,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// `spec.ports` in the order written, unique by (port, protocol), with unique names.
    pub ports: Vec<ServicePort>,
    /// `spec.selector`. If it is empty, the user provides the endpoints.
    pub selector: Labels,
    /// `spec.clusterIPs` (or `spec.clusterIP`), without `None`.
    pub cluster_ips: Vec<IpAddr>,
    /// `clusterIP: None`.
    pub headless: bool,
    /// `spec.ipFamilies`. If it is empty, the addresses of the pools determine the families.
    pub ip_families: Vec<IpFamily>,
    /// `spec.ipFamilyPolicy`.
    pub ip_family_policy: IpFamilyPolicy,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `spec.loadBalancerIP`, deprecated.
    pub load_balancer_ip: Option<IpAddr>,
    /// Whether a stored `spec.loadBalancerIP` is not an address. No API server validates the field.
    pub unreadable_load_balancer_ip: bool,
    /// Whether it keeps the addresses that it has and gets no new one, because it is the Service of a Gateway that is
    /// not accepted.
    pub gets_no_address: bool,
    /// How many of the last ports ListenerSets add to a Gateway. Owners of other namespaces write ListenerSets, so these
    /// ports never decide which address the Gateway gets: it claims them when it has one.
    pub added_ports: usize,
    /// `spec.loadBalancerClass`.
    pub load_balancer_class: Option<String>,
    /// `spec.allocateLoadBalancerNodePorts`, default true.
    pub allocate_node_ports: bool,
    /// The admitted clients: `spec.loadBalancerSourceRanges`, or if that is empty, the legacy annotation
    /// `service.beta.kubernetes.io/load-balancer-source-ranges`. If both are empty, all clients are admitted.
    pub source_ranges: Vec<IpNet>,
    /// `spec.sessionAffinity: ClientIP` with its timeout (1 s to 86,400 s); `None` means no affinity.
    pub session_affinity: Option<Duration>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`, which applies to cluster IPs only.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`, only with type LoadBalancer and external policy Local.
    pub health_check_node_port: Option<Port>,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
    /// The addresses of `status.loadBalancer.ingress[].ip`.
    pub ingress_ips: Vec<IpAddr>,
    /// The fields that controllers write: version, finalizers, status and its field managers.
    pub stored: Stored,
}

impl Service {
    /// A ClusterIP Service without ports, selector or addresses, which the caller adds.
    pub fn new(meta: Metadata) -> Self {
        Self { meta, allocate_node_ports: true, ..Self::default() }
    }

    /// Why proxies don't serve this Service, or `None` if they do: it is ExternalName, headless, or assigned to another
    /// proxy by the label `service.kubernetes.io/service-proxy-name`.
    pub fn not_for_proxies(&self) -> Option<&'static str> {
        if self.service_type == ServiceType::ExternalName {
            return Some("type ExternalName has no address to serve");
        }
        if self.headless {
            return Some("a headless Service (clusterIP: None) has no address to serve");
        }
        if self.meta.labels.contains_key("service.kubernetes.io/service-proxy-name") {
            return Some("the label service.kubernetes.io/service-proxy-name assigns it to another proxy");
        }
        None
    }
}

tidegate_wire::named! {
    /// `spec.type`.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum ServiceType {
        /// Cluster-internal.
        #[default]
        ClusterIp => "ClusterIP",
        /// Additionally on a port of every node.
        NodePort => "NodePort",
        /// Additionally on an address outside of the cluster.
        LoadBalancer => "LoadBalancer",
        /// Only a DNS name.
        ExternalName => "ExternalName",
    }
}

/// One of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty if the Service has one unnamed port.
    pub name: String,
    /// Protocol, default TCP.
    pub protocol: Protocol,
    /// `appProtocol`: a hint; any value is valid.
    pub app_protocol: Option<String>,
    /// The port on the VIP.
    pub port: Port,
    /// The port on the Pods, default `port`.
    pub target_port: TargetPort,
    /// The port on the nodes.
    pub node_port: Option<Port>,
    /// For a listener of a Gateway: its route. `None` for a port of a Service, whose endpoints are its own.
    pub routed: Option<Arc<Routed>>,
}

/// The route of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routed {
    /// Kind, namespace and name for display, such as `TCPRoute shop/web`; `None` if no route is attached.
    pub route: Option<String>,
    /// Its backends.
    pub backends: Vec<RoutedBackend>,
}

/// One of the backends of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedBackend {
    /// The Service and its port; `None` if the reference is invalid. Its share of new flows is rejected.
    pub service: Option<(ObjectKey, Port)>,
    /// The share of new flows relative to the other backends.
    pub weight: u32,
}

impl ServicePort {
    /// The name of the port in tables and metrics: its name, or its number if it has none.
    pub fn label(&self) -> String {
        if self.name.is_empty() { self.port.to_string() } else { self.name.clone() }
    }
}

/// `targetPort`: a number, or a name that each Pod maps to a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// One number for all Pods.
    Number(Port),
    /// The container port with this name.
    Name(String),
}

impl fmt::Display for TargetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(port) => port.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

tidegate_wire::named! {
    /// An address family as in `spec.ipFamilies`.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum IpFamily {
        /// IPv4.
        V4 => "IPv4",
        /// IPv6.
        V6 => "IPv6",
    }
}

impl IpFamily {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

tidegate_wire::named! {
    /// `spec.ipFamilyPolicy`.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum IpFamilyPolicy {
        /// One family.
        #[default]
        SingleStack => "SingleStack",
        /// Both families, if both are available.
        PreferDualStack => "PreferDualStack",
        /// Both families or none.
        RequireDualStack => "RequireDualStack",
    }
}

tidegate_wire::named! {
    /// `externalTrafficPolicy` and `internalTrafficPolicy`.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum TrafficPolicy {
        /// Any endpoint.
        #[default]
        Cluster => "Cluster",
        /// Only endpoints on the node that received the packet.
        Local => "Local",
    }
}
