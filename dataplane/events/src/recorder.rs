//! Records events: one log line each, and a place in the list of the last ones.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::TokenBucket;

use super::disk::{self, Disk};
use super::event::Event;
use super::kept::{Kept, Selection};
use super::log;
use super::reason::Reason;

/// The number of lines that one namespace may log in a burst.
const BURST: u32 = 50;
/// The interval at which a namespace gains another line.
const INTERVAL: Duration = Duration::from_secs(10);
/// The minimum number of namespaces at which those with a full budget are removed.
const CLEANUP_MIN: usize = 64;
/// The time of the recorder's start on the clock of the token buckets, which are full by then.
const START: Now = Now(86_400_000_000_000);

/// The recorder of this process.
static RECORDER: OnceLock<Arc<Recorder>> = OnceLock::new();

/// Sets the recorder of this process. A second call has no effect. Returns the recorder in use.
pub fn install(recorder: Recorder) -> Arc<Recorder> {
    Arc::clone(RECORDER.get_or_init(|| Arc::new(recorder)))
}

/// Logs the event, and keeps it if this process has a recorder. Never waits for a disk.
pub fn record(event: Event) {
    match RECORDER.get() {
        Some(recorder) => recorder.record(event),
        None => log::write(&event, None),
    }
}

/// Keeps the last events, and limits the log lines of each namespace.
#[derive(Debug)]
pub struct Recorder {
    kept: Arc<Mutex<Kept>>,
    lines: Mutex<Lines>,
    /// How many events of each reason were recorded.
    counts: [AtomicU64; Reason::COUNT],
    suppressed: AtomicU64,
    disk: Option<Disk>,
}

impl Recorder {
    /// A recorder that keeps this many events. If there is a file, it loads the events of earlier processes in the
    /// background, and appends new ones.
    ///
    /// # Errors
    /// If the thread that writes the file cannot be started.
    pub fn new(keep: usize, file: Option<PathBuf>) -> std::io::Result<Self> {
        let mut recorder = Self::in_memory(keep);
        recorder.disk = file.map(|path| disk::start(path, keep, Arc::clone(&recorder.kept))).transpose()?;
        Ok(recorder)
    }

    /// A recorder that keeps this many events, and none across restarts.
    #[must_use]
    pub fn in_memory(keep: usize) -> Self {
        Self {
            kept: Arc::new(Mutex::new(Kept::new(keep))),
            lines: Mutex::new(Lines::new()),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            suppressed: AtomicU64::new(0),
            disk: None,
        }
    }

    /// Logs and keeps the event.
    pub fn record(&self, mut event: Event) {
        self.counts[event.reason as usize].fetch_add(1, Ordering::Relaxed);
        match self.lines.lock().unwrap_or_else(PoisonError::into_inner).take(event.namespace()) {
            Some(suppressed) => log::write(&event, Some(suppressed).filter(|count| *count > 0)),
            None => {
                self.suppressed.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut kept = lock(&self.kept);
        // Numbers must increase even across processes and steps of the clock.
        let micros = u64::try_from(event.time.as_microsecond()).unwrap_or(0);
        event.number = micros.max(kept.last() + 1);
        let event = Arc::new(event);
        kept.insert(Arc::clone(&event));
        // Under the lock, so that the file has the order of the numbers. This never waits.
        if let Some(disk) = &self.disk {
            disk.append(event);
        }
    }

    /// The selected events, oldest first.
    #[must_use]
    pub fn select(&self, selection: &Selection) -> Vec<Arc<Event>> {
        lock(&self.kept).select(selection)
    }

    /// How many events of each reason were recorded since the start.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The number of log lines that were suppressed since the start.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Why a restart would lose events, as text for display.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.disk.as_ref().and_then(Disk::trouble)
    }

    /// Waits until everything recorded before is in the file, up to a limit. Returns whether it is.
    #[must_use]
    pub fn flush(&self, limit: Duration) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.flush(limit))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log lines that each namespace may still write. Events without a namespace are the operator's and always logged.
#[derive(Debug)]
struct Lines {
    began: Instant,
    /// The namespaces that have logged recently: their budget, and the number of suppressed lines.
    namespaces: BTreeMap<String, (TokenBucket, u64)>,
    /// The number of namespaces at which those with a full budget are removed.
    cleanup_at: usize,
}

impl Lines {
    fn new() -> Self {
        Self { began: Instant::now(), namespaces: BTreeMap::new(), cleanup_at: CLEANUP_MIN }
    }

    /// Takes a line from the budget of a namespace: the number of lines that were suppressed since its last one. `None`
    /// if the budget is empty.
    fn take(&mut self, namespace: &str) -> Option<u64> {
        if namespace.is_empty() {
            return Some(0);
        }
        let now = START.plus(self.began.elapsed());
        let full = || (TokenBucket::with_interval(INTERVAL, BURST), 0);
        let (lines, suppressed) = self.namespaces.entry(namespace.to_owned()).or_insert_with(full);
        let taken = if lines.take(now) { Some(std::mem::take(suppressed)) } else { None };
        *suppressed += u64::from(taken.is_none());
        if self.namespaces.len() >= self.cleanup_at {
            self.namespaces.retain(|_, (lines, _)| !lines.is_full(now));
            self.cleanup_at = 2 * self.namespaces.len() + CLEANUP_MIN;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ObjectKind;

    fn event(namespace: &str) -> Event {
        let event = Event::new(Reason::BackendDown, ObjectKind::Backend, "10.0.0.1:80", "down");
        if namespace.is_empty() { event } else { event.of_service(namespace, "web") }
    }

    #[test]
    fn a_noisy_namespace_logs_a_burst_and_silences_no_other() {
        let recorder = Recorder::new(1_000, None).expect("no thread");
        let burst = u64::from(BURST);
        (0..burst + 20).for_each(|_| recorder.record(event("noisy")));
        assert_eq!(recorder.suppressed(), 20);
        recorder.record(event("shop"));
        (0..burst + 20).for_each(|_| recorder.record(event("")));
        assert_eq!(recorder.suppressed(), 20, "other namespaces and the operator have their own lines");
        let all = recorder.select(&Selection::default());
        assert_eq!(all.len() as u64, 2 * (burst + 20) + 1, "suppressed lines are kept as events");
        assert!(all.is_sorted_by(|a, b| a.number < b.number));
        let counted: Vec<_> = recorder.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(Reason::BackendDown, all.len() as u64)]);
    }
}
