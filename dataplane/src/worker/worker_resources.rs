//! The resources of a worker.

use std::sync::Arc;

use tidegate_pipeline::pipeline::Pipeline;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::WorkerIndex;

use super::exchange::{Exchange, Forwarding, Shared};
use super::rings::Rings;
use crate::clock::Clock;
use crate::drivers::PortQueue;
use crate::flow_memory::FlowPersistence;
use crate::publish::Reader;
use crate::topology::Idle;

/// Everything that a worker is built from.
#[derive(Debug)]
pub struct WorkerParts<Q: PortQueue> {
    /// Its number, which is its index in mailboxes and tallies.
    pub worker: WorkerIndex,
    /// Its queue of every port, indexed by interface.
    pub ports: Vec<Q>,
    /// Its flow tables and pipeline stages.
    pub pipeline: Pipeline,
    /// The forwarding state.
    pub forwarding: Reader<Forwarding>,
    /// Link addresses of next hops.
    pub neighbors: Arc<NeighborTable>,
    /// The queues to all other threads.
    pub exchange: Arc<Exchange<Q::Frame>>,
    /// The rings to and from the other workers.
    pub rings: Rings<Q::Frame>,
    /// Its counters.
    pub shared: Arc<Shared>,
    /// The flows of earlier processes, and what this process keeps for the next one.
    pub persistence: FlowPersistence,
    /// The clock.
    pub clock: Clock,
    /// How it waits.
    pub idle: Idle,
}
