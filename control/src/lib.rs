//! The control plane: what operators write, made into what the dataplane does.
//!
//! Layers, each using only those before it: [`diagnostic`] (faults with their places), [`yaml`] and
//! [`config`] (what was written, checked), [`model`] (the desired state in Kubernetes' terms), [`source`]
//! (who fills the model), [`pools`], [`health`] and [`reconcile`] (what is to be forwarded), [`explain`], and
//! [`cli`], which puts it all to work. No packet is touched here.

pub mod admin;
pub mod assemble;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod diagnostic;
pub mod explain;
pub mod health;
pub mod health_check_node_port;
mod http;
pub mod model;
pub mod netlab;
pub mod pools;
pub mod reconcile;
pub mod shared_map;
pub mod source;
mod state_file;
pub mod telemetry;
pub mod yaml;
