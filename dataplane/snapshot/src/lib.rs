//! `Snapshot`: an immutable forwarding state that all workers read.
//!
//! The control plane compiles one from a [`SnapshotSpec`](tidegate_spec::SnapshotSpec) and publishes it; workers take
//! it once per burst. Look-ups have several steps, so that a stage can prefetch what the next one reads: hash,
//! prefetch, find; [`Service::prefetch_choice`](crate::service::Service::prefetch_choice),
//! [`Service::select`](crate::service::Service::select), prefetch, [`Snapshot::backend`]. Nothing here allocates,
//! except functions for display. Link addresses change independently, so they are in the
//! [`NeighborTable`](crate::neighbors::NeighborTable) that all snapshots share.
//!
//! Invariant: a snapshot refers only to backends that it contains; an id from an older snapshot finds the same object
//! or nothing. Equal specs compile to snapshots that make the same decisions, regardless of the order of services and
//! backends.
//!
//! May depend on: `tidegate-conntrack`, `tidegate-select`, `tidegate-spec`, `tidegate-structures`, `tidegate-wire`.
#![deny(unsafe_code)]

pub mod addresses;
pub mod backend;
mod compare;
mod compile;
pub mod counters;
mod indices;
mod interface;
mod lineage;
mod neighbor_references;
pub mod neighbors;
mod network;
pub mod path_mtu;
mod reusable_parts;
pub mod routes;
pub mod service;
pub mod service_limits;
pub mod source_ranges;
pub mod source_rates;
mod state;
mod table_bytes;
#[cfg(test)]
mod tests;

pub use interface::Interface;
pub use lineage::Fresh;
pub use network::Transit;
pub use state::Snapshot;
pub use table_bytes::TableBytes;
