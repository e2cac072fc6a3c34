//! Checks that within a crate no two files import from each other, directly or indirectly (`docs/architecture.md`,
//! "Layers").
//!
//! It counts `use` declarations, and paths in code that begin with `crate`, `super`, `self`, a child module or an
//! imported module. A name counts as an import of the file that defines it, through re-exports. A parent that
//! re-exports a definition of its child does not import it.
//!
//! It does not see method calls (a type may have an `impl` in a file that its own file does not import), paths from
//! macros, modules with a `#[path]`, and imports of tests (`#[cfg(test)]`, and other conditions that name `test` and no
//! feature).

mod graph;
mod source;

use std::collections::BTreeMap;

use super::repository::{File, files};
use graph::Graph;

/// The crates of a repository: their directories, each with the texts of its sources by path below `src`.
fn crates(files: &[File]) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut crates: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.has_extension("rs")) {
        if let Some((directory, path)) = file.path.split_once("/src/") {
            crates.entry(directory).or_default().insert(path, &file.text);
        }
    }
    crates.retain(|_, sources| sources.contains_key("lib.rs"));
    crates
}

/// The cycles of one crate, each with the imports that cause it.
fn circles(sources: &BTreeMap<&str, &str>) -> Vec<graph::Circle> {
    Graph::new(sources).circles()
}

#[test]
fn no_two_files_of_a_crate_import_from_each_other() {
    let files = files();
    let crates = crates(&files);
    assert!(crates.len() >= 10, "the crates were found: {:?}", crates.keys());
    let mut found = String::new();
    for (name, sources) in &crates {
        for circle in circles(sources) {
            found += &format!("{name}: {circle}\n");
        }
    }
    assert!(found.is_empty(), "move what both sides need to a file that imports neither:\n{found}");
}

fn circles_of(sources: &[(&'static str, &'static str)]) -> Vec<String> {
    let circles = circles(&sources.iter().copied().collect());
    circles.into_iter().map(|circle| circle.files.into_iter().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_circle_is_found_through_use_paths_and_reexports() {
    let by_use = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a.rs", "use crate::b::B;\npub struct A(B);"),
        ("b.rs", "use super::{a::A, c};\npub struct B;"),
    ];
    assert_eq!(circles_of(&by_use), ["a.rs b.rs"]);
    let by_path = [
        ("lib.rs", "mod a;\nmod b;"),
        ("a.rs", "fn f() { crate::b::g() }"),
        ("b.rs", "pub fn g() -> super::a::T { }"),
    ];
    assert_eq!(circles_of(&by_path), ["a.rs b.rs"]);
    // The child uses a type of the parent, and the parent calls the child.
    let parent = [
        ("lib.rs", "mod p;"),
        ("p/mod.rs", "mod child;\npub struct T;\nfn f() { child::g() }"),
        ("p/child.rs", "use super::T;\npub fn g(_: T) {}"),
    ];
    assert_eq!(circles_of(&parent), ["p/child.rs p/mod.rs"]);
    // The imported names are defined behind re-exports, one of them with a star.
    let reexported = [
        ("lib.rs", "mod p;\nmod q;"),
        ("p/mod.rs", "mod types;\npub use types::*;"),
        ("p/types.rs", "use crate::q::Other;\npub struct T(Other);"),
        ("q/mod.rs", "mod inner;\npub use inner::Other;"),
        ("q/inner.rs", "use crate::p::T;\npub struct Other(T);"),
    ];
    assert_eq!(circles_of(&reexported), ["p/types.rs q/inner.rs"]);
}

#[test]
fn tests_reexports_and_text_are_no_imports() {
    let sources = [
        ("lib.rs", "mod a;\nmod b;\npub use a::A;"),
        // A re-exported child, and a name from below it that other files import from here.
        ("a/mod.rs", "mod types;\npub use types::{A, B};\nfn f(_: types::A) {}"),
        ("a/types.rs", "// use crate::b::X;\npub struct A;\npub struct B;\nconst S: &str = \"crate::b::X\";"),
        (
            "b.rs",
            "use crate::a::A;\npub struct X(A);\n\
             #[cfg(test)]\nmod tests { use crate::c::Y; }\n#[cfg(test)]\nimpl X { fn f() { crate::c::g() } }\n\
             pub(in crate::b) mod inner { use super::X; }",
        ),
        ("c.rs", "use crate::b::X;\n#[cfg(test)]\nmod tests;\npub struct Y(X);"),
        ("c/tests.rs", "use super::*;"),
    ];
    assert_eq!(circles_of(&sources), [] as [&str; 0]);
}
