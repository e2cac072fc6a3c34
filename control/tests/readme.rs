//! The table of `control/README.md` that maps sentences of kubernetes.md to tests names tests that exist.

use std::collections::BTreeSet;
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

#[test]
fn every_test_that_the_table_of_sentences_names_exists() {
    let control = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(control.join("README.md")).expect("the README");
    let (_, table) = readme.split_once("## kubernetes.md, sentence by sentence").expect("the table");
    let is_name = |word: &&str| {
        word.matches('_').count() > 2 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let named: BTreeSet<&str> = table.split('`').filter(is_name).collect();
    assert!(named.len() > 80, "the table was read: {}", named.len());
    let mut text = String::new();
    for directory in ["src", "../dataplane/core/src"] {
        sources(&control.join(directory), &mut text);
    }
    let missing: Vec<&str> =
        named.into_iter().filter(|name| !text.contains(&format!("fn {name}("))).collect();
    assert_eq!(missing, [] as [&str; 0]);
}
