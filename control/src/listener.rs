//! A TCP listener of the daemon with bounded connections ([`Limits`]).

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use hyper::Request;
use hyper::body::Incoming;
use tidegate_http::{HttpResponse, Limits};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};

/// A running listener. Dropping it ends it and all of its connections.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Listener {
    /// Listens, and answers requests with the result of `handler`. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start<F, Fut>(listen: SocketAddr, limits: Limits, handler: F) -> io::Result<Self>
    where
        F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HttpResponse> + Send + 'static,
    {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(tidegate_http::serve(listener, limits, handler));
        Ok(Self { address, task })
    }

    /// The bound address, with the actual port if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server task, to check whether it has ended.
    #[must_use]
    pub fn task(&self) -> AbortHandle {
        self.task.abort_handle()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
