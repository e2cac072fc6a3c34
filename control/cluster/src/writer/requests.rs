//! Sends the requests of the writer in the background, each with the function that handles its result.
//!
//! Invariant: the leadership is checked directly before every request that only a leader may send.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tidegate_source::kubernetes::Connector;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::elect::Leadership;
use crate::request::{RequestError, with_client};

/// Passes the result of a request that ended to the writer, a `W`.
pub(super) type Handle<W> = Box<dyn FnOnce(&mut W, Instant) + Send>;

/// The requests in progress.
pub(super) struct Requests<W> {
    pub(super) connector: Arc<Connector>,
    leadership: watch::Receiver<Leadership>,
    /// Requests that only the leader sends.
    writes: JoinSet<Handle<W>>,
    /// All other requests.
    others: JoinSet<Handle<W>>,
}

impl<W: 'static> Requests<W> {
    pub(super) fn new(connector: Arc<Connector>, leadership: watch::Receiver<Leadership>) -> Self {
        Self { connector, leadership, writes: JoinSet::new(), others: JoinSet::new() }
    }

    /// The next request that ends. Waits forever if none is in progress. Cancel safe: no result is lost.
    pub(super) async fn next(&mut self) -> Result<Handle<W>, JoinError> {
        tokio::select! {
            biased;
            Some(ended) = self.writes.join_next() => ended,
            Some(ended) = self.others.join_next() => ended,
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

    /// Sends a request that any gateway may send.
    pub(super) fn send<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        request: impl FnOnce(Arc<Connector>) -> F,
        handle: impl FnOnce(&mut W, T, Instant) + Send + 'static,
    ) {
        self.others.spawn(handled(request(Arc::clone(&self.connector)), handle));
    }

    /// Sends a request that only the leader may send.
    pub(super) fn send_as_leader<F: Future<Output = Result<(), RequestError>> + Send + 'static>(
        &mut self,
        request: impl FnOnce(Client) -> F + Send + 'static,
        handle: impl FnOnce(&mut W, Result<(), RequestError>, Instant) + Send + 'static,
    ) {
        let (connector, leadership) = (Arc::clone(&self.connector), self.leadership.clone());
        let request = async move {
            with_client(&connector, |client| async {
                // The leadership may have ended while the client was being created.
                if !leadership.borrow().leads(Instant::now()) {
                    return Err(RequestError::Timeout);
                }
                request(client).await
            })
            .await
        };
        self.writes.spawn(handled(request, handle));
    }
}

async fn handled<W, T: Send + 'static>(
    request: impl Future<Output = T>,
    handle: impl FnOnce(&mut W, T, Instant) + Send + 'static,
) -> Handle<W> {
    let result = request.await;
    Box::new(move |writer: &mut W, now| handle(writer, result, now))
}
