//! Prints the results of the demo: tables of at most 110 columns that need no explanation.

use std::collections::BTreeMap;

/// Prints rows below a header, each column as wide as its widest cell.
pub(super) fn print_table(header: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..header.len())
        .map(|n| {
            let cells = rows.iter().filter_map(|row| row.get(n)).map(String::len);
            cells.chain([header[n].len()]).max().unwrap_or(0)
        })
        .collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = *width)).collect();
        println!("  {}", padded.join("  ").trim_end());
    };
    print(&mut header.iter().copied());
    for row in rows {
        print(&mut row.iter().map(String::as_str));
    }
}

/// The counts of backends 1 to `servers` as in `20 22 18`; `-` for none.
pub(super) fn counts(spread: &BTreeMap<String, usize>, servers: u8) -> String {
    let count = |n: u8| spread.get(&crate::server::name(n)).copied().unwrap_or(0);
    let cells: Vec<String> =
        (1..=servers).map(count).map(|n| if n == 0 { "-".to_owned() } else { n.to_string() }).collect();
    cells.join(" ")
}
