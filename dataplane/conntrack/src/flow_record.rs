//! Flows in terms that all gateways share: addresses and ports instead of ids, and ages instead of times.
//!
//! A record is all that a gateway needs to take a flow over. `Pipeline::share` writes records and `Pipeline::adopt`
//! reads them. How gateways exchange them is not decided in this crate.
//!
//! Invariant: a record contains no id, no hash and no time of the process that wrote it.

use tidegate_spec::ServiceKey;
use tidegate_wire::rewrite::Endpoint;

use crate::{SideState, Splice, Stream, TagPair};

/// The identity of a flow: its client and its service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowName {
    /// The service port.
    pub service: ServiceKey,
    /// The client. No flow has port 0: it stands for the backend that the client has by session affinity.
    pub client: Endpoint,
}

impl FlowName {
    /// Whether it is about session affinity.
    #[must_use]
    pub fn is_affinity(&self) -> bool {
        self.client.port == 0
    }
}

/// A flow, as one gateway sends it to another, or the backend that a client has by session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// Which flow it is.
    pub name: FlowName,
    /// The endpoint of the backend.
    pub backend: Endpoint,
    /// What the client's packets have shown.
    pub client: SideState,
    /// The other direction of a NAT flow; `None` for a DSR flow.
    pub translation: Option<Translation>,
    /// The verification tags of a flow of SCTP, if they are known.
    pub tags: Option<TagPair>,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// The flow was received from another gateway, and has had no packet on this one since.
    pub is_relayed: bool,
}

/// How a NAT flow is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The source of packets to the backend, and so the destination of its replies: a SNAT address and port, or the
    /// client's own.
    pub local: Endpoint,
    /// What the backend's packets have shown.
    pub server: SideState,
    /// The header of the PROXY protocol in front of the flow.
    pub stream: Option<Stream>,
    /// The translation of sequence numbers after a SYN cookie.
    pub splice: Option<Splice>,
    /// Whether a reply has reached this gateway, if it has adopted the flow. Not sent to other gateways.
    pub has_replies: bool,
}

/// What a gateway sends to the others about its flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowUpdate {
    /// A flow, as it is now.
    Is(FlowRecord),
    /// A flow that has left the table of its gateway.
    Gone(FlowName),
}

impl FlowUpdate {
    /// Which flow it is about.
    #[must_use]
    pub fn name(&self) -> &FlowName {
        match self {
            Self::Is(record) => &record.name,
            Self::Gone(name) => name,
        }
    }
}

/// The walks through the tables that other gateways have requested, as counts that only grow. A walk begins when its
/// count has grown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walks {
    /// Walks for gateways that missed messages. Flows that were received from others, and are unused since, are
    /// skipped.
    pub refreshing: u64,
    /// Walks for a gateway that has lost its tables: all flows.
    pub complete: u64,
}
