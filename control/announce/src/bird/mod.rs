//! Runs a private BIRD 2: [`config`] generates its configuration, [`process`] starts and stops it, [`control`] sends
//! commands, [`replies`] parses the answers, and [`Bird`] combines them.
//!
//! Its files are in one directory that only this gateway uses. A BIRD that the system runs is not touched.
//!
//! BIRD does nothing else while it reads a configuration, which takes some seconds if the configuration is large and
//! the machine busy. It keeps its sessions meanwhile, and is then given the latest configuration.
//!
//! Invariant: a BIRD that does not answer is killed, because it could still be announcing withdrawn routes.

pub mod config;
pub mod control;
pub mod process;
pub mod replies;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidegate_events::{Event, Field, Reason};
use tidegate_host::{atomic_file, child};

use self::config::Files;
use self::control::Request;
use self::process::Process;
use self::replies::{Protocols, SessionState};

/// How long BIRD may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long BIRD may take to read its configuration while routes are to be announced: killing it would withdraw all of
/// them.
const READ_MAX: Duration = Duration::from_secs(30);
/// How long each call waits for BIRD to finish reading its configuration. The thread has other work to do.
const READ_WAIT: Duration = Duration::from_millis(200);
/// How long a new BIRD may take to open its socket.
const START_MAX: Duration = Duration::from_secs(10);
/// How often BIRD is queried for its sessions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait before BIRD is asked again to restart a session that it has disabled.
const REENABLE_PAUSE: Duration = Duration::from_secs(5);

/// The BIRD of the gateway.
#[derive(Debug)]
pub struct Bird {
    directory: PathBuf,
    /// The latest files.
    wanted: Files,
    /// Whether the latest files are on disk.
    is_written: bool,
    program: PathBuf,
    /// Whether sessions recover gracefully when BIRD has crashed.
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
    /// Whether it has answered yet.
    is_up: bool,
    /// The files that it has loaded.
    applied: Files,
    /// The files that it is loading.
    reading: Option<Reading>,
    poll_at: Instant,
    /// When it may be asked again to restart a session that it has disabled.
    reenable_at: Instant,
    /// Whether it must reload its configuration to restart such a session.
    must_reload: bool,
}

/// A reload that BIRD has not confirmed yet.
#[derive(Debug)]
struct Reading {
    request: Request,
    files: Files,
    since: Instant,
}

impl Running {
    fn new(process: Process, applied: Files, now: Instant) -> Self {
        let (is_up, reading, must_reload) = (false, None, false);
        Self { process, since: now, is_up, applied, reading, poll_at: now, reenable_at: now, must_reload }
    }

    /// Whether it has loaded these files and is not loading others.
    fn has(&self, files: &Files) -> bool {
        self.is_up && self.reading.is_none() && self.applied == *files
    }
}

impl Bird {
    /// Prepares the directory, and kills a BIRD that an earlier gateway left behind.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(directory: &Path) -> io::Result<Self> {
        create_directory(directory)?;
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

    /// Sets the files, and applies them if BIRD runs. Returns whether BIRD has loaded them.
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
        // Replacing the files during a reload would make BIRD read some old and some new ones.
        let reads = self.running.as_ref().is_some_and(|running| running.reading.is_some());
        // A new BIRD would read the old files, so it must not start before the new ones are written.
        if !self.is_written && !reads && self.may_start(now) {
            if let Err(error) = self.write() {
                self.fail(format!("cannot write the configuration of BIRD: {error}"));
                // The running BIRD would keep announcing withdrawn routes.
                self.kill(now);
                return false;
            }
            self.is_written = true;
        }
        if !self.is_written && !reads {
            return false;
        }
        self.watch(now);
        self.configure(now);
        self.running.as_ref().is_some_and(|running| running.has(&self.wanted))
    }

    /// Whether the pause after the last failure, if any, is over.
    fn may_start(&self, now: Instant) -> bool {
        self.running.is_some() || self.start_at.is_none_or(|at| at <= now)
    }

    /// Detects that BIRD has exited, and starts it if it is not running and may start.
    fn watch(&mut self, now: Instant) {
        let ended = self.running.as_mut().and_then(|running| running.process.ended());
        if let Some(how) = ended {
            let said = self.running.as_ref().and_then(|running| running.process.last_line());
            let said = said.map(|line| format!(": {line}")).unwrap_or_default();
            self.fail(format!("BIRD ended ({how}){said}"));
            self.terminated(now);
        }
        if self.running.is_some() || !self.may_start(now) {
            return;
        }
        let is_restart = self.starts > 0;
        match Process::start(&self.program, &self.directory, is_restart && self.recovers) {
            Ok(process) => {
                tracing::debug!(pid = process.pid(), "started a BIRD process");
                tidegate_events::record(Event::of_gateway(Reason::BirdStarted, "BIRD started"));
                self.starts += 1;
                self.restarts += u64::from(is_restart);
                self.running = Some(Running::new(process, self.wanted.clone(), now));
            }
            Err(error) => {
                let program = self.program.display();
                self.fail(format!("cannot start BIRD ({program}): {error}; its Debian package is bird2"));
                self.terminated(now);
            }
        }
    }

    /// Makes BIRD load the latest files if it hasn't yet.
    fn configure(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if running.reading.is_none() {
            if running.has(&self.wanted) && !running.must_reload {
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
            match Request::send(&socket, "configure", ANSWER_MAX) {
                Ok(request) => {
                    let files = self.wanted.clone();
                    (running.reading, running.must_reload) =
                        (Some(Reading { request, files, since: now }), false);
                }
                Err(error) => return self.not_accepted(&error, now),
            }
        }
        let Some(reading) = &mut running.reading else { return };
        let waited = now.saturating_duration_since(reading.since);
        match reading.request.reply(READ_WAIT) {
            Ok(Some(reply)) if reply.is_accepted() => {
                running.applied = std::mem::take(&mut reading.files);
                (running.reading, running.is_up) = (None, true);
                if self.last_error.take().is_some() {
                    tracing::info!("BIRD loaded the configuration");
                }
            }
            Ok(Some(reply)) => {
                let text = reply.text();
                self.fail(format!("BIRD rejected its configuration: {text}"));
                self.kill(now);
            }
            Ok(None) => {
                // If nothing is to be announced, a BIRD that may still be announcing something must be killed.
                let may_announce = running.applied.has_routes() || reading.files.has_routes();
                let is_to_end = may_announce && !self.wanted.has_routes();
                let limit = if is_to_end { ANSWER_MAX } else { READ_MAX };
                if waited >= limit {
                    self.fail(format!("BIRD has not read its configuration within {limit:?}"));
                    self.kill(now);
                } else if waited >= ANSWER_MAX {
                    self.record_slow_load();
                }
            }
            Err(error) => {
                running.reading = None;
                self.not_accepted(&error, now);
            }
        }
    }

    /// Kills a BIRD that did not accept its configuration, unless it may still be starting.
    fn not_accepted(&mut self, error: &io::Error, now: Instant) {
        let running = self.running.as_ref().filter(|running| !running.is_up);
        if running.is_none_or(|running| now.saturating_duration_since(running.since) >= START_MAX) {
            self.fail(format!("BIRD does not answer: {error}"));
            self.kill(now);
        }
    }

    /// Makes the next [`Self::poll`] query the sessions.
    pub fn poll_soon(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.poll_at = running.poll_at.min(now);
        }
    }

    /// The sessions, if a query is due.
    pub fn poll(&mut self, now: Instant) -> Option<Protocols> {
        let running = self.running.as_mut().filter(|one| one.is_up && one.reading.is_none())?;
        if running.poll_at > now {
            return None;
        }
        running.poll_at = now + POLL_INTERVAL;
        if now.saturating_duration_since(running.since) >= child::STABLE {
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
        let sessions = control::query(&socket, "show protocols all", ANSWER_MAX)?;
        let bfd = control::query(&socket, "show bfd sessions", ANSWER_MAX)?;
        let protocols = Protocols::read(&sessions, &bfd);
        // BIRD disables a session for good if it cannot listen for the peer, because another program uses the port or
        // the address is missing. Reloading the configuration enables the session again.
        if let Some(running) = &mut self.running
            && running.reenable_at <= now
            && protocols.sessions.values().any(|session| session.state == SessionState::Down)
        {
            running.reenable_at = now + REENABLE_PAUSE;
            running.must_reload = true;
        }
        Ok(protocols)
    }

    /// Whether BIRD runs and has answered.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_up)
    }

    /// How often BIRD was restarted.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Why BIRD does not work, if it does not.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Stops BIRD, which closes the sessions with a notification, so that peers withdraw all routes at once.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.process.stop();
            tracing::info!("BIRD stopped");
        }
        self.start_at = None;
        self.starts = 0;
        (self.wanted, self.is_written) = (Files::default(), false);
        for name in config::NAMES {
            // The main file contains the passwords of the sessions.
            let _ = fs::remove_file(self.directory.join(name));
        }
    }

    fn kill(&mut self, now: Instant) {
        if let Some(running) = self.running.take() {
            running.process.kill();
        }
        self.terminated(now);
    }

    fn terminated(&mut self, now: Instant) {
        self.running = None;
        // The files may be missing because somebody removed them, so the next BIRD gets new files.
        self.is_written = false;
        self.start_at = Some(now + child::pause_after(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    fn fail(&mut self, why: String) {
        if self.last_error.as_ref() != Some(&why) {
            record_failure(&why);
        }
        self.last_error = Some(why);
    }

    /// Records that the latest configuration is delayed.
    fn record_slow_load(&mut self) {
        if self.last_error.is_none() {
            tracing::warn!("BIRD is slow to load its configuration; route changes are delayed");
            let why = "BIRD is slow to load its configuration; its routes are out of date";
            self.last_error = Some(why.to_owned());
        }
    }

    /// Replaces every file atomically, so that BIRD never reads an incomplete one.
    fn write(&self) -> io::Result<()> {
        let mut files = self.wanted.each();
        files.try_for_each(|(name, text)| {
            atomic_file::replace(&self.directory.join(name), |out| out.write_all(text.as_bytes())).map(drop)
        })
    }
}

/// Creates the directory for BIRD's files if it does not exist.
fn create_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A configuration for tests.
/// Records that nothing is announced by BGP, with the reason.
pub(crate) fn record_failure(why: &str) {
    let message = "BIRD does not work, so nothing is announced by BGP; trying again";
    tidegate_events::record(Event::of_gateway(Reason::BirdFailed, message).text(Field::Reason, why));
}

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
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use tidegate_model::objects::RouteAttributes;

    use super::*;
    use crate::routes::Routes;

    const NO_BIRD: &str = "there-is-no-such-bird";

    /// The files for this VIP.
    fn files(vip: &str) -> Files {
        files_of(&[(vip.parse().unwrap(), RouteAttributes::default())].into())
    }

    fn files_of(routes: &Routes) -> Files {
        Files::of(&without_peers("bird"), &[], (routes, &BTreeSet::new()), &config::Waiting::new())
    }

    /// A BIRD that runs with these files, and its socket, where the test answers.
    fn running(directory: &Path, has: &Files, now: Instant) -> (Bird, UnixListener) {
        let mut bird = Bird::open(directory).unwrap();
        let listener = UnixListener::bind(directory.join(process::SOCKET)).unwrap();
        // It ends when its standard input closes, at the latest with this process.
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let running = Running::new(Process::of(child), has.clone(), now);
        bird.running = Some(Running { is_up: true, ..running });
        (bird.wanted, bird.is_written) = (has.clone(), true);
        (bird, listener)
    }

    fn apply(bird: &mut Bird, wanted: &Files, now: Instant) -> bool {
        bird.apply(wanted, Path::new(NO_BIRD), false, now)
    }

    /// Applies until BIRD's answer has been read, which may take several calls on a busy machine.
    fn apply_until_read(bird: &mut Bird, wanted: &Files, now: Instant) -> bool {
        loop {
            let is_applied = apply(bird, wanted, now);
            if bird.running.as_ref().is_none_or(|running| running.reading.is_none()) {
                return is_applied;
            }
        }
    }

    #[test]
    fn a_bird_that_loads_slowly_keeps_running_and_then_gets_the_latest_files() {
        let at = tempfile::tempdir().unwrap();
        let directory = at.path().join("bird");
        let start = Instant::now();
        let [one, two, three] = ["203.0.113.1/32", "203.0.113.2/32", "203.0.113.3/32"].map(files);
        let (mut bird, listener) = running(&directory, &one, start);
        let written = || fs::read_to_string(directory.join("vips4.conf")).unwrap();
        let answer = || {
            let (mut stream, _) = listener.accept().unwrap();
            let text = "0001 BIRD ready.\n0002-Reading\n0003 Reconfigured\n";
            io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
        };
        assert!(!apply(&mut bird, &two, start));
        assert!(bird.poll(start).is_none() && bird.is_up(), "it answers no other command");
        assert_eq!(bird.last_error(), None);
        let late = start + READ_MAX - Duration::from_millis(1);
        assert!(!apply(&mut bird, &three, late) && bird.is_up());
        assert!(bird.last_error().is_some_and(|why| why.contains("is slow")), "{bird:?}");
        assert!(written().contains("203.0.113.2/32"), "it may be reading the files");
        assert!(!apply(&mut bird, &one, late) && bird.is_up(), "it had these, but is loading the second");
        answer();
        assert!(!apply_until_read(&mut bird, &three, late), "it has loaded the second");
        assert_eq!(bird.last_error(), None);
        assert!(!apply(&mut bird, &three, late));
        assert!(written().contains("203.0.113.3/32"));
        answer();
        assert!(apply_until_read(&mut bird, &three, late));
        bird.stop();
    }

    #[test]
    fn a_bird_that_never_finishes_loading_is_killed_sooner_without_routes() {
        let [one, two] = ["203.0.113.1/32", "203.0.113.2/32"].map(files);
        let none = files_of(&Routes::new());
        let cases = [(&one, &two, READ_MAX), (&one, &none, ANSWER_MAX), (&none, &none, READ_MAX)];
        for (has, wanted, limit) in cases {
            let at = tempfile::tempdir().unwrap();
            let start = Instant::now();
            let (mut bird, _listener) = running(&at.path().join("bird"), has, start);
            // BIRD has disabled a session.
            bird.running.as_mut().unwrap().must_reload = true;
            assert!(!apply(&mut bird, has, start) && bird.is_up());
            assert!(!apply(&mut bird, wanted, start + limit - Duration::from_millis(1)) && bird.is_up());
            assert!(!apply(&mut bird, wanted, start + limit) && !bird.is_up());
            assert!(bird.last_error().is_some_and(|why| why.contains("has not read")), "{bird:?}");
        }
    }

    #[test]
    fn a_new_bird_starts_only_with_the_latest_files() {
        let at = tempfile::tempdir().unwrap();
        let directory = at.path().join("bird");
        let mut bird = Bird::open(&directory).unwrap();
        let none = Path::new(NO_BIRD);
        let written = || fs::read_to_string(directory.join("vips4.conf")).unwrap_or_default();
        let mut now = Instant::now();
        bird.apply(&files("203.0.113.1/32"), none, false, now);
        assert!(written().contains("203.0.113.1/32"), "{bird:?}");

        // Writing fails, like on a full file system.
        let beside = directory.join("vips4.conf.new");
        fs::create_dir(&beside).unwrap();
        let wanted = files("203.0.113.2/32");
        now += child::PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(bird.last_error().is_some_and(|why| why.contains("cannot write")), "{bird:?}");
        fs::remove_dir(&beside).unwrap();
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.1/32"), "a pause follows each failure");
        now += child::PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.2/32"), "{bird:?}");
        assert!(bird.last_error().is_some_and(|why| why.contains("cannot start BIRD")), "{bird:?}");

        fs::remove_dir_all(&directory).unwrap();
        now += child::PAUSE_MAX;
        bird.apply(&wanted, none, false, now);
        assert!(written().contains("203.0.113.2/32"), "the removed files are written again");
    }
}
