//! Flows in readable form, for `flows`, tests and drains, not for the packet path.
//!
//! Invariant: a view is a copy without references to a table.

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

use super::flow_state::Phase;
use super::flow_traffic::FlowTraffic;
use super::key::addr_of;
use super::table::{Position, Table};

/// One flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowView {
    /// The service port.
    pub service: ServiceId,
    /// The client.
    pub client: Addr,
    /// Its port; 0 for affinity.
    pub client_port: u16,
    /// The backend of the flow.
    pub backend: BackendId,
    /// The kind of the flow, which determines its table.
    pub kind: FlowKind,
    /// Its phase; for NAT, the phase of both sides together.
    pub phase: Phase,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// Whether it has expired but has not been aged out yet.
    pub expired: bool,
    /// What has been counted of a flow in the flow log; `None` for other flows.
    pub traffic: Option<FlowTraffic>,
}

impl FlowView {
    /// The bytes that have been counted, if it is in the flow log.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.traffic.map(|traffic| traffic.bytes)
    }
}

/// The kind of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowKind {
    /// A flow whose replies don't pass through the gateway.
    Dsr,
    /// A client's backend (`sessionAffinity: ClientIP`).
    Affinity,
    /// A flow in both directions.
    Nat {
        /// The endpoint that sends the replies.
        endpoint: EndpointId,
        /// The destination of the replies: a SNAT address, or the client's own.
        source: Addr,
        /// The destination port of the replies.
        source_port: u16,
    },
    /// A flow that a backend originates and that is masqueraded. The backend is the client; service and backend of the
    /// view have no meaning.
    Masquerade {
        /// The protocol number.
        proto: u8,
        /// The outside host; its port is 0 with ICMP echo.
        peer: Endpoint,
        /// The SNAT address and port, or the identifier of the echo.
        local: Endpoint,
    },
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// The flow of an entry; `None` for a free position and for the entry of replies.
    pub(super) fn view(&self, position: Position, now: Now) -> Option<FlowView> {
        if self.is_reply(position) {
            return None;
        }
        let (age, key) = (self.flow_age(position, now)?, self.key(position));
        let kind = if Self::PAIRED {
            let reply = self.peer_key(position);
            FlowKind::Nat {
                endpoint: EndpointId::from_raw(reply.owner),
                source: addr_of(reply.addr),
                source_port: (reply.tag >> 16) as u16,
            }
        } else if self.is_affinity(position) {
            FlowKind::Affinity
        } else {
            FlowKind::Dsr
        };
        Some(FlowView {
            service: ServiceId::from_raw(key.owner),
            client: addr_of(key.addr),
            client_port: (key.tag >> 16) as u16,
            backend: BackendId::from_raw(self.value(position)),
            kind,
            phase: age.status.phase,
            idle_ms: age.idle_ms,
            expired: age.expired(),
            traffic: self.accounts.get(self.entry_index(position)).traffic(),
        })
    }
}
