//! Checks which crates enable the feature for test support.

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
