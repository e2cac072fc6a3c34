//! Decodes pages of lists, events of watches, and refusals.
//!
//! Invariant: an object without a name doesn't affect the others, and no page is ever in memory as a JSON tree.

use std::time::Duration;

use hyper::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tidegate_model::objects::ObjectKey;
use tidegate_model::yaml::Node;

use super::fault::Fault;
use crate::kubernetes::kinds::Kind;
use crate::kubernetes::object::{Identity, Received, identity, version_number};

/// A page of a list.
#[derive(Debug, Default)]
pub(in crate::kubernetes) struct Page {
    pub(in crate::kubernetes) items: Vec<Received>,
    /// `metadata.resourceVersion`.
    pub(in crate::kubernetes) version: String,
    /// `metadata.continue`, empty on the last page.
    pub(in crate::kubernetes) next: String,
}

/// An event of a watch.
#[derive(Debug)]
pub(in crate::kubernetes) enum WatchEvent {
    /// `ADDED` or `MODIFIED`.
    Applied(Box<Received>),
    /// `DELETED`, at a version.
    Deleted(Identity),
    /// `BOOKMARK`: everything up to here was sent.
    Bookmark(u64),
}

impl WatchEvent {
    /// The object that changed.
    pub(in crate::kubernetes) fn key(&self) -> Option<&ObjectKey> {
        match self {
            Self::Applied(received) => Some(&received.key),
            Self::Deleted(identity) => Some(&identity.key),
            Self::Bookmark(_) => None,
        }
    }

    pub(in crate::kubernetes) fn version(&self) -> u64 {
        match self {
            Self::Applied(received) => received.version,
            Self::Deleted(identity) => identity.version,
            Self::Bookmark(version) => *version,
        }
    }
}

/// Converts an unsuccessful response.
pub(super) fn refusal(http: StatusCode, retry_after: Option<u64>, status: Status) -> Fault {
    let requested = status.details.and_then(|details| u64::try_from(details.retry_after_seconds?).ok());
    let message = [status.message, status.reason].into_iter().flatten().find(|text| !text.is_empty());
    let reason = || http.canonical_reason().unwrap_or("no reason given").to_owned();
    Fault::Refused {
        code: http.as_u16(),
        message: message.unwrap_or_else(reason),
        retry_after: retry_after.or(requested.filter(|s| *s > 0)).map(Duration::from_secs),
    }
}

/// Decodes a line of a watch; `None` for a line without an event, or with one that isn't used.
pub(super) fn parse_event(kind: &Kind, line: &[u8]) -> Result<Option<WatchEvent>, Fault> {
    #[derive(Deserialize)]
    struct Event {
        r#type: String,
        object: Node,
    }
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let event: Event = serde_json::from_slice(line).map_err(|e| Fault::InvalidResponse(e.to_string()))?;
    match &*event.r#type {
        // Treated as deleted: either the object passed the filter before this change, or it never did.
        "ADDED" | "MODIFIED" if kind.only.is_some_and(|only| !only(&event.object)) => {
            Ok(valid(identity(kind, &event.object)).map(WatchEvent::Deleted))
        }
        "ADDED" | "MODIFIED" => {
            let received = valid(Received::new(kind, event.object));
            Ok(received.map(|received| WatchEvent::Applied(Box::new(received))))
        }
        "DELETED" => Ok(valid(identity(kind, &event.object)).map(WatchEvent::Deleted)),
        "BOOKMARK" => {
            let metadata = event.object.entry("metadata").and_then(|e| e.node.entry("resourceVersion"));
            let version = metadata.map_or(0, |e| e.node.text().map_or(0, version_number));
            Ok(Some(WatchEvent::Bookmark(version)))
        }
        "ERROR" => {
            let text = serde_json::to_vec(&event.object).unwrap_or_default();
            let status: Status = serde_json::from_slice(&text).unwrap_or_default();
            let code = status.code.and_then(|code| StatusCode::from_u16(code.try_into().ok()?).ok());
            Err(refusal(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), None, status))
        }
        // An event type of a later API version.
        _ => Ok(None),
    }
}

/// Ignores an object without a name, so that it doesn't affect the others. API servers never send one, but an
/// intermediary might.
fn valid<T>(object: Result<T, String>) -> Option<T> {
    object.inspect_err(|why| tracing::warn!(reason = why, "ignoring an object from the API server")).ok()
}

/// Decodes a page of a list.
pub(super) fn parse_page(kind: &'static Kind, text: &[u8]) -> Result<Page, Fault> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    PageOf(kind).deserialize(&mut deserializer).map_err(|e| Fault::InvalidResponse(e.to_string()))
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
        let mut page = Page::default();
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "metadata" => {
                    let meta: ListMeta = map.next_value()?;
                    page.version = meta.resource_version.unwrap_or_default();
                    page.next = meta.continue_.unwrap_or_default();
                }
                "items" => {
                    page.items = map.next_value_seed(Items(self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // Without a version it is not a list but, for example, a Status. An empty list may omit `items`.
        if page.version.is_empty() {
            return Err(serde::de::Error::custom(format!(
                "not a {}List with a resourceVersion",
                self.0.name
            )));
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
            items.extend(valid(Received::new(self.0, node)));
        }
        Ok(items)
    }
}
