//! Publishes desired states to the workers, and records which of them every worker has applied.
//!
//! Invariant: a state that cannot be published changes nothing; the last good state stays in use. While a round waits
//! for the workers, no thread of the runtime sleeps or spins.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_dataplane::gateway::{Dataplane, KeptSnapshot};
use tidegate_events::{Event, Field, Reason};
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::Outcome;
use tidegate_spec::{Problem, SharedService, SnapshotSpec};
use tokio::time::Instant;

use super::state::State;

/// How long a round waits for the workers to apply its snapshot. Only a hung worker takes longer, and `/healthz` then
/// reports it.
const APPLY_MAX: Duration = Duration::from_millis(500);
/// How long the workers usually take at most, and how often they are polled during that time.
const APPLY_SOON: Duration = Duration::from_millis(2);
const APPLY_POLL: Duration = Duration::from_micros(50);
/// How often they are polled after that.
const APPLY_POLL_LATER: Duration = Duration::from_millis(1);
/// The pause before retrying what did not fit into the full neighbour table.
const RETRY: Duration = Duration::from_secs(1);

/// Publishes desired states to the workers.
pub(super) struct Publisher {
    dataplane: Arc<Dataplane>,
    state: Arc<State>,
    /// The round whose spec was last published to the workers.
    published: Option<Arc<Outcome>>,
    generation: u64,
    /// Since when the workers have had a snapshot that some of them may not have applied yet.
    handed_over: Option<std::time::Instant>,
    /// The last round that every worker has applied.
    applied: Option<Arc<Outcome>>,
    /// The version of the latest Services that all workers have applied.
    version_applied: u64,
    /// Whether to compile the next snapshot from scratch even if its spec is equal, because the snapshot in use was
    /// revised incorrectly.
    recompiles: bool,
    /// When to retry what did not fit into the full neighbour table, if anything.
    retry_at: Option<Instant>,
}

impl Publisher {
    /// A publisher that has published nothing yet.
    pub(super) fn new(dataplane: Arc<Dataplane>, state: Arc<State>) -> Self {
        Self {
            dataplane,
            state,
            published: None,
            generation: 0,
            handed_over: None,
            applied: None,
            version_applied: 0,
            recompiles: false,
            retry_at: None,
        }
    }

    /// The generation of the next state.
    pub(super) fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// The version of the latest Services that all workers have applied.
    pub(super) fn version_applied(&self) -> u64 {
        self.version_applied
    }

    /// Requests that the next snapshot is compiled from scratch.
    pub(super) fn recompile(&mut self) {
        self.recompiles = true;
    }

    /// When [`Self::publish`] must be called although nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether something did not fit into the neighbour table and now fits. Entries become free when the workers stop
    /// using an older snapshot, which no event signals.
    fn has_capacity(&mut self) -> bool {
        let Some(at) = &mut self.retry_at else { return false };
        *at = Instant::now() + RETRY;
        let usage = self.dataplane.neighbors().usage();
        usage.next_hops < usage.next_hops_max
    }

    /// The snapshot in use, and the outcome that it was compiled from.
    pub(super) fn in_use(&self) -> Option<(KeptSnapshot, Arc<Outcome>)> {
        let published = self.published.as_ref()?;
        Some((self.dataplane.keep_snapshot(), Arc::clone(published)))
    }

    /// Publishes a spec that differs from the last one, and waits for the workers to apply it. Returns the problems of
    /// ignored parts; `None` if nothing was published.
    pub(super) async fn publish(&mut self, outcome: &Arc<Outcome>) -> Option<Vec<Problem>> {
        let spec = &outcome.spec;
        let has_capacity = self.has_capacity();
        if self.is_published(spec) && !self.recompiles && !has_capacity {
            // A state whose publication failed is no longer needed.
            self.state.published();
            return None;
        }
        let published = match self.recompiles {
            true => self.dataplane.publish_from_scratch(spec),
            false => self.dataplane.publish(spec),
        };
        let published = match published {
            Ok(published) => published,
            Err(error) => {
                let why = error.to_string();
                if self.state.publish_failed(&why) {
                    let message = "cannot publish the desired state: the last good state keeps forwarding";
                    let event = Event::of_gateway(Reason::SnapshotRefused, message);
                    tidegate_events::record(event.text(Field::Reason, why));
                }
                return None;
            }
        };
        if self.state.published() {
            let message = "the desired state can be published again";
            tidegate_events::record(Event::of_gateway(Reason::SnapshotAccepted, message));
        }
        self.recompiles = false;
        self.published = Some(Arc::clone(outcome));
        self.generation = spec.generation;
        let is_full = published.problems.iter().any(Problem::is_neighbor_table_full);
        self.retry_at = is_full.then(|| Instant::now() + RETRY);
        self.handed_over.get_or_insert(published.handed_over);
        self.state.desire(spec.generation);
        self.wait_for_workers().await;
        self.record_applied();
        let (generation, services) = (published.generation, spec.services.len());
        tracing::debug!(generation, services, "published");
        Some(published.problems)
    }

    /// Whether the workers already have an equal spec.
    fn is_published(&self, spec: &SnapshotSpec) -> bool {
        self.published.as_ref().is_some_and(|last| last.spec.is_equivalent(spec))
    }

    /// Records whether every worker has applied the round, whose Services are of this version. Returns the Services
    /// whose latest state the workers have not applied yet.
    pub(super) fn check_applied(&mut self, outcome: &Arc<Outcome>, version: u64) -> BTreeSet<ObjectKey> {
        // A worker may have been slow in an earlier round.
        self.record_applied();
        let is_forwarded = self.is_published(&outcome.spec);
        if is_forwarded && self.dataplane.applied_generation() >= self.generation {
            self.version_applied = version;
            self.applied = Some(Arc::clone(outcome));
        }
        unapplied(self.applied.as_deref(), outcome)
    }

    /// Records how long the workers took to apply a snapshot, once each of them has. If another snapshot followed
    /// meanwhile, both count as one.
    fn record_applied(&mut self) {
        if self.dataplane.applied_generation() >= self.generation
            && let Some(since) = self.handed_over.take()
        {
            self.state.applied(since.elapsed());
        }
    }

    /// Waits until every worker has applied the latest generation, up to a limit.
    async fn wait_for_workers(&self) {
        let (dataplane, state, newest) =
            (Arc::clone(&self.dataplane), Arc::clone(&self.state), self.generation);
        // The first snapshot may take longer, because workers restore the flows of the previous process.
        wait_until(move || dataplane.applied_generation() >= newest && !state.restores()).await;
    }
}

/// Waits until the workers are done, at most [`APPLY_MAX`]. A busy worker needs microseconds, a sleeping one a
/// millisecond, and tokio's timer has millisecond resolution. So a thread for blocking work polls, and the runtime's
/// own threads stay free.
async fn wait_until(is_done: impl Fn() -> bool + Send + 'static) {
    if is_done() {
        return;
    }
    let polling = move || {
        let began = std::time::Instant::now();
        while !is_done() && began.elapsed() < APPLY_MAX {
            std::thread::sleep(if began.elapsed() < APPLY_SOON { APPLY_POLL } else { APPLY_POLL_LATER });
        }
    };
    // A panic there has been reported, and the round continues as after a timeout.
    let _ = tokio::task::spawn_blocking(polling).await;
}

/// The Services whose latest state the workers have not applied yet: their service ports differ from the last applied
/// round.
fn unapplied(applied: Option<&Outcome>, newest: &Outcome) -> BTreeSet<ObjectKey> {
    let before = applied.map_or(&[][..], |outcome| &outcome.spec.services);
    let now = &newest.spec.services[..];
    let named = |spec: &SharedService| ObjectKey::new(spec.namespace.as_str(), spec.name.as_str());
    let mut found = BTreeSet::new();
    let (mut i, mut j) = (0, 0);
    // Both are sorted by key.
    while i < before.len() || j < now.len() {
        match (before.get(i), now.get(j)) {
            (Some(was), Some(is)) if was.key == is.key => {
                if !was.is_same(is) && was != is {
                    found.extend([named(was), named(is)]);
                }
                (i, j) = (i + 1, j + 1);
            }
            (Some(was), Some(is)) if was.key > is.key => {
                found.insert(named(is));
                j += 1;
            }
            (None, Some(is)) => {
                found.insert(named(is));
                j += 1;
            }
            (Some(was), _) => {
                found.insert(named(was));
                i += 1;
            }
            (None, None) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn other_tasks_run_while_a_round_waits_for_the_workers() {
        // The runtime has one thread: if the wait blocked it, the other task could not end the wait.
        let applied = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&applied);
        let task = tokio::spawn(async move { applied.store(true, Ordering::Relaxed) });
        let began = Instant::now();
        wait_until(move || seen.load(Ordering::Relaxed)).await;
        assert!(began.elapsed() < APPLY_MAX);
        task.await.expect("it has ended");
    }

    #[tokio::test]
    async fn the_wait_for_a_hung_worker_is_bounded() {
        let began = std::time::Instant::now();
        wait_until(|| false).await;
        assert!(began.elapsed() >= APPLY_MAX);
    }
}
