//! The settings of the threads of a gateway.

use std::path::PathBuf;

use tidegate_pipeline::forward::snat_ports::Steering;

use crate::topology::{Idle, WorkerPlace};

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
