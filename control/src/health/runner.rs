//! Runs the checks: one task that knows when each target is due, and one short task per check under way.
//!
//! A target's first check falls at a point of its interval that its address and a seed decide, so ten thousand
//! targets do not start together; after that it keeps its cadence. Checks under way are bounded: beyond the
//! bound they wait their turn, and are late rather than lost.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Failing, Tally, Target};

/// How a check connects; the real one is [`TcpConnect`].
pub trait Connect: Clone + Send + Sync + 'static {
    /// Connects and closes again.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<()>> + Send;
}

/// A TCP handshake, closed by RST so that checks leave no TIME_WAIT behind.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpConnect;

impl Connect for TcpConnect {
    async fn connect(&self, address: SocketAddr) -> io::Result<()> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        // Closing politely is all that is lost where this is refused.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        Ok(())
    }
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

    fn count(&self, result: Verdict) {
        let counter = match result {
            Verdict::Success => &self.success,
            Verdict::Failure => &self.failure,
            Verdict::Inconclusive => &self.inconclusive,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks targets until it is dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use tidegate::health::{Checker, TcpConnect};
/// let checker = Checker::start(TcpConnect, 64, 1);
/// assert!(checker.failing().borrow().is_empty());
/// # });
/// ```
#[derive(Debug)]
pub struct Checker {
    targets: watch::Sender<BTreeSet<Target>>,
    failing: watch::Receiver<Failing>,
    counts: Arc<CheckCounts>,
}

impl Checker {
    /// Starts without targets, on the tokio runtime that this is called in. At most `concurrent_max` checks
    /// (one file descriptor each) are under way at once; `seed` spreads the first checks.
    pub fn start(connect: impl Connect, concurrent_max: usize, seed: u64) -> Self {
        let (targets, targets_seen) = watch::channel(BTreeSet::new());
        let (failing_out, failing) = watch::channel(Failing::default());
        let counts = Arc::new(CheckCounts::default());
        let runner = Runner {
            connect,
            concurrent_max: concurrent_max.max(1),
            seed,
            known: HashMap::new(),
            epoch: 0,
            due: BinaryHeap::new(),
            waiting: VecDeque::new(),
            under_way: JoinSet::new(),
            failing: failing_out,
            counts: counts.clone(),
        };
        tokio::spawn(runner.run(targets_seen));
        Self { targets, failing, counts }
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

    /// What fails now; changes when a target turns, not with every check.
    #[must_use]
    pub fn failing(&self) -> watch::Receiver<Failing> {
        self.failing.clone()
    }

    /// Results so far.
    #[must_use]
    pub fn counts(&self) -> Arc<CheckCounts> {
        self.counts.clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Success,
    Failure,
    Inconclusive,
}

/// A check to come. The epoch tells the checks of a target that was taken out and put back from its old ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    target: Target,
    epoch: u64,
}

struct Known {
    tally: Tally,
    epoch: u64,
}

struct Runner<C> {
    connect: C,
    concurrent_max: usize,
    seed: u64,
    known: HashMap<Target, Known>,
    /// Of the next [`Known`].
    epoch: u64,
    due: BinaryHeap<Reverse<Due>>,
    /// Due, and over the bound.
    waiting: VecDeque<Due>,
    under_way: JoinSet<(Due, Verdict)>,
    failing: watch::Sender<Failing>,
    counts: Arc<CheckCounts>,
}

impl<C: Connect> Runner<C> {
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
                    let (due, verdict) =
                        ended.expect("a check neither panics nor is cancelled while the runner lives");
                    self.end(due, verdict);
                }
            }
        }
    }

    fn replace(&mut self, wanted: &BTreeSet<Target>) {
        let mut failing_before: HashMap<SocketAddr, bool> = HashMap::new();
        for (target, known) in &self.known {
            *failing_before.entry(target.address).or_insert(true) &= !known.tally.passes();
        }
        self.known.retain(|target, _| wanted.contains(target));
        self.waiting.retain(|due| wanted.contains(&due.target));
        self.due.retain(|Reverse(due)| wanted.contains(&due.target));
        let now = Instant::now();
        for target in wanted {
            if self.known.contains_key(target) {
                continue;
            }
            let failed = failing_before.get(&target.address).copied().unwrap_or(false);
            self.epoch += 1;
            self.known.insert(*target, Known { tally: Tally::new(!failed), epoch: self.epoch });
            let at = now + self.first_delay(target);
            self.due.push(Reverse(Due { at, target: *target, epoch: self.epoch }));
        }
        self.publish();
    }

    /// Where in its interval a target begins.
    fn first_delay(&self, target: &Target) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.seed, target.address).hash(&mut hasher);
        let share = (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64;
        target.probe.interval.mul_f64(share)
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse(due)) = self.due.peek().copied().filter(|Reverse(due)| due.at <= now) {
            self.due.pop();
            self.waiting.push_back(due);
        }
        self.start_waiting();
    }

    fn start_waiting(&mut self) {
        while self.under_way.len() < self.concurrent_max {
            let Some(due) = self.waiting.pop_front() else { break };
            let connect = self.connect.clone();
            let target = due.target;
            self.under_way.spawn(async move {
                let verdict = match timeout(target.probe.timeout, connect.connect(target.address)).await {
                    Ok(Ok(())) => Verdict::Success,
                    Ok(Err(e)) if is_our_fault(&e) => Verdict::Inconclusive,
                    Ok(Err(_)) | Err(_) => Verdict::Failure,
                };
                (due, verdict)
            });
        }
    }

    fn end(&mut self, due: Due, verdict: Verdict) {
        self.counts.count(verdict);
        let Due { at, target, epoch } = due;
        if let Some(known) = self.known.get_mut(&target).filter(|k| k.epoch == epoch) {
            let at = (at + target.probe.interval).max(Instant::now());
            self.due.push(Reverse(Due { at, target, epoch }));
            let turned = match verdict {
                Verdict::Success => known.tally.record(true, &target.probe),
                Verdict::Failure => known.tally.record(false, &target.probe),
                Verdict::Inconclusive => false,
            };
            if turned {
                self.publish();
            }
        }
        self.start_waiting();
    }

    fn publish(&self) {
        let failing: Failing =
            self.known.iter().filter(|(_, k)| !k.tally.passes()).map(|(t, _)| *t).collect();
        self.failing.send_if_modified(|now| {
            let changed = *now != failing;
            *now = failing;
            changed
        });
    }
}

/// Whether an error is about this host and not about the target: no descriptor, no memory, no local port.
fn is_our_fault(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL, Errno::AGAIN];
    error.raw_os_error().is_some_and(|raw| ours.contains(&Errno::from_raw_os_error(raw)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use tokio::net::TcpListener;

    use super::super::Probe;
    use super::*;

    fn target(address: &str, interval_ms: u64) -> Target {
        let interval = Duration::from_millis(interval_ms);
        let timeout = interval / 2;
        let probe = Probe { interval, timeout, healthy_threshold: 2, unhealthy_threshold: 3 };
        Target { address: address.parse().expect("an address"), probe }
    }

    /// Answers from a script and notes when it was asked.
    #[derive(Clone, Default)]
    struct Scripted(Arc<Mutex<Script>>);

    #[derive(Default)]
    struct Script {
        /// Errno by address; none is success.
        errors: BTreeMap<SocketAddr, i32>,
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

    impl Connect for Scripted {
        async fn connect(&self, address: SocketAddr) -> io::Result<()> {
            let (error, silent) = {
                let mut script = self.script();
                script.asked.push((address, Instant::now()));
                script.under_way += 1;
                script.under_way_max = script.under_way_max.max(script.under_way);
                (script.errors.get(&address).copied(), script.silent)
            };
            if silent {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.script().under_way -= 1;
            error.map_or(Ok(()), |raw| Err(io::Error::from_raw_os_error(raw)))
        }
    }

    const REFUSED: i32 = 111;
    const TOO_MANY_FILES: i32 = 24;

    #[tokio::test(start_paused = true)]
    async fn a_target_fails_after_three_failures_and_is_back_after_two_successes() {
        let scripted = Scripted::default();
        let target = target("192.0.2.1:80", 2000);
        scripted.script().errors.insert(target.address, REFUSED);
        let checker = Checker::start(scripted.clone(), 8, 1);
        let mut failing = checker.failing();
        checker.set_targets(BTreeSet::from([target]));
        failing.changed().await.expect("the runner lives");
        assert!(failing.borrow_and_update().contains(&target));
        assert_eq!(scripted.script().asked.len(), 3);
        let gaps: Vec<Duration> = scripted.script().asked.windows(2).map(|w| w[1].1 - w[0].1).collect();
        assert_eq!(gaps, [Duration::from_secs(2); 2], "the cadence does not drift");

        scripted.script().errors.clear();
        failing.changed().await.expect("the runner lives");
        assert!(failing.borrow_and_update().is_empty());
        assert_eq!(scripted.script().asked.len(), 5);
        assert_eq!(checker.counts().read(), [("success", 2), ("failure", 3), ("inconclusive", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_a_failure_after_the_timeout() {
        let scripted = Scripted::default();
        scripted.script().silent = true;
        let target = target("192.0.2.1:80", 2000);
        let checker = Checker::start(scripted, 8, 1);
        let mut failing = checker.failing();
        checker.set_targets(BTreeSet::from([target]));
        failing.changed().await.expect("the runner lives");
        assert!(failing.borrow().contains(&target));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_of_the_gateway_says_nothing_about_the_target() {
        let scripted = Scripted::default();
        let target = target("192.0.2.1:80", 1000);
        scripted.script().errors.insert(target.address, TOO_MANY_FILES);
        let checker = Checker::start(scripted, 8, 1);
        checker.set_targets(BTreeSet::from([target]));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(checker.failing().borrow().is_empty());
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
        scripted.script().errors.insert(old.address, REFUSED);
        let checker = Checker::start(scripted.clone(), 8, 1);
        let mut failing = checker.failing();
        checker.set_targets(BTreeSet::from([old]));
        failing.changed().await.expect("the runner lives");
        let new = target("192.0.2.1:80", 500);
        checker.set_targets(BTreeSet::from([old, new]));
        failing.changed().await.expect("the runner lives");
        assert!(failing.borrow().contains(&new) && failing.borrow().contains(&old));
        checker.set_targets(BTreeSet::from([new]));
        failing.changed().await.expect("the runner lives");
        assert_eq!(failing.borrow().iter().copied().collect::<Vec<_>>(), [new]);
        checker.set_targets(BTreeSet::new());
        failing.changed().await.expect("the runner lives");
        let asked = scripted.script().asked.len();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(scripted.script().asked.len() <= asked + 1, "what is no target is not checked");
    }

    #[tokio::test]
    async fn a_real_listener_passes_and_fails_when_it_is_gone() {
        let bound = async |address: &str| TcpListener::bind(address).await.expect("a free port");
        let (stays, goes) = (bound("127.0.0.1:0").await, bound("127.0.0.1:0").await);
        let of = |l: &TcpListener| target(&l.local_addr().expect("it is bound").to_string(), 20);
        let (stays_target, goes_target) = (of(&stays), of(&goes));
        let checker = Checker::start(TcpConnect, 8, 1);
        let mut failing = checker.failing();
        checker.set_targets(BTreeSet::from([stays_target, goes_target]));
        for _ in 0..2 {
            goes.accept().await.expect("a check comes");
        }
        assert!(failing.borrow_and_update().is_empty());
        drop(goes);
        let bound = Duration::from_secs(10);
        timeout(bound, failing.changed()).await.expect("within bounds").expect("the runner lives");
        assert_eq!(failing.borrow().iter().copied().collect::<Vec<_>>(), [goes_target]);
        assert!(checker.counts().read()[0].1 >= 2);
    }
}
