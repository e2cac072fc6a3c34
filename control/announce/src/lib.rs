//! Announces the VIPs of this gateway to routers.
//!
//! [`decide`] decides which VIPs to announce and why the others are withheld, [`damping`] delays flapping VIPs,
//! [`routes`] derives prefixes from VIPs, and [`snat`] adds SNAT addresses. [`bird`] runs and monitors a BIRD 2 that
//! announces the prefixes, and [`kernel`] adds them as routes to a kernel table. [`announcer`] is the thread that runs
//! all of this, and [`status`] is what it reports.
//!
//! May depend on: `tidegate-model` (the configuration), `tidegate-policy` (the Services), `tidegate-events` and
//! `tidegate-host` (files, rtnetlink). May not: the dataplane, an API server. The daemon reports whether the gateway forwards.
//!
//! Invariant: withdrawals are immediate. Whatever fails here, the gateway keeps forwarding.

mod announced_routes;
pub mod announcer;
pub mod bird;
pub mod damping;
pub mod decide;
mod first_bfd;
mod inputs;
mod interruption;
pub mod kernel;
mod netlink;
pub mod routes;
pub mod snat;
pub mod status;

pub use announcer::Announcer;
