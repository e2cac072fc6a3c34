//! Bounds the size of crates, so that somebody new can read one: `deploy/scripts/count.sh` says what counts.

use std::collections::BTreeMap;
use std::process::Command;

use crate::repository::root;

/// Lines of production code in one crate.
const CRATE_MAX: usize = 16_000;

#[test]
fn no_crate_has_more_production_code_than_a_day_of_reading() {
    let ran = Command::new(root().join("deploy/scripts/count.sh")).output().expect("bash, git and awk");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let counts = String::from_utf8(ran.stdout).expect("text");
    let counts: BTreeMap<&str, usize> = counts
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(lines, name)| (name, lines.parse().expect("a number")))
        .collect();
    let large: Vec<_> = counts.iter().filter(|&(&name, &lines)| name != "all" && lines > CRATE_MAX).collect();
    assert!(counts.len() > 20, "the crates were counted: {counts:?}");
    assert!(large.is_empty(), "above {CRATE_MAX} lines: {large:?}");
}
