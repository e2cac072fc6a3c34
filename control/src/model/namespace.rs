//! The cluster-wide kinds: Namespace (its labels choose pools) and Node (zone, addresses, exclusion).

use std::net::IpAddr;

use super::Metadata;

/// A Namespace: its labels are what `namespaceSelector` sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Name, labels, origin.
    pub meta: Metadata,
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// `status.addresses` of type InternalIP.
    pub internal_ips: Vec<IpAddr>,
    /// `status.addresses` of type ExternalIP.
    pub external_ips: Vec<IpAddr>,
}

impl Node {
    /// Its zone, by the label `topology.kubernetes.io/zone`.
    pub fn zone(&self) -> Option<&str> {
        self.meta.labels.get("topology.kubernetes.io/zone").map(String::as_str).filter(|z| !z.is_empty())
    }

    /// Whether the operator keeps load balancers off it
    /// (label `node.kubernetes.io/exclude-from-external-load-balancers`, whatever its value).
    pub fn is_excluded(&self) -> bool {
        self.meta.labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers")
    }
}
