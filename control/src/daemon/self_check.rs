//! Compares incremental results with results computed from scratch, in the background.
//!
//! Reconcile, the allocation of addresses and the compile of snapshots compute only what a change affects. Periodically
//! (`selfCheck.interval`, `selfCheck.changes`), [`SelfCheck`] compares one round and the snapshot in use on a
//! low-priority thread. A difference is a bug: it is logged with both results and counted, and the controller computes
//! its next round from scratch. The cluster writer compares its plans itself, equally often
//! (`plan_compared` of `tidegate_cluster`).
//!
//! Invariant: a round never waits for a comparison, and only one comparison runs at a time. Its memory is freed when it
//! ends. The controller frees the snapshot, because that takes a lock that others wait for, and a low-priority thread
//! could own it for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_dataplane::gateway::KeptSnapshot;
use tidegate_model::config::SelfCheckConfig;
use tidegate_policy::reconcile::{self, Compared, Outcome};
use tidegate_structures::difference::Difference;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::low_priority;

/// The pause after a comparison, as a multiple of its duration, so that comparisons use at most 5 % of one CPU.
const PAUSE_FACTOR: u32 = 20;

tidegate_wire::named! {
    /// The results that are computed incrementally.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Layer {
        /// The desired state: the result for each Service.
        Reconcile => "reconcile",
        /// The addresses of Services.
        Allocation => "allocation",
        /// The snapshot that the workers use.
        Snapshot => "snapshot",
    }
}

/// The numbers of comparisons.
#[derive(Debug, Default)]
pub(super) struct Comparisons([(AtomicU64, AtomicU64); Layer::ALL.len()]);

impl Comparisons {
    fn count(&self, layer: Layer, is_different: bool) {
        let (made, different) = &self.0[layer as usize];
        made.fetch_add(1, Ordering::Relaxed);
        different.fetch_add(u64::from(is_different), Ordering::Relaxed);
    }

    /// (Layer, comparisons made, comparisons that found a difference).
    pub(super) fn read(&self) -> [(&'static str, u64, u64); Layer::ALL.len()] {
        Layer::ALL.map(|layer| {
            let (made, different) = &self.0[layer as usize];
            (layer.as_str(), made.load(Ordering::Relaxed), different.load(Ordering::Relaxed))
        })
    }
}

/// The subject of a comparison. It shares most of its memory with the state in use.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) round: reconcile::Round,
    /// The snapshot in use, and the outcome that it was compiled from.
    pub(super) snapshot: Option<(KeptSnapshot, Arc<Outcome>)>,
}

/// A comparison that ended.
#[derive(Debug)]
struct Done {
    took: Duration,
    /// The layers with a difference.
    different: Vec<Layer>,
    /// Freed by the receiver.
    snapshot: Option<KeptSnapshot>,
}

/// Runs the comparisons.
#[derive(Debug)]
pub(super) struct SelfCheck {
    counts: Arc<Comparisons>,
    /// Changes when a comparison has ended.
    ends: watch::Sender<()>,
    in_progress: Option<oneshot::Receiver<Done>>,
    /// Rounds with a computation since the last comparison started.
    changes: u64,
    /// Comparisons that were due so far.
    number: u64,
    began: Instant,
    not_before: Instant,
}

impl SelfCheck {
    /// The first comparison is due one interval from now.
    pub(super) fn new(counts: Arc<Comparisons>) -> Self {
        let now = Instant::now();
        let ends = watch::Sender::new(());
        Self { counts, ends, in_progress: None, changes: 0, number: 0, began: now, not_before: now }
    }

    /// Changes when a comparison has ended; then call [`Self::collect`].
    pub(super) fn ends(&self) -> watch::Receiver<()> {
        self.ends.subscribe()
    }

    /// Records that a round computed something.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    /// When the next comparison needs a round, even without a change.
    pub(super) fn due(&self, config: &SelfCheckConfig) -> Option<Instant> {
        // It is unknown when a comparison in progress will end. If it panics, that is noticed after the interval.
        let last = if self.in_progress.is_some() { Instant::now() } else { self.began };
        config.enabled.then(|| (last + config.interval).max(self.not_before))
    }

    /// The number of comparisons that were due so far, for code that compares other results equally often.
    pub(super) fn due_count(&self) -> u64 {
        self.number
    }

    /// Records that the current round is compared.
    pub(super) fn takes_round(&mut self) {
        self.number += 1;
    }

    /// Whether the current round must be compared.
    pub(super) fn is_due(&self, config: &SelfCheckConfig) -> bool {
        let now = Instant::now();
        let is_time = now >= self.began + config.interval || self.changes >= config.changes;
        config.enabled && self.in_progress.is_none() && is_time && now >= self.not_before
    }

    /// The layers in which a comparison that has ended since the last call found a difference. Frees the snapshot of
    /// the comparison.
    pub(super) fn collect(&mut self) -> Vec<Layer> {
        let Some(in_progress) = &mut self.in_progress else { return Vec::new() };
        let done = match in_progress.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => return Vec::new(),
            Err(TryRecvError::Closed) => {
                tracing::error!("the thread that compares incremental results ended without a result");
                Done { took: self.began.elapsed(), different: Vec::new(), snapshot: None }
            }
        };
        self.in_progress = None;
        let Done { took, different, snapshot } = done;
        drop(snapshot);
        self.not_before = Instant::now() + took * PAUSE_FACTOR;
        different
    }

    /// Starts a comparison. Does not wait for it.
    pub(super) fn begin(&mut self, subject: Subject) {
        (self.changes, self.began) = (0, Instant::now());
        let (result, ended) = oneshot::channel();
        let (counts, ends) = (Arc::clone(&self.counts), self.ends.clone());
        let work = move || {
            let began = std::time::Instant::now();
            let (different, snapshot) = compare(subject, &counts);
            // If the daemon is stopping, there is no receiver.
            let _ = result.send(Done { took: began.elapsed(), different, snapshot });
            ends.send_replace(());
        };
        match low_priority::spawn("tg-compare", work) {
            Ok(()) => self.in_progress = Some(ended),
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread to compare incremental results; retrying after selfCheck.interval");
            }
        }
    }
}

/// The layers with a difference. Takes the subject by value, so that each part is freed before the next one is
/// compared, and returns the snapshot.
fn compare(subject: Subject, counts: &Comparisons) -> (Vec<Layer>, Option<KeptSnapshot>) {
    let Subject { round, snapshot } = subject;
    let Compared { allocation, reconcile } = round.compare();
    drop(round);
    let mut found = vec![(Layer::Allocation, allocation), (Layer::Reconcile, reconcile)];
    let snapshot = snapshot.map(|(kept, outcome)| {
        match kept.compare(&outcome.spec) {
            Some(differences) => found.push((Layer::Snapshot, differences)),
            None => tracing::debug!("not comparing the snapshot: the neighbour table is full"),
        }
        kept
    });
    for (layer, differences) in &found {
        counts.count(*layer, !differences.is_empty());
        differences.iter().for_each(|difference| log(*layer, difference));
    }
    let different = found.into_iter().filter(|(_, differences)| !differences.is_empty());
    (different.map(|(layer, _)| layer).collect(), snapshot)
}

fn log(layer: Layer, difference: &Difference) {
    tracing::error!(
        layer = layer.as_str(),
        part = difference.part,
        incremental = difference.incremental,
        from_scratch = difference.from_scratch,
        "an incremental result differs from the one computed from scratch: this is a bug in the gateway, please report it"
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_dataplane::gateway::WorkerPool;
    use tidegate_model::health::Verdicts;
    use tidegate_model::objects::{Metadata, ObjectKey, Objects, Service, ServiceType};
    use tidegate_pipeline::frame::MemoryFrame;
    use tidegate_pipeline::testing::lab;
    use tidegate_policy::reconcile::{Input, Memory, Reconciler, Settings};
    use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};

    use super::*;

    const EVERY_SECOND: SelfCheckConfig =
        SelfCheckConfig { enabled: true, interval: Duration::from_secs(1), changes: 3 };

    fn objects(services: &[&str]) -> Objects {
        let mut objects = Objects::default();
        for name in services {
            let mut service = Service::new(Metadata::new(ObjectKey::new("default", *name)));
            service.service_type = ServiceType::LoadBalancer;
            objects.services.insert(service.meta.key.clone(), Arc::new(service));
        }
        objects
    }

    /// A round of a reconciler that was given the objects `seen`, while `actual` are the real ones.
    fn subject(reconciler: &mut Reconciler, seen: &Objects, actual: &Objects) -> Subject {
        round(reconciler, seen, actual).0
    }

    /// Like [`subject`], also with the outcome of the round.
    fn round(reconciler: &mut Reconciler, seen: &Objects, actual: &Objects) -> (Subject, Arc<Outcome>) {
        let (settings, verdicts) = (Settings::default(), Verdicts::default());
        let (drained, memory) = (BTreeSet::new(), Memory::default());
        let input = Input {
            settings: &settings,
            objects: seen,
            verdicts: &verdicts,
            drained: &drained,
            memory: &memory,
            generation: 1,
            now: Duration::ZERO,
        };
        let outcome = Arc::new(reconciler.reconcile(&input));
        let round = reconciler.round(&Input { objects: actual, ..input }, &outcome);
        (Subject { round, snapshot: None }, outcome)
    }

    /// Waits for the comparison in progress.
    fn ended(check: &mut SelfCheck) -> Vec<Layer> {
        let receiver = check.in_progress.take().expect("it began");
        let done = receiver.blocking_recv().expect("it ends");
        let (ends, ended) = oneshot::channel();
        ends.send(done).expect("it is kept below");
        check.in_progress = Some(ended);
        check.collect()
    }

    #[test]
    fn a_round_that_missed_a_change_is_detected_counted_and_reported() {
        let counts = Arc::<Comparisons>::default();
        let mut check = SelfCheck::new(Arc::clone(&counts));
        let over = check.ends();
        let (before, now) = (objects(&["a"]), objects(&["a", "b"]));
        check.begin(subject(&mut Reconciler::default(), &before, &now));
        assert_eq!(ended(&mut check), [Layer::Allocation]);
        // The thread sends the signal after its result, so that the receiver finds the result.
        let is_signalled = |_| {
            std::thread::sleep(Duration::from_millis(10));
            over.has_changed().expect("the sender lives")
        };
        assert!((0..1_000).any(is_signalled), "no wake-up was sent");
        assert_eq!(counts.read(), [("reconcile", 1, 0), ("allocation", 1, 1), ("snapshot", 0, 0)]);
        check.begin(subject(&mut Reconciler::default(), &now, &now));
        assert_eq!(ended(&mut check), []);
        assert_eq!(counts.read(), [("reconcile", 2, 0), ("allocation", 2, 1), ("snapshot", 0, 0)]);
    }

    fn worker_pool(first: &SnapshotSpec) -> WorkerPool<MemoryFrame> {
        WorkerPool::in_memory(first).expect("it starts")
    }

    /// One service port with these backends.
    fn spec(generation: u64, backends: &[&str]) -> SnapshotSpec {
        let service = lab::service(ForwardingMode::FullNat, Protocol::Tcp, "203.0.113.1:80", backends);
        SnapshotSpec { generation, services: vec![service.into()], ..lab::spec() }
    }

    /// A round without differences, and the snapshot in use, treated as if it had been compiled from `spec`.
    fn with_snapshot(pool: &WorkerPool<MemoryFrame>, spec: SnapshotSpec) -> Subject {
        let nothing = Objects::default();
        let (subject, outcome) = round(&mut Reconciler::default(), &nothing, &nothing);
        let outcome = Arc::new(Outcome { spec, ..(*outcome).clone() });
        Subject { snapshot: Some((pool.keep_snapshot(), outcome)), ..subject }
    }

    #[test]
    fn an_outdated_snapshot_is_detected_and_freed_by_the_controller() {
        let counts = Arc::<Comparisons>::default();
        let mut check = SelfCheck::new(Arc::clone(&counts));
        let pool = worker_pool(&spec(1, &["10.0.0.1:80", "10.0.0.77:80"]));
        check.begin(with_snapshot(&pool, spec(1, &["10.0.0.1:80", "10.0.0.77:80"])));
        assert_eq!(ended(&mut check), []);
        assert_eq!(counts.read()[Layer::Snapshot as usize], ("snapshot", 1, 0));

        check.begin(with_snapshot(&pool, spec(1, &["10.0.0.1:80", "10.0.0.78:80"])));
        let done = check.in_progress.take().expect("it began").blocking_recv().expect("it ends");
        assert_eq!(counts.read()[Layer::Snapshot as usize], ("snapshot", 2, 1));
        // The workers have applied a newer one meanwhile.
        let newer = SnapshotSpec { generation: 2, services: Vec::new(), ..lab::spec() };
        pool.publish(&newer).expect("it compiles");
        assert!(pool.wait_applied(2, Duration::from_secs(10)), "the worker applies it");
        pool.reclaim();
        let before = pool.neighbors().usage().next_hops;
        let (result, ended) = oneshot::channel();
        result.send(done).expect("it is kept below");
        check.in_progress = Some(ended);
        assert_eq!(check.collect(), [Layer::Snapshot]);
        assert_eq!(pool.neighbors().usage().next_hops, before - 1, "freed here, not by the thread");
    }

    #[test]
    fn a_difference_is_logged_as_an_error_with_both_sides() {
        // Another test may log the same line for the first time while the subscriber is created; tracing would then
        // skip this line. The second attempt succeeds.
        let logged = || {
            let log = Log::default();
            let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
            let subject = subject(&mut Reconciler::default(), &objects(&["a"]), &objects(&["a", "b"]));
            let different =
                tracing::subscriber::with_default(subscriber, || compare(subject, &Comparisons::default()));
            assert_eq!(different.0, [Layer::Allocation]);
            Some(log.text()).filter(|text| !text.is_empty())
        };
        let text = (0..10).find_map(|_| logged()).expect("it is logged");
        assert!(text.contains("ERROR") && text.contains("layer=\"allocation\""), "{text}");
        assert!(text.contains("incremental=\"None\"") && text.contains("from_scratch=\"Some("), "{text}");
        assert!(text.len() < 20_000, "{}", text.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_comparison_is_due_after_an_interval_or_changes_and_runs_alone() {
        let mut check = SelfCheck::new(Arc::default());
        assert!(!check.is_due(&EVERY_SECOND));
        (0..3).for_each(|_| check.changed());
        assert!(check.is_due(&EVERY_SECOND), "after three changes");
        let (ends, ended) = oneshot::channel();
        (check.in_progress, check.changes, check.began) = (Some(ended), 0, Instant::now());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!check.is_due(&EVERY_SECOND), "one is in progress");
        assert!(check.due(&EVERY_SECOND).expect("it is on") > Instant::now(), "the loop does not spin");
        let done = Done { took: Duration::from_secs(1), different: Vec::new(), snapshot: None };
        ends.send(done).expect("it is waited for");
        assert_eq!(check.collect(), []);
        assert!(!check.is_due(&EVERY_SECOND), "it uses at most 5 % of a CPU");
        tokio::time::advance(Duration::from_secs(21)).await;
        assert!(check.is_due(&EVERY_SECOND) && check.due(&EVERY_SECOND).expect("it is on") <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn comparisons_can_be_disabled() {
        let mut check = SelfCheck::new(Arc::default());
        (0..10).for_each(|_| check.changed());
        tokio::time::advance(Duration::from_secs(100)).await;
        let off = SelfCheckConfig { enabled: false, ..EVERY_SECOND };
        assert!(!check.is_due(&off) && check.due(&off).is_none());
        assert!(check.is_due(&EVERY_SECOND));
    }

    #[test]
    fn a_comparison_that_panics_counts_as_ended() {
        let mut check = SelfCheck::new(Arc::default());
        let (ends, ended) = oneshot::channel();
        check.in_progress = Some(ended);
        drop(ends);
        assert_eq!(check.collect(), []);
        assert!(check.in_progress.is_none());
    }

    /// The output of a subscriber.
    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("nobody panicked").clone()).expect("text")
        }
    }

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("nobody panicked").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }
}
