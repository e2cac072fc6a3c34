//! The server of the admin socket.
//!
//! `tidegate-admin-api` has the requests and the types of every answer, the daemon implements [`AdminBackend`], and
//! [`Server`] connects the two. This module does not compute answers.

mod server;
mod socket;

#[cfg(test)]
mod tests;

pub use server::Server;

use std::future::Future;

use tidegate_admin_api::explain::{Explanation, Packet};
use tidegate_admin_api::{self as api, AdminError, FlowsQuery, WatchQuery};
use tidegate_policy::reconcile::DrainTarget;
use tidegate_spec::ownership::BootTime;

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
