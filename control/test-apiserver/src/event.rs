//! The two forms of events, core v1 (the stored form) and events.k8s.io/v1, and objects with several versions.

use std::borrow::Cow;

use serde_json::Value;

use crate::resource::Resource;

/// (core v1, events.k8s.io/v1)
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Whether the resource is an events.k8s.io/v1 Event.
pub(crate) fn is_new_style(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

/// Converts a stored object to the form of a resource.
pub(crate) fn shown_as<'a>(resource: &Resource, object: &'a Value) -> Cow<'a, Value> {
    let api_version = resource.api_version();
    if object["apiVersion"] == api_version.as_str() {
        return Cow::Borrowed(object);
    }
    let mut shown = object.clone();
    if is_new_style(resource) {
        rename(&mut shown, |(old, new)| (old, new));
    }
    shown["apiVersion"] = api_version.into();
    Cow::Owned(shown)
}

/// Converts a received object to its stored form.
pub(crate) fn stored_as(resource: &Resource, mut object: Value) -> Value {
    if is_new_style(resource) {
        rename(&mut object, |(old, new)| (new, old));
        object["apiVersion"] = "v1".into();
    }
    object
}

fn rename(
    object: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(map) = object.as_object_mut() else { return };
    for pair in NAMES {
        let (from, to) = direction(pair);
        if let Some(value) = map.remove(from) {
            map.insert(to.into(), value);
        }
    }
}
