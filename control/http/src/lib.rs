//! A bounded HTTP/1.1 server for every listener of the daemon: admin socket, health ports, metrics.
//!
//! Header names are written as Go writes them (`X-Content-Type-Options`), because some clients compare bytes. The
//! callers decide on requests and answers; this crate enforces the [`Limits`] that keep a client from exhausting the
//! process.
//!
//! May depend on: nothing of Tidegate.
//!
//! Invariant: connections are bounded in number and in time, and end with their server. A client that only holds
//! connections open cannot block others: a new connection replaces the one that was unused for longest, and no source waits
//! because of one that has more connections than it.

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

/// The pause after an error of accept (no file descriptor), which prevents a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time in which a genuine client sends its request.
const REQUEST_BEGINS: Duration = Duration::from_millis(500);

/// The maximum size of a request's head, and of the answers that wait for a client that does not read them. Heads of
/// probes have a few hundred bytes.
const BUFFER_MAX: usize = 16 * 1024;

/// How often a full listener checks whether a connection has exceeded that time.
const ROOM_POLL: Duration = Duration::from_millis(50);

/// The maximum number of accepted connections that wait until there is room for them.
const WAITING_MAX: usize = 64;

/// The limits of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one source address; `None` if one address may have all.
    pub per_source_max: Option<usize>,
    /// The lifetime of a connection.
    pub life: Life,
}

/// The lifetime of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It serves any number of requests. The duration is the maximum time for a request's head to arrive, from the end
    /// of the previous request.
    KeptAlive(Duration),
    /// It serves one request, and may take no longer than this in total.
    OneRequest(Duration),
}

impl Limits {
    /// For the commands, which use the admin socket: the permissions of its file decide who may connect.
    pub const COMMANDS: Self =
        Self { connections_max: 256, per_source_max: None, life: Life::KeptAlive(Duration::from_secs(60)) };
    /// For probes of kubelets and load balancers: any host that reaches the node can connect. Connections are kept for
    /// longer than the longest interval of such probes, 5 minutes.
    pub const PROBES: Self = Self {
        connections_max: 256,
        per_source_max: Some(32),
        life: Life::KeptAlive(Duration::from_secs(310)),
    };
    /// For scrapes, which are large and seconds apart.
    pub const SCRAPES: Self =
        Self { connections_max: 16, per_source_max: None, life: Life::OneRequest(Duration::from_secs(30)) };
}

/// An answer with its complete body.
pub type Answer = Response<Full<Bytes>>;

/// A plain-text answer.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

/// An answer with any content type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// A listener of either kind.
pub trait Accept: Send + 'static {
    /// A connection.
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

/// Serves until it is dropped, which also ends its connections.
pub async fn serve<F, Fut>(listener: impl Accept, limits: Limits, handler: F)
where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let connections_max = Arc::new(AtomicUsize::new(limits.connections_max));
    serve_up_to(connections_max, listener, limits, handler).await;
}

/// Like [`serve`], with a maximum number of connections that may change, for listeners that share the descriptors of the
/// process. It counts as at least 1, and at most that of the limits.
pub async fn serve_up_to<F, Fut>(
    connections_max: Arc<AtomicUsize>,
    listener: impl Accept,
    limits: Limits,
    handler: F,
) where
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
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
            () = tokio::time::sleep(ROOM_POLL), if !waiting.is_empty() => {}
        }
        for (stream, source) in std::mem::take(&mut waiting) {
            match connections.room_for(source) {
                Room::Free => {
                    connections.begin(source, |idle| connection(stream, limits.life, handler.clone(), idle));
                }
                Room::Later => waiting.push_back((stream, source)),
                Room::None => {}
            }
        }
        if waiting.len() >= connections.waiting_max() {
            thin_out(&mut waiting);
        }
    }
}

/// Removes the oldest connection of the source that has most of them, if it has several.
fn thin_out<S>(waiting: &mut VecDeque<(S, Option<IpAddr>)>) {
    let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
    waiting.iter().for_each(|(_, source)| *counts.entry(*source).or_default() += 1);
    let fullest = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
    let oldest = fullest.and_then(|(of, _)| waiting.iter().position(|(_, source)| *source == of));
    oldest.and_then(|at| waiting.remove(at));
}

/// Whether there is room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// There is.
    Free,
    /// Not before another one ends, or has had its time to send a request.
    Later,
    /// The source has its share.
    None,
}

/// The connections of one listener.
struct Connections {
    limits: Limits,
    connections_max: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
    /// By age, the oldest first.
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

/// Since when a connection has had no request in progress; `None` while it has one.
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

    /// Makes room for one more connection from `source`.
    ///
    /// A source that has reached its share loses its connection that was unused for longest, and gets no further one while
    /// all of them have a request in progress. If the listener is full, such a connection of the source that has most of them
    /// ends, if it has two more than the new one's. Otherwise the connection of any source that was unused for longest ends,
    /// once it has had [`REQUEST_BEGINS`] to send a request; until there is one, the new connection waits.
    fn room_for(&mut self, source: Option<IpAddr>) -> Room {
        if self.has_its_share(source) {
            let Some(age) = self.least_used(|open| open.source == source) else { return Room::None };
            self.end(age);
        }
        while self.open.len() >= self.connections_max() {
            let fullest = self.by_source.iter().max_by_key(|(_, count)| **count);
            let fullest = fullest.filter(|(_, count)| **count > self.count_of(source) + 1).map(|(of, _)| *of);
            let unused = fullest.and_then(|fullest| self.least_used(|open| open.source == fullest));
            let unused = unused.or_else(|| self.least_used(|open| open.since.elapsed() >= REQUEST_BEGINS));
            let Some(age) = unused else { return Room::Later };
            self.end(age);
        }
        Room::Free
    }

    /// The connection that was unused for longest of those that may end, if one has no request in progress.
    fn least_used(&self, may_end: impl Fn(&Open) -> bool) -> Option<u64> {
        let may_end = self.open.iter().filter(|(_, open)| may_end(open));
        let idle = may_end.filter_map(|(age, open)| Some((open.idle_since()?, *age)));
        idle.min().map(|(_, age)| age)
    }

    fn end(&mut self, age: u64) {
        if let Some(open) = self.open.get(&age) {
            open.task.abort();
        }
        self.forget(age);
    }

    /// The number of connections that may wait. Listeners that share descriptors have few.
    fn waiting_max(&self) -> usize {
        WAITING_MAX.min(4 * self.connections_max())
    }

    fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed).min(self.limits.connections_max).max(1)
    }

    fn has_its_share(&self, source: Option<IpAddr>) -> bool {
        self.limits.per_source_max.is_some_and(|max| self.count_of(source) >= max)
    }

    fn count_of(&self, source: Option<IpAddr>) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    fn begin<Fut>(&mut self, source: Option<IpAddr>, connection: impl FnOnce(Idle) -> Fut)
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
        // One that was ended is not known any more.
        if let Some(age) = self.ages.remove(&id) {
            self.forget(age);
        }
    }

    fn forget(&mut self, age: u64) {
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

async fn connection<S, F, Fut>(stream: S, life: Life, handler: Arc<F>, idle: Idle)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(move |request| {
        let (handler, idle) = (handler.clone(), Arc::clone(&idle));
        async move {
            set_idle(&idle, None);
            let answer = handler(request).await;
            set_idle(&idle, Some(Instant::now()));
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).title_case_headers(true).max_buf_size(BUFFER_MAX);
    // An error of a connection is the client's fault or its disconnection, and is not reported.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const LIMITS: Limits = Limits {
        connections_max: 8,
        per_source_max: Some(4),
        life: Life::OneRequest(Duration::from_secs(600)),
    };

    async fn server() -> SocketAddr {
        server_with(LIMITS).await
    }

    async fn server_with(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port of loopback");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(listener, limits, |_| std::future::ready(text(StatusCode::OK, "fine"))));
        address
    }

    /// Connects from a loopback address.
    async fn connect(server: SocketAddr, from: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::new(from.parse().expect("an address"), 0)).expect("an address of loopback");
        socket.connect(server).await.expect("the listener accepts")
    }

    async fn ask(mut stream: TcpStream) -> String {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.expect("a living connection");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_keep_nobody_out() {
        let server = server().await;
        let mut idle = Vec::new();
        for _ in 0..50 {
            idle.push(connect(server, "127.0.0.2").await);
        }
        for from in ["127.0.0.1", "127.0.0.2"] {
            assert!(ask(connect(server, from).await).await.ends_with("fine"), "from {from}");
        }
        // The oldest connections were ended, not the newest.
        let mut byte = [0];
        assert_eq!(idle[0].read(&mut byte).await.expect("an end"), 0);
    }

    #[tokio::test]
    async fn idle_connections_of_many_sources_keep_nobody_out() {
        let server = server().await;
        let mut idle = Vec::new();
        for n in 2..60 {
            idle.push(connect(server, &format!("127.0.0.{n}")).await);
        }
        assert!(ask(connect(server, "127.0.0.1").await).await.ends_with("fine"));
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_delay_no_other_one() {
        for limits in [Limits::SCRAPES, Limits::PROBES] {
            let server = server_with(limits).await;
            let mut idle = Vec::new();
            for _ in 0..290 {
                let mut half_open = connect(server, "127.0.0.2").await;
                // It may be refused already.
                let _ = half_open.write_all(b"GET / HTTP/1.1\r\n").await;
                idle.push(half_open);
            }
            // Others get their answers while most of the idle ones still wait for their end.
            let answers = async {
                for n in 0..32 {
                    let answer = ask(connect(server, &format!("127.0.0.{}", 3 + n)).await).await;
                    assert!(answer.ends_with("fine"), "{n}: {answer}");
                }
            };
            let most = REQUEST_BEGINS * 4;
            assert!(tokio::time::timeout(most, answers).await.is_ok(), "{limits:?}");
        }
    }

    #[tokio::test]
    async fn a_listener_whose_maximum_shrinks_ends_its_oldest_connections_and_serves_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port of loopback");
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
        assert!(ask(connect(server, "127.0.0.1").await).await.ends_with("fine"));
        for mut idle in idle {
            assert_eq!(idle.read(&mut [0]).await.expect("an end"), 0);
        }
    }

    #[tokio::test]
    async fn a_connection_is_for_one_request() {
        let server = server().await;
        let answer = ask_again(&mut connect(server, "127.0.0.1").await).await.expect("an answer");
        assert!(answer.contains("Connection: close"), "{answer}");
    }

    /// Sends a request on a connection that is kept, and reads the answer.
    async fn ask_again(stream: &mut TcpStream) -> io::Result<String> {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"fine") {
            answer.push(stream.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    #[tokio::test]
    async fn probe_connections_are_kept() {
        let server = server_with(Limits::PROBES).await;
        let mut stream = connect(server, "127.0.0.1").await;
        for _ in 0..3 {
            let answer = ask_again(&mut stream).await.expect("it is kept");
            assert!(!answer.contains("Connection"), "{answer}");
        }
    }

    #[tokio::test]
    async fn of_kept_connections_the_one_that_was_unused_for_longest_ends_first() {
        let server = server_with(Limits { connections_max: 3, ..Limits::PROBES }).await;
        let mut kept = Vec::new();
        for n in 2..5 {
            kept.push(connect(server, &format!("127.0.0.{n}")).await);
        }
        // The oldest is in use.
        for at in [1, 2, 0] {
            ask_again(&mut kept[at]).await.expect("it is kept");
        }
        ask_again(&mut connect(server, "127.0.0.9").await).await.expect("it gets a place");
        ask_again(&mut kept[0]).await.expect("it is kept");
        ask_again(&mut kept[2]).await.expect("it is kept");
        assert_eq!(kept[1].read(&mut [0]).await.expect("an end"), 0);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_keeps_nobody_out() {
        let server = server_with(Limits { connections_max: 1, ..Limits::PROBES }).await;
        let (_reader, mut writer) = connect(server, "127.0.0.2").await.into_split();
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_000);
        let flood = tokio::spawn(async move { while writer.write_all(&requests).await.is_ok() {} });
        ask_again(&mut connect(server, "127.0.0.1").await).await.expect("it gets a place");
        flood.await.expect("its connection has ended");
    }

    #[tokio::test]
    async fn a_connection_ends_by_itself_whatever_trickles_in() {
        let second = Duration::from_secs(1);
        for life in [Life::OneRequest(second), Life::KeptAlive(second)] {
            let server = server_with(Limits { life, ..Limits::PROBES }).await;
            let (mut reader, mut writer) = connect(server, "127.0.0.1").await.into_split();
            let trickle = tokio::spawn(async move {
                // The header never ends, so each byte is accepted.
                while writer.write_all(b"G").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
            let mut answer = Vec::new();
            let end = tokio::time::timeout(Duration::from_secs(60), reader.read_to_end(&mut answer)).await;
            assert!(end.is_ok(), "{life:?}: it was open for a minute");
            trickle.abort();
        }
    }
}
