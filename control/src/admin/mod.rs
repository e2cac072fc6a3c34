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
//! | `GET /v1/metrics` | Prometheus text |
//! | `GET /v1/explain?proto=tcp&src=A:P&dst=VIP:P` | [`Explanation`](tidegate_policy::explain::Explanation) |
//! | `POST /v1/drain?target=T`, `POST /v1/undrain?target=T` | [`api::DrainAnswer`] |
//! | `POST /v1/reload` | [`api::ReloadAnswer`] |
//!
//! Invariant: an invalid request gets a 4xx answer with an [`api::ErrorAnswer`] that says what is accepted.

pub mod api;
mod client;
mod error;
pub mod flows_query;
mod query;
mod server;
mod socket;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientError};
pub use error::AdminError;
pub use server::Server;

use std::future::Future;

use tidegate_policy::explain::{Explanation, Packet};
use tidegate_policy::reconcile::DrainTarget;

use flows_query::FlowsQuery;

/// What the daemon answers. Reading never waits for a worker; the three changes return when they are decided,
/// not when every worker has them.
pub trait AdminBackend: Send + Sync + 'static {
    /// `status`.
    fn status(&self) -> api::Status;
    /// `services`.
    fn services(&self) -> api::ServicesAnswer;
    /// `backends`.
    fn backends(&self) -> api::BackendsAnswer;
    /// `flows`. The one question for which workers are waited for, with a bound.
    ///
    /// # Errors
    /// When what is asked for by name is not served.
    fn flows(&self, query: FlowsQuery) -> impl Future<Output = Result<api::FlowsAnswer, AdminError>> + Send;
    /// `drops`.
    fn drops(&self) -> api::DropsAnswer;
    /// `pools`.
    fn pools(&self) -> api::PoolsAnswer;
    /// The text of `/metrics`.
    fn metrics(&self) -> String;
    /// `explain`.
    ///
    /// # Errors
    /// When there is no snapshot yet.
    fn explain(&self, packet: &Packet) -> Result<Explanation, AdminError>;
    /// Takes a backend or a node out.
    ///
    /// # Errors
    /// When nothing is known by that name.
    fn drain(&self, target: DrainTarget)
    -> impl Future<Output = Result<api::DrainAnswer, AdminError>> + Send;
    /// Puts it back.
    ///
    /// # Errors
    /// When it was not drained.
    fn undrain(
        &self,
        target: DrainTarget,
    ) -> impl Future<Output = Result<api::DrainAnswer, AdminError>> + Send;
    /// Reads configuration and objects again, as SIGHUP does.
    ///
    /// # Errors
    /// When it cannot be tried; a configuration that is refused is an answer, not an error.
    fn reload(&self) -> impl Future<Output = Result<api::ReloadAnswer, AdminError>> + Send;
}
