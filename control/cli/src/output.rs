//! Prints answers as tables like kubectl's, as JSON, or as YAML.
//!
//! A [`Table`] has columns that are always shown and columns for `-o wide`. JSON and YAML show the value itself, so
//! scripts do not depend on columns. Commands do not format tables themselves, and this module does not know the
//! content.
//!
//! Invariant: lines have no trailing spaces, and all cells except the last of a line are aligned.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use tidegate_model::yaml;

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Table.
    #[default]
    Table,
    /// Table with more columns.
    Wide,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// The style in which an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// `-o`.
    pub format: Format,
    /// `--no-headers`.
    pub no_headers: bool,
}

impl Style {
    /// Prints a value, either as data or as the table that `table` creates from it.
    ///
    /// # Errors
    /// The write to `out` failed.
    pub fn print<T: Serialize>(
        self,
        out: &mut impl Write,
        value: &T,
        table: impl FnOnce() -> Table,
    ) -> io::Result<()> {
        if self.is_data() {
            return self.print_data(out, value);
        }
        out.write_all(table().render(self.format == Format::Wide, !self.no_headers).as_bytes())
    }

    /// Whether the format prints the value itself and not a table.
    #[must_use]
    pub fn is_data(self) -> bool {
        matches!(self.format, Format::Json | Format::Yaml)
    }

    /// Prints a value as YAML if that format was requested, otherwise as JSON.
    ///
    /// # Errors
    /// The write to `out` failed.
    pub fn print_data<T: Serialize>(self, out: &mut impl Write, value: &T) -> io::Result<()> {
        match self.format {
            Format::Yaml => out.write_all(yaml::emit::to_string(value)?.as_bytes()),
            _ => writeln!(out, "{}", serde_json::to_string_pretty(value)?),
        }
    }

    /// Prints the last `rows` rows of a table, aligned with the others, below the headers unless `no_headers` is set.
    ///
    /// # Errors
    /// The write to `out` failed.
    pub fn print_last(self, out: &mut impl Write, table: &Table, rows: usize) -> io::Result<()> {
        let text = table.render(self.format == Format::Wide, true);
        let lines: Vec<&str> = text.lines().collect();
        let headers = if self.no_headers { 0 } else { 1 };
        for line in lines.iter().take(headers).chain(&lines[lines.len() - rows..]) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Prints a row below a table, aligned with the rows that it has. The table stays as it is.
    ///
    /// # Errors
    /// The write to `out` failed.
    pub(super) fn print_below(
        self,
        out: &mut impl Write,
        table: &mut Table,
        cells: impl IntoIterator<Item = String>,
    ) -> io::Result<()> {
        table.row(cells);
        let printed = Self { no_headers: true, ..self }.print_last(out, table, 1);
        table.rows.pop();
        printed
    }

    /// Prints a list in the format of kubectl: `kind: List` with `items`.
    ///
    /// # Errors
    /// The write to `out` failed.
    pub fn print_list<T: Serialize>(
        self,
        out: &mut impl Write,
        items: &[T],
        table: impl FnOnce() -> Table,
    ) -> io::Result<()> {
        self.print(out, &List { api_version: "v1", kind: "List", items }, table)
    }
}

/// The list wrapper that kubectl uses.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    items: &'a [T],
}

/// A table with headers and rows. As data it has `columns`, each with its `header` and whether only `-o wide` shows it
/// (`wide`), and `rows` of cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Column {
    header: &'static str,
    wide: bool,
}

/// References to the rows of a list, as the functions that build tables take them.
#[must_use]
pub fn refs<T>(rows: &[T]) -> Vec<&T> {
    rows.iter().collect()
}

impl Table {
    /// Creates a table with these headers. A column whose header begins with `+` is shown only with `-o wide`.
    #[must_use]
    pub fn new(headers: &[&'static str]) -> Self {
        let column = |header: &&'static str| match header.strip_prefix('+') {
            Some(header) => Column { header, wide: true },
            None => Column { header, wide: false },
        };
        Self { columns: headers.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each header. An empty cell is shown as `<none>`.
    ///
    /// # Panics
    /// If the number of cells differs from the number of headers.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| if cell.is_empty() { "<none>".to_owned() } else { printable(cell) };
        let cells: Vec<String> = cells.into_iter().map(shown).collect();
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each header");
        self.rows.push(cells);
    }

    /// Adds a first column with these cells, one for each row.
    pub(super) fn prepend<'a>(&mut self, header: &'static str, cells: impl IntoIterator<Item = &'a str>) {
        self.columns.insert(0, Column { header, wide: false });
        self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.insert(0, cell.to_owned()));
    }

    /// Whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the lines. Headers are omitted if there are no rows.
    pub(super) fn render(&self, wide: bool, headers: bool) -> String {
        let shown: Vec<usize> = (0..self.columns.len()).filter(|&n| wide || !self.columns[n].wide).collect();
        let header_row: Vec<String> = self.columns.iter().map(|c| c.header.to_owned()).collect();
        let lines: Vec<&Vec<String>> =
            (headers && !self.is_empty()).then_some(&header_row).into_iter().chain(&self.rows).collect();
        let width = |n: usize| lines.iter().map(|cells| cells[n].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = shown.iter().map(|&n| width(n)).collect();
        let mut text = String::new();
        for cells in &lines {
            let mut line = String::new();
            for (&n, width) in shown.iter().zip(&widths) {
                write!(line, "{:width$}   ", cells[n]).expect("writing to a String cannot fail");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

impl fmt::Display for Table {
    /// The table with its headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false, true))
    }
}

/// Escapes control characters. Users who may write objects choose some of the text, and a terminal would interpret
/// these characters.
fn printable(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Formats an age like kubectl: `5s`, `3m20s`, `45m`, `5h`, `3d4h`, `12d`.
#[must_use]
pub fn age(seconds: u64) -> String {
    let pair = |first: u64, unit: char, rest: u64, small: char| match rest {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{rest}{small}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

/// Prints an answer to standard output: its text, or its data with `-o json` and `-o yaml`.
///
/// # Errors
/// The write to standard output failed.
pub fn print_answer(style: Style, answer: &(impl Serialize + fmt::Display)) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if style.is_data() { style.print_data(&mut out, answer) } else { write!(out, "{answer}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "+NODE", "STATE"]);
        table.row(["web".into(), "n1".into(), "active".into()]);
        table.row(["a-long-name".into(), String::new(), "down".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        assert_eq!(
            table().render(false, true),
            "NAME          STATE\nweb           active\na-long-name   down\n"
        );
    }

    #[test]
    fn wide_shows_more_and_an_empty_cell_is_none() {
        let text = table().render(true, false);
        assert_eq!(text, "web           n1       active\na-long-name   <none>   down\n");
    }

    #[test]
    fn control_characters_of_a_cell_do_not_reach_the_terminal() {
        let mut table = Table::new(&["ZONE"]);
        table.row(["a\u{1b}[2Jb\nc\u{e9}".into()]);
        assert_eq!(table.render(false, false), "a\\u{1b}[2Jb\\nc\u{e9}\n");
    }

    #[test]
    fn json_and_yaml_show_the_value_not_the_table() {
        let shown = |format| {
            let mut out = Vec::new();
            let style = Style { format, no_headers: false };
            style
                .print_list(&mut out, &[serde_json::json!({"name": "web"})], table)
                .expect("a Vec takes all");
            String::from_utf8(out).expect("text")
        };
        let json: serde_json::Value = serde_json::from_str(&shown(Format::Json)).expect("JSON");
        assert_eq!(json["items"][0]["name"], "web");
        assert!(shown(Format::Yaml).contains("- name: web\n"));
    }

    #[test]
    fn ages_are_as_kubectl_prints_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (2700, "45m"),
            (11_100, "3h5m"),
            (90_000, "25h"),
            (273_600, "3d4h"),
            (1_000_000, "11d"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }
}
