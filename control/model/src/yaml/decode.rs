//! A decoder that continues after a fault: typed getters record the fault and return `None`.
//!
//! A [`Sheet`] collects the faults of one file. [`Fields`] is a mapping that is read key by key; at the end it
//! reports the keys that were not read. [`Field`] is one value with its path for messages. Callers define the schema
//! (keys and ranges).

use std::cell::RefCell;
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_wire::Named;

use super::{Entry, Node, Position, ScalarKind, Value, parse, path_step, text};
use crate::diagnostic::{Diagnostic, Location, Report, Severity};
use crate::objects::{Labels, Origin, Port};

/// Collects the faults of one file while it is decoded.
#[derive(Debug)]
pub struct Sheet {
    file: Arc<str>,
    report: RefCell<Report>,
    /// Errors in the order found, without the errors that [`Sheet::take_errors_since`] took out.
    errors: RefCell<Vec<Diagnostic>>,
    is_stored: bool,
}

impl Sheet {
    /// A sheet without faults for `file`, which is its name in messages.
    pub fn new(file: impl Into<Arc<str>>) -> Self {
        Self { file: file.into(), report: RefCell::default(), errors: RefCell::default(), is_stored: false }
    }

    /// A sheet for an object from an API server, identified by its kind and name.
    pub fn of_stored(name: impl Into<Arc<str>>) -> Self {
        Self { is_stored: true, ..Self::new(name) }
    }

    /// Whether the input was stored by an API server. The server accepted it, perhaps in an older version with laxer
    /// rules, so each field is read separately: an invalid field does not affect the rest of the object. Unknown keys
    /// cause no warning, because the API server may be newer than the gateway.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Parses the documents of the file's text. Faults of the text itself are recorded.
    pub fn documents(&self, text: &str) -> Vec<Node> {
        self.documents_with_flaws(text, |_, _| true).into_iter().map(|(node, _)| node).collect()
    }

    /// Like [`Self::documents`], but also returns whether each document's text has a fault, such as a duplicate key.
    /// `is_read` returns whether the part of a document at a position is read at all. A fault elsewhere is only a
    /// warning.
    pub fn documents_with_flaws(
        &self,
        text: &str,
        is_read: impl Fn(&Node, Position) -> bool,
    ) -> Vec<(Node, bool)> {
        let parsed = parse(text);
        let mut documents: Vec<(Node, bool)> =
            parsed.documents.into_iter().map(|node| (node, false)).collect();
        let document_of = |fault: usize| {
            let at = parsed.flawed.partition_point(|(_, faults)| faults.end <= fault);
            parsed.flawed.get(at).filter(|(_, faults)| faults.contains(&fault)).map(|(document, _)| *document)
        };
        for (n, fault) in parsed.faults.into_iter().enumerate() {
            match document_of(n).map(|document| &mut documents[document]) {
                Some((node, _)) if !is_read(node, fault.at) => {
                    self.warning(fault.at, fault.what, fault.accepted);
                }
                document => {
                    document.into_iter().for_each(|(_, is_flawed)| *is_flawed = true);
                    self.error(fault.at, fault.what, fault.accepted);
                }
            }
        }
        documents
    }

    /// Records an error.
    pub fn error(&self, at: Position, what: impl Into<String>, accepted: impl Into<String>) {
        self.push(Diagnostic::error(what).accepting(accepted).at(self.location(at)));
    }

    /// Records a warning.
    pub fn warning(&self, at: Position, what: impl Into<String>, accepted: impl Into<String>) {
        self.push(Diagnostic::warning(what).accepting(accepted).at(self.location(at)));
    }

    /// Records any diagnostic.
    pub fn push(&self, diagnostic: Diagnostic) {
        if diagnostic.severity == Severity::Error {
            self.errors.borrow_mut().push(diagnostic.clone());
        }
        self.report.borrow_mut().push(diagnostic);
    }

    /// The location of a position in this file.
    pub fn location(&self, at: Position) -> Location {
        Location { path: self.file.clone(), line: at.line, column: at.column }
    }

    /// The number of errors so far. Compare it before and after reading a part to find out whether the part is valid.
    pub fn errors(&self) -> usize {
        self.errors.borrow().len()
    }

    /// The errors after the first `before`.
    pub fn errors_since(&self, before: usize) -> Vec<Diagnostic> {
        self.errors.borrow().iter().skip(before).cloned().collect()
    }

    /// Takes out the errors since [`Self::errors`] returned `before`. They stay in the report, but [`Self::errors`] no
    /// longer counts them: the part with these errors is left out, and what contains it stays valid.
    pub fn take_errors_since(&self, before: usize) -> Vec<Diagnostic> {
        let mut errors = self.errors.borrow_mut();
        let before = before.min(errors.len());
        errors.split_off(before)
    }

    /// The report of all faults.
    pub fn into_report(self) -> Report {
        self.report.into_inner()
    }

    /// The origin of an object whose root is `node`.
    pub fn origin(&self, node: &Node) -> Origin {
        node.origin(self.file.clone())
    }
}

/// How keys that were not read are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// An error.
    Refused,
    /// A warning, as an API server gives with strict field validation.
    Warned,
    /// Ignored: the mapping has keys that the reader does not need.
    Ignored,
}

/// One value with its path.
#[derive(Debug, Clone)]
pub struct Field<'a> {
    /// The sheet that collects faults.
    pub sheet: &'a Sheet,
    /// The value, which is never null.
    pub node: &'a Node,
    /// The path, such as `spec.ports[1].protocol`; empty for a document.
    pub path: String,
}

impl<'a> Field<'a> {
    /// The field of a whole document.
    pub fn document(sheet: &'a Sheet, node: &'a Node) -> Self {
        Self { sheet, node, path: String::new() }
    }

    /// The position where the value begins.
    pub fn at(&self) -> Position {
        self.node.at
    }

    /// Records an error at this value, prefixed with its path.
    pub fn error(&self, what: impl Display, accepted: impl Into<String>) {
        self.sheet.error(self.at(), self.labelled(what), accepted);
    }

    /// An error at this value, prefixed with its path, that is not recorded.
    pub fn fault(&self, what: impl Display, accepted: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.labelled(what)).accepting(accepted).at(self.sheet.location(self.at()))
    }

    /// Records a warning at this value, prefixed with its path.
    pub fn warning(&self, what: impl Display, accepted: impl Into<String>) {
        self.sheet.warning(self.at(), self.labelled(what), accepted);
    }

    fn labelled(&self, what: impl Display) -> String {
        if self.path.is_empty() { what.to_string() } else { format!("{}: {what}", self.path) }
    }

    /// Records that the value is not one of `accepted`.
    fn refuse<T>(&self, accepted: impl Into<String>) -> Option<T> {
        self.error(format_args!("{} is not accepted", self.node.describe()), accepted);
        None
    }

    /// The text, if the value is text.
    fn text(&self) -> Option<&'a str> {
        self.node.text().filter(|_| self.node.kind() == Some(ScalarKind::Text))
    }

    /// A text. Numbers and booleans without quotes are refused, as on an API server.
    pub fn string(&self) -> Option<&'a str> {
        let quoted = || self.node.text().map(|text| format!("text in quotes: {text:?}"));
        self.text().or_else(|| self.refuse(quoted().unwrap_or_else(|| "text".to_owned())))
    }

    /// A text that error messages never repeat.
    pub fn secret(&self, accepted: &str) -> Option<&'a str> {
        let text = self.text();
        if text.is_none() {
            self.error("the value is not text", format!("text in quotes: {accepted}"));
        }
        text
    }

    /// A text that passes `check`.
    pub fn string_where(&self, check: impl Fn(&str) -> bool, accepted: &str) -> Option<&'a str> {
        let text = self.string()?;
        if check(text) { Some(text) } else { self.refuse(accepted) }
    }

    /// Like [`Self::string_where`], as an owned text.
    pub fn owned_where(&self, check: impl Fn(&str) -> bool, accepted: &str) -> Option<String> {
        self.string_where(check, accepted).map(str::to_owned)
    }

    /// A text that is not blank, such as a path.
    pub fn not_blank(&self, accepted: &str) -> Option<&'a str> {
        self.string_where(|text| !text.trim().is_empty(), accepted)
    }

    /// A text that `parse` accepts.
    pub fn parsed<T>(&self, parse: impl Fn(&str) -> Option<T>, accepted: &str) -> Option<T> {
        self.text().and_then(parse).or_else(|| self.refuse(accepted))
    }

    /// A number or word that `parse` accepts as written. Some words, such as `off`, are booleans in YAML.
    pub fn parsed_as_written<T>(&self, parse: impl Fn(&str) -> Option<T>, accepted: &str) -> Option<T> {
        self.as_written().and_then(parse).or_else(|| self.refuse(accepted))
    }

    /// A number or word as written.
    pub fn as_written(&self) -> Option<&'a str> {
        let is_word =
            matches!(self.node.kind()?, ScalarKind::Int(_) | ScalarKind::Text | ScalarKind::Bool(_));
        self.node.text().filter(|_| is_word)
    }

    /// A boolean.
    pub fn boolean(&self) -> Option<bool> {
        match self.node.kind() {
            Some(ScalarKind::Bool(b)) => Some(b),
            _ => self.refuse("true or false"),
        }
    }

    /// An integer in a range.
    pub fn integer<T: TryFrom<i64> + PartialOrd + Display>(&self, range: RangeInclusive<T>) -> Option<T> {
        let number = match self.node.kind() {
            Some(ScalarKind::Int(n)) => T::try_from(n).ok(),
            _ => None,
        };
        let accepted = || format!("a whole number from {} to {}", range.start(), range.end());
        number.filter(|n| range.contains(n)).or_else(|| self.refuse(accepted()))
    }

    /// A port number, 1 to 65535.
    pub fn port(&self) -> Option<Port> {
        self.integer(1..=u16::MAX).and_then(Port::new)
    }

    /// One of a few words.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let find = |text: &str| choices.iter().find(|(name, _)| *name == text).map(|choice| choice.1);
        self.parsed(find, &choices.iter().map(|c| c.0).collect::<Vec<_>>().join(", "))
    }

    /// One of the names of `T`.
    pub fn named<T: Named>(&self) -> Option<T> {
        self.parsed_as_written(T::named, &text::names::<T>())
    }

    /// An address. An IPv4-mapped IPv6 address is refused, as in new objects since Kubernetes 1.36. In a stored
    /// object it is read as the IPv4 address, and leading zeros are ignored.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip_or(text::IP)
    }

    /// Like [`Self::ip`], with another text for what is accepted.
    pub fn ip_or(&self, accepted: &str) -> Option<IpAddr> {
        if self.sheet.is_stored {
            return self.parsed(text::stored_ip, accepted);
        }
        let ip: IpAddr = self.parsed(|t| t.parse().ok(), accepted)?;
        if ip.to_canonical() != ip {
            self.error(format_args!("{ip} is an IPv4-mapped IPv6 address"), ip.to_canonical().to_string());
            return None;
        }
        Some(ip)
    }

    /// A network. Bits after the prefix are refused, and the message contains the network that was probably meant.
    pub fn network(&self) -> Option<IpNet> {
        let written = self.parsed(text::cidr, text::CIDR)?;
        // Packets have the IPv4 form, so the mapped form would match none.
        let net = if self.sheet.is_stored { written } else { text::unmapped(written) };
        if net.network() != net.addr() {
            self.error(format_args!("{net} has host bits set"), net.trunc().to_string());
            return None;
        }
        Some(net)
    }

    /// A duration in a range.
    pub fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let value = self.parsed(text::duration, text::DURATION)?;
        if !range.contains(&value) {
            let [from, to] = [range.start(), range.end()].map(|d| text::show_duration(*d));
            return self.refuse(format!("a duration from {from} to {to}"));
        }
        Some(value)
    }

    /// An RFC 3339 time.
    pub fn time(&self) -> Option<jiff::Timestamp> {
        self.parsed(|t| t.parse().ok(), "a time such as 2026-01-31T12:00:00Z")
    }

    /// A list. Null items are refused.
    pub fn list(&self) -> Vec<Field<'a>> {
        let Value::Sequence(items) = &self.node.value else {
            return self.refuse("a list").unwrap_or_default();
        };
        let item = |(i, node)| Field { sheet: self.sheet, node, path: format!("{}[{i}]", self.path) };
        let items: Vec<_> = items.iter().enumerate().map(item).collect();
        let (nulls, values): (Vec<_>, Vec<_>) = items.into_iter().partition(|f: &Field<'_>| f.node.is_null());
        for null in nulls {
            null.error("an empty item is not accepted", "a value, or a list without this item");
        }
        values
    }

    /// A mapping to be read key by key. End with [`Fields::finish`].
    pub fn fields(&self) -> Option<Fields<'a>> {
        let Value::Mapping(entries) = &self.node.value else {
            return self.refuse("a mapping of keys to values");
        };
        Some(Fields { of: self.clone(), entries, known_keys: RefCell::default() })
    }

    /// A mapping from text to text, such as labels.
    pub fn labels(&self) -> Labels {
        let Some(fields) = self.fields() else { return Labels::new() };
        let text = |e: &Entry| {
            if e.node.is_null() {
                return Some((e.key.clone(), String::new()));
            }
            Some((e.key.clone(), fields.child(&e.key, &e.node).string()?.to_owned()))
        };
        fields.entries.iter().filter_map(text).collect()
    }
}

/// A mapping that is being read. It records which keys were read.
#[derive(Debug)]
pub struct Fields<'a> {
    of: Field<'a>,
    entries: &'a [Entry],
    known_keys: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    /// The mapping itself, as the position for faults.
    pub fn itself(&self) -> &Field<'a> {
        &self.of
    }

    /// Whether the mapping has no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key; `None` if it is absent or null.
    pub fn get(&self, key: &'static str) -> Option<Field<'a>> {
        self.known_keys.borrow_mut().push(key);
        let entry = self.entries.iter().find(|e| e.key == key)?;
        (!entry.node.is_null()).then(|| self.child(key, &entry.node))
    }

    /// The value of a key; `None` if it is absent, null or the empty text, which Kubernetes treats as absent.
    pub fn filled(&self, key: &'static str) -> Option<Field<'a>> {
        self.get(key).filter(|field| field.node.text() != Some(""))
    }

    /// A text; `None` if it is absent or empty.
    pub fn text(&self, key: &'static str) -> Option<String> {
        self.filled(key)?.string().map(str::to_owned)
    }

    /// The value of a required key.
    pub fn required(&self, key: &'static str, accepted: &str) -> Option<Field<'a>> {
        let found = self.get(key);
        if found.is_none() {
            let at = self.entries.iter().find(|e| e.key == key).map_or(self.of.at(), |e| e.at);
            self.of.sheet.error(at, format!("{} is missing", self.child_path(key)), accepted);
        }
        found
    }

    /// The value of a key that is a mapping.
    pub fn mapping(&self, key: &'static str) -> Option<Fields<'a>> {
        self.get(key)?.fields()
    }

    /// The items of a key that is a list; empty if it is absent.
    pub fn items(&self, key: &'static str) -> Vec<Field<'a>> {
        self.get(key).map(|f| f.list()).unwrap_or_default()
    }

    /// The value of a key that `read` accepts.
    pub fn read<T>(&self, key: &'static str, read: impl FnOnce(&Field<'a>) -> Option<T>) -> Option<T> {
        read(&self.get(key)?)
    }

    /// Replaces `value` with the value of a key, if `read` accepts it.
    pub fn set<T>(&self, key: &'static str, value: &mut T, read: impl FnOnce(&Field<'a>) -> Option<T>) {
        if let Some(written) = self.read(key, read) {
            *value = written;
        }
    }

    /// The items of a list that `read` accepts.
    pub fn each<T>(&self, key: &'static str, read: impl FnMut(&Field<'a>) -> Option<T>) -> Vec<T> {
        self.items(key).iter().filter_map(read).collect()
    }

    /// Reads a key that is a mapping, and refuses keys of the mapping that `read` did not request. `None` if the
    /// mapping is absent or invalid.
    pub fn section<T>(&self, key: &'static str, read: impl FnOnce(&Fields<'a>) -> T) -> Option<T> {
        Some(self.mapping(key)?.whole(Unknown::Refused, read))
    }

    /// Like [`Self::section`], but warns about keys that `read` did not request.
    pub fn part<T>(&self, key: &'static str, read: impl FnOnce(&Fields<'a>) -> T) -> Option<T> {
        Some(self.mapping(key)?.whole(Unknown::Warned, read))
    }

    /// Reads a list of mappings like [`Self::section`].
    pub fn sections<T>(&self, key: &'static str, mut read: impl FnMut(&Fields<'a>) -> Option<T>) -> Vec<T> {
        self.each(key, |item| item.fields()?.whole(Unknown::Refused, &mut read))
    }

    /// Reads the keys of the mapping. Keys that `read` did not request are treated as `unknown`.
    pub fn whole<T>(self, unknown: Unknown, read: impl FnOnce(&Fields<'a>) -> T) -> T {
        let value = read(&self);
        self.finish(unknown);
        value
    }

    /// Marks keys that the reader does not use as known.
    pub fn allow(&self, keys: &[&'static str]) {
        self.known_keys.borrow_mut().extend_from_slice(keys);
    }

    /// The entries that were not read and have a value.
    pub fn unread(&self) -> Vec<(&'a Entry, Field<'a>)> {
        let known_keys = self.known_keys.borrow();
        let is_unread = |e: &&Entry| !known_keys.contains(&e.key.as_str()) && !e.node.is_null();
        self.entries.iter().filter(is_unread).map(|e| (e, self.child(&e.key, &e.node))).collect()
    }

    /// Reports the keys that were not read.
    pub fn finish(self, unknown: Unknown) {
        let severity = match unknown {
            Unknown::Refused => Severity::Error,
            Unknown::Warned if !self.of.sheet.is_stored => Severity::Warning,
            Unknown::Warned | Unknown::Ignored => return,
        };
        let mut known_keys = Vec::new();
        for key in self.known_keys.into_inner() {
            if !known_keys.contains(&key) {
                known_keys.push(key);
            }
        }
        for entry in self.entries.iter().filter(|e| !known_keys.contains(&e.key.as_str())) {
            let place = if self.of.path.is_empty() { String::new() } else { format!(" in {}", self.of.path) };
            let near = text::nearest(&entry.key, &known_keys);
            let accepted = match (near.as_slice(), known_keys.as_slice()) {
                ([], []) => "no key".to_owned(),
                ([], all) => all.join(", "),
                (near, _) => near.join(", "),
            };
            let what = format!("unknown key {:?}{place}", entry.key);
            match severity {
                Severity::Error => self.of.sheet.error(entry.at, what, accepted),
                Severity::Warning => self.of.sheet.warning(entry.at, what, accepted),
            }
        }
    }

    fn child(&self, key: &str, node: &'a Node) -> Field<'a> {
        Field { sheet: self.of.sheet, node, path: self.child_path(key) }
    }

    fn child_path(&self, key: &str) -> String {
        if self.of.path.is_empty() {
            return key.to_owned();
        }
        let parent = self.of.path.rsplit('.').next().unwrap_or_default();
        let (before, key, after) = path_step(parent, key);
        format!("{}{before}{key}{after}", self.of.path)
    }
}
