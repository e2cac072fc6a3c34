//! Ownership of VIPs by keepalived's VRRP: reads its notifications, and grants the VIPs of each group whose master is
//! this machine.
//!
//! keepalived writes a line for each change of a group to a FIFO (`notify_fifo`): `INSTANCE "name" MASTER 100`, or
//! `GROUP` instead of `INSTANCE`. It also runs `tidegate vrrp-check` at least once a second (`vrrp_script`). Each check
//! extends the gateway's ownership by the heartbeat timeout, counted from the time when the command was started. So the
//! gateway owns nothing if keepalived is not running, or after the gateway itself was paused; and keepalived releases
//! its groups when the gateway cannot forward, because the check then fails.
//!
//! keepalived reports only changes. A gateway that has just started, or whose keepalived has reopened the FIFO, does
//! not know the states. Its checks then fail for [`UNKNOWN_MAX`], so that keepalived changes the states and reports
//! them.
//!
//! A gateway that was cut off does not take over a group before it has the flows of its peers: while keepalived has no
//! group in state master or backup, the gateway's checks fail until then. If keepalived already considers it healthy,
//! checks keep passing.
//!
//! Invariant: lines that were written before a check started are applied before that check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tidegate_dataplane::punt::vrrp::Advertised;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_model::config::VrrpConfig;
use tidegate_policy::reconcile::owner_key;
use tidegate_spec::ownership::{BootTime, Ownership};
use tokio::task::AbortHandle;

use super::vrrp_faults::{GroupState, Reported, faults};

/// How long checks fail while no group's state is known.
const UNKNOWN_MAX: Duration = Duration::from_secs(5);
/// The longest line that is read; keepalived writes less than 300 bytes.
const LINE_MAX: usize = 1024;
/// The start of a line about a `vrrp_instance`.
const INSTANCE: &str = "INSTANCE ";
/// How many `vrrp_instance`s that are not in our configuration are remembered.
const STRANGERS_MAX: usize = 16;
/// The pause before retrying a FIFO that cannot be opened.
const RETRY: Duration = Duration::from_secs(1);

/// The groups, without I/O.
#[derive(Debug)]
struct Groups {
    states: BTreeMap<String, GroupState>,
    /// Since when each group has been in its state.
    since: BTreeMap<String, BootTime>,
    /// The `vrrp_instance`s that keepalived reports and that are not in our configuration; at most [`STRANGERS_MAX`].
    strangers: BTreeSet<String>,
    timeout: Duration,
    /// The start of the latest check.
    last_check: BootTime,
    /// Since when the state of every group has been unknown, if it is.
    unknown_since: Option<BootTime>,
    /// When a check arrived after such a long silence that another gateway may have been the master meanwhile.
    paused: Option<BootTime>,
}

impl Groups {
    fn new(config: &VrrpConfig, now: BootTime) -> Self {
        let states = config.groups.iter().map(|name| (name.clone(), GroupState::Unknown)).collect();
        let since = config.groups.iter().map(|name| (name.clone(), now)).collect();
        let (timeout, last_check) = (config.heartbeat_timeout, BootTime(0));
        Self {
            states,
            since,
            strangers: BTreeSet::new(),
            timeout,
            last_check,
            unknown_since: Some(now),
            paused: None,
        }
    }

    /// Applies a line of keepalived. Returns whether it changed one of our groups.
    fn line(&mut self, line: &str, now: BootTime) -> bool {
        let Some((name, state)) = parse(line) else {
            tracing::debug!(line, "ignored a line from keepalived");
            return false;
        };
        let Some(known) = self.states.get_mut(name) else {
            if line.starts_with(INSTANCE) && self.strangers.len() < STRANGERS_MAX {
                self.strangers.insert(name.to_owned());
            }
            return false;
        };
        self.unknown_since = None;
        if *known == state {
            return false;
        }
        let reason = match (&state, &*known) {
            (GroupState::Master, _) => Some(Reason::VipOwned),
            (_, GroupState::Master) => Some(Reason::VipReleased),
            _ => None,
        };
        let message = "keepalived changed the state of a VRRP group";
        match reason {
            Some(reason) => {
                let event = Event::new(reason, ObjectKind::Group, name, message);
                tidegate_events::record(event.text(Field::State, state.shown()));
            }
            None => tracing::info!(group = name, state = state.shown(), "{message}"),
        }
        *known = state;
        self.since.insert(name.to_owned(), now);
        true
    }

    /// Records that no process has the FIFO open: keepalived has exited or is reopening it.
    fn closed(&mut self, now: BootTime) -> bool {
        self.unknown_since.get_or_insert(now);
        self.strangers.clear();
        let known = self.states.iter_mut().filter(|(_, state)| **state != GroupState::Unknown);
        let mut any = false;
        for (name, state) in known {
            *state = GroupState::Unknown;
            self.since.insert(name.clone(), now);
            any = true;
        }
        any
    }

    /// Applies a check that keepalived started at `began`. Returns why it fails, if it does.
    fn check(
        &mut self,
        (began, now): (BootTime, BootTime),
        not_ready: Option<String>,
        is_cut_off: bool,
    ) -> Option<String> {
        // `began` is earlier than `now` if the check waited; a later time would be an error of the caller.
        let began = began.min(now);
        if self.last_check > BootTime(0) && began > self.last_check.plus(self.timeout) {
            self.paused = Some(began);
        }
        self.last_check = self.last_check.max(began);
        // The first checks after a pause may run before flow sharing has noticed the pause.
        if !is_cut_off && self.paused.is_some_and(|at| began > at.plus(self.timeout)) {
            self.paused = None;
        }
        let is_unknown = self.unknown_since.is_some_and(|since| now < since.plus(UNKNOWN_MAX));
        let unknown = is_unknown.then(|| {
            "keepalived has not reported the state of any VRRP group yet; this check fails on purpose, so that \
             keepalived reports its state"
                .to_owned()
        });
        let is_healthy =
            self.states.values().any(|state| matches!(state, GroupState::Master | GroupState::Backup));
        // After a pause, keepalived may be the master only because it did not receive the other's advertisements.
        let behind = (is_cut_off && (!is_healthy || self.paused.is_some()))
            .then(|| "the gateway has not imported the flows of its peers yet".to_owned());
        not_ready.or(behind).or(unknown)
    }

    /// Until when this gateway owns each group.
    fn grants(&self) -> impl Iterator<Item = (&String, BootTime)> {
        self.states.iter().map(|(name, state)| match state {
            GroupState::Master => (name, self.last_check.plus(self.timeout)),
            _ => (name, BootTime(0)),
        })
    }
}

/// The name of a group and its state in a line of keepalived.
fn parse(line: &str) -> Option<(&str, GroupState)> {
    let rest = line.strip_prefix(INSTANCE).or_else(|| line.strip_prefix("GROUP "))?;
    let (name, rest) = rest.strip_prefix('"')?.split_once('"')?;
    let state = match rest.split_whitespace().next()? {
        "MASTER" | "MASTER_RX_LOWER_PRI" => GroupState::Master,
        "BACKUP" => GroupState::Backup,
        "FAULT" | "STOP" | "DELETED" => GroupState::Fault,
        _ => return None,
    };
    Some((name, state))
}

/// Follows keepalived until it is dropped.
#[derive(Debug)]
pub(super) struct Vrrp {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    groups: Mutex<(Groups, Lines)>,
    ownership: Arc<Ownership>,
}

/// The open FIFO, and the start of an incomplete line.
#[derive(Debug, Default)]
struct Lines {
    fifo: Option<File>,
    begun: Vec<u8>,
    /// Whether no process has it open for writing.
    is_closed: bool,
}

impl Vrrp {
    /// Creates the FIFO if it does not exist, and follows it on the runtime of the caller.
    ///
    /// # Errors
    /// If the FIFO cannot be created or opened, or the path is something else.
    pub(super) fn start(config: &VrrpConfig, ownership: Arc<Ownership>) -> io::Result<Self> {
        let fifo = open(&config.fifo)?;
        let groups = Groups::new(config, ownership.now().unwrap_or_default());
        let lines = Lines { fifo: Some(fifo), ..Lines::default() };
        let shared = Arc::new(Shared { groups: Mutex::new((groups, lines)), ownership });
        let task = tokio::spawn(follow(Arc::clone(&shared), config.fifo.clone())).abort_handle();
        Ok(Self { shared, task })
    }

    /// Applies a check that keepalived started at `began`. Returns why it fails, if it does.
    pub(super) fn check(
        &self,
        began: BootTime,
        not_ready: Option<String>,
        is_cut_off: bool,
    ) -> Option<String> {
        let now = self.shared.ownership.now().unwrap_or_default();
        let mut guard = self.shared.lock();
        let (groups, lines) = &mut *guard;
        drain(groups, lines, now);
        let failure = groups.check((began, now), not_ready, is_cut_off);
        self.shared.grant(groups);
        failure
    }

    /// The state of each group, for display.
    pub(super) fn states(&self) -> BTreeMap<String, &'static str> {
        let guard = self.shared.lock();
        guard.0.states.iter().map(|(name, state)| (name.clone(), state.shown())).collect()
    }

    /// What is wrong with the groups, as text for display.
    pub(super) fn faults(&self, advertised: &[Advertised]) -> Vec<String> {
        let guard = self.shared.lock();
        let (groups, lines) = &*guard;
        let now = self.shared.ownership.now().unwrap_or_default();
        let reported = groups.states.iter().map(|(group, &state)| {
            let since = groups.since.get(group).copied().unwrap_or_default();
            Reported { group: group.clone(), state, age: Duration::from_nanos(now.0.saturating_sub(since.0)) }
        });
        faults(&reported.collect::<Vec<_>>(), &groups.strangers, lines.is_closed, advertised)
    }

    /// The task that follows keepalived, to check whether it has ended.
    pub(super) fn task(&self) -> AbortHandle {
        self.task.clone()
    }

    /// Releases all VIPs for good.
    pub(super) fn leave(&self) {
        self.task.abort();
        let mut guard = self.shared.lock();
        let now = self.shared.ownership.now().unwrap_or_default();
        guard.0.closed(now);
        guard.1.fifo = None;
        self.shared.grant(&guard.0);
    }
}

impl Drop for Vrrp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Groups, Lines)> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant(&self, groups: &Groups) {
        for (name, until) in groups.grants() {
            // There are at most 16 groups.
            let _ = self.ownership.grant(owner_key(name), until);
        }
    }
}

/// Applies lines as they arrive. Checks read the same FIFO, so this task only wakes up for what they have not read.
async fn follow(shared: Arc<Shared>, path: std::path::PathBuf) {
    loop {
        // Polls often, because a check may have replaced the FIFO.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = shared.ownership.now().unwrap_or_default();
        let needs_open = {
            let mut guard = shared.lock();
            let (groups, lines) = &mut *guard;
            drain(groups, lines, now);
            shared.grant(groups);
            // A keepalived that created the FIFO removes it on exit.
            lines.fifo.is_none() || lines.is_closed && !is_at(lines.fifo.as_ref(), &path)
        };
        if needs_open {
            match open(&path) {
                Ok(fifo) => shared.lock().1.fifo = Some(fifo),
                Err(error) => {
                    tracing::warn!(fifo = %path.display(), %error, "cannot open the FIFO of keepalived");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Whether the open FIFO is the one at the path.
fn is_at(fifo: Option<&File>, path: &Path) -> bool {
    let open = fifo.and_then(|fifo| rustix::fs::fstat(fifo).ok());
    let there = rustix::fs::stat(path).ok();
    open.zip(there).is_some_and(|(open, there)| (open.st_dev, open.st_ino) == (there.st_dev, there.st_ino))
}

/// Applies all lines that are currently in the FIFO.
fn drain(groups: &mut Groups, lines: &mut Lines, now: BootTime) {
    let mut buffer = [0; 4096];
    loop {
        let Some(mut fifo) = lines.fifo.as_ref() else { return };
        match fifo.read(&mut buffer) {
            // No process has it open for writing.
            Ok(0) => {
                if groups.closed(now) {
                    tracing::warn!(
                        "keepalived closed its FIFO: this gateway no longer owns VIPs of VRRP groups"
                    );
                }
                lines.begun.clear();
                lines.is_closed = true;
                return;
            }
            Ok(read) => {
                lines.is_closed = false;
                apply(groups, &mut lines.begun, &buffer[..read], now);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read the FIFO of keepalived");
                groups.closed(now);
                lines.fifo = None;
                return;
            }
        }
    }
}

fn apply(groups: &mut Groups, begun: &mut Vec<u8>, bytes: &[u8], now: BootTime) {
    for &byte in bytes {
        if byte == b'\n' {
            let line = std::mem::take(begun);
            groups.line(&String::from_utf8_lossy(&line), now);
        } else if begun.len() < LINE_MAX {
            begun.push(byte);
        }
    }
}

/// Opens the FIFO for reading, and creates it if there is nothing at the path.
fn open(path: &Path) -> io::Result<File> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_fifo() => {}
        Ok(_) => {
            let what =
                "it exists and is not a FIFO; accepted: the path of a FIFO, or a path that does not exist";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        Err(_) => {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
    }
    // Without this flag, opening would wait for a writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag of open(2)");
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn groups() -> Groups {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let heartbeat_timeout = Duration::from_secs(3);
        Groups::new(&VrrpConfig { fifo: "/none".into(), groups: names, heartbeat_timeout }, BootTime(SECOND))
    }

    fn until(groups: &Groups, name: &str) -> u64 {
        groups.grants().find(|(one, _)| *one == name).expect("a group").1.0
    }

    #[test]
    fn the_master_of_a_group_owns_it_until_the_timeout_after_a_check() {
        let mut groups = groups();
        assert!(
            groups.line("INSTANCE \"a\" MASTER 100", BootTime(SECOND))
                && groups.line("GROUP \"b\" BACKUP 90", BootTime(SECOND))
        );
        assert_eq!(until(&groups, "a"), 3 * SECOND, "there was no check, so the timeout is long over");
        assert_eq!(groups.check((BootTime(100 * SECOND), BootTime(101 * SECOND)), None, false), None);
        assert_eq!((until(&groups, "a"), until(&groups, "b")), (103 * SECOND, 0));
        // A check that waited while this process was stopped is as old as it is.
        groups.check((BootTime(102 * SECOND), BootTime(200 * SECOND)), None, false);
        assert_eq!(until(&groups, "a"), 105 * SECOND);
        groups.check((BootTime(u64::MAX), BootTime(201 * SECOND)), None, false);
        assert_eq!(until(&groups, "a"), 204 * SECOND, "nor is one from the future");
        assert!(groups.line("INSTANCE \"a\" FAULT 100", BootTime(SECOND)));
        assert_eq!(until(&groups, "a"), 0);
    }

    #[test]
    fn checks_fail_until_a_state_is_known_but_not_forever() {
        let mut groups = groups();
        let fails =
            |groups: &mut Groups, at| groups.check((BootTime(at), BootTime(at)), None, false).is_some();
        assert!(fails(&mut groups, 2 * SECOND));
        assert!(!groups.line("INSTANCE \"other\" MASTER 1", BootTime(SECOND)));
        assert!(fails(&mut groups, 3 * SECOND), "it was about a group of others");
        groups.line("INSTANCE \"a\" FAULT 1", BootTime(SECOND));
        assert!(!fails(&mut groups, 4 * SECOND));
        groups.line("INSTANCE \"a\" MASTER 1", BootTime(SECOND));
        assert!(groups.closed(BootTime(5 * SECOND)), "keepalived is gone");
        assert_eq!(until(&groups, "a"), 0);
        assert!(fails(&mut groups, 6 * SECOND));
        assert!(!fails(&mut groups, 11 * SECOND), "keepalived may have nothing to report");
        let why =
            groups.check((BootTime(12 * SECOND), BootTime(12 * SECOND)), Some("not ready".into()), false);
        assert_eq!(why.as_deref(), Some("not ready"));
    }

    #[test]
    fn a_gateway_that_was_cut_off_takes_over_a_group_after_importing_flows() {
        let mut groups = groups();
        let fails = |groups: &mut Groups, is_cut_off| {
            let at = BootTime(100 * SECOND);
            groups.check((at, at), None, is_cut_off).is_some()
        };
        assert!(fails(&mut groups, true), "it has started");
        for (state, fails_while_behind) in [("FAULT", true), ("BACKUP", false), ("MASTER", false)] {
            groups.line(&format!("INSTANCE \"a\" {state} 100"), BootTime(SECOND));
            assert_eq!(fails(&mut groups, true), fails_while_behind, "{state}");
            assert!(!fails(&mut groups, false), "{state}");
        }
    }

    #[test]
    fn a_paused_gateway_releases_a_group_until_it_has_imported_flows() {
        let mut groups = groups();
        let mut fails = |seconds, is_cut_off| {
            groups.line("INSTANCE \"a\" MASTER 100", BootTime(SECOND));
            let at = BootTime(seconds * SECOND);
            groups.check((at, at), None, is_cut_off).is_some()
        };
        assert!(!fails(100, true), "it was the master the whole time");
        // keepalived was paused as well, and has not received the other master's advertisements.
        assert!(!fails(200, false) && fails(201, true), "the gateway notices the pause later");
        assert!(!fails(202, false), "it has the flows");
        assert!((203..300).all(|second| !fails(second, false)) && !fails(300, true), "the pause is over");
    }

    #[test]
    fn lines_of_keepalived_are_parsed_and_others_change_nothing() {
        for (line, expected) in [
            ("INSTANCE \"a\" MASTER 100", Some(("a", GroupState::Master))),
            ("GROUP \"a b\" STOP 0", Some(("a b", GroupState::Fault))),
            ("INSTANCE \"a\" BACKUP", Some(("a", GroupState::Backup))),
            ("INSTANCE a MASTER 100", None),
            ("INSTANCE \"a\" SOMETHING 100", None),
            ("VS \"a\" UP", None),
            ("", None),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        let (mut groups, mut begun) = (groups(), Vec::new());
        apply(&mut groups, &mut begun, b"INSTANCE \"a\" MAS", BootTime(SECOND));
        apply(&mut groups, &mut begun, b"TER 100\nrubbish\nINSTANCE \"b\" BACKUP 1\n", BootTime(SECOND));
        assert_eq!(
            groups.states.values().copied().collect::<Vec<_>>(),
            [GroupState::Master, GroupState::Backup]
        );
        apply(&mut groups, &mut begun, &[b'x'; 100_000], BootTime(SECOND));
        assert_eq!(begun.len(), LINE_MAX, "memory is bounded");
    }

    #[tokio::test]
    async fn a_fifo_is_created_and_followed_and_its_close_is_detected() {
        use std::io::Write;
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("run/vrrp.fifo");
        let config = VrrpConfig {
            fifo: fifo.clone(),
            groups: vec!["a".to_owned()],
            heartbeat_timeout: Duration::from_secs(60),
        };
        let ownership = Arc::new(Ownership::by(tidegate_host::boot_time));
        let vrrp = Vrrp::start(&config, Arc::clone(&ownership)).expect("it is created");
        let owns = || ownership.owns(owner_key("a"));
        let check = || vrrp.check(ownership.now().expect("a clock"), None, false);
        let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads it");
        writeln!(writer, "INSTANCE \"a\" MASTER 100").expect("it is written");
        assert_eq!(check(), None, "the line was written before the check began");
        assert!(owns());
        drop(writer);
        assert!(check().is_some_and(|why| why.contains("has not reported")));
        assert!(!owns());
        let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads it");
        writeln!(writer, "INSTANCE \"a\" BACKUP 100\nINSTANCE \"a\" MASTER 100").expect("it is written");
        assert_eq!(check(), None);
        assert!(owns());
        vrrp.leave();
        assert!(!owns());
        let taken = directory.path().join("file");
        std::fs::write(&taken, "").expect("it is written");
        let refused = Vrrp::start(&VrrpConfig { fifo: taken, ..config }, Arc::clone(&ownership));
        assert!(refused.is_err_and(|error| error.to_string().contains("not a FIFO")));
    }
}
