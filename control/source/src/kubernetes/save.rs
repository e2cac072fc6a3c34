//! Decides when the last known objects are saved to disk: soon after a change, not too often, and at shutdown.
//!
//! Used by the hub, which stores the objects. `disk` writes on a separate thread, one file at a time. Without a state
//! directory nothing is saved.
//!
//! Invariant: a file that lacks the newest objects is never confirmed as current. A failed save is retried until one
//! succeeds, and [`Saver::failure`] reports the reason meanwhile.

use std::io;
use std::thread::JoinHandle;
use std::time::Instant;

use jiff::Timestamp;
use tidegate_model::time::whole_seconds;
use tokio::sync::oneshot;

use super::disk::{Contents, Disk};
use super::tuning::SaveTimes;

/// Saves the objects to disk.
#[derive(Debug)]
pub(super) struct Saver {
    disk: Option<Disk>,
    times: SaveTimes,
    started: Instant,
    /// When the first unsaved change was received, and when the file was last written.
    unsaved: Option<Instant>,
    saved: Option<Instant>,
    in_progress: Option<JoinHandle<io::Result<Saved>>>,
    /// Why the last save failed, and since when no save has succeeded.
    failed: Option<(String, Timestamp)>,
}

/// The result of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// The file is up to date.
    Right,
    /// The file should have been confirmed, but does not exist.
    Missing,
}

/// The priority of the thread.
enum Priority {
    /// The lowest: writing a file of 100,000 endpoints takes a large part of a second, which would delay changes if the
    /// control plane has only one CPU.
    Lowest,
    /// Normal: the process is about to end and waits for the thread.
    Normal,
}

impl Saver {
    pub(super) fn new(disk: Option<Disk>, times: SaveTimes, now: Instant) -> Self {
        Self { disk, times, started: now, unsaved: None, saved: None, in_progress: None, failed: None }
    }

    /// Records that the objects on disk are outdated.
    pub(super) fn changed(&mut self, now: Instant) {
        self.unsaved.get_or_insert(now);
    }

    /// Why the newest objects are not on disk, since when, and where: for display.
    pub(super) fn failure(&self) -> Option<String> {
        let (why, since) = self.failed.as_ref()?;
        let since = whole_seconds(*since);
        let path = self.disk.as_ref()?.path().display();
        Some(format!("the objects have not been saved to disk since {since}: {path}: {why}"))
    }

    /// Collects the result of a finished save. After a failure the objects count as unsaved.
    fn check(&mut self, now: Instant) {
        let Some(thread) = self.in_progress.take_if(|thread| thread.is_finished()) else { return };
        let ended = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that saves the objects panicked")));
        self.ended(ended, now);
    }

    fn ended(&mut self, ended: io::Result<Saved>, now: Instant) {
        if let Ok(Saved::Right) = ended {
            if let (Some(_), Some(disk)) = (self.failed.take(), &self.disk) {
                tracing::info!(path = %disk.path().display(), "saving the objects to disk works again");
            }
            return;
        }
        self.unsaved.get_or_insert(now);
        let Err(error) = ended else { return };
        let why = error.to_string();
        let since = match self.failed.take() {
            Some((before, since)) if before == why => since,
            before => {
                if let Some(disk) = &self.disk {
                    tracing::warn!(path = %disk.path().display(), error = why, "cannot save the objects to disk");
                }
                before.map_or_else(Timestamp::now, |(_, since)| since)
            }
        };
        self.failed = Some((why, since));
    }

    /// When the next save or confirmation is due, once all kinds are listed. `connected`: whether the objects on disk
    /// can be confirmed.
    pub(super) fn due(&self, connected: bool) -> Option<Instant> {
        self.disk.as_ref()?;
        if self.in_progress.is_some() {
            // Check the result soon, so that a failure is reported early.
            return Some(Instant::now() + self.times.delay);
        }
        self.when(connected)
    }

    fn when(&self, connected: bool) -> Option<Instant> {
        match (self.unsaved, self.saved) {
            (Some(unsaved), None) => Some(unsaved + self.times.delay),
            (Some(unsaved), Some(saved)) => {
                Some((unsaved + self.times.delay).max(saved + self.times.interval))
            }
            (None, saved) => {
                let since = saved.unwrap_or(self.started);
                connected.then_some(since + self.times.confirm_interval)
            }
        }
    }

    /// Saves the changes if a save is due, or confirms that the objects on disk are still current.
    pub(super) fn save(&mut self, connected: bool, now: Instant, contents: impl FnOnce() -> Contents) {
        self.check(now);
        if self.in_progress.is_some() {
            return;
        }
        let Some(disk) = self.disk.clone() else { return };
        let Some(at) = self.when(connected).filter(|at| *at <= now) else { return };
        tracing::trace!(late = ?now.duration_since(at), "saving objects to disk");
        self.saved = Some(now);
        let started = if self.unsaved.take().is_some() {
            let contents = contents();
            in_background(Priority::Lowest, move || written(&disk, &contents))
        } else {
            in_background(Priority::Lowest, move || confirmed(&disk))
        };
        match started {
            Ok(thread) => self.in_progress = Some(thread),
            Err(error) => self.ended(Err(error), now),
        }
    }

    /// Saves all unsaved changes immediately. Sends `done` at the end.
    pub(super) fn finish(
        &mut self,
        connected: bool,
        contents: impl FnOnce() -> Contents,
        done: oneshot::Sender<()>,
    ) {
        let Some(disk) = self.disk.clone() else { return };
        let before = self.in_progress.take();
        // If the save in progress fails, this thread writes everything.
        let is_unsaved = self.unsaved.take().is_some();
        let contents = (is_unsaved || before.is_some()).then(contents);
        let started = in_background(Priority::Normal, move || {
            // A panic of the other thread counts as a failure.
            let is_written = before.is_some_and(|before| matches!(before.join(), Ok(Ok(Saved::Right))));
            let ended = match contents {
                Some(contents) if is_unsaved || !is_written => written(&disk, &contents),
                _ if connected => confirmed(&disk),
                _ => Ok(Saved::Right),
            };
            if let Err(error) = &ended {
                tracing::warn!(path = %disk.path().display(), %error, "cannot save the objects to disk");
            }
            // The caller may no longer be waiting.
            let _ = done.send(());
            ended
        });
        match started {
            Ok(thread) => self.in_progress = Some(thread),
            Err(error) => self.ended(Err(error), Instant::now()),
        }
    }
}

fn written(disk: &Disk, contents: &Contents) -> io::Result<Saved> {
    disk.write(contents).map(|()| Saved::Right)
}

fn confirmed(disk: &Disk) -> io::Result<Saved> {
    match disk.confirm() {
        Ok(()) => Ok(Saved::Right),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Saved::Missing),
        Err(error) => Err(error),
    }
}

fn in_background(
    priority: Priority,
    task: impl FnOnce() -> io::Result<Saved> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<Saved>>> {
    let run = move || {
        if matches!(priority, Priority::Lowest) {
            // On Linux this sets the priority of the calling thread only.
            let _ = rustix::process::setpriority_process(None, 19);
        }
        task()
    };
    std::thread::Builder::new().name("tg-disk".to_owned()).spawn(run)
}
