//! Benches of the control plane: worlds of any size, and what a process weighs.
//!
//! [`gateway`] is what a daemon does around a dataplane in memory; [`world`] makes the objects of a cluster without any
//! source, [`cluster`] the same as an API server has them; [`traffic`] sends packets to them; [`weight`] asks the kernel
//! for the process's memory.
//! The bins measure; nothing here does.

pub mod cluster;
pub mod gateway;
pub mod traffic;
pub mod weight;
pub mod world;
