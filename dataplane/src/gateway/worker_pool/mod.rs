//! The threads of a gateway over any driver: workers, the slow path, and the publisher of snapshots.
//!
//! [`super::Dataplane`] builds one over DPDK ports; tests build one over ports in memory. The control plane calls it
//! from any thread. Workers never take its lock.
//!
//! Invariant: a worker that ends unexpectedly is detected: its state is `Failed`, [`WorkerPool::healthy`] is false, and
//! the callback has been called with its message. One that hangs is detected after [`WorkerPool::watch_threads`].
//! Invariant: after [`WorkerPool::stop`] no thread is left, and every frame has been returned to its pool.

mod config;
mod flows;
mod health;
mod queries;
mod start;

pub use config::WorkerPoolConfig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flows::Flows;
use tidegate_conntrack::flow_log::FlowLog;
use tidegate_pipeline::pipeline::SharedFlows;
use tidegate_probe::Probes;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_spec::{CompileError, EarlierPort, Problem, SnapshotSpec};
use tidegate_wire::Addr;

use super::error::PublishError;
use super::flow_counts::FlowCounts;
use super::ledger::Ledger;
use super::slow_path_handle::SlowPathHandle;
use super::watchdog::Watchdog;
use super::worker_handle::WorkerHandle;
use crate::clock::Clock;
use crate::flow_memory::{FlowMemory, Restoration};
use crate::links::Links;
use crate::publish::Publisher;
use crate::punt::vrrp::Advertised;
use crate::slow_path::{SlowPathCounters, SlowPathState};
use crate::worker::{Exchange, Forwarding, Sharing};

/// A function that compiles a snapshot: incrementally, or from scratch.
type Compile =
    fn(&SnapshotSpec, Option<&Snapshot>, &NeighborTable) -> Result<(Snapshot, Vec<Problem>), CompileError>;

/// The result of a publication.
#[derive(Debug)]
pub struct Published {
    /// The generation that workers are about to apply.
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
/// use tidegate_dataplane::topology::WorkerPlacement;
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
/// let enter = |_: &WorkerPlacement| Ok::<(), String>(());
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
    flow_counts: FlowCounts,
    flows: Flows,
    clock: Clock,
    watchdog: Option<Watchdog>,
}

/// The state that a publication changes.
pub(super) struct Control {
    pub(super) publisher: Publisher<Forwarding>,
    pub(super) ledger: Ledger,
    /// The state that was last passed to the slow path.
    pub(super) slow_path_state: Arc<SlowPathState>,
}

impl<F> WorkerPool<F> {
    /// Compiles a spec and publishes it to every worker; see [`Self::applied_generation`]. Takes as long as the compile
    /// and doesn't wait for workers.
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
        self.flows.allocate_shared(&snapshot);
        self.flows.prepare(&snapshot);
        self.probes.follow(&spec.network.interfaces, &snapshot);
        let same_outside = snapshot.same_outside();
        control.publisher.publish(spec.generation, Forwarding { snapshot, tallies });
        let handed_over = Instant::now();
        if !same_outside {
            let slow_path_state = SlowPathState::of(spec, self.announce).without_left_out(spec, &problems);
            if *control.slow_path_state != slow_path_state {
                self.slow_path.notify(slow_path_state.clone());
                control.slow_path_state = Arc::new(slow_path_state);
            }
        }
        Ok(Published { generation: spec.generation, handed_over, problems })
    }

    /// Takes the service ports of earlier processes whose flows are being restored, with their backends. A backend that
    /// has been removed since needs an index in the first snapshot with Services, or its flows end.
    #[must_use]
    pub fn take_earlier_ports(&self) -> Vec<EarlierPort> {
        self.flows.take_earlier_ports()
    }

    /// Why flows don't survive a restart although their directory is in memory, as text for people.
    #[must_use]
    pub fn flows_not_kept(&self) -> Option<String> {
        self.flows.not_kept()
    }

    /// The flows of earlier processes, if flow tables survive restarts.
    #[must_use]
    pub fn restoration(&self) -> Option<&Restoration> {
        self.flows.restoration.as_deref()
    }

    /// The backend that a client last got at any worker by `sessionAffinity: ClientIP` with this timeout; `None` if the
    /// gateway has a single worker, which remembers it itself.
    #[must_use]
    pub fn shared_affinity(&self, service: ServiceId, client: Addr, timeout_ms: u32) -> Option<BackendId> {
        self.flows.affinity(service, client, timeout_ms, self.now())
    }

    /// Enables flow sharing on all workers. `port` is the UDP port from which the host talks to peer gateways. The
    /// first call decides which flows are shared.
    pub fn share_flows(&self, flows: SharedFlows, port: u16) -> Arc<Sharing> {
        self.exchange.host_connections.set_gateway_port(port);
        let sharing = || Arc::new(Sharing::new(flows, self.exchange.mailboxes.len()));
        Arc::clone(self.exchange.sharing.get_or_init(sharing))
    }

    /// Enables the flow log on all workers, and returns the records of each.
    #[must_use]
    pub fn log_flows(&self) -> &[Arc<FlowLog>] {
        let workers = self.exchange.mailboxes.len();
        self.exchange.flow_logs.get_or_init(|| (0..workers).map(|_| Arc::default()).collect())
    }

    /// The records of logged flows of each worker; empty without a flow log.
    #[must_use]
    pub fn flow_logs(&self) -> &[Arc<FlowLog>] {
        self.exchange.flow_logs.get().map(|logs| &**logs).unwrap_or_default()
    }

    /// The virtual routers whose VRRP advertisements were seen on the taps.
    #[must_use]
    pub fn advertised(&self) -> Vec<Advertised> {
        self.exchange.advertisements.all(self.clock.now())
    }

    /// The oldest generation that a live worker uses.
    #[must_use]
    pub fn applied_generation(&self) -> u64 {
        self.control().publisher.applied_generation()
    }

    /// Waits until every live worker uses this generation or a later one, up to `most`. Returns whether they do. Blocks
    /// the thread: for tests and benches.
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

    /// Frees, on this thread, states that all workers have released. The next publication does it too.
    pub fn reclaim(&self) {
        self.control().publisher.reclaim();
    }

    /// The generation published last.
    #[must_use]
    pub fn published_generation(&self) -> u64 {
        self.control().publisher.generation()
    }

    /// Reads the forwarding state in use, for listings and `explain`. Publications wait until `look` returns.
    pub fn with_snapshot<T>(&self, look: impl FnOnce(&Snapshot) -> T) -> T {
        look(&self.control().publisher.current().snapshot)
    }

    /// The time on the workers' clock.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
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

    /// The host's connections to VIPs, each on one backend.
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

    /// Ends all threads and waits for them: first the workers, each after its current iteration, then the slow path.
    pub fn stop(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.end();
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
        &self.flows.memory
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn flow_counts(&self) -> &FlowCounts {
        &self.flow_counts
    }

    pub(super) fn handles(&self) -> &[WorkerHandle] {
        &self.handles
    }
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
