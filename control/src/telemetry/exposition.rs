//! Writes the Prometheus text exposition format 0.0.4. No metric is defined here.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>.
//!
//! `prometheus-client` writes OpenMetrics only, where the family of `x_total` is called `x`, so clients that request
//! the older format (a browser, curl, most test tools) read untyped samples. `prometheus` requires that every series is
//! registered beforehand, and depends on a crate that `deny.toml` bans. This file covers all that is needed.
//!
//! Invariant: a family's samples directly follow its HELP and TYPE. The caller provides names; values are escaped here.

use std::fmt::{Display, Formatter, Write as _};
use std::time::Duration;

use tidegate_structures::histogram::Durations;

/// The `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page under construction.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    /// Adds a family of counters, whose name ends in `_total`.
    pub(super) fn counter<const N: usize>(
        &mut self,
        name: &'static str,
        help: &str,
        labels: [&'static str; N],
    ) -> Family<'_, N> {
        debug_assert!(name.ends_with("_total"), "a counter's name ends in _total: {name}");
        self.family(name, "counter", help, labels)
    }

    /// Adds a family of gauges.
    pub(super) fn gauge<const N: usize>(
        &mut self,
        name: &'static str,
        help: &str,
        labels: [&'static str; N],
    ) -> Family<'_, N> {
        debug_assert!(!name.ends_with("_total"), "a gauge's name does not end in _total: {name}");
        self.family(name, "gauge", help, labels)
    }

    /// Adds a histogram without labels, of durations in nanoseconds, with bounds in seconds.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        durations: &Durations,
        bounds: &[f64],
    ) {
        self.header(name, "histogram", help);
        let text = &mut self.text;
        for &bound in bounds {
            let count = durations.count_up_to(Duration::from_secs_f64(bound).as_nanos() as u64);
            let bound = Value::from(bound);
            writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}").expect(STRING);
        }
        let sum = Value::from(Duration::from_nanos(durations.sum()).as_secs_f64());
        let count = durations.count();
        writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}").expect(STRING);
        writeln!(text, "{name}_sum {sum}\n{name}_count {count}").expect(STRING);
    }

    /// The page.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn family<const N: usize>(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        labels: [&'static str; N],
    ) -> Family<'_, N> {
        self.header(name, kind, help);
        Family { text: &mut self.text, name, labels }
    }

    fn header(&mut self, name: &str, kind: &str, help: &str) {
        let text = &mut self.text;
        write!(text, "# HELP {name} ").expect(STRING);
        escape(text, help, false);
        writeln!(text, "\n# TYPE {name} {kind}").expect(STRING);
    }
}

const STRING: &str = "writing to a String cannot fail";

/// Collects the samples of one family.
#[derive(Debug)]
pub(super) struct Family<'a, const N: usize> {
    text: &'a mut String,
    name: &'static str,
    labels: [&'static str; N],
}

impl<const N: usize> Family<'_, N> {
    /// Adds one series. The caller must add each set of label values only once.
    pub(super) fn sample(&mut self, values: [&str; N], value: impl Into<Value>) -> &mut Self {
        self.sample_with(&Labels::default(), values, value)
    }

    /// Adds one series with these labels before those of the family.
    pub(super) fn sample_with(
        &mut self,
        labels: &Labels,
        values: [&str; N],
        value: impl Into<Value>,
    ) -> &mut Self {
        let text = &mut *self.text;
        text.push_str(self.name);
        let start = text.len();
        text.push_str(&labels.0);
        for (label, value) in self.labels.iter().zip(values) {
            push_label(text, text.len() == start, label, value);
        }
        text.push_str(if text.len() == start { " " } else { "} " });
        writeln!(text, "{}", value.into()).expect(STRING);
        self
    }
}

/// Labels with their values, as text. An object that has series in many families has them, so that each value is escaped
/// and copied only once: a page with 10,000 backends takes half of the time.
#[derive(Debug, Default)]
pub(super) struct Labels(String);

impl Labels {
    pub(super) fn new<const N: usize>(labels: [&str; N], values: [&str; N]) -> Self {
        let mut text = String::with_capacity(128);
        for (at, (label, value)) in labels.into_iter().zip(values).enumerate() {
            push_label(&mut text, at == 0, label, value);
        }
        Self(text)
    }
}

fn push_label(text: &mut String, is_first: bool, label: &str, value: &str) {
    text.push(if is_first { '{' } else { ',' });
    text.push_str(label);
    text.push_str("=\"");
    escape(text, value, true);
    text.push('"');
}

/// A number as the format writes it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// Written in full, so that no count is rounded.
    Count(u128),
    /// `NaN`, `+Inf` and `-Inf` are valid.
    Real(f64),
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Real(real) if real.is_infinite() => f.write_str(if *real > 0.0 { "+Inf" } else { "-Inf" }),
            Self::Real(real) => real.fmt(f),
        }
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),+) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

value_from!(bool => Count, u32 => Count, u64 => Count, u128 => Count, f64 => Real);

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Count(value as u128)
    }
}

/// Adds the text of a HELP line, or of a label value, in which the quote is also escaped.
fn escape(page: &mut String, text: &str, quote: bool) {
    let is_special = |byte: u8| matches!(byte, b'\\' | b'\n') || (quote && byte == b'"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(is_special) {
        page.push_str(&rest[..at]);
        page.push_str(match rest.as_bytes()[at] {
            b'\n' => "\\n",
            b'"' => "\\\"",
            _ => "\\\\",
        });
        rest = &rest[at + 1..];
    }
    page.push_str(rest);
}
