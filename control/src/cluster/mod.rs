//! What the gateway writes to a cluster: status, conditions, finalizers and events of Services, the status of its
//! own kinds, and the lease that says who of several gateways writes.
//!
//! Reading is `source::kubernetes`. The way of a write: the daemon offers each round to the [`ClusterWriter`] (`run`),
//! [`plan`] compares it with what the API server has, `queue` lets the writes through at a bearable rate, `request`
//! sends them; `record` writes the [`event`]s. `elect` asks for the [`lease`], `peers` knows the other gateways by
//! their `GatewayStatus`. [`crd`] are the kinds that the gateway brings along.
//!
//! Invariant: nothing here is waited for by the forwarding side, whatever the API server does.
//! Invariant: Services and AddressPools are written by the leader alone, its own `GatewayStatus` by every gateway.

mod bucket;
mod counts;
pub mod crd;
mod elect;
pub mod event;
pub mod lease;
mod peers;
pub mod plan;
mod queue;
mod record;
mod request;
mod run;

#[cfg(test)]
mod tests;

pub use counts::{Counts, Reading};
pub use run::ClusterWriter;
