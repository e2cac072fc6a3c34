//! The control plane: compiles configuration and Kubernetes objects into the forwarding state of the dataplane.
//!
//! Layers that need no DPDK are separate crates below `control/`; the `lib.rs` of each lists what it may depend on.
//! This crate combines them: [`daemon`], [`cli`], [`admin`], [`telemetry`], and what `explain` computes. It does not
//! process packets.
//!
//! May depend on: all other crates, except `tidegate-netlab` and `test-apiserver` (tests only) and the benches. Apart
//! from the benches, only this crate may use `tidegate-dataplane`.

pub mod admin;
pub mod assemble;
pub mod cli;
pub mod daemon;
pub mod explain;
pub mod listener;
mod log_sink;
mod logging;
pub mod telemetry;
#[cfg(test)]
mod views_testing;
