//! HTTP around the API: listening, TLS, authentication, faults, the record of requests, responses.
//!
//! The server runs on its own thread with its own runtime, so tests with and without tokio use it in the same way.
//! Commands (listen, refuse, stop) arrive over a channel and are answered when they are complete.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::access::User;
use crate::error::ApiError;
use crate::faults::{Fault, WatchFlags};
use crate::request::{Answer, Request, query};
use crate::shared::{Logged, Shared};
use crate::watch::{Body, follow};

/// A command from the handle to the server's thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// Listens on the address, for the first time or again.
    Listen,
    /// Closes the listener and all connections. New connections are refused.
    Refuse,
    /// Ends the thread.
    Stop,
}

/// A command and the channel for its result.
pub(crate) type Order = (Command, std::sync::mpsc::Sender<io::Result<SocketAddr>>);

/// The main function of the server's thread.
pub(crate) fn run(shared: &Arc<Shared>, address: SocketAddr, orders: mpsc::UnboundedReceiver<Order>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only a few descriptors");
    runtime.block_on(serve(shared, address, orders));
}

async fn serve(shared: &Arc<Shared>, mut address: SocketAddr, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut listener: Option<TcpListener> = None;
    let (mut alive, _) = watch::channel(());
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => {
                let Some((command, done)) = order else { return };
                let outcome = match command {
                    Command::Listen => match listen(address).await {
                        Ok(bound) => {
                            // The port is the same after a restart.
                            address = bound.local_addr().unwrap_or(address);
                            listener = Some(bound);
                            Ok(address)
                        }
                        Err(error) => Err(error),
                    },
                    Command::Refuse => {
                        listener = None;
                        // Dropping the sender ends all connections.
                        alive = watch::channel(()).0;
                        // Let the tasks of the connections run once before the reply.
                        tokio::task::yield_now().await;
                        Ok(address)
                    }
                    Command::Stop => {
                        let _ = done.send(Ok(address));
                        return;
                    }
                };
                // The handle may have been dropped, so the result is ignored.
                let _ = done.send(outcome);
            }
            accepted = accept => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(shared.clone(), stream, alive.subscribe()));
                }
            }
        }
    }
}

/// Listens on the address. While nothing listens there, a client that connects may get the same port as its source, and
/// so be connected to itself: it blocks the port until it notices.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            bound => return bound,
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, mut alive: watch::Receiver<()>) {
    // Events are small and must not be delayed by one another.
    let _ = stream.set_nodelay(true);
    let tls = shared.tls.lock().expect("nothing panics while the certificate is locked").clone();
    let served = async {
        match tls {
            Some(tls) => {
                if let Ok(stream) = tls.acceptor.accept(stream).await {
                    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let user = shown.and_then(|certificate| shared.user_of(certificate));
                    http(shared, stream, user).await;
                }
            }
            None => http(shared, stream, None).await,
        }
    };
    tokio::select! {
        () = served => {}
        _ = alive.changed() => {}
    }
}

/// Serves a connection. `certified` is the user of the client's certificate; a token takes precedence.
async fn http(
    shared: Arc<Shared>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    certified: Option<User>,
) {
    let service = service_fn(move |request| {
        let (shared, certified) = (shared.clone(), certified.clone());
        async move { Ok::<_, std::convert::Infallible>(respond(&shared, request, certified).await) }
    });
    // Errors are ignored: many tests break connections on purpose.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    shared: &Arc<Shared>,
    http: HttpRequest<Incoming>,
    certified: Option<User>,
) -> Response<Body> {
    let user =
        if http.headers().contains_key(header::AUTHORIZATION) { shared.user(&http) } else { certified };
    let text = |name: header::HeaderName| {
        http.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_string()
    };
    let mut request = Request {
        method: http.method().to_string(),
        path: http.uri().path().to_string(),
        query: query(http.uri().query().unwrap_or_default()),
        accept: text(header::ACCEPT),
        content_type: text(header::CONTENT_TYPE),
        user_agent: text(header::USER_AGENT),
        body: Vec::new(),
        user: user.clone().unwrap_or(User { name: String::new(), groups: Vec::new() }),
    };
    let raw_query = http.uri().query().unwrap_or_default().to_string();
    request.body = match http.into_body().collect().await {
        Ok(body) => body.to_bytes().to_vec(),
        Err(_) => Vec::new(),
    };
    // A rule that is added later does not apply to this request, so the end of watches that follows the rule must.
    let flags = shared.faults.watches();
    let fault = shared.faults.take(&request.method, &format!("{}?{raw_query}", request.path));
    match &fault {
        Some(Fault::Slow(time)) => tokio::time::sleep(*time).await,
        Some(Fault::Hang) => std::future::pending().await,
        _ => {}
    }
    let outcome = match (&fault, user) {
        (Some(Fault::TooManyRequests(seconds)), _) => Err(ApiError::too_many_requests(*seconds)),
        (Some(Fault::ServerError(code)), _) => Err(ApiError::server(*code, "broken by the test")),
        (Some(Fault::Unauthorized), _) | (_, None) => Err(ApiError::unauthorized()),
        (_, Some(_)) if request.path.starts_with("/test-control/") => {
            crate::control::handle(shared, &request)
        }
        (_, Some(_)) => {
            let outcome = shared.api().handle(&request);
            if request.method != "GET" {
                shared.wake_watches();
            }
            outcome
        }
    };
    let code = match &outcome {
        Ok(Answer::Object { code, .. }) => *code,
        Ok(_) => 200,
        Err(error) => error.code,
    };
    shared.requests.lock().expect("nothing panics while the log is locked").push(Logged {
        field_manager: request.manager().into(),
        method: request.method,
        path: request.path,
        query: raw_query,
        user: request.user.name,
        body: String::from_utf8_lossy(&request.body).into_owned(),
        code,
    });
    response(shared, outcome, flags, fault == Some(Fault::CutInMidObject))
}

fn response(
    shared: &Arc<Shared>,
    outcome: Result<Answer, ApiError>,
    flags: WatchFlags,
    cut: bool,
) -> Response<Body> {
    let mut builder = Response::builder();
    let (code, kind, bytes) = match outcome {
        Ok(Answer::Watch(order)) => {
            let (sender, receiver) = mpsc::channel(64);
            tokio::spawn(follow(shared.clone(), *order, flags, sender, cut));
            let builder = builder.header(header::CONTENT_TYPE, "application/json");
            return builder.body(Stream::of(receiver).boxed_unsync()).expect("static headers");
        }
        Ok(Answer::Bytes(kind, bytes)) => (200, kind, bytes),
        Ok(Answer::Object { code, body, warnings }) => {
            for warning in warnings {
                let value = format!("299 - {}", Value::String(warning));
                builder = builder.header(header::WARNING, value);
            }
            (code, "application/json", body.to_string().into_bytes())
        }
        Err(error) => {
            if let Some(seconds) = error.details["retryAfterSeconds"].as_u64() {
                builder = builder.header(header::RETRY_AFTER, seconds);
            }
            (error.code, "application/json", error.status().to_string().into_bytes())
        }
    };
    let builder = builder.status(code).header(header::CONTENT_TYPE, kind);
    let body = if cut {
        let (sender, receiver) = mpsc::channel(2);
        let whole = Bytes::from(bytes);
        let half = whole.slice(..whole.len() / 2);
        // The channel has capacity for both messages, so neither send waits.
        let _ = sender.try_send(Ok(Frame::data(half)));
        let _ = sender.try_send(Err(io::Error::other("cut in mid-object")));
        Stream::of(receiver).boxed_unsync()
    } else {
        Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
    };
    builder.body(body).expect("warnings are JSON texts, which are legal header values")
}

/// A body that is written step by step.
struct Stream {
    frames: mpsc::Receiver<Frames>,
    /// An error that the next poll returns.
    error: Option<io::Error>,
}

type Frames = Result<Frame<Bytes>, io::Error>;

impl Stream {
    fn of(frames: mpsc::Receiver<Frames>) -> Self {
        Self { frames, error: None }
    }
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frames>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match self.frames.poll_recv(context) {
            // If a body fails, hyper discards data that it has not written. The pause lets hyper write first.
            Poll::Ready(Some(Err(error))) => {
                self.error = Some(error);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            other => other,
        }
    }
}
