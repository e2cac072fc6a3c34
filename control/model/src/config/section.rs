//! Reads one mapping of the configuration and refuses unknown keys. Reads a scalar as written.

use crate::yaml::{Fields, Node, ScalarKind, Unknown, Value};

/// Reads the mapping `key` with `read`, and refuses keys that `read` did not request. `None` if the mapping is absent
/// or invalid, or if `read` returned `None`.
pub(super) fn section<'a, T>(
    parent: &Fields<'a>,
    key: &'static str,
    read: impl FnOnce(&Fields<'a>) -> Option<T>,
) -> Option<T> {
    let fields = parent.mapping(key)?;
    let value = read(&fields);
    fields.finish(Unknown::Refused);
    value
}

/// Like [`section`], for a mapping that contains a secret. If the secret is written in place of the mapping, the
/// error does not repeat it.
pub(super) fn secret_section<'a, T>(
    parent: &Fields<'a>,
    key: &'static str,
    read: impl FnOnce(&Fields<'a>) -> Option<T>,
) -> Option<T> {
    if let Some(field) = parent.get(key).filter(|field| !matches!(field.node.value, Value::Mapping(_))) {
        field.error("the value is not a mapping", format!("{key}: {{file: FILE}} or {key}: {{value: KEY}}"));
        return None;
    }
    section(parent, key, read)
}

/// A number or word as written. Some words, such as `off`, are booleans in YAML.
pub(super) fn scalar_text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(s) if matches!(s.kind, ScalarKind::Int(_) | ScalarKind::Text | ScalarKind::Bool(_)) => {
            Some(&s.text)
        }
        _ => None,
    }
}
