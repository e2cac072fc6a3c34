//! The part of `status` about sharing flows with other gateways.

use serde::{Deserialize, Serialize};

/// How flows are shared with other gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSharingStatus {
    /// `flowSharing.mode`.
    pub mode: String,
    /// The fingerprint of `flowSharing.key`.
    pub key: String,
    /// The fingerprint of `flowSharing.acceptKey`; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_key: Option<String>,
    /// Whether the other gateways are discovered by their `GatewayStatus` instead of being configured.
    #[serde(default)]
    pub finds_peers: bool,
    /// The other gateways.
    pub peers: Vec<FlowPeerStatus>,
}

/// A gateway with which flows are shared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowPeerStatus {
    /// Its address and port.
    pub address: String,
    /// Its name, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up`, `behind`, `connecting`, `other-version`, `absent` for a discovered gateway that has stopped or sends no
    /// heartbeat, or `itself` for this gateway's own address.
    pub state: String,
    /// Milliseconds since anything was last received from it; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ago_milliseconds: Option<u64>,
    /// Messages about flows that are waiting to be sent.
    pub waiting: usize,
    /// Batches of messages that it has not acknowledged.
    pub unacknowledged: usize,
    /// The fingerprint of the key that it uses, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
