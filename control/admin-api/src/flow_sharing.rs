//! The part of `status` about the exchange of flows with other gateways.

use serde::{Deserialize, Serialize};

/// The exchange of flows with other gateways.
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
    /// Whether the other gateways are found by their `GatewayStatus`, and not configured.
    #[serde(default)]
    pub finds_peers: bool,
    /// The other gateways.
    pub peers: Vec<FlowPeerStatus>,
}

/// A gateway with which flows are exchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowPeerStatus {
    /// Its socket.
    pub address: String,
    /// Its name, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `up`, `behind`, `connecting`, `other-version`, `absent` for a gateway that was found and has stopped or has no
    /// heartbeat, or `itself` for this gateway's own address.
    pub state: String,
    /// Milliseconds since something was last heard from it; absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ago_milliseconds: Option<u64>,
    /// Messages about flows that wait to be sent.
    pub waiting: usize,
    /// Batches of messages that it has not acknowledged.
    pub unacknowledged: usize,
    /// The fingerprint of the key that it uses, once it has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
