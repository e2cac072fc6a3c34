//! Helpers for the threads of a gateway: starting, ending, pinning them, and reporting failures.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::error::WorkerPoolError;

/// The failure of a dataplane thread: it ended unexpectedly, or it is a worker or the slow path and hangs for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFailure {
    /// `worker 0`, `slow path`, `link watcher`, `flow restoration` or `thread watchdog`.
    pub thread: String,
    /// The message of its panic, or a description of the failure.
    pub message: String,
}

/// Called when a thread of the dataplane fails. If it has ended, it is called on that thread.
pub type OnFailure = Arc<dyn Fn(&WorkerFailure) + Send + Sync>;

/// Restricts this thread to these CPUs. An empty list changes nothing.
pub(crate) fn confine(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs the body of a thread that the gateway depends on. A panic is logged and passed to `on_failure`: without the
/// thread, the gateway would report healthy links and workers that nothing monitors, or never be ready.
pub(crate) fn guarded(name: &str, on_failure: Option<&OnFailure>, body: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(body)) else { return };
    let failure = WorkerFailure { thread: name.to_owned(), message: message_of(panic.as_ref()) };
    tracing::error!(thread = failure.thread, message = failure.message, "a thread of the gateway panicked");
    if let Some(fail) = on_failure {
        fail(&failure);
    }
}

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
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
        // Panics of the worker are already reported; this one is from the callback.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What is reported when a guarded thread with this body ends.
    fn reported(body: impl FnOnce() + Send + 'static) -> Vec<WorkerFailure> {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&reports);
        let on_failure: OnFailure =
            Arc::new(move |failure: &WorkerFailure| of_thread.lock().unwrap().push(failure.clone()));
        let thread = std::thread::spawn(move || guarded("link watcher", Some(&on_failure), body));
        thread.join().expect("the panic is caught");
        let reports = reports.lock().unwrap();
        reports.clone()
    }

    #[test]
    fn a_guarded_thread_that_panics_is_reported_and_one_that_ends_is_not() {
        let failed = |message: &str| {
            vec![WorkerFailure { thread: "link watcher".to_owned(), message: message.to_owned() }]
        };
        assert_eq!(reported(|| ()), []);
        assert_eq!(reported(|| panic!("no such port")), failed("no such port"));
        let port = 7;
        assert_eq!(reported(move || panic!("no port {port}")), failed("no port 7"));
    }
}
