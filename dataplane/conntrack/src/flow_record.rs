//! Flows in terms that all gateways share: addresses and ports instead of ids, and ages instead of times.
//!
//! A record is all that a gateway needs to take over a flow. `Pipeline::share` writes records, and `Pipeline::adopt`
//! reads them.
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
    /// The client. Port 0 identifies session affinity, because no flow has it.
    pub client: Endpoint,
}

impl FlowName {
    /// Whether it identifies session affinity.
    #[must_use]
    pub fn is_affinity(&self) -> bool {
        self.client.port == 0
    }
}

/// A flow, or a client's session affinity, as one gateway sends it to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord {
    /// Which flow it is.
    pub name: FlowName,
    /// The endpoint of the backend.
    pub backend: Endpoint,
    /// The state of the client's side.
    pub client: SideState,
    /// The other direction of a NAT flow; `None` for a DSR flow.
    pub translation: Option<Translation>,
    /// The verification tags of a flow of SCTP, if they are known.
    pub tags: Option<TagPair>,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// Whether the flow was received from another gateway and has had no packet on this one since.
    pub is_relayed: bool,
}

/// How a NAT flow is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The source of packets to the backend, and so the destination of its replies: a SNAT address and port, or the
    /// client's own.
    pub local: Endpoint,
    /// The state of the backend's side.
    pub server: SideState,
    /// The header of the PROXY protocol in front of the flow.
    pub stream: Option<Stream>,
    /// The translation of sequence numbers after a SYN cookie.
    pub splice: Option<Splice>,
    /// Whether an adopted flow has had a reply on this gateway. Not sent to other gateways.
    pub has_replies: bool,
}

/// A message to other gateways about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowUpdate {
    /// The current state of a flow.
    Live(FlowRecord),
    /// A flow that its gateway has removed.
    Gone(FlowName),
}

impl FlowUpdate {
    /// The flow that the message is about.
    #[must_use]
    pub fn name(&self) -> &FlowName {
        match self {
            Self::Live(record) => &record.name,
            Self::Gone(name) => name,
        }
    }
}

/// The walks through the tables that other gateways have requested, as counts that only grow. A walk starts when its
/// count has grown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walks {
    /// Walks for gateways that missed messages. They skip flows that were received from others and have not been used
    /// since.
    pub refreshing: u64,
    /// Walks over all flows, for a gateway that has lost its tables.
    pub complete: u64,
}
