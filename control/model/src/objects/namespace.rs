//! The cluster-wide kinds: Namespace (pools select by its labels), Node (zone, addresses, exclusion) and ServiceCIDR
//! (the networks of cluster IPs).

use std::net::IpAddr;

use ipnet::IpNet;

use super::{IpFamily, Metadata};

/// A Namespace, whose labels a `namespaceSelector` matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Name, labels, origin.
    pub meta: Metadata,
}

/// A Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Name, labels, origin.
    pub meta: Metadata,
    /// `status.addresses` of type InternalIP.
    pub internal_ips: Vec<IpAddr>,
    /// `status.addresses` of type ExternalIP.
    pub external_ips: Vec<IpAddr>,
    /// `spec.podCIDRs` (or `podCIDR`): the networks of its Pods.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether `spec.taints` contains `ToBeDeletedByClusterAutoscaler`.
    pub to_be_deleted: bool,
}

/// A ServiceCIDR (networking.k8s.io/v1): networks from which the API server assigns cluster IPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Name, origin.
    pub meta: Metadata,
    /// `spec.cidrs`.
    pub cidrs: Vec<IpNet>,
}

impl Node {
    /// A node with only a name.
    pub fn new(meta: Metadata) -> Self {
        Self { meta, ..Self::default() }
    }

    /// The address at which the gateway reaches it in a family: its first InternalIP of that family.
    pub fn internal_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.internal_ips.iter().copied().find(|ip| IpFamily::of(*ip) == family)
    }

    /// Its zone, by the label `topology.kubernetes.io/zone`.
    pub fn zone(&self) -> Option<&str> {
        self.meta.labels.get("topology.kubernetes.io/zone").map(String::as_str).filter(|z| !z.is_empty())
    }

    /// Whether it is marked for deletion, as kube-proxy's `/healthz` defines it: it is being deleted, or has the
    /// cluster autoscaler's taint for nodes to be deleted.
    pub fn is_leaving(&self) -> bool {
        self.to_be_deleted || self.meta.deletion_time.is_some()
    }

    /// Whether the operator excludes it from load balancers (label
    /// `node.kubernetes.io/exclude-from-external-load-balancers` with any value).
    pub fn is_excluded(&self) -> bool {
        self.meta.labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers")
    }
}
