//! What the threads of a gateway have in common: their start, their end, their CPUs, and how a failure is reported.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::error::WorkerPoolError;

/// The failure of a worker or of the slow path: it ended unexpectedly, or hangs for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    /// `worker 0` or `slow path`.
    pub thread: String,
    /// The message of its panic, or what it does.
    pub message: String,
}

/// Called when a worker or the slow path fails. If it has ended, it is called on its thread.
pub type OnFailure = Arc<dyn Fn(&WorkerFailure) + Send + Sync>;

/// Restricts this thread to these CPUs. With an empty list, nothing changes.
pub(crate) fn confine(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

pub(crate) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, WorkerPoolError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|source| WorkerPoolError::Thread { name: name.to_owned(), source })
}

pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // Panics of the worker are caught and reported; a panic that arrives here is from the callback.
        let _ = thread.join();
    }
}
