//! Starts the threads of a gateway.
//!
//! Promises: if a thread doesn't start, the threads started before it are ended before the error is returned.

use std::sync::{Arc, Mutex};

use tidegate_pipeline::forward::tunnel;
use tidegate_pipeline::frame::MemoryFrame;
use tidegate_pipeline::pipeline::{Pipeline, PipelineConfig};
use tidegate_probe::Probes;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::SnapshotSpec;

use super::config::WorkerPoolConfig;
use super::flows::Flows;
use super::{Control, WorkerPool};
use crate::clock::Clock;
use crate::drivers::memory::{self, Heap};
use crate::drivers::{FrameSource, PortQueue};
use crate::flow_memory::FlowPersistence;
use crate::gateway::error::{PublishError, WorkerPoolError};
use crate::gateway::flow_counts::FlowCounts;
use crate::gateway::ledger::Ledger;
use crate::gateway::slow_path_handle::SlowPathHandle;
use crate::gateway::threads::OnFailure;
use crate::gateway::worker_handle::WorkerHandle;
use crate::links::Links;
use crate::probe_device::ProbeDevice;
use crate::publish::Publisher;
use crate::punt::tap::Tap;
use crate::slow_path::{SlowPath, SlowPathState};
use crate::topology::WorkerPlacement;
use crate::worker::rings::Rings;
use crate::worker::{Exchange, Forwarding, Shared, Worker, WorkerParts};

impl<F> WorkerPool<F> {
    /// Starts the threads. `queues[worker][interface]` are the workers' queues, and `first` is the initial forwarding
    /// state. Each worker's thread first calls `enter` (to pin and register itself) and keeps the result until the
    /// worker ends.
    ///
    /// # Errors
    /// [`WorkerPoolError`]; threads that were already started have been ended.
    ///
    /// # Panics
    /// If there is not one list of queues per placement, or the lists have different lengths.
    pub fn start<Q, S, E, G>(
        config: &WorkerPoolConfig,
        queues: Vec<Vec<Q>>,
        source: S,
        taps: Vec<Option<Tap>>,
        first: &SnapshotSpec,
        enter: E,
        on_failure: Option<&OnFailure>,
    ) -> Result<Self, WorkerPoolError>
    where
        Q: PortQueue<Frame = F> + 'static,
        S: FrameSource<Frame = F> + 'static,
        E: Fn(&WorkerPlacement) -> Result<G, String> + Clone + Send + 'static,
        F: Send + 'static,
    {
        assert_eq!(queues.len(), config.placements.len(), "one list of queues for each worker");
        let ports = queues.first().map_or(0, Vec::len);
        assert!(queues.iter().all(|queues| queues.len() == ports), "every worker has a queue of every port");
        if first.network.interfaces.len() != ports {
            return Err(PublishError::Interfaces { given: first.network.interfaces.len(), ports }.into());
        }
        let neighbors = NeighborTable::seeded(config.seed).with_ownership(tidegate_host::boot_time);
        neighbors.ownership().release_snat(config.snat_is_released);
        let neighbors = Arc::new(neighbors);
        let (snapshot, problems) =
            Snapshot::compile(first, None, &neighbors).map_err(PublishError::Compile)?;
        let mut ledger = Ledger::new(config.placements.len());
        let tallies = ledger.follow(&snapshot);
        let clock = Clock::calibrated();
        let flows = Flows::new(config, clock.now(), on_failure.cloned());
        flows.allocate_shared(&snapshot);
        let publisher = Publisher::new(first.generation, Forwarding { snapshot, tallies });
        let slow_path_state = SlowPathState::of(first, config.announce).without_left_out(first, &problems);
        let probes: Arc<Probes> = Arc::default();
        probes.follow(&first.network.interfaces, &publisher.current().snapshot);
        let mut worker_pool = Self {
            exchange: Arc::new(Exchange::new(config.placements.len())),
            handles: Vec::new(),
            slow_path: SlowPathHandle::new(slow_path_state.clone()),
            stop: Arc::default(),
            neighbors,
            links: Arc::new(Links::new(first.network.interfaces.iter().map(|one| one.name.as_str()))),
            probes,
            ports,
            announce: config.announce,
            control: Mutex::new(Control { publisher, ledger, slow_path_state: Arc::new(slow_path_state) }),
            flow_counts: FlowCounts::default(),
            flows,
            clock,
            watchdog: None,
        };
        let ends = queues.into_iter().zip(Rings::between(config.placements.len()));
        for (placement, ends) in config.placements.iter().zip(ends) {
            worker_pool.start_worker(config, *placement, ends, enter.clone(), on_failure.cloned())?;
        }
        worker_pool.flows.prepare(&worker_pool.control().publisher.current().snapshot);
        let mtu = first.network.interfaces.iter().map(|one| one.mtu).min().unwrap_or_default();
        worker_pool.start_slow_path(source, taps, mtu, config.main_cpus.clone(), on_failure.cloned())?;
        Ok(worker_pool)
    }

    fn start_worker<Q, E, G>(
        &mut self,
        config: &WorkerPoolConfig,
        placement: WorkerPlacement,
        (ports, rings): (Vec<Q>, Rings<F>),
        enter: E,
        on_failure: Option<OnFailure>,
    ) -> Result<(), WorkerPoolError>
    where
        Q: PortQueue<Frame = F> + 'static,
        E: Fn(&WorkerPlacement) -> Result<G, String> + Send + 'static,
        F: Send + 'static,
    {
        let shared: Arc<Shared> = Arc::default();
        let pipeline = PipelineConfig {
            worker: placement.worker,
            workers: u8::try_from(config.placements.len()).expect("at most WORKERS_MAX workers"),
            entries: config.flow_entries,
            seed: config.seed,
            steering: config.steering.clone(),
        };
        let forwarding = self.control().publisher.reader();
        let (exchange, neighbors) = (Arc::clone(&self.exchange), Arc::clone(&self.neighbors));
        let (clock, idle, stop) = (self.clock, config.idle, Arc::clone(&self.stop));
        let counts = Arc::clone(&shared);
        let percent = config.flow_service_percent;
        let (affinities, associations) =
            (self.flows.affinities.clone(), Arc::clone(&self.flows.associations));
        let (memory, restoration) = (Arc::clone(&self.flows.memory), self.flows.restoration.clone());
        let make = move || {
            let mut provider = memory.provider(placement.worker, placement.numa);
            let mut pipeline = Pipeline::in_memory(&pipeline, &mut provider).with_associations(associations);
            if let Some(affinities) = affinities {
                pipeline = pipeline.with_affinities(affinities);
            }
            pipeline.flows_mut().set_service_share(percent);
            let worker = placement.worker;
            Worker::new(WorkerParts {
                worker,
                ports,
                pipeline,
                forwarding,
                neighbors,
                exchange,
                rings,
                shared: counts,
                persistence: FlowPersistence { restoration, clock: memory.clock(worker) },
                clock,
                idle,
            })
        };
        let (handle, readiness) =
            WorkerHandle::start(placement, shared, move || enter(&placement), make, stop, on_failure)?;
        // Added before the thread confirms its start, so that stopping the pool always waits for it.
        self.handles.push(handle);
        readiness.wait()
    }

    fn start_slow_path<S>(
        &mut self,
        source: S,
        taps: Vec<Option<Tap>>,
        mtu: u16,
        cpus: Vec<usize>,
        on_failure: Option<OnFailure>,
    ) -> Result<(), WorkerPoolError>
    where
        S: FrameSource<Frame = F> + 'static,
        F: Send + 'static,
    {
        for (interface, tap) in taps.iter().enumerate() {
            if let Some(tap) = tap {
                self.links.has_tap(interface, tap.name());
            }
        }
        // Without taps, the kernel can't reach backends either.
        let probe_device = taps.iter().any(Option::is_some).then(|| ProbeDevice::create(mtu_of_probes(mtu)));
        let probe_device = probe_device.and_then(|made| {
            made.map_err(|error| {
                tracing::warn!(%error, "cannot create the probe device: DSR backends are checked at their own \
                                        addresses instead of the VIPs");
            })
            .ok()
        });
        self.probes.set_device(probe_device.as_ref().map(ProbeDevice::name));
        let slow_path = SlowPath {
            exchange: Arc::clone(&self.exchange),
            probes: Arc::clone(&self.probes),
            probe_device,
            source,
            taps,
            links: Arc::clone(&self.links),
            table: Arc::clone(&self.neighbors),
            slow_path_state: self.slow_path.slow_path_state(),
            counters: self.slow_path.shared_counters(),
            clock: self.clock,
        };
        self.slow_path.start(slow_path, cpus, on_failure)?;
        Ok(())
    }
}

impl WorkerPool<MemoryFrame> {
    /// A gateway without a wire, for tests: one worker with one port in memory, and this forwarding state.
    ///
    /// # Errors
    /// [`WorkerPoolError`].
    pub fn in_memory(first: &SnapshotSpec) -> Result<Self, WorkerPoolError> {
        let config = WorkerPoolConfig { announce: true, ..WorkerPoolConfig::one_worker(0, 1024) };
        let (_wire, ends) = memory::port(1, 64);
        let enter = |_: &WorkerPlacement| Ok::<(), String>(());
        Self::start(&config, vec![ends], Heap, vec![None], first, enter, None)
    }
}

/// The maximum packet size of probes in bytes: probes must fit every link with the longest outer headers. IPv6 requires
/// 1,280.
fn mtu_of_probes(least: u16) -> u16 {
    let overhead = tunnel::OVERHEAD_MAX as u16;
    least.saturating_sub(overhead).max(1280)
}
