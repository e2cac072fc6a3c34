//! [`KeptSnapshot`]: the forwarding state in use, kept to be compared with one compiled from scratch.
//!
//! A comparison takes longer than a look-up ([`WorkerPool::with_snapshot`]) and must not delay a publication. If it
//! finds a difference, [`WorkerPool::publish_from_scratch`] gives the workers the correct state.

use std::sync::Arc;

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::SnapshotSpec;
use tidegate_structures::difference::{self, Difference};

use super::error::PublishError;
use super::worker_pool::{Published, WorkerPool};
use crate::slow_path::SlowPathState;
use crate::worker::Forwarding;

/// A forwarding state that was in use, and the data to compare it with. Drop it on a thread of normal priority: if the
/// workers have a newer state by then, the drop frees neighbour entries under the lock that publications and the
/// resolver need.
#[derive(Debug)]
pub struct KeptSnapshot {
    forwarding: crate::sync::Arc<Forwarding>,
    neighbors: Arc<NeighborTable>,
    slow_path_state: Arc<SlowPathState>,
    announce: bool,
}

impl KeptSnapshot {
    /// Compares with a compile of the same spec from scratch: the tables of the workers ([`Snapshot::compare`]), and
    /// the state passed to the slow path.
    ///
    /// `None` if a neighbour table was full: which neighbours were left out then depends on earlier snapshots.
    #[must_use]
    pub fn compare(&self, spec: &SnapshotSpec) -> Option<Vec<Difference>> {
        let mut found = self.forwarding.snapshot.compare(spec, &self.neighbors)?;
        // The kernel's configured neighbours are derived from `context`, which is compared below.
        let SlowPathState { context, routes, neighbors: _ } = SlowPathState::of(spec, self.announce);
        found.extend(difference::of("outside.around", &self.slow_path_state.context, &context));
        found.extend(difference::of("outside.routes", &self.slow_path_state.routes, &routes));
        Some(found)
    }
}

impl<F> WorkerPool<F> {
    /// Keeps the forwarding state in use.
    #[must_use]
    pub fn keep_snapshot(&self) -> KeptSnapshot {
        let control = self.control();
        KeptSnapshot {
            forwarding: control.publisher.share(),
            neighbors: Arc::clone(&self.neighbors),
            slow_path_state: Arc::clone(&control.slow_path_state),
            announce: self.announce,
        }
    }

    /// Like [`WorkerPool::publish`], but compiles everything except ids from scratch. Replaces a snapshot that was
    /// revised incorrectly.
    ///
    /// # Errors
    /// As for [`WorkerPool::publish`].
    pub fn publish_from_scratch(&self, spec: &SnapshotSpec) -> Result<Published, PublishError> {
        self.publish_by(spec, Snapshot::compile_from_scratch)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use tidegate_pipeline::frame::MemoryFrame;
    use tidegate_pipeline::testing::lab;
    use tidegate_spec::ids::BackendId;
    use tidegate_spec::{CompileError, ForwardingMode, Problem, Protocol, RouteSpec};

    use super::*;

    /// One service port with these backends.
    fn spec(generation: u64, hosts: &[&str]) -> SnapshotSpec {
        let backends: Vec<String> = hosts.iter().map(|host| format!("{host}:80")).collect();
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        let service = lab::service(ForwardingMode::FullNat, Protocol::Tcp, "203.0.113.1:80", &backends);
        SnapshotSpec { generation, services: vec![service.into()], ..lab::spec() }
    }

    fn worker_pool(first: &SnapshotSpec) -> WorkerPool<MemoryFrame> {
        WorkerPool::in_memory(first).expect("it starts")
    }

    fn parts(found: Option<Vec<Difference>>) -> Vec<String> {
        found.expect("the tables are not full").into_iter().map(|difference| difference.part).collect()
    }

    /// The backends of the service port in the workers' snapshot, with their ids.
    fn backends(pool: &WorkerPool<MemoryFrame>) -> Vec<(String, BackendId)> {
        pool.with_snapshot(|snapshot| {
            let of = snapshot.services().flat_map(|(_, info)| info.backends.iter());
            of.map(|backend| (backend.address.to_string(), backend.id)).collect()
        })
    }

    /// Compiles a snapshot that lacks all but the first backend.
    fn missing_a_change(
        spec: &SnapshotSpec,
        previous: Option<&Snapshot>,
        neighbors: &NeighborTable,
    ) -> Result<(Snapshot, Vec<Problem>), CompileError> {
        let mut before = spec.clone();
        before.services[0].backends.truncate(1);
        Snapshot::compile(&before, previous, neighbors)
    }

    #[test]
    fn a_snapshot_that_missed_a_change_is_replaced_by_one_from_scratch() {
        let pool = worker_pool(&spec(1, &["10.0.0.1"]));
        let first = backends(&pool);
        let second = spec(2, &["10.0.0.1", "10.0.0.2"]);
        pool.publish_by(&second, missing_a_change).expect("it compiles");
        assert_eq!(backends(&pool), first, "the change is missing");
        let found = parts(pool.keep_snapshot().compare(&second));
        assert!(found.contains(&"ports[0]".to_owned()), "{found:?}");

        // Publish again without any other change.
        let third = SnapshotSpec { generation: 3, ..second };
        assert_eq!(pool.publish_from_scratch(&third).expect("it compiles").problems, []);
        let healed = backends(&pool);
        assert_eq!(healed[0], first[0], "flows of the remaining backend continue");
        assert_eq!(healed[1].0, "10.0.0.2");
        assert!(pool.wait_applied(3, Duration::from_secs(10)), "the worker applies it");
        assert_eq!(parts(pool.keep_snapshot().compare(&third)), Vec::<String>::new());
    }

    #[test]
    fn a_slow_path_that_missed_a_next_hop_is_detected_and_updated() {
        let pool = worker_pool(&spec(1, &["10.0.0.1"]));
        let second = spec(2, &["10.0.0.1", "10.0.0.77"]);
        pool.publish(&second).expect("it compiles");
        assert_eq!(parts(pool.keep_snapshot().compare(&second)), Vec::<String>::new());
        // As if the revision had reported no change for the slow path.
        pool.control().slow_path_state = Arc::new(SlowPathState::of(&spec(1, &["10.0.0.1"]), true));
        assert_eq!(parts(pool.keep_snapshot().compare(&second)), ["outside.around"]);
        let third = SnapshotSpec { generation: 3, ..second };
        pool.publish_from_scratch(&third).expect("it compiles");
        assert_eq!(parts(pool.keep_snapshot().compare(&third)), Vec::<String>::new());
    }

    #[test]
    fn a_backend_in_a_connected_network_behind_a_router_makes_no_difference() {
        let behind = |generation, hosts: &[&str]| {
            let to = "10.0.0.64/26".parse().expect("a network");
            let mut spec = spec(generation, hosts);
            spec.network.routes.push(RouteSpec { to, via: lab::ip("10.0.0.250") });
            spec
        };
        let pool = worker_pool(&behind(1, &["10.0.0.77"]));
        let second = behind(2, &["10.0.0.77", "10.0.0.78"]);
        pool.publish(&second).expect("it compiles");
        assert_eq!(parts(pool.keep_snapshot().compare(&second)), Vec::<String>::new());
    }

    #[test]
    fn dropping_a_kept_snapshot_frees_its_next_hops_after_later_publications() {
        let pool = worker_pool(&spec(1, &["10.0.0.1", "10.0.0.77"]));
        let kept = pool.keep_snapshot();
        // Removing the services forces a full compile. A revision would share next hops.
        let empty = |generation| SnapshotSpec { generation, services: Vec::new(), ..lab::spec() };
        let next_hops = || pool.neighbors().usage().next_hops;
        let before = next_hops();
        pool.publish(&empty(2)).expect("no publication waits for it");
        assert!(pool.wait_applied(2, Duration::from_secs(10)), "the worker applies it");
        pool.reclaim();
        assert_eq!(next_hops(), before, "the comparison reads them");
        assert_eq!(parts(kept.compare(&spec(1, &["10.0.0.1", "10.0.0.77"]))), Vec::<String>::new());
        drop(kept);
        assert_eq!(next_hops(), before - 1);
    }
}
