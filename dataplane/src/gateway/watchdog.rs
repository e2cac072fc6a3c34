//! Notices that a worker or the slow path hangs: that it is alive and does not come back to the beginning of its loop.
//!
//! A thread looks at the numbers of their turns [`CHECK_EVERY`]. The worker pool shows what it found
//! ([`Pulse::is_hung`]); only this thread writes it.
//!
//! Invariant: checks decide, not a clock. If the whole process was stopped, or the machine was paused, no thread has made a
//! turn, but this one has not looked either. So nothing hangs when they go on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::threads::{OnFailure, WorkerFailure, confine, guarded};

/// How often the turns are looked at.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// A worker without a turn in so many checks hangs. A worker makes a turn at least every few milliseconds, and even a busy
/// machine runs it many times in this time.
pub(super) const WORKER_HANGS: u32 = 4;
/// The same if the kernel does not let the worker run, because others use its core. It forwards too little then, but goes on.
const STARVED_HANGS: u32 = 20;
/// The same for the slow path, which may wait for the kernel to take thousands of routes.
pub(super) const SLOW_PATH_HANGS: u32 = 30;
/// After so many checks without a turn the thread is given up, unless it waits for a core.
const GIVEN_UP: u32 = 50;

/// What is known of one thread.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Since when it hangs, in milliseconds since 1970; 0 if it does not.
    since: AtomicU64,
    /// How often it has begun to hang.
    hangs: AtomicU64,
}

impl Pulse {
    pub(super) fn is_hung(&self) -> bool {
        self.since.load(Ordering::Acquire) != 0
    }

    /// Since when it hangs, if it does.
    pub(super) fn hung_since(&self) -> Option<SystemTime> {
        let since = self.since.load(Ordering::Acquire);
        (since != 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(since))
    }

    /// How often it has begun to hang.
    pub(super) fn hangs(&self) -> u64 {
        self.hangs.load(Ordering::Relaxed)
    }
}

/// A thread that is watched.
pub(super) struct Watched {
    /// What people call it (`worker 0`).
    pub(super) name: String,
    pub(super) pulse: Arc<Pulse>,
    /// The number of its turns; `None` while none is expected: it starts, restores flows, or has ended.
    pub(super) turns: Box<dyn Fn() -> Option<u64> + Send>,
    /// Its number in the kernel, where waiting for a core does not count at once; 0 elsewhere and before it runs.
    pub(super) thread: Arc<AtomicU32>,
    /// The number of checks without a turn after which it hangs.
    pub(super) hangs_after: u32,
    /// Called with whether it hangs, when that changes.
    pub(super) tell: Box<dyn Fn(bool) + Send>,
}

/// Called when a thread begins or ceases to hang, on the thread that noticed it.
pub type OnHang = Arc<dyn Fn() + Send + Sync>;

/// The watching thread.
#[derive(Debug)]
pub(super) struct PulseThread {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// How often it has looked at all threads.
    looks: Arc<AtomicU64>,
}

impl PulseThread {
    /// Starts it on these CPUs; on any if there are none. `on_failure` is called if a watched thread is given up, or if this
    /// one panics.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(super) fn start(
        watched: Vec<Watched>,
        cpus: Vec<usize>,
        on_hang: OnHang,
        on_failure: Option<OnFailure>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let looks = Arc::<AtomicU64>::default();
        let (stopped, looked) = (Arc::clone(&stop), Arc::clone(&looks));
        let body = move || {
            guarded("watch over hanging threads", on_failure.as_ref(), || {
                if let Err(error) = confine(&cpus) {
                    tracing::warn!(?cpus, %error, "cannot keep the watch over workers off their cores");
                }
                let mut checks: Vec<Check> = watched.into_iter().map(Check::new).collect();
                while !stopped.load(Ordering::Acquire) {
                    let changed = checks.iter_mut().fold(false, |any, check| {
                        let found = check.look();
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
                    looked.fetch_add(1, Ordering::Relaxed);
                    std::thread::park_timeout(CHECK_EVERY);
                }
            });
        };
        let thread = std::thread::Builder::new().name("tg-pulse".to_owned()).spawn(body)?;
        Ok(Self { thread, stop, looks })
    }

    /// How often it has looked at all threads.
    pub(super) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for it.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // A panic of the callback for failures was reported by the hook.
        let _ = self.thread.join();
    }
}

fn given_up() -> String {
    format!("it has made no progress for {} s", (CHECK_EVERY * GIVEN_UP).as_secs())
}

/// The checks of one thread.
struct Check {
    of: Watched,
    /// The turns at the last check.
    turns: Option<u64>,
    /// Checks since it made a turn.
    without: u32,
    /// Its CPU time at the first of them.
    cpu_time: Option<Duration>,
    is_hung: bool,
    is_given_up: bool,
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// It has begun or ceased to hang.
    Changed,
    /// It has hung for so long that only a new process helps.
    GivenUp,
}

impl Check {
    fn new(of: Watched) -> Self {
        Self { of, turns: None, without: 0, cpu_time: None, is_hung: false, is_given_up: false }
    }

    fn look(&mut self) -> Found {
        let turns = (self.of.turns)();
        let goes_on = turns.is_none() || turns != self.turns;
        self.turns = turns;
        if goes_on {
            (self.without, self.is_given_up) = (0, false);
            return self.change(false);
        }
        self.without = self.without.saturating_add(1);
        if self.without == 1 {
            self.cpu_time = usage(self.of.thread.load(Ordering::Relaxed)).map(|(time, _)| time);
        }
        if !self.is_hung
            && self.without >= self.of.hangs_after
            && (self.without >= STARVED_HANGS || !self.is_starved())
        {
            return self.change(true);
        }
        // A new process would not get a core either.
        if self.without >= GIVEN_UP && !self.is_given_up && !self.is_starved() {
            self.is_given_up = true;
            return Found::GivenUp;
        }
        Found::Nothing
    }

    /// Whether it would go on if it had a core.
    fn is_starved(&self) -> bool {
        let usage = usage(self.of.thread.load(Ordering::Relaxed));
        let Some((before, (time, is_runnable))) = self.cpu_time.zip(usage) else { return false };
        let enough = CHECK_EVERY * (self.without - 1) / 4;
        is_runnable && time.saturating_sub(before) < enough
    }

    fn change(&mut self, is_hung: bool) -> Found {
        if self.is_hung == is_hung {
            return Found::Nothing;
        }
        self.is_hung = is_hung;
        let Watched { name, pulse, tell, .. } = &self.of;
        if is_hung {
            let since = SystemTime::now() - CHECK_EVERY * self.without;
            let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            pulse.since.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Release);
            pulse.hangs.fetch_add(1, Ordering::Relaxed);
            tracing::error!(thread = name, "the thread hangs: the gateway is not ready");
        } else {
            pulse.since.store(0, Ordering::Release);
            tracing::info!(thread = name, "the thread goes on");
        }
        tell(is_hung);
        Found::Changed
    }
}

/// The CPU time of a thread of this process, and whether it runs or would run if it had a core.
fn usage(thread: u32) -> Option<(Duration, bool)> {
    if thread == 0 {
        return None;
    }
    let read = |file| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).ok();
    let nanos = read("schedstat")?.split(' ').next()?.parse().ok()?;
    // The name in parentheses may contain anything.
    let is_runnable = read("stat")?.rsplit(')').next()?.trim_start().starts_with('R');
    Some((Duration::from_nanos(nanos), is_runnable))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(turns: &Arc<AtomicU64>) -> (Check, Arc<Pulse>) {
        let (pulse, turns) = (Arc::<Pulse>::default(), Arc::clone(turns));
        // The highest number stands for a thread from which no turn is expected.
        let read = move || Some(turns.load(Ordering::Relaxed)).filter(|&turns| turns != u64::MAX);
        let of = Watched {
            name: "worker 0".into(),
            pulse: Arc::clone(&pulse),
            turns: Box::new(read),
            thread: Arc::default(),
            hangs_after: WORKER_HANGS,
            tell: Box::new(|_| ()),
        };
        (Check::new(of), pulse)
    }

    #[test]
    fn a_thread_hangs_after_some_checks_without_a_turn_and_is_given_up_once_after_many() {
        let turns = Arc::new(AtomicU64::new(7));
        let (mut check, pulse) = check(&turns);
        assert_eq!(check.look(), Found::Nothing, "the first look finds a number that it does not know");
        let found: Vec<Found> = (0..2 * GIVEN_UP).map(|_| check.look()).collect();
        let at = |wanted| -> Vec<usize> { (0..found.len()).filter(|&n| found[n] == wanted).collect() };
        assert_eq!(at(Found::Changed), [WORKER_HANGS as usize - 1]);
        assert_eq!(at(Found::GivenUp), [GIVEN_UP as usize - 1]);
        assert!(pulse.is_hung() && pulse.hung_since().is_some_and(|since| since < SystemTime::now()));
        turns.store(8, Ordering::Relaxed);
        assert_eq!((check.look(), check.look()), (Found::Changed, Found::Nothing));
        assert_eq!((pulse.is_hung(), pulse.hangs()), (false, 1));
    }

    #[test]
    fn a_thread_from_which_no_turn_is_expected_does_not_hang() {
        let turns = Arc::new(AtomicU64::new(u64::MAX));
        let (mut check, pulse) = check(&turns);
        assert!((0..2 * GIVEN_UP).all(|_| check.look() == Found::Nothing) && !pulse.is_hung());
        turns.store(1, Ordering::Relaxed);
        let looks = (0..WORKER_HANGS).filter(|_| check.look() != Found::Nothing).count();
        assert_eq!(looks, 0, "its time begins with the first turn that is expected");
    }

    #[test]
    fn the_watch_counts_its_looks() {
        let watch = PulseThread::start(Vec::new(), Vec::new(), Arc::new(|| ()), None).expect("a thread");
        while watch.looks() < 2 {
            std::thread::yield_now();
        }
        watch.end();
    }

    #[test]
    fn a_watch_that_panics_reports_its_own_failure() {
        let watched = Watched {
            name: "worker 0".into(),
            pulse: Arc::default(),
            turns: Box::new(|| -> Option<u64> { panic!("on purpose") }),
            thread: Arc::default(),
            hangs_after: WORKER_HANGS,
            tell: Box::new(|_| ()),
        };
        let (report, reported) = std::sync::mpsc::channel();
        let on_failure: OnFailure =
            Arc::new(move |failure: &WorkerFailure| report.send(failure.clone()).expect("it is heard"));
        let watch = PulseThread::start(vec![watched], Vec::new(), Arc::new(|| ()), Some(on_failure));
        let failure = reported.recv_timeout(Duration::from_secs(60)).expect("it is reported");
        let WorkerFailure { thread, message } = &failure;
        assert_eq!((thread.as_str(), message.as_str()), ("watch over hanging threads", "on purpose"));
        watch.expect("a thread").end();
    }

    #[test]
    fn a_thread_that_waits_for_a_core_hangs_later_than_one_that_sleeps_or_spins() {
        let turns = Arc::new(AtomicU64::new(7));
        let hangs_at = |thread: u32, cpu_time: Duration| {
            let (mut check, _) = check(&turns);
            check.of.thread.store(thread, Ordering::Relaxed);
            (0..2 * STARVED_HANGS).find(|_| {
                let found = check.look();
                check.cpu_time = check.cpu_time.map(|_| cpu_time);
                found == Found::Changed
            })
        };
        // This thread runs. Its CPU time is compared with one that it had before, or will not have soon.
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(hangs_at(this, Duration::MAX), Some(STARVED_HANGS), "it has not used the core");
        let (stop, sleeping) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).expect("it is heard");
            sleeping.recv().expect_err("nothing is sent");
        });
        let thread = told.recv().expect("its number");
        while usage(thread).is_none_or(|(_, is_runnable)| is_runnable) {
            std::thread::yield_now();
        }
        assert_eq!(hangs_at(thread, Duration::MAX), Some(WORKER_HANGS), "it sleeps");
        drop(stop);
        sleeper.join().expect("it ends");
    }
}
