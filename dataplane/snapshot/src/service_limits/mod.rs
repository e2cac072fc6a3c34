//! Limits of Services: connections, new connections per second, and bandwidth.
//!
//! A limit applies to the whole Service: all its ports and addresses, over all workers. The state that workers share
//! is in [`LimitedService`], which snapshots hand on from one to the next. A worker does not read it for each packet:
//!
//! - Bandwidth and rate: a worker takes what the rate gives in a millisecond from the shared bucket at once, and spends
//!   it alone ([`bucket`]). It does not matter which worker receives how much, so no worker has a fixed share. Together
//!   the workers never spend more than the bucket gave. A worker may hold up to a millisecond's worth unused.
//! - Connections: each worker knows its own flows from its flow tables, and adds the difference since the last time to
//!   a shared count. A new flow is counted before it begins, so workers that admit flows at the same moment never exceed
//!   the limit. Flows that end are subtracted when the worker next admits a flow of the Service, or reports its counts,
//!   which it does several times a second.
//!
//! Packets of known flows never count against the limits of new flows, and neither do segments in the middle of a TCP
//! connection that this gateway has not seen: another gateway has admitted it.
//!
//! Invariant: nothing here allocates or waits on a worker. A Service without limits costs one predicted branch.

pub(crate) mod bucket;
mod limited_service;
mod worker_limits;

pub(crate) use limited_service::LimitedServices;
pub use limited_service::{LimitDrop, LimitFlags, LimitedService};
pub use worker_limits::WorkerLimits;
