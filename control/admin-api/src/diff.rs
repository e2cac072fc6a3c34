//! `diff`: what a reload would change.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// `GET /v1/diff`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffAnswer {
    /// Whether a reload would use the file: it has no error, and no key that needs a restart differs.
    pub accepted: bool,
    /// The errors and warnings of the file, one per line, as `check` prints them.
    pub report: Vec<String>,
    /// The keys that differ and need a restart.
    pub restart: Vec<String>,
    /// The sections that differ and take effect with a reload.
    pub reload: Vec<String>,
    /// The service ports that differ, sorted. With keys that need a restart: those after the restart.
    pub ports: Vec<PortDiff>,
    /// Services that would wait for an address, or stop waiting: `NAMESPACE/NAME: why`.
    pub pending: Vec<String>,
}

/// A service port that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortDiff {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// The VIP.
    pub vip: IpAddr,
    /// Port number on the VIP.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The current forwarding mode; absent if the port is not served now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The forwarding mode afterwards; absent if the port would not be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Backends that would be added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<SocketAddr>,
    /// Backends that would be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<SocketAddr>,
}
