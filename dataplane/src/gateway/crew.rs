//! The threads of a gateway, on any driver: workers, the slow path, and the publisher that feeds them.
//!
//! [`super::Dataplane`] makes one over DPDK ports; tests make one over ports in memory. Control talks to it from any
//! thread; its lock is control's own, workers never take it.
//!
//! Invariant: a worker that ends without being told to is noticed: its state says `Failed`, [`Crew::healthy`] is false,
//! and the callback has been called with what it said.
//! Invariant: after [`Crew::stop`] no thread is left and every frame has gone back to where it came from.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;
use rustix::thread::{CpuSet, sched_setaffinity};
use tidegate_core::conntrack::FlowView;
use tidegate_core::counters::Tallies;
use tidegate_core::forward::snat_ports::Steering;
use tidegate_core::ids::WorkerIndex;
use tidegate_core::neighbors::NeighborTable;
use tidegate_core::pipeline::{Pipeline, PipelineConfig};
use tidegate_core::snapshot::{CompileError, Problem, Snapshot, SnapshotSpec};

use super::ledger::Ledger;
use super::stats::{Reading, Window, WorkerStats};
use crate::clock::Clock;
use crate::drivers::{FrameSource, PortQueue};
use crate::publish::Publisher;
use crate::punt::tap::Tap;
use crate::slow_path::{Outside, SlowPath, SlowPathCounters};
use crate::topology::{Idle, WorkerPlace};
use crate::worker::{Exchange, FlowFilter, FlowQuestion, Forwarding, Question, Shared, Worker, WorkerParts};

/// How the threads are made.
#[derive(Debug, Clone)]
pub struct CrewConfig {
    /// One place for each worker.
    pub places: Vec<WorkerPlace>,
    /// How they wait.
    pub idle: Idle,
    /// Flows that each remembers.
    pub flow_entries: usize,
    /// How packets of a flow find their worker.
    pub steering: Steering,
    /// Secret of the flow tables' hash.
    pub seed: u64,
    /// Tell the links about new VIPs (`announce.l2`).
    pub announce: bool,
    /// CPUs of the slow path, so that it stays off the workers' own; empty for wherever its starter may run.
    pub main_cpus: Vec<usize>,
}

/// What happened to a worker that ended unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    /// Which one.
    pub worker: WorkerIndex,
    /// What its panic said.
    pub message: String,
}

/// Called, on the failing thread, when a worker ends unasked.
pub type OnFailure = Arc<dyn Fn(&WorkerFailure) + Send + Sync>;

/// Life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WorkerState {
    /// Not yet in its loop.
    Starting = 0,
    /// In its loop.
    Running = 1,
    /// Ended as it was told.
    Stopped = 2,
    /// Ended by a panic, or never began.
    Failed = 3,
}

/// What a publish did.
#[derive(Debug)]
pub struct Published {
    /// The generation that workers now take up.
    pub generation: u64,
    /// What of the spec is left out, and why.
    pub problems: Vec<Problem>,
}

/// Why a forwarding state was not published. The last good one stays.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The spec does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Generations grow.
    #[error("generation {given} is not above the published one, {published}")]
    Generation {
        /// Of the spec.
        given: u64,
        /// The one in use.
        published: u64,
    },
    /// The spec names other interfaces than the gateway has.
    #[error("the spec has {given} interfaces, the gateway {ports}")]
    Interfaces {
        /// In the spec.
        given: usize,
        /// Ports that there are.
        ports: usize,
    },
}

/// Why the threads did not start.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// The first forwarding state does not compile.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A thread could not be made.
    #[error("cannot start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A worker could not take its place.
    #[error("worker {worker} cannot start: {message}")]
    Worker {
        /// Which one.
        worker: WorkerIndex,
        /// Why.
        message: String,
    },
}

/// See the module. `F` is the driver's frame.
///
/// ```
/// use tidegate_core::{forward::snat_ports::Steering, snapshot::{InterfaceSpec, SnapshotSpec}, wire::MacAddr};
/// use tidegate_dataplane::drivers::memory::{self, Heap};
/// use tidegate_dataplane::gateway::{Crew, CrewConfig};
/// use tidegate_dataplane::topology::{Idle, WorkerPlace};
///
/// let interface = InterfaceSpec {
///     name: "uplink".into(),
///     mac: MacAddr([2, 0, 0, 0, 0, 2]),
///     mtu: 1500,
///     vlan: None,
///     addresses: vec!["192.0.2.2/24".parse()?],
/// };
/// let first = SnapshotSpec { interfaces: vec![interface], ..SnapshotSpec::default() };
/// let config = CrewConfig {
///     places: vec![WorkerPlace { worker: 0, core: 0, numa: None }],
///     idle: Idle::Adaptive,
///     flow_entries: 1024,
///     steering: Steering::Single,
///     seed: 7,
///     announce: false,
///     main_cpus: vec![],
/// };
/// let (wire, mut ends) = memory::port(1, 64);
/// let enter = |_: &WorkerPlace| Ok::<(), String>(());
/// let mut crew = Crew::start(&config, vec![vec![ends.remove(0)]], Heap, vec![None], &first, enter, None)?;
/// crew.publish(&SnapshotSpec { generation: 1, ..first })?;
/// assert!(crew.healthy() && wire.offer(0, &[0; 60]));
/// crew.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Crew<F> {
    exchange: Arc<Exchange<F>>,
    members: Vec<Member>,
    slow_path: Option<JoinHandle<()>>,
    slow_path_alive: Arc<AtomicBool>,
    slow_path_counters: Arc<SlowPathCounters>,
    stop: Arc<AtomicBool>,
    stop_slow_path: Arc<AtomicBool>,
    outside: Arc<ArrayQueue<Outside>>,
    neighbors: Arc<NeighborTable>,
    ports: usize,
    announce: bool,
    control: Mutex<Control>,
    clock: Clock,
}

/// What control changes when it publishes.
pub(super) struct Control {
    pub(super) publisher: Publisher<Forwarding>,
    pub(super) ledger: Ledger,
    /// What the slow path was told last.
    outside: Outside,
}

/// One worker, seen from outside.
pub(super) struct Member {
    pub(super) place: WorkerPlace,
    pub(super) shared: Arc<Shared>,
    state: Arc<AtomicU8>,
    window: Window,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    pub(super) fn stats(&self) -> WorkerStats {
        let turns = &self.shared.turns;
        let (busy, idle) = (turns.busy_cycles.value(), turns.idle_cycles.value());
        let frames = turns.frames.value();
        let (busy_ratio, cycles_per_packet) =
            self.window.ratios(Reading { at: Instant::now(), busy, idle, frames });
        WorkerStats {
            worker: self.place.worker,
            core: self.place.core,
            state: self.state(),
            busy_ratio,
            cycles_per_packet,
            frames,
            flows: turns.flows.value(),
            neighbor_events_lost: turns.neighbor_events_lost.value(),
        }
    }

    pub(super) fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Acquire) {
            0 => WorkerState::Starting,
            1 => WorkerState::Running,
            2 => WorkerState::Stopped,
            _ => WorkerState::Failed,
        }
    }
}

impl<F> Crew<F> {
    /// Starts the threads. `queues[worker][interface]` are the workers' queues; `first` is the forwarding state to
    /// begin with; `enter` is called by each worker's thread first (pin, register) and what it gives is kept until
    /// the worker ends.
    ///
    /// # Errors
    /// [`CrewError`]; the threads already started have ended by then.
    ///
    /// # Panics
    /// If there is not one list of queues for each place, all of one length.
    pub fn start<Q, S, E, G>(
        config: &CrewConfig,
        queues: Vec<Vec<Q>>,
        source: S,
        taps: Vec<Option<Tap>>,
        first: &SnapshotSpec,
        enter: E,
        on_failure: Option<&OnFailure>,
    ) -> Result<Self, CrewError>
    where
        Q: PortQueue<Frame = F> + 'static,
        S: FrameSource<Frame = F> + 'static,
        E: Fn(&WorkerPlace) -> Result<G, String> + Clone + Send + 'static,
        F: Send + 'static,
    {
        assert_eq!(queues.len(), config.places.len(), "one list of queues for each worker");
        let ports = queues.first().map_or(0, Vec::len);
        assert!(queues.iter().all(|queues| queues.len() == ports), "every worker has a queue of every port");
        if first.interfaces.len() != ports {
            return Err(PublishError::Interfaces { given: first.interfaces.len(), ports }.into());
        }
        let neighbors = Arc::new(NeighborTable::new());
        let (snapshot, _) = Snapshot::compile(first, None, &neighbors).map_err(PublishError::Compile)?;
        let mut ledger = Ledger::new(config.places.len());
        let tallies = ledger.follow(&snapshot);
        let publisher = Publisher::new(first.generation, Forwarding { snapshot, tallies });
        let outside = Outside::of(first, config.announce);
        let mut crew = Self {
            exchange: Arc::new(Exchange::new(config.places.len())),
            members: Vec::new(),
            slow_path: None,
            slow_path_alive: Arc::new(AtomicBool::new(true)),
            slow_path_counters: Arc::default(),
            stop: Arc::default(),
            stop_slow_path: Arc::default(),
            outside: Arc::new(ArrayQueue::new(1)),
            neighbors,
            ports,
            announce: config.announce,
            control: Mutex::new(Control { publisher, ledger, outside: outside.clone() }),
            clock: Clock::calibrated(),
        };
        crew.outside.force_push(outside);
        for (place, queues) in config.places.iter().zip(queues) {
            crew.start_worker(config, *place, queues, enter.clone(), on_failure.cloned())?;
        }
        crew.start_slow_path(source, taps, config.main_cpus.clone())?;
        Ok(crew)
    }

    fn start_worker<Q, E, G>(
        &mut self,
        config: &CrewConfig,
        place: WorkerPlace,
        ports: Vec<Q>,
        enter: E,
        on_failure: Option<OnFailure>,
    ) -> Result<(), CrewError>
    where
        Q: PortQueue<Frame = F> + 'static,
        E: Fn(&WorkerPlace) -> Result<G, String> + Send + 'static,
        F: Send + 'static,
    {
        let shared: Arc<Shared> = Arc::default();
        let state = Arc::new(AtomicU8::new(WorkerState::Starting as u8));
        let pipeline = PipelineConfig {
            worker: place.worker,
            workers: u8::try_from(config.places.len()).expect("at most WORKERS_MAX workers"),
            entries: config.flow_entries,
            seed: config.seed,
            steering: config.steering.clone(),
        };
        let forwarding = self.control().publisher.reader();
        let (exchange, neighbors) = (Arc::clone(&self.exchange), Arc::clone(&self.neighbors));
        let (clock, idle, stop) = (self.clock, config.idle, Arc::clone(&self.stop));
        let counts = Arc::clone(&shared);
        // Made on the worker's own thread, after it is pinned: its memory then lies on its own NUMA node.
        let make = move || {
            let pipeline = Pipeline::new(&pipeline);
            for region in pipeline.flows().regions() {
                // Nobody has touched it yet. Without huge pages a look-up costs a walk of the page table more.
                if let Err(error) = dpdk::advice::huge_pages(region) {
                    tracing::debug!("flow tables stay on small pages: {error}");
                }
            }
            let worker = place.worker;
            Worker::new(WorkerParts {
                worker,
                ports,
                pipeline,
                forwarding,
                neighbors,
                exchange,
                shared: counts,
                clock,
                idle,
            })
        };
        let (ready, wait) = sync_channel(1);
        let life = Life { worker: place.worker, state: Arc::clone(&state), on_failure };
        let body = move || life.live(&ready, || enter(&place), make, &stop);
        let name = format!("tg-worker-{}", place.worker);
        let thread = spawn(&name, body)?;
        self.members.push(Member { place, shared, state, window: Window::default(), thread: Some(thread) });
        let message = match wait.recv_timeout(START_TIMEOUT) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(message)) => message,
            Err(RecvTimeoutError::Timeout) => format!("not ready after {START_TIMEOUT:?}"),
            Err(RecvTimeoutError::Disconnected) => "it panicked while its tables were made".to_owned(),
        };
        Err(CrewError::Worker { worker: place.worker, message })
    }

    fn start_slow_path<S>(
        &mut self,
        source: S,
        taps: Vec<Option<Tap>>,
        cpus: Vec<usize>,
    ) -> Result<(), CrewError>
    where
        S: FrameSource<Frame = F> + 'static,
        F: Send + 'static,
    {
        let slow_path = SlowPath {
            exchange: Arc::clone(&self.exchange),
            source,
            taps,
            table: Arc::clone(&self.neighbors),
            outside: Arc::clone(&self.outside),
            counters: Arc::clone(&self.slow_path_counters),
            clock: self.clock,
        };
        let (stop, alive) = (Arc::clone(&self.stop_slow_path), Arc::clone(&self.slow_path_alive));
        let body = move || {
            if let Err(error) = confine(&cpus) {
                tracing::warn!(?cpus, %error, "the slow path is not kept off the workers' cores");
            }
            let end = catch_unwind(AssertUnwindSafe(|| slow_path.run(&stop)));
            if let Ok(Err(error)) = &end {
                tracing::error!(%error, "the slow path ended: no punts, no neighbour resolution");
            }
            if !matches!(end, Ok(Ok(()))) {
                alive.store(false, Ordering::Release);
            }
        };
        self.slow_path = Some(spawn("tg-slow-path", body)?);
        Ok(())
    }

    /// Compiles a spec and has every worker take it up; see [`Self::applied_generation`]. Takes as long as the
    /// compile; waits for no worker.
    ///
    /// # Errors
    /// [`PublishError`]: nothing has changed then.
    pub fn publish(&self, spec: &SnapshotSpec) -> Result<Published, PublishError> {
        if spec.interfaces.len() != self.ports {
            return Err(PublishError::Interfaces { given: spec.interfaces.len(), ports: self.ports });
        }
        let mut control = self.control();
        let published = control.publisher.generation();
        if spec.generation <= published {
            return Err(PublishError::Generation { given: spec.generation, published });
        }
        let previous = &control.publisher.current().snapshot;
        let (snapshot, problems) = Snapshot::compile(spec, Some(previous), &self.neighbors)?;
        let tallies = control.ledger.follow(&snapshot);
        let same_outside = snapshot.same_outside();
        control.publisher.publish(spec.generation, Forwarding { snapshot, tallies });
        if !same_outside {
            let outside = Outside::of(spec, self.announce);
            if control.outside != outside {
                self.outside.force_push(outside.clone());
                control.outside = outside;
            }
        }
        Ok(Published { generation: spec.generation, problems })
    }

    /// The oldest generation that a live worker forwards by.
    #[must_use]
    pub fn applied_generation(&self) -> u64 {
        self.control().publisher.applied_generation()
    }

    /// Frees, on this thread, what all workers have left behind. The next publish does it too.
    pub fn reclaim(&self) {
        self.control().publisher.reclaim();
    }

    /// The generation published last.
    #[must_use]
    pub fn published_generation(&self) -> u64 {
        self.control().publisher.generation()
    }

    /// Whether every worker is in its loop and the slow path lives.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.members.iter().all(|member| member.state() == WorkerState::Running)
            && self.slow_path_alive.load(Ordering::Acquire)
    }

    /// The state of each worker.
    pub fn worker_states(&self) -> impl Iterator<Item = WorkerState> + '_ {
        self.members.iter().map(Member::state)
    }

    /// Looks at the forwarding state in use, for listings and `explain`. Holds up a publish while it runs.
    pub fn with_snapshot<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        look(&self.control().publisher.current().snapshot)
    }

    /// Link addresses of next hops.
    #[must_use]
    pub fn neighbors(&self) -> &NeighborTable {
        &self.neighbors
    }

    /// What the slow path counts.
    #[must_use]
    pub fn slow_path_counters(&self) -> &SlowPathCounters {
        &self.slow_path_counters
    }

    /// The queues between threads.
    #[must_use]
    pub fn exchange(&self) -> &Exchange<F> {
        &self.exchange
    }

    /// How many ports there are.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Lists up to `limit` flows that pass the filter, over all workers. Each worker answers when it likes; those that
    /// have not within `timeout` are left out, and the second value says how many.
    #[must_use]
    pub fn flows(&self, filter: &FlowFilter, limit: usize, timeout: Duration) -> (Vec<FlowView>, usize) {
        let deadline = Instant::now() + timeout;
        let asked: Vec<_> = self
            .exchange
            .mailboxes
            .iter()
            .map(|mailbox| {
                let (reply, answer) = sync_channel(1);
                let question = FlowQuestion::new(filter.clone(), limit, reply);
                mailbox.ask(Question::Flows(question)).ok().map(|()| answer)
            })
            .collect();
        let (mut flows, mut silent) = (Vec::new(), 0);
        for answer in asked {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.and_then(|answer| answer.recv_timeout(left).ok()) {
                Some(found) => flows.extend(found),
                None => silent += 1,
            }
        }
        flows.truncate(limit);
        (flows, silent)
    }

    /// Ends all threads and waits for them: workers first, each at the end of its turn, then the slow path.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (member, mailbox) in self.members.iter_mut().zip(&self.exchange.mailboxes) {
            mailbox.wake();
            join(member.thread.take());
        }
        self.stop_slow_path.store(true, Ordering::Release);
        join(self.slow_path.take());
        self.exchange.drain();
        self.control().publisher.reclaim();
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }
}

impl<F> Drop for Crew<F> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<F> std::fmt::Debug for Crew<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crew({} workers, {} ports)", self.members.len(), self.ports)
    }
}

/// The longest that a worker's tables may take to be made: a gigabyte of them, zeroed, is a second.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The life of one worker's thread.
struct Life {
    worker: WorkerIndex,
    state: Arc<AtomicU8>,
    on_failure: Option<OnFailure>,
}

impl Life {
    fn live<Q: PortQueue, G>(
        &self,
        ready: &SyncSender<Result<(), String>>,
        enter: impl FnOnce() -> Result<G, String>,
        make: impl FnOnce() -> Worker<Q>,
        stop: &AtomicBool,
    ) {
        let _place = match enter() {
            Ok(place) => place,
            Err(message) => {
                self.set(WorkerState::Failed);
                // The starter waits with a bound and may have left.
                let _ = ready.send(Err(message));
                return;
            }
        };
        let end = catch_unwind(AssertUnwindSafe(|| {
            let mut worker = make();
            self.set(WorkerState::Running);
            let _ = ready.send(Ok(()));
            worker.run(stop);
        }));
        match end {
            Ok(()) => self.set(WorkerState::Stopped),
            Err(panic) => self.failed(panic.as_ref()),
        }
    }

    fn failed(&self, panic: &(dyn Any + Send)) {
        self.set(WorkerState::Failed);
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let failure = WorkerFailure { worker: self.worker, message: text.unwrap_or("no message").to_owned() };
        tracing::error!(worker = failure.worker, message = failure.message, "worker failed");
        if let Some(on_failure) = &self.on_failure {
            on_failure(&failure);
        }
    }

    fn set(&self, state: WorkerState) {
        self.state.store(state as u8, Ordering::Release);
    }
}

/// Keeps this thread on these CPUs; anywhere when there are none.
fn confine(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, CrewError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|source| CrewError::Thread { name: name.to_owned(), source })
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // Panics inside are caught and told; one that gets here is the callback's own.
        let _ = thread.join();
    }
}

/// Keeps the type of a worker's counts in one place.
pub(super) type WorkerTallies = Vec<Arc<Tallies>>;
