//! When the last objects go to disk: soon after a change, not too often, and at the end.
//!
//! Used by the hub, which has the objects. Writing is done by `disk` on a thread of its own, one at a time; here is
//! decided when. Without a state directory nothing is ever due.

use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Tuning;
use super::disk::{Contents, Disk};

/// See the module.
#[derive(Debug)]
pub(super) struct Saver {
    disk: Option<Disk>,
    tuning: Tuning,
    started: Instant,
    /// Since when the disk is behind, and when it was last written.
    unsaved: Option<Instant>,
    saved: Option<Instant>,
    under_way: Option<JoinHandle<()>>,
}

/// Who the thread gives way to.
enum Haste {
    /// All others: a file of 100,000 endpoints takes a large part of a second, and where the control plane has one
    /// CPU, changes would wait for it.
    None,
    /// Nobody: the process ends, and waits for it.
    Last,
}

impl Saver {
    pub(super) fn new(disk: Option<Disk>, tuning: Tuning, now: Instant) -> Self {
        Self { disk, tuning, started: now, unsaved: None, saved: None, under_way: None }
    }

    /// The disk is behind.
    pub(super) fn changed(&mut self, now: Instant) {
        self.unsaved.get_or_insert(now);
    }

    /// When there is something to do, while everything is listed. `connected`: whether what is on disk can be
    /// confirmed.
    pub(super) fn due(&self, connected: bool) -> Option<Instant> {
        self.disk.as_ref()?;
        let at = self.when(connected)?;
        // While a save is under way its end is looked for with the next thing that happens.
        let is_busy = self.under_way.as_ref().is_some_and(|thread| !thread.is_finished());
        Some(if is_busy { at.max(Instant::now() + self.tuning.save_settle) } else { at })
    }

    fn when(&self, connected: bool) -> Option<Instant> {
        match (self.unsaved, self.saved) {
            (Some(unsaved), None) => Some(unsaved + self.tuning.save_settle),
            (Some(unsaved), Some(saved)) => {
                Some((unsaved + self.tuning.save_settle).max(saved + self.tuning.save_interval))
            }
            (None, saved) => {
                let since = saved.unwrap_or(self.started);
                connected.then_some(since + self.tuning.confirm_interval)
            }
        }
    }

    /// Writes what changed if it is due, or notes that what is on disk is still right.
    pub(super) fn save(&mut self, connected: bool, now: Instant, contents: impl FnOnce() -> Contents) {
        if self.under_way.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.under_way = None;
        let Some(disk) = self.disk.clone() else { return };
        let Some(at) = self.when(connected).filter(|at| *at <= now) else { return };
        tracing::trace!(late = ?now.duration_since(at), "the disk is due");
        self.saved = Some(now);
        self.under_way = if self.unsaved.take().is_some() {
            let contents = contents();
            in_background(Haste::None, move || write(&disk, &contents))
        } else {
            in_background(Haste::None, move || {
                // Without a file there was a warning already.
                let _ = disk.confirm();
            })
        };
    }

    /// Writes what has not been written, whenever it was to be due; `done` hears of the end of it.
    pub(super) fn finish(
        &mut self,
        connected: bool,
        contents: impl FnOnce() -> Contents,
        done: oneshot::Sender<()>,
    ) {
        let Some(disk) = self.disk.clone() else { return };
        let before = self.under_way.take();
        let contents = self.unsaved.take().map(|_| contents());
        self.under_way = in_background(Haste::Last, move || {
            if let Some(before) = before {
                // A panic there is no reason not to write here.
                let _ = before.join();
            }
            match contents {
                Some(contents) => write(&disk, &contents),
                None if connected => {
                    let _ = disk.confirm();
                }
                None => {}
            }
            // Whoever asked may have gone.
            let _ = done.send(());
        });
    }
}

fn write(disk: &Disk, contents: &Contents) {
    if let Err(error) = disk.write(contents) {
        tracing::warn!("{}: the last objects are not saved: {error}", disk.path().display());
    }
}

fn in_background(haste: Haste, task: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let run = move || {
        if matches!(haste, Haste::None) {
            // On Linux this is the thread's own.
            let _ = rustix::process::setpriority_process(None, 19);
        }
        task();
    };
    let thread = std::thread::Builder::new().name("tg-disk".to_owned()).spawn(run);
    thread.inspect_err(|error| tracing::warn!("the last objects are not saved: no thread: {error}")).ok()
}
