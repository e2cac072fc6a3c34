//! Starts HAProxy's master as a child of this thread, reads its messages, reloads and stops it.
//!
//! `setpriv --pdeathsig` (util-linux) makes the kernel end the master when this thread ends, and the workers end with
//! their master. The access log goes to the standard output, which HAProxy inherits; its messages are logged.
//!
//! Invariant: only a process whose command line names our own configuration file is killed.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group};
use tidegate_host::atomic_file;
use tidegate_host::child::{self, LineLimit};

/// The socket of the master, in the runtime directory.
pub const SOCKET: &str = "master.sock";
const PID_FILE: &str = "pid";

/// How long the HAProxy of an earlier process may take to end.
const END_OLD_MAX: Duration = Duration::from_secs(2);

/// A running HAProxy: the master and its workers.
#[derive(Debug)]
pub struct Process {
    child: Child,
    directory: PathBuf,
    last_alert: Arc<Mutex<Option<String>>>,
}

impl Process {
    /// Starts the master with a configuration file and its socket in `directory`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, directory: &Path, file: &Path) -> io::Result<Self> {
        child::remove_socket(&directory.join(SOCKET))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(program).arg("-W");
        command.arg("-S").arg(format!("{},mode,600", directory.join(SOCKET).display()));
        command.arg("-f").arg(file);
        // A process group of its own, by which a hanging worker is found.
        command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let last_alert = Arc::default();
        let stderr = child.stderr.take().expect("it is piped");
        let alerts = Arc::clone(&last_alert);
        let reader = thread::Builder::new().name("haproxy-log".to_owned());
        let reader = reader.spawn(move || follow(BufReader::new(stderr), &alerts)).map(drop);
        let process = Self { child, directory: directory.to_owned(), last_alert };
        let pid = process.pid().to_string();
        let written = reader.and_then(|()| {
            let file = directory.join(PID_FILE);
            atomic_file::replace(&file, |out| io::Write::write_all(out, pid.as_bytes())).map(drop)
        });
        match written {
            Ok(()) => Ok(process),
            // A child that is dropped runs on.
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }

    /// The pid of the master.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The socket of the master.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// How the master exited, if it has.
    pub fn ended(&mut self) -> Option<String> {
        child::ended(&mut self.child)
    }

    /// HAProxy's last error message, which is removed.
    pub fn take_alert(&self) -> Option<String> {
        self.last_alert.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Makes the master read its configuration again and start a new worker.
    pub fn reload(&self) {
        child::signal(&self.child, Signal::USR2);
    }

    /// Makes it close its listeners and end with its last connection, or after `hard-stop-after`.
    pub fn stop_gracefully(&self) {
        child::signal(&self.child, Signal::USR1);
    }

    /// Kills the master and all workers, even those that hang.
    pub fn kill(mut self) {
        if let Some(group) = child::pid_of(&self.child) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends the HAProxy that an earlier edge process left behind in this directory.
pub fn end_old(directory: &Path, file: &Path) {
    child::end_old(&directory.join(PID_FILE), file, END_OLD_MAX, |pid| {
        tracing::warn!(pid, "ending a HAProxy that an earlier edge process left running");
    });
}

/// Logs HAProxy's messages until it ends.
fn follow(lines: impl BufRead, last_alert: &Mutex<Option<String>>) {
    let mut limit = LineLimit::default();
    child::follow(lines, |line| {
        let (level, text) = message(line);
        if level != "ALERT" {
            tracing::debug!(haproxy = text, "message of HAProxy");
            return;
        }
        *last_alert.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
        let Some(left_out) = limit.admit() else { return };
        if left_out > 0 {
            tracing::warn!(lines = left_out, "suppressed errors of HAProxy");
        }
        tracing::error!(haproxy = text, "message of HAProxy");
    });
}

/// The level and the text of `[ALERT]    (1234) : text`.
pub(super) fn message(line: &str) -> (&str, &str) {
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let Some((level, rest)) = split else { return ("", line) };
    (level, rest.split_once(") : ").map_or(rest, |(_, text)| text).trim())
}
