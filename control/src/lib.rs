//! The control plane: what operators write, made into what the dataplane does.
//!
//! Layers, each using only those before it: [`diagnostic`] (faults with their places), [`yaml`] and
//! [`config`] (what was written, checked), [`model`] (the desired state in Kubernetes' terms), [`source`]
//! (who fills the model). No packet is touched here.

pub mod assemble;
pub mod config;
pub mod demo;
pub mod diagnostic;
pub mod health;
pub mod model;
pub mod netlab;
pub mod pools;
pub mod reconcile;
pub mod source;
pub mod yaml;
