//! Programs that a daemon runs as its children: where they are, how they end, when they are started again, what they
//! print, and those that an earlier process of the daemon left running.
//!
//! Invariant: only a process whose command line contains a given argument is killed.

use std::fs;
use std::io::{self, BufRead};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The pause after the first failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest pause after a failure.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A program that has run for this time has no failures to count any more.
pub const STABLE: Duration = Duration::from_secs(60);
/// How many lines of a program's output are logged per second.
const LINES_PER_SECOND: u32 = 20;
/// How many characters of a line are read.
const LINE_MAX: usize = 512;

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

/// Removes the socket that an earlier process of the program left. It would look like the new one's.
///
/// # Errors
/// If it exists and can't be removed.
pub fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How long to wait before a program is started again that has failed this often before.
#[must_use]
pub fn pause_after(failures: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX)
}

/// The pid of a child. It stays valid until the caller has waited for the child.
#[must_use]
pub fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Sends a signal to a child that was not waited for.
pub fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = pid_of(child) {
        let _ = kill_process(pid, signal);
    }
}

/// How a child exited, if it has.
pub fn ended(child: &mut Child) -> Option<String> {
    match child.try_wait() {
        Ok(None) => None,
        Ok(Some(status)) => Some(match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => status.to_string(),
        }),
        Err(error) => Some(error.to_string()),
    }
}

/// Passes each line of a child's output to `line`, up to [`LINE_MAX`] characters of it, until the output ends.
pub fn follow(mut output: impl BufRead, mut line: impl FnMut(&str)) {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match output.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text: String = String::from_utf8_lossy(&bytes).trim_end().chars().take(LINE_MAX).collect();
        line(&text);
    }
}

/// Limits the lines of a child that are logged to [`LINES_PER_SECOND`].
#[derive(Debug)]
pub struct LineLimit {
    second: Instant,
    lines: u32,
    left_out: u64,
}

impl Default for LineLimit {
    fn default() -> Self {
        Self { second: Instant::now(), lines: 0, left_out: 0 }
    }
}

impl LineLimit {
    /// Whether the next line may be logged. Then the result is how many lines were left out before it.
    pub fn admit(&mut self) -> Option<u64> {
        let mut left_out = 0;
        if self.second.elapsed() >= Duration::from_secs(1) {
            left_out = std::mem::take(self).left_out;
        }
        self.lines += 1;
        if self.lines > LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        Some(left_out)
    }
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
