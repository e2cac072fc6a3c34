//! What Services forwarded, and what was dropped or handed to the kernel.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// `GET /v1/traffic`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficAnswer {
    /// The traffic of each service port.
    pub services: Vec<ServiceTraffic>,
}

/// What one service port forwarded since the daemon's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTraffic {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port, or its number.
    pub port_name: String,
    /// The VIP, with the service port.
    pub vip: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Forwarded packets.
    pub packets: u64,
    /// Forwarded bytes.
    pub bytes: u64,
    /// New flows that were sent to backends.
    pub connections: u64,
}

/// A count for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// The reason, as in metrics.
    pub reason: String,
    /// The number of frames or flows.
    pub count: u64,
}

/// `GET /v1/drops`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropsAnswer {
    /// Dropped frames, by reason, including counts of 0.
    pub drops: Vec<ReasonView>,
    /// Frames handed to the kernel, by reason.
    pub punts: Vec<ReasonView>,
}

/// The frames with one verdict and reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonView {
    /// The reason, as in metrics.
    pub reason: String,
    /// The number of frames.
    pub count: u64,
    /// What the reason means.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// The part of the count that is known by Service, as `namespace/name`, or by interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<PartCount>,
}

/// The frames of one Service or interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartCount {
    /// `namespace/name` of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The number of frames.
    pub count: u64,
}
