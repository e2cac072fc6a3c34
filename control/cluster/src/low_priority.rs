//! Runs long computations at low priority: a plan of 10,000 Services takes a tenth of a second.
//!
//! On a thread of the runtime, that would stop the source on the same runtime for a tenth of a second and delay every
//! change. So the runtime is told that the thread blocks, and the work runs on a thread of lower priority than the
//! others of the process: if the control plane has one CPU, a round of the daemon comes first.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// The nice value of the thread. It gets a tenth of the CPU time of a busy thread, and so makes progress even beside
/// one.
const NICE: i32 = 10;

/// Runs `work` on a thread of lower priority, and waits for it without blocking other tasks. On a runtime with one
/// thread, `work` runs directly. Returns its result and the CPU time that it used.
///
/// # Panics
/// Outside of a Tokio runtime, and if `work` does.
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
                // On Linux this affects only the calling thread. If it fails, the work is done at normal priority. A
                // process that already has a lower priority keeps it.
                let own = rustix::process::getpriority_process(None).unwrap_or(0);
                let _ = rustix::process::setpriority_process(None, own.max(NICE));
                work.take().map(|work| work())
            };
            let thread = thread::Builder::new().name("tg-plan".to_owned()).spawn_scoped(scope, run).ok()?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // If no thread can be created, the work has not begun.
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
    async fn the_work_is_done_by_a_thread_that_gives_way_and_ours_stays_as_it_is() {
        let nice = || rustix::process::getpriority_process(None).expect("of this thread");
        let before = nice();
        let there = tokio::spawn(async move { at_low_priority(nice).0 }).await.expect("it does not panic");
        assert_eq!(there, NICE.max(before));
        assert_eq!(nice(), before);
    }

    #[tokio::test]
    async fn on_a_runtime_of_one_thread_it_is_done_at_once() {
        let here = thread::current().id();
        assert_eq!(at_low_priority(|| thread::current().id()).0, here);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn time_in_which_the_work_waits_is_not_counted() {
        let waits = || thread::sleep(Duration::from_secs(1));
        let ((), took) =
            tokio::spawn(async move { at_low_priority(waits) }).await.expect("it does not panic");
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}
