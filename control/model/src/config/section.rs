//! Reads one mapping of the configuration, and refuses unknown keys. Reads a scalar as it is written.

use crate::yaml::{Fields, Node, ScalarKind, Unknown, Value};

/// Reads the mapping `key` with `read`, and refuses keys that `read` did not request. `None` if the mapping is absent
/// or invalid, or `read` returned nothing.
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

/// A number or word as written. Some words, such as `off`, are booleans of YAML.
pub(super) fn scalar_text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(s) if matches!(s.kind, ScalarKind::Int(_) | ScalarKind::Text | ScalarKind::Bool(_)) => {
            Some(&s.text)
        }
        _ => None,
    }
}
