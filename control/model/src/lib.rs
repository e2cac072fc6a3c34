//! Configuration and Kubernetes objects, decoded and validated: the values that all other crates of the control plane
//! share.
//!
//! [`diagnostic`] has faults with their locations, [`yaml`] the decoder that collects them, [`objects`] the desired
//! state as Kubernetes objects, [`config`] the configuration `gateway.yaml`, and [`health`] targets and results of
//! health checks. [`shared_map`] is the map in which sources keep their objects, [`fnv`] the hash on which gateways
//! agree, and [`time`] formats points in time.
//!
//! May depend on: `tidegate-spec`, `tidegate-wire`, `tidegate-structures`, `tidegate-select`, for values such as
//! forwarding modes, MAC addresses, the selection key, and sizes of Maglev tables. May not use a Kubernetes client, the
//! dataplane, another crate of the control plane, sockets or threads. Only [`config::load`] reads files, with
//! [`bounded_file`], which the directory source uses as well.

pub mod bounded_file;
pub mod config;
pub mod diagnostic;
pub mod fair_share;
pub mod fnv;
pub mod health;
pub mod objects;
pub mod shared_map;
pub mod time;
pub mod yaml;

pub use tidegate_wire::named;
