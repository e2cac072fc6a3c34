//! Queries to a running worker, answered without stopping it.
//!
//! A listing of flows examines a few hundred hash buckets per loop iteration. Its memory was reserved by the caller,
//! and the result goes through a channel that the caller may have dropped by then.
//!
//! Invariant: nothing here waits or allocates on the worker. A listing has a limit, which is its capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tidegate_conntrack::{FlowKind, FlowTables, FlowView, Phase};
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Addr;

use super::watch::Watch;

/// Hash buckets examined per step: some 10 µs.
const BUCKETS_PER_STEP: u64 = 256;

/// A query with the channel for its answer.
#[derive(Debug)]
pub enum Query {
    /// Lists flows.
    Flows(FlowQuery),
    /// Removes flows.
    Remove(FlowRemoval),
    /// Counts the flows of backends.
    Count(FlowCountQuery),
    /// Reports all logged flows as ended.
    EndLogged(LogEnd),
    /// Starts copying packets.
    Watch(Arc<Watch>),
}

impl Query {
    /// Examines more hash buckets. Returns the query if it isn't finished.
    pub(super) fn step(self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        match self {
            Self::Flows(query) => query.step(flows, now).map(Self::Flows),
            Self::Remove(removal) => removal.step(flows, now).map(Self::Remove),
            Self::Count(query) => query.step(flows, now).map(Self::Count),
            Self::EndLogged(end) => end.step(flows).map(Self::EndLogged),
            // The worker starts it itself.
            Self::Watch(_) => None,
        }
    }
}

/// The flows of one backend. With `fullnat`, those from one SNAT address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendFlows {
    /// The backend.
    pub backend: BackendId,
    /// The SNAT address; `None` if the flows keep the client's address.
    pub local: Option<Addr>,
    /// Flows by [`Phase`], in its order.
    pub flows: [u32; 4],
}

/// A query for the number of flows of each backend, with the counts so far.
#[derive(Debug)]
pub struct FlowCountQuery {
    /// A hash table with linear probing. Its length is a power of two, at least twice the maximum number of pairs.
    counts: Vec<Option<BackendFlows>>,
    used: usize,
    cursor: u64,
    reply: SyncSender<Vec<Option<BackendFlows>>>,
}

impl FlowCountQuery {
    /// Counts the flows of up to `pairs` pairs of a backend and a SNAT address; further pairs are ignored. Allocates on the caller's
    /// thread. The channel needs capacity for one answer.
    #[must_use]
    pub fn new(pairs: usize, reply: SyncSender<Vec<Option<BackendFlows>>>) -> Self {
        Self { counts: vec![None; 2 * pairs.max(1).next_power_of_two()], used: 0, cursor: 0, reply }
    }

    fn count(&mut self, flow: &FlowView) {
        let local = match flow.kind {
            // `nat` doesn't change the client's address.
            FlowKind::Nat { source, .. } => (source != flow.client).then_some(source),
            FlowKind::Dsr => None,
            FlowKind::Affinity | FlowKind::Masquerade { .. } => return,
        };
        if flow.expired {
            return;
        }
        let (mask, half) = (self.counts.len() - 1, self.counts.len() / 2);
        let bytes = local.iter().flat_map(Addr::bytes).fold(u64::from(flow.backend.raw()), |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut at = (bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while let Some(known) = &mut self.counts[at] {
            if (known.backend, known.local) == (flow.backend, local) {
                known.flows[phase_index(flow.phase)] += 1;
                return;
            }
            at = (at + 1) & mask;
        }
        if self.used < half {
            let mut flows = [0; 4];
            flows[phase_index(flow.phase)] = 1;
            self.counts[at] = Some(BackendFlows { backend: flow.backend, local, flows });
            self.used += 1;
        }
    }

    fn step(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        let next = flows.scan(self.cursor, BUCKETS_PER_STEP, now, |flow| self.count(&flow));
        match next {
            Some(cursor) => {
                self.cursor = cursor;
                Some(self)
            }
            None => {
                // The caller may have given up waiting.
                drop(self.reply.try_send(self.counts));
                None
            }
        }
    }
}

/// The index of a phase in [`BackendFlows::flows`].
fn phase_index(phase: Phase) -> usize {
    phase as usize
}

/// Selects flows. A field that is `None` matches all flows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The service port is one of these.
    pub services: Option<Arc<[ServiceId]>>,
    /// The backend is one of these. An endpoint has one backend per service port.
    pub backends: Option<Arc<[BackendId]>>,
    /// The client has this address.
    pub client: Option<Addr>,
    /// The client has this port. A session affinity entry matches every port.
    pub client_port: Option<u16>,
    /// The flow is in this phase.
    pub phase: Option<Phase>,
    /// The flow has been idle for at least this time.
    pub idle_ms_min: u32,
}

impl FlowFilter {
    fn passes(&self, flow: &FlowView) -> bool {
        // A masqueraded flow has no service and no backend.
        let of_service = !matches!(flow.kind, FlowKind::Masquerade { .. });
        (of_service || self.services.is_none() && self.backends.is_none())
            && self.client.is_none_or(|client| client == flow.client)
            && self.phase.is_none_or(|phase| phase == flow.phase)
            && flow.idle_ms >= self.idle_ms_min
            && self.client_port.is_none_or(|port| port == flow.client_port || flow.kind == FlowKind::Affinity)
            && self.services.as_ref().is_none_or(|services| services.contains(&flow.service))
            && self.backends.as_ref().is_none_or(|backends| backends.contains(&flow.backend))
    }
}

/// A request to remove flows, with the number removed so far.
#[derive(Debug)]
pub struct FlowRemoval {
    filter: FlowFilter,
    removed: u64,
    cursor: u64,
    reply: SyncSender<u64>,
}

impl FlowRemoval {
    /// Removes the flows that pass the filter, except masqueraded ones. The channel needs capacity for one answer.
    #[must_use]
    pub fn new(filter: FlowFilter, reply: SyncSender<u64>) -> Self {
        Self { filter, removed: 0, cursor: 0, reply }
    }

    fn step(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        let Self { filter, removed, cursor, .. } = &mut self;
        let next = flows.sweep(*cursor, BUCKETS_PER_STEP, now, |flow| {
            let is_removed = !flow.expired && filter.passes(flow);
            *removed += u64::from(is_removed);
            !is_removed
        });
        match next {
            Some(cursor) => {
                self.cursor = cursor;
                Some(self)
            }
            None => {
                // The caller may have given up waiting.
                let _ = self.reply.try_send(self.removed);
                None
            }
        }
    }
}

/// A request to report all logged flows as ended, because the gateway stops.
#[derive(Debug)]
pub struct LogEnd {
    cursor: u64,
    reply: SyncSender<()>,
}

impl LogEnd {
    /// The channel needs capacity for one answer.
    #[must_use]
    pub fn new(reply: SyncSender<()>) -> Self {
        Self { cursor: 0, reply }
    }

    fn step(self, flows: &mut FlowTables) -> Option<Self> {
        let Self { cursor, reply } = self;
        // The thread that writes the log frees the queue.
        if flows.log().is_some_and(|log| log.is_half_full()) {
            return Some(Self { cursor, reply });
        }
        match flows.end_all(cursor, BUCKETS_PER_STEP) {
            Some(cursor) => Some(Self { cursor, reply }),
            None => {
                // The caller may have given up waiting.
                let _ = reply.try_send(());
                None
            }
        }
    }
}

/// The bytes of flows and their indexes, the fewest bytes first.
type FewestBytesFirst = BinaryHeap<Reverse<(Option<u64>, usize)>>;

/// A query for flows, with the result so far.
#[derive(Debug)]
pub struct FlowQuery {
    filter: Box<FlowFilter>,
    found: Vec<FlowView>,
    /// The bytes and the index of each found flow, the fewest bytes first; `None` unless it selects by bytes.
    by_bytes: Option<FewestBytesFirst>,
    limit: usize,
    cursor: u64,
    reply: SyncSender<Vec<FlowView>>,
}

impl FlowQuery {
    /// Lists up to `limit` flows. Allocates on the caller's thread. The channel needs capacity for one answer.
    #[must_use]
    pub fn new(filter: FlowFilter, limit: usize, reply: SyncSender<Vec<FlowView>>) -> Self {
        let (filter, found) = (Box::new(filter), Vec::with_capacity(limit));
        Self { filter, found, by_bytes: None, limit, cursor: 0, reply }
    }

    /// Selects the flows with the most bytes, in no order. Allocates on the caller's thread.
    #[must_use]
    pub fn with_most_bytes(self) -> Self {
        Self { by_bytes: Some(BinaryHeap::with_capacity(self.limit)), ..self }
    }

    /// Examines more hash buckets. Returns the query if it isn't finished.
    fn step(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
        let Self { filter, found, by_bytes, limit, cursor, .. } = &mut self;
        let (limit, cursor) = (*limit, *cursor);
        let next = flows.scan(cursor, BUCKETS_PER_STEP, now, |flow| {
            if flow.expired || !filter.passes(&flow) {
                return;
            }
            let bytes = flow.bytes();
            if found.len() < limit {
                if let Some(by_bytes) = by_bytes {
                    by_bytes.push(Reverse((bytes, found.len())));
                }
                found.push(flow);
            } else if let Some(mut fewest) = by_bytes.as_mut().and_then(BinaryHeap::peek_mut)
                && bytes > fewest.0.0
            {
                let index = fewest.0.1;
                found[index] = flow;
                *fewest = Reverse((bytes, index));
            }
        });
        match next {
            Some(cursor) if self.found.len() < limit || self.by_bytes.is_some() => {
                self.cursor = cursor;
                Some(self)
            }
            _ => {
                // The caller may have given up waiting.
                drop(self.reply.try_send(self.found));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::time::Duration;

    use tidegate_conntrack::flow_log::{FlowLog, LoggedPacket};
    use tidegate_conntrack::{FlowKey, IdleTimeout, NewFlow, Packet};
    use tidegate_wire::tcp::flags;

    use super::*;

    const FLOWS: u16 = 3_000;
    const NOW: Now = Now(1_000_000_000);

    /// Adds a flow from this port. Unless `bytes` is `None`, it is logged with that many.
    fn add(tables: &mut FlowTables, port: u16, bytes: Option<u32>) {
        let key = FlowKey::flow(ServiceId::new(1, 0), Addr::v4([192, 0, 2, 1]), port);
        let (hash, packet) = (tables.hash(&key), Packet::Tcp(flags::SYN));
        let idle = IdleTimeout::new(Duration::from_secs(100));
        let flow = NewFlow { key, hash, backend: BackendId::new(1, 0), packet, idle, now: NOW };
        tables.dsr.insert(&flow).expect("there is space");
        let Some(bytes) = bytes else { return };
        let packet = LoggedPacket {
            is_reply: false,
            is_first: true,
            is_sent: true,
            bytes,
            tcp_flags: 0,
            ends_association: false,
        };
        tables.count_logged(true, &key, hash, &packet, NOW);
    }

    fn answer(
        mut query: FlowQuery,
        tables: &mut FlowTables,
        answer: &Receiver<Vec<FlowView>>,
    ) -> Vec<FlowView> {
        let capacity = query.found.capacity();
        while let Some(unfinished) = query.step(tables, NOW) {
            query = unfinished;
        }
        let found = answer.try_recv().expect("it is answered at the end");
        assert_eq!(found.capacity(), capacity, "nothing is allocated on the worker");
        found
    }

    #[test]
    fn the_flows_with_the_most_bytes_are_selected_from_the_whole_table() {
        let mut tables = FlowTables::new(8_192, 0x5eed);
        tables.log_to(&Arc::new(FlowLog::new()));
        // The bytes of a flow: 5 to 5 * FLOWS, in an order of their own. Every fourth flow is not logged.
        let bytes =
            |port: u16| (!port.is_multiple_of(4)).then(|| u32::from(port) * 7 % u32::from(FLOWS) * 5 + 5);
        (1..=FLOWS).for_each(|port| add(&mut tables, port, bytes(port)));
        let mut most: Vec<Option<u64>> = (1..=FLOWS).map(|port| bytes(port).map(u64::from)).collect();
        most.sort_unstable();
        most.reverse();
        for limit in [0, 1, 10, 2_500, 5_000] {
            let (reply, answers) = sync_channel(1);
            let query = FlowQuery::new(FlowFilter::default(), limit, reply).with_most_bytes();
            let mut found = answer(query, &mut tables, &answers);
            found.sort_by_key(|flow| Reverse(flow.bytes()));
            let found: Vec<Option<u64>> = found.iter().map(FlowView::bytes).collect();
            assert_eq!(found, most[..limit.min(most.len())], "limit {limit}");
        }
    }

    #[test]
    fn without_an_order_the_listing_stops_at_its_limit() {
        let mut tables = FlowTables::new(8_192, 0x5eed);
        (1..=FLOWS).for_each(|port| add(&mut tables, port, None));
        let (reply, answers) = sync_channel(1);
        let found = answer(FlowQuery::new(FlowFilter::default(), 10, reply), &mut tables, &answers);
        assert_eq!((found.len(), found[0].traffic), (10, None));
    }
}
