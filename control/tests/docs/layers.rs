//! Checks the dependencies between crates: they must match the first lines of each crate, and the order of the layers
//! in `docs/architecture.md`. Dependencies of tests don't count.

use std::collections::BTreeMap;

use crate::repository::{File, files, root};

/// A crate of the repository.
struct Crate<'f> {
    /// Its directory, without a slash at the end.
    directory: &'f str,
    name: &'f str,
    /// The names of its dependencies, except those of its tests.
    dependencies: Vec<&'f str>,
}

/// A key of a TOML table: `name` of `name.workspace = true`.
fn key(line: &str) -> &str {
    line.split([' ', '.', '=']).next().unwrap_or_default()
}

impl<'f> Crate<'f> {
    /// The crate of a manifest; `None` for a manifest of the workspace alone.
    fn of(manifest: &'f File) -> Option<Self> {
        let directory = manifest.path.strip_suffix("Cargo.toml")?.trim_end_matches('/');
        let (mut table, mut name, mut dependencies) = ("", None, Vec::new());
        for line in manifest.text.lines() {
            if line.starts_with('[') {
                table = line;
            } else if table == "[package]" && key(line) == "name" {
                name = line.split('"').nth(1);
            } else if table.ends_with("dependencies]") && table != "[dev-dependencies]" {
                dependencies.push(key(line));
            }
        }
        let dependencies = if name.is_some() { dependencies } else { Vec::new() };
        Some(Self { directory, name: name?, dependencies })
    }

    /// Tools for benchmarks and fuzzing: they may use everything, and nothing may use them.
    fn is_tool(&self) -> bool {
        self.directory.starts_with("benches/") || self.directory == "fuzz"
    }
}

/// The crates of the repository. Their dependencies are only those on each other.
fn crates(files: &[File]) -> Vec<Crate<'_>> {
    let manifests = files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let mut crates: Vec<Crate<'_>> = manifests.filter_map(Crate::of).collect();
    let names: Vec<&str> = crates.iter().map(|one| one.name).collect();
    for one in &mut crates {
        one.dependencies.retain(|name| names.contains(name));
    }
    assert!(crates.len() > 25, "the manifests were read: {names:?}");
    assert!(crates.iter().all(|one| !one.directory.is_empty()), "{names:?}");
    crates
}

/// The directories of the crates in a table of layers, from top to bottom. A row may have several.
fn layers(document: &str) -> Vec<&str> {
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let spans = cells.flat_map(|cell| cell.split(" (").flat_map(|text| text.split('`').skip(1).step_by(2)));
    // The name of the package is in parentheses behind the directory.
    spans.filter(|span| root().join(span).join("Cargo.toml").exists()).collect()
}

/// Dependencies that are not above their crate in the table, and crates missing from the table.
fn arrows_up(layers: &[&str], crates: &[Crate<'_>]) -> Vec<String> {
    let directories: BTreeMap<&str, &str> = crates.iter().map(|one| (one.name, one.directory)).collect();
    let layer = |directory: &str| layers.iter().position(|layer| *layer == directory);
    let mut wrong = Vec::new();
    for one in crates {
        let own = layer(one.directory);
        if own.is_none() && !one.is_tool() {
            wrong.push(format!("{} is not in the table", one.directory));
        }
        for other in &one.dependencies {
            let above = layer(directories[other]);
            // Tools are below all other crates.
            let is_above = above.is_some_and(|above| own.is_none_or(|own| above < own));
            let is_between_tools = one.is_tool() && directories[other].starts_with("benches/");
            if !is_above && !is_between_tools {
                wrong.push(format!("{} uses {}, which is not above it", one.directory, directories[other]));
            }
        }
    }
    wrong
}

#[test]
fn a_crate_uses_only_crates_above_it_in_the_table_of_layers() {
    let files = files();
    let architecture = files.iter().find(|file| file.path == "docs/architecture.md").expect("the document");
    let (_, table) = architecture.text.split_once("\n## Layers").expect("the section");
    let layers = layers(table.split("\n## ").next().unwrap_or_default());
    assert!(layers.len() > 20, "the table was read: {layers:?}");
    for (at, layer) in layers.iter().enumerate() {
        assert!(!layers[..at].contains(layer), "{layer} is in the table twice");
    }
    let wrong = arrows_up(&layers, &crates(&files));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_upward_dependency_is_found() {
    let manifest = |directory: &str, text: &str| File {
        path: format!("{directory}/Cargo.toml"),
        text: format!("[package]\nname = \"{directory}\"\n{text}"),
    };
    let low = manifest(
        "low",
        "[dependencies]\nhigh.workspace = true\nserde = \"1\"\n[dev-dependencies]\nnowhere = { path = \"x\" }",
    );
    let high = manifest("high", "[build-dependencies]\nlow = { workspace = true }");
    let nowhere = manifest("nowhere", "[target.\"cfg(x)\".dependencies]\nlow = { workspace = true }");
    let mut crates: Vec<Crate<'_>> =
        [&low, &high, &nowhere].map(|file| Crate::of(file).expect("a crate")).into();
    assert_eq!(crates[0].dependencies, ["high", "serde"]);
    crates[0].dependencies.pop();
    let wrong = ["high uses low, which is not above it", "nowhere is not in the table"];
    assert_eq!(arrows_up(&["high", "low"], &crates), wrong);
}

#[test]
fn each_crate_header_states_on_which_crates_it_may_depend() {
    let files = files();
    let mut wrong = Vec::new();
    for one in crates(&files).iter().filter(|one| one.directory != "fuzz") {
        let file =
            |name: &str| files.iter().find(|file| file.path == format!("{}/src/{name}", one.directory));
        let root = file("lib.rs").or_else(|| file("main.rs")).expect("a library or a binary");
        let head: Vec<&str> = root.text.lines().take_while(|line| line.starts_with("//!")).collect();
        let head = head.join(" ").replace(" //! ", " ");
        let Some((_, stated)) = head.split_once("May depend on: ") else {
            wrong.push(format!("{}: no \"May depend on: \"", root.path));
            continue;
        };
        let stated = stated.split_once(" //!").map_or(stated, |(paragraph, _)| paragraph);
        // The crates after "May not" must not be dependencies.
        let stated = stated.split_once(" May not").map_or(stated, |(may, _)| may);
        let unstated = one.dependencies.iter().filter(|name| !stated.contains(&format!("`{name}`")));
        let unstated: Vec<&&str> = unstated.filter(|_| !stated.starts_with("all ")).collect();
        if !unstated.is_empty() {
            wrong.push(format!("{}: not stated: {unstated:?}", root.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
