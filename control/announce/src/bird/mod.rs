//! A BIRD 2 of the gateway's own: [`config`] writes its configuration, [`process`] starts and ends it, [`control`] talks
//! to it, [`replies`] reads its answers, and [`Bird`] puts these together.
//!
//! Its files are in one directory, which only this gateway uses. A BIRD that the system runs is not touched.
//!
//! Invariant: a BIRD that does not answer is killed, because it could keep announcing what was withdrawn.

pub mod config;
pub mod control;
pub mod process;
pub mod replies;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::config::Files;
use self::process::Process;
use self::replies::{Protocols, SessionState};

/// How long BIRD may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long a new BIRD may take until it has a socket.
const START_MAX: Duration = Duration::from_secs(10);
/// The pause after the first failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A BIRD that has run for this time has no failures any more.
const STABLE: Duration = Duration::from_secs(60);
/// The interval of questions about the sessions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before BIRD is told again to begin a session that it has turned off.
const BEGIN_AGAIN: Duration = Duration::from_secs(5);

/// The BIRD of the gateway.
#[derive(Debug)]
pub struct Bird {
    directory: PathBuf,
    /// What BIRD should have.
    wanted: Files,
    /// Whether the files have it.
    is_written: bool,
    program: PathBuf,
    /// Whether a crash must not end the graceful restart of the sessions.
    recovers: bool,
    running: Option<Running>,
    failures: u32,
    /// When the next start is allowed.
    start_at: Option<Instant>,
    /// The number of starts after the first.
    restarts: u64,
    starts: u64,
    last_error: Option<String>,
}

#[derive(Debug)]
struct Running {
    process: Process,
    since: Instant,
    /// Whether it has answered.
    is_up: bool,
    /// What it was given.
    applied: Files,
    poll_at: Instant,
    /// When it may be told again to begin a session that it has turned off.
    begin_at: Instant,
}

impl Bird {
    /// Prepares the directory, and ends a BIRD that an earlier gateway left there.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn open(directory: &Path) -> io::Result<Self> {
        make(directory)?;
        process::end_old(&directory.join(process::PID_FILE), &directory.join(config::MAIN));
        Ok(Self {
            directory: directory.to_owned(),
            wanted: Files::default(),
            is_written: false,
            program: PathBuf::from("bird"),
            recovers: false,
            running: None,
            failures: 0,
            start_at: None,
            restarts: 0,
            starts: 0,
            last_error: None,
        })
    }

    /// Sets what BIRD should have, and applies it if BIRD runs. Returns whether BIRD has it.
    pub fn apply(&mut self, wanted: &Files, program: &Path, recovers: bool, now: Instant) -> bool {
        if self.program != program {
            self.program = program.to_owned();
            self.start_at = None;
        }
        self.recovers = recovers;
        if self.wanted != *wanted {
            self.wanted = wanted.clone();
            self.is_written = false;
        }
        // A new BIRD would read the old files, so it waits for the new ones.
        if !self.is_written && self.may_start(now) {
            if let Err(error) = self.write() {
                self.fail(format!("cannot write the configuration of BIRD: {error}"));
                // The old one would announce what was withdrawn.
                self.kill(now);
                return false;
            }
            self.is_written = true;
        }
        if !self.is_written {
            return false;
        }
        self.watch(now);
        self.configure(now);
        self.running.as_ref().is_some_and(|running| running.is_up && running.applied == self.wanted)
    }

    /// Whether the pause after the last failure is over, if there was one.
    fn may_start(&self, now: Instant) -> bool {
        self.running.is_some() || self.start_at.is_none_or(|at| at <= now)
    }

    /// Starts BIRD if it does not run and may start, and notices its end.
    fn watch(&mut self, now: Instant) {
        let ended = self.running.as_mut().and_then(|running| running.process.ended());
        if let Some(how) = ended {
            let said = self.running.as_ref().and_then(|running| running.process.last_words());
            let said = said.map(|line| format!(": {line}")).unwrap_or_default();
            self.fail(format!("BIRD ended ({how}){said}"));
            self.gone(now);
        }
        if self.running.is_some() || !self.may_start(now) {
            return;
        }
        let is_restart = self.starts > 0;
        match Process::start(&self.program, &self.directory, is_restart && self.recovers) {
            Ok(process) => {
                tracing::info!(pid = process.pid(), "BIRD started");
                self.starts += 1;
                self.restarts += u64::from(is_restart);
                let applied = self.wanted.clone();
                self.running =
                    Some(Running { process, since: now, is_up: false, applied, poll_at: now, begin_at: now });
            }
            Err(error) => {
                let program = self.program.display();
                self.fail(format!("cannot start BIRD ({program}): {error}; it is the Debian package bird2"));
                self.gone(now);
            }
        }
    }

    /// Lets BIRD read a configuration that it does not have yet.
    fn configure(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if running.is_up && running.applied == self.wanted {
            return;
        }
        let socket = self.directory.join(process::SOCKET);
        if !running.is_up && !socket.exists() {
            if now.saturating_duration_since(running.since) > START_MAX {
                self.fail(format!("BIRD has not opened its socket within {START_MAX:?}"));
                self.kill(now);
            }
            return;
        }
        match control::ask(&socket, "configure", ANSWER_MAX) {
            Ok(reply) if reply.is_accepted() => {
                running.is_up = true;
                running.applied = self.wanted.clone();
                if self.last_error.take().is_some() {
                    tracing::info!("BIRD has the configuration");
                }
            }
            Ok(reply) => {
                let text = reply.text();
                self.fail(format!("BIRD refuses its configuration: {text}"));
                self.kill(now);
            }
            Err(_) if !running.is_up && now.saturating_duration_since(running.since) < START_MAX => {}
            Err(error) => {
                self.fail(format!("BIRD does not answer: {error}"));
                self.kill(now);
            }
        }
    }

    /// The sessions, if it is time to ask for them.
    pub fn poll(&mut self, now: Instant) -> Option<Protocols> {
        let running = self.running.as_mut().filter(|running| running.is_up && running.poll_at <= now)?;
        running.poll_at = now + POLL_INTERVAL;
        if now.saturating_duration_since(running.since) >= STABLE {
            self.failures = 0;
        }
        match self.protocols(now) {
            Ok(protocols) => Some(protocols),
            Err(error) => {
                self.fail(format!("BIRD does not answer: {error}"));
                self.kill(now);
                None
            }
        }
    }

    fn protocols(&mut self, now: Instant) -> io::Result<Protocols> {
        let socket = self.directory.join(process::SOCKET);
        let sessions = control::ask(&socket, "show protocols all", ANSWER_MAX)?;
        let bfd = control::ask(&socket, "show bfd sessions", ANSWER_MAX)?;
        let protocols = Protocols::read(&sessions, &bfd);
        // BIRD turns a session off for good if it cannot listen for the peer, because another program has the port or the
        // address is missing. It begins it again when it reads its configuration.
        if let Some(running) = &mut self.running
            && running.begin_at <= now
            && protocols.sessions.values().any(|session| session.state == SessionState::Down)
        {
            running.begin_at = now + BEGIN_AGAIN;
            control::ask(&socket, "configure", ANSWER_MAX)?;
        }
        Ok(protocols)
    }

    /// Whether it runs and has answered.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_up)
    }

    /// How often it was started again.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Why it does not work, if so.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Ends it: the sessions are closed with a notification, so that peers withdraw all routes at once.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.process.stop();
            tracing::info!("BIRD stopped");
        }
        self.start_at = None;
        self.starts = 0;
        (self.wanted, self.is_written) = (Files::default(), false);
        for name in config::NAMES {
            // With the passwords of the sessions.
            let _ = fs::remove_file(self.directory.join(name));
        }
    }

    fn kill(&mut self, now: Instant) {
        if let Some(running) = self.running.take() {
            running.process.kill();
        }
        self.gone(now);
    }

    fn gone(&mut self, now: Instant) {
        self.running = None;
        // The next one may miss its files because somebody has removed them.
        self.is_written = false;
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.start_at = Some(now + pause);
    }

    fn fail(&mut self, why: String) {
        if self.last_error.as_ref() != Some(&why) {
            tracing::error!(reason = why, "BGP: nothing is announced until BIRD works");
        }
        self.last_error = Some(why);
    }

    /// Writes every file as a whole, so that BIRD never reads a part of one.
    fn write(&self) -> io::Result<()> {
        make(&self.directory)?;
        for (name, text) in self.wanted.each() {
            let (path, new) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
            // A file that exists keeps its mode.
            let _ = fs::remove_file(&new);
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
            io::Write::write_all(&mut file, text.as_bytes())?;
            fs::rename(&new, &path)?;
        }
        Ok(())
    }
}

/// Creates the directory of BIRD's files, if it does not exist.
fn make(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A configuration for tests.
#[cfg(test)]
pub(crate) fn without_peers(program: &str) -> tidegate_model::config::BgpConfig {
    tidegate_model::config::BgpConfig {
        asn: 64_512,
        router_id: None,
        peers: Vec::new(),
        aggregates: Vec::new(),
        bfd_interval: Duration::from_millis(300),
        bfd_multiplier: 3,
        program: PathBuf::from(program),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_model::objects::RouteAttributes;

    use super::*;
    use crate::routes::Routes;

    /// The files for this VIP.
    fn files(vip: &str) -> Files {
        let bgp = without_peers("bird");
        let routes: Routes = [(vip.parse().unwrap(), RouteAttributes::default())].into();
        Files::of(&bgp, &[], &routes, &BTreeSet::new())
    }

    #[test]
    fn another_bird_starts_only_with_the_newest_files() {
        let at = tempfile::tempdir().unwrap();
        let directory = at.path().join("bird");
        let mut bird = Bird::open(&directory).unwrap();
        let none = Path::new("there-is-no-such-bird");
        let written = || fs::read_to_string(directory.join("vips4.conf")).unwrap_or_default();
        let mut now = Instant::now();
        bird.apply(&files("203.0.113.1/32"), none, false, now);
        assert!(written().contains("203.0.113.1/32"), "{bird:?}");

        // As on a file system that is full.
        let beside = directory.join("vips4.conf.new");
        fs::create_dir(&beside).unwrap();
        let wanted = files("203.0.113.2/32");
        now += PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(bird.last_error().is_some_and(|why| why.contains("cannot write")), "{bird:?}");
        fs::remove_dir(&beside).unwrap();
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.1/32"), "a pause follows each failure");
        now += PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.2/32"), "{bird:?}");
        assert!(bird.last_error().is_some_and(|why| why.contains("cannot start BIRD")), "{bird:?}");

        fs::remove_dir_all(&directory).unwrap();
        now += PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.2/32"), "somebody had removed the files");
    }
}
