//! Whether the threads of a gateway run, and which of them hang.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::WorkerPool;
use crate::gateway::pulse::{OnHang, PulseThread};
use crate::gateway::threads::OnFailure;
use crate::gateway::worker_handle::{WorkerHandle, WorkerState};

impl<F> WorkerPool<F> {
    /// Whether every worker is in its loop, the slow path is running, and none of them hangs.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.handles.iter().all(|handle| handle.state() == WorkerState::Running) && self.slow_path.is_well()
    }

    /// Notices from now on that a worker or the slow path hangs, by a thread on these CPUs. `on_hang` is called when one
    /// begins or ceases to hang, `on_failure` when one has hung for so long that only a new process helps.
    ///
    /// # Errors
    /// The thread cannot be created.
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
        self.pulse = Some(PulseThread::start(watched, cpus, on_hang, on_failure)?);
        Ok(())
    }

    /// How often the thread of [`Self::watch_threads`] has looked. If the number stands still, that thread hangs itself.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.pulse.as_ref().map_or(0, PulseThread::looks)
    }

    /// The threads that hang, as texts for people, each with the time of its last turn.
    #[must_use]
    pub fn hung(&self) -> Vec<(String, SystemTime)> {
        let workers = self.handles.iter().filter_map(|handle| {
            let what = format!("worker {} hangs: its packets are lost", handle.place.worker);
            Some((what, handle.hung_since()?))
        });
        let slow_path = self.slow_path.hung_since().map(|since| {
            (
                "the slow path hangs: the kernel gets no packets, and no neighbours are resolved".to_owned(),
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
