//! Compares incremental results with results computed from scratch, in the background.
//!
//! Reconcile and the allocation of addresses compute only what a change affects. At intervals (`selfCheck.interval`,
//! `selfCheck.changes`) [`SelfCheck`] compares one round on a low-priority thread. A difference is a bug: it is
//! logged with both results and counted, and the controller computes its next round from scratch.
//!
//! Invariant: a round never waits for a comparison, and only one comparison runs at a time. Its memory is freed when
//! it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_core::difference::Difference;
use tidegate_model::config::SelfCheckConfig;
use tidegate_policy::reconcile::{self, Compared};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// The nice value of the thread (`setpriority(2)`): it runs when no other process needs the CPU.
const NICE: i32 = 19;
/// The pause after a comparison, as a multiple of its duration: so comparisons use at most 5 % of one CPU.
const PAUSE_FACTOR: u32 = 20;

/// What is computed incrementally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// The desired state: the result for each Service.
    Reconcile,
    /// Which addresses Services have.
    Allocation,
}

impl Layer {
    const ALL: [Self; 2] = [Self::Reconcile, Self::Allocation];

    /// Its name in logs and metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::Reconcile => "reconcile",
            Self::Allocation => "allocation",
        }
    }
}

/// How many comparisons there were.
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
}

/// A comparison that ended.
#[derive(Debug)]
struct Done {
    took: Duration,
    /// The layers with a difference.
    different: Vec<Layer>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SelfCheck {
    counts: Arc<Comparisons>,
    /// Changes when a comparison has found a difference.
    found: watch::Sender<()>,
    under_way: Option<oneshot::Receiver<Done>>,
    /// Rounds with a computation since the last comparison began.
    changes: u64,
    began: Instant,
    not_before: Instant,
}

impl SelfCheck {
    /// The first comparison is due one interval from now.
    pub(super) fn new(counts: Arc<Comparisons>) -> Self {
        let now = Instant::now();
        let found = watch::Sender::new(());
        Self { counts, found, under_way: None, changes: 0, began: now, not_before: now }
    }

    /// Changes when a comparison has found a difference, which [`Self::collect`] then returns.
    pub(super) fn found(&self) -> watch::Receiver<()> {
        self.found.subscribe()
    }

    /// Records that a round computed something.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    /// When the next comparison needs a round, even without a change.
    pub(super) fn due(&self, config: &SelfCheckConfig) -> Option<Instant> {
        // The end of one that is under way is not known. It is looked for with the next round, or after the interval.
        let last = if self.under_way.is_some() { Instant::now() } else { self.began };
        config.enabled.then(|| (last + config.interval).max(self.not_before))
    }

    /// Whether the current round is to be compared.
    pub(super) fn is_due(&self, config: &SelfCheckConfig) -> bool {
        let now = Instant::now();
        let is_time = now >= self.began + config.interval || self.changes >= config.changes;
        config.enabled && self.under_way.is_none() && is_time && now >= self.not_before
    }

    /// The layers in which the comparison that ended since the last call found a difference.
    pub(super) fn collect(&mut self) -> Vec<Layer> {
        let Some(under_way) = &mut self.under_way else { return Vec::new() };
        let done = match under_way.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => return Vec::new(),
            Err(TryRecvError::Closed) => {
                tracing::error!("a comparison of incremental results with ones from scratch ended early");
                Done { took: self.began.elapsed(), different: Vec::new() }
            }
        };
        self.under_way = None;
        self.not_before = Instant::now() + done.took * PAUSE_FACTOR;
        done.different
    }

    /// Begins a comparison. Never waits for it.
    pub(super) fn begin(&mut self, subject: Subject) {
        (self.changes, self.began) = (0, Instant::now());
        let (ends, ended) = oneshot::channel();
        let (counts, found) = (Arc::clone(&self.counts), self.found.clone());
        let work = move || {
            // On Linux this is the thread's own. Without it the work is done all the same.
            let _ = rustix::process::setpriority_process(None, NICE);
            let began = std::time::Instant::now();
            let different = compare(&subject, &counts);
            drop(subject);
            let is_found = !different.is_empty();
            // Nobody waits for it where the daemon ends.
            let _ = ends.send(Done { took: began.elapsed(), different });
            if is_found {
                found.send_replace(());
            }
        };
        match thread::Builder::new().name("tg-compare".to_owned()).spawn(work) {
            Ok(_) => self.under_way = Some(ended),
            Err(error) => {
                tracing::warn!(%error, "no thread to compare incremental results; the next try is after selfCheck.interval");
            }
        }
    }
}

fn compare(subject: &Subject, counts: &Comparisons) -> Vec<Layer> {
    let Compared { allocation, reconcile } = subject.round.compare();
    let found = [(Layer::Allocation, allocation), (Layer::Reconcile, reconcile)];
    for (layer, differences) in &found {
        counts.count(*layer, !differences.is_empty());
        differences.iter().for_each(|difference| log(*layer, difference));
    }
    found.into_iter().filter(|(_, differences)| !differences.is_empty()).map(|(layer, _)| layer).collect()
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

    use tidegate_model::health::Verdicts;
    use tidegate_model::objects::{Metadata, ObjectKey, Objects, Service, ServiceType};
    use tidegate_policy::reconcile::{Input, Memory, Reconciler, Settings};

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

    /// A round of a reconciler that was given the objects `seen`, where `true_` are those that there are.
    fn subject(reconciler: &mut Reconciler, seen: &Objects, true_: &Objects) -> Subject {
        let (settings, verdicts) =
            (Settings { claims_unclassed: true, ..Settings::default() }, Verdicts::default());
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
        Subject { round: reconciler.round(&Input { objects: true_, ..input }, &outcome) }
    }

    /// Waits for the comparison that is under way.
    fn ended(check: &mut SelfCheck) -> Vec<Layer> {
        let receiver = check.under_way.take().expect("it began");
        let done = receiver.blocking_recv().expect("it ends");
        let (ends, ended) = oneshot::channel();
        ends.send(done).expect("it is kept below");
        check.under_way = Some(ended);
        check.collect()
    }

    #[test]
    fn a_round_that_missed_a_change_is_found_counted_and_reported_and_one_from_scratch_is_well() {
        let counts = Arc::<Comparisons>::default();
        let mut check = SelfCheck::new(Arc::clone(&counts));
        let found = check.found();
        let (before, now) = (objects(&["a"]), objects(&["a", "b"]));
        check.begin(subject(&mut Reconciler::default(), &before, &now));
        assert_eq!(ended(&mut check), [Layer::Allocation]);
        // The thread says so after its result, so that whoever is woken finds that.
        let is_told = |_| {
            thread::sleep(Duration::from_millis(10));
            found.has_changed().expect("the sender lives")
        };
        assert!((0..1_000).any(is_told), "nobody was woken");
        assert_eq!(counts.read(), [("reconcile", 1, 0), ("allocation", 1, 1)]);
        check.begin(subject(&mut Reconciler::default(), &now, &now));
        assert_eq!(ended(&mut check), []);
        assert_eq!(counts.read(), [("reconcile", 2, 0), ("allocation", 2, 1)]);
    }

    #[test]
    fn a_difference_is_logged_as_an_error_with_both_sides() {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let subject = subject(&mut Reconciler::default(), &objects(&["a"]), &objects(&["a", "b"]));
        let different =
            tracing::subscriber::with_default(subscriber, || compare(&subject, &Comparisons::default()));
        assert_eq!(different, [Layer::Allocation]);
        let text = log.text();
        assert!(text.contains("ERROR") && text.contains("layer=\"allocation\""), "{text}");
        assert!(text.contains("incremental=\"None\"") && text.contains("from_scratch=\"Some("), "{text}");
        assert!(text.len() < 20_000, "{}", text.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_comparison_is_due_after_the_interval_or_so_many_changes_and_never_while_one_runs() {
        let mut check = SelfCheck::new(Arc::default());
        assert!(!check.is_due(&EVERY_SECOND));
        (0..3).for_each(|_| check.changed());
        assert!(check.is_due(&EVERY_SECOND), "after three changes");
        let (ends, ended) = oneshot::channel();
        (check.under_way, check.changes, check.began) = (Some(ended), 0, Instant::now());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!check.is_due(&EVERY_SECOND), "one is under way");
        assert!(check.due(&EVERY_SECOND).expect("it is on") > Instant::now(), "the loop does not spin");
        ends.send(Done { took: Duration::from_secs(1), different: Vec::new() }).expect("it is waited for");
        assert_eq!(check.collect(), []);
        assert!(!check.is_due(&EVERY_SECOND), "it has 5 % of a CPU at most");
        tokio::time::advance(Duration::from_secs(21)).await;
        assert!(check.is_due(&EVERY_SECOND) && check.due(&EVERY_SECOND).expect("it is on") <= Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn the_switch_turns_comparisons_off() {
        let mut check = SelfCheck::new(Arc::default());
        (0..10).for_each(|_| check.changed());
        tokio::time::advance(Duration::from_secs(100)).await;
        let off = SelfCheckConfig { enabled: false, ..EVERY_SECOND };
        assert!(!check.is_due(&off) && check.due(&off).is_none());
        assert!(check.is_due(&EVERY_SECOND));
    }

    #[test]
    fn a_comparison_that_panics_is_over() {
        let mut check = SelfCheck::new(Arc::default());
        let (ends, ended) = oneshot::channel();
        check.under_way = Some(ended);
        drop(ends);
        assert_eq!(check.collect(), []);
        assert!(check.under_way.is_none());
    }

    /// Where a subscriber writes.
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
