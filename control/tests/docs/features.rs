//! Checks the manifests of the crates: the features that they enable, and the crates that they depend on.

use crate::repository::files;

/// The feature for test support: the packet builder of `tidegate-wire`, the specs of `tidegate-spec`, the lab and the fuzz
/// harness of `tidegate-pipeline`, and the test support of `tidegate-source`.
const TEST_SUPPORT: &str = "\"testing\"";

#[test]
fn only_tests_benches_and_fuzz_runs_compile_test_support() {
    let (mut enabled, mut wrong) = (0, Vec::new());
    for file in files().iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        let mut table = "";
        for line in file.text.lines() {
            if line.starts_with('[') {
                table = line;
            }
            if line.contains(TEST_SUPPORT) {
                enabled += 1;
                let is_tool = file.path.starts_with("benches/") || file.path.starts_with("fuzz/");
                if !is_tool && table != "[dev-dependencies]" {
                    wrong.push(format!("{}: {table}: {line}", file.path));
                }
            }
        }
    }
    assert!(enabled >= 8, "the manifests were read: {enabled}");
    assert!(wrong.is_empty(), "the daemon would contain test support:\n{}", wrong.join("\n"));
}

/// The crates of the workspace in the table `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let table =
        manifest.split("\n[").find_map(|table| table.strip_prefix("dependencies]\n")).unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split([' ', '.', '=']).next());
    names
        .filter(|name| name.starts_with("tidegate") || name.starts_with("dpdk") || *name == "test-apiserver")
        .collect()
}

#[test]
fn each_crate_states_at_its_head_on_which_others_it_may_depend() {
    let files = files();
    let mut wrong = Vec::new();
    let libraries = files.iter().filter_map(|file| Some((file, file.path.strip_suffix("src/lib.rs")?)));
    for (library, directory) in libraries.filter(|(_, directory)| !directory.starts_with("fuzz")) {
        let head: Vec<&str> = library.text.lines().take_while(|line| line.starts_with("//!")).collect();
        let head = head.join(" ").replace(" //! ", " ");
        let Some((_, stated)) = head.split_once("May depend on: ") else {
            wrong.push(format!("{}: no \"May depend on: \"", library.path));
            continue;
        };
        let stated = stated.split_once(" //!").map_or(stated, |(paragraph, _)| paragraph);
        // Behind "May not" are the crates on which it must not depend.
        let stated = stated.split_once(" May not").map_or(stated, |(may, _)| may);
        let manifest =
            files.iter().find(|file| file.path == format!("{directory}Cargo.toml")).expect("a manifest");
        let unstated =
            dependencies(&manifest.text).into_iter().filter(|name| !stated.contains(&format!("`{name}`")));
        let unstated: Vec<&str> = unstated.filter(|_| !stated.starts_with("all ")).collect();
        if !unstated.is_empty() {
            wrong.push(format!("{}: not stated: {unstated:?}", library.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
