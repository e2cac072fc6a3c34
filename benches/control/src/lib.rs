//! Benches of the control plane: clusters of any size, and the memory of a process.
//!
//! [`gateway`] does what a daemon does around a dataplane in memory. [`world`] creates the objects of a cluster without
//! a source, and [`cluster`] creates the same objects in the form of an API server. [`traffic`] sends packets to them.
//! [`weight`] reads the memory of the process from the kernel. The binaries measure; this library does not.
//!
//! May depend on: all crates of the control plane and the dataplane, and `test-apiserver`. No other crate may use it.

pub mod cluster;
pub mod gateway;
pub mod traffic;
pub mod weight;
pub mod world;
