//! Runs the checks: one task that gets due targets from the [`Schedule`], and one short task for each check in
//! progress.
//!
//! The clock is read here, and the [`Prober`] has the sockets. [`Schedule`] and [`Tally`](super::Tally) only decide. A
//! new set of targets replaces the previous one at most every [`REPLACE_GAP`], because reconciling can be much faster
//! than checking.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate_structures::histogram::{Durations, Recorder};
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::check_result::{Answer, CheckResult};
use super::schedule::{self, Change, Schedule, Ticket};
use super::{Failure, Limits, Target, Targets, UDP_SILENCE_MAX, Verdicts};

/// The minimum time between two replacements of the targets.
const REPLACE_GAP: Duration = Duration::from_millis(50);

/// Checks a target. The daemon uses [`NetworkProber`](super::NetworkProber).
pub trait Prober: Clone + Send + Sync + 'static {
    /// Performs one check. The runner cancels it after the timeout by dropping it.
    fn run_check(&self, target: &Target) -> impl Future<Output = Answer> + Send;
}

/// The results so far, for `tidegate_health_checks_total{result}`, and the current load.
#[derive(Debug, Default)]
pub struct CheckCounts {
    success: AtomicU64,
    failure: AtomicU64,
    inconclusive: AtomicU64,
    /// Written only by the task that runs the checks.
    round_trips: Recorder,
    late: AtomicU64,
    targets: AtomicU64,
    failing: AtomicU64,
    damped: AtomicU64,
    in_progress: AtomicU64,
    stretch: AtomicU64,
}

/// The load of checks, and whether the gateway keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckLoad {
    /// The number of targets.
    pub targets: u64,
    /// The number of targets that fail.
    pub failing: u64,
    /// The number of targets that are damped.
    pub damped: u64,
    /// The number of checks in progress.
    pub in_progress: u64,
    /// The number of checks so far that started more than an interval late.
    pub late: u64,
    /// The largest factor by which the intervals of a namespace are stretched to stay below the limit of checks per
    /// second. 1 if no interval is stretched.
    pub stretch: u64,
}

impl CheckCounts {
    /// The number of checks by result. A check is inconclusive if the gateway itself was at fault.
    #[must_use]
    pub fn read(&self) -> [(&'static str, u64); 3] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("success", read(&self.success)),
            ("failure", read(&self.failure)),
            ("inconclusive", read(&self.inconclusive)),
        ]
    }

    /// The durations of all conclusive checks, in nanoseconds: from the start to the result or the timeout.
    #[must_use]
    pub fn round_trips(&self) -> Durations {
        self.round_trips.read()
    }

    /// The current load.
    #[must_use]
    pub fn load(&self) -> CheckLoad {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CheckLoad {
            targets: read(&self.targets),
            failing: read(&self.failing),
            damped: read(&self.damped),
            in_progress: read(&self.in_progress),
            late: read(&self.late),
            stretch: read(&self.stretch).max(1),
        }
    }

    fn count(&self, result: CheckResult, took: Duration) {
        if result != CheckResult::Inconclusive {
            self.round_trips.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
        let counter = match result {
            CheckResult::Success => &self.success,
            CheckResult::Failure(_) => &self.failure,
            CheckResult::Inconclusive => &self.inconclusive,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn update_load(&self, schedule: &Schedule, verdicts: &Verdicts) {
        let store = |counter: &AtomicU64, n: usize| counter.store(n as u64, Ordering::Relaxed);
        store(&self.targets, schedule.len());
        store(&self.in_progress, schedule.in_progress());
        store(&self.failing, verdicts.failing_count());
        store(&self.damped, verdicts.damped_count());
        self.late.store(schedule.late(), Ordering::Relaxed);
        self.stretch.store(u64::from(schedule.stretch()), Ordering::Relaxed);
    }
}

/// Checks targets until it is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use tidegate_health::{Checker, Limits, NetworkProber};
/// use tidegate_model::health::Verdicts;
/// let checker = Checker::start(NetworkProber::new(), Limits::default(), "edge-1");
/// assert_eq!(*checker.verdicts().borrow(), Verdicts::default());
/// # });
/// ```
#[derive(Debug)]
pub struct Checker {
    targets: watch::Sender<Targets>,
    verdicts: watch::Receiver<Verdicts>,
    counts: Arc<CheckCounts>,
    connectivity: Connectivity,
}

/// Returns whether the gateway itself can forward; true if unset.
#[derive(Clone, Default)]
struct Connectivity(Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>);

impl std::fmt::Debug for Connectivity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connectivity").finish_non_exhaustive()
    }
}

impl Connectivity {
    /// Whether a failure may be the target's fault.
    fn is_open(&self) -> bool {
        self.0.get().is_none_or(|is_open| is_open())
    }
}

impl Checker {
    /// Starts without targets, on the current tokio runtime. The gateway's name determines when in its interval each
    /// target is checked, so that two gateways check the same target at different times.
    pub fn start(prober: impl Prober, limits: Limits, gateway: &str) -> Self {
        let (targets, targets_seen) = watch::channel(Targets::default());
        let (verdicts_out, verdicts) = watch::channel(Verdicts::default());
        let (counts, connectivity) = (Arc::new(CheckCounts::default()), Connectivity::default());
        let runner = Runner {
            prober,
            schedule: Schedule::new(limits, schedule::seed_of(gateway)),
            began: Instant::now(),
            in_progress: JoinSet::new(),
            tickets: HashMap::new(),
            verdicts: verdicts_out,
            counts: counts.clone(),
            connectivity: connectivity.clone(),
        };
        tokio::spawn(runner.run(targets_seen));
        Self { targets, verdicts, counts, connectivity }
    }

    /// Counts failures only while `can_forward` returns true. Without this, a gateway whose own link is down would
    /// consider all targets down, and choose different backends than its peers when the link is back. Only the first
    /// call has an effect.
    pub fn fail_only_while(&self, can_forward: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.connectivity.0.set(Box::new(can_forward));
    }

    /// Replaces the targets. Targets that remain keep their state and their time in the interval. A target whose probe
    /// changed keeps the verdict on its address until the new probe has one. The cost is proportional to the number of
    /// changes.
    pub fn set_targets(&self, targets: Targets) {
        self.targets.send_if_modified(|now| {
            let changed = !now.is_same(&targets);
            *now = targets;
            changed
        });
    }

    /// The current verdicts; they change when the state or weight of a target changes, not with every check.
    #[must_use]
    pub fn verdicts(&self) -> watch::Receiver<Verdicts> {
        self.verdicts.clone()
    }

    /// The results so far.
    #[must_use]
    pub fn counts(&self) -> Arc<CheckCounts> {
        self.counts.clone()
    }
}

struct Runner<P> {
    prober: P,
    schedule: Schedule,
    began: Instant,
    in_progress: JoinSet<(Answer, Duration)>,
    tickets: HashMap<task::Id, Ticket>,
    verdicts: watch::Sender<Verdicts>,
    counts: Arc<CheckCounts>,
    connectivity: Connectivity,
}

impl<P: Prober> Runner<P> {
    async fn run(mut self, mut targets: watch::Receiver<Targets>) {
        let mut replace_from = self.began;
        loop {
            let next = self.schedule.next().map(|next| self.began + next);
            tokio::select! {
                changed = async { sleep_until(replace_from).await; targets.changed().await } => {
                    if changed.is_err() {
                        return; // The checker was dropped; dropping `in_progress` aborts the checks.
                    }
                    let wanted = targets.borrow_and_update().clone();
                    let changes = self.schedule.replace(&wanted, self.began.elapsed());
                    self.publish(&changes);
                    replace_from = Instant::now() + REPLACE_GAP;
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                Some(ended) = self.in_progress.join_next_with_id() => {
                    let mut changes = Vec::new();
                    let mut ended = Some(ended);
                    // All results so far are published together.
                    while let Some(one) = ended {
                        changes.extend(self.end(one));
                        ended = self.in_progress.try_join_next_with_id();
                    }
                    self.publish(&changes);
                }
            }
            while let Some((ticket, target)) = self.schedule.begin(self.began.elapsed()) {
                let task = self.in_progress.spawn(timed(check(self.prober.clone(), target)));
                self.tickets.insert(task.id(), ticket);
            }
            self.counts.update_load(&self.schedule, &self.verdicts.borrow());
        }
    }

    fn end(&mut self, ended: Result<(task::Id, (Answer, Duration)), JoinError>) -> Option<Change> {
        let (id, (answer, took)) = ended.unwrap_or_else(|panic| {
            // A panic in the check of one target must not end the checks of all others.
            tracing::error!(error = %panic, "a health check panicked");
            (panic.id(), (CheckResult::Inconclusive.into(), Duration::ZERO))
        });
        let is_own = matches!(answer.result, CheckResult::Failure(_)) && !self.connectivity.is_open();
        let answer = if is_own { CheckResult::Inconclusive.into() } else { answer };
        self.counts.count(answer.result, took);
        let ticket = self.tickets.remove(&id).expect("every task has a ticket");
        self.schedule.end(ticket, answer, self.began.elapsed())
    }

    fn publish(&self, changes: &[Change]) {
        if !changes.is_empty() {
            self.verdicts.send_modify(|verdicts| {
                changes.iter().for_each(|(target, status)| verdicts.set(target, *status));
            });
        }
    }
}

/// A check with the time that it took.
async fn timed(check: impl Future<Output = Answer>) -> (Answer, Duration) {
    let began = Instant::now();
    let answer = check.await;
    (answer, began.elapsed())
}

async fn check(prober: impl Prober, target: Target) -> Answer {
    let probe = &target.probe;
    let (limit, silence) = if probe.check.passes_in_silence() {
        (probe.rules.timeout.min(UDP_SILENCE_MAX), CheckResult::Success)
    } else {
        (probe.rules.timeout, CheckResult::Failure(Failure::Timeout))
    };
    // If silence counts as success, a check at the VIP proves nothing about the VIP.
    if target.at_vip.is_some() && !probe.check.passes_in_silence() {
        return check_at_vip(&prober, &target, limit).await;
    }
    timeout(limit, prober.run_check(&target)).await.unwrap_or(silence.into())
}

/// Performs a check at a VIP. If it fails, or has no result after half of the time, the endpoint's own address is
/// checked too, to distinguish an endpoint that is down from one that lacks the VIP.
async fn check_at_vip(prober: &impl Prober, target: &Target, limit: Duration) -> Answer {
    let until = Instant::now() + limit;
    let checking = prober.run_check(target);
    tokio::pin!(checking);
    let early = timeout(limit / 2, checking.as_mut()).await;
    if let Ok(answer) = early
        && !matches!(answer.result, CheckResult::Failure(_))
    {
        return answer;
    }
    let plain = target.at_own_address();
    let own = prober.run_check(&plain);
    tokio::pin!(own);
    let (mut at_vip, mut at_own) = (early.ok(), None);
    while at_vip.is_none() || at_own.is_none() {
        tokio::select! {
            () = sleep_until(until) => break,
            answer = checking.as_mut(), if at_vip.is_none() => {
                if !matches!(answer.result, CheckResult::Failure(_)) {
                    return answer;
                }
                at_vip = Some(answer);
            }
            answer = own.as_mut(), if at_own.is_none() => at_own = Some(answer),
        }
    }
    let is_good = at_own.is_some_and(|answer| answer.result == CheckResult::Success);
    match at_vip {
        // The target answered at the VIP, which is also what clients see.
        Some(answer) if !is_good || answer.result.is_from_target() => answer,
        _ if is_good => CheckResult::Failure(Failure::NotOnVip).into(),
        // Otherwise the result at the endpoint's own address counts, if there is one.
        _ => at_own.unwrap_or(CheckResult::Failure(Failure::Timeout).into()),
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
