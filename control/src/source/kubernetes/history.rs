//! Whether a list is of the history that was seen so far, or may be of a server that lost some of it.
//!
//! A list that lacks objects means that they were deleted, or that the API server is back empty or from a backup. A
//! watch that expired (410) on a healthy server is the usual reason for a list, and what was deleted meanwhile has to
//! go at once. What tells the two apart: the cluster (the uid of `kube-system`, which a new one has anew), the version
//! (a backup is behind; one that was restored with `--bump-revision` is ahead by more than anybody could have
//! written), and how long nobody watched (a restore takes longer than a restart). `retain` adds what it sees in the
//! list itself. Pure.
//!
//! What a gateway finds on its own disk at the start is another matter: nobody watched while it was not running, for
//! however long, so the outage says nothing. There the cluster and the version decide alone
//! ([`Heard::continuity_with_disk`]).
//!
//! Not told apart: a backup a few seconds old whose server has written more since than was lost. What it lacks is
//! believed to be deleted.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::retain::Continuity;

/// More writes than any etcd takes, a second and at once.
const WRITES_PER_SECOND_MAX: u64 = 20_000;
const WRITES_AT_ONCE_MAX: u64 = 100_000;
/// Without a watch for longer than this, nothing is certain.
const OUTAGE_MAX: Duration = Duration::from_secs(120);

/// A point in the history of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Point {
    /// The uid of the namespace `kube-system`; empty where it is not known.
    pub(super) cluster: String,
    /// `resourceVersion`; 0 where it is no number.
    pub(super) version: u64,
}

/// The last word of the API server about a kind, and when it was heard.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) point: Point,
    pub(super) at: Instant,
}

impl Heard {
    /// Whether a list as of `point`, at `now`, goes on where this ended; nobody watched for `outage`.
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

    /// Whether the first list of a run, as of `point`, is newer than what is on disk, where this was heard last.
    pub(super) fn continuity_with_disk(&self, point: &Point, now: Instant) -> Continuity {
        match self.continuity(point, Duration::ZERO, now) {
            Continuity::GoesOn => Continuity::Newer,
            other => other,
        }
    }

    /// The API server has told everything up to this version.
    pub(super) fn tell(&mut self, version: u64, now: Instant) {
        self.point.version = self.point.version.max(version);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
