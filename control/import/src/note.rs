//! What a conversion reports: fields without a counterpart, and decisions that are left to the operator.
//!
//! Faults of the input are not here: they are errors of the YAML reader, and nothing is converted then.

use std::cell::RefCell;
use std::fmt;

use tidegate_model::diagnostic::Location;
use tidegate_model::yaml::{Field, Fields, Position};

/// Why a note was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteKind {
    /// Tidegate has nothing that corresponds to the field, or does not need it.
    NoCounterpart,
    /// The result depends on something that the input does not contain.
    Decide,
}

impl fmt::Display for NoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCounterpart => "no counterpart",
            Self::Decide => "decide",
        })
    }
}

/// One line of the report. Prints as `path:line:column: no counterpart: FIELD: why`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The field.
    pub location: Location,
    /// Why the note was written.
    pub kind: NoteKind,
    /// The path of the field, and what the operator should know.
    pub what: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.location, self.kind, self.what)
    }
}

/// Collects the notes of a conversion.
#[derive(Debug, Default)]
pub(crate) struct Notes(RefCell<Vec<Note>>);

impl Notes {
    /// All notes, in the order in which they were added.
    pub(crate) fn into_notes(self) -> Vec<Note> {
        self.0.into_inner()
    }

    /// Adds a note about a value.
    pub(crate) fn add(&self, kind: NoteKind, of: &Field<'_>, what: impl fmt::Display) {
        self.add_at(kind, of.at(), of, what);
    }

    /// Adds a note about a value, at the position of its key.
    pub(crate) fn add_at(&self, kind: NoteKind, at: Position, of: &Field<'_>, what: impl fmt::Display) {
        let what = if of.path.is_empty() { what.to_string() } else { format!("{}: {what}", of.path) };
        self.0.borrow_mut().push(Note { location: of.sheet.location(at), kind, what });
    }

    /// Adds a note about a key, if the mapping has it.
    pub(crate) fn key(&self, kind: NoteKind, of: &Fields<'_>, key: &'static str, what: impl fmt::Display) {
        if let Some(value) = of.get(key) {
            let at = of.itself().node.entry(key).map_or(value.at(), |entry| entry.at);
            self.add_at(kind, at, &value, what);
        }
    }

    /// Adds a note for each of these keys that the mapping has: they have no counterpart, and why.
    pub(crate) fn without_counterpart(&self, of: &Fields<'_>, keys: &[(&'static str, &str)]) {
        for (key, why) in keys {
            self.key(NoteKind::NoCounterpart, of, key, why);
        }
    }

    /// Adds a note for each key that was not read, so that nothing is ignored silently.
    pub(crate) fn rest(&self, of: &Fields<'_>) {
        for (entry, value) in of.unread() {
            self.add_at(NoteKind::NoCounterpart, entry.at, &value, "not converted");
        }
    }
}
