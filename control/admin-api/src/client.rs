//! The client that the commands use: one connection for each request.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tidegate_events::Selection;
use tidegate_host::boot_time;
use tidegate_policy::reconcile::DrainTarget;
use tidegate_spec::ownership::BootTime;
use tokio::net::UnixStream;

use super::diff::DiffAnswer;
use super::drain::{DrainAnswer, GatewayDrainAnswer};
use super::error::ErrorAnswer;
use super::events::{self, EventsAnswer};
use super::flows::{DeletedFlowsAnswer, FlowsAnswer};
use super::flows_query::FlowsQuery;
use super::network::{NeighborsAnswer, RoutesAnswer};
use super::pools::PoolsAnswer;
use super::query::{self, BEFORE};
use super::reload::ReloadAnswer;
use super::services::{BackendsAnswer, ServicesAnswer};
use super::status::Status;
use super::traffic::{DropsAnswer, TrafficAnswer};
use super::watch::{UnwatchAnswer, WatchAnswer, WatchedAnswer};
use super::watch_query::WatchQuery;
use crate::explain::{Explanation, Packet};

/// The maximum wait for an answer: a reload reads all manifests.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process answers on the socket.
    #[error(
        "no gateway answers at {path}: {source}; is `tidegate run` running, and is this its admin.socket?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The daemon refused the request.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The message of the daemon.
        message: String,
    },
    /// The daemon did not answer in time.
    #[error("the gateway at {path} did not answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon did not answer a request to change something in time.
    #[error(
        "the gateway at {path} did not answer within {} s: the change has already started, or it will not happen; \
         `tidegate status` shows which",
        TIMEOUT.as_secs()
    )]
    ChangeTimeout {
        /// The socket.
        path: PathBuf,
    },
    /// The connection broke, or the answer is invalid.
    #[error("no valid answer from the gateway: {0}")]
    Protocol(String),
}

/// A client of one daemon. Every request may fail with a [`ClientError`].
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// A client of the daemon at this socket. It does not connect yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `GET /v1/status`.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.read("status", &[]).await
    }

    /// `GET /v1/services`.
    pub async fn services(&self) -> Result<ServicesAnswer, ClientError> {
        self.read("services", &[]).await
    }

    /// `GET /v1/backends`.
    pub async fn backends(&self) -> Result<BackendsAnswer, ClientError> {
        self.read("backends", &[]).await
    }

    /// `GET /v1/flows`.
    pub async fn flows(&self, query: &FlowsQuery) -> Result<FlowsAnswer, ClientError> {
        let pairs = query.pairs();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.read("flows", &pairs).await
    }

    /// `POST /v1/delete-flows`. The limit of the query does not apply.
    pub async fn delete_flows(&self, query: &FlowsQuery) -> Result<DeletedFlowsAnswer, ClientError> {
        let pairs = query.pairs();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.change("delete-flows", &pairs).await
    }

    /// `GET /v1/neighbors`.
    pub async fn neighbors(&self) -> Result<NeighborsAnswer, ClientError> {
        self.read("neighbors", &[]).await
    }

    /// `GET /v1/routes`.
    pub async fn routes(&self) -> Result<RoutesAnswer, ClientError> {
        self.read("routes", &[]).await
    }

    /// `GET /v1/drops`.
    pub async fn drops(&self) -> Result<DropsAnswer, ClientError> {
        self.read("drops", &[]).await
    }

    /// `GET /v1/events`.
    pub async fn events(&self, selection: &Selection) -> Result<EventsAnswer, ClientError> {
        let pairs = events::pairs(selection);
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.read("events", &pairs).await
    }

    /// `GET /v1/pools`.
    pub async fn pools(&self) -> Result<PoolsAnswer, ClientError> {
        self.read("pools", &[]).await
    }

    /// `GET /v1/traffic`.
    pub async fn traffic(&self) -> Result<TrafficAnswer, ClientError> {
        self.read("traffic", &[]).await
    }

    /// `POST /v1/watch`.
    pub async fn watch(&self, query: &WatchQuery) -> Result<WatchAnswer, ClientError> {
        let pairs = query.pairs();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.change("watch", &pairs).await
    }

    /// `GET /v1/watched`. The answer may take a second.
    pub async fn watched(&self, id: u64) -> Result<WatchedAnswer, ClientError> {
        self.read("watched", &[("id", &id.to_string())]).await
    }

    /// `POST /v1/unwatch`.
    pub async fn unwatch(&self, id: u64) -> Result<UnwatchAnswer, ClientError> {
        self.change("unwatch", &[("id", &id.to_string())]).await
    }

    /// `GET /v1/metrics`: Prometheus text.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let body = self.exchange(Method::GET, "metrics", &[]).await?;
        String::from_utf8(body.into()).map_err(|e| ClientError::Protocol(e.to_string()))
    }

    /// `GET /v1/explain`.
    pub async fn explain(&self, packet: &Packet) -> Result<Explanation, ClientError> {
        let protocol = packet.protocol.to_string();
        let (source, destination) = (packet.source.to_string(), packet.destination.to_string());
        self.read("explain", &[("proto", &protocol), ("src", &source), ("dst", &destination)]).await
    }

    /// `GET /v1/diff`, for this file or that of the gateway.
    pub async fn diff(&self, config: Option<&Path>) -> Result<DiffAnswer, ClientError> {
        let path = config.map(|path| path.to_string_lossy());
        let query: Vec<(&str, &str)> = path.iter().map(|path| ("config", path.as_ref())).collect();
        self.read("diff", &query).await
    }

    /// `POST /v1/drain`.
    pub async fn drain(&self, target: &DrainTarget) -> Result<DrainAnswer, ClientError> {
        self.change("drain", &[("target", &target.to_string())]).await
    }

    /// `POST /v1/undrain`.
    pub async fn undrain(&self, target: &DrainTarget) -> Result<DrainAnswer, ClientError> {
        self.change("undrain", &[("target", &target.to_string())]).await
    }

    /// `POST /v1/drain` for the gateway itself.
    pub async fn drain_gateway(&self) -> Result<GatewayDrainAnswer, ClientError> {
        self.change("drain", &[("gateway", "true")]).await
    }

    /// `POST /v1/undrain` for the gateway itself.
    pub async fn undrain_gateway(&self) -> Result<GatewayDrainAnswer, ClientError> {
        self.change("undrain", &[("gateway", "true")]).await
    }

    /// `POST /v1/reload`.
    pub async fn reload(&self) -> Result<ReloadAnswer, ClientError> {
        self.change("reload", &[]).await
    }

    /// `POST /v1/vrrp-check`.
    pub async fn vrrp_check(&self, began: BootTime) -> Result<bool, ClientError> {
        self.change("vrrp-check", &[("began", &began.0.to_string())]).await
    }

    async fn read<T: DeserializeOwned>(&self, name: &str, query: &[(&str, &str)]) -> Result<T, ClientError> {
        decode(&self.exchange(Method::GET, name, query).await?)
    }

    async fn change<T: DeserializeOwned>(
        &self,
        name: &str,
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        // The deadline keeps a hung gateway from making the change long after its operator saw it fail.
        let before = boot_time().plus(TIMEOUT).0.to_string();
        let query: Vec<_> = query.iter().copied().chain([(BEFORE, before.as_str())]).collect();
        match self.exchange(Method::POST, name, &query).await {
            Err(ClientError::Timeout { path }) => Err(ClientError::ChangeTimeout { path }),
            result => decode(&result?),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        name: &str,
        query: &[(&str, &str)],
    ) -> Result<Bytes, ClientError> {
        let uri = format!("/v1/{name}?{}", query::encode(query));
        match tokio::time::timeout(TIMEOUT, self.request(method, uri.trim_end_matches('?'))).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout { path: self.path.clone() }),
        }
    }

    /// Sends any request, as `curl --unix-socket` does, and returns the body of the answer.
    pub async fn request(&self, method: Method, uri: &str) -> Result<Bytes, ClientError> {
        let stream = UnixStream::connect(&self.path)
            .await
            .map_err(|source| ClientError::Connect { path: self.path.clone(), source })?;
        let broken = |e: hyper::Error| ClientError::Protocol(e.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let request = Request::builder().method(method).uri(uri).header(HOST, "tidegate");
        let request = request.body(Empty::<Bytes>::new()).expect("method, path and header are legal");
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            drop(sender); // Lets the connection end.
            Ok::<_, hyper::Error>((status, body))
        };
        let ((status, body), _) = {
            let (answered, ended) = tokio::join!(exchange, connection);
            (answered.map_err(broken)?, ended)
        };
        if status == StatusCode::OK {
            return Ok(body);
        }
        let message = serde_json::from_slice::<ErrorAnswer>(&body)
            .map_or_else(|_| String::from_utf8_lossy(&body).into_owned(), |e| e.error);
        Err(ClientError::Refused { status: status.as_u16(), message })
    }
}

fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|e| ClientError::Protocol(e.to_string()))
}
