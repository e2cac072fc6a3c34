//! Kubernetes events as values: what users see in `kubectl describe`.
//!
//! `plan` creates them, `event_recorder` writes them. Their reasons are the ones that users know from other load
//! balancers.

use tidegate_model::diagnostic::Severity;
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::{Finding, ObjectKind};

use super::reasons::EventReason;

/// The maximum length of a note that an API server accepts, in bytes.
const NOTE_BYTES_MAX: usize = 1024;

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
pub struct Regarding {
    /// Its kind.
    pub kind: ObjectKind,
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its uid, by which `kubectl describe` finds the event.
    pub uid: String,
}

impl Regarding {
    /// A Service.
    #[must_use]
    pub fn service(key: &ObjectKey, uid: impl Into<String>) -> Self {
        Self { kind: ObjectKind::Service, key: key.clone(), uid: uid.into() }
    }

    /// An AddressPool.
    #[must_use]
    pub fn address_pool(key: &ObjectKey, uid: impl Into<String>) -> Self {
        Self { kind: ObjectKind::AddressPool, key: key.clone(), uid: uid.into() }
    }

    /// An object of any kind.
    #[must_use]
    pub fn object(kind: ObjectKind, key: &ObjectKey, uid: impl Into<String>) -> Self {
        Self { kind, key: key.clone(), uid: uid.into() }
    }

    /// `apiVersion` of the kind.
    #[must_use]
    pub fn api_version(&self) -> &'static str {
        match self.kind {
            ObjectKind::AddressPool => tidegate_model::config::API_VERSION,
            ObjectKind::EndpointSlice => "discovery.k8s.io/v1",
            ObjectKind::Service | ObjectKind::Pod | ObjectKind::Node => "v1",
        }
    }
}

/// An event, which is written only once while its cause lasts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event {
    /// Normal or Warning.
    pub event_type: EventType,
    /// The object.
    pub regarding: Regarding,
    /// The reason in CamelCase.
    pub reason: &'static str,
    /// The text for display.
    pub note: String,
}

impl Event {
    /// Creates an event. The note is truncated to the length that an API server accepts.
    #[must_use]
    pub fn new(
        event_type: EventType,
        regarding: Regarding,
        reason: impl Into<EventReason>,
        note: &str,
    ) -> Self {
        Self { event_type, regarding, reason: reason.into().as_str(), note: cut(note, NOTE_BYTES_MAX) }
    }

    /// An event for a request that was denied, including what is accepted.
    #[must_use]
    pub fn of_finding(regarding: Regarding, finding: &Finding) -> Self {
        let diagnostic = &finding.diagnostic;
        let note = match &diagnostic.accepted {
            Some(accepted) => format!("{}; accepted: {accepted}", diagnostic.what),
            None => diagnostic.what.clone(),
        };
        // A warning also means that the user didn't get what was requested.
        let event_type = match diagnostic.severity {
            Severity::Error | Severity::Warning => EventType::Warning,
        };
        Self::new(event_type, regarding, finding.reason, &note)
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
