//! `metadata`. It is the same for all kinds, except for the rules for names.

use tidegate_model::objects::{Labels, Metadata, ObjectKey};
use tidegate_model::yaml::{Field, Fields, Unknown, text};

/// Whether a kind is namespaced, and the rule for the names of its objects.
#[derive(Debug)]
pub(super) struct Scope {
    namespaced: bool,
    name: fn(&str) -> bool,
    accepted: &'static str,
}

const RFC1123_SUBDOMAIN: &str =
    "a name of at most 253 characters of a-z, 0-9, - and ., alphanumeric at both ends (RFC 1123)";
const RFC1123_LABEL: &str =
    "a name of at most 63 characters of a-z, 0-9 and -, alphanumeric at both ends (RFC 1123)";

/// Since Kubernetes 1.36 the name of a Service may start with a digit (RelaxedServiceNameValidation).
pub(super) const SERVICE: Scope =
    Scope { namespaced: true, name: text::is_rfc1123_label, accepted: RFC1123_LABEL };
pub(super) const NAMESPACED: Scope =
    Scope { namespaced: true, name: text::is_rfc1123_subdomain, accepted: RFC1123_SUBDOMAIN };
pub(super) const CLUSTER: Scope =
    Scope { namespaced: false, name: text::is_rfc1123_subdomain, accepted: RFC1123_SUBDOMAIN };
pub(super) const NAMESPACE: Scope =
    Scope { namespaced: false, name: text::is_rfc1123_label, accepted: RFC1123_LABEL };

/// Reads `metadata`. If the name is invalid, the sheet has an error and the result is a placeholder, so that faults in
/// the rest are found, too. The default namespace is `default`. The default uid is derived from kind, namespace and
/// name, so that it is the same in every run.
///
/// For a stored object, name and namespace are not checked, and any value of `deletionTimestamp` means that it is being
/// deleted.
pub(super) fn read(object: &Fields<'_>, kind: &str, scope: &Scope) -> Metadata {
    let placeholder = || Metadata::new(ObjectKey::new("", ""));
    let is_stored = object.itself().sheet.is_stored();
    let metadata = object.required("metadata", "metadata with a name");
    let Some(fields) = metadata.and_then(|f| f.fields()) else { return placeholder() };
    let name = fields.required("name", scope.accepted);
    let name = match is_stored {
        true => name.and_then(|f| f.node.text()),
        false => name.and_then(|f| f.string_where(scope.name, scope.accepted)),
    };
    let namespace = match fields.filled("namespace") {
        Some(_) if is_stored && !scope.namespaced => Some(""),
        Some(field) if is_stored => field.node.text(),
        Some(field) if !scope.namespaced => {
            field.error(format_args!("{kind} is cluster-scoped"), "no namespace");
            None
        }
        Some(field) => field.string_where(text::is_rfc1123_label, RFC1123_LABEL),
        None if scope.namespaced => Some("default"),
        None => Some(""),
    };
    let uid = fields.read("uid", Field::string);
    let creation_time = fields.read("creationTimestamp", Field::time);
    let deletion_time = fields.read("deletionTimestamp", |f| {
        let time = f.time();
        // An invalid time must not hide a deletion.
        if is_stored { time.or(Some(jiff::Timestamp::UNIX_EPOCH)) } else { time }
    });
    let labels = fields.get("labels").map(|f| labels(&f)).unwrap_or_default();
    let mut annotations = fields.get("annotations").map(|f| annotations(&f)).unwrap_or_default();
    // A copy of the object as it was applied, which is not needed here.
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    fields.allow(&[
        "generateName",
        "selfLink",
        "resourceVersion",
        "generation",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ]);
    fields.finish(Unknown::Warned);
    let (Some(namespace), Some(name)) = (namespace, name) else { return placeholder() };
    let key = ObjectKey::new(namespace, name);
    let uid = uid.map_or_else(|| format!("{}/{key}", kind.to_lowercase()), str::to_owned);
    let document = object.itself();
    let origin = document.sheet.origin(document.node);
    Metadata {
        key,
        uid,
        creation_time,
        arrival: 0,
        deletion_time,
        labels,
        annotations,
        faults: Vec::new(),
        origin,
    }
}

/// Labels. Their keys and values are checked, except in a stored object.
pub(super) fn labels(field: &Field<'_>) -> Labels {
    let labels = keyed(field, text::is_qualified_name);
    for (key, value) in &labels {
        if !text::is_label_value(value) && !field.sheet.is_stored() {
            error_at(
                field,
                key,
                &format!("{value:?} is not a valid label value"),
                "at most 63 letters, digits, -, _ and ., alphanumeric at both ends",
            );
        }
    }
    labels
}

/// Annotations. Their keys are lower-cased before the check, because unlike in labels, the prefix may contain capitals.
fn annotations(field: &Field<'_>) -> Labels {
    keyed(field, |key| text::is_qualified_name(&key.to_lowercase()))
}

/// A map of texts whose keys pass a check.
pub(super) fn keyed(field: &Field<'_>, check: fn(&str) -> bool) -> Labels {
    let labels = field.labels();
    for key in labels.keys().filter(|key| !field.sheet.is_stored() && !check(key)) {
        let accepted = "a name of at most 63 letters, digits, -, _ and ., with an optional DNS prefix and /";
        error_at(field, key, &format!("{key:?} is not a valid key"), accepted);
    }
    labels
}

/// Reports an error of one key.
pub(super) fn error_at(field: &Field<'_>, key: &str, what: &str, accepted: &str) {
    let at = field.node.entry(key).map_or(field.at(), |e| e.at);
    field.sheet.error(at, format!("{}[{key}]: {what}", field.path), accepted);
}
