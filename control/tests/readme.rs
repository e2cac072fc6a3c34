//! The table of `control/README.md` that maps sentences of kubernetes.md to tests names tests that exist, where their
//! letters say: what is said to run through both sources does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|e| e == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a readable source"));
        }
    }
}

/// Where the tests of a letter are.
const PLACES: [(&str, &[&str]); 11] = [
    ("S", &["src/reconcile/tests/sentences"]),
    ("SD", &["src/reconcile/tests/sentences"]),
    ("R", &["src/reconcile"]),
    ("M", &["model/src", "src/source"]),
    ("P", &["src/pools"]),
    ("W", &["src/cluster/plan/tests"]),
    ("C", &["src/cluster"]),
    ("T", &["src/telemetry"]),
    ("H", &["src/health_check_node_port", "src/health", "model/src/health"]),
    ("D", &["../dataplane/core/src"]),
    ("G", &["tests/e2e", "tests/kubernetes"]),
];

/// (letters, name of a test) of each row: a cell is `LETTERS \`name\`, \`name\`; LETTERS \`name\``.
fn named(table: &str) -> BTreeSet<(&str, &str)> {
    let mut named = BTreeSet::new();
    let rows = table.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | "));
    for (_, cell) in rows {
        for part in cell.split("; ") {
            let (letters, tests) = part.split_once(' ').expect("letters before the tests of a part");
            named.extend(tests.split('`').skip(1).step_by(2).map(|test| (letters, test)));
        }
    }
    named.retain(|(_, test)| test.matches('_').count() > 2);
    named
}

#[test]
fn every_test_that_the_table_of_sentences_names_exists_where_its_letter_says() {
    let control = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(control.join("README.md")).expect("the README");
    let (_, table) = readme.split_once("## kubernetes.md, sentence by sentence").expect("the table");
    let (_, table) = table.split_once("\n|---|---|---|\n").expect("rows below the head");
    let named = named(table);
    assert!(named.len() > 80, "the table was read: {}", named.len());
    let texts: BTreeMap<&str, String> = PLACES
        .iter()
        .map(|(letters, directories)| {
            let mut text = String::new();
            directories.iter().for_each(|directory| sources(&control.join(directory), &mut text));
            (*letters, text)
        })
        .collect();
    for (letters, test) in named {
        let text = texts.get(letters).unwrap_or_else(|| panic!("{letters:?} stands for no place: {test}"));
        assert!(text.contains(&format!("fn {test}(")), "{letters} {test}");
    }
}
