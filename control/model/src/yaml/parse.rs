//! Parses text to trees: one for each document, with anchors, aliases and merge keys resolved.
//!
//! The grammar is saphyr-parser's (events with positions, without recursion). This file builds the tree, and defines
//! its limits and its faults. After a fault, parsing continues in order to find others. After a syntax error it
//! continues at the next document separator: a line that starts with `---` or `...` ends a document everywhere, also
//! in quotes, brackets and block scalars (YAML 1.2, 9.1.2).

use std::collections::HashMap;
use std::ops::Range;

use indexmap::IndexMap;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::{
    DEPTH_MAX, Entry, NODES_MAX, Node, Position, Scalar, UNFOLDED_BYTES_MAX, UNFOLDED_NODES_MAX, Value, json,
};

/// The number of syntax errors after which the rest of a text is not read.
const SYNTAX_ERRORS_MAX: usize = 100;

/// The non-empty documents of a text, and the faults of the text.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The documents without syntax errors.
    pub documents: Vec<Node>,
    /// The indices of `documents` whose text has a fault, each with the indices of its faults.
    pub flawed: Vec<(usize, Range<usize>)>,
    /// Syntax errors, duplicate keys, exceeded limits.
    pub faults: Vec<Fault>,
}

/// A fault of the text itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// The position.
    pub at: Position,
    /// The fault.
    pub what: String,
    /// What would be accepted.
    pub accepted: &'static str,
}

/// Parses all documents of `text`. Consecutive JSON values are separate documents, without a separator.
///
/// ```
/// let parsed = tidegate_model::yaml::parse("a: 1\n---\n{\"b\": [2]}\n");
/// assert!(parsed.faults.is_empty());
/// assert_eq!(parsed.documents[1].entry("b").expect("it has one").at.column, 2);
/// ```
pub fn parse(text: &str) -> Parsed {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    let (mut from, mut at) = (0, Position { line: 1, column: 1 });
    for (begin, part) in json::values(text) {
        at = end(at, &text[from..begin]);
        from = begin;
        if !builder.part(&json::as_yaml(part), at) {
            break;
        }
    }
    builder.parsed
}

/// The end of a text that begins at `at`.
fn end(at: Position, text: &str) -> Position {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let columns = |text: &str| number(text.chars().count());
    let breaks = text.matches(['\n', '\r']).count() - text.matches("\r\n").count();
    let line = at.line.saturating_add(number(breaks));
    match text.rfind(['\n', '\r']) {
        Some(last) => Position { line, column: columns(&text[last + 1..]).saturating_add(1) },
        None => Position { line, column: at.column.saturating_add(columns(text)) },
    }
}

/// Finds the next document after a syntax error: its offset, and the number of lines before it.
fn next_document(text: &str, error: Position) -> Option<(usize, u32)> {
    let (mut offset, mut lines) = (0, 0);
    loop {
        let line = &text[offset..];
        let len = line.find(['\n', '\r'])?;
        let len = len + if line[len..].starts_with("\r\n") { 2 } else { 1 };
        // An error at a separator belongs to the document before it. The text itself may start with a separator.
        let is_after = offset > 0 && (lines + 1, 1) >= (error.line, error.column);
        if is_after && is_separator(line, "---") {
            return Some((offset, lines));
        }
        (offset, lines) = (offset + len, lines + 1);
        if is_after && is_separator(line, "...") {
            return Some((offset, lines));
        }
    }
}

fn is_separator(line: &str, mark: &str) -> bool {
    line.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']))
}

fn position(marker: saphyr_parser::Marker) -> Position {
    let from = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position { line: from(marker.line()).max(1), column: from(marker.col()).saturating_add(1) }
}

/// A collection that is not complete yet.
enum Open {
    Sequence {
        anchor: usize,
        at: Position,
        items: Vec<Node>,
    },
    Mapping {
        anchor: usize,
        at: Position,
        entries: IndexMap<String, (Position, Node)>,
        /// The values of YAML merge keys, which may be repeated. They are resolved when the mapping is complete.
        merges: Vec<(Position, Node)>,
        key: Option<(String, Position)>,
    },
}

/// Why parsing stopped.
enum Stop {
    /// The end of the text.
    End,
    /// A limit was exceeded.
    Limit,
    /// A syntax error at this position in the text.
    SyntaxError(Position),
}

#[derive(Default)]
struct Builder {
    parsed: Parsed,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    /// The number of values and bytes of text that anchors and aliases repeated so far.
    unfolded: Size,
    /// The number of faults before the current document.
    faults_before: usize,
    /// The lines before the text that is being parsed, and the columns before its first line.
    lines_before: u32,
    columns_before: u32,
    syntax_errors: usize,
    /// The number of `documents` before the current one.
    complete: usize,
}

impl Builder {
    /// Parses a text that begins at `at`, and continues after syntax errors. Returns false if a limit was exceeded.
    fn part(&mut self, text: &str, at: Position) -> bool {
        (self.lines_before, self.columns_before) = (at.line - 1, at.column - 1);
        let mut rest = text;
        loop {
            if self.syntax_errors >= SYNTAX_ERRORS_MAX {
                let at = Position { line: self.lines_before + 1, column: self.columns_before + 1 };
                let what =
                    format!("more than {SYNTAX_ERRORS_MAX} syntax errors: the rest of the file is not read");
                self.fault(at, what, "YAML or JSON");
                return false;
            }
            let stop = match self.documents(rest) {
                Stop::End => return true,
                Stop::Limit => return false,
                Stop::SyntaxError(stop) => stop,
            };
            let Some((offset, lines)) = next_document(rest, stop) else { return true };
            self.lines_before += lines;
            self.columns_before = 0;
            rest = &rest[offset..];
        }
    }

    /// Parses the documents of a text up to its end, a limit or a syntax error.
    fn documents(&mut self, text: &str) -> Stop {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => {
                    if !self.event(event, span) {
                        return Stop::Limit;
                    }
                }
                Err(error) => {
                    let within = position(*error.marker());
                    self.fault(
                        self.place(*error.marker()),
                        format!("not YAML: {}", error.info()),
                        "YAML or JSON",
                    );
                    self.syntax_errors += 1;
                    // The first value may be complete, but it is only part of the document.
                    self.parsed.documents.truncate(self.complete);
                    self.parsed.flawed.retain(|(index, _)| *index < self.complete);
                    self.open.clear();
                    return Stop::SyntaxError(within);
                }
            }
        }
        Stop::End
    }

    fn place(&self, marker: saphyr_parser::Marker) -> Position {
        let Position { line, column } = position(marker);
        let before = if line == 1 { self.columns_before } else { 0 };
        Position { line: line.saturating_add(self.lines_before), column: column.saturating_add(before) }
    }

    /// Processes one event. Returns false if a limit was exceeded and the rest must not be read.
    fn event(&mut self, event: Event<'_>, span: Span) -> bool {
        let at = self.place(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = Node { at, value: Value::Scalar(scalar(&text, style, tag.as_deref())) };
                self.anchor(anchor, &node) && self.written(at) && self.add(node)
            }
            Event::SequenceStart(anchor, _) => self.open(Open::Sequence { anchor, at, items: vec![] }, at),
            Event::MappingStart(anchor, _) => {
                let (entries, merges, key) = (IndexMap::new(), Vec::new(), None);
                self.open(Open::Mapping { anchor, at, entries, merges, key }, at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, at),
            Event::DocumentStart(_) => {
                // Anchors are valid only within their document (YAML 1.2, 7.1).
                self.anchors.clear();
                self.faults_before = self.parsed.faults.len();
                self.complete = self.parsed.documents.len();
                true
            }
            Event::DocumentEnd => {
                self.complete = self.parsed.documents.len();
                true
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd => true,
        }
    }

    fn open(&mut self, open: Open, at: Position) -> bool {
        if self.open.len() >= DEPTH_MAX {
            self.fault(
                at,
                format!("the value is nested deeper than {DEPTH_MAX} levels"),
                "fewer nested lists and mappings",
            );
            return false;
        }
        self.open.push(open);
        true
    }

    fn close(&mut self) -> bool {
        let (anchor, node) = match self.open.pop().expect("the parser balances starts and ends") {
            Open::Sequence { anchor, at, items } => (anchor, Node { at, value: Value::Sequence(items) }),
            Open::Mapping { anchor, at, entries, merges, .. } => {
                let Some(entries) = self.merged(entries, merges) else { return false };
                (anchor, Node { at, value: Value::Mapping(entries) })
            }
        };
        self.anchor(anchor, &node) && self.written(node.at) && self.add(node)
    }

    fn alias(&mut self, id: usize, at: Position) -> bool {
        let Some(mut node) = self.anchors.get(&id).cloned() else {
            // The parser refuses unknown names, so this is an alias within its own anchor.
            self.fault(
                at,
                "the alias is inside the value that it repeats",
                "an alias outside of the value that it repeats",
            );
            return false;
        };
        node.at = at;
        self.unfold(size(&node), at) && self.add(node)
    }

    /// Counts a value that is written in the text. Returns false if the limit is exceeded.
    fn written(&mut self, at: Position) -> bool {
        self.nodes += 1;
        let fits = self.nodes <= NODES_MAX;
        if !fits {
            self.fault(at, format!("the file has more than {NODES_MAX} values"), "several smaller files");
        }
        fits
    }

    /// Counts values that are repeated. Returns false if the limit is exceeded.
    fn unfold(&mut self, more: Size, at: Position) -> bool {
        self.unfolded = self.unfolded.plus(more);
        let what = if self.unfolded.nodes > UNFOLDED_NODES_MAX {
            format!("anchors and aliases expand to more than {UNFOLDED_NODES_MAX} values")
        } else if self.unfolded.bytes > UNFOLDED_BYTES_MAX {
            format!("anchors and aliases expand to more than {UNFOLDED_BYTES_MAX} bytes")
        } else {
            return true;
        };
        self.fault(at, what, "fewer or smaller aliases");
        false
    }

    /// Keeps a copy of an anchored value for its aliases. Returns false if the limit on repetition is exceeded.
    fn anchor(&mut self, id: usize, node: &Node) -> bool {
        if id == 0 {
            return true;
        }
        let kept = self.unfold(size(node), node.at);
        if kept {
            self.anchors.insert(id, node.clone());
        }
        kept
    }

    /// Adds a complete node to the innermost open collection, or as a document.
    fn add(&mut self, node: Node) -> bool {
        match self.open.last_mut() {
            None if node.is_null() => {}
            None => {
                let faults = self.faults_before..self.parsed.faults.len();
                if !faults.is_empty() {
                    self.parsed.flawed.push((self.parsed.documents.len(), faults));
                }
                self.parsed.documents.push(node);
            }
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, merges, key, .. }) => match key.take() {
                Some((key, at)) if key == "<<" => merges.push((at, node)),
                Some((key, at)) if entries.contains_key(&key) => {
                    self.fault(at, format!("duplicate key {key:?}"), "each key once");
                }
                Some((key, at)) => {
                    entries.insert(key, (at, node));
                }
                None => match &node.value {
                    Value::Scalar(scalar) => *key = Some((scalar.as_key(), node.at)),
                    _ => {
                        let what = format!("{} is used as a key", node.describe());
                        *key = Some((String::new(), node.at));
                        self.fault(node.at, what, "text as a key");
                    }
                },
            },
        }
        true
    }

    /// Resolves merge keys (`<<: *base`): explicit entries take precedence over merged ones, and the first merged
    /// mapping over later ones. `None` if the limit on repeated nodes is exceeded.
    fn merged(
        &mut self,
        mut entries: IndexMap<String, (Position, Node)>,
        merges: Vec<(Position, Node)>,
    ) -> Option<Vec<Entry>> {
        for (at, merge) in merges {
            let bases = match merge.value {
                Value::Sequence(items) => items,
                _ => vec![merge],
            };
            for base in bases {
                if !self.unfold(size(&base), at) {
                    return None;
                }
                let Value::Mapping(more) = base.value else {
                    self.fault(base.at, "<< merges something that is not a mapping", "an alias to a mapping");
                    continue;
                };
                for Entry { key, at, node } in more {
                    entries.entry(key).or_insert((at, node));
                }
            }
        }
        Some(entries.into_iter().map(|(key, (at, node))| Entry { key, at, node }).collect())
    }

    fn fault(&mut self, at: Position, what: impl Into<String>, accepted: &'static str) {
        self.parsed.faults.push(Fault { at, what: what.into(), accepted });
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Scalar {
    let is_text = tag.is_some_and(|t| t.is_yaml_core_schema() && t.suffix == "str");
    if style == ScalarStyle::Plain && !is_text { Scalar::plain(text) } else { Scalar::text(text) }
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    /// The bytes of keys and scalars.
    bytes: usize,
}

impl Size {
    fn plus(self, more: Self) -> Self {
        Self { nodes: self.nodes + more.nodes, bytes: self.bytes + more.bytes }
    }
}

fn size(node: &Node) -> Size {
    match &node.value {
        Value::Scalar(scalar) => Size { nodes: 1, bytes: scalar.text.len() },
        Value::Sequence(items) => items.iter().map(size).fold(Size { nodes: 1, bytes: 0 }, Size::plus),
        Value::Mapping(entries) => {
            let entry = |e: &Entry| size(&e.node).plus(Size { nodes: 0, bytes: e.key.len() });
            entries.iter().map(entry).fold(Size { nodes: 1, bytes: 0 }, Size::plus)
        }
    }
}
