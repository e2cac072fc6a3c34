//! A bounded HTTP/1.1 server for every listener of the daemon: admin socket, health ports, metrics.
//!
//! Header names use Go's capitalization (`X-Content-Type-Options`) because some clients compare bytes. Callers handle
//! the requests; this crate enforces the [`Limits`] that keep a client from exhausting the process.
//!
//! May depend on: nothing of Tidegate.
//!
//! Invariant: the number and the lifetime of connections are bounded, and connections end with their server. Idle
//! connections can't block other clients: a new connection replaces the one that has been idle the longest, and no
//! source waits because another source has more connections.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

/// The pause after `accept` fails (for example, without a free file descriptor). It prevents a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Clients send their first request within this time. An older idle connection may be closed if the listener is full.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum size of a request's head, and of the responses buffered for a client that doesn't read them. The head of
/// a probe has a few hundred bytes.
const BUFFER_MAX: usize = 16 * 1024;

/// How often a full listener checks whether a connection has exceeded [`FIRST_REQUEST_TIMEOUT`].
const ADMISSION_POLL: Duration = Duration::from_millis(50);

/// The maximum number of accepted connections that wait for capacity.
const WAITING_MAX: usize = 64;

/// The limits of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one source address; `None` for no limit per source.
    pub per_source_max: Option<usize>,
    /// The lifetime of a connection.
    pub lifetime: Lifetime,
}

/// The lifetime of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Serves any number of requests. The duration is the maximum time from the end of a request until the head of the
    /// next one is complete.
    KeepAlive(Duration),
    /// Serves one request, in at most this time.
    OneRequest(Duration),
}

impl Limits {
    /// For the commands that use the admin socket. The permissions of the socket file decide who may connect.
    pub const COMMANDS: Self = Self {
        connections_max: 256,
        per_source_max: None,
        lifetime: Lifetime::KeepAlive(Duration::from_secs(60)),
    };
    /// For probes of kubelets and load balancers: any host that reaches the node can connect. An idle connection
    /// outlives the longest probe interval, 5 minutes.
    pub const PROBES: Self = Self {
        connections_max: 256,
        per_source_max: Some(32),
        lifetime: Lifetime::KeepAlive(Duration::from_secs(310)),
    };
    /// For the status page, which a browser requests every few seconds over a few connections.
    pub const PAGES: Self = Self {
        connections_max: 64,
        per_source_max: Some(16),
        lifetime: Lifetime::KeepAlive(Duration::from_secs(30)),
    };
    /// For metrics scrapes, whose responses are large and seconds apart.
    pub const SCRAPES: Self = Self {
        connections_max: 16,
        per_source_max: None,
        lifetime: Lifetime::OneRequest(Duration::from_secs(30)),
    };
}

/// A response with its complete body.
pub type HttpResponse = Response<Full<Bytes>>;

/// A plain-text response.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

/// A response with any content type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> HttpResponse {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A TCP or Unix listener.
pub trait Accept: Send + 'static {
    /// An accepted connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Accepts the next connection. Returns it with the source address, which is `None` for a local socket.
    fn accept_stream(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn accept_stream(&self) -> io::Result<(Self::Stream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, peer)| (stream, Some(peer.ip().to_canonical())))
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn accept_stream(&self) -> io::Result<(Self::Stream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, _)| (stream, None))
    }
}

/// Serves connections until the future is dropped, which also closes them.
pub async fn serve<F, Fut>(listener: impl Accept, limits: Limits, handler: F)
where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HttpResponse> + Send + 'static,
{
    let connections_max = Arc::new(AtomicUsize::new(limits.connections_max));
    serve_up_to(connections_max, listener, limits, handler).await;
}

/// Like [`serve`], with a maximum number of connections that may change, for listeners that share the file descriptors
/// of the process. Values below 1 count as 1; [`Limits::connections_max`] remains the upper bound.
pub async fn serve_up_to<F, Fut>(
    connections_max: Arc<AtomicUsize>,
    listener: impl Accept,
    limits: Limits,
    handler: F,
) where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HttpResponse> + Send + 'static,
{
    let handler = Arc::new(handler);
    let mut connections = Connections::new(limits, connections_max);
    let mut waiting = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept_stream(), if waiting.len() < connections.waiting_max() => match accepted {
                Ok(new) => waiting.push_back(new),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            () = connections.ended(), if !connections.is_empty() => {}
            () = tokio::time::sleep(ADMISSION_POLL), if !waiting.is_empty() => {}
        }
        for (stream, source) in std::mem::take(&mut waiting) {
            match connections.admit(source) {
                Admission::Free => {
                    connections
                        .start(source, |idle| connection(stream, limits.lifetime, handler.clone(), idle));
                }
                Admission::Wait => waiting.push_back((stream, source)),
                Admission::Refused => {}
            }
        }
        if waiting.len() >= connections.waiting_max() {
            drop_oldest_of_busiest_source(&mut waiting);
        }
    }
}

/// If a source has several waiting connections, removes the oldest one of the source with the most.
fn drop_oldest_of_busiest_source<S>(waiting: &mut VecDeque<(S, Option<IpAddr>)>) {
    let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
    waiting.iter().for_each(|(_, source)| *counts.entry(*source).or_default() += 1);
    let fullest = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
    let oldest = fullest.and_then(|(of, _)| waiting.iter().position(|(_, source)| *source == of));
    oldest.and_then(|at| waiting.remove(at));
}

/// Whether a new connection may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// It may start now.
    Free,
    /// It waits until another connection ends or exceeds [`FIRST_REQUEST_TIMEOUT`].
    Wait,
    /// Its source has reached its limit, and all connections of the source are busy.
    Refused,
}

/// The connections of one listener.
struct Connections {
    limits: Limits,
    connections_max: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
    /// By age, oldest first.
    open: BTreeMap<u64, Open>,
    ages: HashMap<Id, u64>,
    by_source: HashMap<Option<IpAddr>, usize>,
    next_age: u64,
}

/// One connection.
struct Open {
    source: Option<IpAddr>,
    since: Instant,
    idle: Idle,
    task: AbortHandle,
}

/// When the last request of a connection ended, or else when the connection started; `None` during a request.
type Idle = Arc<Mutex<Option<Instant>>>;

fn set_idle(idle: &Idle, since: Option<Instant>) {
    *idle.lock().expect("nothing panics with the lock") = since;
}

impl Open {
    fn idle_since(&self) -> Option<Instant> {
        *self.idle.lock().expect("nothing panics with the lock")
    }
}

impl Connections {
    fn new(limits: Limits, connections_max: Arc<AtomicUsize>) -> Self {
        Self {
            limits,
            connections_max,
            tasks: JoinSet::new(),
            open: BTreeMap::new(),
            ages: HashMap::new(),
            by_source: HashMap::new(),
            next_age: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Decides on a new connection from `source`, and closes an idle one for it if necessary.
    ///
    /// A source at its limit loses its longest-idle connection; if all of them are busy, the new one is refused. If the
    /// listener is full, the source with the most connections loses its longest-idle one, provided it has at least two
    /// more than `source`. Otherwise the longest-idle connection that is older than [`FIRST_REQUEST_TIMEOUT`] is
    /// closed; until there is one, the new connection waits.
    fn admit(&mut self, source: Option<IpAddr>) -> Admission {
        if self.is_at_source_limit(source) {
            let Some(age) = self.longest_idle(|open| open.source == source) else {
                return Admission::Refused;
            };
            self.end(age);
        }
        while self.open.len() >= self.connections_max() {
            let fullest = self.by_source.iter().max_by_key(|(_, count)| **count);
            let fullest = fullest.filter(|(_, count)| **count > self.count_of(source) + 1).map(|(of, _)| *of);
            let unused = fullest.and_then(|fullest| self.longest_idle(|open| open.source == fullest));
            let unused =
                unused.or_else(|| self.longest_idle(|open| open.since.elapsed() >= FIRST_REQUEST_TIMEOUT));
            let Some(age) = unused else { return Admission::Wait };
            self.end(age);
        }
        Admission::Free
    }

    /// The longest-idle connection among those that `may_end` accepts.
    fn longest_idle(&self, may_end: impl Fn(&Open) -> bool) -> Option<u64> {
        let may_end = self.open.iter().filter(|(_, open)| may_end(open));
        let idle = may_end.filter_map(|(age, open)| Some((open.idle_since()?, *age)));
        idle.min().map(|(_, age)| age)
    }

    fn end(&mut self, age: u64) {
        if let Some(open) = self.open.get(&age) {
            open.task.abort();
        }
        self.remove(age);
    }

    /// The maximum number of waiting connections. It is small for listeners that share file descriptors.
    fn waiting_max(&self) -> usize {
        WAITING_MAX.min(4 * self.connections_max())
    }

    fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed).min(self.limits.connections_max).max(1)
    }

    fn is_at_source_limit(&self, source: Option<IpAddr>) -> bool {
        self.limits.per_source_max.is_some_and(|max| self.count_of(source) >= max)
    }

    fn count_of(&self, source: Option<IpAddr>) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    fn start<Fut>(&mut self, source: Option<IpAddr>, connection: impl FnOnce(Idle) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let since = Instant::now();
        let idle = Arc::new(Mutex::new(Some(since)));
        let task = self.tasks.spawn(connection(Arc::clone(&idle)));
        self.ages.insert(task.id(), self.next_age);
        self.open.insert(self.next_age, Open { source, since, idle, task });
        *self.by_source.entry(source).or_default() += 1;
        self.next_age += 1;
    }

    /// Waits until a connection has ended, and removes it.
    async fn ended(&mut self) {
        let id = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
            None => return,
        };
        // An aborted connection has already been removed.
        if let Some(age) = self.ages.remove(&id) {
            self.remove(age);
        }
    }

    fn remove(&mut self, age: u64) {
        let Some(open) = self.open.remove(&age) else { return };
        self.ages.remove(&open.task.id());
        if let Some(count) = self.by_source.get_mut(&open.source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&open.source);
            }
        }
    }
}

async fn connection<S, F, Fut>(stream: S, lifetime: Lifetime, handler: Arc<F>, idle: Idle)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HttpResponse> + Send + 'static,
{
    let service = service_fn(move |request| {
        let (handler, idle) = (handler.clone(), Arc::clone(&idle));
        async move {
            set_idle(&idle, None);
            let response = handler(request).await;
            set_idle(&idle, Some(Instant::now()));
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).title_case_headers(true).max_buf_size(BUFFER_MAX);
    // A connection error means a faulty or disconnected client and isn't reported.
    match lifetime {
        Lifetime::KeepAlive(idle_max) => {
            http.header_read_timeout(idle_max);
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
        Lifetime::OneRequest(within) => {
            http.header_read_timeout(within).keep_alive(false);
            let one = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(within, one).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const LIMITS: Limits = Limits {
        connections_max: 8,
        per_source_max: Some(4),
        lifetime: Lifetime::OneRequest(Duration::from_secs(600)),
    };

    async fn server() -> SocketAddr {
        server_with(LIMITS).await
    }

    async fn server_with(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(listener, limits, |_| std::future::ready(text(StatusCode::OK, "fine"))));
        address
    }

    /// Connects from a loopback address.
    async fn connect(server: SocketAddr, from: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::new(from.parse().expect("an address"), 0)).expect("a loopback address");
        socket.connect(server).await.expect("the listener accepts")
    }

    async fn request(mut stream: TcpStream) -> String {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.expect("the connection is open");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("an answer");
        response
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_block_no_other_source() {
        let server = server().await;
        let mut idle = Vec::new();
        for _ in 0..50 {
            idle.push(connect(server, "127.0.0.2").await);
        }
        for from in ["127.0.0.1", "127.0.0.2"] {
            assert!(request(connect(server, from).await).await.ends_with("fine"), "from {from}");
        }
        // The oldest connections were closed, not the newest.
        let mut byte = [0];
        assert_eq!(idle[0].read(&mut byte).await.expect("an end"), 0);
    }

    #[tokio::test]
    async fn idle_connections_of_many_sources_block_no_new_source() {
        let server = server().await;
        let mut idle = Vec::new();
        for n in 2..60 {
            idle.push(connect(server, &format!("127.0.0.{n}")).await);
        }
        assert!(request(connect(server, "127.0.0.1").await).await.ends_with("fine"));
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_delay_no_other_source() {
        for limits in [Limits::SCRAPES, Limits::PROBES] {
            let server = server_with(limits).await;
            let mut idle = Vec::new();
            for _ in 0..290 {
                let mut half_open = connect(server, "127.0.0.2").await;
                // The server may have refused it already.
                let _ = half_open.write_all(b"GET / HTTP/1.1\r\n").await;
                idle.push(half_open);
            }
            // Others are served while most of the idle connections still wait to be closed.
            let answers = async {
                for n in 0..32 {
                    let response = request(connect(server, &format!("127.0.0.{}", 3 + n)).await).await;
                    assert!(response.ends_with("fine"), "{n}: {response}");
                }
            };
            let most = FIRST_REQUEST_TIMEOUT * 4;
            assert!(tokio::time::timeout(most, answers).await.is_ok(), "{limits:?}");
        }
    }

    #[tokio::test]
    async fn a_lower_maximum_closes_the_oldest_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let server = listener.local_addr().expect("bound");
        let most = Arc::new(AtomicUsize::new(100));
        let serve = serve_up_to(Arc::clone(&most), listener, LIMITS, |_| {
            std::future::ready(text(StatusCode::OK, "fine"))
        });
        tokio::spawn(serve);
        let mut idle = Vec::new();
        for n in 2..10 {
            idle.push(connect(server, &format!("127.0.0.{n}")).await);
        }
        most.store(1, Ordering::Relaxed);
        assert!(request(connect(server, "127.0.0.1").await).await.ends_with("fine"));
        for mut idle in idle {
            assert_eq!(idle.read(&mut [0]).await.expect("an end"), 0);
        }
    }

    #[tokio::test]
    async fn a_one_request_connection_closes_after_its_response() {
        let server = server().await;
        let response = request_again(&mut connect(server, "127.0.0.1").await).await.expect("an answer");
        assert!(response.contains("Connection: close"), "{response}");
    }

    /// Sends a request on a kept-alive connection, and reads the response.
    async fn request_again(stream: &mut TcpStream) -> io::Result<String> {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut response = Vec::new();
        while !response.ends_with(b"fine") {
            response.push(stream.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&response).into_owned())
    }

    #[tokio::test]
    async fn probe_connections_are_kept_alive() {
        let server = server_with(Limits::PROBES).await;
        let mut stream = connect(server, "127.0.0.1").await;
        for _ in 0..3 {
            let response = request_again(&mut stream).await.expect("it stays open");
            assert!(!response.contains("Connection"), "{response}");
        }
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_first() {
        let server = server_with(Limits { connections_max: 3, ..Limits::PROBES }).await;
        let mut kept = Vec::new();
        for n in 2..5 {
            kept.push(connect(server, &format!("127.0.0.{n}")).await);
        }
        // The oldest one is in use.
        for at in [1, 2, 0] {
            request_again(&mut kept[at]).await.expect("it stays open");
        }
        request_again(&mut connect(server, "127.0.0.9").await).await.expect("it is accepted");
        request_again(&mut kept[0]).await.expect("it stays open");
        request_again(&mut kept[2]).await.expect("it stays open");
        assert_eq!(kept[1].read(&mut [0]).await.expect("an end"), 0);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_blocks_no_other_client() {
        let server = server_with(Limits { connections_max: 1, ..Limits::PROBES }).await;
        let (_reader, mut writer) = connect(server, "127.0.0.2").await.into_split();
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000);
        let flood = tokio::spawn(async move { while writer.write_all(&requests).await.is_ok() {} });
        request_again(&mut connect(server, "127.0.0.1").await).await.expect("it is accepted");
        flood.await.expect("the connection was closed");
    }

    #[tokio::test]
    async fn a_connection_that_trickles_bytes_times_out() {
        let second = Duration::from_secs(1);
        for lifetime in [Lifetime::OneRequest(second), Lifetime::KeepAlive(second)] {
            let server = server_with(Limits { lifetime, ..Limits::PROBES }).await;
            let (mut reader, mut writer) = connect(server, "127.0.0.1").await.into_split();
            let trickle = tokio::spawn(async move {
                // The header never ends, so each byte is accepted.
                while writer.write_all(b"G").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
            let mut response = Vec::new();
            let end = tokio::time::timeout(Duration::from_secs(60), reader.read_to_end(&mut response)).await;
            assert!(end.is_ok(), "{lifetime:?}: still open after a minute");
            trickle.abort();
        }
    }
}
