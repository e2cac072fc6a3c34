//! Checks that the repository contains every cited document, heading and section, and every source file that a document
//! names by its path from the root.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::repository::{File, files, headings, prose, root};

const MARKDOWN: &str = ".md";

/// The Markdown files by path.
fn documents(files: &[File]) -> BTreeMap<&str, &File> {
    files.iter().filter(|file| file.has_extension("md")).map(|file| (file.path.as_str(), file)).collect()
}

/// The fragment that links to a heading, as code forges generate it.
fn fragment(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of the links in a line: `](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// A path without `.` and `..`; `None` if it leaves the repository.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => normal.pop().then_some(())?,
            _ => {}
        }
    }
    Some(normal)
}

/// The reason why the target of a link does not exist, if so.
fn fault_of_link(document: &File, link: &str, documents: &BTreeMap<&str, &File>) -> Option<&'static str> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => PathBuf::from(&document.path),
        path => {
            let Some(target) = normalized(&Path::new(&document.path).parent()?.join(path)) else {
                return Some("it leaves the repository");
            };
            target
        }
    };
    if !root().join(&target).exists() {
        return Some("there is no such file");
    }
    if heading.is_empty() {
        return None;
    }
    let Some(document) = target.to_str().and_then(|path| documents.get(path)) else {
        return Some("only documents have headings");
    };
    let is_there = headings(&document.text).any(|text| fragment(text) == heading);
    (!is_there).then_some("there is no such heading")
}

#[test]
fn every_relative_link_points_to_an_existing_file_and_heading() {
    let files = files();
    let documents = documents(&files);
    let (mut seen, mut faults) = (0, Vec::new());
    for document in documents.values() {
        for (number, line) in prose(&document.text) {
            for link in links(line).filter(|link| !link.contains("://")) {
                seen += 1;
                if let Some(why) = fault_of_link(document, link, &documents) {
                    faults.push(format!("{}:{number}: {link}: {why}", document.path));
                }
            }
        }
    }
    assert!(seen > 30, "the links were read: {seen}");
    assert!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
}

/// A document that a line names, and the rest of the line.
struct Citation<'a> {
    name: &'a str,
    rest: &'a str,
}

/// The documents that a line names, except those of other sites.
fn citations(line: &str) -> impl Iterator<Item = Citation<'_>> {
    line.match_indices(MARKDOWN).filter_map(move |(at, _)| {
        let (before, rest) = (&line[..at], &line[at + MARKDOWN.len()..]);
        if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return None;
        }
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let stem = before.rsplit(|c| !is_of_name(c)).next().unwrap_or_default();
        let is_elsewhere = stem.starts_with("//");
        let is_pattern = stem.is_empty() || stem.ends_with('/');
        (!is_elsewhere && !is_pattern)
            .then(|| Citation { name: &line[at - stem.len()..at + MARKDOWN.len()], rest })
    })
}

/// The document with this name, which is a path or the end of one.
fn meant<'a>(name: &str, documents: &BTreeMap<&str, &'a File>) -> Option<&'a File> {
    let plain = name.trim_start_matches("../").trim_start_matches("./");
    let is_meant =
        |path: &str| path.strip_suffix(plain).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    documents.iter().find(|(path, _)| is_meant(path)).map(|(_, document)| *document)
}

/// The sections that follow the name of a document: `, section 7`, `, sections 6 and 7`.
fn sections(rest: &str) -> Vec<&str> {
    let rest = rest.trim_start_matches('`');
    let Some(list) = rest.strip_prefix(", sections ").or_else(|| rest.strip_prefix(", section ")) else {
        return Vec::new();
    };
    let end = list.find(|c: char| !c.is_ascii_alphanumeric() && !", ".contains(c)).unwrap_or(list.len());
    let words = list[..end].split([',', ' ']).filter(|word| !word.is_empty());
    words
        .take_while(|word| matches!(*word, "and" | "to") || word.bytes().all(|b| b.is_ascii_digit()))
        .filter(|word| !matches!(*word, "and" | "to"))
        .collect()
}

#[test]
fn every_cited_document_and_section_is_in_the_repository() {
    let files = files();
    let documents = documents(&files);
    let (mut seen, mut faults) = (0, Vec::new());
    for file in &files {
        for (at, line) in file.text.lines().enumerate() {
            for citation in citations(line) {
                seen += 1;
                let place = format!("{}:{}", file.path, at + 1);
                let Some(document) = meant(citation.name, &documents) else {
                    faults.push(format!("{place}: {} is not in the repository", citation.name));
                    continue;
                };
                let is_there = |number: &str| {
                    headings(&document.text).any(|text| text.split('.').next() == Some(number))
                };
                let missing = sections(citation.rest).into_iter().filter(|number| !is_there(number));
                faults.extend(
                    missing.map(|number| format!("{place}: {} has no section {number}", document.path)),
                );
            }
        }
    }
    assert!(seen > 50, "the citations were read: {seen}");
    assert!(faults.is_empty(), "citations of nothing:\n{}", faults.join("\n"));
}

/// The source files that a line names in code spans, by their paths from the root.
fn sources(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let starts = ["benches/", "control/", "dataplane/", "deploy/", "ffi/", "fuzz/"];
        span.ends_with(".rs") && starts.iter().any(|start| span.starts_with(start))
    })
}

#[test]
fn every_source_path_in_a_document_is_in_the_repository() {
    let files = files();
    // The changelog and benchmark results name files as they were.
    let is_current = |path: &str| path != "CHANGELOG.md" && !path.starts_with("benches/results/");
    let (mut seen, mut faults) = (0, Vec::new());
    for document in documents(&files).into_values().filter(|document| is_current(&document.path)) {
        for (number, line) in prose(&document.text) {
            for path in sources(line) {
                seen += 1;
                if files.binary_search_by_key(&path, |file| &file.path).is_err() {
                    faults.push(format!("{}:{number}: {path}", document.path));
                }
            }
        }
    }
    assert!(seen > 40, "the paths were read: {seen}");
    assert!(faults.is_empty(), "source files that are not in the repository:\n{}", faults.join("\n"));
}

#[test]
fn citations_are_distinguished_from_patterns_and_external_pages() {
    let names = |line: &str| citations(line).map(|one| one.name.to_owned()).collect::<Vec<_>>();
    let (page, end) = ("https://example.com/a", MARKDOWN);
    assert_eq!(
        names(&format!("see `docs/x{end}`, section 7, and y{end}.")),
        [format!("docs/x{end}"), format!("y{end}")]
    );
    assert_eq!(names(&format!("{page}{end} *{end} {{name}}{end} a{end}x")), [] as [String; 0]);
    let line = "`control/x.rs` and `x.rs`, control/y.rs, `dataplane/y/z.rs`";
    assert_eq!(sources(line).collect::<Vec<_>>(), ["control/x.rs", "dataplane/y/z.rs"]);
    assert_eq!(sections("`, section 7) and 9"), ["7"]);
    assert_eq!(sections(", sections 6, 7 and 8: the pools 9"), ["6", "7", "8"]);
    assert_eq!(sections("#anchor"), [] as [&str; 0]);
    assert_eq!(fragment("9. The control plane's own VIP"), "9-the-control-planes-own-vip");
}
