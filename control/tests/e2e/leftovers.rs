//! Tests the check at the end of a test run: it lists leftovers of the run, and nothing of other programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tidegate_netlab::wait_for;

fn run(script: &str) -> Output {
    let leftovers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/scripts/leftovers.sh");
    Command::new(leftovers).args(["run", "bash", "-c", script]).output().expect("bash runs")
}

#[test]
fn leftovers_of_a_run_are_named() {
    for (made, named) in [
        (
            "mkdir -p /run/tidegate/devices && touch /run/tidegate/devices/1-eth0",
            "file /run/tidegate/devices/1-eth0",
        ),
        ("ip netns add tg1-1-client", "namespace tg1-1-client"),
        ("mkdir $TMPDIR/tidegate-lab-tg1-1", "tidegate-lab-tg1-1"),
        ("echo 0 > $TIDEGATE_RUN/hugepages/1", "hugepages 1"),
        ("setsid sleep 20 > /dev/null 2>&1 &", "process "),
    ] {
        let ran = run(made);
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{made}: {stderr}");
        assert!(stderr.contains(named), "{made}: {stderr}");
    }
    assert_eq!(run("exit 7").status.code(), Some(7), "a failure of the command is still reported");
}

#[test]
fn objects_of_other_programs_are_not_leftovers() {
    let own = format!("leftovers-{}", std::process::id());
    let directory = std::env::temp_dir().join(&own);
    fs::create_dir(&directory).expect("it is new");
    let [begun, go] = ["begun", "go"].map(|name| directory.join(name));
    let script = format!("touch {}; until [[ -e {} ]]; do sleep 0.05; done", begun.display(), go.display());
    let running = std::thread::spawn(move || run(&script));
    wait_for("the run", Duration::from_secs(20), || begun.exists().then_some(())).expect("it begins");
    let theirs = Path::new("/run/tidegate/devices").join(format!("0-{own}"));
    fs::create_dir_all(theirs.parent().expect("a directory")).expect("root may");
    fs::write(&theirs, "pid 1\n").expect("root may");
    let ip = |args: &[&str]| assert!(Command::new("ip").args(args).status().expect("ip runs").success());
    ip(&["netns", "add", &own]);
    fs::write(&go, "").expect("it can be written");
    let ran = running.join().expect("it ends");
    ip(&["netns", "del", &own]);
    fs::remove_file(&theirs).expect("it is ours");
    fs::remove_dir_all(&directory).expect("it is ours");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
