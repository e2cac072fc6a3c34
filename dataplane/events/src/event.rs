//! [`Event`]: a change of state as a value.
//!
//! Invariant: an event has a bounded size, whatever the texts that it is created from.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_spec::named;

use super::reason::{Level, Reason};

/// The maximum length of the message, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The maximum length of any other text, in bytes. The name of a Service with its namespace has up to 127.
const TEXT_BYTES_MAX: usize = 256;

named! {
    /// What an event is about.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum ObjectKind {
        /// A Service, `namespace/name`.
        Service => "service",
        /// A backend of a Service, or of several, `ADDRESS:PORT`.
        Backend => "backend",
        /// A VIP.
        Vip => "vip",
        /// A Lease or a VRRP group.
        Group => "group",
        /// An interface, by its name in the configuration.
        Interface => "interface",
        /// A BGP peer, by its address.
        Peer => "peer",
        /// The target of a drain.
        Target => "target",
        /// The gateway, by its name.
        Gateway => "gateway",
        /// The source of objects.
        Source => "source",
    }
}

named! {
    /// Details of an event, by their names in the log.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Field {
        /// The cause.
        Reason => "reason",
        /// What changed.
        Changed => "changed",
        /// The new state.
        State => "state",
        /// The VIPs of a Service.
        Vips => "vips",
        /// The pool of a VIP.
        Pool => "pool",
        /// A service port.
        Port => "port",
        /// The number of backends that accept new flows afterwards.
        Left => "left",
        /// The number of backends.
        Backends => "backends",
        /// The number of workers.
        Workers => "workers",
        /// The AS number of a peer.
        Asn => "asn",
        /// The tap of an interface.
        Tap => "tap",
        /// Who requested it.
        By => "by",
        /// A number of flows.
        Flows => "flows",
        /// Restored flows.
        Restored => "restored",
        /// Flows that were not restored, by reason.
        NotRestored => "not_restored",
        /// A duration in milliseconds.
        TookMs => "took_ms",
        /// A duration in seconds.
        Seconds => "seconds",
        /// A point in time.
        At => "at",
        /// An error.
        Error => "error",
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its kind.
    #[serde(with = "by_name")]
    pub kind: ObjectKind,
    /// Its name; empty for the gateway itself.
    pub name: String,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => fmt::Debug::fmt(text, f),
        }
    }
}

/// A change of state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, which is higher than those of all earlier events of the gateway, also of earlier processes.
    pub number: u64,
    /// When it was recorded.
    #[serde(with = "as_text")]
    pub time: Timestamp,
    /// What changed.
    #[serde(with = "by_name")]
    pub reason: Reason,
    /// What it is about.
    pub object: Object,
    /// The Service concerned, `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The text for people.
    pub message: String,
    /// Details, by their names in the log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Value>,
}

impl Event {
    /// An event that happens now.
    #[must_use]
    pub fn new(reason: Reason, kind: ObjectKind, name: &str, message: &str) -> Self {
        let name = cut(name, TEXT_BYTES_MAX);
        let service = (kind == ObjectKind::Service).then(|| name.clone());
        Self {
            number: 0,
            time: Timestamp::now(),
            reason,
            object: Object { kind, name },
            service,
            message: cut(message, MESSAGE_BYTES_MAX),
            fields: BTreeMap::new(),
        }
    }

    /// An event of the gateway itself.
    #[must_use]
    pub fn of_gateway(reason: Reason, message: &str) -> Self {
        Self::new(reason, ObjectKind::Gateway, "", message)
    }

    /// Adds the Service concerned.
    #[must_use]
    pub fn of_service(self, namespace: &str, name: &str) -> Self {
        Self { service: Some(cut(&format!("{namespace}/{name}"), TEXT_BYTES_MAX)), ..self }
    }

    /// Adds a text.
    #[must_use]
    pub fn text(mut self, field: Field, text: impl AsRef<str>) -> Self {
        let text = cut(text.as_ref(), TEXT_BYTES_MAX);
        if !text.is_empty() {
            self.fields.insert(field.as_str().to_owned(), Value::Text(text));
        }
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, field: Field, number: u64) -> Self {
        self.fields.insert(field.as_str().to_owned(), Value::Number(number));
        self
    }

    /// The value of a field.
    #[must_use]
    pub fn field(&self, field: Field) -> Option<&Value> {
        self.fields.get(field.as_str())
    }

    /// The level of its log line.
    #[must_use]
    pub fn level(&self) -> Level {
        self.reason.level()
    }

    /// The namespace of the Service concerned; empty if it concerns the operator.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.service
            .as_deref()
            .and_then(|service| service.split_once('/'))
            .map_or("", |(namespace, _)| namespace)
    }
}

/// Truncates a text at a character boundary.
fn cut(text: &str, bytes_max: usize) -> String {
    const MORE: &str = "...";
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut end = bytes_max - MORE.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &text[..end])
}

/// Serializes enums by their names.
mod by_name {
    use serde::{Deserialize as _, Deserializer, Serializer, de};
    use tidegate_wire::Named;

    pub(super) fn serialize<T: Named, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.name())
    }

    pub(super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let name = String::deserialize(from)?;
        let found = T::VALUES.iter().find(|value| value.name() == name);
        found.copied().ok_or_else(|| de::Error::custom(format!("{name:?} is not known")))
    }
}

/// Serializes a time as RFC 3339.
mod as_text {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let event = Event::new(Reason::BackendDown, ObjectKind::Backend, "10.0.0.1:80", "a backend is down");
        let event =
            event.of_service("shop", "web").number(Field::Left, 2).text(Field::Reason, "connection refused");
        let written = serde_json::to_string(&event).expect("serializable");
        assert_eq!(serde_json::from_str::<Event>(&written).expect("valid"), event, "{written}");
        assert_eq!((event.namespace(), event.level()), ("shop", Level::Info));
        let unknown = written.replace("BackendDown", "BackendSideways");
        assert!(serde_json::from_str::<Event>(&unknown).is_err());
    }

    #[test]
    fn long_texts_are_truncated_at_a_character() {
        let long = "ä".repeat(4_000);
        let event =
            Event::new(Reason::BirdFailed, ObjectKind::Gateway, &long, &long).text(Field::Error, &long);
        let written = serde_json::to_string(&event).expect("serializable");
        assert!(written.len() < MESSAGE_BYTES_MAX + 3 * TEXT_BYTES_MAX + 200, "{}", written.len());
        assert!(event.message.ends_with("..."), "{}", event.message);
    }
}
