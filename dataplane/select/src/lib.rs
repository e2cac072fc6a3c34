//! The choice of a backend for a new flow: seat rendezvous, Maglev tables, weighted round robin, and the comparison of
//! loads.
//!
//! Snapshot compilation builds a [`selector::Selector`] for each service port; the pipeline queries it with the hash of
//! a flow. Callers: `tidegate-snapshot`, the pipeline, and `reconcile` for the history of weights.
//!
//! May depend on: `tidegate-spec`, `tidegate-structures`, `tidegate-wire`.
//!
//! Invariant: gateways with the same backends and weights make the same choice for the same hash.
#![deny(unsafe_code)]

pub mod loads;
pub mod maglev;
pub mod rendezvous;
pub mod round_robin;
pub mod selector;
pub mod warm_up;
