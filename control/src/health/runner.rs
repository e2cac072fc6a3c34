//! Runs the checks: one task that knows when each target is due, and one short task per check under way.
//!
//! A target's first check falls at a point of its interval that its address and a seed decide, so ten thousand
//! targets do not start together; after that it keeps its cadence. Checks under way are bounded: beyond the
//! bound they wait their turn, and are late rather than lost.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Failure, Standing, Tally, Target, Verdicts};

/// How a target is asked; the real one is [`NetworkProber`](super::NetworkProber).
pub trait Prober: Clone + Send + Sync + 'static {
    /// Asks once. The runner ends it after the timeout, by dropping it.
    fn ask(&self, target: &Target) -> impl Future<Output = Answer> + Send;
}

/// What one check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether it was good.
    pub result: CheckResult,
    /// The weight that a node told with it.
    pub weight: Option<u16>,
}

impl From<CheckResult> for Answer {
    fn from(result: CheckResult) -> Self {
        Self { result, weight: None }
    }
}

/// The three ways in which a check ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    /// As it should be.
    Success,
    /// The target's fault, or the network's between us.
    Failure(Failure),
    /// The gateway's own fault: says nothing about the target.
    Inconclusive,
}

/// Results so far, for `tidegate_health_checks_total{result}`.
#[derive(Debug, Default)]
pub struct CheckCounts {
    success: AtomicU64,
    failure: AtomicU64,
    inconclusive: AtomicU64,
}

impl CheckCounts {
    /// (`success`, `failure`, `inconclusive`): the last are faults of the gateway itself.
    #[must_use]
    pub fn read(&self) -> [(&'static str, u64); 3] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("success", read(&self.success)),
            ("failure", read(&self.failure)),
            ("inconclusive", read(&self.inconclusive)),
        ]
    }

    fn count(&self, result: CheckResult) {
        let counter = match result {
            CheckResult::Success => &self.success,
            CheckResult::Failure(_) => &self.failure,
            CheckResult::Inconclusive => &self.inconclusive,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks targets until it is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use tidegate::health::{Checker, NetworkProber, Verdicts};
/// let checker = Checker::start(NetworkProber::new(), 64, 1);
/// assert_eq!(*checker.verdicts().borrow(), Verdicts::default());
/// # });
/// ```
#[derive(Debug)]
pub struct Checker {
    targets: watch::Sender<BTreeSet<Target>>,
    verdicts: watch::Receiver<Verdicts>,
    counts: Arc<CheckCounts>,
}

impl Checker {
    /// Starts without targets, on the tokio runtime that this is called in. At most `concurrent_max` checks
    /// (one file descriptor each) are under way at once; `seed` spreads the first checks.
    pub fn start(prober: impl Prober, concurrent_max: usize, seed: u64) -> Self {
        let (targets, targets_seen) = watch::channel(BTreeSet::new());
        let (verdicts_out, verdicts) = watch::channel(Verdicts::default());
        let counts = Arc::new(CheckCounts::default());
        let runner = Runner {
            prober,
            concurrent_max: concurrent_max.max(1),
            seed,
            known: HashMap::new(),
            epoch: 0,
            due: BinaryHeap::new(),
            waiting: VecDeque::new(),
            under_way: JoinSet::new(),
            verdicts: verdicts_out,
            counts: counts.clone(),
        };
        tokio::spawn(runner.run(targets_seen));
        Self { targets, verdicts, counts }
    }

    /// Replaces the targets. Those that stay keep their state and cadence; one whose probe changed keeps the
    /// state that its address was in.
    pub fn set_targets(&self, targets: BTreeSet<Target>) {
        self.targets.send_if_modified(|now| {
            let changed = *now != targets;
            *now = targets;
            changed
        });
    }

    /// What is known now; changes when a target turns or tells another weight, not with every check.
    #[must_use]
    pub fn verdicts(&self) -> watch::Receiver<Verdicts> {
        self.verdicts.clone()
    }

    /// Results so far.
    #[must_use]
    pub fn counts(&self) -> Arc<CheckCounts> {
        self.counts.clone()
    }
}

/// A check to come. The epoch tells the checks of a target that was taken out and put back from its old ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    target: Target,
    epoch: u64,
}

struct Known {
    tally: Tally,
    standing: Standing,
    epoch: u64,
}

struct Runner<C> {
    prober: C,
    concurrent_max: usize,
    seed: u64,
    known: HashMap<Target, Known>,
    /// Of the next [`Known`].
    epoch: u64,
    due: BinaryHeap<Reverse<Due>>,
    /// Due, and over the bound.
    waiting: VecDeque<Due>,
    under_way: JoinSet<(Due, Answer)>,
    verdicts: watch::Sender<Verdicts>,
    counts: Arc<CheckCounts>,
}

impl<C: Prober> Runner<C> {
    async fn run(mut self, mut targets: watch::Receiver<BTreeSet<Target>>) {
        loop {
            let next = self.due.peek().map(|Reverse(due)| due.at);
            tokio::select! {
                changed = targets.changed() => {
                    if changed.is_err() {
                        return; // The checker was dropped; dropping `under_way` aborts the checks.
                    }
                    let wanted = targets.borrow_and_update().clone();
                    self.replace(&wanted);
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.start_due(),
                Some(ended) = self.under_way.join_next() => {
                    let (due, answer) =
                        ended.expect("a check neither panics nor is cancelled while the runner lives");
                    self.end(due, answer);
                }
            }
        }
    }

    fn replace(&mut self, wanted: &BTreeSet<Target>) {
        let mut failing_before: HashMap<SocketAddr, Option<Failure>> = HashMap::new();
        for (target, known) in &self.known {
            let failure = failing_before.entry(target.address).or_insert(known.standing.failure);
            *failure = failure.and(known.standing.failure);
        }
        self.known.retain(|target, _| wanted.contains(target));
        self.waiting.retain(|due| wanted.contains(&due.target));
        self.due.retain(|Reverse(due)| wanted.contains(&due.target));
        let now = Instant::now();
        for target in wanted {
            if self.known.contains_key(target) {
                continue;
            }
            let failure = failing_before.get(&target.address).copied().flatten();
            self.epoch += 1;
            let standing = Standing { failure, ..Standing::default() };
            let known = Known { tally: Tally::new(failure.is_none()), standing, epoch: self.epoch };
            self.known.insert(target.clone(), known);
            let at = now + self.first_delay(target);
            self.due.push(Reverse(Due { at, target: target.clone(), epoch: self.epoch }));
        }
        self.publish();
    }

    /// Where in its interval a target begins.
    fn first_delay(&self, target: &Target) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.seed, target.address).hash(&mut hasher);
        let share = (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64;
        target.probe.rules.interval.mul_f64(share)
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse(due)) = self.due.peek().cloned().filter(|Reverse(due)| due.at <= now) {
            self.due.pop();
            self.waiting.push_back(due);
        }
        self.start_waiting();
    }

    fn start_waiting(&mut self) {
        while self.under_way.len() < self.concurrent_max {
            let Some(due) = self.waiting.pop_front() else { break };
            let prober = self.prober.clone();
            self.under_way.spawn(async move {
                let probe = &due.target.probe;
                let answer = timeout(probe.rules.timeout, prober.ask(&due.target)).await;
                let silence = if probe.check.passes_in_silence() {
                    CheckResult::Success
                } else {
                    CheckResult::Failure(Failure::Timeout)
                };
                (due, answer.unwrap_or(silence.into()))
            });
        }
    }

    fn end(&mut self, due: Due, answer: Answer) {
        self.counts.count(answer.result);
        let Due { at, target, epoch } = due;
        if let Some(known) = self.known.get_mut(&target).filter(|k| k.epoch == epoch) {
            let rules = &target.probe.rules;
            let at = (at + rules.interval).max(Instant::now());
            let before = known.standing;
            known.standing.weight = answer.weight.or(before.weight);
            let (success, failure) = match answer.result {
                CheckResult::Success => (Some(true), None),
                CheckResult::Failure(failure) => (Some(false), Some(failure)),
                CheckResult::Inconclusive => (None, None),
            };
            if success.is_some_and(|success| known.tally.record(success, rules)) {
                known.standing.damping = known.tally.damping();
                known.standing.failure = match known.tally.passes() {
                    true => None,
                    false => before.failure.or(failure),
                };
            }
            let standing = known.standing;
            if standing != before {
                self.verdicts.send_modify(|verdicts| verdicts.set(&target, standing));
            }
            self.due.push(Reverse(Due { at, target, epoch }));
        }
        self.start_waiting();
    }

    fn publish(&self) {
        let known = self.known.iter();
        let verdicts = known.map(|(target, known)| (target.clone(), known.standing)).collect::<Verdicts>();
        self.verdicts.send_if_modified(|now| {
            let changed = *now != verdicts;
            *now = verdicts;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::super::{Check, Probe, Rules};
    use super::*;

    fn target(address: &str, interval_ms: u64) -> Target {
        let interval = Duration::from_millis(interval_ms);
        let timeout = interval / 2;
        let rules = Rules { interval, timeout, ..Rules::default() };
        Target::new(address.parse().expect("an address"), &Probe { check: Check::Tcp, rules }.into())
    }

    /// Answers from a script and notes when it was asked.
    #[derive(Clone, Default)]
    struct Scripted(Arc<Mutex<Script>>);

    #[derive(Default)]
    struct Script {
        /// By address; none is success.
        results: BTreeMap<SocketAddr, CheckResult>,
        /// Never answers.
        silent: bool,
        asked: Vec<(SocketAddr, Instant)>,
        under_way_max: usize,
        under_way: usize,
    }

    impl Scripted {
        fn script(&self) -> std::sync::MutexGuard<'_, Script> {
            self.0.lock().expect("no test panics with the lock")
        }
    }

    impl Prober for Scripted {
        async fn ask(&self, target: &Target) -> Answer {
            let address = target.address;
            let (result, silent) = {
                let mut script = self.script();
                script.asked.push((address, Instant::now()));
                script.under_way += 1;
                script.under_way_max = script.under_way_max.max(script.under_way);
                (script.results.get(&address).copied(), script.silent)
            };
            if silent {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.script().under_way -= 1;
            result.unwrap_or(CheckResult::Success).into()
        }
    }

    const REFUSED: CheckResult = CheckResult::Failure(Failure::Refused);

    #[tokio::test(start_paused = true)]
    async fn a_target_fails_after_three_failures_and_is_back_after_two_successes() {
        let scripted = Scripted::default();
        let target = target("192.0.2.1:80", 2000);
        scripted.script().results.insert(target.address, REFUSED);
        let checker = Checker::start(scripted.clone(), 8, 1);
        let mut verdicts = checker.verdicts();
        checker.set_targets(BTreeSet::from([target.clone()]));
        verdicts.changed().await.expect("the runner lives");
        assert!(verdicts.borrow_and_update().fails(&target));
        assert_eq!(scripted.script().asked.len(), 3);
        let gaps: Vec<Duration> = scripted.script().asked.windows(2).map(|w| w[1].1 - w[0].1).collect();
        assert_eq!(gaps, [Duration::from_secs(2); 2], "the cadence does not drift");

        scripted.script().results.clear();
        verdicts.changed().await.expect("the runner lives");
        assert!(verdicts.borrow_and_update().failing().next().is_none());
        assert_eq!(scripted.script().asked.len(), 5);
        assert_eq!(checker.counts().read(), [("success", 2), ("failure", 3), ("inconclusive", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_a_failure_after_the_timeout() {
        let scripted = Scripted::default();
        scripted.script().silent = true;
        let target = target("192.0.2.1:80", 2000);
        let checker = Checker::start(scripted, 8, 1);
        let mut verdicts = checker.verdicts();
        checker.set_targets(BTreeSet::from([target.clone()]));
        verdicts.changed().await.expect("the runner lives");
        assert!(verdicts.borrow().fails(&target));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_of_the_gateway_says_nothing_about_the_target() {
        let scripted = Scripted::default();
        let target = target("192.0.2.1:80", 1000);
        scripted.script().results.insert(target.address, CheckResult::Inconclusive);
        let checker = Checker::start(scripted, 8, 1);
        checker.set_targets(BTreeSet::from([target.clone()]));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(checker.verdicts().borrow().failing().next().is_none());
        assert!(checker.counts().read()[2].1 >= 19);
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_targets_are_spread_over_the_interval_and_bounded() {
        let scripted = Scripted::default();
        let targets: BTreeSet<Target> =
            (0..10_000_u32).map(|i| target(&format!("10.{}.{}.1:80", i / 250, i % 250), 2000)).collect();
        let checker = Checker::start(scripted.clone(), 50, 7);
        checker.set_targets(targets);
        tokio::time::sleep(Duration::from_millis(1990)).await;
        let script = scripted.script();
        assert!(script.asked.len() > 9_000, "{} asked", script.asked.len());
        assert!(script.under_way_max <= 50);
        let start = script.asked[0].1;
        let early = script.asked.iter().filter(|(_, at)| *at - start < Duration::from_secs(1)).count();
        assert!((4_500..5_500).contains(&early), "{early} in the first half");
    }

    #[tokio::test(start_paused = true)]
    async fn state_survives_a_reload_even_with_another_probe() {
        let scripted = Scripted::default();
        let old = target("192.0.2.1:80", 1000);
        scripted.script().results.insert(old.address, REFUSED);
        let checker = Checker::start(scripted.clone(), 8, 1);
        let mut verdicts = checker.verdicts();
        checker.set_targets(BTreeSet::from([old.clone()]));
        verdicts.changed().await.expect("the runner lives");
        let new = target("192.0.2.1:80", 500);
        checker.set_targets(BTreeSet::from([old.clone(), new.clone()]));
        verdicts.changed().await.expect("the runner lives");
        assert!(verdicts.borrow().fails(&new) && verdicts.borrow().fails(&old));
        checker.set_targets(BTreeSet::from([new.clone()]));
        verdicts.changed().await.expect("the runner lives");
        assert_eq!(verdicts.borrow().failing().collect::<Vec<_>>(), [&new]);
        checker.set_targets(BTreeSet::new());
        verdicts.changed().await.expect("the runner lives");
        let asked = scripted.script().asked.len();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(scripted.script().asked.len() <= asked + 1, "what is no target is not checked");
    }
}
