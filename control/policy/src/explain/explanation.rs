//! The result of `explain` as data.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::packet::Packet;

/// The verdict on a packet, with the names of `replay --json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketVerdict {
    /// It is forwarded, or answered.
    Transmit,
    /// It is handed to the kernel.
    Punt,
    /// It is dropped.
    Drop,
}

impl PacketVerdict {
    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transmit => "transmit",
            Self::Punt => "punt",
            Self::Drop => "drop",
        }
    }
}

impl fmt::Display for PacketVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The verdict on a packet, and every step that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The packet.
    pub packet: Packet,
    /// The generation of the snapshot.
    pub generation: u64,
    /// The verdict.
    pub verdict: PacketVerdict,
    /// The reason, in the words of metrics and `replay --json`.
    pub reason: String,
    /// `namespace/name:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The forwarding mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The seat that decides, with `scheduler: rendezvous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seat: Option<u16>,
    /// The deck of that seat, from 0. It is above 0 only if the weights sum to more than one deck holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deck: Option<u16>,
    /// The position of that seat in the flow's order, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// The number of seats of the Service's backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// The slot of the Maglev table, with `scheduler: maglev`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The number of slots of the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The backend chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The interface that the packet leaves by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The next hop on that link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// The largest IP packet of the client that fits the path, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// The steps with their results, in order.
    pub steps: Vec<Step>,
}

/// One step of the decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name of the step: `destination`, `service`, `source`, `source range`, `flow`, `affinity`, `seat` or
    /// `slot`, `backend`, `hairpin`, `mode`, `next hop`, `mtu`.
    pub step: String,
    /// The result of the step.
    pub found: String,
}
