//! Checks that the files of the Debian packages agree with each other and with the program.

use std::process::Command;

use crate::repository::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_package_creates_the_user_of_the_unit() {
    let unit = read("deploy/systemd/tidegate.service");
    let user = unit.lines().find_map(|line| line.strip_prefix("User=")).expect("a user");
    let created = read("deploy/debian/tidegate.sysusers");
    assert!(created.lines().any(|line| line.starts_with(&format!("u {user} "))), "{created}");
}

#[test]
fn a_purge_deletes_the_directories_of_the_unit() {
    let unit = read("deploy/systemd/tidegate.service");
    let purge = read("deploy/debian/tidegate.postrm");
    let below =
        [("RuntimeDirectory=", "/run"), ("StateDirectory=", "/var/lib"), ("ConfigurationDirectory=", "/etc")];
    for (key, parent) in below {
        let name = unit.lines().find_map(|line| line.strip_prefix(key)).expect("a directory");
        assert!(purge.contains(&format!(" {parent}/{name}")), "{parent}/{name}: {purge}");
    }
}

#[test]
fn check_accepts_the_example_of_the_package_without_a_warning() {
    let example = root().join("deploy/debian/examples/gateway.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["check", "-c"]).arg(&example).output();
    let output = output.expect("the program runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("ok: 1 Services"), "{printed}");
    assert_eq!(printed.lines().count(), 1, "a warning: {printed}");
}
