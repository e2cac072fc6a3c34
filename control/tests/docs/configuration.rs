//! Compares `docs/configuration.md` with the table of keys. Crate `tidegate-model` compares the table with the
//! decoders, and `daemon/reload.rs` compares it with the keys that a reload refuses.

use tidegate_model::config::keys::{Change, KEYS, KeyDefault};

use crate::repository::root;

const BEGIN: &str = "<!-- begin: written by `UPDATE_DOCS=1 cargo test -p tidegate document` -->\n";
const END: &str = "<!-- end -->\n";

/// A table for each section of the configuration.
fn tables_of_keys() -> String {
    let mut text = String::from("\n");
    let mut section = "";
    for key in KEYS {
        let of = key.path.split(['.', '[']).next().expect("a first step");
        let of = if key.path.contains(['.', '[']) { of } else { "The head of the file" };
        if of != section {
            let heading = if of.contains(' ') { of.to_owned() } else { format!("`{of}`") };
            let space = if section.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{space}## {heading}\n\n"));
            text.push_str(
                "| key | type | default | example | change | meaning |\n|---|---|---|---|---|---|\n",
            );
            section = of;
        }
        let default = match key.default {
            KeyDefault::Required => "required".to_owned(),
            KeyDefault::Value(value) => format!("`{value}`"),
            KeyDefault::Words(words) => words.to_owned(),
        };
        let example = key.example.map_or(String::new(), |example| format!("`{example}`"));
        let change = match key.change {
            Change::Reload => "reload",
            Change::Restart => "restart",
        };
        let (path, kind, meaning) = (key.path, key.kind, key.meaning);
        text.push_str(&format!("| `{path}` | {kind} | {default} | {example} | {change} | {meaning} |\n"));
    }
    text.push('\n');
    text
}

#[test]
fn the_configuration_document_matches_the_table_of_keys() {
    let path = root().join("docs/configuration.md");
    let text = std::fs::read_to_string(&path).expect("the document");
    let (before, rest) = text.split_once(BEGIN).expect("the begin of the tables");
    let (written, after) = rest.split_once(END).expect("the end of the tables");
    let tables = tables_of_keys();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{tables}{END}{after}")).expect("it is written");
        return;
    }
    assert!(written == tables, "docs/configuration.md is not what the code says: {}", BEGIN.trim());
}
