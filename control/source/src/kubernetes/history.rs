//! Decides whether a list continues the known history, or may come from a server that lost some of it.
//!
//! If a list lacks objects, they were deleted, or the API server returned empty or from a backup. A watch that
//! expired (410) on a healthy server is the usual reason for a list, and objects deleted meanwhile must be removed at
//! once. Three things distinguish the cases: the cluster (the uid of `kube-system`, which is different in a new
//! cluster), the version (a backup is behind; one that was restored with `--bump-revision` is ahead by more than
//! could have been written), and how long there was no watch (a restore takes longer than a restart). `retain` adds
//! what it sees in the list itself. Pure.
//!
//! Objects that a gateway loads from its own disk at the start are a different case: there was no watch while it was
//! not running, for an unknown time, so the length of the outage says nothing. Only the cluster and the version
//! decide ([`Heard::continuity_with_disk`]).
//!
//! The version alone is not enough if a backup is a few seconds old: its server has soon written more than was lost.
//! So after a fault the newest change that was received ([`Newest`]) is also looked for. In the same history the API
//! server has that object at that version, or the watch reports what happened to it since. If the watch cannot resume
//! (410, as after each restart of an API server, or after a long outage), the list must have the object, or a list of the
//! past, at the last version that was received, must have it: then it was deleted meanwhile. An API server that has discarded
//! that past says nothing, and the object counts as lost.
//!
//! A history is that of all kinds ([`Epoch`]): if one of them shows that it is another one, all are listed again, and none
//! of the objects that are missing counts as deleted. Otherwise a Service would stay without its endpoints.
//!
//! Not detected is a backup that lacks only bookmarks, or only changes whose object was written again since.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_model::objects::ObjectKey;
use tokio::sync::watch;

use super::retain::Continuity;

/// A rate of writes that no etcd reaches, per second and at once.
const WRITES_PER_SECOND_MAX: u64 = 20_000;
const WRITES_AT_ONCE_MAX: u64 = 100_000;
/// After a longer time without a watch, a list does not prove anything.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(120);

/// A point in the history of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// The uid of the namespace `kube-system`; empty if it is not known.
    pub(super) cluster: String,
    /// `resourceVersion`; 0 if it is not a number.
    pub(super) version: u64,
}

/// The last known point of a kind, and when it was received.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) point: Point,
    pub(super) at: Instant,
}

impl Heard {
    /// Whether a list of version `point`, at `now`, continues this history after an `outage` without a watch.
    pub(super) fn continuity(&self, point: &Point, outage: Duration, now: Instant) -> Continuity {
        let since = now.saturating_duration_since(self.at).as_secs();
        let written_max = WRITES_AT_ONCE_MAX.saturating_add(WRITES_PER_SECOND_MAX.saturating_mul(since));
        let written = point.version.checked_sub(self.point.version);
        let goes_on = !point.cluster.is_empty()
            && point.cluster == self.point.cluster
            && self.point.version != 0
            && written.is_some_and(|written| written <= written_max)
            && outage <= OUTAGE_MAX;
        if goes_on { Continuity::GoesOn } else { Continuity::Unknown }
    }

    /// Whether the first list of a run, at `point`, is newer than the objects on disk, whose point is this one.
    pub(super) fn continuity_with_disk(&self, point: &Point, now: Instant) -> Continuity {
        match self.continuity(point, Duration::ZERO, now) {
            Continuity::GoesOn => Continuity::Newer,
            other => other,
        }
    }

    /// Records that the API server has sent everything up to this version.
    pub(super) fn observe_version(&mut self, version: u64, now: Instant) {
        self.point.version = self.point.version.max(version);
        self.at = now;
    }
}

/// The newest change of a kind that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) key: ObjectKey,
    /// The `resourceVersion` of the object, or of its deletion.
    pub(super) version: u64,
    /// Whether the change left the object in place, as opposed to deleting it.
    pub(super) is_there: bool,
}

/// Counts how often the history of the API server turned out to be another one. Shared by all kinds.
#[derive(Debug, Clone)]
pub(super) struct Epoch {
    counter: Arc<watch::Sender<u64>>,
    seen: u64,
}

impl Epoch {
    pub(super) fn new() -> Self {
        Self { counter: Arc::new(watch::Sender::new(0)), seen: 0 }
    }

    /// Begins a new epoch, unless another kind has begun one that this kind does not know yet.
    pub(super) fn begin(&mut self) {
        if !self.follow() {
            self.counter.send_modify(|count| *count += 1);
            self.follow();
        }
    }

    /// Adopts the current epoch. Returns whether another kind has begun it.
    pub(super) fn follow(&mut self) -> bool {
        let current = *self.counter.borrow();
        std::mem::replace(&mut self.seen, current) != current
    }

    /// Waits until another kind begins an epoch.
    pub(super) async fn begun_by_another(&self) {
        // The sender lives as long as this value.
        let _ = self.counter.subscribe().wait_for(|count| *count != self.seen).await;
    }
}

/// Whether an API server's history contains a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Had {
    Yes,
    /// Only if a watch that starts at that change reports the same object once more.
    IfExplained,
    No,
}

impl Newest {
    /// Replaces the last change if this one is newer.
    pub(super) fn note(last: &mut Option<Self>, key: &ObjectKey, version: u64, is_there: bool) {
        if version != 0 && last.as_ref().is_none_or(|last| last.version <= version) {
            *last = Some(Self { key: key.clone(), version, is_there });
        }
    }

    /// Whether a history contains the change. `now` is the version of the object that the API server has, if it has the
    /// object.
    pub(super) fn had_by(&self, now: Option<u64>) -> Had {
        match now {
            // A version that cannot be compared.
            Some(0) => Had::Yes,
            Some(now) if now < self.version => Had::No,
            Some(now) if now == self.version && self.is_there => Had::Yes,
            None if !self.is_there => Had::Yes,
            Some(_) | None => Had::IfExplained,
        }
    }

    /// Whether the history of a list contains the change, as far as the list shows: an object that is missing may have been
    /// deleted since, or its history lost. `now` as for [`Self::had_by`].
    pub(super) fn is_missing_from_list(&self, now: Option<u64>) -> bool {
        match self.had_by(now) {
            Had::Yes => false,
            Had::IfExplained => self.is_there && now.is_none(),
            Had::No => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_change_is_in_a_history_that_has_it_or_explains_what_became_of_it() {
        let mut newest = None;
        let key = ObjectKey::new("shop", "web");
        Newest::note(&mut newest, &key, 0, true);
        assert_eq!(newest, None, "a version that does not compare");
        Newest::note(&mut newest, &key, 7, true);
        Newest::note(&mut newest, &ObjectKey::new("shop", "api"), 5, true);
        let there = newest.clone().expect("noted");
        assert_eq!(there, Newest { key: key.clone(), version: 7, is_there: true });
        let had = |newest: &Newest| [None, Some(0), Some(6), Some(7), Some(8)].map(|now| newest.had_by(now));
        assert_eq!(had(&there), [Had::IfExplained, Had::Yes, Had::No, Had::Yes, Had::IfExplained]);
        Newest::note(&mut newest, &key, 7, false);
        let deleted = newest.expect("noted");
        assert_eq!(had(&deleted), [Had::Yes, Had::Yes, Had::No, Had::IfExplained, Had::IfExplained]);
        let missing = |newest: &Newest| {
            [None, Some(0), Some(6), Some(7), Some(8)].map(|now| newest.is_missing_from_list(now))
        };
        assert_eq!(missing(&there), [true, false, true, false, false]);
        assert_eq!(missing(&deleted), [false, false, true, false, false]);
    }

    #[test]
    fn an_epoch_that_one_kind_begins_is_followed_once_by_each_other_kind() {
        let mut one = Epoch::new();
        let mut other = one.clone();
        one.begin();
        assert!(!one.follow());
        // Two kinds that find out at the same time begin one epoch.
        other.begin();
        assert!(!one.follow() && !other.follow());
        other.begin();
        assert!(one.follow() && !one.follow());
    }

    fn point(cluster: &str, version: u64) -> Point {
        Point { cluster: cluster.to_owned(), version }
    }

    #[test]
    fn only_a_later_version_of_the_same_cluster_soon_after_goes_on() {
        let at = Instant::now();
        let heard = Heard { point: point("a", 5_000), at };
        let after = |cluster: &str, version: u64, outage: u64| {
            let now = at + Duration::from_secs(10);
            heard.continuity(&point(cluster, version), Duration::from_secs(outage), now)
        };
        assert_eq!(after("a", 5_000, 10), Continuity::GoesOn);
        assert_eq!(after("a", 305_000, 10), Continuity::GoesOn);
        assert_eq!(after("a", 4_999, 10), Continuity::Unknown, "behind: a backup");
        assert_eq!(after("a", 1_000_005_000, 10), Continuity::Unknown, "a backup with --bump-revision");
        assert_eq!(after("b", 5_001, 10), Continuity::Unknown, "a new cluster");
        assert_eq!(after("", 5_001, 10), Continuity::Unknown, "a cluster without kube-system");
        assert_eq!(after("a", 5_001, 121), Continuity::Unknown, "long enough for a restore");
        let with_disk = |cluster: &str, version: u64| {
            heard.continuity_with_disk(&point(cluster, version), at + Duration::from_secs(86_400))
        };
        assert_eq!(with_disk("a", 6_000), Continuity::Newer, "however long the gateway was not running");
        assert_eq!(with_disk("a", 4_999), Continuity::Unknown, "behind: a backup");
        assert_eq!(with_disk("b", 6_000), Continuity::Unknown, "a new cluster");
        let unknown = Heard { point: point("a", 0), at };
        assert_eq!(unknown.continuity(&point("a", 7), Duration::ZERO, at), Continuity::Unknown);
    }
}
