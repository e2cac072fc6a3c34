//! Sends list and watch requests over HTTP and decodes the responses; every wait has a limit.
//!
//! A list is read page by page, and each page is decoded object by object while it is parsed, so that no page of JSON
//! trees is in memory. A watch delivers one event in each line. This file only classifies answers ([`Fault`]); the
//! caller, `reflect`, decides what to request next.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidegate_model::objects::ObjectKey;
use tidegate_model::yaml::Node;
use tokio::time::timeout;

use super::causes::causes;
use super::connect::Connection;
use super::kinds::Kind;
use super::object::{Identity, Received, identity, version_number};

/// The number of objects in a page, and in the pages of further attempts if the objects are too large together. An
/// object is at most 1.5 MiB on an API server.
pub(super) const PAGES: [u32; 3] = [500, 50, 5];
/// The maximum size of a page: 500 slices of 100 endpoints take a third of it.
const PAGE_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 96 << 20 };
/// The maximum size of an event. etcd accepts no object above 1.5 MiB.
const EVENT_BYTES_MAX: usize = 64 << 20;
/// The maximum number of bytes of an error's body that are read.
const STATUS_BYTES_MAX: usize = 64 << 10;

pub(super) const JSON: &str = "application/json";
/// The accepted types for kinds of which only the metadata is needed. No other type is accepted, since a gateway must
/// not see the rest of a Pod. API servers support this since Kubernetes 1.15.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_EVENT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// There is no client, because of the kubeconfig or the credentials.
    #[error("{0}")]
    Connect(String),
    /// The API server refused the request, with an HTTP status or in the watch.
    #[error("the API server answers {code}: {message}")]
    Refused { code: u16, message: String, retry_after: Option<Duration> },
    /// Nothing was received for this time.
    #[error("the API server is silent for {0:?}")]
    Silent(Duration),
    /// The API server does not answer on the connection of a watch, which may never notice that.
    #[error("the API server stopped answering")]
    Dead,
    /// The answer exceeds the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// TCP, TLS or HTTP failed, or the answer was truncated.
    #[error("{0}")]
    Broken(String),
    /// The answer does not conform to the API.
    #[error("the answer is invalid: {0}")]
    Garbled(String),
    /// The watch reported a version before its start.
    #[error("the API server went back in time: version {now} after {before}")]
    Backwards { before: u64, now: u64 },
    /// The history does not contain a change that a watch reported, whatever its version is.
    #[error("the API server went back in time: it lacks version {version} of {key}")]
    Forgotten { key: String, version: u64 },
    /// The API server has the history of another cluster, so versions cannot be compared.
    #[error("the API server belongs to another cluster than before")]
    OtherCluster,
    /// Objects of another kind show that the API server has another history.
    #[error("the API server went back in time, according to another kind")]
    OtherKind,
}

impl Fault {
    /// Whether the API server answered, and only this request failed.
    pub(super) fn is_answer(&self) -> bool {
        match self {
            Self::Refused { code, .. } => (400..500).contains(code),
            Self::TooLarge(_) | Self::Garbled(_) => true,
            Self::Backwards { .. } | Self::Forgotten { .. } | Self::OtherCluster | Self::OtherKind => true,
            Self::Connect(_) | Self::Silent(_) | Self::Dead | Self::Broken(_) => false,
        }
    }

    /// Whether the requested version is too old, so that only a list helps.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. }) || self.is_other_history()
    }

    /// Whether objects that are missing on the API server may not have been deleted.
    pub(super) fn is_other_history(&self) -> bool {
        matches!(self, Self::Backwards { .. } | Self::Forgotten { .. } | Self::OtherCluster | Self::OtherKind)
    }

    /// Whether the API server does not allow the gateway to read the kind.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403 | 406, .. })
    }

    /// Whether the API server does not have the kind, which is optional. A list confirms that.
    pub(super) fn is_absence(&self, kind: &Kind) -> bool {
        kind.optional && matches!(self, Self::Refused { code: 404, .. })
    }

    /// Names the missing kind, if it is one that every current API server has.
    pub(super) fn of_old_server(self, kind: &Kind) -> Self {
        match self {
            Self::Refused { code: 404, message, retry_after } if !kind.optional => {
                let message = format!("{message}; Kubernetes 1.21 or newer is needed");
                Self::Refused { code: 404, message, retry_after }
            }
            other => other,
        }
    }
}

/// The cluster of the API server: the uid of the namespace `kube-system`, which is created with a cluster; empty if
/// there is none.
pub(super) async fn cluster(connection: &Connection, wait: Duration) -> Result<String, Fault> {
    let uri = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system".to_owned();
    let list = heads(connection, uri, JSON, wait).await?;
    Ok(list.items.into_iter().next().map(|item| item.metadata.uid).unwrap_or_default())
}

/// The current version of the API server's objects of a kind. Each kind has its own: with `--etcd-servers-overrides`
/// kinds are in etcds with separate versions.
pub(super) async fn version(connection: &Connection, kind: &Kind, wait: Duration) -> Result<u64, Fault> {
    let uri = uri(kind, &[("limit", "1".to_owned())]);
    let list = heads(connection, uri, METADATA_LIST, wait).await?;
    Ok(version_number(&list.metadata.resource_version))
}

/// Like [`version`], also with the version of one object if the API server has it. A list restricted to one name needs
/// the same rights as the list of all.
pub(super) async fn version_of(
    connection: &Connection,
    kind: &Kind,
    key: &ObjectKey,
    wait: Duration,
) -> Result<(u64, Option<u64>), Fault> {
    let name = [("fieldSelector", format!("metadata.name={}", key.name))];
    let uri = uri_in(kind, &key.namespace, &name);
    let list = heads(connection, uri, METADATA_LIST, wait).await?;
    let object = list.items.first().map(|item| version_number(&item.metadata.resource_version));
    Ok((version_number(&list.metadata.resource_version), object))
}

/// The version that one object had when the API server's version was `at`; `None` if it didn't exist then, or if the server
/// doesn't say: the version may be in the future, or discarded (an API server discards what is older than 5 to 10 minutes).
pub(super) async fn version_at(
    connection: &Connection,
    kind: &Kind,
    key: &ObjectKey,
    at: u64,
    wait: Duration,
) -> Result<Option<u64>, Fault> {
    let query = [
        ("fieldSelector", format!("metadata.name={}", key.name)),
        ("resourceVersion", at.to_string()),
        ("resourceVersionMatch", "Exact".to_owned()),
    ];
    match heads(connection, uri_in(kind, &key.namespace, &query), METADATA_LIST, wait).await {
        Ok(list) => Ok(list.items.first().map(|item| version_number(&item.metadata.resource_version))),
        // These say nothing about the past: the list is repeated.
        Err(fault @ Fault::Refused { code: 401 | 429, .. }) => Err(fault),
        Err(Fault::Refused { .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The time of the API server when it answered, to the second; `None` if it does not say.
pub(super) async fn time(connection: &Connection, wait: Duration) -> Result<Option<Timestamp>, Fault> {
    let response = send(connection, "/version".to_owned(), JSON, wait).await?;
    Ok(response.headers().get("date").and_then(|date| time_of(date.to_str().ok()?)))
}

/// Reads a `Date` header (RFC 9110, section 5.6.7).
fn time_of(date: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

/// The metadata of a list and of its items. A list of metadata without items has `items: null`.
#[derive(Deserialize)]
struct Heads {
    metadata: Head,
    #[serde(default, deserialize_with = "or_default")]
    items: Vec<HeadOfItem>,
}

#[derive(Deserialize)]
struct HeadOfItem {
    metadata: Head,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    #[serde(deserialize_with = "or_default")]
    uid: String,
    #[serde(deserialize_with = "or_default")]
    resource_version: String,
}

/// Reads `null` as the default, as the API does for every field.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

async fn heads(
    connection: &Connection,
    uri: String,
    accept: &'static str,
    wait: Duration,
) -> Result<Heads, Fault> {
    read(connection, uri, accept, wait).await
}

/// Reads a document of JSON.
pub(super) async fn read<T: DeserializeOwned>(
    connection: &Connection,
    uri: String,
    accept: &str,
    wait: Duration,
) -> Result<T, Fault> {
    let mut response = send(connection, uri, accept, wait).await?;
    let text = body(&mut response, EVENT_BYTES_MAX, wait).await?;
    serde_json::from_slice(&text).map_err(|e| Fault::Garbled(e.to_string()))
}

/// A page of a list.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) items: Vec<Received>,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// `metadata.continue`, empty on the last page.
    pub(super) next: String,
}

/// Reads one page of the objects of a kind, with at most `objects_max` of them. `next` is the token of the previous
/// page.
pub(super) async fn list(
    connection: &Connection,
    kind: &'static Kind,
    next: &str,
    objects_max: u32,
    wait: Duration,
) -> Result<Page, Fault> {
    let mut query = vec![("limit", objects_max.to_string())];
    if !next.is_empty() {
        query.push(("continue", next.to_owned()));
    }
    let accept = if kind.only.is_some() { METADATA_LIST } else { JSON };
    let mut response = send(connection, uri(kind, &query), accept, wait).await?;
    let text = body(&mut response, PAGE_BYTES_MAX, wait).await?;
    // Parsing a page may take a tenth of a second, so it must not run on a thread that other tasks wait for.
    let parsed = tokio::task::spawn_blocking(move || parse_page(kind, &text)).await;
    parsed.map_err(|e| Fault::Broken(e.to_string()))?
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// `ADDED` or `MODIFIED`.
    Applied(Box<Received>),
    /// `DELETED`, at a version.
    Deleted(Identity),
    /// `BOOKMARK`: everything up to here was sent.
    Bookmark(u64),
}

impl WatchEvent {
    /// The object that changed.
    pub(super) fn key(&self) -> Option<&ObjectKey> {
        match self {
            Self::Applied(received) => Some(&received.key),
            Self::Deleted(identity) => Some(&identity.key),
            Self::Bookmark(_) => None,
        }
    }

    pub(super) fn version(&self) -> u64 {
        match self {
            Self::Applied(received) => received.version,
            Self::Deleted(identity) => identity.version,
            Self::Bookmark(version) => *version,
        }
    }
}

/// A watch that is connected.
pub(super) struct Watch {
    kind: &'static Kind,
    response: Response<Body>,
    buffer: Vec<u8>,
    /// The positions in `buffer` up to which events were returned, and up to which no further line end was found.
    parsed: usize,
    searched: usize,
}

impl Watch {
    /// Starts to watch after `version`, for at most `seconds` if the API server respects that.
    pub(super) async fn open(
        connection: &Connection,
        kind: &'static Kind,
        version: &str,
        seconds: u64,
        wait: Duration,
    ) -> Result<Self, Fault> {
        let query = [
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("resourceVersion", version.to_owned()),
            ("timeoutSeconds", seconds.to_string()),
        ];
        let accept = if kind.only.is_some() { METADATA_EVENT } else { JSON };
        let response = send(connection, uri(kind, &query), accept, wait).await?;
        Ok(Self { kind, response, buffer: Vec::new(), parsed: 0, searched: 0 })
    }

    /// The next event; `None` if the API server ended the watch normally. A truncated event is sent again in the next
    /// watch.
    pub(super) async fn next(&mut self, silence: Duration) -> Result<Option<WatchEvent>, Fault> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                let end = self.searched + at;
                let event = parse_event(self.kind, &self.buffer[self.parsed..end]);
                (self.parsed, self.searched) = (end + 1, end + 1);
                match event? {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            self.buffer.drain(..self.parsed);
            self.parsed = 0;
            self.searched = self.buffer.len();
            if self.searched > EVENT_BYTES_MAX {
                return Err(Fault::Garbled(format!("an event of more than {EVENT_BYTES_MAX} bytes")));
            }
            match frame(&mut self.response, silence).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::Broken("the watch was cut in the middle of an event".to_owned())),
            }
        }
    }
}

/// The URI of the objects of a kind.
fn uri(kind: &Kind, query: &[(&str, String)]) -> String {
    uri_in(kind, "", query)
}

/// The URI of the objects of a kind in a namespace, or in all namespaces if it is empty.
fn uri_in(kind: &Kind, namespace: &str, query: &[(&str, String)]) -> String {
    let selector = ("labelSelector", kind.labels.to_owned());
    let selector = Some(&selector).filter(|(_, labels)| !labels.is_empty());
    let pairs = query.iter().chain(selector).map(|(key, value)| format!("{key}={}", encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    match kind.path.rsplit_once('/').filter(|_| !namespace.is_empty()) {
        Some((api, plural)) => format!("{api}/namespaces/{}/{plural}?{query}", encoded(namespace)),
        None => format!("{}?{query}", kind.path),
    }
}

async fn send(
    connection: &Connection,
    uri: String,
    accept: &str,
    wait: Duration,
) -> Result<Response<Body>, Fault> {
    let request = Request::get(uri).header("accept", accept).body(Body::empty());
    let request = request.expect("the parts of a URI are encoded");
    let sent = timeout(wait, connection.client.send(request)).await.map_err(|_| Fault::Silent(wait))?;
    let mut response = sent.map_err(|e| Fault::Broken(causes(&e)))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let (status, header) = (response.status(), response.headers().get("retry-after"));
    let header = header.and_then(|v| v.to_str().ok()?.trim().parse().ok());
    let mut text = Vec::new();
    while text.len() < STATUS_BYTES_MAX
        && let Ok(Some(bytes)) = frame(&mut response, wait).await
    {
        text.extend_from_slice(&bytes);
    }
    Err(refusal(status, header, serde_json::from_slice(&text).unwrap_or_default()))
}

/// Reads a complete body.
async fn body(response: &mut Response<Body>, bytes_max: usize, wait: Duration) -> Result<Vec<u8>, Fault> {
    let mut text = Vec::new();
    while let Some(bytes) = frame(response, wait).await? {
        if text.len() + bytes.len() > bytes_max {
            return Err(Fault::TooLarge(bytes_max));
        }
        text.extend_from_slice(&bytes);
    }
    Ok(text)
}

/// The next part of a body.
async fn frame(response: &mut Response<Body>, wait: Duration) -> Result<Option<Bytes>, Fault> {
    loop {
        let frame = timeout(wait, response.body_mut().frame()).await.map_err(|_| Fault::Silent(wait))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Fault::Broken(causes(&error))),
            // Trailers are ignored.
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// The relevant part of a `meta/v1` Status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    #[serde(deserialize_with = "or_default")]
    message: String,
    #[serde(deserialize_with = "or_default")]
    reason: String,
    #[serde(deserialize_with = "or_default")]
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    #[serde(deserialize_with = "or_default")]
    retry_after_seconds: u64,
}

fn refusal(http: StatusCode, retry_after: Option<u64>, status: Status) -> Fault {
    let asked = Some(status.details.retry_after_seconds).filter(|s| *s > 0);
    let message = [status.message, status.reason].into_iter().find(|text| !text.is_empty());
    let reason = || http.canonical_reason().unwrap_or("no reason given").to_owned();
    Fault::Refused {
        code: http.as_u16(),
        message: message.unwrap_or_else(reason),
        retry_after: retry_after.or(asked).map(Duration::from_secs),
    }
}

/// Percent-encodes a value of a query (RFC 3986, section 2.3).
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn parse_event(kind: &Kind, line: &[u8]) -> Result<Option<WatchEvent>, Fault> {
    #[derive(Deserialize)]
    struct Event {
        r#type: String,
        object: Node,
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let event: Event = serde_json::from_slice(line).map_err(|e| Fault::Garbled(e.to_string()))?;
    match &*event.r#type {
        // Treated as deleted: the object passed the filter before this change, or never did.
        "ADDED" | "MODIFIED" if kind.only.is_some_and(|only| !only(&event.object)) => {
            Ok(sound(identity(kind, &event.object)).map(WatchEvent::Deleted))
        }
        "ADDED" | "MODIFIED" => {
            let received = sound(Received::new(kind, event.object));
            Ok(received.map(|received| WatchEvent::Applied(Box::new(received))))
        }
        "DELETED" => Ok(sound(identity(kind, &event.object)).map(WatchEvent::Deleted)),
        "BOOKMARK" => {
            let metadata = event.object.entry("metadata").and_then(|e| e.node.entry("resourceVersion"));
            let version = metadata.map_or(0, |e| e.node.text().map_or(0, version_number));
            Ok(Some(WatchEvent::Bookmark(version)))
        }
        "ERROR" => {
            let text = serde_json::to_vec(&event.object).unwrap_or_default();
            let status: Status = serde_json::from_slice(&text).unwrap_or_default();
            let http = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Err(refusal(http, None, status))
        }
        // An event type of a later API.
        _ => Ok(None),
    }
}

/// Ignores an object without a name, so that it does not affect the others. No API server has one, but an intermediary
/// may send one.
fn sound<T>(object: Result<T, String>) -> Option<T> {
    object.inspect_err(|why| tracing::warn!(reason = why, "ignoring an object that the API server sent")).ok()
}

fn parse_page(kind: &'static Kind, text: &[u8]) -> Result<Page, Fault> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    PageOf(kind).deserialize(&mut deserializer).map_err(|e| Fault::Garbled(e.to_string()))
}

/// Decodes a `List`, one item at a time.
struct PageOf(&'static Kind);

impl<'de> DeserializeSeed<'de> for PageOf {
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Page, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PageOf {
    type Value = Page;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a {}List", self.0.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Page, A::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct ListMeta {
            #[serde(deserialize_with = "or_default")]
            resource_version: String,
            #[serde(deserialize_with = "or_default")]
            r#continue: String,
        }
        let mut page = Page::default();
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "metadata" => {
                    let meta: ListMeta = map.next_value()?;
                    page.version = meta.resource_version;
                    page.next = meta.r#continue;
                }
                "items" => {
                    page.items = map.next_value_seed(Items(self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // Without the version it is another object, such as a Status. A list without items may omit them.
        if page.version.is_empty() {
            return Err(serde::de::Error::custom(format!("no {}List with a resourceVersion", self.0.name)));
        }
        Ok(page)
    }
}

struct Items(&'static Kind);

impl<'de> DeserializeSeed<'de> for Items {
    type Value = Vec<Received>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Received>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items {
    type Value = Vec<Received>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list")
    }

    /// `items: null` is an empty list.
    fn visit_unit<E>(self) -> Result<Vec<Received>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Received>, A::Error> {
        let mut items = Vec::new();
        while let Some(node) = seq.next_element::<Node>()? {
            if self.0.only.is_some_and(|only| !only(&node)) {
                continue;
            }
            items.extend(sound(Received::new(self.0, node)));
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests;
