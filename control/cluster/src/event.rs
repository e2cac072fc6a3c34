//! Kubernetes events as values: what users see in `kubectl describe`.
//!
//! `plan` creates them, `event_recorder` writes them. Their reasons are the ones that users know from other load
//! balancers.

use tidegate_model::objects::{ObjectKey, gateway_api};
use tidegate_policy::reconcile::{Finding, ObjectKind};

use super::reasons::{EventReason, event_reason};

/// The maximum length of a note that an API server accepts, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

/// The reasons of events that need no attention. All others, and denied requests, do.
const NORMAL: [EventReason; 7] = [
    event_reason::IP_ALLOCATED,
    event_reason::CLEAR_ASSIGNMENT,
    event_reason::ENSURING,
    event_reason::ENSURED,
    event_reason::UPDATED,
    event_reason::DELETED,
    event_reason::WAITING,
];

tidegate_spec::named! {
    /// Whether an event needs attention.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum EventType {
        /// It needs attention and is written first.
        Warning => "Warning",
        /// It needs no attention.
        Normal => "Normal",
    }
}

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Regarding {
    /// Its kind.
    pub(super) kind: ObjectKind,
    /// Namespace and name.
    pub(super) key: ObjectKey,
    /// Its uid, by which `kubectl describe` finds the event.
    pub(super) uid: String,
}

impl Regarding {
    /// A Service, or the Gateway that is served under this key.
    pub(super) fn service(key: &ObjectKey, uid: impl Into<String>) -> Self {
        let (kind, key) = match key.gateway_name() {
            Some(name) => (ObjectKind::Gateway, ObjectKey::new(key.namespace.as_str(), name)),
            None => (ObjectKind::Service, key.clone()),
        };
        Self { kind, key, uid: uid.into() }
    }

    /// An AddressPool.
    pub(super) fn address_pool(key: &ObjectKey, uid: impl Into<String>) -> Self {
        Self { kind: ObjectKind::AddressPool, key: key.clone(), uid: uid.into() }
    }

    /// An object of any kind.
    pub(super) fn object(kind: ObjectKind, key: &ObjectKey, uid: impl Into<String>) -> Self {
        Self { kind, key: key.clone(), uid: uid.into() }
    }

    /// `apiVersion` of the kind.
    pub(super) fn api_version(&self) -> &'static str {
        match self.kind {
            ObjectKind::AddressPool => tidegate_model::config::API_VERSION,
            ObjectKind::EndpointSlice => "discovery.k8s.io/v1",
            ObjectKind::Service | ObjectKind::Pod | ObjectKind::Node => "v1",
            ObjectKind::Gateway | ObjectKind::ListenerSet | ObjectKind::TcpRoute | ObjectKind::UdpRoute => {
                gateway_api::API_VERSION
            }
        }
    }
}

/// An event, which is written only once while its cause lasts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Event {
    /// Normal or Warning.
    pub(super) event_type: EventType,
    /// The object.
    pub(super) regarding: Regarding,
    /// The reason in CamelCase.
    pub(super) reason: &'static str,
    /// The text for display.
    pub(super) note: String,
}

impl Event {
    /// Creates an event, whose reason determines its type. The note is truncated to the length that an API server
    /// accepts.
    pub(super) fn new(regarding: Regarding, reason: impl Into<EventReason>, note: &str) -> Self {
        let reason = reason.into();
        let event_type = if NORMAL.contains(&reason) { EventType::Normal } else { EventType::Warning };
        Self { event_type, regarding, reason: reason.as_str(), note: cut(note, NOTE_BYTES_MAX) }
    }

    /// An event for a request that was denied, including what is accepted.
    pub(super) fn of_finding(regarding: Regarding, finding: &Finding) -> Self {
        let diagnostic = &finding.diagnostic;
        let note = match &diagnostic.accepted {
            Some(accepted) => format!("{}; accepted: {accepted}", diagnostic.what),
            None => diagnostic.what.clone(),
        };
        Self::new(regarding, finding.reason, &note)
    }
}

/// Truncates a text to `bytes_max` bytes at a character boundary.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    const MORE: &str = "...";
    let mut end = bytes_max - MORE.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &text[..end])
}
