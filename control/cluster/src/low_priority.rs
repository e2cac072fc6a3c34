//! Runs long computations at low priority: a plan of 10,000 Services takes 100 ms.
//!
//! On a thread of the runtime, such a computation would block the source and delay every change. It therefore runs in
//! `block_in_place`, on a thread with a lower priority than the other threads of the process: if the control plane has
//! one CPU, a round of the daemon comes first.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// The nice value of the thread. Next to a busy thread it still gets a tenth of the CPU time, so it always makes
/// progress.
const NICE: i32 = 10;

/// Runs `work` on a thread with a lower priority, and waits for it without blocking other tasks. On a single-threaded
/// runtime, `work` runs directly. Returns its result and the CPU time that it used.
///
/// # Panics
/// Outside of a Tokio runtime, and if `work` panics.
pub(super) fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> (T, Duration) {
    let timed = move || {
        let before = cpu_time();
        let result = work();
        (result, cpu_time().saturating_sub(before))
    };
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return timed();
    }
    block_in_place(|| {
        let mut work = Some(timed);
        let done = thread::scope(|scope| {
            let run = || {
                // On Linux this affects only the calling thread. If it fails, the work runs at normal priority. A
                // process that already has a lower priority keeps it.
                let own = rustix::process::getpriority_process(None).unwrap_or(0);
                let _ = rustix::process::setpriority_process(None, own.max(NICE));
                work.take().map(|work| work())
            };
            let thread = thread::Builder::new().name("tg-plan".to_owned()).spawn_scoped(scope, run).ok()?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // If the thread can't be created, the work has not started.
        done.unwrap_or_else(|| work.take().expect("it is taken by the thread alone")())
    })
}

/// The CPU time of this thread.
#[must_use]
pub fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_work_runs_at_low_priority_and_our_thread_keeps_its_priority() {
        let nice = || rustix::process::getpriority_process(None).expect("of this thread");
        let before = nice();
        let there = tokio::spawn(async move { at_low_priority(nice).0 }).await.expect("it does not panic");
        assert_eq!(there, NICE.max(before));
        assert_eq!(nice(), before);
    }

    #[tokio::test]
    async fn on_a_single_threaded_runtime_the_work_runs_directly() {
        let here = thread::current().id();
        assert_eq!(at_low_priority(|| thread::current().id()).0, here);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn time_that_the_work_spends_waiting_is_not_counted() {
        let waits = || thread::sleep(Duration::from_secs(1));
        let ((), took) =
            tokio::spawn(async move { at_low_priority(waits) }).await.expect("it does not panic");
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}
