//! Watches a directory: inotify reports that something changed, and a refresh determines what.
//!
//! Events only wake the thread. The refresh reads the directory itself, so lost or merged events, atomic renames and a
//! ConfigMap's swap of `..data` need no special handling. A refresh also runs every few seconds without an event, for
//! changes that inotify can't report: targets of links outside of the directory, an overflowing queue, a replaced
//! directory.
//!
//! The directory may be on a mount whose server doesn't respond. The thread then hangs in the kernel: [`Reading`] shows
//! for how long, and ending the watch doesn't wait for it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::watch;

use super::files::Files;
use crate::{Kinds, SourceUpdate, slices};

/// When the directory is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// After each change, and at a reload.
    Followed,
    /// Only at a reload.
    AtReload,
}

/// Changes are combined until none has followed for this time.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// The maximum time for which changes are combined.
const DEBOUNCE_MAX: Duration = Duration::from_secs(1);
/// The interval of refreshes without an event.
const RESCAN: Duration = Duration::from_secs(3);
/// The maximum wait for the thread to end.
const END_MAX: Duration = Duration::from_millis(500);
const END_POLL: Duration = Duration::from_millis(2);

/// A watched directory. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watch {
    updates: watch::Receiver<SourceUpdate>,
    wake: Sender<Wake>,
    reading: Reading,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread of a [`Watch`] is currently reading the directory, and since when.
#[derive(Debug, Clone, Default)]
pub struct Reading(Arc<Mutex<Option<Instant>>>);

impl Reading {
    /// How long the current read has taken; `None` if there is none.
    #[must_use]
    pub fn takes(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

impl Watch {
    /// Shows whether the directory is currently being read, and for how long.
    #[must_use]
    pub fn reading(&self) -> Reading {
        self.reading.clone()
    }

    /// A receiver of the newest state. `changed().await` waits for the next one. A slow receiver sees only the newest
    /// state.
    pub fn updates(&self) -> watch::Receiver<SourceUpdate> {
        self.updates.clone()
    }

    /// Reads the directory again (SIGHUP).
    pub fn reload(&self) {
        // The thread ends only with this value, so the channel is open.
        let _ = self.wake.send(Wake::Changed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.wake.send(Wake::Stop);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + END_MAX;
        while !thread.is_finished() {
            if Instant::now() >= until {
                tracing::warn!(
                    "the directory of manifests does not respond: stopping without waiting for the thread that reads it"
                );
                return;
            }
            std::thread::sleep(END_POLL);
        }
        // The panic hook has already reported a panic of the thread.
        let _ = thread.join();
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
    kinds: Kinds,
) -> io::Result<Watch> {
    let (wake, woken) = channel();
    let mut files = Files::new(path, loss_grace, kinds);
    let mut notifier = (changes == Changes::Followed).then(|| Notifier::new(wake.clone()));
    // Start the watch before the read, so that no change between the two is missed.
    if let Some(notifier) = &mut notifier {
        notifier.ensure(path);
    }
    files.refresh();
    let (sender, updates) = watch::channel(update(&files, endpoint_slices_mib, 1, Instant::now()));
    let reading = Reading::default();
    let of_thread = reading.clone();
    let run = move || follow(&mut files, endpoint_slices_mib, notifier.as_mut(), &woken, &sender, &of_thread);
    let thread = std::thread::Builder::new().name("tidegate-source".to_owned()).spawn(run)?;
    Ok(Watch { updates, wake, reading, thread: Some(thread) })
}

/// The thread's main function: waits, refreshes, publishes.
fn follow(
    files: &mut Files,
    endpoint_slices_mib: u32,
    mut notifier: Option<&mut Notifier>,
    woken: &Receiver<Wake>,
    sender: &watch::Sender<SourceUpdate>,
    reading: &Reading,
) {
    let mut revision = 1;
    loop {
        let (reload, seen) = match woken.recv_timeout(RESCAN) {
            Ok(Wake::Changed) => {
                let seen = Instant::now();
                if !debounce(woken, seen) {
                    return;
                }
                (true, seen)
            }
            Err(RecvTimeoutError::Timeout) => (false, Instant::now()),
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        };
        reading.set(Some(Instant::now()));
        let changed = match &mut notifier {
            Some(notifier) => {
                notifier.ensure(files.root());
                files.refresh()
            }
            None if reload => files.refresh(),
            // The grace time of lost files also ends without a reload.
            None => files.expire(),
        };
        reading.set(None);
        if changed {
            revision += 1;
            sender.send_replace(update(files, endpoint_slices_mib, revision, seen));
        }
    }
}

/// Waits until there has been no change for [`DEBOUNCE`]. Returns false if the watch should stop.
fn debounce(woken: &Receiver<Wake>, seen: Instant) -> bool {
    loop {
        let remaining = DEBOUNCE_MAX.saturating_sub(seen.elapsed());
        match woken.recv_timeout(DEBOUNCE.min(remaining)) {
            Ok(Wake::Changed) if remaining.is_zero() => return true,
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
        gateways_unknown: false,
        report: Arc::new(report),
        faults_of_namespaces: Arc::default(),
        stale: files.stale().into(),
        refused: refused.into(),
        slices_left_out,
        seen,
    }
}

/// The inotify watch. It is created again if the directory was replaced or could not be watched.
struct Notifier {
    wake: Sender<Wake>,
    /// The watcher, with the device and inode of the watched directory.
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

    /// `None` if the directory can't be watched. The periodic refresh continues, and tries again.
    fn watch(&self, path: &Path) -> Option<notify::RecommendedWatcher> {
        let wake = self.wake.clone();
        let handler = move |event: notify::Result<notify::Event>| {
            // Reading a file doesn't change it, and our own reads must not wake the thread.
            if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
                let _ = wake.send(Wake::Changed);
            }
        };
        let mut watcher = notify::recommended_watcher(handler).ok()?;
        watcher.watch(path, RecursiveMode::Recursive).ok()?;
        Some(watcher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_a_watch_does_not_wait_for_a_hanging_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut watch = start(directory.path(), Changes::Followed, Duration::ZERO, 1, Kinds::default())
            .expect("a thread");
        let (release, hangs) = channel::<()>();
        let thread = watch.thread.replace(std::thread::spawn(move || {
            let _ = hangs.recv();
        }));
        let (done, waits) = channel();
        std::thread::spawn(move || {
            drop(watch);
            done.send(())
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("the end waited for the thread");
        drop(release);
        thread.expect("it was started").join().expect("it was requested to end");
    }
}
