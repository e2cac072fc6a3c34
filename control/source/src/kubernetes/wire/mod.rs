//! Sends list and watch requests over HTTP; every wait has a limit. `decode` parses the responses.
//!
//! A list is read page by page, and each page is decoded object by object while it is parsed, so that no page is ever
//! in memory as a JSON tree. A watch delivers one event per line. Responses are only classified here ([`Fault`]); the
//! caller, `reflect`, decides what to request next.

mod decode;
mod fault;

use std::time::Duration;

pub(super) use decode::{Page, WatchEvent};
use decode::{parse_event, parse_page, refusal};
pub(super) use fault::Fault;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::{Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tidegate_model::objects::ObjectKey;
use tokio::time::timeout;

use super::connect::Connection;
use super::error_text::causes;
use super::kinds::Kind;
use super::object::version_number;

/// The number of objects per page in the first attempt, and in further attempts if a page is too large. On an API
/// server, an object has at most 1.5 MiB.
pub(super) const PAGES: [u32; 3] = [500, 50, 5];
/// The maximum size of a page. 500 slices of 100 endpoints take a third of it.
const PAGE_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 96 << 20 };
/// The maximum size of an event. etcd accepts no object above 1.5 MiB.
const EVENT_BYTES_MAX: usize = 64 << 20;
/// The maximum number of bytes to read from the body of an error response.
const STATUS_BYTES_MAX: usize = 64 << 10;

pub(super) const JSON: &str = "application/json";
/// The accepted types for kinds of which only the metadata is needed. No other type is accepted, because a gateway must
/// not see the rest of a Pod. API servers have supported this since Kubernetes 1.15.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_EVENT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Sends requests on a connection. Each waits at most for `wait` for the start of the response, and for each further
/// part of it.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) connection: &'a Connection,
    pub(super) wait: Duration,
}

impl Requests<'_> {
    /// The cluster of the API server: the uid of the namespace `kube-system`, which is created with a cluster; empty if
    /// there is none.
    pub(super) async fn cluster(self) -> Result<String, Fault> {
        let uri = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system".to_owned();
        let list: Heads = self.read(uri, JSON).await?;
        Ok(list.items.into_iter().next().map(|item| item.metadata.uid).unwrap_or_default())
    }

    /// Whether a list failed because the API server doesn't have the kind, which is optional. A gateway without
    /// permission for the kind gets the same response whether it exists or not, but every account may read which kinds
    /// exist (the ClusterRole `system:discovery`).
    pub(super) async fn is_absence(self, fault: &Fault, kind: &Kind) -> bool {
        if !(kind.optional && fault.is_forbidden()) {
            return fault.is_absence(kind);
        }
        let Some((version, plural)) = kind.path.rsplit_once('/') else { return false };
        match self.read::<ApiResources>(version.to_owned(), JSON).await {
            Ok(kinds) => !kinds.resources.iter().any(|one| one.name == plural),
            Err(fault) => fault.is_absence(kind),
        }
    }

    /// The current version of the API server's objects of a kind, and the version of the object `key` if the API server
    /// has it. With `--etcd-servers-overrides`, kinds are stored in etcds with separate versions.
    pub(super) async fn versions(
        self,
        kind: &Kind,
        key: Option<&ObjectKey>,
    ) -> Result<(u64, Option<u64>), Fault> {
        let list: Heads = match key {
            Some(key) => self.list_of(kind, key, Vec::new()).await?,
            None => self.read(uri(kind, "", &[("limit", "1".to_owned())]), METADATA_LIST).await?,
        };
        Ok((version_number(&list.metadata.resource_version), key.and_then(|_| list.version())))
    }

    /// The version of one object when the API server's version was `at`; `None` if it didn't exist then, or if the
    /// server doesn't know. That version may be in the future, or discarded (an API server discards versions after 5 to
    /// 10 minutes).
    pub(super) async fn version_at(
        self,
        kind: &Kind,
        key: &ObjectKey,
        at: u64,
    ) -> Result<Option<u64>, Fault> {
        let at = [("resourceVersion", at.to_string()), ("resourceVersionMatch", "Exact".to_owned())];
        match self.list_of(kind, key, at.into()).await {
            Ok(list) => Ok(list.version()),
            // These errors are unrelated to the past, so the list is repeated.
            Err(fault @ Fault::Refused { code: 401 | 429, .. }) => Err(fault),
            Err(Fault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The list of one object. A list restricted to one name needs no other permission than a full list.
    async fn list_of(
        self,
        kind: &Kind,
        key: &ObjectKey,
        mut query: Vec<(&str, String)>,
    ) -> Result<Heads, Fault> {
        query.push(("fieldSelector", format!("metadata.name={}", key.name)));
        self.read(uri(kind, &key.namespace, &query), METADATA_LIST).await
    }

    /// The time of the API server when it responded, to the second; `None` if unknown.
    pub(super) async fn time(self) -> Result<Option<Timestamp>, Fault> {
        let response = self.send("/version".to_owned(), JSON).await?;
        Ok(response.headers().get("date").and_then(|date| time_of(date.to_str().ok()?)))
    }

    /// Reads a JSON document.
    pub(super) async fn read<T: DeserializeOwned>(self, uri: String, accept: &str) -> Result<T, Fault> {
        let mut response = self.send(uri, accept).await?;
        let text = body(&mut response, EVENT_BYTES_MAX, self.wait).await?;
        serde_json::from_slice(&text).map_err(|e| Fault::InvalidResponse(e.to_string()))
    }

    /// Reads one page of the objects of a kind, with at most `objects_max` of them. `next` is the token of the previous
    /// page.
    pub(super) async fn list(self, kind: &'static Kind, next: &str, objects_max: u32) -> Result<Page, Fault> {
        let mut query = vec![("limit", objects_max.to_string())];
        if !next.is_empty() {
            query.push(("continue", next.to_owned()));
        }
        let accept = if kind.only.is_some() { METADATA_LIST } else { JSON };
        let mut response = self.send(uri(kind, "", &query), accept).await?;
        let text = body(&mut response, PAGE_BYTES_MAX, self.wait).await?;
        // Parsing a page may take 100 ms, so it must not run on a thread that other tasks wait for.
        let parsed = tokio::task::spawn_blocking(move || parse_page(kind, &text)).await;
        parsed.map_err(|e| Fault::Broken(e.to_string()))?
    }

    /// Starts to watch after `version`, for at most `seconds` if the API server respects that.
    pub(super) async fn watch(
        self,
        kind: &'static Kind,
        version: &str,
        seconds: u64,
    ) -> Result<Watch, Fault> {
        let query = [
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("resourceVersion", version.to_owned()),
            ("timeoutSeconds", seconds.to_string()),
        ];
        let accept = if kind.only.is_some() { METADATA_EVENT } else { JSON };
        let response = self.send(uri(kind, "", &query), accept).await?;
        Ok(Watch { kind, response, buffer: Vec::new(), parsed: 0, searched: 0 })
    }

    async fn send(self, uri: String, accept: &str) -> Result<Response<Body>, Fault> {
        let Self { connection, wait } = self;
        let request = Request::get(uri).header("accept", accept).body(Body::empty());
        let request = request.expect("the parts of a URI are encoded");
        let sent = timeout(wait, connection.client.send(request)).await.map_err(|_| Fault::TimedOut(wait))?;
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
}

/// Parses a `Date` header (RFC 9110, section 5.6.7).
fn time_of(date: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

/// Reads `null` as the default, as the API does for every field.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(field: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// The kinds of a version of a group.
#[derive(Deserialize)]
struct ApiResources {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
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

impl Heads {
    /// The version of the first item.
    fn version(&self) -> Option<u64> {
        self.items.first().map(|item| version_number(&item.metadata.resource_version))
    }
}

/// A connected watch.
pub(super) struct Watch {
    kind: &'static Kind,
    response: Response<Body>,
    buffer: Vec<u8>,
    /// The positions in `buffer` up to which events were returned, and up to which no further line end was found.
    parsed: usize,
    searched: usize,
}

impl Watch {
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
                return Err(Fault::InvalidResponse(format!(
                    "an event is larger than {EVENT_BYTES_MAX} bytes"
                )));
            }
            match frame(&mut self.response, silence).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    return Err(Fault::Broken(
                        "the watch was truncated in the middle of an event".to_owned(),
                    ));
                }
            }
        }
    }
}

/// The URI of the objects of a kind in a namespace, or in all namespaces if it is empty.
fn uri(kind: &Kind, namespace: &str, query: &[(&str, String)]) -> String {
    let selector = ("labelSelector", kind.labels.to_owned());
    let selector = Some(&selector).filter(|(_, labels)| !labels.is_empty());
    let pairs = query.iter().chain(selector).map(|(key, value)| format!("{key}={}", encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    match kind.path.rsplit_once('/').filter(|_| !namespace.is_empty()) {
        Some((api, plural)) => format!("{api}/namespaces/{}/{plural}?{query}", encoded(namespace)),
        None => format!("{}?{query}", kind.path),
    }
}

/// Percent-encodes all but the unreserved characters (RFC 3986, section 2.3).
fn encoded(value: &str) -> PercentEncode<'_> {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(value, RESERVED)
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
        let frame = timeout(wait, response.body_mut().frame()).await.map_err(|_| Fault::TimedOut(wait))?;
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

#[cfg(test)]
mod tests;
