//! Flows in terms that all gateways share: addresses and ports instead of ids, and ages instead of times.
//!
//! A gateway that takes a flow over needs nothing else. `Pipeline::share` writes
//! records, and `Pipeline::adopt` reads them; how gateways exchange them is no
//! concern of this crate.
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

/// A flow, as a gateway tells another one about it, or the backend that a client has by session affinity.
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
    /// Another gateway told of the flow, and it has had no packet here since.
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
    /// Whether a reply has come to this gateway, if it has adopted the flow. Other gateways don't get it.
    pub has_replies: bool,
}

/// What a gateway tells the others about its flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowNews {
    /// A flow, as it is now.
    Is(FlowRecord),
    /// A flow that has left the table of its gateway.
    Gone(FlowName),
}

impl FlowNews {
    /// Which flow it is about.
    #[must_use]
    pub fn name(&self) -> &FlowName {
        match self {
            Self::Is(record) => &record.name,
            Self::Gone(name) => name,
        }
    }
}

/// A walk through the tables that others have asked for, by counts that only grow: a walk begins when one has grown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walks {
    /// Walks for gateways that missed something: flows that came from others and were not used here are left out.
    pub refreshing: u64,
    /// Walks for a gateway that has lost its tables: all flows.
    pub complete: u64,
}
