//! Watches a directory: inotify reports that something changed, and a refresh finds out what.
//!
//! Events only wake the thread. The refresh reads the directory itself, so lost or merged events, atomic renames and
//! a ConfigMap's swap of `..data` need no special handling. Every few seconds there is also a refresh without an
//! event, for changes that inotify cannot report: targets of links outside of the directory, an overflowing queue, a
//! replaced directory.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::watch;

use super::files::Files;
use crate::{SourceUpdate, slices};

/// When the directory is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// As soon as it changes, and at a reload.
    Followed,
    /// At a reload.
    AtReload,
}

/// Changes are taken together until this long passes without another.
const QUIET: Duration = Duration::from_millis(10);
/// But for no longer than this.
const DEBOUNCE_MAX: Duration = Duration::from_secs(1);
/// The directory is looked at this often without an event.
const RESCAN: Duration = Duration::from_secs(3);

/// A directory being followed. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watch {
    updates: watch::Receiver<SourceUpdate>,
    wake: Sender<Wake>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// The newest state, and by `changed().await` the next one. A receiver that is slow sees only the newest.
    pub fn updates(&self) -> watch::Receiver<SourceUpdate> {
        self.updates.clone()
    }

    /// Looks at the directory now (SIGHUP).
    pub fn reload(&self) {
        // The thread ends only with this value, so somebody listens.
        let _ = self.wake.send(Wake::Changed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.wake.send(Wake::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the hook already.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    Changed,
    Stop,
}

pub(super) fn start(
    path: &Path,
    changes: Changes,
    loss_grace: Duration,
    endpoint_slices_mib: u32,
) -> io::Result<Watch> {
    let (wake, woken) = channel();
    let mut files = Files::new(path, loss_grace);
    let mut notifier = (changes == Changes::Followed).then(|| Notifier::new(wake.clone()));
    // Watch first, then read: a change in between is seen by one of the two.
    if let Some(notifier) = &mut notifier {
        notifier.ensure(path);
    }
    files.refresh();
    let (sender, updates) = watch::channel(update(&files, endpoint_slices_mib, 1, Instant::now()));
    let run = move || follow(&mut files, endpoint_slices_mib, notifier.as_mut(), &woken, &sender);
    let thread = std::thread::Builder::new().name("tidegate-source".to_owned()).spawn(run)?;
    Ok(Watch { updates, wake, thread: Some(thread) })
}

/// The thread: waits, refreshes, publishes.
fn follow(
    files: &mut Files,
    endpoint_slices_mib: u32,
    mut notifier: Option<&mut Notifier>,
    woken: &Receiver<Wake>,
    sender: &watch::Sender<SourceUpdate>,
) {
    let mut revision = 1;
    loop {
        let (reload, seen) = match woken.recv_timeout(RESCAN) {
            Ok(Wake::Changed) => {
                let seen = Instant::now();
                if !settle(woken, seen) {
                    return;
                }
                (true, seen)
            }
            Err(RecvTimeoutError::Timeout) => (false, Instant::now()),
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        };
        let changed = match &mut notifier {
            Some(notifier) => {
                notifier.ensure(files.root());
                files.refresh()
            }
            None if reload => files.refresh(),
            // The grace time of lost files ends between reloads too.
            None => files.expire(),
        };
        if changed {
            revision += 1;
            sender.send_replace(update(files, endpoint_slices_mib, revision, seen));
        }
    }
}

/// Waits until changes pause; false if the watch should stop.
fn settle(woken: &Receiver<Wake>, seen: Instant) -> bool {
    loop {
        let left = DEBOUNCE_MAX.saturating_sub(seen.elapsed());
        match woken.recv_timeout(QUIET.min(left)) {
            Ok(Wake::Changed) if left.is_zero() => return true,
            Ok(Wake::Changed) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn update(files: &Files, endpoint_slices_mib: u32, revision: u64, seen: Instant) -> SourceUpdate {
    let (mut objects, refused, mut report) = files.assemble();
    let slices_left_out = slices::leave_out(&mut objects, endpoint_slices_mib, &mut report);
    SourceUpdate {
        revision,
        objects: Arc::new(objects),
        version: 0,
        keeps_services: false,
        report: Arc::new(report),
        faults_of_namespaces: Arc::default(),
        stale: files.stale().into(),
        refused: refused.into(),
        slices_left_out,
        seen,
    }
}

/// The inotify watch, made again where the directory was replaced or could not be watched.
struct Notifier {
    wake: Sender<Wake>,
    /// With (device, inode) of the directory that it watches.
    watching: Option<(notify::RecommendedWatcher, (u64, u64))>,
}

impl Notifier {
    fn new(wake: Sender<Wake>) -> Self {
        Self { wake, watching: None }
    }

    fn ensure(&mut self, path: &Path) {
        let identity = std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        if self.watching.as_ref().map(|w| w.1) == identity {
            return;
        }
        self.watching = identity.and_then(|identity| Some((self.watch(path)?, identity)));
    }

    /// `None` if it cannot be watched now: the periodic refresh continues, and tries again.
    fn watch(&self, path: &Path) -> Option<notify::RecommendedWatcher> {
        let wake = self.wake.clone();
        let handler = move |event: notify::Result<notify::Event>| {
            // Reading a file is no change of it; our own reading must not wake us.
            if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
                let _ = wake.send(Wake::Changed);
            }
        };
        let mut watcher = notify::recommended_watcher(handler).ok()?;
        watcher.watch(path, RecursiveMode::Recursive).ok()?;
        Some(watcher)
    }
}
