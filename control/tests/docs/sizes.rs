//! Limits the size of crates, files and functions so that newcomers can read them. `deploy/scripts/count.sh` defines
//! what counts.

use std::process::Command;

use crate::repository::root;

/// Lines of production code in one crate.
const CRATE_MAX: usize = 16_000;
/// Lines of production code in one file.
const FILE_MAX: usize = 600;
/// Lines of one function, with its signature.
const FUNCTION_MAX: usize = 80;

/// The lines that the script prints, each with its leading number.
fn counts(what: &[&str]) -> Vec<(usize, String)> {
    let script = root().join("deploy/scripts/count.sh");
    let ran = Command::new(script).args(what).output().expect("bash, git and awk");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout).expect("text");
    let lines = printed.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(lines, name)| (lines.parse().expect("a number"), name.to_owned())).collect()
}

/// Asserts that at least `least` things were counted, and that none is longer than `max` lines.
fn assert_short(counts: &[(usize, String)], max: usize, least: usize) {
    assert!(counts.len() > least, "only {} were counted", counts.len());
    let long = counts.iter().filter(|(lines, _)| *lines > max);
    let long: Vec<String> = long.map(|(lines, name)| format!("{lines} {name}")).collect();
    assert!(long.is_empty(), "above {max} lines:\n{}", long.join("\n"));
}

#[test]
fn no_crate_has_more_production_code_than_a_day_of_reading() {
    let mut counts = counts(&[]);
    counts.retain(|(_, name)| name != "all");
    assert_short(&counts, CRATE_MAX, 20);
}

#[test]
fn no_file_has_more_production_code_than_is_read_at_once() {
    assert_short(&counts(&["--files"]), FILE_MAX, 500);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    assert_short(&counts(&["--functions"]), FUNCTION_MAX, 5_000);
}
