//! One worker of a worker pool as seen from outside: its thread, state and statistics.
//!
//! The [`super::worker_pool`] starts workers, queries them and waits for them to end. Nothing here depends on what they
//! forward.
//!
//! Invariant: if a thread ends unexpectedly, the state is `Failed` and the callback has been called.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rustix::thread::gettid;
use tidegate_pipeline::pipeline::CookieCounts;
use tidegate_spec::ids::WorkerIndex;

use super::error::WorkerPoolError;
use super::threads::{OnFailure, WorkerFailure, join, message_of, spawn};
use super::watchdog::{ThreadHealth, WORKER_HANGS, Watched};
use super::window::{Reading, Window};
use crate::drivers::PortQueue;
use crate::flow_memory::TableMemoryStats;
use crate::topology::WorkerPlacement;
use crate::worker::{Shared, Worker};

/// The state of a worker's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WorkerState {
    /// It has not entered its loop yet.
    Starting = 0,
    /// It is in its loop.
    Running = 1,
    /// It ended on request.
    Stopped = 2,
    /// It panicked, or never entered its loop.
    Failed = 3,
    /// It is in its loop but makes no progress.
    Hung = 4,
}

/// The statistics of one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerStats {
    /// The worker.
    pub worker: WorkerIndex,
    /// The CPU that it runs on.
    pub core: usize,
    /// The state of its thread.
    pub state: WorkerState,
    /// The fraction of time with work, 0 to 1, over the last second or more.
    pub busy_ratio: f64,
    /// Cycles per frame over that period, in iterations with work; 0 without traffic.
    pub cycles_per_packet: f64,
    /// Frames processed by its pipeline since the start.
    pub frames: u64,
    /// The number of flows in its tables.
    pub flows: u64,
    /// The memory of its flow tables.
    pub flow_memory: TableMemoryStats,
    /// Events for the resolver that were lost. The next packet repeats them.
    pub neighbor_events_lost: u64,
    /// Results of its SYN cookies.
    pub syn_cookies: CookieCounts,
    /// Services under SYN flood, for which it sends SYN cookies.
    pub services_under_flood: u64,
    /// How often it has started to hang.
    pub hangs: u64,
}

/// One worker as seen by other threads.
pub(super) struct WorkerHandle {
    pub(super) placement: WorkerPlacement,
    pub(super) shared: Arc<Shared>,
    state: Arc<AtomicU8>,
    health: Arc<ThreadHealth>,
    /// The thread id; 0 until it runs.
    tid: Arc<AtomicU32>,
    window: Window,
    thread: Option<JoinHandle<()>>,
}

/// The channel on which a new worker reports that it has started.
pub(super) struct Readiness {
    worker: WorkerIndex,
    answer: Receiver<Result<(), String>>,
}

impl WorkerHandle {
    /// Starts the worker's thread. The thread first calls `enter` and keeps the result until the worker ends. It then
    /// creates the worker with `make`, so that the worker's memory is on its own NUMA node.
    ///
    /// # Errors
    /// [`WorkerPoolError::Thread`].
    pub(super) fn start<Q: PortQueue + 'static, G>(
        placement: WorkerPlacement,
        shared: Arc<Shared>,
        enter: impl FnOnce() -> Result<G, String> + Send + 'static,
        make: impl FnOnce() -> Worker<Q> + Send + 'static,
        stop: Arc<AtomicBool>,
        on_failure: Option<OnFailure>,
    ) -> Result<(Self, Readiness), WorkerPoolError> {
        let state = Arc::new(AtomicU8::new(WorkerState::Starting as u8));
        let tid: Arc<AtomicU32> = Arc::default();
        let number = Arc::clone(&tid);
        let thread_state = ThreadState { worker: placement.worker, state: Arc::clone(&state), on_failure };
        let (notify, answer) = sync_channel(1);
        let body = move || {
            number.store(gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Relaxed);
            thread_state.run(&notify, enter, make, &stop);
        };
        let thread = spawn(&format!("tg-worker-{}", placement.worker), body)?;
        let (health, window) = (Arc::default(), Window::default());
        let handle = Self { placement, shared, state, health, tid, window, thread: Some(thread) };
        Ok((handle, Readiness { worker: placement.worker, answer }))
    }

    /// What the watchdog needs. It calls `notify` with true when the worker starts to hang, and with false when it
    /// recovers.
    pub(super) fn watched(&self, notify: Box<dyn Fn(bool) + Send>) -> Watched {
        let (state, shared) = (Arc::clone(&self.state), Arc::clone(&self.shared));
        let iterations = move || {
            let is_in_loop = state.load(Ordering::Acquire) == WorkerState::Running as u8;
            // All flows are restored in a single iteration, however long that takes.
            let is_expected = is_in_loop && shared.loop_counters.restoring.value() == 0;
            is_expected.then(|| shared.loop_counters.iterations.value())
        };
        Watched {
            name: format!("worker {}", self.placement.worker),
            health: Arc::clone(&self.health),
            iterations: Box::new(iterations),
            thread: Arc::clone(&self.tid),
            hangs_after: WORKER_HANGS,
            notify,
        }
    }

    /// When it started to hang; `None` if it doesn't hang.
    pub(super) fn hung_since(&self) -> Option<SystemTime> {
        self.health.hung_since()
    }

    /// Waits for the worker to end, after the stop request.
    pub(super) fn join(&mut self) {
        join(self.thread.take());
    }

    pub(super) fn stats(&self, flow_memory: TableMemoryStats) -> WorkerStats {
        let iterations = &self.shared.loop_counters;
        let (busy, idle) = (iterations.busy.sum(), iterations.idle_cycles.value());
        let frames = iterations.frames.value();
        let (busy_ratio, cycles_per_packet) =
            self.window.ratios(Reading { at: Instant::now(), busy, idle, frames });
        let [sent, accepted, refused] = [0, 1, 2].map(|n| iterations.syn_cookies[n].value());
        WorkerStats {
            worker: self.placement.worker,
            core: self.placement.core,
            state: self.state(),
            busy_ratio,
            cycles_per_packet,
            frames,
            flows: iterations.flows.value(),
            flow_memory,
            neighbor_events_lost: iterations.neighbor_events_lost.value(),
            syn_cookies: CookieCounts { sent, accepted, refused },
            services_under_flood: iterations.services_under_flood.value(),
            hangs: self.health.hangs(),
        }
    }

    pub(super) fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Acquire) {
            0 => WorkerState::Starting,
            1 if self.health.is_hung() => WorkerState::Hung,
            1 => WorkerState::Running,
            2 => WorkerState::Stopped,
            _ => WorkerState::Failed,
        }
    }
}

impl Readiness {
    /// Waits until the worker is in its loop.
    ///
    /// # Errors
    /// [`WorkerPoolError::Worker`] with the reason, if it doesn't enter its loop.
    pub(super) fn wait(self) -> Result<(), WorkerPoolError> {
        let message = match self.answer.recv_timeout(START_TIMEOUT) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(message)) => message,
            Err(RecvTimeoutError::Timeout) => format!("not ready after {START_TIMEOUT:?}"),
            Err(RecvTimeoutError::Disconnected) => "it panicked while creating its tables".to_owned(),
        };
        Err(WorkerPoolError::Worker { worker: self.worker, message })
    }
}

/// The time limit for creating a worker's tables: zeroing a gigabyte takes a second.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Reports the state of one worker's thread.
struct ThreadState {
    worker: WorkerIndex,
    state: Arc<AtomicU8>,
    on_failure: Option<OnFailure>,
}

impl ThreadState {
    fn run<Q: PortQueue, G>(
        &self,
        ready: &SyncSender<Result<(), String>>,
        enter: impl FnOnce() -> Result<G, String>,
        make: impl FnOnce() -> Worker<Q>,
        stop: &AtomicBool,
    ) {
        let _place = match enter() {
            Ok(placement) => placement,
            Err(message) => {
                self.set(WorkerState::Failed);
                // The starter waits with a limit and may have given up.
                let _ = ready.send(Err(message));
                return;
            }
        };
        let end = catch_unwind(AssertUnwindSafe(|| {
            let mut worker = make();
            self.set(WorkerState::Running);
            let _ = ready.send(Ok(()));
            worker.run(stop);
        }));
        match end {
            Ok(()) => self.set(WorkerState::Stopped),
            Err(panic) => self.failed(panic.as_ref()),
        }
    }

    fn failed(&self, panic: &(dyn Any + Send)) {
        self.set(WorkerState::Failed);
        let failure = WorkerFailure { thread: format!("worker {}", self.worker), message: message_of(panic) };
        tracing::error!(worker = self.worker, message = failure.message, "a worker panicked");
        if let Some(on_failure) = &self.on_failure {
            on_failure(&failure);
        }
    }

    fn set(&self, state: WorkerState) {
        self.state.store(state as u8, Ordering::Release);
    }
}
