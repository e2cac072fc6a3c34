//! `Snapshot`: the forwarding state of one moment, immutable, read by all workers at once.
//!
//! The control plane compiles one from a [`SnapshotSpec`] and publishes it; workers take it once per burst. Look-ups
//! have several steps, so that a stage can prefetch what the next one reads: hash, prefetch, find;
//! [`Service::prefetch_choice`](crate::service::Service::prefetch_choice),
//! [`Service::select`](crate::service::Service::select), prefetch, [`Snapshot::backend`]. Nothing here allocates, except
//! the functions for people. Link addresses are not here, because they change independently: they are in
//! the [`NeighborTable`](crate::neighbors::NeighborTable) that all snapshots share.
//!
//! Invariant: a snapshot names no backend that it does not contain; an id from an older snapshot finds the same object
//! or nothing. Equal specs compile to snapshots that make the same decisions, in whatever order they list services and
//! backends.

mod carried;
mod compare;
mod compile;
mod holds;
mod indices;
mod interface;
mod lineage;
mod network;
mod network_spec;
mod passive_health;
mod problem;
mod service_limits;
mod shared;
mod spec;
mod state;
#[cfg(test)]
mod tests;
mod tunnel_prefix;

pub use interface::Interface;
pub use lineage::Fresh;
pub use network::Transit;
pub use network_spec::{
    GatewaySpec, InterfaceSpec, NeighborSpec, NetworkSpec, Policy, RouteSpec, SynCookies,
};
pub use passive_health::PassiveHealth;
pub use problem::{BackendProblem, CompileError, Problem};
pub use service_limits::ServiceLimits;
pub use shared::Shared;
pub use spec::*;
pub use state::Snapshot;
pub use tunnel_prefix::TunnelPrefix;
