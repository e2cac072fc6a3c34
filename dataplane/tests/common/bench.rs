//! Workers that a test runs step by step, with one port in memory between them and the test.

use std::sync::Arc;

use tidegate_dataplane::clock::Clock;
use tidegate_dataplane::drivers::memory::{self, MemoryPort, MemoryQueue};
use tidegate_dataplane::flow_memory::FlowPersistence;
use tidegate_dataplane::publish::Publisher;
use tidegate_dataplane::topology::Idle;
use tidegate_dataplane::worker::rings::Rings;
use tidegate_dataplane::worker::{Exchange, Forwarding, Worker, WorkerParts};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::MemoryFrame;
use tidegate_pipeline::pipeline::{Pipeline, PipelineConfig};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::SnapshotSpec;

/// Workers that a test runs step by step.
pub struct Bench {
    /// The test's end of the port.
    pub wire: MemoryPort,
    pub workers: Vec<Worker<MemoryQueue>>,
    pub exchange: Arc<Exchange<MemoryFrame>>,
    pub neighbors: Arc<NeighborTable>,
    /// The workers end when this is dropped.
    pub publisher: Publisher<Forwarding>,
}

impl Bench {
    /// Creates workers that forward by `spec`. Each queue of their port has capacity for `depth` frames.
    pub fn of(spec: &SnapshotSpec, workers: u8, depth: usize) -> Self {
        let neighbors = Arc::new(NeighborTable::new());
        let (snapshot, problems) = Snapshot::compile(spec, None, &neighbors).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        let tallies = (0..workers).map(|_| Arc::new(Tallies::with_capacity(64, 64))).collect();
        let mut publisher = Publisher::new(1, Forwarding { snapshot, tallies });
        let exchange = Arc::new(Exchange::new(usize::from(workers)));
        let (wire, ends) = memory::port(usize::from(workers), depth);
        let clock = Clock::calibrated();
        let steering = if workers == 1 { Steering::Single } else { Steering::Partition };
        let mut rings = Rings::between(usize::from(workers)).into_iter();
        let make = |(worker, end): (u8, MemoryQueue)| {
            Worker::new(WorkerParts {
                worker,
                ports: vec![end],
                pipeline: Pipeline::new(&PipelineConfig {
                    worker,
                    workers,
                    entries: 1024,
                    seed: 7,
                    steering: steering.clone(),
                }),
                forwarding: publisher.reader(),
                neighbors: Arc::clone(&neighbors),
                exchange: Arc::clone(&exchange),
                rings: rings.next().unwrap(),
                shared: Arc::default(),
                persistence: FlowPersistence::default(),
                clock,
                idle: Idle::Poll,
            })
        };
        let workers = (0..workers).zip(ends).map(make).collect();
        Self { wire, workers, exchange, neighbors, publisher }
    }
}
