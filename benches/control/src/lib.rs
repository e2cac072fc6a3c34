//! Benches of the control plane: worlds of any size, and what a process weighs.
//!
//! [`world`] makes the objects of a cluster without any source, [`traffic`] sends packets to it; [`weight`] asks the
//! kernel for the process's memory.
//! The bins measure; nothing here does.

pub mod traffic;
pub mod weight;
pub mod world;
