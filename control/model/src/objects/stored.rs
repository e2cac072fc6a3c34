//! The fields of a Service that controllers write. `cluster` compares with them before it writes.
//!
//! Sources fill them. The desired state does not depend on them, except for the addresses that a restart adopts
//! ([`Service::ingress_ips`](super::Service::ingress_ips)) and for the finalizer, which reserves a released address
//! until every gateway has withdrawn it.

use std::net::IpAddr;

/// Our finalizer. It is not the standard `service.kubernetes.io/load-balancer-cleanup`, because cloud controllers
/// remove the standard one regardless of the class.
pub const FINALIZER: &str = "tidegate.dev/cleanup";

/// The parts of a Service that controllers write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The version in which the object last changed.
    pub version: ObjectVersion,
    /// `metadata.generation`: 0 for Services of older API servers and of the directory.
    pub generation: i64,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// `status.conditions`.
    pub conditions: Vec<Condition>,
    /// Field managers that own `status.loadBalancer.ingress`, by `metadata.managedFields`.
    pub ingress_managers: Vec<String>,
}

/// A `metadata.resourceVersion` as a number; 0 if unknown. Ignored by equality, because API servers also change it
/// for fields that no gateway reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectVersion(pub u64);

impl PartialEq for ObjectVersion {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ObjectVersion {}

impl Stored {
    /// Whether it has our [`FINALIZER`].
    #[must_use]
    pub fn is_finalized_by_us(&self) -> bool {
        self.finalizers.iter().any(|f| f == FINALIZER)
    }

    /// The condition of this type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

/// One of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ingress {
    /// `ip`; absent with a host name.
    pub ip: Option<IpAddr>,
    /// `hostname`.
    pub hostname: Option<String>,
    /// `ipMode`: `VIP` or `Proxy`.
    pub ip_mode: Option<String>,
    /// `ports`.
    pub ports: Vec<IngressPort>,
}

/// One of `ports` of an ingress point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressPort {
    /// Port number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Why it is not served, a CamelCase name.
    pub error: Option<String>,
}

/// A condition (meta/v1 `Condition`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: String,
    /// `status`: `True`, `False` or `Unknown`.
    pub status: String,
    /// A CamelCase word.
    pub reason: String,
    /// The text for display.
    pub message: String,
    /// The generation of the spec that it refers to.
    pub observed_generation: i64,
    /// When `status` last changed.
    pub last_transition: Option<jiff::Timestamp>,
}
