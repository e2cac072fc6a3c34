//! The core on cores: workers, drivers, snapshots to workers, neighbours, the way to the kernel.
//!
//! Who calls it: the control plane, through [`gateway`]; `tidegate replay`, through [`replay`]. What may not live here:
//! Kubernetes, configuration files, `unsafe` (that is crate `dpdk`'s), decisions about packets (those are
//! `tidegate_core`'s). Read [`worker`] first: it is the loop that everything else serves.
//!
//! Invariant: nothing is shared between workers but bounded queues; a worker's loop takes no lock and allocates
//! nothing, and control never waits for a worker without a bound.
#![forbid(unsafe_code)]

pub mod clock;
pub mod drivers;
pub mod gateway;
pub mod links;
pub mod neighbors;
pub mod path_mtu_log;
pub mod probe_device;
pub mod publish;
pub mod punt;
pub mod rate;
pub mod replay;
mod rtnetlink;
pub mod slow_path;
mod sync;
pub mod topology;
pub mod worker;
