//! What a worker has in common with other threads: the published state, the queues, and the counters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, WorkerCounters};

use super::counters::LoopCounters;
use super::mailbox::Mailbox;
use super::neighbor_reports::NeighborReports;
use super::sharing_queues::Sharing;
use crate::punt::class::Punts;
use crate::punt::host_connections::HostConnections;
use crate::punt::vrrp::Advertisements;

/// The data published to workers: one forwarding state, and the tallies of each worker.
#[derive(Debug)]
pub struct Forwarding {
    /// The compiled tables.
    pub snapshot: Snapshot,
    /// Per-service and per-backend counts, one set for each worker. They are replaced when the snapshot needs larger
    /// ones.
    pub tallies: Vec<Arc<Tallies>>,
}

/// The queues between workers and all other threads. All workers share one set.
#[derive(Debug)]
pub struct Exchange<F> {
    /// One for each worker.
    pub mailboxes: Vec<Mailbox<F>>,
    /// Whether each worker hangs. The watch over the threads writes it.
    pub hung: Vec<AtomicBool>,
    /// Frames for the kernel.
    pub punts: Punts<F>,
    /// The host's own connections. The slow path writes them.
    pub host_connections: HostConnections,
    /// The VRRP advertisements that pass the taps. The slow path writes them.
    pub advertisements: Advertisements,
    /// Reports for the resolver.
    pub neighbor_reports: NeighborReports,
    /// The queues to the thread that talks to other gateways, if flows are shared.
    pub sharing: OnceLock<Arc<Sharing>>,
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
        }
    }

    /// The mailbox of a worker; if it hangs, that of the next one that does not.
    #[must_use]
    pub fn mailbox_or_next(&self, worker: usize) -> Option<&Mailbox<F>> {
        let mut workers = (worker..self.mailboxes.len()).chain(0..worker);
        let is_well = |&n: &usize| self.hung.get(n).is_some_and(|hung| !hung.load(Ordering::Relaxed));
        self.mailboxes.get(workers.find(is_well).unwrap_or(worker))
    }

    /// Frees all waiting frames, after the threads have ended.
    pub fn drain(&self) {
        self.punts.drain();
        self.mailboxes.iter().for_each(Mailbox::drain);
    }
}

/// The data of a running worker that any thread may read.
#[derive(Debug, Default)]
pub struct Shared {
    /// The verdicts on frames.
    pub counters: WorkerCounters,
    /// The use of time.
    pub turns: LoopCounters,
}
