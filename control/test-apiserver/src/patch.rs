//! The patch types other than apply: JSON patch (RFC 6902), JSON merge patch (RFC 7386), strategic merge patch.
//!
//! Strategic merge takes merge keys from `shape`. It supports the directives `$patch: delete|replace|merge`,
//! `$retainKeys`, `$setElementOrder/*` (accepted, but the order is not changed) and `$deleteFromPrimitiveList/*`.

use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};
use crate::shape::{ListShape, Shape, item_key};

/// Applies a JSON patch (RFC 6902).
pub(crate) fn json_patch(object: &mut Value, patch: Value) -> ApiResult<()> {
    let patch: json_patch::Patch = serde_json::from_value(patch)
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    json_patch::patch(object, &patch).map_err(|error| {
        let mut refused = ApiError::invalid("", "", "", &[("patch".into(), error.to_string())]);
        refused.message = format!("the server rejected our request due to an error in our request: {error}");
        refused
    })
}

/// Applies a JSON merge patch (RFC 7386).
pub(crate) fn merge_patch(object: &mut Value, patch: &Value) {
    json_patch::merge(object, patch);
}

/// Applies a patch of the type `application/strategic-merge-patch+json`.
pub(crate) fn strategic(object: &mut Value, patch: &Value, shape: Shape<'_>) {
    let (Some(live), Some(patch)) = (object.as_object_mut(), patch.as_object()) else {
        *object = without_directives(patch);
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("delete") => return live.clear(),
        Some("replace") => {
            *object = without_directives(&Value::Object(patch.clone()));
            return;
        }
        _ => {}
    }
    if let Some(retained) = patch.get("$retainKeys").and_then(Value::as_array) {
        live.retain(|name, _| retained.iter().any(|one| one == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/")
            && let (Some(items), Some(gone)) =
                (live.get_mut(list).and_then(Value::as_array_mut), value.as_array())
        {
            items.retain(|item| !gone.contains(item));
        }
        if name.starts_with('$') {
            continue;
        }
        if value.is_null() {
            live.remove(name);
        } else {
            strategic_field(live, name, value, shape.field(name));
        }
    }
}

fn strategic_field(live: &mut Map<String, Value>, name: &str, value: &Value, shape: Shape<'_>) {
    let field = live.entry(name.to_string()).or_insert(Value::Null);
    match value {
        Value::Object(_) => {
            if !field.is_object() {
                *field = Value::Object(Map::new());
            }
            strategic(field, value, shape);
            if value["$patch"] == "delete" {
                live.remove(name);
            }
        }
        Value::Array(items) => {
            let list = field.as_array().cloned().unwrap_or_default();
            *field = Value::Array(strategic_list(list, items, shape));
        }
        scalar => *field = scalar.clone(),
    }
}

fn strategic_list(mut list: Vec<Value>, items: &[Value], shape: Shape<'_>) -> Vec<Value> {
    let replace = items.iter().any(|item| item["$patch"] == "replace");
    let plain = || items.iter().filter(|item| item["$patch"] != "replace").map(without_directives);
    match shape.list() {
        ListShape::Set if !replace => {
            for item in items {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
            list
        }
        // The merge key of a patch is the first key of the list.
        ListShape::Map(keys) if !replace => {
            let key = &keys[..1];
            for item in items {
                let at = list.iter().position(|one| item_key(one, key) == item_key(item, key));
                match (at, item["$patch"] == "delete") {
                    (Some(at), true) => {
                        list.remove(at);
                    }
                    (Some(at), false) => strategic(&mut list[at], item, shape.item()),
                    (None, true) => {}
                    (None, false) => list.push(without_directives(item)),
                }
            }
            list
        }
        _ => plain().collect(),
    }
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(name, value)| !name.starts_with('$') && !value.is_null())
                .map(|(name, value)| (name.clone(), without_directives(value)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.iter().map(without_directives).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strategic_merge_uses_keys_and_obeys_directives() {
        let shape = Shape::BuiltIn { kind: "Service", field: "" };
        let mut object = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
            "spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}], "externalIPs": ["1.1.1.1"]},
        });
        let patch = json!({
            "metadata": {"labels": {"a": null, "c": "3"}, "$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]},
            "spec": {
                "$setElementOrder/ports": [{"port": 443}],
                "ports": [{"port": 80, "$patch": "delete"}, {"port": 443, "name": "tls"}, {"port": 53, "name": "dns"}],
                "externalIPs": ["2.2.2.2"],
            },
        });
        strategic(&mut object, &patch, shape);
        assert_eq!(object["metadata"]["labels"], json!({"b": "2", "c": "3"}));
        assert_eq!(object["metadata"]["finalizers"], json!(["y", "z"]));
        assert_eq!(
            object["spec"]["ports"],
            json!([{"port": 443, "name": "tls"}, {"port": 53, "name": "dns"}])
        );
        assert_eq!(object["spec"]["externalIPs"], json!(["2.2.2.2"]));
    }
}
