//! The result of `explain` as data.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::packet::Packet;

tidegate_spec::named! {
    /// The verdict on a packet, with the names of `replay --json`.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum PacketVerdict {
        /// It is forwarded, or the gateway answers it.
        Transmit => "transmit",
        /// It is handed to the kernel.
        Punt => "punt",
        /// It is dropped.
        Drop => "drop",
    }
}

/// The verdict on a packet, and every step that led to it.
///
/// In JSON it is one flat object: `choice` and `egress` are flattened into it.
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
    /// How the backend was chosen, if neither a known flow nor session affinity decided.
    #[serde(flatten)]
    pub choice: Option<BackendChoice>,
    /// The backend chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
    /// The path to the backend, if one was chosen.
    #[serde(flatten)]
    pub egress: Option<Egress>,
    /// The steps with their results, in order.
    pub steps: Vec<Step>,
    /// The steps of the backend's reply; empty unless a backend was chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reply: Vec<Step>,
}

/// How the scheduler of the Service chose a backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackendChoice {
    /// With `scheduler: rendezvous`.
    Seat {
        /// The seat that decides.
        seat: u16,
        /// The seat map of that seat, from 0. It is above 0 only if the weights exceed the seats of one map.
        deck: u16,
        /// The position of that seat in the flow's order, from 0.
        rank: u16,
        /// The number of seats of the Service's backends.
        seats: u32,
    },
    /// With `scheduler: maglev`.
    Slot {
        /// The slot of the Maglev table.
        slot: u32,
        /// The number of slots of the table.
        slots: u32,
    },
    /// With `scheduler: wrr`, `lc`, `sed` and `nq`: the choice depends on the state of the worker.
    OfWorker {
        /// The scheduler.
        scheduler: String,
        /// The number of backends that it may choose from.
        candidates: usize,
    },
}

/// The path from the gateway to the backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// The interface on which the packet leaves.
    pub interface: String,
    /// The next hop on that link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<IpAddr>,
    /// The largest IP packet of a client that fits the path, in bytes.
    pub mtu: u16,
}

/// One step of the decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The name of the step: `destination`, `service`, `source`, `source list`, `source range`, `source rate`, `limits`,
    /// `flow`, `affinity`, `slow start`, `former owner`, `seat`, `slot` or `scheduler`, `backend`, `hairpin`, `mode`,
    /// `next hop`, `mtu`, `segment size`; `gateway` for traffic that backends initiate.
    pub step: String,
    /// The result of the step.
    pub found: String,
}

impl fmt::Display for Explanation {
    /// Writes the steps, one per line, then those of the reply, then the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packet { protocol, source, destination } = self.packet;
        writeln!(f, "{protocol} {source} -> {destination}, with snapshot generation {}", self.generation)?;
        let width = self.steps.iter().map(|s| s.step.len()).max().unwrap_or(0);
        for (n, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>2}. {:width$}  {}", n + 1, step.step, step.found)?;
        }
        let width = self.reply.iter().map(|s| s.step.len()).max().unwrap_or(0);
        for step in &self.reply {
            writeln!(f, "<=  {:width$}  {}", step.step, step.found)?;
        }
        match self.backend {
            Some(backend) if self.verdict == PacketVerdict::Transmit => {
                writeln!(f, "=> {} ({}) to {backend}", self.verdict, self.reason)
            }
            _ => writeln!(f, "=> {} ({})", self.verdict, self.reason),
        }
    }
}
