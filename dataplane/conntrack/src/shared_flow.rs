//! A flow to exchange with other gateways, with the ids of this process. The pipeline translates ids to names that all
//! gateways share ([`flow_record`](crate::flow_record)).

use tidegate_spec::ids::BackendId;

use super::flow_state::State;
use super::key::FlowKey;
use super::splice::Splice;
use super::stream::Stream;

/// The state of one side of a flow, as sent to other gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideState(pub(super) State);

impl SideState {
    /// The number of the state, 1 to 7.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0 as u8
    }

    /// The state with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        State::from_bits(u32::from(number)).map(Self)
    }

    /// Whether the side has shown that the flow is established.
    #[must_use]
    pub fn is_established(self) -> bool {
        matches!(self.0, State::TcpEstablished | State::DatagramStream)
    }

    /// Whether it is a state of a protocol with connections.
    #[must_use]
    pub fn has_connection(self) -> bool {
        self.0.is_tcp()
    }
}

/// A flow to or from another gateway. It may also be a client's session affinity, without another side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedFlow {
    /// The key of the client's side.
    pub key: FlowKey,
    /// Its backend.
    pub backend: BackendId,
    /// The state of the client's side.
    pub client: SideState,
    /// The other side of a NAT flow; `None` for a DSR flow.
    pub reply: Option<SharedReply>,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// Its first packet was seen, and it is not established yet. Only DSR flows are exported in this state. A flow
    /// whose first packet was not seen is not opening: it may have existed for hours at another gateway.
    pub is_opening: bool,
    /// Whether it was received from another gateway and has had no packet on this one.
    pub is_untouched: bool,
}

/// The backend's side of a NAT flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedReply {
    /// The key of replies.
    pub key: FlowKey,
    /// The state of the backend's side.
    pub state: SideState,
    /// The header of the PROXY protocol in front of the flow.
    pub stream: Option<Stream>,
    /// The translation of sequence numbers after a SYN cookie.
    pub splice: Option<Splice>,
    /// Whether an adopted flow has had a reply on this gateway.
    pub has_replies: bool,
}

/// A change of a flow of this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedChange {
    /// The flow has become established, or a side has ended it.
    Live(SharedFlow),
    /// The flow with this client's key was removed.
    Gone(FlowKey),
}
