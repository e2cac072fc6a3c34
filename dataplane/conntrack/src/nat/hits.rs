//! The results of look-ups of NAT flows: a flow seen from its client or from its endpoint, or the state of a reply key.

use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::HALF_CLOSED_IDLE_MIN_MS;
use tidegate_wire::Addr;

use crate::flow_state::{EvictionClass, FlowStatus, Phase};

/// A known flow, seen from its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatHit {
    /// The backend that its packets go to.
    pub backend: BackendId,
    /// The source address to send with: one of the gateway (`fullnat`), or the client's own (`nat`).
    pub source: Addr,
    /// The source port to send with.
    pub source_port: u16,
    /// The phase of the client's side, including this packet.
    pub phase: Phase,
    /// The packet is a SYN and the flow was over: the server or both sides had closed or reset it (RFC 9293 section
    /// 3.6.1, RFC 6191). Both entries count as opening; the caller may replace the pair. If only the client sent a FIN
    /// or RST, that packet and the SYN may be forged, and the flow stays with its backend.
    pub reopened: bool,
    /// The packet is an unanswered SYN that its client repeats after [`SYN_REPEATED_MS`] or more.
    pub repeated: bool,
    /// The packet is a SYN, and the first packet on this gateway of an adopted flow. The caller may replace the pair.
    pub adopted: bool,
}

/// A known flow, seen from its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHit {
    /// The service whose VIP and port to send with.
    pub service: ServiceId,
    /// The destination of replies.
    pub client: Addr,
    /// The destination port of replies.
    pub client_port: u16,
    /// The backend that sent the reply.
    pub backend: BackendId,
    /// The phase of the server's side, including this packet.
    pub phase: Phase,
}

/// The state of a reply key that a new flow needs. Variants are in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyKey {
    /// No flow has it.
    Free,
    /// Its flow has expired.
    Expired,
    /// Its flow is closed by both sides, or reset.
    Over,
    /// Its flow is not established, unanswered, and idle for `idle_ms`.
    Opening {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow is not established, but the backend has answered, and it is idle for `idle_ms`.
    Answered {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow was closed or reset by one side only, and is idle for `idle_ms`.
    HalfClosed {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow is established.
    Taken,
}

impl ReplyKey {
    /// The state of the reply key of a flow with this status that has been idle for this long.
    pub(crate) fn of(status: FlowStatus, idle_ms: u32) -> Self {
        match status.eviction_class {
            _ if idle_ms >= status.timeout_ms => Self::Expired,
            EvictionClass::Closed | EvictionClass::Closing => Self::Over,
            EvictionClass::Unanswered => Self::Opening { idle_ms },
            EvictionClass::Answered => Self::Answered { idle_ms },
            EvictionClass::HalfClosed if idle_ms >= HALF_CLOSED_IDLE_MIN_MS => Self::HalfClosed { idle_ms },
            EvictionClass::HalfClosed | EvictionClass::Established => Self::Taken,
        }
    }
}
