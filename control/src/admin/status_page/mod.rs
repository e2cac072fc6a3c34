//! The read-only status page for browsers (`admin.page`): the tables of the commands, live, and `explain` as a form.
//!
//! The page requests one view at a time by server-sent events. Each response has one event and ends; the browser sends
//! the next request after the time in `retry`. So an open page stores no state here, and the limits of the listener
//! apply to it.
//!
//! Invariant: nothing here changes the gateway, and at most one view is computed at a time, on a thread of its own.

mod access;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use access::Access;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue};
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use tidegate_admin_api::{AdminError, BackendRow, ErrorAnswer, EventsSelection, FindingView, Status, query};
use tidegate_cli::output::{Table, refs};
use tidegate_cli::{announce_tables, drops, events, status_tables, tables};
use tidegate_http::{HttpResponse, Limits};
use tidegate_model::config::PageToken;
use tokio::sync::Semaphore;

use super::{AdminBackend, server};
use crate::listener::Listener;

/// How long the browser waits before it requests a view again, in milliseconds.
const RETRY_MS: u32 = 2_000;
/// The maximum number of events on the page.
const EVENTS_MAX: usize = 200;
/// Scripts, styles and requests only to this listener, and no page may embed this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Listens, and serves the page. `token` returns the token that browsers must present, if there is one.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    token: impl Fn() -> Option<PageToken> + Send + Sync + 'static,
    backend: Arc<impl AdminBackend>,
) -> io::Result<Listener> {
    let (access, permits) = (Arc::new(Access { token }), Arc::new(Semaphore::new(1)));
    Listener::start(listen, Limits::PAGES, move |request| {
        answer(access.clone(), permits.clone(), backend.clone(), request)
    })
    .await
}

async fn answer<T: Fn() -> Option<PageToken> + Send + Sync + 'static>(
    access: Arc<Access<T>>,
    permits: Arc<Semaphore>,
    backend: Arc<impl AdminBackend>,
    request: Request<Incoming>,
) -> HttpResponse {
    let mut answer = match access.check(request).await {
        Ok(request) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            let mut refused = tidegate_http::text(StatusCode::METHOD_NOT_ALLOWED, "405: GET\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            refused
        }
        Ok(request) => page(&permits, backend, &request).await,
        Err(refused) => refused,
    };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

async fn page(
    permits: &Semaphore,
    backend: Arc<impl AdminBackend>,
    request: &Request<Incoming>,
) -> HttpResponse {
    let parameters = request.uri().query().unwrap_or("").to_owned();
    let file = |content_type, text: &'static str| {
        tidegate_http::with_type(StatusCode::OK, content_type, Bytes::from_static(text.as_bytes()))
    };
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/" => return file("text/html; charset=utf-8", include_str!("page.html")),
        "/page.css" => return file("text/css; charset=utf-8", include_str!("page.css")),
        "/page.js" => return file("text/javascript; charset=utf-8", include_str!("page.js")),
        "/live" | "/explain" => {}
        _ => return tidegate_http::text(StatusCode::NOT_FOUND, "404: the page is at /\n"),
    }
    let _permit = permits.acquire().await;
    let computed = tokio::task::spawn_blocking(move || {
        if path == "/live" {
            view(&*backend, &parameters).map(|view| {
                let json = serde_json::to_string(&view).expect("text keys and finite numbers");
                let event = format!("retry: {RETRY_MS}\ndata: {json}\n\n");
                tidegate_http::with_type(StatusCode::OK, "text/event-stream", event.into())
            })
        } else {
            let explained = server::packet(&parameters).and_then(|packet| backend.explain(&packet));
            explained.map(|explanation| server::json(StatusCode::OK, &explanation))
        }
    });
    match computed.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => server::json(StatusCode::BAD_REQUEST, &ErrorAnswer { error: error.to_string() }),
        // The view panicked. The request fails, and forwarding continues.
        Err(_) => {
            tidegate_http::text(StatusCode::INTERNAL_SERVER_ERROR, "500: the view could not be computed\n")
        }
    }
}

/// What the page shows.
#[derive(Debug, Serialize)]
struct View {
    gateway: String,
    ready: bool,
    /// `serving`, `draining` or `drained`.
    state: &'static str,
    degraded: Vec<String>,
    /// When this was computed.
    at: String,
    facts: Vec<(&'static str, String)>,
    tables: Vec<Titled>,
}

#[derive(Debug, Serialize)]
struct Titled {
    title: &'static str,
    #[serde(flatten)]
    table: Table,
}

/// The view that a request names.
fn view(backend: &impl AdminBackend, parameters: &str) -> Result<View, AdminError> {
    let mut status = backend.status();
    let name = query::value(parameters, "view").unwrap_or_default();
    let (facts, tables) = match name.as_str() {
        "overview" => {
            let tables = vec![
                ("Workers", status_tables::workers(&status.workers)),
                ("Interfaces", status_tables::interfaces(&status.interfaces)),
                ("Findings", status_tables::findings(&status.findings)),
            ];
            (status_tables::facts(&status), tables)
        }
        "services" => {
            let services = tables::services(&refs(&backend.services().services), Timestamp::now());
            (Vec::new(), vec![("Services", services)])
        }
        "service" => (Vec::new(), service(backend, &mut status, parameters)?),
        "network" => (Vec::new(), network(&status)),
        "events" => (Vec::new(), vec![("Events", recent_events(backend, None))]),
        "pools" => (Vec::new(), vec![("Pools", tables::pools(&refs(&backend.pools().pools)))]),
        "drops" => (Vec::new(), vec![("Dropped and punted packets", drops::table(&backend.drops()))]),
        _ => {
            let what = format!(
                "no view {name:?}; accepted: view=overview, services, service (with service=NAMESPACE/NAME), network, \
                 events, pools, drops"
            );
            return Err(AdminError::BadRequest(what));
        }
    };
    Ok(View {
        gateway: status.name,
        ready: status.ready,
        state: status.drain.state.as_str(),
        degraded: status.degraded,
        at: format!("{:.0}", Timestamp::now()),
        facts,
        tables: tables.into_iter().map(|(title, table)| Titled { title, table }).collect(),
    })
}

/// Everything about one Service.
fn service(
    backend: &impl AdminBackend,
    status: &mut Status,
    parameters: &str,
) -> Result<Vec<(&'static str, Table)>, AdminError> {
    let service = query::value(parameters, "service").unwrap_or_default();
    let Some((namespace, name)) = service.split_once('/') else {
        return Err(AdminError::BadRequest(format!(
            "{service:?} is not a Service; accepted: NAMESPACE/NAME or NAMESPACE/gateway/NAME"
        )));
    };
    let mut services = backend.services().services;
    services.retain(|service| service.namespace == namespace && service.name == name);
    let mut rows: Vec<BackendRow> = backend.backends().backends;
    rows.retain(|row| row.namespace == namespace && row.service == name);
    // A Gateway that isn't accepted has findings, but isn't among the Services.
    let is_shown = |finding: &FindingView| {
        finding.object == service || services.iter().any(|shown| finding.is_about(shown))
    };
    status.findings.retain(is_shown);
    Ok(vec![
        ("Service", tables::services(&refs(&services), Timestamp::now())),
        ("Backends", tables::backends(&refs(&rows), Timestamp::now())),
        ("Findings", status_tables::findings(&status.findings)),
        ("Events", recent_events(backend, Some(service))),
    ])
}

/// The latest events, newest first.
fn recent_events(backend: &impl AdminBackend, service: Option<String>) -> Table {
    let selection = EventsSelection { service, latest: Some(EVENTS_MAX), ..EventsSelection::default() };
    let mut rows = backend.events(&selection).events;
    rows.reverse();
    events::table(&rows)
}

/// Routers, other gateways and interfaces.
fn network(status: &Status) -> Vec<(&'static str, Table)> {
    let bgp = status.announce.iter().filter_map(|announce| announce.bgp.as_ref());
    let peers = bgp.flat_map(|bgp| bgp.peers.clone()).collect::<Vec<_>>();
    let mut gateways = Table::new(&["PEER", "NAME", "STATE", "LAST RECEIVED", "WAITING"]);
    for peer in status.flow_sharing.iter().flat_map(|sharing| &sharing.peers) {
        gateways.row([
            peer.address.clone(),
            peer.name.clone().unwrap_or_default(),
            peer.state.clone(),
            peer.heard_ago_milliseconds.map(|ms| format!("{ms}ms ago")).unwrap_or_default(),
            peer.waiting.to_string(),
        ]);
    }
    let mut owners = Table::new(&["GROUP", "OWNER"]);
    status.layer2.iter().for_each(|(group, owner)| owners.row([group.clone(), owner.clone()]));
    vec![
        ("BGP peers", announce_tables::peers(&peers)),
        ("Gateways that share flows", gateways),
        ("Owners on layer 2", owners),
        ("Ports", status_tables::ports(&status.interfaces)),
    ]
}
