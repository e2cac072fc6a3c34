//! What the gateway writes to a cluster: status, conditions, finalizers and events of Services, the status of its
//! own kinds, and the lease that says who of several gateways writes.
//!
//! Reading is `tidegate_source::kubernetes`. The way of a write: the daemon offers each round to the [`ClusterWriter`];
//! `writer` has [`plan`] compare it with what the API server has, `queue` lets the writes through at a bearable rate,
//! `request` sends them; `record` writes the [`event`]s. `elect` asks for the [`lease`], `peer_poll` at the other gateways
//! (`peers`), `own_status` tells of this one, `namesake` whether its name is another's too, and [`ReleaseTracker`] holds back
//! addresses for them. [`words`] are what programs match in all of it. [`crd`] are the kinds that the gateway brings along; [`uninstall`] takes all of it back.
//!
//! May depend on: `tidegate-model`, `tidegate-source` (the connection, and what state the source is in), `tidegate-policy`
//! (what the writes follow from). May not: health checks, the dataplane.
//!
//! Invariant: nothing here is waited for by the forwarding side, whatever the API server does.
//! Invariant: Services and AddressPools are written by the leader alone, its own `GatewayStatus` by every gateway.

pub mod bucket;
mod counts;
pub mod crd;
mod elect;
pub mod event;
pub mod lease;
mod modest;
mod namesake;
mod own_status;
mod peer_poll;
mod peers;
pub mod plan;
mod queue;
mod record;
mod releases;
mod request;
mod run;
mod turns;
pub mod uninstall;
pub mod words;
mod writer;

#[cfg(test)]
mod tests;

pub use counts::{Candidate, Counts, Reading};
pub use releases::{PeerReleases, ReleaseTracker};
pub use run::ClusterWriter;
