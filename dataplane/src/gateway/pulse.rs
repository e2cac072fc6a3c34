//! Notices that a worker or the slow path hangs: that it is alive and does not come back to the beginning of its loop.
//!
//! A thread looks at the numbers of their turns [`CHECK_EVERY`]. The worker pool shows what it found
//! ([`Pulse::is_hung`]); only this thread writes it.
//!
//! Invariant: checks decide, not a clock. If the whole process was stopped, or the machine was paused, no thread has made a
//! turn, but this one has not looked either. So nothing hangs when they go on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::threads::{OnFailure, WorkerFailure, confine};

/// How often the turns are looked at.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// A worker without a turn in so many checks hangs. A worker makes a turn at least every few milliseconds, and even a busy
/// machine runs it many times in this time.
pub(super) const WORKER_HANGS: u32 = 4;
/// The same for the slow path, which may wait for the kernel to take thousands of routes.
pub(super) const SLOW_PATH_HANGS: u32 = 30;
/// After so many checks without a turn the thread is given up.
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
}

impl PulseThread {
    /// Starts it on these CPUs; on any if there are none.
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
        let stopped = Arc::clone(&stop);
        let body = move || {
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
                std::thread::park_timeout(CHECK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("tg-pulse".to_owned()).spawn(body)?;
        Ok(Self { thread, stop })
    }

    /// Ends the thread and waits for it.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // A panic of a callback was reported by the hook.
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
        Self { of, turns: None, without: 0 }
    }

    fn look(&mut self) -> Found {
        let turns = (self.of.turns)();
        let goes_on = turns.is_none() || turns != self.turns;
        self.turns = turns;
        let Watched { name, pulse, hangs_after, tell, .. } = &self.of;
        if goes_on {
            self.without = 0;
            let was_hung = pulse.since.swap(0, Ordering::AcqRel) != 0;
            if was_hung {
                tell(false);
                tracing::info!(thread = name, "the thread goes on");
            }
            return if was_hung { Found::Changed } else { Found::Nothing };
        }
        self.without = self.without.saturating_add(1);
        if self.without == *hangs_after {
            let since = SystemTime::now() - CHECK_EVERY * *hangs_after;
            let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            pulse.since.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Release);
            pulse.hangs.fetch_add(1, Ordering::Relaxed);
            tell(true);
            tracing::error!(thread = name, "the thread hangs: the gateway is not ready");
            return Found::Changed;
        }
        if self.without == GIVEN_UP { Found::GivenUp } else { Found::Nothing }
    }
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
}
