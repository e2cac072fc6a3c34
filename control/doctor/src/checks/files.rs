//! Directories of the gateway: the flow tables must be on tmpfs, and the admin socket needs a directory.

use std::path::{Path, PathBuf};

use super::subject::Subject;
use crate::finding::Finding;

/// File systems in memory.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    flow_directory(subject).into_iter().collect()
}

fn flow_directory(subject: &Subject<'_>) -> Option<Finding> {
    let check = "flow_directory";
    let directory = subject.config.dataplane.flow_directory.as_deref()?;
    let kind = file_system(subject, directory)?;
    let shown = directory.display();
    if IN_MEMORY.contains(&kind.as_str()) {
        return Some(Finding::ok(check, format!("{shown} is on {kind}")));
    }
    let why =
        "flow tables are not kept there, so a restart of the gateway ends connections of nat and fullnat";
    let fix = format!(
        "mkdir -p {shown}; mount -t tmpfs tmpfs {shown}, or dataplane.flowTable.directory: a directory below /run"
    );
    Some(Finding::warning(check, format!("{shown} is on {kind}, not on tmpfs"), why, fix))
}

/// The kind of the file system on which a path is: that of the longest mount point above it.
fn file_system(subject: &Subject<'_>, path: &Path) -> Option<String> {
    let mounts = subject.machine.text("proc/self/mountinfo")?;
    let mount = |line: &str| {
        // proc_pid_mountinfo(5): the mount point is the fifth field, and the type follows a lone hyphen.
        let point = PathBuf::from(line.split(' ').nth(4)?.replace("\\040", " "));
        let kind = line.split(" - ").nth(1)?.split(' ').next()?.to_owned();
        path.starts_with(&point).then_some((point.components().count(), kind))
    };
    // Of two mounts at one point, the later one covers the earlier one.
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}
