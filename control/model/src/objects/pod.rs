//! A Pod, with the fields that are needed to use it as an endpoint if there are no slices.

use std::net::IpAddr;

use super::{Metadata, Port, Protocol};

/// A Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Name, labels, `deletion_time` if it is terminating, origin.
    pub meta: Metadata,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `status.podIPs` (or `podIP`).
    pub ips: Vec<IpAddr>,
    /// Whether the condition `Ready` is `True`.
    pub ready: bool,
    /// Whether `status.phase` is `Succeeded` or `Failed`, so that it will never serve again.
    pub finished: bool,
    /// Ports of all containers (and of init containers that keep running), in the order written.
    pub container_ports: Vec<ContainerPort>,
}

/// One of a container's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Name; empty if unnamed.
    pub name: String,
    /// Protocol, default TCP.
    pub protocol: Protocol,
    /// `containerPort`.
    pub port: Port,
}

impl Pod {
    /// The number of a named target port in this Pod.
    pub fn named_port(&self, name: &str, protocol: Protocol) -> Option<Port> {
        self.container_ports.iter().find(|p| p.name == name && p.protocol == protocol).map(|p| p.port)
    }
}
