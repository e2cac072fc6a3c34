//! Server-side apply, and the ownership of fields after any write.
//!
//! It follows the rules of structured-merge-diff. An applier owns the fields that it applies. A field that it applied
//! before and now omits is removed, unless another manager owns it. A field that another manager owns with another
//! value is a conflict; `force` takes it over. A plain write makes its manager the owner of the fields that it changed,
//! and never conflicts. All functions are pure functions of objects; `write` decides which parts of an object a request
//! may change.

use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::fields::{FieldSet, compare, differs, fields_of, from_tree, remove, shown, to_tree};
use crate::resource::Resource;
use crate::shape::{ListShape, Shape, item_key};

/// The writer of a change.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    /// `fieldManager`, or the client's name.
    pub(crate) manager: String,
    /// `status`, or empty.
    pub(crate) subresource: String,
    /// The time in RFC 3339.
    pub(crate) now: String,
}

/// One entry of `managedFields`.
#[derive(Debug, Clone)]
struct Owner {
    manager: String,
    operation: String,
    api_version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

/// Merges an applied configuration into the live object (null if there is none).
///
/// # Errors
/// Returns 409 with a cause for each field that another manager owns with another value.
pub(crate) fn apply(
    resource: &Resource,
    live: &Value,
    applied: &Value,
    writer: &Writer,
    force: bool,
) -> ApiResult<Value> {
    let shape = Shape::of(resource);
    let mut owners = read_owners(live);
    let set = fields_of(applied, shape);
    let mut merged = if live.is_null() { json!({}) } else { live.clone() };
    merge(&mut merged, applied, shape);

    let is_ours = |owner: &Owner| {
        owner.manager == writer.manager
            && owner.operation == "Apply"
            && owner.subresource == writer.subresource
    };
    let mut conflicts = Vec::new();
    for owner in owners.iter_mut().filter(|owner| !is_ours(owner)) {
        let lost: Vec<_> = owner
            .fields
            .iter()
            .filter(|path| set.contains(*path) && differs(live, &merged, path))
            .cloned()
            .collect();
        for path in lost {
            if !force {
                conflicts.push((owner.shown(), shown(&path)));
            }
            owner.fields.remove(&path);
        }
    }
    if !conflicts.is_empty() {
        return Err(ApiError::apply_conflict(&conflicts));
    }

    let previous: FieldSet =
        owners.iter().filter(|owner| is_ours(owner)).flat_map(|owner| owner.fields.clone()).collect();
    let kept = |path: &Vec<String>| owners.iter().any(|owner| !is_ours(owner) && owner.fields.contains(path));
    // A list that was applied empty, and now has items, is not removed.
    let has_items = |path: &Vec<String>| set.iter().any(|one| one.starts_with(path));
    for path in previous.difference(&set).filter(|path| !kept(path) && !has_items(path)) {
        remove(&mut merged, path);
    }

    let unchanged = !live.is_null() && previous == set && same_but_for_owners(live, &merged);
    let time = owners.iter().find(|owner| is_ours(owner)).map(|owner| owner.time.clone());
    owners.retain(|owner| !is_ours(owner) && !owner.fields.is_empty());
    owners.push(Owner {
        manager: writer.manager.clone(),
        operation: "Apply".into(),
        api_version: resource.api_version(),
        subresource: writer.subresource.clone(),
        time: time.filter(|_| unchanged).unwrap_or_else(|| writer.now.clone()),
        fields: set,
    });
    write_owners(&mut merged, &owners);
    Ok(merged)
}

/// Updates the field owners in `new` after a write that is not an apply.
pub(crate) fn note_update(resource: &Resource, old: &Value, new: &mut Value, writer: &Writer) {
    // A client may clear managedFields, but may not write them.
    let cleared = new["metadata"]["managedFields"]
        .as_array()
        .is_some_and(|list| list.len() == 1 && list[0] == json!({}));
    let mut owners = if cleared { Vec::new() } else { read_owners(old) };
    let (changed, gone) = compare(old, new, Shape::of(resource));
    let is_ours = |owner: &Owner| {
        owner.manager == writer.manager
            && owner.operation == "Update"
            && owner.subresource == writer.subresource
    };
    for owner in &mut owners {
        let ours = is_ours(owner);
        owner.fields.retain(|path| !gone.contains(path) && (ours || !changed.contains(path)));
    }
    if !changed.is_empty() {
        match owners.iter_mut().find(|owner| is_ours(owner)) {
            Some(owner) => {
                owner.fields.extend(changed);
                owner.time.clone_from(&writer.now);
                owner.api_version = resource.api_version();
            }
            None => owners.push(Owner {
                manager: writer.manager.clone(),
                operation: "Update".into(),
                api_version: resource.api_version(),
                subresource: writer.subresource.clone(),
                time: writer.now.clone(),
                fields: changed,
            }),
        }
    }
    owners.retain(|owner| !owner.fields.is_empty());
    write_owners(new, &owners);
}

/// Whether two objects differ only in versions and owners. Such a write need not be stored.
pub(crate) fn same_but_for_owners(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
        }
        object
    };
    bare(old) == bare(new)
}

fn merge(live: &mut Value, applied: &Value, shape: Shape<'_>) {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) if !shape.map_is_atomic() => {
            for (name, value) in applied {
                merge(live.entry(name.clone()).or_insert(Value::Null), value, shape.field(name));
            }
        }
        (live @ Value::Array(_), Value::Array(items)) => match shape.list() {
            ListShape::Atomic => *live = Value::Array(items.clone()),
            ListShape::Set => {
                let list = live.as_array_mut().expect("matched as a list");
                let new: Vec<Value> = items.iter().filter(|item| !list.contains(item)).cloned().collect();
                list.extend(new);
            }
            ListShape::Map(keys) => {
                let list = live.as_array_mut().expect("matched as a list");
                for item in items {
                    let key = item_key(item, &keys);
                    match list.iter_mut().find(|one| item_key(one, &keys) == key) {
                        Some(one) => merge(one, item, shape.item()),
                        None => list.push(item.clone()),
                    }
                }
            }
        },
        (live, applied) => *live = applied.clone(),
    }
}

impl Owner {
    fn shown(&self) -> String {
        let subresource = match self.subresource.as_str() {
            "" => String::new(),
            name => format!(" with subresource {name:?}"),
        };
        format!("{:?}{subresource} using {}", self.manager, self.api_version)
    }
}

fn read_owners(object: &Value) -> Vec<Owner> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| Owner {
            manager: text(&entry["manager"]),
            operation: text(&entry["operation"]),
            api_version: text(&entry["apiVersion"]),
            subresource: text(&entry["subresource"]),
            time: text(&entry["time"]),
            fields: from_tree(&entry["fieldsV1"]),
        })
        .collect()
}

fn write_owners(object: &mut Value, owners: &[Owner]) {
    object["metadata"]["managedFields"] = owners
        .iter()
        .map(|owner| {
            let mut entry = json!({
                "manager": owner.manager, "operation": owner.operation, "apiVersion": owner.api_version,
                "time": owner.time, "fieldsType": "FieldsV1", "fieldsV1": to_tree(&owner.fields),
            });
            if !owner.subresource.is_empty() {
                entry["subresource"] = owner.subresource.clone().into();
            }
            entry
        })
        .collect();
}

/// Whether a manager's field set names a path, for tests.
#[cfg(test)]
fn owns(object: &Value, manager: &str, path: &[&str]) -> bool {
    let path: Vec<String> = path.iter().map(|&step| step.into()).collect();
    read_owners(object).iter().any(|owner| owner.manager == manager && owner.fields.contains(&path))
        && crate::fields::lookup(object, &path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Resource {
        crate::resource::built_in().into_iter().find(|one| one.kind == "Service").expect("in the table")
    }

    fn writer(manager: &str) -> Writer {
        Writer { manager: manager.into(), subresource: String::new(), now: "2026-01-01T00:00:00Z".into() }
    }

    fn port(number: u16, name: &str) -> Value {
        json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "a"},
            "spec": {"ports": [{"port": number, "protocol": "TCP", "name": name}]}})
    }

    #[test]
    fn appliers_of_different_ports_coexist_and_remove_only_their_own() {
        let resource = service();
        let one = apply(&resource, &Value::Null, &port(80, "http"), &writer("one"), false).expect("first");
        let both = apply(&resource, &one, &port(443, "https"), &writer("two"), false).expect("no conflict");
        assert_eq!(both["spec"]["ports"].as_array().expect("list").len(), 2);
        let empty = json!({"kind": "Service", "metadata": {"name": "a"}, "spec": {"type": "ClusterIP"}});
        let left = apply(&resource, &both, &empty, &writer("one"), false).expect("no conflict");
        assert_eq!(left["spec"]["ports"], json!([{"port": 443, "protocol": "TCP", "name": "https"}]));
        assert!(owns(&left, "two", &["f:spec", "f:ports", "k:{\"port\":443,\"protocol\":\"TCP\"}"]));
    }

    #[test]
    fn another_owners_value_is_a_conflict_until_forced() {
        let resource = service();
        let one = apply(&resource, &Value::Null, &port(80, "http"), &writer("one"), false).expect("first");
        let conflict =
            apply(&resource, &one, &port(80, "web"), &writer("two"), false).expect_err("owned by one");
        assert_eq!(
            conflict.message,
            "Apply failed with 1 conflict: conflict with \"one\" using v1: .spec.ports[port=80,protocol=\"TCP\"].name"
        );
        let same =
            apply(&resource, &one, &port(80, "http"), &writer("two"), false).expect("same value is shared");
        assert!(owns(&same, "one", &["f:spec", "f:ports", "k:{\"port\":80,\"protocol\":\"TCP\"}", "f:name"]));
        let forced = apply(&resource, &one, &port(80, "web"), &writer("two"), true).expect("forced");
        assert_eq!(forced["spec"]["ports"][0]["name"], "web");
        assert!(!owns(
            &forced,
            "one",
            &["f:spec", "f:ports", "k:{\"port\":80,\"protocol\":\"TCP\"}", "f:name"]
        ));
    }

    #[test]
    fn a_plain_write_owns_the_fields_that_it_changed() {
        let resource = service();
        let one = apply(&resource, &Value::Null, &port(80, "http"), &writer("one"), false).expect("first");
        let mut new = one.clone();
        new["spec"]["ports"][0]["name"] = "web".into();
        note_update(&resource, &one, &mut new, &writer("edit"));
        assert!(owns(&new, "edit", &["f:spec", "f:ports", "k:{\"port\":80,\"protocol\":\"TCP\"}", "f:name"]));
        assert!(owns(&new, "one", &["f:spec", "f:ports", "k:{\"port\":80,\"protocol\":\"TCP\"}", "f:port"]));
        assert!(apply(&resource, &new, &port(80, "http"), &writer("one"), false).is_err());
    }
}
