//! Programs that a daemon runs as its children: where they are, and those that an earlier process of the daemon left
//! running.
//!
//! Invariant: only a process whose command line contains a given argument is killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Finds a program: a path is used as it is, a name is searched in `PATH` and the directories of system programs.
///
/// # Errors
/// If there is no such program.
pub fn find(program: &Path) -> io::Result<PathBuf> {
    if program.components().count() > 1 {
        return Ok(program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system).map(|place| place.join(program));
    places.find(|path| path.is_file()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "not found in PATH, /usr/sbin or /usr/local/sbin")
    })
}

/// Ends the process whose pid is in a file, if `argument` is one of the arguments of its command line. Calls `found`
/// with the pid first. The process is killed if it doesn't exit within `wait`.
pub fn end_old(pid_file: &Path, argument: &Path, wait: Duration, found: impl FnOnce(i32)) {
    let Ok(text) = fs::read_to_string(pid_file) else { return };
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return };
    // The handle keeps referring to this process even if the pid is reused.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let argument = argument.as_os_str().as_encoded_bytes();
    if !line.split(|byte| *byte == 0).any(|written| written == argument) {
        return;
    }
    found(pid.as_raw_nonzero().get());
    let _ = pidfd_send_signal(&handle, Signal::TERM);
    let wait = Timespec::try_from(wait).expect("a short time");
    // The handle becomes readable when the process has ended.
    if !matches!(poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&wait)), Ok(1..)) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
}
