//! Faults of operator input: what is wrong, where, and what is accepted.
//!
//! Every reader of operator input (the configuration, manifests, annotations) records its faults here and continues,
//! so that one run reports all of them. Nothing here reads files or decides what a fault is.
//!
//! Invariants: a [`Report`] prints its diagnostics in the same order, whatever the order in which they were added. A
//! diagnostic has a bounded length, however long the value that it quotes is.

use std::fmt;
use std::sync::Arc;

/// A position in a file, as editors count it. Line 0 means an object that is not in a file (`Service shop/web`).
///
/// The path is printed as the user gave it, or as it was found below a directory that the user gave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file.
    pub path: Arc<str>,
    /// Line, from 1; 0 for an object that is not in a file.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl Location {
    /// The position `line:column` (both from 1) in the file `path`.
    pub fn new(path: impl Into<Arc<str>>, line: u32, column: u32) -> Self {
        Self { path: path.into(), line, column }
    }

    /// The first character of a file, as the position for faults of the whole file.
    pub fn start_of(path: impl Into<Arc<str>>) -> Self {
        Self::new(path, 1, 1)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.path);
        }
        write!(f, "{}:{}:{}", self.path, self.line, self.column)
    }
}

tidegate_wire::named! {
    /// Whether a fault causes the input to be refused.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Severity {
        /// The input, or the object that contains it, is refused.
        Error => "error",
        /// The input is used, but the operator should know about the fault.
        Warning => "warning",
    }
}

/// One fault. Prints as `path:line:column: error: what; accepted: ...`.
///
/// ```
/// use tidegate_model::diagnostic::{Diagnostic, Location};
/// let fault = Diagnostic::error("port 0 is out of range")
///     .accepting("1 to 65535")
///     .at(Location::new("web.yaml", 7, 11));
/// assert_eq!(
///     fault.to_string(),
///     "web.yaml:7:11: error: port 0 is out of range; accepted: 1 to 65535"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The location, if any.
    pub location: Option<Location>,
    /// What is wrong, without a full stop.
    pub what: String,
    /// What would be accepted instead.
    pub accepted: Option<String>,
}

impl Diagnostic {
    /// An error without a location.
    pub fn error(what: impl Into<String>) -> Self {
        Self { severity: Severity::Error, location: None, what: shortened(what.into()), accepted: None }
    }

    /// A warning without a location.
    pub fn warning(what: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, location: None, what: shortened(what.into()), accepted: None }
    }

    /// Sets the location: a `Location` or an `Option<Location>`; `None` leaves it without a location.
    #[must_use]
    pub fn at(mut self, location: impl Into<Option<Location>>) -> Self {
        self.location = location.into();
        self
    }

    /// Sets what would be accepted.
    #[must_use]
    pub fn accepting(mut self, accepted: impl Into<String>) -> Self {
        self.accepted = Some(accepted.into());
        self
    }

    /// The location and the fault, without what would be accepted.
    #[must_use]
    pub fn with_location(&self) -> String {
        match &self.location {
            Some(location) => format!("{location}: {}", self.what),
            None => self.what.clone(),
        }
    }

    /// The order of reports: by location (faults without a location first), then errors before warnings, then text.
    fn order(&self) -> (&Option<Location>, Severity, &str, &Option<String>) {
        (&self.location, self.severity, &self.what, &self.accepted)
    }
}

/// The number of characters that are kept at the beginning and at the end of a longer text. A message names the value
/// before it quotes it, and says what is wrong afterwards.
const KEPT_CHARS: usize = 1000;

/// Removes the middle of a long text. A line of a file may have 64 MiB.
fn shortened(what: String) -> String {
    // A text has no more characters than bytes.
    if what.len() <= 2 * KEPT_CHARS {
        return what;
    }
    let end_of_head = what.char_indices().nth(KEPT_CHARS).map_or(what.len(), |(at, _)| at);
    let begin_of_tail = what.char_indices().rev().nth(KEPT_CHARS - 1).map_or(0, |(at, _)| at);
    if begin_of_tail <= end_of_head {
        return what;
    }
    let left_out = what[end_of_head..begin_of_tail].chars().count();
    format!("{} [{left_out} characters left out] {}", &what[..end_of_head], &what[begin_of_tail..])
}

impl PartialOrd for Diagnostic {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Diagnostic {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: {}", self.severity, self.what)?;
        if let Some(accepted) = &self.accepted {
            write!(f, "; accepted: {accepted}")?;
        }
        Ok(())
    }
}

/// All faults of one input, sorted by location and without duplicates. Prints one per line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    diagnostics: std::collections::BTreeSet<Diagnostic>,
}

impl Report {
    /// A report without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault. Duplicates count once.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.insert(diagnostic);
    }

    /// Adds all faults of another report.
    pub fn merge(&mut self, other: &Report) {
        self.diagnostics.extend(other.diagnostics.iter().cloned());
    }

    /// Whether there are errors.
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// The errors, sorted.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error)
    }

    /// The warnings, sorted.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Warning)
    }

    /// All faults, sorted by location.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.diagnostics.iter()
    }

    /// The number of faults.
    pub fn len(&self) -> usize {
        self.diagnostics.len()
    }

    /// Whether there are no faults.
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }
}

impl Extend<Diagnostic> for Report {
    fn extend<T: IntoIterator<Item = Diagnostic>>(&mut self, diagnostics: T) {
        self.diagnostics.extend(diagnostics);
    }
}

impl FromIterator<Diagnostic> for Report {
    fn from_iter<T: IntoIterator<Item = Diagnostic>>(diagnostics: T) -> Self {
        Self { diagnostics: diagnostics.into_iter().collect() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.diagnostics.iter().try_for_each(|d| writeln!(f, "{d}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, line: u32, column: u32) -> Diagnostic {
        Diagnostic::error("bad").at(Location::new(path, line, column))
    }

    #[test]
    fn a_diagnostic_prints_location_severity_fault_and_accepted_values() {
        assert_eq!(
            at("a.yaml", 3, 9).accepting("1 to 5").to_string(),
            "a.yaml:3:9: error: bad; accepted: 1 to 5"
        );
        assert_eq!(Diagnostic::warning("odd").to_string(), "warning: odd");
    }

    #[test]
    fn a_value_of_any_length_is_quoted_without_its_middle() {
        let value = "\u{e9}".repeat(100_000);
        let reported = Diagnostic::error(format!("{value:?} is not a prefix")).what;
        assert!(
            reported.starts_with("\"\u{e9}\u{e9}") && reported.ends_with("\u{e9}\" is not a prefix"),
            "{reported}"
        );
        assert!(reported.contains(" [98018 characters left out] "), "{reported}");
        for kept in ["x".repeat(2000), "\u{e9}".repeat(2000), String::new()] {
            assert_eq!(Diagnostic::warning(kept.as_str()).what, kept);
        }
    }

    #[test]
    fn a_report_sorts_lines_as_numbers_and_drops_repetitions() {
        let report: Report = [at("b", 1, 1), at("a", 10, 1), at("a", 9, 2), at("a", 9, 10), at("a", 9, 2)]
            .into_iter()
            .collect();
        let places: Vec<String> =
            report.iter().map(|d| d.location.as_ref().expect("each has one").to_string()).collect();
        assert_eq!(places, ["a:9:2", "a:9:10", "a:10:1", "b:1:1"]);
    }

    #[test]
    fn warnings_alone_are_not_errors() {
        let mut report = Report::new();
        report.push(Diagnostic::warning("odd"));
        assert!(!report.has_errors());
        report.push(at("a", 1, 1));
        assert!(report.has_errors());
        assert_eq!((report.errors().count(), report.warnings().count()), (1, 1));
    }
}
