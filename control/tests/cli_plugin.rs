//! `kubectl tidegate ...`: a link named `kubectl-tidegate` to the binary, found by kubectl in the PATH.

use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn a_link_named_kubectl_tidegate_is_a_plugin_that_calls_itself_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let plugin = directory.path().join("kubectl-tidegate");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &plugin).expect("a link");
    let help = Command::new(&plugin).args(["services", "--help"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("Usage: kubectl tidegate services"), "{text}");
    // What is asked is asked as ever: here of a daemon that is not there.
    let socket = directory.path().join("none.sock");
    let asked = Command::new(&plugin).args(["pools", "--socket"]).arg(socket).output().expect("it runs");
    let text = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text.starts_with("Error from gateway: "), "{text}");
    let plain = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("--help").output().expect("it runs");
    assert!(String::from_utf8_lossy(&plain.stdout).contains("Usage: tidegate "));
}
