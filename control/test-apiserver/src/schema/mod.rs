//! Structural schemas of custom resources. They are parsed once and then used for defaulting, pruning and validation.
//!
//! Supports the value validations of a node in `apiextensions.k8s.io/v1` (type, enum, pattern, lengths, ranges,
//! required, `additionalProperties`, list types; not the formats of IP families and dates) and the structural rules (a
//! type everywhere, no `$ref`). Only the form of `x-kubernetes-validations` (CEL) is checked. `oneOf`, `anyOf`, `allOf`
//! and `not` are accepted but not evaluated.

mod parse;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

/// A node of a schema.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    kind: String,
    properties: BTreeMap<String, Schema>,
    additional: Option<Box<Schema>>,
    items: Option<Box<Schema>>,
    default: Option<Value>,
    nullable: bool,
    preserve_unknown: bool,
    int_or_string: bool,
    embedded: bool,
    limits: Limits,
    /// How server-side apply merges lists and maps.
    pub(crate) list_type: Option<String>,
    pub(crate) list_keys: Vec<String>,
    pub(crate) map_atomic: bool,
}

/// The values that a node accepts.
#[derive(Debug, Default)]
struct Limits {
    required: Vec<String>,
    one_of: Option<Vec<Value>>,
    pattern: Option<Regex>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    exclusive_minimum: bool,
    exclusive_maximum: bool,
    /// The minimum length of a text, a list or an object.
    length_min: Option<u64>,
    length_max: Option<u64>,
}

/// A fault: (field path, message).
pub(crate) type Fault = (String, String);

impl Schema {
    /// The schema of a property, for walking a schema and a value together.
    pub(crate) fn property(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.additional.as_deref())
    }

    /// The schema of the items of a list.
    pub(crate) fn item(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// Sets the defaults of absent properties.
    pub(crate) fn set_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, property) in &self.properties {
                    if let Some(default) = &property.default
                        && map.get(name).is_none_or(|value| value.is_null() && !property.nullable)
                    {
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (name, value) in map.iter_mut() {
                    if let Some(schema) = self.property(name) {
                        schema.set_defaults(value);
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &self.items {
                    list.iter_mut().for_each(|item| items.set_defaults(item));
                }
            }
            _ => {}
        }
    }

    /// Removes everything that the schema does not name, and returns the removed paths.
    pub(crate) fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.prune_at(value, "", true, &mut unknown);
        unknown
    }

    fn prune_at(&self, value: &mut Value, at: &str, root: bool, unknown: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                let always = root || self.embedded;
                let names: Vec<String> = map.keys().cloned().collect();
                for name in names {
                    if always && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                        continue;
                    }
                    let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    if let Some(schema) = self.property(&name) {
                        schema.prune_at(&mut map[&name], &path, false, unknown);
                    } else if !self.preserve_unknown {
                        map.remove(&name);
                        unknown.push(path);
                    }
                }
            }
            Value::Array(list) => {
                if let Some(items) = &self.items {
                    for (index, item) in list.iter_mut().enumerate() {
                        items.prune_at(item, &format!("{at}[{index}]"), false, unknown);
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns every violation of the schema.
    pub(crate) fn validate(&self, value: &Value) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.validate_at(value, "", &mut faults);
        faults
    }

    fn validate_at(&self, value: &Value, at: &str, faults: &mut Vec<Fault>) {
        if value.is_null() && self.nullable {
            return;
        }
        if !self.type_fits(value) {
            let (shown, kind) = (shown(value), type_name(value));
            faults.push((
                at.into(),
                format!("Invalid value: {shown}: {at} in body must be of type {}: {kind:?}", self.kind),
            ));
            return;
        }
        if let Some(allowed) = &self.limits.one_of
            && !allowed.contains(value)
        {
            let words: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            faults.push((
                at.into(),
                format!("Unsupported value: {value}: supported values: {}", words.join(", ")),
            ));
        }
        match value {
            Value::Object(map) => self.validate_object(map, at, faults),
            Value::Array(list) => self.validate_list(list, at, faults),
            Value::String(text) => self.validate_text(text, at, faults),
            Value::Number(number) => self.validate_number(number.as_f64().unwrap_or_default(), at, faults),
            _ => {}
        }
    }

    fn type_fits(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_string() || value.is_i64() || value.is_u64();
        }
        match self.kind.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
            }
            "number" => value.is_number(),
            _ => true,
        }
    }

    fn validate_object(&self, map: &serde_json::Map<String, Value>, at: &str, faults: &mut Vec<Fault>) {
        let join = |name: &str| if at.is_empty() { name.to_string() } else { format!("{at}.{name}") };
        for name in &self.limits.required {
            if !map.contains_key(name) {
                faults.push((join(name), "Required value".into()));
            }
        }
        self.check_length(map.len(), "properties", at, faults);
        for (name, value) in map {
            if let Some(schema) = self.property(name) {
                schema.validate_at(value, &join(name), faults);
            }
        }
    }

    fn validate_list(&self, list: &[Value], at: &str, faults: &mut Vec<Fault>) {
        self.check_length(list.len(), "items", at, faults);
        let key = |item: &Value| -> Option<Vec<Value>> {
            match self.list_type.as_deref() {
                Some("set") => Some(vec![item.clone()]),
                Some("map") => Some(self.list_keys.iter().map(|key| item[key].clone()).collect()),
                _ => None,
            }
        };
        let mut seen: Vec<Vec<Value>> = Vec::new();
        for (index, item) in list.iter().enumerate() {
            let path = format!("{at}[{index}]");
            if let Some(key) = key(item) {
                if seen.contains(&key) {
                    faults.push((path.clone(), format!("Duplicate value: {item}")));
                }
                seen.push(key);
            }
            if let Some(items) = &self.items {
                items.validate_at(item, &path, faults);
            }
        }
    }

    fn validate_text(&self, text: &str, at: &str, faults: &mut Vec<Fault>) {
        if let Some(pattern) = &self.limits.pattern
            && !pattern.is_match(text)
        {
            faults
                .push((at.into(), format!("Invalid value: {text:?}: {at} in body should match '{pattern}'")));
        }
        self.check_length(text.chars().count(), "chars long", at, faults);
    }

    fn check_length(&self, length: usize, what: &str, at: &str, faults: &mut Vec<Fault>) {
        let length = length as u64;
        if let Some(min) = self.limits.length_min.filter(|min| length < *min) {
            let words = format!("Invalid value: {length}: {at} in body should be at least {min} {what}");
            faults.push((at.into(), words));
        }
        if let Some(max) = self.limits.length_max.filter(|max| length > *max) {
            faults.push((at.into(), format!("Too long: may not be more than {max} {what}")));
        }
    }

    fn validate_number(&self, number: f64, at: &str, faults: &mut Vec<Fault>) {
        let below = |min: f64| number < min || (self.limits.exclusive_minimum && number <= min);
        if let Some(min) = self.limits.minimum.filter(|min| below(*min)) {
            let words =
                format!("Invalid value: {number}: {at} in body should be greater than or equal to {min}");
            faults.push((at.into(), words));
        }
        let above = |max: f64| number > max || (self.limits.exclusive_maximum && number >= max);
        if let Some(max) = self.limits.maximum.filter(|max| above(*max)) {
            let words =
                format!("Invalid value: {number}: {at} in body should be less than or equal to {max}");
            faults.push((at.into(), words));
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) | Value::Array(_) => format!("{:?}", type_name(value)),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool() -> Schema {
        Schema::parse(
            &json!({"type": "object", "required": ["spec"], "properties": {"spec": {
                "type": "object", "required": ["addresses"], "properties": {
                    "addresses": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[0-9.]+$"}},
                    "autoAssign": {"type": "boolean", "default": true},
                    "quota": {"type": "integer", "minimum": 1, "nullable": true},
                    "scope": {"type": "string", "enum": ["internal", "public"]},
                }}}}),
            "openAPIV3Schema",
        )
        .expect("structural")
    }

    #[test]
    fn defaults_fill_and_unknown_fields_are_pruned() {
        let mut object =
            json!({"kind": "X", "metadata": {"name": "a"}, "spec": {"addresses": ["1.2.3.4"], "typo": 1}});
        assert_eq!(pool().prune(&mut object), ["spec.typo"]);
        pool().set_defaults(&mut object);
        assert_eq!(object["spec"], json!({"addresses": ["1.2.3.4"], "autoAssign": true}));
        assert_eq!(pool().validate(&object), []);
    }

    #[test]
    fn each_breach_is_named_with_its_path() {
        let object = json!({"spec": {"addresses": ["x"], "quota": 0, "scope": "other", "autoAssign": "yes"}});
        let paths: Vec<String> = pool().validate(&object).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["spec.addresses[0]", "spec.autoAssign", "spec.quota", "spec.scope"]);
        assert_eq!(pool().validate(&json!({})), [("spec".into(), "Required value".into())]);
    }

    #[test]
    fn a_schema_that_is_not_structural_is_refused() {
        let faults = Schema::parse(
            &json!({"type": "object", "properties": {"a": {"$ref": "#/x"}, "b": {"type": "array"}}}),
            "s",
        )
        .expect_err("not structural");
        let paths: Vec<&str> = faults.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["s.properties[a].$ref", "s.properties[a].type", "s.properties[b].items"]);
    }
}
