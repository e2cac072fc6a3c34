//! Parses a schema document, and checks that it is structural.

use regex::Regex;
use serde_json::{Map, Value};

use super::{Fault, Limits, Schema};

impl Schema {
    /// Parses an `openAPIV3Schema`. `at` is its path for messages.
    ///
    /// # Errors
    /// Returns every violation of the structural rules, in the wording of the API server where it has one.
    pub(crate) fn parse(document: &Value, at: &str) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let schema = schema(document, at, &mut faults);
        if !schema.preserve_unknown && schema.kind != "object" {
            faults.push((format!("{at}.type"), "Required value: must be object at the root".into()));
        }
        if faults.is_empty() { Ok(schema) } else { Err(faults) }
    }
}

/// Reads one node and all nodes below it. Faults are added to `faults`.
fn schema(document: &Value, at: &str, faults: &mut Vec<Fault>) -> Schema {
    let Some(node) = document.as_object() else {
        faults.push((at.into(), "Required value: schemas are required".into()));
        return Schema::default();
    };
    let flag = |name: &str| document[name] == Value::Bool(true);
    let mut schema = Schema {
        kind: document["type"].as_str().unwrap_or_default().into(),
        default: node.get("default").cloned(),
        nullable: flag("nullable"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        int_or_string: flag("x-kubernetes-int-or-string"),
        embedded: flag("x-kubernetes-embedded-resource"),
        limits: limits(document, at, faults),
        list_type: document["x-kubernetes-list-type"].as_str().map(Into::into),
        list_keys: words(document, "x-kubernetes-list-map-keys"),
        map_atomic: document["x-kubernetes-map-type"] == "atomic",
        ..Schema::default()
    };
    check_structure(&schema, node, at, faults);
    for (name, property) in document["properties"].as_object().into_iter().flatten() {
        let parsed = if matches!(name.as_str(), "metadata") && at.ends_with("openAPIV3Schema") {
            Schema { preserve_unknown: true, ..Schema::default() }
        } else {
            self::schema(property, &format!("{at}.properties[{name}]"), faults)
        };
        schema.properties.insert(name.clone(), parsed);
    }
    match document.get("additionalProperties") {
        Some(more) if more.is_object() => {
            schema.additional =
                Some(Box::new(self::schema(more, &format!("{at}.additionalProperties"), faults)));
        }
        Some(Value::Bool(true)) => schema.preserve_unknown = true,
        _ => {}
    }
    if let Some(items) = node.get("items").filter(|items| items.is_object()) {
        schema.items = Some(Box::new(self::schema(items, &format!("{at}.items"), faults)));
    }
    schema
}

fn words(document: &Value, name: &str) -> Vec<String> {
    document[name].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(Into::into)).collect()
}

fn limits(document: &Value, at: &str, faults: &mut Vec<Fault>) -> Limits {
    let flag = |name: &str| document[name] == Value::Bool(true);
    let first = |names: [&str; 3]| names.iter().find_map(|name| document[*name].as_u64());
    let pattern = document["pattern"].as_str().and_then(|pattern| {
        let regex = Regex::new(pattern);
        regex
            .map_err(|error| {
                faults.push((format!("{at}.pattern"), format!("Invalid value: {pattern:?}: {error}")));
            })
            .ok()
    });
    Limits {
        required: words(document, "required"),
        one_of: document["enum"].as_array().cloned(),
        pattern,
        minimum: document["minimum"].as_f64(),
        maximum: document["maximum"].as_f64(),
        exclusive_minimum: flag("exclusiveMinimum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        length_min: first(["minLength", "minItems", "minProperties"]),
        length_max: first(["maxLength", "maxItems", "maxProperties"]),
    }
}

/// The structural rules that concern the node itself.
fn check_structure(schema: &Schema, node: &Map<String, Value>, at: &str, faults: &mut Vec<Fault>) {
    for forbidden in [
        "$ref",
        "definitions",
        "dependencies",
        "deprecated",
        "discriminator",
        "id",
        "readOnly",
        "writeOnly",
        "xml",
        "uniqueItems",
    ] {
        if node.contains_key(forbidden) && node[forbidden] != Value::Bool(false) {
            faults.push((
                format!("{at}.{forbidden}"),
                "Forbidden: not supported in a structural schema".into(),
            ));
        }
    }
    if schema.kind.is_empty() && !schema.preserve_unknown && !schema.int_or_string {
        faults.push((
            format!("{at}.type"),
            "Required value: must not be empty for specified object fields".into(),
        ));
    }
    if !matches!(schema.kind.as_str(), "" | "object" | "array" | "string" | "boolean" | "integer" | "number")
    {
        faults.push((format!("{at}.type"), format!("Unsupported value: {:?}", schema.kind)));
    }
    if schema.kind == "array" && node.get("items").is_none_or(|items| !items.is_object()) {
        faults.push((format!("{at}.items"), "Required value: must be specified".into()));
    }
    if schema.list_type.as_deref() == Some("map") && schema.list_keys.is_empty() {
        faults.push((
            format!("{at}.x-kubernetes-list-map-keys"),
            "Required value: must not be empty if x-kubernetes-list-type is map".into(),
        ));
    }
    let rules = node.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
    for (index, rule) in rules.enumerate() {
        if rule["rule"].as_str().is_none_or(str::is_empty) {
            faults.push((format!("{at}.x-kubernetes-validations[{index}].rule"), "Required value".into()));
        }
    }
}
