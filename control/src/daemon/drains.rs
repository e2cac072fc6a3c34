//! Saves in a file what operators have drained. After a restart, drained backends and nodes still get no new flows, and
//! a drained gateway still announces nothing.
//!
//! The file has one target per line. [`GATEWAY`] and [`GATEWAY_ANNOTATED`] stand for the gateway itself and cannot be
//! names of targets. The second one counts only until the API server reports the current annotation. The file is
//! `NAME.drained` in the state directory of the source, which survives a reboot, or a file beside the admin socket if
//! there is no state directory. For a directory of manifests, earlier versions always kept it beside the socket: such a
//! file is moved.
//!
//! Invariant: if the file cannot be written or read, or its disk does not answer, the log, [`Drains::trouble`] and the
//! answer to a drain report it, and nothing else stops. The write is retried until it succeeds.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_events::{Event, ObjectKind, Reason};
use tidegate_host::atomic_file;
use tidegate_model::config::{GatewayConfig, SourceConfig};
use tidegate_policy::reconcile::DrainTarget;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// How long a change waits for the disk.
const SAVE_MAX: Duration = Duration::from_secs(2);
/// The pause before a failed write of the file is retried.
const RETRY: Duration = Duration::from_secs(10);

/// The line of the gateway, if the command drains it.
const GATEWAY: &str = "--gateway";
/// The line of the gateway, if the annotation of its `GatewayStatus` drains it.
const GATEWAY_ANNOTATED: &str = "--gateway-annotated";

/// The drained targets, with their file.
#[derive(Debug)]
pub(super) struct Drains {
    targets: BTreeSet<DrainTarget>,
    /// Whether the command drains the gateway itself.
    gateway: bool,
    /// Whether the annotation drains the gateway itself.
    gateway_annotated: bool,
    path: PathBuf,
    /// The error of the file.
    trouble: Option<String>,
    /// When the file must be written by [`Drains::save`].
    write_at: Option<Instant>,
    /// A write that did not finish in time.
    in_progress: Option<JoinHandle<io::Result<()>>>,
}

impl Drains {
    /// Reads the targets that were drained when the previous process of this gateway ended.
    pub(super) fn open(config: &GatewayConfig) -> Self {
        let path = path(config);
        let mut drains = match &config.source {
            SourceConfig::Directory(_) => Self::moved(path, &beside_socket(config)),
            SourceConfig::Kubernetes(_) => Self::read(path),
        };
        // Without an API server, nobody could remove the annotation.
        drains.gateway_annotated &= matches!(config.source, SourceConfig::Kubernetes(_));
        drains
    }

    /// Reads the file. If it does not exist, reads the file that an earlier version left at `before`.
    fn moved(path: PathBuf, before: &Path) -> Self {
        if before == path || path.exists() || !before.exists() {
            return Self::read(path);
        }
        let mut drains = Self { path, ..Self::read(before.to_owned()) };
        if drains.trouble.is_none() {
            let written = write(&drains.path, &drains.text());
            drains.written(written.map_err(|error| error.to_string()));
        }
        // If there was an error, the next start needs the old file.
        if drains.trouble.is_none()
            && let Err(error) = fs::remove_file(before)
        {
            tracing::warn!(path = %before.display(), %error, "cannot remove the previous file of drained targets");
        }
        drains
    }

    fn read(path: PathBuf) -> Self {
        let mut trouble = None;
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                let message = format!(
                    "cannot read the list of drained targets, so no target is drained; drain them again: {}: {error}",
                    path.display()
                );
                tracing::error!("{message}");
                trouble = Some(message);
                String::new()
            }
        };
        let mut targets = BTreeSet::new();
        let (mut gateway, mut gateway_annotated) = (false, false);
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let is_gateway = match text.trim() {
                GATEWAY => Some(&mut gateway),
                GATEWAY_ANNOTATED => Some(&mut gateway_annotated),
                _ => None,
            };
            if let Some(is_drained) = is_gateway {
                *is_drained = true;
                continue;
            }
            match text.trim().parse::<DrainTarget>() {
                Ok(target) => {
                    tracing::info!(%target, "this target is still drained, as before the restart");
                    targets.insert(target);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), line, %error, "ignoring an invalid line of the drain file");
                }
            }
        }
        Self { targets, gateway, gateway_annotated, path, trouble, write_at: None, in_progress: None }
    }

    /// The drained targets.
    pub(super) fn targets(&self) -> &BTreeSet<DrainTarget> {
        &self.targets
    }

    /// Adds a target.
    pub(super) fn insert(&mut self, target: DrainTarget) {
        let event = Event::new(Reason::DrainBegun, ObjectKind::Target, &target.to_string(), "draining");
        if self.targets.insert(target) {
            tidegate_events::record(event);
            self.changed();
        }
    }

    /// Removes a target. Returns whether it was drained.
    pub(super) fn remove(&mut self, target: &DrainTarget) -> bool {
        let was_drained = self.targets.remove(target);
        if was_drained {
            let (name, message) = (target.to_string(), "no longer draining");
            tidegate_events::record(Event::new(Reason::DrainEnded, ObjectKind::Target, &name, message));
            self.changed();
        }
        was_drained
    }

    /// Whether the command drains the gateway itself.
    pub(super) fn gateway(&self) -> bool {
        self.gateway
    }

    /// Whether the annotation of its `GatewayStatus` drains the gateway.
    pub(super) fn gateway_annotated(&self) -> bool {
        self.gateway_annotated
    }

    /// Sets whether the command drains the gateway. Returns whether it did before.
    pub(super) fn set_gateway(&mut self, is_drained: bool) -> bool {
        let before = std::mem::replace(&mut self.gateway, is_drained);
        if before != is_drained {
            self.changed();
        }
        before
    }

    /// Sets whether the annotation drains the gateway.
    pub(super) fn set_gateway_annotated(&mut self, is_drained: bool) {
        if std::mem::replace(&mut self.gateway_annotated, is_drained) != is_drained {
            self.changed();
        }
    }

    /// Why a restart would lose the current targets, as text for display.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When [`Drains::save`] must be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.write_at
    }

    /// Writes the file if it has changed or a retry is due. Waits for the disk up to a time limit.
    pub(super) async fn save(&mut self) {
        if self.write_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        if self.in_progress.as_ref().is_some_and(|before| !before.is_finished()) {
            // The disk hangs, so a second write would not help.
            return self.written(Err("the disk has not answered yet".to_owned()));
        }
        let until = Instant::now() + SAVE_MAX;
        let (path, text) = (self.path.clone(), self.text());
        let mut writing = tokio::task::spawn_blocking(move || write(&path, &text));
        let written = match timeout_at(until, &mut writing).await {
            Ok(Ok(written)) => written.map_err(|error| error.to_string()),
            Ok(Err(panic)) => Err(panic.to_string()),
            Err(_) => {
                self.in_progress = Some(writing);
                Err(format!("the disk has not answered within {} s", SAVE_MAX.as_secs()))
            }
        };
        self.written(written);
    }

    fn changed(&mut self) {
        self.write_at = Some(Instant::now());
    }

    /// Records the result of a write.
    fn written(&mut self, written: Result<(), String>) {
        let trouble = written.err().map(|error| {
            format!(
                "cannot save the list of drained targets; a restart would end these drains: {}: {error}",
                self.path.display()
            )
        });
        self.write_at = trouble.is_some().then(|| Instant::now() + RETRY);
        if trouble != self.trouble {
            match &trouble {
                Some(trouble) => tracing::error!("{trouble}"),
                None => tracing::info!("saved the list of drained targets after an earlier failure"),
            }
            self.trouble = trouble;
        }
    }

    /// The contents of the file.
    fn text(&self) -> String {
        let of_gateway = [(self.gateway, GATEWAY), (self.gateway_annotated, GATEWAY_ANNOTATED)];
        let of_gateway = of_gateway.into_iter().filter(|(is_drained, _)| *is_drained);
        let lines = of_gateway.map(|(_, line)| line.to_owned());
        lines.chain(self.targets.iter().map(ToString::to_string)).map(|line| line + "\n").collect()
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    atomic_file::replace_durably(path, |out| out.write_all(text.as_bytes()))
}

fn path(config: &GatewayConfig) -> PathBuf {
    let directory = config.source.state_directory();
    directory
        .map_or_else(|| beside_socket(config), |directory| directory.join(format!("{}.drained", config.name)))
}

fn beside_socket(config: &GatewayConfig) -> PathBuf {
    config.admin.socket.with_extension("drained")
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn target(text: &str) -> DrainTarget {
        text.parse().expect("a target")
    }

    #[tokio::test]
    async fn drains_survive_a_restart_and_an_invalid_line_affects_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("missing").join("tidegate.drained");
        let mut drains = Drains::read(path.clone());
        assert!(drains.targets().is_empty());
        let all = ["10.0.0.1:80", "2001:db8::1", "node-3"].map(target);
        all.iter().for_each(|target| drains.insert(target.clone()));
        drains.save().await;
        assert_eq!(Drains::read(path.clone()).targets(), &BTreeSet::from(all.clone()));

        assert!(drains.remove(&all[0]) && !drains.remove(&all[0]));
        drains.save().await;
        assert_eq!(Drains::read(path.clone()).targets(), &BTreeSet::from([all[1].clone(), all[2].clone()]));

        fs::write(&path, b"node-3\n\xff\xfe bad\n\n10.0.0.9\n").expect("a file");
        assert_eq!(Drains::read(path).targets(), &BTreeSet::from([target("node-3"), target("10.0.0.9")]));
    }

    #[test]
    fn the_drain_file_is_in_the_state_directory_of_either_source() {
        let file = |source: &str| {
            let text = format!(
                "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {{name: edge}}\n\
                 dataplane: {{cores: [0], interfaces: [{{name: up, device: net_null0, addresses: [10.0.0.1/24]}}]}}\n\
                 source: {source}\n"
            );
            let loaded = tidegate_model::config::parse(&text, "gateway.yaml", Path::new("/etc/tidegate"), 2);
            path(&loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)))
        };
        assert_eq!(file("{directory: {path: m}}"), Path::new("/var/lib/tidegate/edge.drained"));
        assert_eq!(file("{kubernetes: {}}"), Path::new("/var/lib/tidegate/edge.drained"));
        let none = Path::new("/run/tidegate/tidegate.drained");
        assert_eq!(file("{directory: {path: m, stateDirectory: \"\"}}"), none);
    }

    #[test]
    fn the_file_of_an_earlier_version_is_moved_once_it_is_saved_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let (before, state) = (directory.path().join("tidegate.drained"), directory.path().join("state"));
        let path = state.join("edge.drained");
        let all = BTreeSet::from([target("node-3")]);
        fs::write(&before, "node-3\n").expect("ours");
        // A file in place of the state directory makes saving fail.
        fs::write(&state, "").expect("ours");
        let drains = Drains::moved(path.clone(), &before);
        assert_eq!(drains.targets(), &all);
        assert!(drains.trouble().is_some() && before.exists(), "{drains:?}");

        fs::remove_file(&state).expect("ours");
        let drains = Drains::moved(path.clone(), &before);
        assert_eq!((drains.targets(), drains.trouble()), (&all, None));
        assert!(path.exists() && !before.exists());

        fs::write(&before, "node-4\n").expect("ours");
        assert_eq!(Drains::moved(path, &before).targets(), &all, "the file in the state directory counts");
    }

    #[tokio::test]
    async fn a_drain_of_the_gateway_survives_a_restart_with_those_of_targets() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("edge.drained");
        let mut drains = Drains::read(path.clone());
        drains.insert(target("node-3"));
        assert!(!drains.set_gateway(true) && drains.set_gateway(true));
        drains.save().await;
        let again = Drains::read(path.clone());
        assert_eq!((again.gateway(), again.gateway_annotated(), again.targets().len()), (true, false, 1));
        drains.set_gateway_annotated(true);
        assert!(drains.set_gateway(false));
        drains.save().await;
        let again = Drains::read(path.clone());
        assert_eq!((again.gateway(), again.gateway_annotated(), again.targets().len()), (false, true, 1));
        drains.set_gateway_annotated(false);
        drains.save().await;
        assert_eq!(fs::read_to_string(&path).expect("the file"), "node-3\n");
        assert!(GATEWAY.parse::<DrainTarget>().is_err() && GATEWAY_ANNOTATED.parse::<DrainTarget>().is_err());
    }

    #[tokio::test]
    async fn an_unsaved_drain_is_reported_and_saved_as_soon_as_the_disk_allows() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        fs::write(&state, "").expect("ours");
        let path = state.join("edge.drained");
        let mut drains = Drains::read(path.clone());
        assert!(drains.trouble().is_some_and(|message| message.contains("drain them again")), "{drains:?}");
        drains.insert(target("node-3"));
        drains.save().await;
        assert!(
            drains.trouble().is_some_and(|message| message.contains("a restart would end these drains")),
            "{drains:?}"
        );
        fs::remove_file(&state).expect("ours");
        drains.save().await;
        assert!(drains.trouble().is_some(), "not before it is time");
        drains.write_at = Some(Instant::now());
        drains.save().await;
        assert_eq!((drains.trouble(), drains.due()), (None, None));
        assert_eq!(Drains::read(path).targets(), &BTreeSet::from([target("node-3")]));
    }

    #[test]
    fn nothing_waits_for_a_disk_that_does_not_answer() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("edge.drained");
        // Opening a FIFO waits for its reader, like a file on a mount whose server does not answer.
        let fifo = directory.path().join("edge.drained.new");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        let (done, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut drains = Drains::read(path.clone());
                for (node, why) in [("node-1", "not answered within 2 s"), ("node-2", "not answered yet")] {
                    drains.insert(target(node));
                    drains.save().await;
                    assert!(drains.trouble().is_some_and(|message| message.contains(why)), "{drains:?}");
                }
                // It can be opened now, but not flushed to a disk.
                fs::read(&fifo).expect("it is there");
                while drains.trouble().is_some() {
                    drains.write_at = Some(Instant::now());
                    drains.save().await;
                    tokio::task::yield_now().await;
                }
                let all = BTreeSet::from(["node-1", "node-2"].map(target));
                assert_eq!(Drains::read(path).targets(), &all);
            });
            done.send(()).expect("the test waits");
        });
        waits.recv_timeout(Duration::from_secs(120)).expect("a change waited for the disk, or failed");
    }
}
