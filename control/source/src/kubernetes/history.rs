//! Decides whether a list continues the known history, or may come from a server that lost a part of it.
//!
//! If objects are missing in a list, either they were deleted, or the API server returned empty or was restored from a
//! backup. Usually a list follows a watch that expired (410) on a healthy server, and objects deleted meanwhile must be
//! removed immediately.
//!
//! Three things distinguish the cases: the cluster (the uid of `kube-system`, which differs in a new cluster), the
//! version (a backup is behind; one restored with `--bump-revision` is ahead by more than could have been written), and
//! how long there was no watch (a restore takes longer than a restart). `retain` also considers the contents of the
//! list. Pure.
//!
//! Objects that a gateway loads from its own disk at the start are a different case. There was no watch for an unknown
//! time while the gateway was not running, so the length of the outage doesn't matter. Only the cluster and the version
//! decide ([`LastPoint::continuity_with_disk`]).
//!
//! The version alone isn't enough if a backup is only a few seconds old: the restored server soon passes the last
//! version. After a fault, the newest received change ([`Newest`]) is therefore looked up, too. If the history is the
//! same, the API server has that object at that version, or the watch reports its later changes.
//!
//! If the watch can't resume (410, as after each restart of an API server, or after a long outage), the list must
//! contain the object. If it doesn't, the object is looked up at the last received version: if it existed then, it was
//! deleted meanwhile. If the API server has discarded that version, the object counts as lost.
//!
//! All kinds share one history ([`Epoch`]): if one kind detects another history, all are listed again, and no missing
//! object counts as deleted. Otherwise a Service could be left without its endpoints.
//!
//! Not detected: a backup that lacks only bookmarks, or only changes to objects that have been written again since.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_model::objects::ObjectKey;
use tokio::sync::watch;

use super::retain::Continuity;

/// A rate of writes that no etcd reaches: per second, and in a burst.
const WRITES_PER_SECOND_MAX: u64 = 20_000;
const WRITES_AT_ONCE_MAX: u64 = 100_000;
/// After a longer time without a watch, a list doesn't prove that missing objects were deleted.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(120);

/// A point in the history of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// The uid of the namespace `kube-system`; empty if unknown.
    pub(super) cluster: String,
    /// `resourceVersion`; 0 if it is not a number.
    pub(super) version: u64,
}

/// The last known point of a kind, and when it was received.
#[derive(Debug, Clone)]
pub(super) struct LastPoint {
    pub(super) point: Point,
    pub(super) at: Instant,
}

impl LastPoint {
    /// Whether a list at `point`, received at `now`, continues this history after an `outage` without a watch.
    pub(super) fn continuity(&self, point: &Point, outage: Duration, now: Instant) -> Continuity {
        let since = now.saturating_duration_since(self.at).as_secs();
        let written_max = WRITES_AT_ONCE_MAX.saturating_add(WRITES_PER_SECOND_MAX.saturating_mul(since));
        let written = point.version.checked_sub(self.point.version);
        let continues = !point.cluster.is_empty()
            && point.cluster == self.point.cluster
            && self.point.version != 0
            && written.is_some_and(|written| written <= written_max)
            && outage <= OUTAGE_MAX;
        if continues { Continuity::Continues } else { Continuity::Unknown }
    }

    /// Whether the first list after a start, at `point`, is newer than the objects on disk, at `self`.
    pub(super) fn continuity_with_disk(&self, point: &Point, now: Instant) -> Continuity {
        match self.continuity(point, Duration::ZERO, now) {
            Continuity::Continues => Continuity::Newer,
            other => other,
        }
    }

    /// Records that the API server has sent everything up to this version.
    pub(super) fn observe_version(&mut self, version: u64, now: Instant) {
        self.point.version = self.point.version.max(version);
        self.at = now;
    }
}

/// The newest received change of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) key: ObjectKey,
    /// The `resourceVersion` of the object, or of its deletion.
    pub(super) version: u64,
    /// Whether the object exists after the change; false for a deletion.
    pub(super) exists: bool,
}

/// Counts the resets of the API server's history. Shared by all kinds.
#[derive(Debug, Clone)]
pub(super) struct Epoch {
    counter: Arc<watch::Sender<u64>>,
    seen: u64,
}

impl Epoch {
    pub(super) fn new() -> Self {
        Self { counter: Arc::new(watch::Sender::new(0)), seen: 0 }
    }

    /// Starts a new epoch, unless another kind has started one that this kind hasn't adopted yet.
    pub(super) fn start(&mut self) {
        if !self.adopt() {
            self.counter.send_modify(|count| *count += 1);
            self.adopt();
        }
    }

    /// Adopts the current epoch. Returns whether another kind has started it.
    pub(super) fn adopt(&mut self) -> bool {
        let current = *self.counter.borrow();
        std::mem::replace(&mut self.seen, current) != current
    }

    /// Waits until another kind starts an epoch.
    pub(super) async fn started_by_another(&self) {
        // The sender lives as long as this value.
        let _ = self.counter.subscribe().wait_for(|count| *count != self.seen).await;
    }
}

/// Whether an API server's history contains a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InHistory {
    Yes,
    /// Only if a watch that starts at that change reports the object again.
    IfExplained,
    No,
}

impl Newest {
    /// Replaces the last change if this one is newer.
    pub(super) fn record(last: &mut Option<Self>, key: &ObjectKey, version: u64, exists: bool) {
        if version != 0 && last.as_ref().is_none_or(|last| last.version <= version) {
            *last = Some(Self { key: key.clone(), version, exists });
        }
    }

    /// Whether a history contains the change. `now` is the current version of the object at the API server, if it
    /// exists there.
    pub(super) fn in_history(&self, now: Option<u64>) -> InHistory {
        match now {
            // A version that can't be compared.
            Some(0) => InHistory::Yes,
            Some(now) if now < self.version => InHistory::No,
            Some(now) if now == self.version && self.exists => InHistory::Yes,
            None if !self.exists => InHistory::Yes,
            Some(_) | None => InHistory::IfExplained,
        }
    }

    /// Whether the change seems to be missing from the history of a list. If the object is missing, it was either
    /// deleted since, or lost. `now` as for [`Self::in_history`].
    pub(super) fn is_missing_from_list(&self, now: Option<u64>) -> bool {
        match self.in_history(now) {
            InHistory::Yes => false,
            InHistory::IfExplained => self.exists && now.is_none(),
            InHistory::No => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_change_is_in_a_history_that_contains_or_explains_it() {
        let mut newest = None;
        let key = ObjectKey::new("shop", "web");
        Newest::record(&mut newest, &key, 0, true);
        assert_eq!(newest, None, "a version that cannot be compared");
        Newest::record(&mut newest, &key, 7, true);
        Newest::record(&mut newest, &ObjectKey::new("shop", "api"), 5, true);
        let there = newest.clone().expect("noted");
        assert_eq!(there, Newest { key: key.clone(), version: 7, exists: true });
        let in_history =
            |newest: &Newest| [None, Some(0), Some(6), Some(7), Some(8)].map(|now| newest.in_history(now));
        assert_eq!(
            in_history(&there),
            [InHistory::IfExplained, InHistory::Yes, InHistory::No, InHistory::Yes, InHistory::IfExplained]
        );
        Newest::record(&mut newest, &key, 7, false);
        let deleted = newest.expect("noted");
        assert_eq!(
            in_history(&deleted),
            [InHistory::Yes, InHistory::Yes, InHistory::No, InHistory::IfExplained, InHistory::IfExplained]
        );
        let missing = |newest: &Newest| {
            [None, Some(0), Some(6), Some(7), Some(8)].map(|now| newest.is_missing_from_list(now))
        };
        assert_eq!(missing(&there), [true, false, true, false, false]);
        assert_eq!(missing(&deleted), [false, false, true, false, false]);
    }

    #[test]
    fn an_epoch_started_by_one_kind_is_adopted_once_by_each_other_kind() {
        let mut one = Epoch::new();
        let mut other = one.clone();
        one.start();
        assert!(!one.adopt());
        // Two kinds that detect a reset at the same time start one epoch.
        other.start();
        assert!(!one.adopt() && !other.adopt());
        other.start();
        assert!(one.adopt() && !one.adopt());
    }

    fn point(cluster: &str, version: u64) -> Point {
        Point { cluster: cluster.to_owned(), version }
    }

    #[test]
    fn only_a_later_version_of_the_same_cluster_soon_after_continues() {
        let at = Instant::now();
        let last_point = LastPoint { point: point("a", 5_000), at };
        let after = |cluster: &str, version: u64, outage: u64| {
            let now = at + Duration::from_secs(10);
            last_point.continuity(&point(cluster, version), Duration::from_secs(outage), now)
        };
        assert_eq!(after("a", 5_000, 10), Continuity::Continues);
        assert_eq!(after("a", 305_000, 10), Continuity::Continues);
        assert_eq!(after("a", 4_999, 10), Continuity::Unknown, "behind: a backup");
        assert_eq!(after("a", 1_000_005_000, 10), Continuity::Unknown, "a backup with --bump-revision");
        assert_eq!(after("b", 5_001, 10), Continuity::Unknown, "a new cluster");
        assert_eq!(after("", 5_001, 10), Continuity::Unknown, "a cluster without kube-system");
        assert_eq!(after("a", 5_001, 121), Continuity::Unknown, "there was time for a restore");
        let with_disk = |cluster: &str, version: u64| {
            last_point.continuity_with_disk(&point(cluster, version), at + Duration::from_secs(86_400))
        };
        assert_eq!(with_disk("a", 6_000), Continuity::Newer, "however long the gateway was not running");
        assert_eq!(with_disk("a", 4_999), Continuity::Unknown, "behind: a backup");
        assert_eq!(with_disk("b", 6_000), Continuity::Unknown, "a new cluster");
        let unknown = LastPoint { point: point("a", 0), at };
        assert_eq!(unknown.continuity(&point("a", 7), Duration::ZERO, at), Continuity::Unknown);
    }
}
