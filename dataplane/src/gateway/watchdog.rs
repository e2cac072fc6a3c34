//! Detects a worker or slow path that hangs: its thread exists but its loop makes no progress.
//!
//! A thread compares the iteration counters every [`CHECK_EVERY`]. The worker pool reports the result
//! ([`ThreadHealth::is_hung`]), which only this thread writes.
//!
//! Invariant: checks are counted, not time. If the process was stopped or the machine paused, no thread has made
//! progress, but nothing was checked either, so no thread counts as hung afterwards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::threads::{OnFailure, WorkerFailure, confine, guarded};

/// Interval between two checks.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// A worker hangs if this many checks find no progress. It runs an iteration at least every few milliseconds, and even
/// a busy machine schedules it many times in this period.
pub(super) const WORKER_HANGS: u32 = 4;
/// The limit for a worker that the kernel doesn't run because others use its core. It forwards too little then, but
/// isn't stuck.
const STARVED_HANGS: u32 = 20;
/// The limit for the slow path, which may wait while the kernel installs thousands of routes.
pub(super) const SLOW_PATH_HANGS: u32 = 30;
/// A thread is given up if this many checks find no progress, unless it waits for a core or in the kernel.
const GIVEN_UP: u32 = 50;

/// The state of one thread.
#[derive(Debug, Default)]
pub(super) struct ThreadHealth {
    /// When it started to hang, in milliseconds since 1970; 0 if it doesn't.
    since: AtomicU64,
    /// How often it has started to hang.
    hangs: AtomicU64,
}

impl ThreadHealth {
    pub(super) fn is_hung(&self) -> bool {
        self.since.load(Ordering::Acquire) != 0
    }

    /// When it started to hang; `None` if it doesn't hang.
    pub(super) fn hung_since(&self) -> Option<SystemTime> {
        let since = self.since.load(Ordering::Acquire);
        (since != 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(since))
    }

    /// How often it has started to hang.
    pub(super) fn hangs(&self) -> u64 {
        self.hangs.load(Ordering::Relaxed)
    }
}

/// A monitored thread.
pub(super) struct Watched {
    /// Its name in logs (`worker 0`).
    pub(super) name: String,
    pub(super) health: Arc<ThreadHealth>,
    /// Its iteration counter; `None` while no progress is expected: it starts, restores flows, or has ended.
    pub(super) iterations: Box<dyn Fn() -> Option<u64> + Send>,
    /// Its thread id, used to distinguish waiting for a core from hanging; 0 before it runs.
    pub(super) thread: Arc<AtomicU32>,
    /// It hangs after this many checks without progress.
    pub(super) hangs_after: u32,
    /// Called with true when it starts to hang, and with false when it recovers.
    pub(super) notify: Box<dyn Fn(bool) + Send>,
}

/// Called when a thread starts or stops hanging, on the thread that detected it.
pub type OnHang = Arc<dyn Fn() + Send + Sync>;

/// The monitoring thread.
#[derive(Debug)]
pub(super) struct Watchdog {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Completed rounds of checks.
    checks: Arc<AtomicU64>,
}

impl Watchdog {
    /// Starts the watchdog on these CPUs, or on any CPU if the list is empty. `on_failure` is called if a monitored
    /// thread is given up, or if the watchdog itself panics.
    ///
    /// # Errors
    /// If the thread can't be created.
    pub(super) fn start(
        watched: Vec<Watched>,
        cpus: Vec<usize>,
        on_hang: OnHang,
        on_failure: Option<OnFailure>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let checks = Arc::<AtomicU64>::default();
        let (stopped, checked) = (Arc::clone(&stop), Arc::clone(&checks));
        let body = move || {
            guarded("thread watchdog", on_failure.as_ref(), || {
                if let Err(error) = confine(&cpus) {
                    tracing::warn!(?cpus, %error, "cannot keep the watchdog off the cores of the workers");
                }
                let mut checks: Vec<Check> = watched.into_iter().map(Check::new).collect();
                while !stopped.load(Ordering::Acquire) {
                    let changed = checks.iter_mut().fold(false, |any, check| {
                        let found = check.run();
                        if found == Found::GivenUp
                            && let Some(fail) = &on_failure
                        {
                            fail(&WorkerFailure { thread: check.of.name.clone(), message: given_up() });
                        }
                        any | (found == Found::Changed)
                    });
                    if changed {
                        on_hang();
                    }
                    checked.fetch_add(1, Ordering::Relaxed);
                    std::thread::park_timeout(CHECK_EVERY);
                }
            });
        };
        let thread = std::thread::Builder::new().name("tg-watchdog".to_owned()).spawn(body)?;
        Ok(Self { thread, stop, checks })
    }

    /// How often all threads have been checked.
    pub(super) fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for it.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // A panic of the failure callback was already reported.
        let _ = self.thread.join();
    }
}

fn given_up() -> String {
    format!("it has made no progress for {} s", (CHECK_EVERY * GIVEN_UP).as_secs())
}

/// The checks of one thread.
struct Check {
    of: Watched,
    /// Its iteration counter at the last check.
    iterations: Option<u64>,
    /// Checks since it made progress.
    stalled: u32,
    /// Its CPU time at the first of those checks.
    cpu_time: Option<Duration>,
    is_hung: bool,
    is_given_up: bool,
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// It has started or stopped hanging.
    Changed,
    /// It has hung for so long that only a restart of the process helps.
    GivenUp,
}

impl Check {
    fn new(of: Watched) -> Self {
        Self { of, iterations: None, stalled: 0, cpu_time: None, is_hung: false, is_given_up: false }
    }

    fn run(&mut self) -> Found {
        let iterations = (self.of.iterations)();
        let has_progressed = iterations.is_none() || iterations != self.iterations;
        self.iterations = iterations;
        if has_progressed {
            (self.stalled, self.is_given_up) = (0, false);
            return self.change(false);
        }
        self.stalled = self.stalled.saturating_add(1);
        if self.stalled == 1 {
            self.cpu_time = usage(self.of.thread.load(Ordering::Relaxed)).map(|(time, _)| time);
        }
        if !self.is_hung
            && self.stalled >= self.of.hangs_after
            && (self.stalled >= STARVED_HANGS || !self.is_starved())
        {
            return self.change(true);
        }
        // A new process would not get a core either, nor a lock of the kernel: while network namespaces with many
        // devices are removed, requests for addresses and routes wait for seconds.
        if self.stalled >= GIVEN_UP && !self.is_given_up && !self.is_starved() && !self.is_in_kernel() {
            self.is_given_up = true;
            return Found::GivenUp;
        }
        Found::Nothing
    }

    /// Whether it doesn't run because it gets no core.
    fn is_starved(&self) -> bool {
        let usage = usage(self.of.thread.load(Ordering::Relaxed));
        let Some((before, (time, state))) = self.cpu_time.zip(usage) else { return false };
        let enough = CHECK_EVERY * (self.stalled - 1) / 4;
        state == RUNNABLE && time.saturating_sub(before) < enough
    }

    /// Whether it waits in a system call that nothing interrupts.
    fn is_in_kernel(&self) -> bool {
        usage(self.of.thread.load(Ordering::Relaxed)).is_some_and(|(_, state)| state == UNINTERRUPTIBLE)
    }

    fn change(&mut self, is_hung: bool) -> Found {
        if self.is_hung == is_hung {
            return Found::Nothing;
        }
        self.is_hung = is_hung;
        let Watched { name, health, notify, .. } = &self.of;
        if is_hung {
            let since = SystemTime::now() - CHECK_EVERY * self.stalled;
            let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            health
                .since
                .store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Release);
            health.hangs.fetch_add(1, Ordering::Relaxed);
            tracing::error!(thread = name, "the thread hangs: the gateway is not ready");
        } else {
            health.since.store(0, Ordering::Release);
            tracing::info!(thread = name, "the thread makes progress again");
        }
        notify(is_hung);
        Found::Changed
    }
}

/// The states of threads in `/proc/PID/stat` (proc(5)): running or runnable, and in uninterruptible sleep.
const RUNNABLE: char = 'R';
const UNINTERRUPTIBLE: char = 'D';

/// The CPU time of a thread of this process, and its state.
fn usage(thread: u32) -> Option<(Duration, char)> {
    if thread == 0 {
        return None;
    }
    let read = |file| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
    let nanos = read("schedstat")?.split(' ').next()?.parse().ok()?;
    // The name in parentheses may contain anything.
    let state = read("stat")?.rsplit(')').next()?.trim_start().chars().next()?;
    Some((Duration::from_nanos(nanos), state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(iterations: &Arc<AtomicU64>) -> (Check, Arc<ThreadHealth>) {
        let (health, iterations) = (Arc::<ThreadHealth>::default(), Arc::clone(iterations));
        // The maximum stands for a thread that is not expected to make progress.
        let read =
            move || Some(iterations.load(Ordering::Relaxed)).filter(|&iterations| iterations != u64::MAX);
        let of = Watched {
            name: "worker 0".into(),
            health: Arc::clone(&health),
            iterations: Box::new(read),
            thread: Arc::default(),
            hangs_after: WORKER_HANGS,
            notify: Box::new(|_| ()),
        };
        (Check::new(of), health)
    }

    #[test]
    fn a_thread_without_progress_hangs_and_is_given_up_once_much_later() {
        let iterations = Arc::new(AtomicU64::new(7));
        let (mut check, health) = check(&iterations);
        assert_eq!(check.run(), Found::Nothing, "the first check has nothing to compare with");
        let found: Vec<Found> = (0..2 * GIVEN_UP).map(|_| check.run()).collect();
        let at = |wanted| -> Vec<usize> { (0..found.len()).filter(|&n| found[n] == wanted).collect() };
        assert_eq!(at(Found::Changed), [WORKER_HANGS as usize - 1]);
        assert_eq!(at(Found::GivenUp), [GIVEN_UP as usize - 1]);
        assert!(health.is_hung() && health.hung_since().is_some_and(|since| since < SystemTime::now()));
        iterations.store(8, Ordering::Relaxed);
        assert_eq!((check.run(), check.run()), (Found::Changed, Found::Nothing));
        assert_eq!((health.is_hung(), health.hangs()), (false, 1));
    }

    #[test]
    fn a_thread_that_need_not_progress_does_not_hang() {
        let iterations = Arc::new(AtomicU64::new(u64::MAX));
        let (mut check, health) = check(&iterations);
        assert!((0..2 * GIVEN_UP).all(|_| check.run() == Found::Nothing) && !health.is_hung());
        iterations.store(1, Ordering::Relaxed);
        let checks = (0..WORKER_HANGS).filter(|_| check.run() != Found::Nothing).count();
        assert_eq!(checks, 0, "it is checked from the first expected iteration");
    }

    #[test]
    fn the_watchdog_counts_its_checks() {
        let watch = Watchdog::start(Vec::new(), Vec::new(), Arc::new(|| ()), None).expect("a thread");
        while watch.checks() < 2 {
            std::thread::yield_now();
        }
        watch.end();
    }

    #[test]
    fn a_watchdog_that_panics_reports_its_own_failure() {
        let watched = Watched {
            name: "worker 0".into(),
            health: Arc::default(),
            iterations: Box::new(|| -> Option<u64> { panic!("on purpose") }),
            thread: Arc::default(),
            hangs_after: WORKER_HANGS,
            notify: Box::new(|_| ()),
        };
        let (report, reported) = std::sync::mpsc::channel();
        let on_failure: OnFailure = Arc::new(move |failure: &WorkerFailure| {
            report.send(failure.clone()).expect("the test receives it");
        });
        let watch = Watchdog::start(vec![watched], Vec::new(), Arc::new(|| ()), Some(on_failure));
        let failure = reported.recv_timeout(Duration::from_secs(60)).expect("it is reported");
        let WorkerFailure { thread, message } = &failure;
        assert_eq!((thread.as_str(), message.as_str()), ("thread watchdog", "on purpose"));
        watch.expect("a thread").end();
    }

    #[test]
    fn a_thread_waiting_for_a_core_hangs_later_than_one_sleeping_or_spinning() {
        let iterations = Arc::new(AtomicU64::new(7));
        let hangs_at = |thread: u32, cpu_time: Duration| {
            let (mut check, _) = check(&iterations);
            check.of.thread.store(thread, Ordering::Relaxed);
            (0..2 * STARVED_HANGS).find(|_| {
                let found = check.run();
                check.cpu_time = check.cpu_time.map(|_| cpu_time);
                found == Found::Changed
            })
        };
        // This thread runs. Its CPU time is compared with a past and with a future value.
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(hangs_at(this, Duration::MAX), Some(STARVED_HANGS), "it has not used the core");
        let (stop, sleeping) = std::sync::mpsc::channel::<()>();
        let (notify, thread_id) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            notify
                .send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
                .expect("the test receives it");
            sleeping.recv().expect_err("nothing is sent");
        });
        let thread = thread_id.recv().expect("its number");
        while usage(thread).is_none_or(|(_, state)| state == RUNNABLE) {
            std::thread::yield_now();
        }
        assert_eq!(hangs_at(thread, Duration::MAX), Some(WORKER_HANGS), "it sleeps");
        drop(stop);
        sleeper.join().expect("it ends");
    }
}
