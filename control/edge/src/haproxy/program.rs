//! The program HAProxy: its version, and whether it accepts a configuration.
//!
//! Invariant: a call returns within its time limit.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_host::child;

use super::process;

/// The oldest version that is used.
pub const VERSION_MIN: (u32, u32) = (2, 6);

/// How long HAProxy may take to validate a configuration.
const VALIDATE_MAX: Duration = Duration::from_secs(60);
const VERSION_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// How many lines of a refusal are reported.
const LINES_MAX: usize = 3;

const SUMMARIES: [&str; 2] = ["config : Error(s) found", "config : Fatal errors found"];

/// A HAProxy that is new enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// Its version, such as `2.6.12`.
    pub version: String,
}

impl Program {
    /// Finds the program and queries its version.
    ///
    /// # Errors
    /// If it is missing, can't be run, or is too old.
    pub fn find(name: &Path) -> Result<Self, String> {
        let path = child::find(name).map_err(|error| format!("{}: {error}", name.display()))?;
        let (_, output) = run(Command::new(&path).arg("-v"), VERSION_MAX)
            .map_err(|error| format!("{} -v: {error}", path.display()))?;
        let version = version(&output).ok_or_else(|| format!("{} -v prints no version", path.display()))?;
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
        let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if number < VERSION_MIN {
            let (major, minor) = VERSION_MIN;
            return Err(format!(
                "{} has version {version}; accepted: {major}.{minor} or newer",
                path.display()
            ));
        }
        Ok(Self { path, version })
    }

    /// Validates a configuration file.
    ///
    /// # Errors
    /// The first messages of HAProxy if it refuses the file; or why it couldn't be run.
    pub fn validate(&self, file: &Path) -> Result<(), Invalid> {
        let (accepted, output) = run(Command::new(&self.path).arg("-c").arg("-f").arg(file), VALIDATE_MAX)
            .map_err(|error| Invalid::NotRun(format!("{} -c: {error}", self.path.display())))?;
        if accepted {
            return Ok(());
        }
        let messages = output.lines().map(process::message);
        let messages = messages.filter(|(level, _)| *level == "ALERT").map(|(_, text)| text);
        // Two summaries follow the reasons.
        let is_reason = |text: &&str| SUMMARIES.iter().all(|summary| !text.starts_with(summary));
        let first: Vec<&str> = messages.filter(is_reason).take(LINES_MAX).collect();
        Err(Invalid::Refused(if first.is_empty() { output.trim().to_owned() } else { first.join("; ") }))
    }
}

/// Why a configuration is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    /// HAProxy refuses it, with these messages.
    Refused(String),
    /// HAProxy couldn't be run.
    NotRun(String),
}

/// `2.6.12-1+deb12u4` of `HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/`.
fn version(output: &str) -> Option<String> {
    let (_, rest) = output.split_once(" version ")?;
    Some(rest.split_whitespace().next()?.to_owned())
}

/// Runs a command to its end. Returns whether it succeeded, and its output.
fn run(command: &mut Command, within: Duration) -> io::Result<(bool, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let read = |mut from: Box<dyn io::Read + Send>| {
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.by_ref().take(1 << 20).read_to_end(&mut text);
            let _ = io::copy(&mut from, &mut io::sink());
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = read(Box::new(child.stdout.take().expect("it is piped")));
    let err = read(Box::new(child.stderr.take().expect("it is piped")));
    let until = Instant::now() + within;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until => thread::sleep(POLL),
            None => {
                child.kill()?;
                child.wait()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    };
    let [out, err] = [out, err].map(|thread| thread.join().unwrap_or_default());
    Ok((status.success(), out + &err))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_that_is_missing_or_too_old_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let fake = |text: &str| {
            let path = directory.path().join("haproxy");
            let _ = fs::remove_file(&path);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
            Program::find(&path)
        };
        let error = Program::find(Path::new("no-such-haproxy")).expect_err("missing");
        assert!(error.contains("not found in PATH"), "{error}");
        let error = fake("echo HAProxy version 2.5.14 2023/05/02").expect_err("too old");
        assert!(error.contains("2.5.14; accepted: 2.6 or newer"), "{error}");
        assert!(fake("echo something else").expect_err("other").contains("prints no version"));
        assert_eq!(fake("echo HAProxy version 3.0.1 2024/06/10").expect("new enough").version, "3.0.1");
    }
}
