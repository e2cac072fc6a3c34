//! Reads one mapping of the configuration, and refuses unknown keys.

use crate::yaml::{Fields, Unknown};

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
