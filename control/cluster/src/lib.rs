//! Writes to a cluster: status, conditions, finalizers and events of Services, the status of the gateway's own kinds,
//! and the lease that decides which of several gateways writes.
//!
//! `tidegate_source::kubernetes` reads from the cluster. A write takes this path: the daemon passes each round to the
//! [`ClusterWriter`]; `writer` has [`plan`] compare it with the objects of the API server; `queue` releases the
//! writes at a bounded rate; `request` sends them; `record` writes the [`event`]s. `elect` requests the [`lease`].
//! `peer_poll` reads the status of the other gateways (`peers`, `sharing_peers`), `own_status` writes that of this one, and
//! `namesake` detects another gateway with the same name. [`ReleaseTracker`] withholds addresses that other gateways may still
//! serve. [`reasons`] are the names in all of these that programs match. [`crd`] defines the gateway's own kinds;
//! [`uninstall`] removes everything that was written.
//!
//! May depend on: `tidegate-model`, `tidegate-source` (the connection, and the state of the source),
//! `tidegate-policy` (the results to write), `tidegate-spec` (ownership of VIPs), `tidegate-structures` (the text of a
//! difference). May not: health checks, the dataplane.
//!
//! Invariant: forwarding never waits for anything here, whatever the API server does. Invariant: only the leader
//! writes Services and AddressPools. Every gateway writes its own `GatewayStatus`.

pub mod bucket;
mod counts;
pub mod crd;
mod drain_annotation;
mod elect;
pub mod event;
mod event_recorder;
mod failure_log;
pub mod layer2;
pub mod lease;
pub mod line_budget;
mod low_priority;
mod namesake;
mod own_status;
mod peer_poll;
mod peers;
pub mod plan;
mod queue;
pub mod reasons;
mod releases;
mod request;
mod sharing_peers;
mod turns;
pub mod uninstall;
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
