//! `-w`: prints a list, and then each row that changed, like `kubectl get -w`.
//!
//! A gateway has no stream of changes: the list is requested every second, and compared by the parts that matter, so
//! that counters and ages alone print nothing. The data formats print one object for each row.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::args::WatchArgs;
use super::failure::Failure;
use super::output::{Format, Style, Table};

/// The time between two requests.
const INTERVAL: Duration = Duration::from_secs(1);

/// What identifies a row, and what is compared.
pub(super) struct Identity {
    /// The name of the row. Rows are printed in its order.
    pub(super) key: String,
    /// The part whose change prints the row again.
    pub(super) compared: String,
}

/// What happened to a row, in the words of kubectl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Change {
    Added,
    Modified,
    Deleted,
}

/// A change with its object, as `--output-watch-events` prints it.
#[derive(Serialize)]
struct Event<'a, T> {
    #[serde(rename = "type")]
    change: Change,
    object: &'a T,
}

/// Prints the rows that `read` returns, and then their changes, until Ctrl-C.
///
/// # Errors
/// A request fails, or the write to `out` does.
pub(super) async fn follow<T: Serialize>(
    args: WatchArgs,
    style: Style,
    out: &mut impl Write,
    mut read: impl AsyncFnMut() -> Result<Vec<T>, Failure>,
    identify: impl Fn(&T) -> Identity,
    table: impl Fn(&[&T]) -> Table,
) -> Result<(), Failure> {
    let mut known: BTreeMap<String, (String, T)> = BTreeMap::new();
    let mut style = style;
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        let rows = tokio::select! {
            rows = read() => rows?,
            _ = &mut interrupt => return Ok(()),
        };
        let rows = rows.into_iter().map(|row| {
            let Identity { key, compared } = identify(&row);
            (key, (compared, row))
        });
        let now: BTreeMap<String, (String, T)> = rows.collect();
        let changes = changes(&known, &now);
        if !changes.is_empty() {
            let context: Vec<&T> = now.values().map(|(_, row)| row).collect();
            print(args, style, out, &context, &changes, &table)?;
            out.flush()?;
            style.no_headers = true;
        }
        known = now;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = &mut interrupt => return Ok(()),
        }
    }
}

fn changes<'a, T>(
    known: &'a BTreeMap<String, (String, T)>,
    now: &'a BTreeMap<String, (String, T)>,
) -> Vec<(Change, &'a T)> {
    let current = now.iter().filter_map(|(key, (compared, row))| match known.get(key) {
        None => Some((Change::Added, row)),
        Some((before, _)) if before != compared => Some((Change::Modified, row)),
        Some(_) => None,
    });
    let deleted = known.iter().filter(|(key, _)| !now.contains_key(*key));
    current.chain(deleted.map(|(_, (_, row))| (Change::Deleted, row))).collect()
}

/// Prints changed rows. Their columns are aligned with all rows of the list.
fn print<T: Serialize>(
    args: WatchArgs,
    style: Style,
    out: &mut impl Write,
    context: &[&T],
    changes: &[(Change, &T)],
    table: impl Fn(&[&T]) -> Table,
) -> io::Result<()> {
    if style.is_data() {
        for (change, object) in changes {
            match args.output_watch_events {
                true => print_object(style, out, &Event { change: *change, object })?,
                false => print_object(style, out, object)?,
            }
        }
        return Ok(());
    }
    let rows: Vec<&T> = context.iter().copied().chain(changes.iter().map(|(_, row)| *row)).collect();
    let mut table = table(&rows);
    if args.output_watch_events {
        let names = changes.iter().map(|(change, _)| match change {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        });
        table.prepend("EVENT", context.iter().map(|_| "MODIFIED").chain(names));
    }
    style.print_last(out, &table, changes.len())
}

/// Prints one of many objects: a line of JSON, or a document of YAML.
pub(super) fn print_object<T: Serialize>(style: Style, out: &mut impl Write, object: &T) -> io::Result<()> {
    match style.format {
        Format::Yaml => {
            writeln!(out, "---")?;
            style.print_data(out, object)
        }
        _ => writeln!(out, "{}", serde_json::to_string(object)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rows: &[(&str, &str)]) -> BTreeMap<String, (String, String)> {
        rows.iter()
            .map(|(key, state)| ((*key).to_owned(), ((*state).to_owned(), format!("{key}={state}"))))
            .collect()
    }

    #[test]
    fn only_rows_that_differ_in_what_matters_are_changes() {
        let before = list(&[("a", "up"), ("b", "up"), ("c", "up")]);
        let now = list(&[("b", "down"), ("c", "up"), ("d", "up")]);
        let found: Vec<_> =
            changes(&before, &now).into_iter().map(|(change, row)| (change, row.as_str())).collect();
        assert_eq!(found, [(Change::Modified, "b=down"), (Change::Added, "d=up"), (Change::Deleted, "a=up")]);
    }

    #[test]
    fn changes_are_rows_aligned_with_the_list_or_one_object_each() {
        let rows = [&"a-long-name".to_owned(), &"b".to_owned()];
        let table = |rows: &[&String]| {
            let mut table = Table::new(&["NAME", "STATE"]);
            rows.iter().for_each(|row| table.row([(*row).clone(), "up".to_owned()]));
            table
        };
        let shown = |format, no_headers, output_watch_events| {
            let (mut out, style) = (Vec::new(), Style { format, no_headers });
            let args = WatchArgs { watch: true, output_watch_events };
            print(args, style, &mut out, &rows, &[(Change::Deleted, rows[1])], table)
                .expect("a Vec takes all");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(shown(Format::Table, true, false), "b             up\n");
        assert_eq!(shown(Format::Table, false, false), "NAME          STATE\nb             up\n");
        assert_eq!(shown(Format::Table, true, true), "DELETED    b             up\n");
        assert_eq!(shown(Format::Json, true, false), "\"b\"\n");
        assert_eq!(shown(Format::Json, true, true), "{\"type\":\"DELETED\",\"object\":\"b\"}\n");
        assert_eq!(shown(Format::Yaml, true, false), "---\nb\n");
    }
}
