//! The control plane: what operators write, made into what the dataplane does.
//!
//! Layers that need no DPDK are crates of their own below `control/`; each says in its `lib.rs` what it may depend on.
//! Here is what puts them to work: [`daemon`], [`cli`], [`admin`], [`telemetry`], [`demo`]. This crate may depend on all
//! others, and is the only one that may use `tidegate-dataplane`. No packet is touched here.

pub mod admin;
pub mod assemble;
pub mod cli;
pub mod daemon;
pub mod demo;
mod logging;
pub mod netlab;
mod state_file;
pub mod telemetry;
