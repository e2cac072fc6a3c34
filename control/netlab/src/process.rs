//! A program that runs in a namespace of the lab, with its output in a file. It is killed on drop.
//!
//! Invariant: the process that starts a program waits for it, so no zombie outlives its [`LabProcess`].

use super::Namespace;
use super::exclusive::changing;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct LabProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl LabProcess {
    /// Starts `program` in `namespace`. Its output is appended to `directory/<name>.log`.
    ///
    /// # Errors
    /// When the log cannot be opened or `ip` cannot be run.
    pub fn start<S: AsRef<OsStr>>(
        namespace: &Namespace,
        directory: &Path,
        name: &str,
        program: impl AsRef<OsStr>,
        args: &[S],
    ) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut command = namespace.command(program);
        command.args(args).stdout(file.try_clone()?).stderr(file);
        let child = changing(|| command.spawn()).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// The pid of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its exit status, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal, if it is still running.
    pub fn signal(&mut self, signal: Signal) {
        if self.runs()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // It may exit between the check and the signal. The pid stays ours until we wait for it.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits with a limit until it has ended.
    ///
    /// # Errors
    /// When it has not ended.
    pub fn wait(&mut self, bound: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        super::wait_for(&what, bound, || self.exit_status())
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its complete output.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last `lines` lines of its output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for LabProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What is missing if no directory of the `PATH` has `program`, with the Debian package to install.
pub(super) fn missing(program: &str, package: &str) -> Option<String> {
    let is_there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    (!is_there).then(|| format!("there is no `{program}` in the PATH: install the Debian package {package}"))
}
