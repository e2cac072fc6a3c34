//! `events`: what happened, from the recorder of the gateway.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_events::{Event, Object, ObjectKind, Selection, Value};

use super::error::AdminError;
use super::query;

/// `GET /v1/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsAnswer {
    /// The selected events, oldest first.
    pub events: Vec<EventRow>,
}

/// An event. Reasons and kinds are texts here, so that a command also shows those of a newer gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRow {
    /// Its number. Later events have higher numbers, across restarts too.
    pub number: u64,
    /// When it was recorded, RFC 3339.
    pub time: String,
    /// The level of its log line: `info`, `warning` or `error`.
    pub level: String,
    /// What changed: `BackendDown`, ...
    pub reason: String,
    /// The kind of the object: `service`, `backend`, ...
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// The Service concerned, `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The text for display.
    pub message: String,
    /// Details, as in the log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Value>,
}

impl From<&Event> for EventRow {
    fn from(event: &Event) -> Self {
        Self {
            number: event.number,
            time: event.time.to_string(),
            level: event.level().to_string(),
            reason: event.reason.to_string(),
            kind: event.object.kind.to_string(),
            name: event.object.name.clone(),
            service: event.service.clone(),
            message: event.message.clone(),
            fields: event.fields.clone(),
        }
    }
}

/// The `key=value` pairs of a request for these events.
pub(super) fn pairs(selection: &Selection) -> Vec<(&'static str, String)> {
    let after = (selection.after > 0).then(|| ("after", selection.after.to_string()));
    let service = selection.service.clone().map(|service| ("service", service));
    let object = selection.object.as_ref().map(|Object { kind, name }| ("object", format!("{kind}/{name}")));
    let since = selection.since.map(|since| ("since", since.to_string()));
    let latest = selection.latest.map(|latest| ("latest", latest.to_string()));
    [after, service, object, since, latest].into_iter().flatten().collect()
}

/// Parses the query of a request for events.
///
/// # Errors
/// An invalid value.
pub fn selection(text: &str) -> Result<Selection, AdminError> {
    let refuse = |key: &str, value: &str, accepted: &str| {
        AdminError::BadRequest(format!("{key}: {value:?} is not accepted; accepted: {accepted}"))
    };
    let after = query::value(text, "after")
        .map(|value| value.parse().map_err(|_| refuse("after", &value, "the number of an event")));
    let since = query::value(text, "since").map(|value| {
        value.parse::<Timestamp>().map_err(|_| refuse("since", &value, "a time such as 2026-01-31T09:30:00Z"))
    });
    let latest = query::value(text, "latest")
        .map(|value| value.parse().map_err(|_| refuse("latest", &value, "a number of events")));
    let service = query::value(text, "service");
    if let Some(service) = service.as_ref().filter(|service| !service.contains('/')) {
        return Err(refuse("service", service, "NAMESPACE/NAME or NAMESPACE/gateway/NAME"));
    }
    let object = query::value(text, "object").map(|value| {
        let kind_and_name = value.split_once('/').and_then(|(kind, name)| {
            let kind = ObjectKind::ALL.into_iter().find(|one| one.as_str() == kind)?;
            Some(Object { kind, name: name.to_owned() })
        });
        kind_and_name.ok_or_else(|| {
            let kinds = ObjectKind::ALL.map(ObjectKind::as_str).join(", ");
            refuse("object", &value, &format!("KIND/NAME, with one of {kinds}"))
        })
    });
    Ok(Selection {
        after: after.transpose()?.unwrap_or(0),
        service,
        object: object.transpose()?,
        since: since.transpose()?,
        latest: latest.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_parsed_as_it_was_written() {
        let all = Selection {
            after: 1_790_000_000_000_000,
            service: Some("shop/web".to_owned()),
            object: Some(Object { kind: ObjectKind::Backend, name: "[2001:db8::1]:8080".to_owned() }),
            since: Some("2026-01-31T09:30:00Z".parse().expect("a time")),
            latest: Some(20),
        };
        for written in [Selection::default(), all] {
            let pairs = pairs(&written);
            let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
            assert_eq!(selection(&query::encode(&pairs)).expect("valid"), written);
        }
        for invalid in
            ["after=x", "since=yesterday", "service=web", "object=web", "object=pod/web", "latest=-1"]
        {
            let error = selection(invalid).expect_err(invalid).to_string();
            assert!(error.contains("accepted: "), "{error}");
        }
    }
}
