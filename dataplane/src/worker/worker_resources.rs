//! The resources from which a worker is made.

use std::sync::Arc;

use tidegate_pipeline::pipeline::Pipeline;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::WorkerIndex;

use super::exchange::{Exchange, Forwarding, Shared};
use super::rings::Rings;
use crate::clock::Clock;
use crate::drivers::PortQueue;
use crate::flow_memory::Outliving;
use crate::publish::Reader;
use crate::topology::Idle;

/// The resources of a worker.
#[derive(Debug)]
pub struct WorkerParts<Q: PortQueue> {
    /// Its number, which is its position in mailboxes and tallies.
    pub worker: WorkerIndex,
    /// Its queue of every port, indexed by interface.
    pub ports: Vec<Q>,
    /// Its flows and the stages of the pipeline.
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
    /// What its flow tables have from earlier processes, and leave to the next one.
    pub outliving: Outliving,
    /// The clock.
    pub clock: Clock,
    /// How it waits.
    pub idle: Idle,
}
