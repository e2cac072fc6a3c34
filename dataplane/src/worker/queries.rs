//! Queries to a running worker, and how it answers without stopping.
//!
//! A listing of flows is built a few hundred buckets per turn, in memory that the caller has reserved, and sent
//! through a channel that the caller may have dropped by then.
//!
//! Invariant: nothing here waits or allocates on the worker (a listing stops at its limit, which is its capacity).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tidegate_conntrack::{FlowKind, FlowTables, FlowView, Phase};
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;

use super::watch::Watch;

/// Buckets examined per turn: some 10 µs.
const BUCKETS_PER_TURN: u64 = 256;

/// A query with the channel for its answer.
#[derive(Debug)]
pub enum Question {
    /// A listing of flows.
    Flows(FlowQuestion),
    /// A count of the local ports in use.
    SnatPorts(SnatQuestion),
    /// Copies of packets, from now on.
    Watch(Arc<Watch>),
}

impl Question {
    /// Examines a few more buckets. Returns the query while there are more.
    pub(super) fn go_on(self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        match self {
            Self::Flows(question) => question.go_on(flows, now).map(Self::Flows),
            Self::SnatPorts(question) => question.go_on(flows, now).map(Self::SnatPorts),
            // The worker itself begins it, at once.
            Self::Watch(_) => None,
        }
    }
}

/// Ports of one SNAT address towards one backend, by the phase of their flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnatPorts {
    /// The backend.
    pub backend: BackendId,
    /// The SNAT address.
    pub address: Addr,
    /// Ports by [`Phase`], in its order.
    pub ports: [u32; 4],
}

/// A query for the local ports in use, with the counts so far.
#[derive(Debug)]
pub struct SnatQuestion {
    /// A hash table with linear probing. Its length is a power of two, at least twice the number of pairs that it may
    /// hold.
    counts: Vec<Option<SnatPorts>>,
    held: usize,
    cursor: u64,
    reply: SyncSender<Vec<Option<SnatPorts>>>,
}

impl SnatQuestion {
    /// Counts up to `pairs` pairs of a SNAT address and a backend, and leaves out the rest. Allocates the memory here,
    /// on the caller's thread. The channel must have room for one answer.
    #[must_use]
    pub fn new(pairs: usize, reply: SyncSender<Vec<Option<SnatPorts>>>) -> Self {
        Self { counts: vec![None; 2 * pairs.max(1).next_power_of_two()], held: 0, cursor: 0, reply }
    }

    fn count(&mut self, flow: &FlowView) {
        let FlowKind::Nat { source, .. } = flow.kind else { return };
        // With `nat` the client's address does not change.
        if flow.expired || source == flow.client {
            return;
        }
        let (mask, half) = (self.counts.len() - 1, self.counts.len() / 2);
        let bytes = source.bytes().iter().fold(u64::from(flow.backend.raw()), |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut at = (bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while let Some(known) = &mut self.counts[at] {
            if (known.backend, known.address) == (flow.backend, source) {
                known.ports[phase_index(flow.phase)] += 1;
                return;
            }
            at = (at + 1) & mask;
        }
        if self.held < half {
            let mut ports = [0; 4];
            ports[phase_index(flow.phase)] = 1;
            self.counts[at] = Some(SnatPorts { backend: flow.backend, address: source, ports });
            self.held += 1;
        }
    }

    fn go_on(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        let next = flows.scan(self.cursor, BUCKETS_PER_TURN, now, |flow| self.count(&flow));
        match next {
            Some(cursor) => {
                self.cursor = cursor;
                Some(self)
            }
            None => {
                // The caller may no longer be waiting.
                drop(self.reply.try_send(self.counts));
                None
            }
        }
    }
}

/// The index of a phase in [`SnatPorts::ports`].
fn phase_index(phase: Phase) -> usize {
    phase as usize
}

/// Selects the flows to list. A field that is `None` matches all flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The service port is one of these.
    pub services: Option<Arc<[ServiceId]>>,
    /// The backend is one of these. An endpoint is a separate backend behind each service port.
    pub backends: Option<Arc<[BackendId]>>,
    /// The client has this address.
    pub client: Option<Addr>,
    /// The client has this port. An entry of session affinity matches every port.
    pub client_port: Option<u16>,
}

impl FlowFilter {
    fn passes(&self, flow: &FlowView) -> bool {
        // A masqueraded flow has no service and no backend.
        let of_service = !matches!(flow.kind, FlowKind::Masquerade { .. });
        (of_service || self.services.is_none() && self.backends.is_none())
            && self.client.is_none_or(|client| client == flow.client)
            && self.client_port.is_none_or(|port| port == flow.client_port || flow.kind == FlowKind::Affinity)
            && self.services.as_ref().is_none_or(|services| services.contains(&flow.service))
            && self.backends.as_ref().is_none_or(|backends| backends.contains(&flow.backend))
    }
}

/// A query for flows, with the result so far.
#[derive(Debug)]
pub struct FlowQuestion {
    filter: FlowFilter,
    found: Vec<FlowView>,
    limit: usize,
    cursor: u64,
    reply: SyncSender<Vec<FlowView>>,
}

impl FlowQuestion {
    /// Lists up to `limit` flows. Allocates the memory here, on the caller's thread. The channel must have room for one
    /// answer.
    #[must_use]
    pub fn new(filter: FlowFilter, limit: usize, reply: SyncSender<Vec<FlowView>>) -> Self {
        Self { filter, found: Vec::with_capacity(limit), limit, cursor: 0, reply }
    }

    /// Examines a few more buckets. Returns the query while there are more.
    fn go_on(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        let Self { filter, found, limit, cursor, .. } = &mut self;
        let (limit, cursor) = (*limit, *cursor);
        let next = flows.scan(cursor, BUCKETS_PER_TURN, now, |flow| {
            if found.len() < limit && !flow.expired && filter.passes(&flow) {
                found.push(flow);
            }
        });
        match next {
            Some(cursor) if self.found.len() < limit => {
                self.cursor = cursor;
                Some(self)
            }
            _ => {
                // The caller waits with a limit and may no longer be waiting.
                drop(self.reply.try_send(self.found));
                None
            }
        }
    }
}
