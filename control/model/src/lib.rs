//! What operators and Kubernetes say, read and checked: the values that all other crates of the control plane share.
//!
//! [`diagnostic`] has faults with their positions, [`yaml`] the decoder that collects them, [`objects`] the desired
//! state in Kubernetes' terms, [`config`] `gateway.yaml`, [`health`] what is checked and what the checks found.
//! [`shared_map`] is the map in which sources keep their objects, [`fnv`] the hash on which gateways agree, [`time`] how
//! points in time are shown.
//!
//! May depend on: `tidegate-core`, for values such as forwarding modes and MAC addresses. May not: a Kubernetes client,
//! the dataplane, another crate of the control plane, sockets, threads. Files are read by [`config::load`] alone.

pub mod config;
pub mod diagnostic;
pub mod fnv;
pub mod health;
pub mod objects;
pub mod shared_map;
pub mod time;
pub mod yaml;
