//! Announces the VIPs of this gateway to routers.
//!
//! [`decide`] says which VIPs have a reason to be announced, and why the others are withheld; [`damping`] delays VIPs
//! that flap; [`routes`] makes prefixes of them, and
//! [`snat`] adds SNAT addresses. Two parts carry the prefixes to the network: [`bird`], a BIRD 2 that
//! this crate starts and watches, and [`kernel`], routes in a table of the kernel. [`announcer`] is the thread that does
//! all of this, and [`status`] what it shows to others.
//!
//! May depend on: `tidegate-model` (the configuration) and `tidegate-policy` (the Services). May not: the dataplane, an API
//! server. The daemon says whether the gateway forwards.
//!
//! Invariant: what is withdrawn is withdrawn at once. Whatever fails here, the gateway keeps forwarding.

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
