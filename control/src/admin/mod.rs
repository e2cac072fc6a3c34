//! The server of the admin socket.
//!
//! `tidegate-admin-api` defines the requests and the answers, the daemon implements [`AdminBackend`], and [`Server`]
//! connects the two. This module computes no answers.

mod server;
mod socket;
pub mod status_page;

#[cfg(test)]
mod tests;

pub use server::Server;

use std::future::Future;
use std::path::PathBuf;

use tidegate_admin_api::explain::{Explanation, Packet};
use tidegate_admin_api::{self as api, AdminError, FlowsQuery, WatchQuery};
use tidegate_policy::reconcile::DrainTarget;
use tidegate_spec::ownership::BootTime;

/// The answers of the daemon. Queries never wait for a worker, except `flows` and `watched`. Changes return when they
/// are decided, not when every worker has applied them.
pub trait AdminBackend: Send + Sync + 'static {
    /// `status`.
    fn status(&self) -> api::Status;
    /// `services`.
    fn services(&self) -> api::ServicesAnswer;
    /// `backends`.
    fn backends(&self) -> api::BackendsAnswer;
    /// `flows`: waits for workers, up to a time limit.
    ///
    /// # Errors
    /// If a requested name is not served.
    fn flows(&self, query: FlowsQuery) -> impl Future<Output = Result<api::FlowsAnswer, AdminError>> + Send;
    /// Deletes the flows that the query selects. Waits for workers, up to a time limit.
    ///
    /// # Errors
    /// If a requested name is not served.
    fn delete_flows(
        &self,
        query: FlowsQuery,
    ) -> impl Future<Output = Result<api::DeletedFlowsAnswer, AdminError>> + Send;
    /// `neighbors`.
    fn neighbors(&self) -> api::NeighborsAnswer;
    /// `routes`.
    fn routes(&self) -> api::RoutesAnswer;
    /// `drops`.
    fn drops(&self) -> api::DropsAnswer;
    /// `events`: the kept events that are selected.
    fn events(&self, selection: &api::EventsSelection) -> api::EventsAnswer {
        let _ = selection;
        api::EventsAnswer::default()
    }
    /// `pools`.
    fn pools(&self) -> api::PoolsAnswer;
    /// What each service port forwarded.
    fn traffic(&self) -> api::TrafficAnswer;
    /// Starts copying packets for `trace` and `capture`. This ends with [`Self::unwatch`], or some time after the last
    /// [`Self::watched`].
    ///
    /// # Errors
    /// If a name of the query is not known, or there are too many watches.
    fn watch(&self, query: WatchQuery) -> Result<api::WatchAnswer, AdminError>;
    /// The packets of a watch since the last call. Waits up to a second for the first one.
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
    /// Cancels a drain.
    ///
    /// # Errors
    /// If it was not drained.
    fn undrain(
        &self,
        target: DrainTarget,
    ) -> impl Future<Output = Result<api::DrainAnswer, AdminError>> + Send;
    /// Starts to drain the gateway itself. Does not wait for the end of the drain, which `status` shows.
    ///
    /// # Errors
    /// If the daemon is shutting down.
    fn drain_gateway(&self) -> impl Future<Output = Result<api::GatewayDrainAnswer, AdminError>> + Send;
    /// Cancels a drain of the gateway that [`Self::drain_gateway`] started.
    ///
    /// # Errors
    /// If there is no such drain, or something else also drains the gateway.
    fn undrain_gateway(&self) -> impl Future<Output = Result<api::GatewayDrainAnswer, AdminError>> + Send;
    /// Records a check of keepalived that started at this time.
    ///
    /// # Errors
    /// If the check fails, with the reason. keepalived then releases its groups.
    fn vrrp_check(&self, began: BootTime) -> Result<(), AdminError> {
        let _ = began;
        Err(AdminError::Unavailable("the gateway does not use VRRP".to_owned()))
    }
    /// Computes what a reload of this file would change; `None` means the file of the gateway.
    ///
    /// # Errors
    /// If another such computation is in progress.
    fn diff(
        &self,
        config: Option<PathBuf>,
    ) -> impl Future<Output = Result<api::DiffAnswer, AdminError>> + Send;
    /// Reloads the configuration and the objects, like SIGHUP.
    ///
    /// # Errors
    /// If it cannot be attempted. A refused configuration is an answer, not an error.
    fn reload(&self) -> impl Future<Output = Result<api::ReloadAnswer, AdminError>> + Send;
}
