//! The edge: the second tier, where TLS and HTTP end. It configures and supervises HAProxy, which does the work.
//!
//! [`config`] reads `edge.yaml`, [`certificates`] checks pairs of certificates and keys, [`render`] writes HAProxy's
//! configuration for the listeners that `tidegate_policy::edge` computes, [`haproxy`] runs HAProxy, and [`edge`]
//! combines them. [`status`] is what it reports. Gateways reach edges as ordinary backends.
//!
//! May depend on: `tidegate-model`, `tidegate-source` (objects), `tidegate-policy` (what to serve), `tidegate-host`
//! (files). May not depend on the dataplane, and needs neither DPDK nor root.
//!
//! Invariant: HAProxy gets no configuration that it has not validated, so the last good one stays in use. Invariant: an
//! object that HAProxy refuses is left out alone. Invariant: nothing here parses HTTP.

pub mod bisect;
pub mod certificates;
pub mod config;
pub mod edge;
pub mod haproxy;
pub mod listen;
pub mod render;
pub mod runtime;
pub mod status;
pub mod wanted;
