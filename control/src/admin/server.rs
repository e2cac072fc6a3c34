//! The server of the admin socket: it calls the [`AdminBackend`] for each request and returns the result as JSON.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use tidegate_admin_api::explain::{Packet, Transport};
use tidegate_admin_api::query::{self, BEFORE};
use tidegate_admin_api::{AdminError, ErrorAnswer, FlowsQuery, WatchQuery, boot_time, events_selection};
use tidegate_http::{HttpResponse, Limits};
use tidegate_policy::reconcile::DrainTarget;
use tidegate_spec::ownership::BootTime;
use tokio::net::UnixListener;
use tokio::task::{AbortHandle, JoinHandle};

use super::AdminBackend;
use super::socket::{self, SocketFile};

/// The paths of queries.
const READ: &str = "GET /v1/status, services, backends, events, flows, drops, pools, neighbors, routes, traffic, \
                    watched, metrics, explain, diff";
/// The paths of changes.
const CHANGE: &str = "POST /v1/drain, undrain, delete-flows, reload, watch, unwatch, vrrp-check";

/// How often to check that the socket's file still exists.
const CHECK: Duration = Duration::from_secs(1);

/// Serves the admin socket until it is dropped, which also removes the socket's file.
#[derive(Debug)]
pub struct Server {
    /// `None` when the server is stopping.
    file: Arc<Mutex<Option<SocketFile>>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds the socket (with mode 0600; a stale one is replaced, and its directory is created) and serves on the tokio
    /// runtime of the caller. If somebody removes the file, the socket is bound again.
    ///
    /// # Errors
    /// If another daemon answers at the path, or the file system returns an error.
    pub fn start(path: &Path, backend: Arc<impl AdminBackend>) -> io::Result<Self> {
        let (listener, file) = socket::bind(path)?;
        let file = Arc::new(Mutex::new(Some(file)));
        let task = tokio::spawn(serve(listener, Arc::clone(&file), backend));
        Ok(Self { file, task })
    }

    /// The server task, to check whether it has ended.
    #[must_use]
    pub fn task(&self) -> AbortHandle {
        self.task.abort_handle()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

async fn serve(
    mut listener: UnixListener,
    file: Arc<Mutex<Option<SocketFile>>>,
    backend: Arc<impl AdminBackend>,
) {
    loop {
        let backend = Arc::clone(&backend);
        let serving =
            tidegate_http::serve(listener, Limits::COMMANDS, move |request| answer(backend.clone(), request));
        // Requests in progress end with the old listener.
        tokio::select! {
            () = serving => return,
            bound = bound_again(&file) => match bound {
                Some(another) => listener = another,
                None => return,
            },
        }
    }
}

/// Waits until the file is gone and binds the socket again; `None` if the server is stopping.
async fn bound_again(file: &Mutex<Option<SocketFile>>) -> Option<UnixListener> {
    let mut last_error = None;
    loop {
        tokio::time::sleep(CHECK).await;
        // The file is created under the lock, so that a server that stops leaves none behind.
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let current = file.as_ref()?;
        if current.is_there() {
            continue;
        }
        let path = current.path().to_owned();
        match socket::bind(&path) {
            Ok((listener, new)) => {
                tracing::warn!(path = %path.display(), "recreated the admin socket, which somebody had removed");
                *file = Some(new);
                return Some(listener);
            }
            Err(error) => {
                let error = error.to_string();
                if last_error.as_ref() != Some(&error) {
                    tracing::error!(
                        path = %path.display(), error,
                        "somebody removed the admin socket and it cannot be recreated: no command reaches the gateway"
                    );
                    last_error = Some(error);
                }
            }
        }
    }
}

async fn answer(backend: Arc<impl AdminBackend>, request: Request<Incoming>) -> HttpResponse {
    let query = request.uri().query().unwrap_or("");
    let result = route(&*backend, request.method(), request.uri().path(), query).await;
    result.unwrap_or_else(|error| {
        let status = match error {
            AdminError::BadRequest(_) => StatusCode::BAD_REQUEST,
            AdminError::NotFound(_) => StatusCode::NOT_FOUND,
            AdminError::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            AdminError::Conflict(_) => StatusCode::CONFLICT,
            AdminError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        json(status, &ErrorAnswer { error: error.to_string() })
    })
}

async fn route(
    backend: &impl AdminBackend,
    method: &Method,
    path: &str,
    query: &str,
) -> Result<HttpResponse, AdminError> {
    let name = path.strip_prefix("/v1/").unwrap_or("");
    let (is_read, is_change) = match name {
        "status" | "services" | "backends" | "events" | "flows" | "drops" | "pools" | "neighbors"
        | "routes" | "traffic" | "watched" | "metrics" | "explain" | "diff" => (true, false),
        "drain" | "undrain" | "delete-flows" | "reload" | "watch" | "unwatch" | "vrrp-check" => (false, true),
        _ => return Err(AdminError::NotFound(format!("{path} is not known; accepted: {READ}; {CHANGE}"))),
    };
    if (is_read && method != Method::GET) || (is_change && method != Method::POST) {
        let accepted = if is_read { READ } else { CHANGE };
        return Err(AdminError::MethodNotAllowed(format!(
            "{method} {path} is not allowed; accepted: {accepted}"
        )));
    }
    if is_change {
        is_awaited(query)?;
    }
    Ok(match name {
        "status" => ok(&backend.status()),
        "services" => ok(&backend.services()),
        "backends" => ok(&backend.backends()),
        "events" => ok(&backend.events(&events_selection(query)?)),
        "flows" => ok(&backend.flows(FlowsQuery::parse(query)?).await?),
        "drops" => ok(&backend.drops()),
        "pools" => ok(&backend.pools()),
        "neighbors" => ok(&backend.neighbors()),
        "routes" => ok(&backend.routes()),
        "traffic" => ok(&backend.traffic()),
        "watched" => ok(&backend.watched(watch_id(query)?).await?),
        "metrics" => tidegate_http::text(StatusCode::OK, backend.metrics()),
        "explain" => ok(&backend.explain(&packet(query)?)?),
        "diff" => ok(&backend.diff(query::value(query, "config").map(PathBuf::from)).await?),
        "drain" => match subject(query)? {
            Subject::Gateway => changed(backend.drain_gateway()).await?,
            Subject::Target(target) => changed(backend.drain(target)).await?,
        },
        "undrain" => match subject(query)? {
            Subject::Gateway => changed(backend.undrain_gateway()).await?,
            Subject::Target(target) => changed(backend.undrain(target)).await?,
        },
        "delete-flows" => changed(backend.delete_flows(selected_flows(query)?)).await?,
        "reload" => changed(backend.reload()).await?,
        "watch" => ok(&backend.watch(WatchQuery::parse(query)?)?),
        "unwatch" => ok(&backend.unwatch(watch_id(query)?)?),
        "vrrp-check" => ok(&backend.vrrp_check(began(query)?).map(|()| true)?),
        _ => unreachable!("only these paths were accepted above"),
    })
}

async fn changed<T: Serialize>(
    change: impl Future<Output = Result<T, AdminError>>,
) -> Result<HttpResponse, AdminError> {
    change.await.map(|answer| ok(&answer))
}

pub(super) fn packet(query: &str) -> Result<Packet, AdminError> {
    let parameter = |key: &str, accepted: &str| {
        query::value(query, key).ok_or_else(|| {
            AdminError::BadRequest(format!("no {key} in the request; accepted: {key}={accepted}"))
        })
    };
    let address = |key: &str| {
        let text = parameter(key, "ADDRESS:PORT")?;
        text.parse().map_err(|_| {
            AdminError::BadRequest(format!(
                "{key}: {text:?} is not an address with a port; accepted: 192.0.2.1:80, [2001:db8::1]:80"
            ))
        })
    };
    let protocol: Transport = parameter("proto", "tcp")?.parse().map_err(AdminError::BadRequest)?;
    Ok(Packet::new(protocol, address("src")?, address("dst")?))
}

/// Refuses a change whose sender no longer waits for it.
fn is_awaited(query: &str) -> Result<(), AdminError> {
    let Some(text) = query::value(query, BEFORE) else { return Ok(()) };
    let before = text.parse().map(BootTime).map_err(|_| {
        let what = format!("{BEFORE}: {text:?} is not a time; accepted: NANOSECONDS of CLOCK_BOOTTIME");
        AdminError::BadRequest(what)
    })?;
    if boot_time() < before {
        return Ok(());
    }
    tracing::warn!("refused a change requested through the admin socket: its sender no longer waits for it");
    Err(AdminError::Unavailable("the sender no longer waits for this change, so it was not made".to_owned()))
}

/// The target of a drain.
enum Subject {
    Gateway,
    Target(DrainTarget),
}

fn subject(query: &str) -> Result<Subject, AdminError> {
    let bad = |what: String| Err(AdminError::BadRequest(what));
    match (query::value(query, "gateway").as_deref(), query::value(query, "target")) {
        (Some("true"), None) => Ok(Subject::Gateway),
        (Some("true"), Some(_)) => bad("both gateway and target in the request; accepted: one of them".to_owned()),
        (Some(other), _) => bad(format!("gateway={other:?} in the request; accepted: gateway=true")),
        (None, Some(text)) => text.parse().map(Subject::Target).map_err(AdminError::BadRequest),
        (None, None) => bad(
            "no target in the request; accepted: target=ADDRESS:PORT, target=ADDRESS, target=NODE, or gateway=true"
                .to_owned(),
        ),
    }
}

/// The flows to delete.
fn selected_flows(query: &str) -> Result<FlowsQuery, AdminError> {
    let flows = FlowsQuery::parse(query)?;
    if flows.is_filter() {
        return Ok(flows);
    }
    let what = "no flows are selected; accepted: service, backend, client, client-port, state or idle in the request";
    Err(AdminError::BadRequest(what.to_owned()))
}

fn watch_id(query: &str) -> Result<u64, AdminError> {
    query::value(query, "id").and_then(|id| id.parse().ok()).ok_or_else(|| {
        AdminError::BadRequest(
            "no valid id in the request; accepted: id=N, the id in the answer to /v1/watch".to_owned(),
        )
    })
}

fn began(query: &str) -> Result<BootTime, AdminError> {
    let began = query::value(query, "began").and_then(|text| text.parse().ok());
    let what = "no valid time in the request; accepted: began=NANOSECONDS of CLOCK_BOOTTIME";
    began.map(BootTime).ok_or_else(|| AdminError::BadRequest(what.to_owned()))
}

fn ok(value: &impl Serialize) -> HttpResponse {
    json(StatusCode::OK, value)
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> HttpResponse {
    let body = serde_json::to_vec(value).expect("answers have text keys and finite numbers");
    tidegate_http::with_type(status, "application/json", Bytes::from(body))
}
