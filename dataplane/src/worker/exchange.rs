//! State that a worker shares with other threads: the published tables, queues and counters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_conntrack::flow_log::FlowLog;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, WorkerCounters};

use super::counters::LoopCounters;
use super::mailbox::Mailbox;
use super::neighbor_reports::NeighborReports;
use super::sharing_queues::Sharing;
use crate::punt::class::Punts;
use crate::punt::host_connections::HostConnections;
use crate::punt::vrrp::Advertisements;

/// The data published to workers.
#[derive(Debug)]
pub struct Forwarding {
    /// The compiled tables.
    pub snapshot: Snapshot,
    /// Counts per service and backend, one set per worker. Replaced when the snapshot needs larger ones.
    pub tallies: Vec<Arc<Tallies>>,
}

/// The queues between workers and all other threads, shared by all workers.
#[derive(Debug)]
pub struct Exchange<F> {
    /// One per worker.
    pub mailboxes: Vec<Mailbox<F>>,
    /// Whether each worker hangs. The watchdog writes it.
    pub hung: Vec<AtomicBool>,
    /// Frames for the kernel.
    pub punts: Punts<F>,
    /// Connections that the host opened. The slow path writes them.
    pub host_connections: HostConnections,
    /// VRRP advertisements seen on the taps. The slow path writes them.
    pub advertisements: Advertisements,
    /// Neighbour reports for the resolver.
    pub neighbor_reports: NeighborReports,
    /// The queues to the thread that exchanges flows with peer gateways, if flow sharing is on.
    pub sharing: OnceLock<Arc<Sharing>>,
    /// The flow log of each worker, if there is one.
    pub flow_logs: OnceLock<Box<[Arc<FlowLog>]>>,
}

impl<F> Exchange<F> {
    /// Empty queues for this number of workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self {
            mailboxes: (0..workers).map(|_| Mailbox::new()).collect(),
            hung: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            punts: Punts::default(),
            host_connections: HostConnections::default(),
            advertisements: Advertisements::default(),
            neighbor_reports: NeighborReports::default(),
            sharing: OnceLock::new(),
            flow_logs: OnceLock::new(),
        }
    }

    /// The mailbox of a worker or, if it hangs, of the next worker that doesn't.
    #[must_use]
    pub fn mailbox_or_next(&self, worker: usize) -> Option<&Mailbox<F>> {
        let mut workers = (worker..self.mailboxes.len()).chain(0..worker);
        let is_healthy = |&n: &usize| self.hung.get(n).is_some_and(|hung| !hung.load(Ordering::Relaxed));
        self.mailboxes.get(workers.find(is_healthy).unwrap_or(worker))
    }

    /// Frees all queued frames. Call it after the threads have ended.
    pub fn drain(&self) {
        self.punts.drain();
        self.mailboxes.iter().for_each(Mailbox::drain);
    }
}

/// The data of a running worker that any thread may read.
#[derive(Debug, Default)]
pub struct Shared {
    /// Verdicts on frames.
    pub counters: WorkerCounters,
    /// Loop statistics and other counters.
    pub loop_counters: LoopCounters,
}
