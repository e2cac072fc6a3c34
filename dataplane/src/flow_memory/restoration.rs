//! Restores the flows of earlier processes to the tables of the workers, once the first Services are known.
//!
//! The publisher calls [`Restoration::begin`] with the first snapshot that has Services. Each worker calls
//! [`Restoration::restore`] with that snapshot before it forwards the first packet. A thread collects the counts and
//! then removes the files.
//!
//! Invariant: files are removed only after every worker has restored its flows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use tidegate_conntrack::NotRestored;
use tidegate_events::{Event, Field, Reason};
use tidegate_pipeline::pipeline::{KnownIds, Pipeline, RestoreCounts};
use tidegate_snapshot::Snapshot;
use tidegate_spec::now::Now;

use crate::gateway::threads::{OnFailure, guarded};

use super::boot_clock::kernel_ms;
use super::identities;
use super::store::{Earlier, Shape, remove};

/// Results of restoring the flows of earlier processes, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Flows by result.
    pub counts: RestoreCounts,
    /// The number of tables rejected as a whole. Each damaged table counts as one, and so do all tables of a process of
    /// another version or from before a reboot.
    pub refused_tables: u64,
    /// The longest time that a worker took; it forwarded nothing meanwhile.
    pub took: Duration,
    /// Whether all workers have restored their flows.
    pub is_done: bool,
}

/// The flows of earlier processes.
#[derive(Debug)]
pub struct Restoration {
    /// Empty once all flows are restored.
    earlier: RwLock<Vec<Earlier>>,
    shape: Shape,
    /// The ids for each of `earlier`, and the generation of the first snapshot with Services.
    known: OnceLock<(u64, Vec<KnownIds>)>,
    /// Whether every worker has restored its flows.
    is_restored: AtomicBool,
    /// Whether the counts are collected and the files removed.
    is_done: AtomicBool,
    found: Mutex<Restored>,
    results: Mutex<Option<Sender<(RestoreCounts, Duration)>>>,
}

impl Restoration {
    /// Restores the flows of these processes for workers of this shape. `refused` further tables were rejected.
    /// `on_failure` is called if the thread that removes the files panics.
    ///
    /// # Errors
    /// If the thread that removes the files can't be started.
    pub(super) fn new(
        earlier: Vec<Earlier>,
        refused: u64,
        shape: Shape,
        on_failure: Option<OnFailure>,
    ) -> std::io::Result<Arc<Self>> {
        let (results, collected) = channel();
        let workers = shape.workers;
        let is_done = earlier.is_empty();
        let new = Arc::new(Self {
            earlier: RwLock::new(earlier),
            shape,
            known: OnceLock::new(),
            is_restored: AtomicBool::new(is_done),
            is_done: AtomicBool::new(is_done),
            found: Mutex::new(Restored { refused_tables: refused, is_done, ..Restored::default() }),
            results: Mutex::new((!is_done).then_some(results)),
        });
        if !is_done {
            let this = Arc::clone(&new);
            start(move || this.collect(&collected, workers), on_failure)?;
        }
        Ok(new)
    }

    /// Whether nothing is left to restore.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Whether workers are restoring flows or are about to, and don't forward yet.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        self.known.get().is_some() && !self.is_restored.load(Ordering::Acquire)
    }

    /// The results so far.
    #[must_use]
    pub fn found(&self) -> Restored {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Translates the ids of earlier processes if this is the first snapshot with Services. Call it before workers get
    /// the snapshot.
    pub(crate) fn begin(&self, snapshot: &Snapshot) {
        let earlier = self.earlier();
        if earlier.is_empty() || self.known.get().is_some() || snapshot.services().len() == 0 {
            return;
        }
        let known = earlier.iter().map(|one| {
            identities::known(&one.path, snapshot).unwrap_or_else(|error| {
                tracing::warn!(path = %one.path.display(), %error, "cannot restore the flows of an earlier process");
                KnownIds::default()
            })
        });
        // Publications are serialized by a lock, so nothing else sets it.
        let _ = self.known.set((snapshot.generation(), known.collect()));
    }

    /// Restores the flows of a worker if its snapshot has Services. Returns whether it did.
    pub fn restore(&self, worker: u8, pipeline: &mut Pipeline, snapshot: &Snapshot, now: Now) -> bool {
        let Some((generation, known)) = self.known.get() else { return false };
        if snapshot.generation() < *generation {
            return false;
        }
        let begun = Instant::now();
        let mut counts = RestoreCounts::default();
        for (earlier, ids) in self.earlier().iter().zip(known) {
            // If the shape differs, flows may be in any table.
            let all = 0..earlier.workers();
            let own = usize::from(worker)..usize::from(worker) + 1;
            for of in if earlier.is_alike(&self.shape) { own } else { all } {
                if let Some(tables) = earlier.tables(of) {
                    counts = counts.plus(&pipeline.restore(snapshot, &tables, ids, now));
                }
            }
        }
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(results) = &*results {
            // The thread waits for each worker.
            let _ = results.send((counts, begun.elapsed()));
        }
        true
    }

    fn earlier(&self) -> RwLockReadGuard<'_, Vec<Earlier>> {
        self.earlier.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(&self, results: &Receiver<(RestoreCounts, Duration)>, workers: usize) {
        for _ in 0..workers {
            let Ok((counts, took)) = results.recv() else { return };
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            (found.counts, found.took) = (found.counts.plus(&counts), found.took.max(took));
        }
        self.is_restored.store(true, Ordering::Release);
        let Restored { counts: sum, took: longest, .. } = self.found();
        let not_restored: Vec<String> = NotRestored::ALL
            .iter()
            .zip(sum.not_restored)
            .filter(|(_, count)| *count > 0)
            .map(|(why, count)| format!("{}={count}", why.as_str()))
            .collect();
        let event = Event::of_gateway(Reason::FlowsRestored, "restored flows of the earlier process");
        tidegate_events::record(
            event
                .number(Field::Restored, sum.restored)
                .text(Field::NotRestored, not_restored.join(" "))
                .number(Field::TookMs, u64::try_from(longest.as_millis()).unwrap_or(u64::MAX)),
        );
        // Every worker has read the files.
        let earlier = std::mem::take(&mut *self.earlier.write().unwrap_or_else(PoisonError::into_inner));
        earlier.iter().for_each(|one| remove(&one.path));
        drop(earlier);
        self.found.lock().unwrap_or_else(PoisonError::into_inner).is_done = true;
        self.is_done.store(true, Ordering::Release);
    }
}

/// Starts the thread that collects the counts. Nothing joins it, and without it the gateway would never be ready.
fn start(collect: impl FnOnce() + Send + 'static, on_failure: Option<OnFailure>) -> std::io::Result<()> {
    let body = move || guarded("flow restoration", on_failure.as_ref(), collect);
    std::thread::Builder::new().name("tg-restored".to_owned()).spawn(body).map(drop)
}

/// What a worker needs to keep flows across a restart.
#[derive(Debug, Default)]
pub struct FlowPersistence {
    /// The flows of earlier processes, until the worker has restored its own.
    pub restoration: Option<Arc<Restoration>>,
    /// Two words: the kernel's clock minus the worker's, and when the worker last ran.
    pub clock: Option<&'static mut [u32]>,
}

impl FlowPersistence {
    /// Whether flows may have to be restored.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.restoration.is_some()
    }

    /// Restores the flows of a worker once its snapshot has Services.
    #[cold]
    pub fn restore(&mut self, worker: u8, pipeline: &mut Pipeline, snapshot: &Snapshot, now: Now) {
        let is_over = |all: &Arc<Restoration>| all.is_done() || all.restore(worker, pipeline, snapshot, now);
        if self.restoration.as_ref().is_some_and(is_over) {
            self.restoration = None;
        }
    }

    /// Records the worker's time for the next process.
    pub fn keep_time(&mut self, now: Now) {
        if let Some([difference, last]) = self.clock.as_deref_mut() {
            *last = kernel_ms();
            *difference = last.wrapping_sub(now.millis());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::gateway::threads::WorkerFailure;

    use super::*;

    #[test]
    fn a_panic_of_the_thread_is_reported() {
        let (report, reports) = channel();
        let on_failure: OnFailure = Arc::new(move |failure: &WorkerFailure| {
            report.send(failure.clone()).expect("the test receives it");
        });
        start(|| panic!("on purpose"), Some(on_failure)).expect("it starts");
        let failure = reports.recv().expect("it is reported");
        let expected =
            WorkerFailure { thread: "flow restoration".to_owned(), message: "on purpose".to_owned() };
        assert_eq!(failure, expected);
    }
}
