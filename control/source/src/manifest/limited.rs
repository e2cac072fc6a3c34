//! Lists with a maximum number of items.

use tidegate_model::yaml::{Field, Fields};

/// The items of a list. Too many are an error, except in a stored object.
pub(super) fn limited<'a>(of: &Fields<'a>, key: &'static str, max: usize) -> Vec<Field<'a>> {
    let Some(field) = of.get(key) else { return Vec::new() };
    let items = field.list();
    if items.len() > max && !field.sheet.is_stored() {
        field.error(format_args!("{} items", items.len()), format!("at most {max}"));
    }
    items
}
