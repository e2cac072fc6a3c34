//! Fields that several kinds have, and the items of lists.

use tidegate_model::objects::Labels;
use tidegate_model::yaml::{Field, Fields, Unknown, Value};

use crate::manifest::{limited::limited, stored};

/// Reads an item of a list. `None` if any part of it is invalid.
pub(super) fn intact<T>(item: &Field<'_>, read: impl FnOnce(&Fields<'_>) -> Option<T>) -> Option<T> {
    let before = item.sheet.errors();
    let value = item.fields()?.whole(Unknown::Warned, read);
    value.filter(|_| item.sheet.errors() == before)
}

/// The items of a required list with at least one item. `what` is the item in messages.
pub(super) fn required_items<'a>(
    of: &Fields<'a>,
    key: &'static str,
    max: usize,
    what: &str,
) -> Vec<Field<'a>> {
    let accepted = if max == 1 { format!("one {what}") } else { format!("1 to {max} {what}s") };
    let Some(list) = of.required(key, &accepted) else { return Vec::new() };
    let items = limited(of, key, max);
    if items.is_empty() && matches!(list.node.value, Value::Sequence(_)) {
        list.error("the list is empty", accepted);
    }
    items
}

/// Labels or annotations with a maximum number. The keys are checked as those of labels.
pub(super) fn limited_labels(
    of: &Fields<'_>,
    key: &'static str,
    max: usize,
    read: fn(&Field<'_>) -> Labels,
) -> Labels {
    let Some(field) = of.get(key) else { return Labels::new() };
    let labels = read(&field);
    if labels.len() > max && !field.sheet.is_stored() {
        field.error(format_args!("{} keys", labels.len()), format!("at most {max}"));
    }
    labels
}

/// `metadata.generation`.
pub(super) fn generation(object: &Fields<'_>) -> i64 {
    object.mapping("metadata").map_or(0, |metadata| stored::number(&metadata, "generation"))
}
