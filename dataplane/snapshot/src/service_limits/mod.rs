//! Limits of Services: connections, new connections per second, and bandwidth.
//!
//! A limit applies to the whole Service: all its ports and addresses, over all workers. Workers share a
//! [`LimitedService`], which each snapshot takes over from the previous one. They don't access it for each packet:
//!
//! - Bandwidth and rate: a worker takes the tokens of one millisecond at a time from the shared token bucket and spends
//!   them locally ([`bucket`]). So no worker has a fixed share, and together the workers never exceed the rate. At most
//!   the tokens of one millisecond stay unused in each worker.
//! - Connections: each worker counts its own flows in its flow tables, and adds the difference since the last update to
//!   a shared count. A new flow is counted before it is created, so workers that admit flows concurrently never exceed
//!   the limit. Ended flows are subtracted when the worker next admits a flow of the Service or reports its counts,
//!   several times a second.
//!
//! The limits on new flows apply neither to packets of known flows nor to segments in the middle of an unknown TCP
//! connection, which another gateway has admitted.
//!
//! Invariant: nothing here allocates or blocks a worker. A Service without limits costs one predicted branch.

pub(crate) mod bucket;
mod limited_service;
mod worker_limits;

pub(crate) use limited_service::LimitedServices;
pub use limited_service::{LimitDrop, LimitFlags, LimitedService};
pub use worker_limits::WorkerLimits;
