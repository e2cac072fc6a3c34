//! Writes to a cluster: status, conditions, finalizers and events of Services, the status of the gateway's own kinds,
//! and the Lease that decides which of several gateways writes.
//!
//! `tidegate_source::kubernetes` reads from the cluster. The path of a write: the daemon passes each round to the
//! [`ClusterWriter`]; `writer` calls [`plan`] to compare it with the objects of the API server; `queue` releases the
//! writes at a bounded rate; `write_request` sends them; `event_recorder` writes the [`event`]s.
//!
//! `elect` acquires the [`lease`]. `peer_poll` reads the status of the other gateways (`peers`, `sharing_peers`),
//! `own_status` writes the status of this one, and `duplicate_name` detects another gateway with the same name.
//! [`ReleaseTracker`] withholds addresses that other gateways may still serve. [`reasons`] lists all names that
//! programs match. [`crd`] defines the gateway's own kinds. [`uninstall`] removes everything that was written.
//!
//! May depend on: `tidegate-model`, `tidegate-source` (the connection, and the state of the source), `tidegate-policy`
//! (the results to write), `tidegate-spec` (ownership of VIPs, token buckets), `tidegate-structures` (the text of a
//! difference), `tidegate-events` (this gateway's own log), `tidegate-host` (the clock since boot). May not depend on health checks or the dataplane.
//!
//! Invariant: forwarding never waits for anything here, whatever the API server does. Only the leader writes Services
//! and AddressPools. Every gateway writes its own `GatewayStatus`.

mod counts;
pub mod crd;
mod drain_annotation;
mod duplicate_name;
mod elect;
mod event;
mod event_recorder;
mod gateway_api_request;
pub mod layer2;
pub mod lease;
pub mod line_budget;
mod low_priority;
mod own_status;
mod peer_poll;
mod peers;
pub mod plan;
mod queue;
pub mod reasons;
mod releases;
mod request;
mod round_robin;
mod sharing_peers;
pub mod token_bucket;
pub mod uninstall;
mod write_request;
mod writer;
mod writer_handle;

#[cfg(test)]
mod tests;

pub use counts::{Candidate, Counts, Reading};
pub use drain_annotation::{DRAIN_ANNOTATION, DrainAnnotation};
pub use low_priority::cpu_time;
pub use releases::{LiveGateway, PeerReleases, ReleaseTracker};
pub use sharing_peers::{SharingPeer, SharingPeers};
pub use writer_handle::{ClusterWriter, FlowPeers};
