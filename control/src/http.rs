//! HTTP/1.1 on a listener: accept, bound, answer. Used by every server of the daemon: admin socket, health ports, metrics.
//!
//! Header names go out as Go writes them (`X-Content-Type-Options`): some clients compare bytes. What is asked and
//! answered is the callers' business; here are the [`Limits`] that keep one of them from taking the process down.
//!
//! Invariant: connections are bounded in number and in idle time, and end with their server.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

/// After an error of accept (no file descriptor), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one listener spends on its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Connections at once; more wait in the kernel's queue.
    pub(crate) connections_max: usize,
    /// How long each lives.
    pub(crate) life: Life,
}

/// How long a connection lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// For any number of requests; this is the time for a request's head to arrive, from the end of the one before.
    KeptAlive(Duration),
    /// For one request, and all of it takes no longer than this.
    OneRequest(Duration),
}

impl Limits {
    /// For clients that ask again and again: probes, the commands.
    pub(crate) const MANY_REQUESTS: Self =
        Self { connections_max: 256, life: Life::KeptAlive(Duration::from_secs(60)) };
    /// For scrapes, which are seconds apart and large.
    pub(crate) const SCRAPES: Self =
        Self { connections_max: 16, life: Life::OneRequest(Duration::from_secs(30)) };
}

/// An answer with its whole body.
pub(crate) type Answer = Response<Full<Bytes>>;

/// A plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

/// An answer of any type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

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
pub(crate) async fn serve<F, Fut>(listener: impl Accept, limits: Limits, handler: F)
where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= limits.connections_max {
            connections.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept_stream() => match accepted {
                Ok(stream) => {
                    connections.spawn(connection(stream, limits.life, handler.clone()));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection<S, F, Fut>(stream: S, life: Life, handler: Arc<F>)
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
    http.timer(TokioTimer::new()).title_case_headers(true);
    // What ends a connection is the client's fault or its leaving: nothing to tell anyone.
    match life {
        Life::KeptAlive(idle_max) => {
            http.header_read_timeout(idle_max);
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
        Life::OneRequest(within) => {
            http.header_read_timeout(within).keep_alive(false);
            let one = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(within, one).await;
        }
    }
}
