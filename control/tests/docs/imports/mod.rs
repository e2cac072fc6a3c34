//! Checks that within a crate, a library or a binary, no two files import from each other, directly or indirectly
//! (`docs/architecture.md`, "Layers").
//!
//! Imports are `use` declarations, and paths in code that begin with `crate`, `super`, `self`, a child module or an
//! imported module. A name counts as an import of the file that defines it, through re-exports. A parent that
//! re-exports a definition of its child does not import it.
//!
//! Not detected: method calls (a type may have an `impl` in a file that its own file does not import), paths from
//! macros, modules with a `#[path]`, and imports of tests (`#[cfg(test)]`, and other conditions that name `test` and no
//! feature).

mod graph;
mod source;

use std::collections::BTreeMap;

use super::repository::{File, files};
use graph::Graph;

/// The sources of a library or a binary.
struct Crate<'f> {
    /// The path of the file that declares the other modules: `lib.rs`, `main.rs` or a file of `bin`.
    root: &'f str,
    /// The directory of that file, with a slash.
    directory: &'f str,
    /// The texts of all files below the directory, by their relative path. Some may belong to another crate.
    sources: BTreeMap<&'f str, &'f str>,
}

/// Whether a path is the root of a library or a binary.
fn is_root(path: &str) -> bool {
    let Some((_, path)) = path.split_once("/src/") else { return false };
    match path.split('/').collect::<Vec<_>>()[..] {
        [file] => matches!(file, "lib.rs" | "main.rs"),
        ["bin", _] | ["bin", _, "main.rs"] => true,
        _ => false,
    }
}

/// The libraries and binaries of a repository.
fn crates<'f>(files: &'f [File]) -> Vec<Crate<'f>> {
    let rust: Vec<&'f File> = files.iter().filter(|file| file.has_extension("rs")).collect();
    let roots = rust.iter().map(|file| file.path.as_str()).filter(|path| is_root(path));
    roots
        .map(|root| {
            let directory = &root[..=root.rfind('/').expect("it is below src")];
            let below = |file: &'f File| Some((file.path.strip_prefix(directory)?, file.text.as_str()));
            Crate { root, directory, sources: rust.iter().copied().filter_map(below).collect() }
        })
        .collect()
}

/// The cycles of one crate, each with the imports that cause it. `root` is the path of its root.
fn circles(root: &str, sources: &BTreeMap<&str, &str>) -> Vec<graph::Circle> {
    Graph::new(root, sources).circles()
}

#[test]
fn no_two_files_of_a_crate_import_from_each_other() {
    let files = files();
    let crates = crates(&files);
    let roots: Vec<&str> = crates.iter().map(|one| one.root).collect();
    assert!(roots.len() > 30, "the crates were found: {roots:?}");
    for binary in ["benches/lab/src/main.rs", "benches/control/src/bin/control_run/main.rs"] {
        assert!(roots.contains(&binary), "binaries were found: {roots:?}");
    }
    let mut found = String::new();
    for Crate { root, directory, sources } in &crates {
        for circle in circles(&root[directory.len()..], sources) {
            found += &format!("{root}: {circle}\n");
        }
    }
    assert!(found.is_empty(), "move what both sides need to a file that imports neither:\n{found}");
}

fn circles_of(sources: &[(&'static str, &'static str)]) -> Vec<String> {
    let (root, _) = sources.first().expect("a root");
    let circles = circles(root, &sources.iter().copied().collect());
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
    // Re-exports lead to the imported names, one of them with a star.
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
fn a_circle_of_a_binary_is_found_and_one_of_another_crate_is_not() {
    let binary = [
        ("main.rs", "mod a;\nmod b;\nuse library::c;"),
        ("a.rs", "use crate::b::B;\npub struct A(B);"),
        ("b.rs", "use crate::a::A;\npub struct B(A);"),
        ("lib.rs", "mod c;\nmod d;"),
        ("c.rs", "use crate::d::D;\npub struct C(D);"),
        ("d.rs", "use crate::c::C;\npub struct D(C);"),
    ];
    assert_eq!(circles_of(&binary), ["a.rs b.rs"]);
    let roots = ["x/src/lib.rs", "src/bin/y.rs", "x/src/bin/y.rs", "x/src/bin/y/main.rs", "x/src/bin/y/z.rs"];
    assert_eq!(roots.map(is_root), [true, false, true, true, false]);
}

#[test]
fn tests_reexports_and_text_are_no_imports() {
    let sources = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;"),
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
