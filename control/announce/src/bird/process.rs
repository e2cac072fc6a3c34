//! Starts BIRD as a child of this thread, reads its output, and stops it.
//!
//! `setpriv --pdeathsig` (util-linux) makes the kernel kill BIRD when this thread ends, however the daemon exits;
//! otherwise its routes would never be withdrawn. This fails if the daemon dies just while it starts BIRD, so a new
//! daemon also kills the BIRD of its own pid file ([`end_old`]).
//!
//! BIRD runs as the user of the daemon. If that isn't root, BIRD gets only the capabilities of [`CAPABILITIES`].
//!
//! Invariant: only a process whose command line names our own configuration file is killed.

use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, setpriority_process};
use rustix::thread::{CapabilitySet, clear_ambient_capability_set, configure_capability_in_ambient_set};
use tidegate_host::child::{self, LineLimit};

use super::config;

/// The control socket, in BIRD's directory.
pub const SOCKET: &str = "ctl";
/// The pid file.
pub const PID_FILE: &str = "pid";

/// What BIRD needs if the daemon doesn't run as root: port 179, and the packet priority of its BFD sockets (Linux 5.17
/// or newer).
const CAPABILITIES: [CapabilitySet; 2] = [CapabilitySet::NET_BIND_SERVICE, CapabilitySet::NET_RAW];
/// The priority (`nice` value) of BIRD.
const PRIORITY: i32 = -10;
/// How long BIRD may take to close its sessions.
const STOP_MAX: Duration = Duration::from_secs(2);
const STOP_POLL: Duration = Duration::from_millis(10);

/// A running BIRD.
#[derive(Debug)]
pub struct Process {
    child: Child,
    last_line: Arc<Mutex<Option<String>>>,
}

impl Process {
    /// Starts BIRD with the files in `directory`. With `recovers`, it recovers its sessions by graceful restart.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, directory: &Path, recovers: bool) -> io::Result<Self> {
        let program = child::find(program)?;
        child::remove_socket(&directory.join(SOCKET))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(program).arg("-f");
        command.arg("-c").arg(directory.join(config::MAIN));
        command.arg("-s").arg(directory.join(SOCKET));
        command.arg("-P").arg(directory.join(PID_FILE));
        if recovers {
            command.arg("-R");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut bird = with_capabilities(|| command.spawn())?;
        // BFD must send a packet every few hundred milliseconds, even if other programs use the CPU. Without the
        // capability to raise the priority, it stays as it is.
        let _ = child::pid_of(&bird).map(|pid| setpriority_process(Some(pid), PRIORITY));
        let last_line = Arc::default();
        if let Some(stderr) = bird.stderr.take() {
            let words = Arc::clone(&last_line);
            let reader = thread::Builder::new().name("tg-bird-log".to_owned());
            if let Err(error) = reader.spawn(move || follow(BufReader::new(stderr), &words)) {
                // A `Child` that is dropped runs on, and nobody would withdraw its routes.
                let _ = bird.kill();
                let _ = bird.wait();
                return Err(error);
            }
        }
        Ok(Self { child: bird, last_line })
    }

    /// Wraps a process that replaces BIRD in a test.
    #[cfg(test)]
    pub(super) fn of(child: Child) -> Self {
        Self { child, last_line: Arc::default() }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it exited, if it has.
    pub fn ended(&mut self) -> Option<String> {
        child::ended(&mut self.child)
    }

    /// The last line of its output.
    #[must_use]
    pub fn last_line(&self) -> Option<String> {
        self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks it to close its sessions and exit, and kills it if it does not.
    pub fn stop(mut self) {
        child::signal(&self.child, Signal::TERM);
        let until = Instant::now() + STOP_MAX;
        while Instant::now() < until {
            if self.ended().is_some() {
                return;
            }
            thread::sleep(STOP_POLL);
        }
        tracing::warn!("BIRD did not exit in time; killed it");
        self.kill();
    }

    /// Kills it. The kernel closes its connections.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `spawn` so that its child has [`CAPABILITIES`]. The daemon has cleared the ambient set, from which a child that
/// isn't root gets its capabilities. The set belongs to this thread.
fn with_capabilities<T>(spawn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    for capability in CAPABILITIES {
        // Root's children need no ambient capabilities. Without the capability, BIRD logs what it can't do.
        let _ = configure_capability_in_ambient_set(capability, true);
    }
    let spawned = spawn();
    let _ = clear_ambient_capability_set();
    spawned
}

/// Forwards BIRD's log until BIRD exits.
fn follow(lines: impl io::BufRead, last_line: &Mutex<Option<String>>) {
    let mut limit = LineLimit::default();
    child::follow(lines, |line| {
        let Some(left_out) = limit.admit() else { return };
        if left_out > 0 {
            tracing::warn!(lines = left_out, "suppressed lines of BIRD's log");
        }
        // A line is: date, time, <CLASS>, text. Before the configuration is read, it is only the text.
        let (class, text) = line
            .split_once('<')
            .and_then(|(_, rest)| rest.split_once("> "))
            .map_or(("ERR", line), |(class, text)| (class, text));
        match class {
            _ if text == "Shutdown completed" => tracing::debug!(bird = text, "log of BIRD"),
            "INFO" | "DBG" | "TRACE" => tracing::debug!(bird = text, "log of BIRD"),
            "RMT" | "WARN" => tracing::warn!(bird = text, "log of BIRD"),
            _ => tracing::error!(bird = text, "log of BIRD"),
        }
        *last_line.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
    });
}

/// Kills the BIRD whose pid is in this file, if its command line names the configuration file `main`.
pub fn end_old(pid_file: &Path, main: &Path) {
    child::end_old(pid_file, main, STOP_MAX, |pid| {
        tracing::warn!(pid, "killing a BIRD process that an earlier gateway process left running");
    });
}
