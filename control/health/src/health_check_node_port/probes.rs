//! The server of `/healthz`, `/livez`, `/readyz` and `/watchdog`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_http::{Limits, serve};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};

use super::clients::{Admitting, Clients};
use super::{HealthReport, http_answer};

/// Serves the probes until it is dropped.
#[derive(Debug)]
pub struct Probes {
    local_addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Probes {
    /// Binds `admin.healthz` and serves these clients. `report` is called for each request.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(
        address: SocketAddr,
        clients: Clients,
        report: impl Fn() -> HealthReport + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local_addr = listener.local_addr()?;
        let report = Arc::new(report);
        let task = tokio::spawn(serve(Admitting { listener, clients }, Limits::PROBES, move |request| {
            let answer = http_answer::probe(request.uri().path(), &report());
            std::future::ready(answer)
        }));
        Ok(Self { local_addr, task })
    }

    /// The bound address, with the port that was chosen for port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The server task, to check whether it has ended.
    #[must_use]
    pub fn task(&self) -> AbortHandle {
        self.task.abort_handle()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.task.abort();
    }
}
