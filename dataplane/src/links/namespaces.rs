//! Determines which network namespaces are certain to be gone.
//!
//! The kernel has no list of network namespaces. One exists while a thread is in it, a file descriptor refers to it, or
//! a mount refers to it (`ip netns add`). [`gone`] examines all three in `/proc`, for every process. It reports a
//! namespace as gone only if it could examine everything: a process in its own PID namespace (a container) can't see
//! the others, and one without `CAP_SYS_PTRACE` can't inspect them.
//!
//! It can't see a namespace that is kept alive only by a socket, by a descriptor in transit through a socket, by a
//! descriptor of a thread with its own descriptor table, or by an init (process 1) that it may not inspect. No gateway
//! runs in such a namespace.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::{fs, str};

/// The initial PID namespace, which contains all processes: `PROC_PID_INIT_INO` of linux/proc_ns.h.
const ALL_PROCESSES: &str = "pid:[4026531836]";

/// The network namespaces among `candidates` (inode numbers) that no longer exist.
///
/// # Errors
/// If this process can't see every process, or all descriptors and mounts of one.
pub fn gone(candidates: BTreeSet<u64>) -> io::Result<BTreeSet<u64>> {
    let (proc, first) = (Path::new("/proc"), Path::new("/proc/1"));
    if fs::read_link(proc.join("self/ns/pid"))? != Path::new(ALL_PROCESSES) {
        return Err(io::Error::other(
            "this process is in its own PID namespace and cannot see all processes",
        ));
    }
    let mut search = Search { left: candidates, mounts: HashSet::new() };
    for process in numbered(proc)? {
        if search.left.is_empty() {
            break;
        }
        match search.process(&process) {
            // Some sandboxes hide process 1 even from root.
            Err(error) if process == first && error.kind() == io::ErrorKind::PermissionDenied => {}
            looked => looked?,
        }
    }
    Ok(search.left)
}

/// A search that examines one process after another.
struct Search {
    /// The namespaces that have not been found yet.
    left: BTreeSet<u64>,
    /// Examined mount namespaces, each with the root from which it was examined.
    mounts: HashSet<(PathBuf, PathBuf)>,
}

impl Search {
    fn process(&mut self, process: &Path) -> io::Result<()> {
        for thread in if_exists(process, numbered(&process.join("task")))?.unwrap_or_default() {
            if let Some(link) = if_exists(&thread, fs::read_link(thread.join("ns/net")))? {
                self.saw(&link);
            }
            let view = fs::read_link(thread.join("ns/mnt"))
                .and_then(|namespace| Ok((namespace, fs::read_link(thread.join("root"))?)));
            let is_new = if_exists(&thread, view)?.is_some_and(|view| self.mounts.insert(view));
            if is_new && let Some(text) = if_exists(&thread, fs::read(thread.join("mountinfo")))? {
                self.mounts(&text);
            }
        }
        let files = fs::read_dir(process.join("fd")).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for file in if_exists(process, files)?.unwrap_or_default() {
            // A file that is closed during the search is not an error.
            if let Some(link) = if_exists(&file.path(), fs::read_link(file.path()))? {
                self.saw(&link);
            }
        }
        Ok(())
    }

    /// The fourth field of a line is the root of the mount. For a namespace, it is the target of a link to it.
    fn mounts(&mut self, text: &[u8]) {
        for line in text.split(|&byte| byte == b'\n') {
            if let Some(root) =
                line.split(|&byte| byte == b' ').nth(3).and_then(|root| str::from_utf8(root).ok())
            {
                self.saw(Path::new(root));
            }
        }
    }

    /// Removes from the list the namespace that a link `net:[4026532008]` names.
    fn saw(&mut self, link: &Path) {
        let inode =
            link.to_str().and_then(|text| text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok());
        if let Some(inode) = inode {
            self.left.remove(&inode);
        }
    }
}

/// The result for `path`; `None` if it no longer exists, which the kernel reports by several errors.
fn if_exists<T>(path: &Path, found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(_) if fs::symlink_metadata(path).is_err() => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// The entries of a directory whose names are numbers.
fn numbered(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name: OsString = entry?.file_name();
        if name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            found.push(directory.join(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// No namespace has this number: numbers start at 0xf0000000.
    const NONE: u64 = 7;

    fn assert_lives(inode: u64, why: &str) {
        let found = gone([inode, NONE].into()).expect("this process sees all processes");
        assert_eq!(found, [NONE].into(), "{why}");
    }

    /// A process in its own network namespace, with that namespace's inode number.
    fn process_in_a_new_namespace() -> (Child, u64) {
        let ours = fs::metadata("/proc/self/ns/net").expect("there is one").ino();
        let child = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().expect("unshare runs");
        let link = format!("/proc/{}/ns/net", child.id());
        for _ in 0..1000 {
            match fs::metadata(&link).map(|file| file.ino()) {
                Ok(inode) if inode != ours => return (child, inode),
                _ => thread::sleep(Duration::from_millis(10)),
            }
        }
        panic!("no new namespace");
    }

    #[test]
    fn a_namespace_lives_while_a_process_is_in_it_or_a_file_is_open_on_it() {
        let (mut child, inode) = process_in_a_new_namespace();
        assert_lives(inode, "a process is in it");
        let file = File::open(format!("/proc/{}/ns/net", child.id())).expect("it is open");
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_lives(inode, "this process has it open");
        drop(file);
    }

    #[test]
    fn a_namespace_lives_while_a_mount_has_it() {
        let name = format!("tgns-{}", std::process::id());
        let ip = |what| Command::new("ip").args(["netns", what, &name]).status().expect("ip runs").success();
        assert!(ip("add"), "a namespace");
        let inode = fs::metadata(format!("/run/netns/{name}")).expect("it is there").ino();
        let found = gone([inode, NONE].into());
        assert!(ip("del"), "it is deleted");
        assert_eq!(found.expect("this process sees all processes"), [NONE].into());
    }
}
