//! The facade for the control plane: a gateway over DPDK ports, from start to orderly stop.
//!
//! [`Dataplane::start`] starts DPDK, ports, taps and threads; [`Dataplane::publish`] publishes a forwarding state to
//! the workers; everything else reads. Everything that doesn't depend on DPDK is in [`worker_pool`].
//!
//! Invariant: nothing here waits for a worker without a limit, except [`Dataplane::stop`], which waits for one loop
//! iteration of each worker. After a stop or a failed start, no thread, port, tap or packet memory is left.

use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use device_string::{is_pci, renamed, takes_large_frames, with_large_frames, with_queues};
use dpdk::{Eal, EalConfig, Lcore, Pci, PktPool, PoolConfig, Port};
use memory_needs::{large_pool_config, pool_config};
use ports::Started;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_spec::{InterfaceSpec, NetworkSpec, SnapshotSpec};
use tidegate_wire::VlanId;

use crate::drivers::dpdk::{DpdkFrame, DpdkSource};
use crate::links::device_state;
use crate::links::kernel::Kernel;
use crate::links::lock::DeviceLock;
use crate::links::{Device, OtherName, PortResources, Stage, WatchThread, Watched, WatchedPort, silence};
use crate::punt::tap::{Tap, TapConfig, remove_stale};
use crate::topology::{self, Idle, Machine, Plan, PortOffer};

pub mod config;
mod device_string;
pub mod error;
pub mod flow_counts;
pub mod kept_snapshot;
mod ledger;
mod memory;
mod memory_needs;
mod ports;
mod slow_path_handle;
pub mod stats;
pub mod threads;
mod watchdog;
mod window;
pub mod worker_handle;
pub mod worker_pool;

pub use crate::flow_memory::{Pages, Restored, TableMemoryStats};
pub use crate::links::{InterfaceLink, LinkState, LinkStatus, Links, PortReport};
pub use config::{DataplaneConfig, InterfaceConfig, InterfaceState, NegotiatedPort, RssReport, StartError};
pub use dpdk::Memory;
pub use error::{PublishError, WorkerPoolError};
pub use flow_counts::BackendFlowStats;
pub use kept_snapshot::KeptSnapshot;
pub use memory_needs::MemoryNeeds;
pub use stats::{
    BackendStats, InterfaceStats, NeighborUsage, PuntClassStats, ServiceStats, SlowPathStats, Stats,
};
pub use threads::{OnFailure, WorkerFailure};
pub use watchdog::OnHang;
pub use worker_handle::{WorkerState, WorkerStats};
pub use worker_pool::{Published, WorkerPool, WorkerPoolConfig};

/// A running gateway. It dereferences to its [`WorkerPool`].
///
/// On drop, it ends the thread that closes and reopens ports, then all other threads. The ports close last.
#[derive(Debug)]
pub struct Dataplane {
    watch: Option<WatchThread>,
    worker_pool: WorkerPool<DpdkFrame>,
    interfaces: Vec<InterfaceState>,
    warnings: Vec<String>,
    main_cpus: Vec<usize>,
    pool: PktPool,
}

impl Dataplane {
    /// Starts DPDK (once per process) and a gateway on it.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &DataplaneConfig) -> Result<Self, StartError> {
        let plan = plan_workers(config, &[])?;
        let pci: Vec<String> =
            config.interfaces.iter().map(|one| one.device.clone()).filter(|name| is_pci(name)).collect();
        let started = Eal::init(&EalConfig {
            memory: config.memory,
            main_cpus: plan.main_cpus,
            pci: if pci.is_empty() { Pci::None } else { Pci::Allow(pci) },
            ..EalConfig::default()
        });
        let eal = started.map_err(|error| memory::why_not_started(error, config.memory))?;
        Self::start_on(&eal, config)
    }

    /// Starts a gateway on a running DPDK. `config.memory` is ignored.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(eal: &Eal, config: &DataplaneConfig) -> Result<Self, StartError> {
        let devices = claim(config)?;
        let mut ports = attach(eal, config)?;
        let offers: Vec<PortOffer> =
            config.interfaces.iter().zip(&ports).map(|(one, port)| offer(one, port)).collect();
        let plan = plan_workers(config, &offers)?;
        let socket = plan.workers.first().and_then(|worker| worker.numa).map(i32::from);
        let pool = PktPool::new(eal, &PoolConfig { socket, ..pool_config(config) })?;
        let large =
            large_pool_config(config).map(|config| PktPool::new(eal, &PoolConfig { socket, ..config }));
        let large = large.transpose()?;
        let Started { queues, mut interfaces, gates, configs, steering, warnings } =
            ports::start(config, &mut ports, &plan, &pool, large.as_ref())?;
        let idle = ports::idle(config, &ports);
        let mut watched: Vec<WatchedPort> = Vec::new();
        for (n, (port, claimed)) in ports.into_iter().zip(devices).enumerate() {
            let one = &config.interfaces[n];
            let Claimed { device, lock, other_name, bound } = claimed;
            watched.push(WatchedPort {
                devargs: renamed(&device_string(one, config), &port.info().name),
                pool: large.as_ref().filter(|_| takes_large_frames(&one.device)).unwrap_or(&pool).clone(),
                stage: Stage::Open(port),
                sysctl_guard: silence(&one.device, &device, lock.as_ref(), other_name.as_ref())?,
                device,
                bound,
                gates: gates[n].clone(),
                config: configs[n].clone(),
                mac: interfaces[n].mac,
                mtu: interfaces[n].mtu,
                other_name,
                lock,
                retry_at: None,
            });
        }
        let taps = open_taps(config, &interfaces)?;
        let tap_names = taps.iter().map(|tap| tap.as_ref().map(|tap| tap.name().to_owned())).collect();
        for (interface, tap) in interfaces.iter_mut().zip(&taps) {
            interface.tap = tap.as_ref().map(|tap| tap.name().to_owned());
        }
        let pool_config = worker_pool_config(config, &plan, idle, steering);
        let first = first_spec(config, &interfaces);
        let enter = {
            let eal = eal.clone();
            move |plan_workers: &topology::WorkerPlacement| {
                Lcore::register_on(&eal, plan_workers.core).map_err(|error| error.to_string())
            }
        };
        let source = DpdkSource(pool.clone());
        let mut worker_pool =
            WorkerPool::start(&pool_config, queues, source, taps, &first, enter, config.on_failure.as_ref())?;
        for warning in &plan.warnings {
            tracing::warn!("{warning}");
        }
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let (warnings, main_cpus) = ([plan.warnings, warnings].concat(), plan.main_cpus);
        let notify: OnHang = config.on_change.clone().unwrap_or_else(|| Arc::new(|| ()));
        worker_pool
            .watch_threads(main_cpus.clone(), Arc::clone(&notify), config.on_failure.clone())
            .map_err(StartError::Watch)?;
        worker_pool.links().on_change(Box::new(move || notify()));
        let resources = PortResources { eal: eal.clone() };
        let links = Arc::clone(worker_pool.links());
        let watched =
            Watched { ports: watched, taps: tap_names, links, resources, counters_at: Instant::now() };
        let watch = WatchThread::start(watched, main_cpus.clone(), config.on_failure.clone())
            .map_err(StartError::Watch)?;
        Ok(Self { watch: Some(watch), worker_pool, interfaces, warnings, main_cpus, pool })
    }

    /// The ports as started. The control plane reads MAC addresses and MTUs here.
    #[must_use]
    pub fn interfaces(&self) -> &[InterfaceState] {
        &self.interfaces
    }

    /// Settings that work but reduce performance.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The CPUs without a worker. The control plane should keep its threads on them.
    #[must_use]
    pub fn main_cpus(&self) -> &[usize] {
        &self.main_cpus
    }

    /// The total number of packet buffers, and the number of free ones.
    #[must_use]
    pub fn buffers(&self) -> (u32, u32) {
        (self.pool.capacity(), self.pool.available())
    }

    /// Ends all threads, and closes ports and taps. Dropping does the same.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        let watched = self.watch.take().and_then(WatchThread::end);
        self.worker_pool.stop();
        // Workers have released all queues, so the ports close here.
        drop(watched);
    }
}

impl Deref for Dataplane {
    type Target = WorkerPool<DpdkFrame>;

    fn deref(&self) -> &WorkerPool<DpdkFrame> {
        &self.worker_pool
    }
}

/// The interfaces of a forwarding state.
#[must_use]
pub fn interface_specs(config: &DataplaneConfig, interfaces: &[InterfaceState]) -> Vec<InterfaceSpec> {
    let spec = |(one, state): (&InterfaceConfig, &InterfaceState)| InterfaceSpec {
        name: one.name.clone(),
        mac: state.mac,
        mtu: state.mtu,
        vlan: one.vlan,
        addresses: one.addresses.clone(),
    };
    config.interfaces.iter().zip(interfaces).map(spec).collect()
}

fn plan_workers(config: &DataplaneConfig, offers: &[PortOffer]) -> Result<Plan, StartError> {
    let machine = Machine::of_cpus(&dpdk::lcore::usable_cpus());
    topology::plan(&config.cores, config.idle, &machine, offers).map_err(StartError::Topology)
}

/// A locked device.
struct Claimed {
    device: Device,
    lock: Option<DeviceLock>,
    /// The kernel's name of its interface, if the configuration uses an alternative name.
    other_name: Option<OtherName>,
    /// The kernel's index of its interface.
    bound: Option<u32>,
}

/// Locks all devices before any of them is changed.
fn claim(config: &DataplaneConfig) -> Result<Vec<Claimed>, StartError> {
    // Removes records that this process would mistake for its own once the kernel reuses a namespace number.
    device_state::sweep();
    let mut kernel = Kernel::open().map_err(StartError::Watch)?;
    let mut claim = |one: &InterfaceConfig| {
        let device = Device::of(&one.device);
        let failed = |why| StartError::Lock { interface: one.name.clone(), why };
        let lock = device.lock().map_err(failed)?;
        let link = match &device {
            Device::Kernel(name) => kernel.link(name).map_err(StartError::Watch)?,
            _ => None,
        };
        if let (Device::Kernel(name), None) = (&device, &link) {
            let (interface, device) = (one.name.clone(), name.clone());
            return Err(StartError::NoDevice { interface, device, existing: kernel_devices() });
        }
        let other_name = link.as_ref().map(|link| OtherName::of(&device, link));
        let other_name = other_name.transpose().map_err(failed)?.flatten();
        Ok(Claimed { device, lock, other_name, bound: link.map(|link| link.index) })
    };
    config.interfaces.iter().map(&mut claim).collect()
}

/// The names of the kernel's devices in this thread's network namespace, without the loopback.
fn kernel_devices() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    names.filter(|name| *name != "lo").map(str::to_owned).collect()
}

fn attach(eal: &Eal, config: &DataplaneConfig) -> Result<Vec<Port>, StartError> {
    let attach = |one: &InterfaceConfig| {
        let interface = || one.name.clone();
        Port::attach(eal, &device_string(one, config)).map_err(|source| {
            match memory::locked_too_little(config) {
                Some((limit, needed)) if one.device.starts_with("net_af_packet") => {
                    StartError::LockedMemory { interface: interface(), limit, needed }
                }
                _ => StartError::Port { interface: interface(), source },
            }
        })
    };
    config.interfaces.iter().map(attach).collect()
}

/// The device string with all arguments.
fn device_string(one: &InterfaceConfig, config: &DataplaneConfig) -> String {
    with_large_frames(&with_queues(&one.device, config.cores.len()))
}

fn offer(one: &InterfaceConfig, port: &Port) -> PortOffer {
    let info = port.info();
    PortOffer {
        interface: one.name.clone(),
        rx_queues_max: info.rx_queues_max,
        tx_queues_max: info.tx_queues_max,
        numa: info.socket.and_then(|socket| u16::try_from(socket).ok()),
    }
}

/// The settings of the threads.
fn worker_pool_config(
    config: &DataplaneConfig,
    plan: &Plan,
    idle: Idle,
    steering: Steering,
) -> WorkerPoolConfig {
    WorkerPoolConfig {
        placements: plan.workers.clone(),
        idle,
        flow_entries: config.flow_entries_per_core,
        flow_service_percent: config.flow_service_percent,
        huge_pages: matches!(config.memory, Memory::Hugepages { .. }),
        flow_store: config.flow_store.clone(),
        steering,
        seed: RandomState::new().hash_one(std::process::id()),
        announce: config.announce,
        snat_is_released: config.snat_is_released,
        main_cpus: plan.main_cpus.clone(),
    }
}

/// The forwarding state before the first publication: interfaces and routes.
fn first_spec(config: &DataplaneConfig, interfaces: &[InterfaceState]) -> SnapshotSpec {
    let network = NetworkSpec {
        interfaces: interface_specs(config, interfaces),
        routes: config.routes.clone(),
        ..NetworkSpec::default()
    };
    SnapshotSpec { network: network.into(), ..SnapshotSpec::default() }
}

fn open_taps(
    config: &DataplaneConfig,
    interfaces: &[InterfaceState],
) -> Result<Vec<Option<Tap>>, StartError> {
    let mut taps = Vec::new();
    for (one, state) in config.interfaces.iter().zip(interfaces) {
        let vlan = match one.vlan {
            None => None,
            Some(id) => {
                let refuse = || StartError::Vlan { interface: one.name.clone(), vlan: id };
                Some(VlanId::new(id).ok_or_else(refuse)?)
            }
        };
        taps.push(if config.taps {
            Some(Tap::create(&TapConfig {
                interface: one.name.clone(),
                mac: state.mac,
                mtu: state.mtu,
                vlan,
                addresses: one.addresses.clone(),
                mark: config.tap_mark.clone(),
            })?)
        } else {
            None
        });
    }
    if let Some(mark) = &config.tap_mark {
        let kept: Vec<&str> = taps.iter().flatten().map(Tap::name).collect();
        match remove_stale(mark, &kept) {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => {
                tracing::info!(taps = ?removed, "removed taps of interfaces that the configuration no longer has");
            }
            Err(error) => tracing::warn!(%error, "cannot remove taps of an earlier process"),
        }
    }
    Ok(taps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_shared_between_control_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Dataplane>();
    }
}
