//! The threads of a gateway, on any driver: workers, the slow path, and the publisher of snapshots.
//!
//! [`super::Dataplane`] builds one over DPDK ports; tests build one over ports in memory. The control plane calls it
//! from any thread; only the control plane takes its lock, workers never do.
//!
//! Invariant: a worker that ends unexpectedly is noticed: its state is `Failed`, [`WorkerPool::healthy`] is false,
//! and the callback has been called with its message. One that hangs is noticed after [`WorkerPool::watch_threads`]. Invariant: after [`WorkerPool::stop`] no thread is left and
//! every frame has been returned to its pool.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tidegate_conntrack::affinities::Affinities;
use tidegate_conntrack::associations::Associations;
use tidegate_conntrack::{FlowKey, FlowView};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::forward::tunnel;
use tidegate_pipeline::frame::MemoryFrame;
use tidegate_pipeline::pipeline::{Pipeline, PipelineConfig, SharedFlows};
use tidegate_probe::Probes;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_spec::{CompileError, EarlierPort, Problem, SnapshotSpec};
use tidegate_wire::Addr;

use super::error::{PublishError, WorkerPoolError};
use super::ledger::Ledger;
use super::pulse::{OnHang, PulseThread};
use super::slow_path_handle::SlowPathHandle;
use super::snat_usage::SnatUsage;
use super::threads::OnFailure;
use super::worker_handle::{WorkerHandle, WorkerState};
use crate::clock::Clock;
use crate::drivers::memory::{self, Heap};
use crate::drivers::{FrameSource, PortQueue};
use crate::flow_memory::{FlowMemory, Outliving, Restoration, Shape, Store};
use crate::links::Links;
use crate::probe_device::ProbeDevice;
use crate::publish::Publisher;
use crate::punt::tap::Tap;
use crate::punt::vrrp::Advertised;
use crate::slow_path::{Outside, SlowPath, SlowPathCounters};
use crate::topology::{Idle, WorkerPlace};
use crate::worker::rings::Rings;
use crate::worker::watch::{PacketWatch, Watch, WatchFilter};
use crate::worker::{
    Exchange, FlowFilter, FlowQuestion, Forwarding, Question, Shared, Sharing, Worker, WorkerParts,
};

/// One of the two ways to compile a snapshot.
type Compile =
    fn(&SnapshotSpec, Option<&Snapshot>, &NeighborTable) -> Result<(Snapshot, Vec<Problem>), CompileError>;

/// The settings of the threads.
#[derive(Debug, Clone)]
pub struct WorkerPoolConfig {
    /// One place for each worker.
    pub places: Vec<WorkerPlace>,
    /// How workers wait.
    pub idle: Idle,
    /// The number of flows that each worker remembers.
    pub flow_entries: usize,
    /// The percentage of a full flow table that one service may use.
    pub flow_service_percent: u8,
    /// Whether flow tables may take huge pages that the system reserves.
    pub huge_pages: bool,
    /// The directory in which flow tables outlive the process; `None` if they do not.
    pub flow_store: Option<PathBuf>,
    /// How packets of a flow find their worker.
    pub steering: Steering,
    /// Secret of the flow tables' hash.
    pub seed: u64,
    /// Whether new VIPs are announced on the links (`announce.l2`).
    pub announce: bool,
    /// Other gateways answer for the SNAT addresses at first.
    pub snat_is_released: bool,
    /// The CPUs of the slow path, which keep it off the workers' CPUs. If empty, it may run wherever its starter may.
    pub main_cpus: Vec<usize>,
}

impl WorkerPoolConfig {
    /// One worker on this core, with flow tables of this size, for tests and benches.
    #[must_use]
    pub fn one_worker(core: usize, flow_entries: usize) -> Self {
        Self {
            places: vec![WorkerPlace { worker: 0, core, numa: None }],
            idle: Idle::Adaptive,
            flow_entries,
            flow_service_percent: 50,
            huge_pages: false,
            flow_store: None,
            steering: Steering::Single,
            seed: 7,
            announce: false,
            snat_is_released: false,
            main_cpus: Vec::new(),
        }
    }
}

/// The result of a publication.
#[derive(Debug)]
pub struct Published {
    /// The generation that workers now apply.
    pub generation: u64,
    /// When the workers were given it.
    pub handed_over: Instant,
    /// The parts of the spec that are left out, with the reasons.
    pub problems: Vec<Problem>,
}

/// The threads of a gateway. `F` is the driver's frame type.
///
/// ```
/// use tidegate_spec::{InterfaceSpec, NetworkSpec, SnapshotSpec};
/// use tidegate_wire::MacAddr;
/// use tidegate_dataplane::drivers::memory::{self, Heap};
/// use tidegate_dataplane::gateway::{WorkerPool, WorkerPoolConfig};
/// use tidegate_dataplane::topology::WorkerPlace;
///
/// let interface = InterfaceSpec {
///     name: "uplink".into(),
///     mac: MacAddr([2, 0, 0, 0, 0, 2]),
///     mtu: 1500,
///     vlan: None,
///     addresses: vec!["192.0.2.2/24".parse()?],
/// };
/// let network = NetworkSpec { interfaces: vec![interface], ..NetworkSpec::default() };
/// let first = SnapshotSpec { network: network.into(), ..SnapshotSpec::default() };
/// let config = WorkerPoolConfig::one_worker(0, 1024);
/// let (wire, mut ends) = memory::port(1, 64);
/// let enter = |_: &WorkerPlace| Ok::<(), String>(());
/// let mut worker_pool = WorkerPool::start(&config, vec![vec![ends.remove(0)]], Heap, vec![None], &first, enter, None)?;
/// worker_pool.publish(&SnapshotSpec { generation: 1, ..first })?;
/// assert!(worker_pool.healthy() && wire.offer(0, &[0; 60]));
/// worker_pool.stop();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WorkerPool<F> {
    exchange: Arc<Exchange<F>>,
    handles: Vec<WorkerHandle>,
    slow_path: SlowPathHandle,
    stop: Arc<AtomicBool>,
    pub(super) neighbors: Arc<NeighborTable>,
    links: Arc<Links>,
    probes: Arc<Probes>,
    ports: usize,
    pub(super) announce: bool,
    control: Mutex<Control>,
    snat_usage: SnatUsage,
    affinities: Option<Arc<Affinities>>,
    associations: Arc<Associations>,
    flow_memory: Arc<FlowMemory>,
    /// The service ports of earlier processes, until they are taken.
    earlier_ports: Mutex<Vec<EarlierPort>>,
    /// Why the directory of flow tables cannot be used.
    store_trouble: Option<String>,
    restoration: Option<Arc<Restoration>>,
    clock: Clock,
    pulse: Option<PulseThread>,
}

/// The state that a publication changes.
pub(super) struct Control {
    pub(super) publisher: Publisher<Forwarding>,
    pub(super) ledger: Ledger,
    /// The state that was last given to the slow path.
    pub(super) outside: Arc<Outside>,
}

impl<F> WorkerPool<F> {
    /// Starts the threads. `queues[worker][interface]` are the workers' queues. `first` is the initial forwarding
    /// state. Each worker's thread first calls `enter` (to pin and register itself) and keeps the result until the
    /// worker ends.
    ///
    /// # Errors
    /// [`WorkerPoolError`]; the threads that were already started have ended then.
    ///
    /// # Panics
    /// If the number of lists of queues is not the number of places, or the lists have different lengths.
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
        E: Fn(&WorkerPlace) -> Result<G, String> + Clone + Send + 'static,
        F: Send + 'static,
    {
        assert_eq!(queues.len(), config.places.len(), "one list of queues for each worker");
        let ports = queues.first().map_or(0, Vec::len);
        assert!(queues.iter().all(|queues| queues.len() == ports), "every worker has a queue of every port");
        if first.network.interfaces.len() != ports {
            return Err(PublishError::Interfaces { given: first.network.interfaces.len(), ports }.into());
        }
        let neighbors = NeighborTable::seeded(config.seed).with_ownership(crate::clock::boot_time);
        neighbors.ownership().release_snat(config.snat_is_released);
        let neighbors = Arc::new(neighbors);
        let (snapshot, problems) =
            Snapshot::compile(first, None, &neighbors).map_err(PublishError::Compile)?;
        let mut ledger = Ledger::new(config.places.len());
        let tallies = ledger.follow(&snapshot);
        // A single worker remembers all clients itself.
        let affinities = (config.places.len() > 1).then(|| {
            let clients = config.flow_entries.saturating_mul(config.places.len());
            Arc::new(Affinities::new(clients, config.seed))
        });
        let associations = config.flow_entries.saturating_mul(config.places.len());
        let associations = Arc::new(Associations::new(associations, config.seed));
        prepare(affinities.as_deref(), &associations, &snapshot);
        let clock = Clock::calibrated();
        let shape = Shape {
            workers: config.places.len(),
            entries: config.flow_entries,
            steering: config.steering.clone(),
            seed: config.seed,
        };
        let (store, store_trouble) = match config.flow_store.as_deref() {
            Some(directory) => store(directory, &shape, clock.now()),
            None => (None, None),
        };
        let mut flow_memory =
            FlowMemory::new(config.places.len(), config.flow_entries, config.huge_pages, store);
        let earlier_ports = flow_memory.earlier_ports();
        let restoration = flow_memory.restoration(shape, on_failure.cloned());
        let publisher = Publisher::new(first.generation, Forwarding { snapshot, tallies });
        let outside = Outside::of(first, config.announce).without_left_out(first, &problems);
        let probes: Arc<Probes> = Arc::default();
        probes.follow(&first.network.interfaces, &publisher.current().snapshot);
        let mut worker_pool = Self {
            exchange: Arc::new(Exchange::new(config.places.len())),
            handles: Vec::new(),
            slow_path: SlowPathHandle::new(outside.clone()),
            stop: Arc::default(),
            neighbors,
            links: Arc::new(Links::new(first.network.interfaces.iter().map(|one| one.name.as_str()))),
            probes,
            ports,
            announce: config.announce,
            control: Mutex::new(Control { publisher, ledger, outside: Arc::new(outside) }),
            snat_usage: SnatUsage::default(),
            affinities,
            associations,
            flow_memory: Arc::new(flow_memory),
            earlier_ports: Mutex::new(earlier_ports),
            store_trouble,
            restoration,
            clock,
            pulse: None,
        };
        let ends = queues.into_iter().zip(Rings::between(config.places.len()));
        for (place, ends) in config.places.iter().zip(ends) {
            worker_pool.start_worker(config, *place, ends, enter.clone(), on_failure.cloned())?;
        }
        worker_pool.prepare_flows(&worker_pool.control().publisher.current().snapshot);
        let mtu = first.network.interfaces.iter().map(|one| one.mtu).min().unwrap_or_default();
        worker_pool.start_slow_path(source, taps, mtu, config.main_cpus.clone(), on_failure.cloned())?;
        Ok(worker_pool)
    }

    fn start_worker<Q, E, G>(
        &mut self,
        config: &WorkerPoolConfig,
        place: WorkerPlace,
        (ports, rings): (Vec<Q>, Rings<F>),
        enter: E,
        on_failure: Option<OnFailure>,
    ) -> Result<(), WorkerPoolError>
    where
        Q: PortQueue<Frame = F> + 'static,
        E: Fn(&WorkerPlace) -> Result<G, String> + Send + 'static,
        F: Send + 'static,
    {
        let shared: Arc<Shared> = Arc::default();
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
        let percent = config.flow_service_percent;
        let (affinities, associations) = (self.affinities.clone(), Arc::clone(&self.associations));
        let (memory, restoration) = (Arc::clone(&self.flow_memory), self.restoration.clone());
        let make = move || {
            let mut provider = memory.provider(place.worker, place.numa);
            let mut pipeline = Pipeline::in_memory(&pipeline, &mut provider).with_associations(associations);
            if let Some(affinities) = affinities {
                pipeline = pipeline.with_affinities(affinities);
            }
            pipeline.flows_mut().set_service_share(percent);
            let worker = place.worker;
            Worker::new(WorkerParts {
                worker,
                ports,
                pipeline,
                forwarding,
                neighbors,
                exchange,
                rings,
                shared: counts,
                outliving: Outliving { restoration, clock: memory.clock(worker) },
                clock,
                idle,
            })
        };
        let (handle, readiness) =
            WorkerHandle::start(place, shared, move || enter(&place), make, stop, on_failure)?;
        // Added before the start is confirmed, so that the end of the worker pool always waits for it.
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
        // Without taps, the kernel cannot reach backends either.
        let probe_device = taps.iter().any(Option::is_some).then(|| ProbeDevice::create(mtu_of_probes(mtu)));
        let probe_device = probe_device.and_then(|made| {
            made.map_err(|error| {
                tracing::warn!(%error, "cannot create the probe device: DSR backends are checked at their own addresses");
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
            outside: self.slow_path.outside(),
            counters: self.slow_path.shared_counters(),
            clock: self.clock,
        };
        self.slow_path.start(slow_path, cpus, on_failure)?;
        Ok(())
    }

    /// Compiles a spec and hands it to every worker; see [`Self::applied_generation`]. Takes as long as the compile,
    /// and does not wait for workers.
    ///
    /// # Errors
    /// [`PublishError`]; nothing has changed then.
    pub fn publish(&self, spec: &SnapshotSpec) -> Result<Published, PublishError> {
        self.publish_by(spec, Snapshot::compile)
    }

    pub(super) fn publish_by(
        &self,
        spec: &SnapshotSpec,
        compile: Compile,
    ) -> Result<Published, PublishError> {
        if spec.network.interfaces.len() != self.ports {
            return Err(PublishError::Interfaces { given: spec.network.interfaces.len(), ports: self.ports });
        }
        let mut control = self.control();
        let published = control.publisher.generation();
        if spec.generation <= published {
            return Err(PublishError::Generation { given: spec.generation, published });
        }
        let previous = &control.publisher.current().snapshot;
        let (snapshot, problems) = compile(spec, Some(previous), &self.neighbors)?;
        let tallies = control.ledger.follow(&snapshot);
        prepare(self.affinities.as_deref(), &self.associations, &snapshot);
        self.prepare_flows(&snapshot);
        self.probes.follow(&spec.network.interfaces, &snapshot);
        let same_outside = snapshot.same_outside();
        control.publisher.publish(spec.generation, Forwarding { snapshot, tallies });
        let handed_over = Instant::now();
        if !same_outside {
            let outside = Outside::of(spec, self.announce).without_left_out(spec, &problems);
            if *control.outside != outside {
                self.slow_path.tell(outside.clone());
                control.outside = Arc::new(outside);
            }
        }
        Ok(Published { generation: spec.generation, handed_over, problems })
    }

    /// Prepares the memory of flow tables for a snapshot, and the flows that its Services had in an earlier process.
    fn prepare_flows(&self, snapshot: &Snapshot) {
        self.flow_memory.prepare(snapshot);
        if let Some(restoration) = &self.restoration {
            restoration.begin(snapshot);
        }
    }

    /// Takes the service ports of earlier processes whose flows are restored, each with its backends. A backend that has
    /// left needs a place in the first snapshot with Services, or its flows end.
    #[must_use]
    pub fn take_earlier_ports(&self) -> Vec<EarlierPort> {
        std::mem::take(&mut *self.earlier_ports.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why flows end with this process although their tables have a directory in memory, as text for display.
    #[must_use]
    pub fn flows_not_kept(&self) -> Option<String> {
        let memory = &self.flow_memory;
        let room = "there is no room for the file of a flow table in dataplane.flowTable.directory";
        let records = "new Services and backends cannot be recorded in dataplane.flowTable.directory";
        let lacks = || {
            let lacks_records = || memory.lacks_records().then_some(records);
            memory.lacks_room().then_some(room).or_else(lacks_records).map(str::to_owned)
        };
        let why = self.store_trouble.clone().or_else(lacks)?;
        Some(format!(
            "flows end with this process, so a restart breaks connections of nat and fullnat: {why}"
        ))
    }

    /// The flows of earlier processes, if flow tables outlive the process.
    #[must_use]
    pub fn restoration(&self) -> Option<&Restoration> {
        self.restoration.as_deref()
    }

    /// Makes the workers tell of flows, and take those of other gateways, from now on. `port` is the UDP port from which the
    /// host talks to these. The first call decides which flows are shared.
    pub fn share_flows(&self, flows: SharedFlows, port: u16) -> Arc<Sharing> {
        self.exchange.own.talk_to_gateways_from(port);
        let sharing = || Arc::new(Sharing::new(flows, self.exchange.mailboxes.len()));
        Arc::clone(self.exchange.sharing.get_or_init(sharing))
    }

    /// The virtual routers of which a VRRP advertisement passed the taps.
    #[must_use]
    pub fn advertised(&self) -> Vec<Advertised> {
        self.exchange.advertisements.all(self.clock.now())
    }

    /// The oldest generation that a live worker uses.
    #[must_use]
    pub fn applied_generation(&self) -> u64 {
        self.control().publisher.applied_generation()
    }

    /// Waits until every live worker forwards by this generation or a later one, at most for `most`. Returns whether
    /// they do. It blocks the thread: for tests and benches.
    #[must_use]
    pub fn wait_applied(&self, generation: u64, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        while self.applied_generation() < generation {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Frees, on this thread, the states that all workers have released. The next publication does it too.
    pub fn reclaim(&self) {
        self.control().publisher.reclaim();
    }

    /// The generation that was published last.
    #[must_use]
    pub fn published_generation(&self) -> u64 {
        self.control().publisher.generation()
    }

    /// Whether every worker is in its loop, the slow path is running, and none of them hangs.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.handles.iter().all(|handle| handle.state() == WorkerState::Running) && self.slow_path.is_well()
    }

    /// Notices from now on that a worker or the slow path hangs, by a thread on these CPUs. `on_hang` is called when one
    /// begins or ceases to hang, `on_failure` when one has hung for so long that only a new process helps.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn watch_threads(
        &mut self,
        cpus: Vec<usize>,
        on_hang: OnHang,
        on_failure: Option<OnFailure>,
    ) -> io::Result<()>
    where
        F: Send + 'static,
    {
        let workers = self.handles.iter().enumerate().map(|(n, handle)| {
            let exchange = Arc::clone(&self.exchange);
            handle.watched(Box::new(move |hangs| exchange.hung[n].store(hangs, Ordering::Relaxed)))
        });
        let watched = workers.chain([self.slow_path.watched()]).collect();
        self.pulse = Some(PulseThread::start(watched, cpus, on_hang, on_failure)?);
        Ok(())
    }

    /// How often the thread of [`Self::watch_threads`] has looked. If the number stands still, that thread hangs itself.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.pulse.as_ref().map_or(0, PulseThread::looks)
    }

    /// The threads that hang, as texts for people, each with the time of its last turn.
    #[must_use]
    pub fn hung(&self) -> Vec<(String, SystemTime)> {
        let workers = self.handles.iter().filter_map(|handle| {
            let what = format!("worker {} hangs: its packets are lost", handle.place.worker);
            Some((what, handle.hung_since()?))
        });
        let slow_path = self.slow_path.hung_since().map(|since| {
            (
                "the slow path hangs: the kernel gets no packets, and no neighbours are resolved".to_owned(),
                since,
            )
        });
        workers.chain(slow_path).collect()
    }

    /// The state of each worker.
    pub fn worker_states(&self) -> impl Iterator<Item = WorkerState> + '_ {
        self.handles.iter().map(WorkerHandle::state)
    }

    /// Reads the forwarding state in use, for listings and `explain`. A publication waits until `look` returns.
    pub fn with_snapshot<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        look(&self.control().publisher.current().snapshot)
    }

    /// The time on the clock of the workers.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The backend that a client last got at any worker by `sessionAffinity: ClientIP` with this timeout; `None` if a
    /// single worker remembers it alone.
    #[must_use]
    pub fn shared_affinity(&self, service: ServiceId, client: Addr, timeout_ms: u32) -> Option<BackendId> {
        let affinities = self.affinities.as_ref()?;
        affinities.find(&FlowKey::affinity(service, client), timeout_ms, self.now())
    }

    /// Link addresses of next hops.
    #[must_use]
    pub fn neighbors(&self) -> &NeighborTable {
        &self.neighbors
    }

    /// Whether each interface can carry frames. Ports in memory always can.
    #[must_use]
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// The host's connections to VIPs on one backend each.
    #[must_use]
    pub fn probes(&self) -> &Arc<Probes> {
        &self.probes
    }

    /// The counters of the slow path.
    #[must_use]
    pub fn slow_path_counters(&self) -> &SlowPathCounters {
        self.slow_path.counters()
    }

    /// The queues between threads.
    #[must_use]
    pub fn exchange(&self) -> &Exchange<F> {
        &self.exchange
    }

    /// The number of ports.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Lists up to `limit` flows that pass the filter, over all workers. Workers answer between bursts. Those that have
    /// not answered within `timeout` are left out, and the second value is their number.
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

    /// Begins to copy the packets that pass the filter, at every worker. Each worker keeps up to `records` packets that were
    /// not taken yet, with `snap` bytes of each frame. The caller has at most
    /// [`WATCHES_MAX`](crate::worker::watch::WATCHES_MAX) of them at a time.
    ///
    /// # Errors
    /// The first worker that has too many queries waiting.
    pub fn watch(&self, filter: &WatchFilter, records: usize, snap: usize) -> Result<PacketWatch, usize> {
        let mailboxes = self.exchange.mailboxes.iter();
        let watches: Vec<_> =
            mailboxes.map(|_| Arc::new(Watch::new(filter.clone(), records, snap))).collect();
        let watch = PacketWatch::new(watches.clone());
        for (n, (mailbox, one)) in self.exchange.mailboxes.iter().zip(watches).enumerate() {
            mailbox.ask(Question::Watch(one)).map_err(|_| n)?;
        }
        Ok(watch)
    }

    /// Ends all threads and waits for them: first the workers, each at the end of its turn, then the slow path.
    pub fn stop(&mut self) {
        if let Some(pulse) = self.pulse.take() {
            pulse.end();
        }
        self.stop.store(true, Ordering::Release);
        for (handle, mailbox) in self.handles.iter_mut().zip(&self.exchange.mailboxes) {
            mailbox.wake();
            handle.join();
        }
        self.slow_path.stop();
        self.exchange.drain();
        self.control().publisher.reclaim();
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn slow_path(&self) -> &SlowPathHandle {
        &self.slow_path
    }

    pub(super) fn flow_memory(&self) -> &FlowMemory {
        &self.flow_memory
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn snat_usage(&self) -> &SnatUsage {
        &self.snat_usage
    }

    pub(super) fn handles(&self) -> &[WorkerHandle] {
        &self.handles
    }
}

impl WorkerPool<MemoryFrame> {
    /// A gateway without a wire, for tests: one worker, with one port in memory, that forwards by this state.
    ///
    /// # Errors
    /// [`WorkerPoolError`].
    pub fn in_memory(first: &SnapshotSpec) -> Result<Self, WorkerPoolError> {
        let config = WorkerPoolConfig { announce: true, ..WorkerPoolConfig::one_worker(0, 1024) };
        let (_wire, ends) = memory::port(1, 64);
        let enter = |_: &WorkerPlace| Ok::<(), String>(());
        Self::start(&config, vec![ends], Heap, vec![None], first, enter, None)
    }
}

/// Opens the directory of flow tables, or says why it cannot be used. Without it, the flows end with this process. On a file
/// system that is not in memory that is how the gateway is meant to work.
fn store(directory: &Path, shape: &Shape, now: Now) -> (Option<Store>, Option<String>) {
    match Store::open(directory, shape, now) {
        Ok(store) => {
            if let Some(error) = store.trouble() {
                tracing::warn!(reason = %error, "flows end with this process");
            }
            let trouble = store.trouble().map(ToString::to_string);
            (Some(store), trouble)
        }
        Err(error) => {
            tracing::warn!(reason = %error, "flows end with this process");
            (None, Some(error.to_string()))
        }
    }
}

/// Allocates the tables that the workers share, before they get the first Service that needs them.
fn prepare(affinities: Option<&Affinities>, associations: &Associations, snapshot: &Snapshot) {
    if !associations.is_prepared() && snapshot.has_sctp() {
        associations.prepare();
    }
    if let Some(affinities) = affinities.filter(|all| !all.is_prepared() && snapshot.has_affinity()) {
        affinities.prepare();
    }
}

/// The maximum packet size of probes, in bytes: probes must fit every link with the longest outer headers. IPv6 requires
/// 1,280.
fn mtu_of_probes(least: u16) -> u16 {
    let overhead = tunnel::OVERHEAD_MAX as u16;
    least.saturating_sub(overhead).max(1280)
}

impl<F> Drop for WorkerPool<F> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<F> std::fmt::Debug for WorkerPool<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkerPool({} workers, {} ports)", self.handles.len(), self.ports)
    }
}
