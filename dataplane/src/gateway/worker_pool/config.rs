//! The settings of the threads of a gateway.

use std::path::PathBuf;

use tidegate_pipeline::forward::snat_ports::Steering;

use crate::topology::{Idle, WorkerPlacement};

/// How many workers to start where, and how their flow tables are kept.
#[derive(Debug, Clone)]
pub struct WorkerPoolConfig {
    /// One placement per worker.
    pub placements: Vec<WorkerPlacement>,
    /// How workers wait.
    pub idle: Idle,
    /// The maximum number of flows per worker.
    pub flow_entries: usize,
    /// The percentage of a full flow table that one service may use.
    pub flow_service_percent: u8,
    /// Whether flow tables may use reserved huge pages.
    pub huge_pages: bool,
    /// The directory in which flow tables survive a restart; `None` if they don't.
    pub flow_store: Option<PathBuf>,
    /// How packets of a flow find their worker.
    pub steering: Steering,
    /// The secret of the flow tables' hash.
    pub seed: u64,
    /// Whether new VIPs are announced on the links (`announce.l2`).
    pub announce: bool,
    /// Whether other gateways answer for the SNAT addresses after the start.
    pub snat_is_released: bool,
    /// The CPUs of the slow path, off the workers' cores. If empty, the slow path is not pinned.
    pub main_cpus: Vec<usize>,
}

impl WorkerPoolConfig {
    /// One worker on this core, with flow tables of this size, for tests and benches.
    #[must_use]
    pub fn one_worker(core: usize, flow_entries: usize) -> Self {
        Self {
            placements: vec![WorkerPlacement { worker: 0, core, numa: None }],
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
