//! The admin socket: the commands use it to talk to the daemon.
//!
//! It serves HTTP/1.1 with JSON over a Unix socket that only its owner can open, so `curl --unix-socket` works too.
//! [`api`] has the types of every answer, the daemon implements [`AdminBackend`], [`Server`] connects the two, and
//! the commands use [`Client`]. This module does not compute or format answers.
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /v1/status`, `services`, `backends`, `drops`, `pools` | [`api`] |
//! | `GET /v1/flows?service=S&backend=B&client=A&limit=N` | [`api::FlowsAnswer`] |
//! | `GET /v1/traffic` | [`api::TrafficAnswer`] |
//! | `POST /v1/watch?host=A&service=S&...` | [`api::WatchAnswer`]; [`watch_query`] has the keys |
//! | `GET /v1/watched?id=N` | [`api::WatchedAnswer`] |
//! | `POST /v1/unwatch?id=N` | [`api::UnwatchAnswer`] |
//! | `GET /v1/metrics` | Prometheus text |
//! | `GET /v1/explain?proto=tcp&src=A:P&dst=VIP:P` | [`Explanation`](tidegate_policy::explain::Explanation) |
//! | `POST /v1/drain?target=T`, `POST /v1/undrain?target=T` | [`api::DrainAnswer`] |
//! | `POST /v1/drain?gateway=true`, `POST /v1/undrain?gateway=true` | [`api::GatewayDrainAnswer`] |
//! | `POST /v1/reload` | [`api::ReloadAnswer`] |
//! | `POST /v1/vrrp-check?began=NANOSECONDS` | `true`, or 503 with the reason |
//!
//! A `POST` may have `before=NANOSECONDS`, a time of `CLOCK_BOOTTIME` from which it is refused: its sender no longer waits.
//! The commands send it, so that a gateway that hung makes no change that its operator was told had failed.
//!
//! Invariant: an invalid request gets a 4xx answer with an [`api::ErrorAnswer`] that says what is accepted.

mod announce_api;
pub mod api;
mod client;
mod error;
pub mod flows_query;
mod query;
mod server;
mod socket;
pub mod watch_query;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientError};
pub use error::AdminError;
pub use server::Server;

use std::future::Future;

use tidegate_core::ownership::BootTime;
use tidegate_policy::explain::{Explanation, Packet};
use tidegate_policy::reconcile::DrainTarget;

use flows_query::FlowsQuery;
use watch_query::WatchQuery;

/// The answers of the daemon. Queries never wait for a worker, except for `flows` and `watched`. The changes return when they
/// are decided, not when every worker has applied them.
pub trait AdminBackend: Send + Sync + 'static {
    /// `status`.
    fn status(&self) -> api::Status;
    /// `services`.
    fn services(&self) -> api::ServicesAnswer;
    /// `backends`.
    fn backends(&self) -> api::BackendsAnswer;
    /// `flows`: waits for workers, with a time limit.
    ///
    /// # Errors
    /// If a requested name is not served.
    fn flows(&self, query: FlowsQuery) -> impl Future<Output = Result<api::FlowsAnswer, AdminError>> + Send;
    /// `drops`.
    fn drops(&self) -> api::DropsAnswer;
    /// `pools`.
    fn pools(&self) -> api::PoolsAnswer;
    /// What each service port forwarded.
    fn traffic(&self) -> api::TrafficAnswer;
    /// Begins to copy packets, for `trace` and `capture`. It ends by [`Self::unwatch`], or some time after the last
    /// [`Self::watched`].
    ///
    /// # Errors
    /// If a name of the query is not known, or there are too many watches.
    fn watch(&self, query: WatchQuery) -> Result<api::WatchAnswer, AdminError>;
    /// The packets of a watch since the last call. Waits up to a second for one.
    ///
    /// # Errors
    /// If there is no such watch.
    fn watched(&self, id: u64) -> impl Future<Output = Result<api::WatchedAnswer, AdminError>> + Send;
    /// Ends a watch.
    ///
    /// # Errors
    /// If there is no such watch.
    fn unwatch(&self, id: u64) -> Result<api::UnwatchAnswer, AdminError>;
    /// The text of `/metrics`.
    fn metrics(&self) -> String;
    /// `explain`.
    ///
    /// # Errors
    /// If there is no snapshot yet.
    fn explain(&self, packet: &Packet) -> Result<Explanation, AdminError>;
    /// Drains a backend or a node.
    ///
    /// # Errors
    /// If no backend or node has that name.
    fn drain(&self, target: DrainTarget)
    -> impl Future<Output = Result<api::DrainAnswer, AdminError>> + Send;
    /// Undrains it.
    ///
    /// # Errors
    /// If it was not drained.
    fn undrain(
        &self,
        target: DrainTarget,
    ) -> impl Future<Output = Result<api::DrainAnswer, AdminError>> + Send;
    /// Begins to drain the gateway itself. It does not wait until the gateway is drained: `status` says when.
    ///
    /// # Errors
    /// If the daemon is shutting down.
    fn drain_gateway(&self) -> impl Future<Output = Result<api::GatewayDrainAnswer, AdminError>> + Send;
    /// Ends a drain of the gateway that [`Self::drain_gateway`] began.
    ///
    /// # Errors
    /// If there is none, or something else drains the gateway too.
    fn undrain_gateway(&self) -> impl Future<Output = Result<api::GatewayDrainAnswer, AdminError>> + Send;
    /// Applies a check of keepalived that began at this time.
    ///
    /// # Errors
    /// Why the check fails: keepalived then gives up its groups.
    fn vrrp_check(&self, began: BootTime) -> Result<(), AdminError> {
        let _ = began;
        Err(AdminError::Unavailable("the gateway does not use VRRP".to_owned()))
    }
    /// Reads configuration and objects again, as SIGHUP does.
    ///
    /// # Errors
    /// If it cannot be tried. A refused configuration is an answer, not an error.
    fn reload(&self) -> impl Future<Output = Result<api::ReloadAnswer, AdminError>> + Send;
}
