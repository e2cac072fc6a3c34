//! The thread of the slow path: how the worker pool starts, informs and ends it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use crossbeam::queue::ArrayQueue;

use super::error::WorkerPoolError;
use super::threads::{OnFailure, WorkerFailure, confine, join, spawn};
use super::watchdog::{SLOW_PATH_HANGS, ThreadHealth, Watched};
use crate::drivers::FrameSource;
use crate::slow_path::{SlowPath, SlowPathCounters, SlowPathState};

/// The thread's name in logs.
const NAME: &str = "slow path";

/// The handle of the thread.
pub(super) struct SlowPathHandle {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    is_alive: Arc<AtomicBool>,
    health: Arc<ThreadHealth>,
    counters: Arc<SlowPathCounters>,
    /// The part of the newest forwarding state that the slow path needs.
    slow_path_state: Arc<ArrayQueue<SlowPathState>>,
}

impl SlowPathHandle {
    /// The handle of a thread that has not started. Its initial forwarding state is `first`.
    pub(super) fn new(first: SlowPathState) -> Self {
        let slow_path_state = ArrayQueue::new(1);
        slow_path_state.force_push(first);
        Self {
            thread: None,
            stop: Arc::default(),
            is_alive: Arc::new(AtomicBool::new(true)),
            health: Arc::default(),
            counters: Arc::default(),
            slow_path_state: Arc::new(slow_path_state),
        }
    }

    /// The queue of new forwarding states, for the thread.
    pub(super) fn slow_path_state(&self) -> Arc<ArrayQueue<SlowPathState>> {
        Arc::clone(&self.slow_path_state)
    }

    /// The counters, for the thread.
    pub(super) fn shared_counters(&self) -> Arc<SlowPathCounters> {
        Arc::clone(&self.counters)
    }

    /// The thread's counters.
    pub(super) fn counters(&self) -> &SlowPathCounters {
        &self.counters
    }

    /// Passes on a new forwarding state.
    pub(super) fn notify(&self, slow_path_state: SlowPathState) {
        self.slow_path_state.force_push(slow_path_state);
    }

    /// Starts the thread on these CPUs, or on any CPU if the list is empty. `on_failure` is called if it ends
    /// unexpectedly.
    pub(super) fn start<S>(
        &mut self,
        mut slow_path: SlowPath<S>,
        cpus: Vec<usize>,
        on_failure: Option<OnFailure>,
    ) -> Result<(), WorkerPoolError>
    where
        S: FrameSource + 'static,
        S::Frame: Send + 'static,
    {
        let (stop, is_alive) = (Arc::clone(&self.stop), Arc::clone(&self.is_alive));
        let body = move || {
            if let Err(error) = confine(&cpus) {
                tracing::warn!(?cpus, %error, "cannot keep the slow path thread off the cores of the workers");
            }
            let end = catch_unwind(AssertUnwindSafe(|| slow_path.run(&stop)));
            let message = match end {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
            tracing::error!(
                message,
                "the slow path thread ended: the kernel gets no packets, and neighbours are not resolved"
            );
            is_alive.store(false, Ordering::Release);
            if let Some(fail) = on_failure {
                fail(&WorkerFailure { thread: NAME.to_owned(), message });
            }
        };
        self.thread = Some(spawn("tg-slow-path", body)?);
        Ok(())
    }

    /// Whether the thread runs and doesn't hang.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_alive.load(Ordering::Acquire) && !self.health.is_hung()
    }

    /// When it started to hang; `None` if it doesn't hang.
    pub(super) fn hung_since(&self) -> Option<SystemTime> {
        self.health.hung_since()
    }

    /// How often it has started to hang.
    pub(super) fn hangs(&self) -> u64 {
        self.health.hangs()
    }

    /// What the watchdog needs.
    pub(super) fn watched(&self) -> Watched {
        let (is_alive, counters) = (Arc::clone(&self.is_alive), Arc::clone(&self.counters));
        let iterations = move || is_alive.load(Ordering::Acquire).then(|| counters.iterations.value());
        Watched {
            name: NAME.to_owned(),
            health: Arc::clone(&self.health),
            iterations: Box::new(iterations),
            thread: Arc::default(),
            hangs_after: SLOW_PATH_HANGS,
            notify: Box::new(|_| ()),
        }
    }

    /// Ends the thread and waits for it.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        join(self.thread.take());
    }
}
