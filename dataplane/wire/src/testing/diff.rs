//! Compares two frames by field, and asserts that only expected fields changed.

use super::fields::fields;
use super::show::{hexdump, summary};
use core::fmt;

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the field, as in [`super::fields`].
    pub field: String,
    /// The value before; `None` if the field did not exist.
    pub before: Option<String>,
    /// The value after; `None` if the field no longer exists.
    pub after: Option<String>,
}

/// All fields that differ, in frame order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff(pub Vec<Change>);

impl Diff {
    /// The names of the fields.
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|c| c.field.as_str()).collect()
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Change { field, before, after } in &self.0 {
            let shown = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".into());
            writeln!(f, "  {field:<24} {} -> {}", shown(before), shown(after))?;
        }
        Ok(())
    }
}

/// Compares two frames field by field. Fields with the same name (two VLAN tags) are compared in order.
pub fn diff(before: &[u8], after: &[u8]) -> Diff {
    let old = fields(before);
    let mut new = fields(after);
    let mut changes = Vec::new();
    for field in old {
        let Some(at) = new.iter().position(|n| n.name == field.name) else {
            changes.push(Change { field: field.name, before: Some(field.value), after: None });
            continue;
        };
        let found = new.remove(at);
        if found.value != field.value {
            changes.push(Change { field: field.name, before: Some(field.value), after: Some(found.value) });
        }
    }
    changes.extend(new.into_iter().map(|n| Change { field: n.name, before: None, after: Some(n.value) }));
    Diff(changes)
}

/// Asserts that exactly these fields differ, in any order. Prints both frames on failure.
///
/// # Panics
/// If another set of fields differs.
#[track_caller]
pub fn assert_only_changed(before: &[u8], after: &[u8], expected: &[&str]) {
    let diff = diff(before, after);
    let mut found = diff.names();
    let mut wanted = expected.to_vec();
    found.sort_unstable();
    wanted.sort_unstable();
    assert!(
        found == wanted,
        "expected changes in {wanted:?}, found:\n{diff}before: {}\n{}after:  {}\n{}",
        summary(before),
        hexdump(before),
        summary(after),
        hexdump(after),
    );
}
