//! What a worker can be asked while it runs, and how it answers without stopping.
//!
//! A listing of flows is made a few hundred buckets per turn, into memory that the asker has set aside, and sent by a
//! channel that the asker may have left by then.
//!
//! Invariant: nothing here waits or allocates on the worker (a listing stops at its limit, which is its capacity).

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tidegate_core::conntrack::{FlowTables, FlowView};
use tidegate_core::ids::{BackendId, ServiceId};
use tidegate_core::now::Now;
use tidegate_core::wire::Addr;

/// Buckets looked at per turn: some 10 µs.
const BUCKETS_PER_TURN: u64 = 256;

/// A question, with the way back for its answer.
#[derive(Debug)]
pub enum Question {
    /// A listing of flows.
    Flows(FlowQuestion),
}

/// Which flows to list; what is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// Of one of these service ports.
    pub services: Option<Arc<[ServiceId]>>,
    /// To one of these backends: one endpoint is one behind each service port.
    pub backends: Option<Arc<[BackendId]>>,
    /// Of this client.
    pub client: Option<Addr>,
}

impl FlowFilter {
    fn passes(&self, flow: &FlowView) -> bool {
        self.client.is_none_or(|client| client == flow.client)
            && self.services.as_ref().is_none_or(|services| services.contains(&flow.service))
            && self.backends.as_ref().is_none_or(|backends| backends.contains(&flow.backend))
    }
}

/// A listing of flows, asked for and being made.
#[derive(Debug)]
pub struct FlowQuestion {
    filter: FlowFilter,
    found: Vec<FlowView>,
    limit: usize,
    cursor: u64,
    reply: SyncSender<Vec<FlowView>>,
}

impl FlowQuestion {
    /// Up to `limit` flows; sets their memory aside here, on the asker's thread. The channel needs room for one.
    #[must_use]
    pub fn new(filter: FlowFilter, limit: usize, reply: SyncSender<Vec<FlowView>>) -> Self {
        Self { filter, found: Vec::with_capacity(limit), limit, cursor: 0, reply }
    }

    /// Looks at a few more buckets; gives the question back while there is more to look at.
    pub(super) fn go_on(mut self, flows: &mut FlowTables, now: Now) -> Option<Self> {
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
                // The asker waits with a bound and may have left.
                drop(self.reply.try_send(self.found));
                None
            }
        }
    }
}
