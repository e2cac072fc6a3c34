//! A gateway without a daemon: the threads of the dataplane over ports in memory, and the steps of a daemon's round.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::gateway::{WorkerPool, WorkerPoolConfig};
use tidegate_dataplane::topology::WorkerPlacement;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::Objects;
use tidegate_pipeline::frame::MemoryFrame;
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::reconcile::{Input, Memory, Outcome, Reconciler, Settings};
use tidegate_spec::{ServiceKey, SnapshotSpec};

use crate::world;

/// Runs one worker on a core, and all other threads on the other cores.
///
/// # Errors
/// A thread cannot be created.
pub fn worker_pool(core: usize) -> Result<(WorkerPool<MemoryFrame>, MemoryPort)> {
    let cpus = std::thread::available_parallelism()?.get();
    let others: Vec<usize> = (0..cpus).filter(|&cpu| cpu != core).collect();
    pin(&others);
    let config = WorkerPoolConfig { main_cpus: others, ..WorkerPoolConfig::one_worker(core, 65_536) };
    let (wire, ends) = memory::port(1, 4096);
    let first = SnapshotSpec { network: world::settings().network, ..SnapshotSpec::default() };
    let enter = |placement: &WorkerPlacement| {
        pin(&[placement.core]);
        Ok::<(), String>(())
    };
    let worker_pool = WorkerPool::start(&config, vec![ends], Heap, vec![None], &first, enter, None)?;
    Ok((worker_pool, wire))
}

/// Pins this thread, and the threads that it creates, to these CPUs, if the system allows it.
pub fn pin(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    if !cpus.is_empty() {
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// The state of the daemon's controller.
pub struct Gateway<'a> {
    settings: Settings,
    /// The objects of the source.
    pub objects: Objects,
    memory: Memory,
    gateway_api: GatewayApi,
    reconciler: Reconciler,
    worker_pool: &'a WorkerPool<MemoryFrame>,
    last: Option<Outcome>,
    generation: u64,
    began: Instant,
}

/// The durations of the stages of a round.
#[derive(Debug, Clone, Copy)]
pub struct Stages {
    /// From objects to the desired state.
    pub reconcile: Duration,
    /// Compile and publish.
    pub publish: Duration,
    /// Until the worker has applied it.
    pub applied: Duration,
    /// All stages, including the release of the previous state.
    pub all: Duration,
    /// The number of Services that reconcile processed again.
    pub recomputed: usize,
}

impl<'a> Gateway<'a> {
    /// A gateway that has published nothing.
    #[must_use]
    pub fn new(objects: Objects, worker_pool: &'a WorkerPool<MemoryFrame>) -> Self {
        Self {
            settings: world::settings(),
            objects,
            memory: Memory::default(),
            gateway_api: GatewayApi::default(),
            reconciler: Reconciler::default(),
            worker_pool,
            last: None,
            generation: 0,
            began: Instant::now(),
        }
    }

    /// Performs a round of the daemon with the current objects.
    ///
    /// # Errors
    /// The state was not published, or not completely.
    pub fn round(&mut self) -> Result<Stages> {
        let start = Instant::now();
        let objects = self.gateway_api.derive(&Arc::new(self.objects.clone()));
        let outcome = self.reconciler.reconcile(&Input {
            settings: &self.settings,
            objects: &objects,
            verdicts: &Verdicts::default(),
            drained: &BTreeSet::new(),
            memory: &self.memory,
            generation: self.generation + 1,
            now: self.began.elapsed(),
        });
        self.memory = outcome.memory.clone();
        let reconciled = Instant::now();
        // Like the daemon, publish only a state that differs from the last one.
        if !self.last.as_ref().is_some_and(|last| last.spec.is_equivalent(&outcome.spec)) {
            self.generation += 1;
            let published = self.worker_pool.publish(&outcome.spec).context("not published")?;
            if let Some(problem) = published.problems.first() {
                bail!("not everything is programmed: {problem}");
            }
        }
        let given = Instant::now();
        while self.worker_pool.applied_generation() < self.generation {
            std::thread::sleep(Duration::from_micros(50));
        }
        let applied = Instant::now();
        // Like the daemon, release unused state after the workers have the new state.
        self.last = Some(outcome);
        self.worker_pool.reclaim();
        Ok(Stages {
            reconcile: reconciled - start,
            publish: given - reconciled,
            applied: applied - given,
            all: start.elapsed(),
            recomputed: self.reconciler.recomputed(),
        })
    }

    /// The duration of a reconcile of the same objects without the cached state. It is the cost of a change whose
    /// affected Services are not known.
    #[must_use]
    pub fn from_scratch(&self) -> Duration {
        let start = Instant::now();
        let objects = GatewayApi::default().derive(&Arc::new(self.objects.clone()));
        let outcome = Reconciler::default().reconcile(&Input {
            settings: &self.settings,
            objects: &objects,
            verdicts: &Verdicts::default(),
            drained: &BTreeSet::new(),
            memory: &self.memory,
            generation: self.generation,
            now: self.began.elapsed(),
        });
        let elapsed = start.elapsed();
        drop(outcome);
        elapsed
    }

    /// The addresses that packets go to.
    #[must_use]
    pub fn vips(&self) -> Vec<ServiceKey> {
        self.last.iter().flat_map(|outcome| &outcome.spec.services).map(|service| service.key).collect()
    }
}
