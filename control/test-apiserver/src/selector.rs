//! Label and field selectors of list and watch.
//!
//! Label selectors: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`. Field selectors: `path=value`,
//! `path!=value`, for the paths that a real API server allows for each kind. Other paths are refused with the message
//! of a real server.

use serde_json::Value;

use crate::error::{ApiError, ApiResult};

/// The selection of a list or watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<LabelTest>,
    fields: Vec<FieldTest>,
}

#[derive(Debug, Clone)]
struct LabelTest {
    key: String,
    values: Vec<String>,
    kind: LabelKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelKind {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(Debug, Clone)]
struct FieldTest {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Parses both selectors. `kind` decides which fields are allowed.
    pub(crate) fn parse(labels: &str, fields: &str, kind: &str) -> ApiResult<Self> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, kind)? })
    }

    /// Whether the selectors match an object.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|test| test.matches(&object["metadata"]["labels"]))
            && self.fields.iter().all(|test| (field(object, &test.path) == test.value) == test.equal)
    }

    /// Whether both selectors are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

impl LabelTest {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels[&self.key].as_str();
        let listed = value.is_some_and(|value| self.values.iter().any(|one| one == value));
        match self.kind {
            LabelKind::In => listed,
            LabelKind::NotIn => !listed,
            LabelKind::Exists => value.is_some(),
            LabelKind::DoesNotExist => value.is_none(),
        }
    }
}

/// Splits at commas outside parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn parse_labels(text: &str) -> ApiResult<Vec<LabelTest>> {
    requirements(text).into_iter().map(parse_label).collect()
}

fn parse_label(text: &str) -> ApiResult<LabelTest> {
    let unparsable = || ApiError::bad_request(format!("unable to parse requirement: {text}"));
    let test = |key: &str, kind, values: Vec<String>| {
        let key = key.trim();
        let legal = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
        if key.is_empty() || !key.chars().all(legal) {
            return Err(unparsable());
        }
        Ok(LabelTest { key: key.into(), values, kind })
    };
    if let Some(list) = text.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or_else(unparsable)?;
        let values = list.split(',').map(|value| value.trim().to_string()).collect();
        let mut words = head.split_whitespace();
        let key = words.next().ok_or_else(unparsable)?;
        return match words.next() {
            Some("in") => test(key, LabelKind::In, values),
            Some("notin") => test(key, LabelKind::NotIn, values),
            _ => Err(unparsable()),
        };
    }
    let one = |value: &str| vec![value.trim().to_string()];
    if let Some((key, value)) = text.split_once("!=") {
        test(key, LabelKind::NotIn, one(value))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        test(key, LabelKind::In, one(value))
    } else if let Some(key) = text.strip_prefix('!') {
        test(key, LabelKind::DoesNotExist, Vec::new())
    } else {
        test(text, LabelKind::Exists, Vec::new())
    }
}

fn parse_fields(text: &str, kind: &str) -> ApiResult<Vec<FieldTest>> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, value, true)
            } else {
                return Err(ApiError::bad_request(format!("invalid field selector: {part}")));
            };
            let path = path.trim();
            if !allowed(kind, path) {
                return Err(ApiError::bad_request(format!("field label not supported: {path}")));
            }
            Ok(FieldTest { path: path.into(), value: value.trim().into(), equal })
        })
        .collect()
}

/// Whether a real API server allows the field selector for this kind.
fn allowed(kind: &str, path: &str) -> bool {
    if matches!(path, "metadata.name" | "metadata.namespace") {
        return true;
    }
    let more: &[&str] = match kind {
        "Service" => &["spec.type", "spec.clusterIP"],
        "Namespace" => &["status.phase"],
        "Node" => &["spec.unschedulable"],
        "Secret" => &["type"],
        "Pod" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        "Event" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingComponent",
            "reportingController",
            "source",
            "type",
        ],
        _ => &[],
    };
    more.contains(&path)
}

/// The value of a dotted path as text; "" if it is absent.
fn field(object: &Value, path: &str) -> String {
    let mut value = object;
    for step in path
        .replace("regarding.", "involvedObject.")
        .replace("reportingController", "reportingComponent")
        .split('.')
    {
        value = &value[step];
    }
    match value {
        Value::String(text) => text.clone(),
        // A field selector can name only one object: the source of an event, which stands for its component.
        Value::Object(map) => map.get("component").and_then(Value::as_str).unwrap_or_default().into(),
        Value::Null if path == "spec.unschedulable" => "false".into(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn picks(labels: &str, fields: &str) -> bool {
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "tier": "front"}},
            "spec": {"type": "LoadBalancer"},
        });
        Selector::parse(labels, fields, "Service").expect("legal").matches(&object)
    }

    #[test]
    fn every_form_of_label_selector_is_understood() {
        for yes in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=api",
            "!gone",
            "app in (web, api)",
            "app notin (api)",
            "gone notin (x)",
            "gone!=x",
            "app,tier=front",
            "app in (web),tier notin (back, none)",
        ] {
            assert!(picks(yes, ""), "{yes}");
        }
        for no in ["app=api", "app!=web", "!app", "gone", "app in (api)", "app notin (web)", "app,gone"] {
            assert!(!picks(no, ""), "{no}");
        }
        assert!(Selector::parse("app in web", "", "Service").is_err());
        assert!(Selector::parse("a b", "", "Service").is_err());
    }

    #[test]
    fn unsupported_fields_are_refused_with_the_message_of_kubernetes() {
        assert!(picks("", "metadata.name=web,spec.type!=ClusterIP"));
        assert!(!picks("", "metadata.namespace=other"));
        let refused = Selector::parse("", "spec.ports=1", "Service").expect_err("not selectable");
        assert_eq!(refused.message, "field label not supported: spec.ports");
    }
}
