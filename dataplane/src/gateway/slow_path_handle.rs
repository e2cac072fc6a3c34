//! The thread of the slow path, as the worker pool starts it, informs it and ends it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use crossbeam::queue::ArrayQueue;

use super::error::WorkerPoolError;
use super::pulse::{Pulse, SLOW_PATH_HANGS, Watched};
use super::threads::{OnFailure, WorkerFailure, confine, join, spawn};
use crate::drivers::FrameSource;
use crate::slow_path::{Outside, SlowPath, SlowPathCounters};

/// What people call the thread.
const NAME: &str = "slow path";

/// The handle of the thread.
pub(super) struct SlowPathHandle {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    is_alive: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    counters: Arc<SlowPathCounters>,
    /// The newest forwarding state, as far as the slow path needs it.
    outside: Arc<ArrayQueue<Outside>>,
}

impl SlowPathHandle {
    /// The handle of a thread that has not started. It begins with the forwarding state `first`.
    pub(super) fn new(first: Outside) -> Self {
        let outside = ArrayQueue::new(1);
        outside.force_push(first);
        Self {
            thread: None,
            stop: Arc::default(),
            is_alive: Arc::new(AtomicBool::new(true)),
            pulse: Arc::default(),
            counters: Arc::default(),
            outside: Arc::new(outside),
        }
    }

    /// The queue of new forwarding states, for the thread.
    pub(super) fn outside(&self) -> Arc<ArrayQueue<Outside>> {
        Arc::clone(&self.outside)
    }

    /// The counters, for the thread.
    pub(super) fn shared_counters(&self) -> Arc<SlowPathCounters> {
        Arc::clone(&self.counters)
    }

    /// What the thread counts.
    pub(super) fn counters(&self) -> &SlowPathCounters {
        &self.counters
    }

    /// Passes on a new forwarding state.
    pub(super) fn tell(&self, outside: Outside) {
        self.outside.force_push(outside);
    }

    /// Starts the thread on these CPUs; on any if there are none. `on_failure` is called if it ends unexpectedly.
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
                tracing::warn!(?cpus, %error, "cannot keep the slow path off the cores of the workers");
            }
            let end = catch_unwind(AssertUnwindSafe(|| slow_path.run(&stop)));
            let message = match end {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_owned(),
            };
            tracing::error!(
                message,
                "the slow path thread ended: no packets are punted and no neighbors are resolved"
            );
            is_alive.store(false, Ordering::Release);
            if let Some(fail) = on_failure {
                fail(&WorkerFailure { thread: NAME.to_owned(), message });
            }
        };
        self.thread = Some(spawn("tg-slow-path", body)?);
        Ok(())
    }

    /// Whether the thread has not failed and does not hang.
    pub(super) fn is_well(&self) -> bool {
        self.is_alive.load(Ordering::Acquire) && !self.pulse.is_hung()
    }

    /// Since when it hangs, if it does.
    pub(super) fn hung_since(&self) -> Option<SystemTime> {
        self.pulse.hung_since()
    }

    /// How often it has begun to hang.
    pub(super) fn hangs(&self) -> u64 {
        self.pulse.hangs()
    }

    /// What the watch over hanging threads needs.
    pub(super) fn watched(&self) -> Watched {
        let (is_alive, counters) = (Arc::clone(&self.is_alive), Arc::clone(&self.counters));
        let turns = move || is_alive.load(Ordering::Acquire).then(|| counters.turns.value());
        Watched {
            name: NAME.to_owned(),
            pulse: Arc::clone(&self.pulse),
            turns: Box::new(turns),
            thread: Arc::default(),
            hangs_after: SLOW_PATH_HANGS,
            tell: Box::new(|_| ()),
        }
    }

    /// Ends the thread, and waits for it.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        join(self.thread.take());
    }
}
