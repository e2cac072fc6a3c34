//! Runs the pipeline on CPU cores: workers, drivers, publication of snapshots, neighbours, and the path to the kernel.
//!
//! Used by the control plane through [`gateway`], and by `tidegate replay` through [`replay`]. Not allowed here:
//! Kubernetes, configuration files, `unsafe` (which belongs to crate `dpdk`), and decisions about packets (which belong
//! to `tidegate_pipeline`). Read [`worker`] first: everything else serves its loop.
//!
//! May depend on: the crates below `dataplane/`: `tidegate-pipeline` (decisions on packets), `tidegate-snapshot`,
//! `tidegate-conntrack`, `tidegate-spec`, `tidegate-structures`, `tidegate-wire`, `tidegate-capture`, `tidegate-probe`
//! (connections of health checks), `tidegate-host` (files, rtnetlink), `tidegate-events`; and `dpdk`. May not depend on: the control plane.
//!
//! Invariant: workers share only snapshots, bounded queues and atomics. A worker's loop takes no lock and allocates
//! nothing, and the control plane never waits indefinitely for a worker.
#![forbid(unsafe_code)]

pub mod clock;
pub mod drivers;
pub mod flow_memory;
pub mod gateway;
pub mod links;
pub mod neighbors;
pub mod path_mtu_log;
pub mod probe_device;
pub mod publish;
pub mod punt;
pub mod replay;
pub mod slow_path;
mod sync;
pub mod topology;
pub mod worker;

/// The version of the DPDK that the process uses, as `rte_version()` returns it: `DPDK 22.11.7`.
#[must_use]
pub fn dpdk_version() -> String {
    dpdk::Eal::version()
}
