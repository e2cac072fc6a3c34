//! Sets of fields as in `metadata.managedFields`, which records the owners of fields.
//!
//! A [`FieldSet`] contains paths. The steps of a path are written as in `fieldsV1` (`f:spec`, `k:{"port":80}`,
//! `v:"a"`). A set contains only leaves and list items; an atomic value is a leaf. This module knows nothing about
//! managers or requests.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::shape::{ListShape, Shape, item_key};

/// Steps from the root.
pub(crate) type Path = Vec<String>;

/// Fields of an object.
pub(crate) type FieldSet = BTreeSet<Path>;

/// All fields of an object that can have an owner.
pub(crate) fn fields_of(object: &Value, shape: Shape<'_>) -> FieldSet {
    let mut set = FieldSet::new();
    let mut path = Path::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if matches!(name.as_str(), "apiVersion" | "kind") {
            continue;
        }
        path.push(format!("f:{name}"));
        if name == "metadata" {
            collect_metadata(value, shape.field("metadata"), &mut path, &mut set);
        } else {
            collect(value, shape.field(name), &mut path, &mut set);
        }
        path.pop();
    }
    set
}

fn collect_metadata(metadata: &Value, shape: Shape<'_>, path: &mut Path, set: &mut FieldSet) {
    for (name, value) in metadata.as_object().into_iter().flatten() {
        if matches!(name.as_str(), "labels" | "annotations" | "finalizers" | "ownerReferences") {
            path.push(format!("f:{name}"));
            collect(value, shape.field(name), path, set);
            path.pop();
        }
    }
}

fn collect(value: &Value, shape: Shape<'_>, path: &mut Path, set: &mut FieldSet) {
    match value {
        Value::Object(map) if !map.is_empty() && !shape.map_is_atomic() => {
            for (name, value) in map {
                path.push(format!("f:{name}"));
                collect(value, shape.field(name), path, set);
                path.pop();
            }
        }
        Value::Array(list) if !list.is_empty() => match shape.list() {
            ListShape::Atomic => {
                set.insert(path.clone());
            }
            ListShape::Set => {
                for item in list {
                    path.push(format!("v:{item}"));
                    set.insert(path.clone());
                    path.pop();
                }
            }
            ListShape::Map(keys) => {
                for item in list {
                    path.push(key_step(item, &keys));
                    set.insert(path.clone());
                    collect(item, shape.item(), path, set);
                    path.pop();
                }
            }
        },
        _ => {
            set.insert(path.clone());
        }
    }
}

fn key_step(item: &Value, keys: &[String]) -> String {
    let map: Map<String, Value> = keys.iter().cloned().zip(item_key(item, keys)).collect();
    format!("k:{}", Value::Object(map))
}

/// The value at a path.
pub(crate) fn lookup<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, step| {
        if let Some(name) = step.strip_prefix("f:") {
            value.get(name)
        } else {
            value.as_array()?.iter().find(|item| is_step(item, step))
        }
    })
}

fn is_step(item: &Value, step: &str) -> bool {
    if let Some(text) = step.strip_prefix("v:") {
        return serde_json::from_str::<Value>(text).is_ok_and(|value| *item == value);
    }
    let wanted: Map<String, Value> =
        step.strip_prefix("k:").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let keys: Vec<String> = wanted.keys().cloned().collect();
    item_key(item, &keys) == wanted.values().cloned().collect::<Vec<_>>()
}

/// Removes the value at a path, and any parents that become empty.
pub(crate) fn remove(object: &mut Value, path: &[String]) {
    let Some((step, rest)) = path.split_first() else {
        return;
    };
    if let Some(name) = step.strip_prefix("f:") {
        let Some(map) = object.as_object_mut() else { return };
        let emptied = match map.get_mut(name) {
            Some(below) if !rest.is_empty() => {
                remove(below, rest);
                below.as_object().is_some_and(Map::is_empty) || below.as_array().is_some_and(Vec::is_empty)
            }
            _ => true,
        };
        if emptied {
            map.remove(name);
        }
    } else if let Some(list) = object.as_array_mut()
        && let Some(at) = list.iter().position(|item| is_step(item, step))
    {
        if rest.is_empty() {
            list.remove(at);
        } else {
            remove(&mut list[at], rest);
        }
    }
}

/// Fields whose value differs in `new`, and fields that `new` does not have.
pub(crate) fn compare(old: &Value, new: &Value, shape: Shape<'_>) -> (FieldSet, FieldSet) {
    let (before, after) = (fields_of(old, shape), fields_of(new, shape));
    let changed = after.iter().filter(|path| differs(old, new, path)).cloned().collect();
    (changed, before.difference(&after).cloned().collect())
}

/// Whether the value at a path differs. A list item itself differs only if it is present in one object and absent in
/// the other.
pub(crate) fn differs(old: &Value, new: &Value, path: &[String]) -> bool {
    let (old, new) = (lookup(old, path), lookup(new, path));
    if path.last().is_some_and(|step| step.starts_with("k:")) {
        old.is_some() != new.is_some()
    } else {
        old != new
    }
}

/// Converts a set to a `fieldsV1` tree.
pub(crate) fn to_tree(set: &FieldSet) -> Value {
    let mut tree = Map::new();
    for path in set {
        let mut node = &mut tree;
        for step in path {
            node = node
                .entry(step.clone())
                .or_insert_with(|| Value::Object(Map::new()))
                .as_object_mut()
                .expect("only objects are inserted");
        }
        node.insert(".".into(), Value::Object(Map::new()));
    }
    let mut tree = Value::Object(tree);
    drop_lone_dots(&mut tree);
    tree
}

/// Removes the dot from nodes without owned fields below. A leaf is then `{}`.
fn drop_lone_dots(node: &mut Value) {
    let map = node.as_object_mut().expect("only objects are inserted");
    if map.len() == 1 {
        map.remove(".");
    }
    map.iter_mut().filter(|(step, _)| *step != ".").for_each(|(_, below)| drop_lone_dots(below));
}

/// Converts a `fieldsV1` tree to a set.
pub(crate) fn from_tree(tree: &Value) -> FieldSet {
    fn walk(node: &Value, path: &mut Path, set: &mut FieldSet) {
        let Some(map) = node.as_object() else { return };
        if map.is_empty() || map.contains_key(".") {
            set.insert(path.clone());
        }
        for (step, below) in map.iter().filter(|(step, _)| *step != ".") {
            path.push(step.clone());
            walk(below, path, set);
            path.pop();
        }
    }
    let mut set = FieldSet::new();
    if tree.as_object().is_some_and(|map| !map.is_empty()) {
        walk(tree, &mut Path::new(), &mut set);
    }
    set
}

/// Formats a path as in conflict messages: `.spec.ports[port=80,protocol="TCP"].name`.
pub(crate) fn shown(path: &[String]) -> String {
    path.iter()
        .map(|step| {
            if let Some(name) = step.strip_prefix("f:") {
                format!(".{name}")
            } else if let Some(value) = step.strip_prefix("v:") {
                format!("[={value}]")
            } else {
                let keys: Map<String, Value> = serde_json::from_str(&step[2..]).unwrap_or_default();
                let words: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("[{}]", words.join(","))
            }
        })
        .collect()
}
