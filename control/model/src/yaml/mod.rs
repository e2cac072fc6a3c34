//! Parses YAML (and JSON, which is YAML) to a tree in which each value has its position.
//!
//! [`parse`] builds the tree; [`Sheet`], [`Fields`] and [`Field`] decode it and collect faults. Scalars have the same
//! meaning as in `kubectl`: the rules of sigs.k8s.io/yaml, a YAML 1.1 dialect in which `yes`, `on` and `y` are
//! booleans and `0644` is octal. The parser knows no schema and reads no files.
//!
//! Invariant: work is bounded for any input. Limits apply to depth, the number of values, and the values and bytes that
//! anchors, aliases and merge keys repeat. The time is linear in the size of the text.

mod decode;
pub mod emit;
mod json;
mod parse;
mod scalar;
pub mod text;

#[cfg(test)]
mod tests;

pub use decode::{Field, Fields, Sheet, Unknown};
pub use parse::{Fault, Parsed, parse};
pub use scalar::{Scalar, ScalarKind};

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Location};
use crate::objects::{Origin, PATH_START, path_hash};

/// The maximum nesting depth; Kubernetes objects reach about 20.
pub const DEPTH_MAX: usize = 64;

/// The maximum number of values in a file, which need about 350 MB of memory.
pub const NODES_MAX: usize = 4_000_000;

/// The maximum number of values that anchors, aliases and merge keys of a file may repeat.
pub const UNFOLDED_NODES_MAX: usize = 100_000;

/// The maximum number of bytes of text that anchors, aliases and merge keys of a file may repeat.
pub const UNFOLDED_BYTES_MAX: usize = 8 << 20;

/// A position in a text: line and column, both from 1, with the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The first character of the value.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// The content of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text, a number, a boolean or null.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// A mapping in the order written.
    Mapping(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key. A number or boolean becomes its JSON text, as in `kubectl`.
    pub key: String,
    /// The first character of the key.
    pub at: Position,
    /// The value.
    pub node: Node,
}

/// The position of the first byte that is not UTF-8, and the error message; `None` if all are UTF-8.
pub fn not_utf8(bytes: &[u8]) -> Option<(Position, String)> {
    let valid = std::str::from_utf8(bytes).err()?.valid_up_to();
    let (text, rest) = bytes.split_at(valid);
    let line = text.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let column = String::from_utf8_lossy(&text[start..]).chars().count() + 1;
    let from = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let byte = rest.first().copied().unwrap_or_default();
    Some((Position { line: from(line), column: from(column) }, format!("the byte 0x{byte:02x} is not UTF-8")))
}

/// The text of a file.
///
/// # Errors
/// The fault and its position, if the file isn't UTF-8.
pub fn text_of(bytes: Vec<u8>, file: &str) -> Result<String, Diagnostic> {
    String::from_utf8(bytes).map_err(|error| {
        let (at, what) = not_utf8(error.as_bytes()).expect("not UTF-8");
        Diagnostic::error(what).accepting("UTF-8 text").at(Location::new(file, at.line, at.column))
    })
}

impl Node {
    /// Whether it is null, `~` or nothing.
    pub fn is_null(&self) -> bool {
        self.kind() == Some(ScalarKind::Null)
    }

    /// The meaning of a scalar.
    pub fn kind(&self) -> Option<ScalarKind> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar.kind),
            _ => None,
        }
    }

    /// The description for messages: `a list`, `the number 80`.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Sequence(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
            Value::Scalar(scalar) => scalar.describe(),
        }
    }

    /// The text of a scalar, as written.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// The entry with this key, if the node is a mapping that has it.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|e| e.key == key),
            _ => None,
        }
    }

    /// The locations of all fields of the object in `file` whose root is this node.
    pub fn origin(&self, file: Arc<str>) -> Origin {
        let mut fields = Vec::new();
        if !self.has_position() {
            return Origin::from_hashed(file, (0, 0), fields);
        }
        hash_fields(self, PATH_START, "", &mut fields);
        Origin::from_hashed(file, (self.at.line, self.at.column), fields)
    }
}

/// Adds every field below `node`: the hash of its path, and its position. `hash` and `key` belong to the node itself.
///
/// In a mapping, a collection has the position of its key, where readers look for it, and a scalar has the position of
/// its value.
fn hash_fields(node: &Node, hash: u64, key: &str, fields: &mut Vec<(u64, u32, u32)>) {
    match &node.value {
        Value::Scalar(_) => {}
        Value::Sequence(items) => {
            for (i, item) in items.iter().enumerate() {
                let hash = path_hash(hash, &format!("[{i}]"));
                fields.push((hash, item.at.line, item.at.column));
                hash_fields(item, hash, "", fields);
            }
        }
        Value::Mapping(entries) => {
            for entry in entries {
                let (before, step, after) = path_step(key, &entry.key);
                let before = if hash == PATH_START { "" } else { before };
                let hash = [before, step, after].into_iter().fold(hash, path_hash);
                let at = if matches!(entry.node.value, Value::Scalar(_)) { entry.node.at } else { entry.at };
                fields.push((hash, at.line, at.column));
                hash_fields(&entry.node, hash, &entry.key, fields);
            }
        }
    }
}

/// How `key` continues the field path of its parent: maps with user-defined keys put them in brackets, as Kubernetes
/// does (`metadata.labels[app]`).
fn path_step<'k>(parent_key: &str, key: &'k str) -> (&'static str, &'k str, &'static str) {
    let free = matches!(parent_key, "labels" | "annotations" | "selector" | "matchLabels" | "nodeSelector");
    if free { ("[", key, "]") } else { (".", key, "") }
}
