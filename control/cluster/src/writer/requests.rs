//! Sends the requests of the writer in the background. Each result is returned as a [`Done`].
//!
//! Invariant: the leadership is checked directly before every request that only a leader may send.

use std::sync::Arc;
use std::time::Duration;

use tidegate_source::kubernetes::Connector;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::crd::{GatewayStatus, GatewayStatusStatus};
use crate::elect::Leadership;
use crate::own_status::{self, Overwrites, Written};
use crate::peer_poll;
use crate::peers::{Gone, Silent};
use crate::plan::Write;
use crate::queue::Target;
use crate::request::{self, RequestError, with_client};

/// A request that ended.
pub(super) enum Done {
    /// A planned write, with a description of its content for display.
    Write(Target, String, Result<(), RequestError>),
    Gateways(Poll, Result<Vec<GatewayStatus>, RequestError>),
    Forgotten(Gone, Result<(), RequestError>),
    /// The conditions of a gateway without a heartbeat were set to `Unknown`.
    Marked(String, Result<(), RequestError>),
    /// The duplicate name was reported to the gateway with our name.
    DuplicateNameReported(Result<(), RequestError>),
    /// The response to the request of the term with this number.
    Term(u64, Result<u64, RequestError>),
    Status(Box<GatewayStatusStatus>, Written),
    /// The last status before this gateway stops writing.
    LastStatus(Written),
}

/// The state of this gateway when a poll of the others started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Poll {
    /// The version of the Services that this gateway had applied.
    pub(super) own_applied: u64,
    /// Whether its own status was written.
    pub(super) is_written: bool,
}

/// The requests in progress.
pub(super) struct Requests {
    connector: Arc<Connector>,
    /// The name of this gateway.
    name: String,
    leadership: watch::Receiver<Leadership>,
    /// Requests that only the leader sends.
    writes: JoinSet<Done>,
    /// All other requests.
    others: JoinSet<Done>,
}

impl Requests {
    pub(super) fn new(
        connector: Arc<Connector>,
        name: String,
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        Self { connector, name, leadership, writes: JoinSet::new(), others: JoinSet::new() }
    }

    /// The result of the next request that ends. Waits forever if none is in progress. Cancel safe: no result is lost.
    pub(super) async fn next(&mut self) -> Result<Done, JoinError> {
        tokio::select! {
            biased;
            Some(done) = self.writes.join_next() => done,
            Some(done) = self.others.join_next() => done,
            else => std::future::pending().await,
        }
    }

    /// Aborts all requests except those that only the leader sends, and waits for these. Returns whether all of them
    /// ended within `wait_max`.
    pub(super) async fn end(&mut self, wait_max: Duration) -> bool {
        self.others.abort_all();
        let ended = async { while self.writes.join_next().await.is_some() {} };
        timeout(wait_max, ended).await.is_ok()
    }

    /// Sends a planned write.
    pub(super) fn write(&mut self, target: Target, write: Write) {
        let name = match &write {
            Write::Finalizer { service, .. } => format!("the finalizer of Service {service}"),
            Write::ServiceStatus { service, .. } => format!("the status of Service {service}"),
            Write::PoolStatus { pool, .. } => format!("the status of AddressPool {pool}"),
            Write::PoolFinalizer { pool, .. } => format!("the finalizer of AddressPool {pool}"),
        };
        let (connector, leadership) = (Arc::clone(&self.connector), self.leadership.clone());
        self.writes.spawn(async move {
            let result = with_client(&connector, |client| async {
                // The leadership may have ended while the client was being created.
                if !leadership.borrow().leads(Instant::now()) {
                    return Err(RequestError::Timeout);
                }
                request::send(client, write).await
            });
            Done::Write(target, name, result.await)
        });
    }

    /// Sets the conditions of a gateway without a heartbeat to `Unknown`.
    pub(super) fn mark(&mut self, silent: Silent) {
        let (connector, leadership) = (Arc::clone(&self.connector), self.leadership.clone());
        self.writes.spawn(async move {
            let name = silent.name.clone();
            if !leadership.borrow().leads(Instant::now()) {
                return Done::Marked(name, Err(RequestError::Timeout));
            }
            Done::Marked(name, peer_poll::mark(&connector, silent).await)
        });
    }

    /// Deletes the object of a gateway that is gone for good.
    pub(super) fn forget(&mut self, gone: Gone) {
        let (connector, leadership) = (Arc::clone(&self.connector), self.leadership.clone());
        self.writes.spawn(async move {
            if !leadership.borrow().leads(Instant::now()) {
                return Done::Forgotten(gone, Err(RequestError::Timeout));
            }
            let result = peer_poll::forget(&connector, gone.clone()).await;
            Done::Forgotten(gone, result)
        });
    }

    /// Lists the gateways.
    pub(super) fn gateways(&mut self, poll: Poll) {
        let connector = Arc::clone(&self.connector);
        self.others.spawn(async move { Done::Gateways(poll, peer_poll::gateways(&connector).await) });
    }

    /// Informs the gateway with our name of the conflict. `who` describes this gateway.
    pub(super) fn report_duplicate_name(&mut self, who: String) {
        let (connector, name) = (Arc::clone(&self.connector), self.name.clone());
        self.others.spawn(async move {
            Done::DuplicateNameReported(peer_poll::report_duplicate_name(&connector, &name, &who).await)
        });
    }

    /// Requests the version of the Services with which the term with this number starts.
    pub(super) fn term(&mut self, number: u64) {
        let connector = Arc::clone(&self.connector);
        self.others.spawn(async move { Done::Term(number, peer_poll::services_version(&connector).await) });
    }

    /// Writes the status of this gateway.
    pub(super) fn status(&mut self, over: Overwrites, mut status: GatewayStatusStatus) {
        let (connector, name) = (Arc::clone(&self.connector), self.name.clone());
        self.others.spawn(async move {
            let result = own_status::write(&connector, &name, over, &mut status).await;
            Done::Status(Box::new(status), result)
        });
    }

    /// Writes the last status before this gateway stops writing.
    pub(super) fn write_last_status(&mut self, mut status: GatewayStatusStatus) {
        let (connector, name) = (Arc::clone(&self.connector), self.name.clone());
        self.others.spawn(async move {
            Done::LastStatus(own_status::write(&connector, &name, Overwrites::Any, &mut status).await)
        });
    }

    /// Writes the status with which this gateway shuts down, and waits for the response.
    pub(super) async fn write_final_status(&self, mut status: GatewayStatusStatus) -> Written {
        own_status::write(&self.connector, &self.name, Overwrites::Any, &mut status).await
    }
}
