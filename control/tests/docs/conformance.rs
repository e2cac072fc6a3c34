//! Checks that the tests named in the tables of `docs/conformance.md` exist in the directories of their letters, so
//! that tests of both sources really use both. The sections must be those of `docs/kubernetes.md`.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::{File, files, headings};

/// The directories of the tests of each letter.
const DIRECTORIES: [(&str, &[&str]); 12] = [
    ("A", &["gateway_api/tests"]),
    ("S", &["reconcile/tests/conformance"]),
    ("SD", &["reconcile/tests/conformance"]),
    ("R", &["reconcile"]),
    ("M", &["model", "source", "config"]),
    ("P", &["pools"]),
    ("W", &["plan/tests"]),
    ("C", &["cluster"]),
    ("T", &["telemetry"]),
    ("H", &["health_check_node_port", "health"]),
    ("D", &["dataplane/pipeline/src"]),
    ("G", &["tests/e2e", "tests/kubernetes"]),
];

/// (letters, name of a test) of each row: a cell is `LETTERS \`name\`, \`name\`; LETTERS \`name\``.
fn named(table: &str) -> BTreeSet<(&str, &str)> {
    let mut named = BTreeSet::new();
    let rows = table.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | "));
    for (_, cell) in rows.filter(|(_, cell)| cell.contains('`')) {
        for part in cell.split("; ") {
            let (letters, tests) = part.split_once(' ').expect("letters before the tests of a part");
            named.extend(tests.split('`').skip(1).step_by(2).map(|test| (letters, test)));
        }
    }
    named.retain(|(_, test)| test.matches('_').count() > 2);
    named
}

/// The text of the file at a path.
fn text_of<'a>(files: &'a [File], path: &str) -> &'a str {
    &files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} is missing")).text
}

/// The numbered headings of a document.
fn numbered(document: &str) -> Vec<&str> {
    headings(document).filter(|text| text.starts_with(|c: char| c.is_ascii_digit())).collect()
}

#[test]
fn every_test_that_a_table_names_exists_where_its_letter_says() {
    let files = files();
    let (_, tables) =
        text_of(&files, "docs/conformance.md").split_once("\n## ").expect("sections with tables");
    let named = named(tables);
    assert!(named.len() > 150, "the tables were read: {}", named.len());
    let sources: Vec<&File> = files.iter().filter(|file| file.has_extension("rs")).collect();
    let texts: BTreeMap<&str, String> = DIRECTORIES
        .iter()
        .map(|(letters, places)| {
            let is_below = |file: &&&File| {
                let path = format!("/{}", file.path);
                places.iter().any(|place| path.contains(&format!("/{place}/")))
            };
            (*letters, sources.iter().filter(is_below).map(|file| file.text.as_str()).collect())
        })
        .collect();
    for (letters, test) in named {
        let text = texts.get(letters).unwrap_or_else(|| panic!("{letters:?} has no directory: {test}"));
        assert!(text.contains(&format!("fn {test}(")), "{letters} {test}");
    }
}

#[test]
fn each_section_of_the_rules_has_a_section_with_tests() {
    let files = files();
    let tables = text_of(&files, "docs/conformance.md");
    let rules = text_of(&files, "docs/kubernetes.md");
    assert_eq!(numbered(rules), numbered(tables));
    assert!(numbered(rules).len() > 8, "{:?}", numbered(rules));
    for section in tables.split("\n## ").skip(1) {
        assert!(!named(section).is_empty(), "no test in {}", section.lines().next().unwrap_or_default());
    }
}
