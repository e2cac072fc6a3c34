//! The way to the kernel and back: one tap for each interface, with its addresses and routes.
//!
//! [`class`] tells frames for the kernel apart, with the help of [`own`]. [`tap`] is the device, [`netlink`] gives it addresses and routes, which [`mod@routes`] keeps up with; the slow path moves the frames. Where a port
//! is a kernel interface too (`net_af_packet`), the kernel hears every frame there as well as on the tap: that interface
//! must have no address, and its own ingress silenced, or the kernel answers twice.
//!
//! Invariant: everything set up here is gone when the process ends.

pub mod class;
pub mod netlink;
pub mod own;
pub mod routes;
pub mod sysctl_guard;
pub mod tap;
