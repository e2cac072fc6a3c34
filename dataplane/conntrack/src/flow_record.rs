//! A flow that one process passes to another: to the next process of this gateway, or to another gateway.
//!
//! There is one record with two forms of names. A [`LocalFlow`] has the ids of a process: `export.rs` reads it from a
//! table, and `import.rs` writes it to one. A [`FlowRecord`] without parameters is for other gateways: it has addresses
//! and ports instead of ids. `Pipeline::share` and `Pipeline::adopt` translate between them.
//!
//! Invariant: a record contains no hash and no time of the process that wrote it, only ages.

use tidegate_spec::ServiceKey;
use tidegate_spec::ids::BackendId;
use tidegate_wire::rewrite::Endpoint;

use crate::flow_state::FlowStatus;
use crate::{FlowKey, IdleTimeout, SideState, Splice, Stream, TagPair};

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

/// A flow, or a client's session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRecord<Name = FlowName, Backend = Endpoint> {
    /// Which flow it is.
    pub name: Name,
    /// Its backend.
    pub backend: Backend,
    /// The state of the client's side.
    pub client: SideState,
    /// The other direction of a NAT flow; `None` for a DSR flow.
    pub translation: Option<Translation>,
    /// The verification tags of a flow of SCTP, if the client's COOKIE ECHO has confirmed them.
    pub tags: Option<TagPair>,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// The idle timeout with which the flow began. Not sent to other gateways, which use that of their own Service.
    pub idle_timeout: Option<IdleTimeout>,
    /// Whether the flow was received from another gateway and has had no packet on this one since.
    pub is_relayed: bool,
}

/// A flow with the ids of a process: of this one, or of an earlier one in stored tables.
pub type LocalFlow = FlowRecord<FlowKey, BackendId>;

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

impl<Name, Backend> FlowRecord<Name, Backend> {
    /// This flow with other names.
    #[must_use]
    pub fn with<N, B>(&self, name: N, backend: B) -> FlowRecord<N, B> {
        let &Self { client, translation, tags, idle_ms, idle_timeout, is_relayed, .. } = self;
        FlowRecord { name, backend, client, translation, tags, idle_ms, idle_timeout, is_relayed }
    }

    /// The status of the flow, with this idle timeout.
    pub(super) fn status(&self, idle: IdleTimeout) -> FlowStatus {
        match &self.translation {
            Some(translation) => SideState::of_both(self.client, translation.server, idle),
            None => self.client.alone(idle),
        }
    }

    /// Whether the flow is not established.
    pub(super) fn is_unestablished(&self) -> bool {
        // The timeout is not needed for that.
        self.status(IdleTimeout::SHORTEST).is_opening()
    }

    /// Whether its first packet was seen, and it is not established yet. A flow whose first packet was not seen is not
    /// opening: it may have existed for hours at another gateway.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.is_unestablished() && self.client != SideState::TcpStray
    }
}

/// A message to other gateways about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowUpdate<Name = FlowName, Backend = Endpoint> {
    /// The current state of a flow: it has become established, or a side has ended it.
    Live(FlowRecord<Name, Backend>),
    /// A flow that its gateway has removed.
    Gone(Name),
}

impl<Name, Backend> FlowUpdate<Name, Backend> {
    /// The flow that the message is about.
    #[must_use]
    pub fn name(&self) -> &Name {
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
