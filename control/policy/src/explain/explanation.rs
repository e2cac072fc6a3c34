//! What becomes of the packet, as data.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::packet::Packet;

/// What becomes of a packet, in the words of `replay --json`.
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
    /// The word.
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

/// What becomes of the packet, and every step on the way there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The packet.
    pub packet: Packet,
    /// The generation of the snapshot.
    pub generation: u64,
    /// What becomes of the packet.
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
    /// The deck of that seat, counted from 0: above 0 only where weights sum to more than one deck holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deck: Option<u16>,
    /// The place of that seat in the flow's order, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u16>,
    /// How many seats the backends of the Service have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// The slot of the Maglev table, with `scheduler: maglev`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// How many slots the table has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The backend chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The interface that the packet leaves by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Who it is sent to on that link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// The longest IP packet of the client that fits the way, in bytes.
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
    /// What was found.
    pub found: String,
}
