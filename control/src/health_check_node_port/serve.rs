//! HTTP/1.1 on a listener: accept, bound, answer. Used by every server of the daemon.
//!
//! Header names go out as Go writes them (`X-Content-Type-Options`): some clients compare bytes. A connection
//! that sends no request for [`IDLE_MAX`] is closed, and no listener has more than [`CONNECTIONS_MAX`].

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use super::answer::Answer;

/// Connections of one listener at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Time for a request's head to arrive, from the end of the one before.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// After an error of accept (no file descriptor), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener of either kind.
pub(crate) trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn accept_stream(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn accept_stream(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn accept_stream(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves until it is dropped; its connections end with it.
pub(crate) async fn serve<F, Fut>(listener: impl Accept, handler: F)
where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept_stream() => match accepted {
                Ok(stream) => {
                    connections.spawn(connection(stream, handler.clone()));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<S, F, Fut>(stream: S, handler: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(handler(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX).title_case_headers(true);
    // The client's fault or its leaving: nothing to tell anyone.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
