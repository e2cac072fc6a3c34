//! The path to the kernel and back: one tap per interface, with its addresses and routes.
//!
//! [`class`] classifies frames for the kernel, using [`host_connections`]. [`tap`] is the device. [`netlink`] sets its
//! addresses, routes and neighbours, and [`mod@routes`] and [`fixed_neighbors`] keep them up to date. The slow path
//! moves the frames, and [`vrrp`] records the VRRP advertisements among them. If a port is also a kernel interface
//! (`net_af_packet`), the kernel receives every frame there as well as on the tap. That interface must have no address,
//! and its ingress must be silenced, or the kernel answers twice.
//!
//! Invariant: everything set up here disappears with the process, except the taps, which the next process takes over.

pub mod class;
pub mod fixed_neighbors;
pub mod host_connections;
pub mod netlink;
pub mod routes;
mod sysctl;
pub mod sysctl_guard;
pub mod tap;
pub mod vrrp;
