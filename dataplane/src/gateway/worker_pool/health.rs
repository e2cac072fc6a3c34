//! Health of the threads of a gateway.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::WorkerPool;
use crate::gateway::threads::OnFailure;
use crate::gateway::watchdog::{OnHang, Watchdog};
use crate::gateway::worker_handle::{WorkerHandle, WorkerState};

impl<F> WorkerPool<F> {
    /// Whether every worker is in its loop, the slow path runs, and none of them hangs.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.handles.iter().all(|handle| handle.state() == WorkerState::Running)
            && self.slow_path.is_healthy()
    }

    /// Starts the watchdog over workers and slow path, on these CPUs. `on_hang` is called when a thread starts or stops
    /// hanging, `on_failure` when one has hung for so long that only a restart of the process helps.
    ///
    /// # Errors
    /// If the thread can't be created.
    pub fn watch_threads(
        &mut self,
        cpus: Vec<usize>,
        on_hang: OnHang,
        on_failure: Option<OnFailure>,
    ) -> io::Result<()>
    where
        F: Send + 'static,
    {
        let workers = self.handles.iter().enumerate().map(|(n, handle)| {
            let exchange = Arc::clone(&self.exchange);
            handle.watched(Box::new(move |hangs| exchange.hung[n].store(hangs, Ordering::Relaxed)))
        });
        let watched = workers.chain([self.slow_path.watched()]).collect();
        self.watchdog = Some(Watchdog::start(watched, cpus, on_hang, on_failure)?);
        Ok(())
    }

    /// How often the watchdog has checked all threads. If the number doesn't change, the watchdog itself hangs.
    #[must_use]
    pub fn watchdog_checks(&self) -> u64 {
        self.watchdog.as_ref().map_or(0, Watchdog::checks)
    }

    /// The threads that hang, as text for people, each with the time of its last progress.
    #[must_use]
    pub fn hung(&self) -> Vec<(String, SystemTime)> {
        let workers = self.handles.iter().filter_map(|handle| {
            let what = format!("worker {} hangs: its packets are lost", handle.placement.worker);
            Some((what, handle.hung_since()?))
        });
        let slow_path = self.slow_path.hung_since().map(|since| {
            (
                "the slow path hangs: the kernel gets no packets, and neighbours are not resolved".to_owned(),
                since,
            )
        });
        workers.chain(slow_path).collect()
    }

    /// The state of each worker.
    pub fn worker_states(&self) -> impl Iterator<Item = WorkerState> + '_ {
        self.handles.iter().map(WorkerHandle::state)
    }
}
