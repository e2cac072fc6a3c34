//! Decides which core runs which worker, and which queues it owns: a pure function of the request and the hardware.
//!
//! Worker i runs on the i-th requested core and owns receive and transmit queue i of every port, so no queue has two
//! owners and nothing is locked. Called once, before any port is started.
//!
//! Invariant: nothing here queries the machine; its properties are an argument, and equal arguments give equal plans.

use std::path::Path;
use std::time::Duration;

use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::WORKERS_MAX;

/// The machine properties that the placement of workers depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The CPUs that this process may use.
    pub cpus: Vec<Cpu>,
}

/// One CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// The number that the kernel uses.
    pub id: usize,
    /// The NUMA node, if the kernel reports one.
    pub numa: Option<u16>,
}

/// The port properties that the placement depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOffer {
    /// The interface's name in the configuration.
    pub interface: String,
    /// Receive queues that the driver supports.
    pub rx_queues_max: u16,
    /// Transmit queues that the driver supports.
    pub tx_queues_max: u16,
    /// The NUMA node of the device, if it has one.
    pub numa: Option<u16>,
}

/// The placement of workers and queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Indexed by worker.
    pub workers: Vec<WorkerPlacement>,
    /// Receive and transmit queues to set up on every port.
    pub queues_per_port: u16,
    /// CPUs for everything except workers.
    pub main_cpus: Vec<usize>,
    /// Settings that work but reduce performance.
    pub warnings: Vec<String>,
}

/// The placement of one worker. Its queue is number `worker` of every port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerPlacement {
    /// The worker.
    pub worker: WorkerIndex,
    /// The CPU that it is pinned to.
    pub core: usize,
    /// The NUMA node of that CPU, where its memory should be.
    pub numa: Option<u16>,
}

/// How a worker waits when it has no work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Idle {
    /// It polls without a pause: lowest latency, and the core is always at 100 %.
    Poll,
    /// It spins, then yields, then sleeps for up to a millisecond.
    #[default]
    Adaptive,
    /// Like [`Idle::Adaptive`] with shorter sleeps, so that the ring of a NIC doesn't fill up meanwhile.
    AdaptiveUpTo(Duration),
}

/// Why the workers can't be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// At least one worker is required.
    #[error(
        "dataplane.cores is empty; accepted: a list of CPU numbers such as [1], with one worker on each CPU"
    )]
    NoCores,
    /// Worker indices and per-worker tables are bounded.
    #[error("dataplane.cores lists {given} cores; accepted: at most {max}")]
    TooManyCores {
        /// The number of listed cores.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// Two workers on one core would alternate instead of running in parallel.
    #[error("dataplane.cores lists core {core} twice; accepted: each core once")]
    DuplicateCore {
        /// The core.
        core: usize,
    },
    /// The CPU doesn't exist, or this process may not use it (cgroup, taskset).
    #[error(
        "dataplane.cores: core {core} does not exist or this process may not use it; accepted: any of {usable:?}"
    )]
    NoSuchCore {
        /// The requested core.
        core: usize,
        /// The usable cores.
        usable: Vec<usize>,
    },
    /// Workers that never sleep would leave no core for the control plane.
    #[error(
        "dataplane.cores lists every core ({cores:?}), but workers with `idle: poll` leave no time for other threads; \
         accepted: a list that leaves out at least one core, or `idle: adaptive`"
    )]
    NoCoreForControl {
        /// All cores.
        cores: Vec<usize>,
    },
    /// Every worker needs its own queue on every port.
    #[error(
        "interface {interface:?} offers {offered} {direction} queues, but each of the {workers} workers needs one; \
         accepted: at most {offered} entries in dataplane.cores, or more queues on the device (net_af_packet: \
         `qpairs={workers}`)"
    )]
    TooFewQueues {
        /// The interface.
        interface: String,
        /// `receive` or `transmit`.
        direction: &'static str,
        /// The number of queues that it offers.
        offered: u16,
        /// The number of queues that are needed.
        workers: usize,
    },
}

/// Assigns one worker to each of `cores`.
///
/// # Errors
/// All errors, not only the first.
pub fn plan(
    cores: &[usize],
    idle: Idle,
    machine: &Machine,
    ports: &[PortOffer],
) -> Result<Plan, Vec<TopologyError>> {
    let mut errors = core_errors(cores, machine);
    errors.extend(ports.iter().flat_map(|port| queue_errors(port, cores.len())));
    let mut main_cpus: Vec<usize> = machine.ids().filter(|id| !cores.contains(id)).collect();
    let mut warnings = Vec::new();
    if main_cpus.is_empty() && errors.is_empty() {
        if idle == Idle::Poll {
            errors.push(TopologyError::NoCoreForControl { cores: cores.to_vec() });
        } else {
            warnings.push(
                "dataplane.cores lists every core: the control plane shares the cores with the workers"
                    .to_owned(),
            );
            main_cpus = machine.ids().collect();
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let workers: Vec<WorkerPlacement> = cores
        .iter()
        .enumerate()
        .map(|(n, &core)| WorkerPlacement {
            worker: WorkerIndex::try_from(n).expect("at most WORKERS_MAX cores, as checked"),
            core,
            numa: machine.numa_of(core),
        })
        .collect();
    warnings
        .extend(workers.iter().flat_map(|placement| ports.iter().filter_map(|port| far(placement, port))));
    let queues_per_port = u16::try_from(workers.len()).expect("at most WORKERS_MAX, as checked");
    Ok(Plan { workers, queues_per_port, main_cpus, warnings })
}

fn core_errors(cores: &[usize], machine: &Machine) -> Vec<TopologyError> {
    let mut errors = Vec::new();
    if cores.is_empty() {
        errors.push(TopologyError::NoCores);
    }
    if cores.len() > WORKERS_MAX {
        errors.push(TopologyError::TooManyCores { given: cores.len(), max: WORKERS_MAX });
    }
    for (n, &core) in cores.iter().enumerate() {
        if cores[..n].contains(&core) {
            errors.push(TopologyError::DuplicateCore { core });
        } else if !machine.ids().any(|id| id == core) {
            errors.push(TopologyError::NoSuchCore { core, usable: machine.ids().collect() });
        }
    }
    errors
}

fn queue_errors(port: &PortOffer, workers: usize) -> impl Iterator<Item = TopologyError> {
    [("receive", port.rx_queues_max), ("transmit", port.tx_queues_max)]
        .into_iter()
        .filter(move |&(_, offered)| usize::from(offered) < workers)
        .map(move |(direction, offered)| TopologyError::TooFewQueues {
            interface: port.interface.clone(),
            direction,
            offered,
            workers,
        })
}

/// A cache miss to the memory of another node takes about twice as long.
fn far(placement: &WorkerPlacement, port: &PortOffer) -> Option<String> {
    match (placement.numa, port.numa) {
        (Some(core), Some(device)) if core != device => Some(format!(
            "worker {} on core {} is on NUMA node {core}, but interface {:?} is on node {device}: packets cost the \
             worker more time",
            placement.worker, placement.core, port.interface
        )),
        _ => None,
    }
}

impl Machine {
    /// The CPUs `ids` with their NUMA nodes as listed in `/sys/devices/system/node`. A machine without that directory
    /// has no nodes.
    #[must_use]
    pub fn of_cpus(ids: &[usize]) -> Self {
        Self { cpus: ids.iter().map(|&id| Cpu { id, numa: numa_from_sysfs(id) }).collect() }
    }

    fn ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.cpus.iter().map(|cpu| cpu.id)
    }

    fn numa_of(&self, core: usize) -> Option<u16> {
        self.cpus.iter().find(|cpu| cpu.id == core).and_then(|cpu| cpu.numa)
    }
}

/// Reads the NUMA node from `/sys/devices/system/cpu/cpuN/nodeM`, which [`plan`] must not do itself.
fn numa_from_sysfs(cpu: usize) -> Option<u16> {
    let directory = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}"));
    std::fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(count: usize) -> Machine {
        Machine { cpus: (0..count).map(|id| Cpu { id, numa: Some(u16::from(id >= 4)) }).collect() }
    }

    fn port(queues: u16) -> PortOffer {
        PortOffer { interface: "uplink".into(), rx_queues_max: queues, tx_queues_max: queues, numa: Some(0) }
    }

    #[test]
    fn worker_i_sits_on_the_ith_core_and_control_gets_the_rest() {
        let plan = plan(&[3, 1], Idle::Poll, &machine(4), &[port(2)]).unwrap();
        let placements: Vec<_> =
            plan.workers.iter().map(|placement| (placement.worker, placement.core)).collect();
        assert_eq!(placements, [(0, 3), (1, 1)]);
        assert_eq!((plan.queues_per_port, plan.main_cpus, plan.warnings.len()), (2, vec![0, 2], 0));
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let errors = plan(&[1, 1, 9], Idle::Poll, &machine(2), &[port(2)]).unwrap_err();
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 4, "{text:?}");
        assert!(text[0].contains("core 1 twice"));
        assert!(text[1].contains("core 9 does not exist") && text[1].contains("[0, 1]"));
        assert!(text[2].contains("offers 2 receive queues, but each of the 3 workers needs one"));
        assert!(text[3].contains("transmit"));
    }

    #[test]
    fn polling_workers_may_not_take_every_core_adaptive_ones_may() {
        let errors = plan(&[0, 1], Idle::Poll, &machine(2), &[]).unwrap_err();
        assert_eq!(errors, [TopologyError::NoCoreForControl { cores: vec![0, 1] }]);
        let plan = plan(&[0, 1], Idle::Adaptive, &machine(2), &[]).unwrap();
        assert_eq!((plan.main_cpus, plan.warnings.len()), (vec![0, 1], 1));
    }

    #[test]
    fn no_cores_and_too_many_cores_are_refused() {
        assert_eq!(plan(&[], Idle::Poll, &machine(2), &[]).unwrap_err(), [TopologyError::NoCores]);
        let cores: Vec<usize> = (0..65).collect();
        let errors = plan(&cores, Idle::Poll, &machine(128), &[]).unwrap_err();
        assert_eq!(errors, [TopologyError::TooManyCores { given: 65, max: WORKERS_MAX }]);
    }

    #[test]
    fn a_worker_far_from_its_port_is_a_warning() {
        let plan = plan(&[5], Idle::Poll, &machine(8), &[port(1)]).unwrap();
        assert!(
            plan.warnings[0].contains("NUMA node 1, but interface \"uplink\" is on node 0"),
            "{:?}",
            plan.warnings
        );
    }
}
