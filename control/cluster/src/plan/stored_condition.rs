//! Compares the conditions in a stored status with the wanted ones, and recognizes our own.

use tidegate_model::objects::Condition;

/// The prefix of our own conditions.
const PREFIX: &str = "tidegate.dev/";

/// Whether our stored conditions equal the wanted ones. Conditions of others are ignored.
pub(super) fn same(stored: &[Condition], wanted: &[Condition], ours: fn(&Condition) -> bool) -> bool {
    let mut stored: Vec<&Condition> = stored.iter().filter(|c| ours(c)).collect();
    let mut wanted: Vec<&Condition> = wanted.iter().collect();
    stored.sort_by(|a, b| a.kind.cmp(&b.kind));
    wanted.sort_by(|a, b| a.kind.cmp(&b.kind));
    stored == wanted
}

/// Whether a condition is one of ours, by its prefix. A Gateway also has conditions of the specification.
pub(super) fn is_ours(condition: &Condition) -> bool {
    condition.kind.starts_with(PREFIX)
}
