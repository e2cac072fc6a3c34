//! Leader election: the gateway that holds a Lease (coordination.k8s.io/v1) and renews it is the one that writes.
//!
//! [`Election`] is a pure state machine: its inputs are the API server's Lease and the time, its output is the next
//! request, which `elect` sends.
//!
//! The rules are those of client-go's leader election. A gateway acquires the Lease if its holder has not renewed it for
//! 8 s by the gateway's own clock. The holder renews it every second, and stops leading as soon as no renewal that
//! started within the last 4 s has succeeded. This leaves 4 s between the last write of one leader and the first write
//! of the next, whatever their clocks show.
//!
//! The durations are about half of client-go's defaults (15 s, 10 s and 2 s), because Services that change after a leader
//! was killed wait for the next one. A leader that can't renew in time only pauses: packets don't depend on it.
//!
//! Invariant: nothing here compares the clocks of two machines.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::time::Instant;

use super::request::RESPONSE_TIMEOUT;

/// The name of the Lease.
pub const LEASE: &str = "tidegate";

/// The holder that `tidegate uninstall` writes to the Lease. No gateway acquires the Lease from this holder, even after
/// it expires, and none writes to the cluster until the Lease is deleted or has another holder.
pub const UNINSTALLED: &str = "tidegate-uninstall";

/// How long other gateways wait for a holder that doesn't renew the Lease.
pub(super) const DURATION: Duration = Duration::from_secs(8);
/// How long a holder leads after the start of a successful renewal.
pub(super) const RENEW_DEADLINE: Duration = Duration::from_secs(4);
/// The last write of a leader must end before the next leader starts.
const _: () = assert!(RENEW_DEADLINE.as_secs() + RESPONSE_TIMEOUT.as_secs() <= DURATION.as_secs());
/// The pause between two attempts.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// The state machine of the election.
#[derive(Debug, Clone)]
pub(super) struct Election {
    identity: String,
    namespace: String,
    /// The Lease as last seen, and the time of its last known change.
    seen: Option<(Lease, Instant)>,
    /// Until when this gateway leads.
    leads_until: Option<Instant>,
    /// The holder that had not renewed the Lease when this gateway acquired it.
    lapsed: Option<String>,
}

/// The next request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LeaseRequest {
    /// Read the Lease.
    Get,
    /// Create the Lease with this gateway as its holder.
    Create(Box<Lease>),
    /// Replace the Lease, unless it was modified meanwhile (`resourceVersion`).
    Replace(Box<Lease>),
}

impl Election {
    /// An election before the first read.
    pub(super) fn new(identity: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self {
            identity: identity.into(),
            namespace: namespace.into(),
            seen: None,
            leads_until: None,
            lapsed: None,
        }
    }

    /// Until when this gateway leads, if it does.
    pub(super) fn leads_until(&self) -> Option<Instant> {
        self.leads_until
    }

    /// The leader before this one, if this gateway leads because that one did not renew the Lease.
    pub(super) fn lapsed(&self) -> Option<&str> {
        self.lapsed.as_deref().map(gateway_of)
    }

    /// The holder of the Lease as last seen.
    pub(super) fn holder(&self) -> Option<&str> {
        holder(&self.seen.as_ref()?.0)
    }

    /// The first request of an attempt. It is a renewal if this gateway is the last known holder.
    pub(super) fn request(&self, wall: Timestamp) -> LeaseRequest {
        match &self.seen {
            Some((lease, _)) if self.is_holder(lease) => LeaseRequest::Replace(self.ours(lease, false, wall)),
            _ => LeaseRequest::Get,
        }
    }

    /// Records the API server's Lease, or that there is none. Returns the next request if the Lease can be acquired or
    /// renewed.
    pub(super) fn found(
        &mut self,
        lease: Option<Lease>,
        now: Instant,
        wall: Timestamp,
    ) -> Option<LeaseRequest> {
        let Some(lease) = lease else {
            self.seen = None;
            let spec = Some(acquired(&self.identity, DURATION, wall));
            return Some(LeaseRequest::Create(Box::new(Lease { metadata: metadata(&self.namespace), spec })));
        };
        let changed = self.seen.as_ref().is_none_or(|(seen, _)| seen.spec != lease.spec);
        let since = match &self.seen {
            Some((_, since)) if !changed => *since,
            _ => now,
        };
        let (is_ours, holder_now) = (self.is_holder(&lease), holder(&lease));
        let is_over =
            now.duration_since(since) >= duration_of(&lease, DURATION) && holder_now != Some(UNINSTALLED);
        let request = (is_ours || is_over || holder_now.is_none())
            .then(|| LeaseRequest::Replace(self.ours(&lease, !is_ours, wall)));
        if request.is_none() {
            self.leads_until = None;
        }
        if !is_ours {
            self.lapsed = holder_now.filter(|_| is_over).map(str::to_owned);
        }
        self.seen = Some((lease, since));
        request
    }

    /// Records that the API server accepted our request. The leadership counts from `started`, the start of the
    /// request.
    pub(super) fn granted(&mut self, lease: Lease, started: Instant) {
        self.leads_until = Some(started + RENEW_DEADLINE);
        self.seen = Some((lease, started));
    }

    /// Records that another gateway modified the Lease first, so that our copy is outdated. Until the next read,
    /// nothing changes for this gateway.
    pub(super) fn refused(&mut self) {
        if let Some((lease, _)) = &mut self.seen {
            // With an unknown holder, the next attempt starts with a read.
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some("?".to_owned());
            }
        }
    }

    /// The request at shutdown. It clears the holder, so that other gateways need not wait.
    pub(super) fn released(&mut self, wall: Timestamp) -> Option<LeaseRequest> {
        self.leads_until.take()?;
        let (lease, _) = self.seen.take().filter(|(lease, _)| self.is_holder(lease))?;
        let mut lease = without_holder(lease, wall);
        lease.spec.get_or_insert_default().lease_duration_seconds = Some(1);
        Some(LeaseRequest::Replace(Box::new(lease)))
    }

    fn is_holder(&self, lease: &Lease) -> bool {
        holder(lease) == Some(self.identity.as_str())
    }

    fn ours(&self, lease: &Lease, is_taken: bool, wall: Timestamp) -> Box<Lease> {
        Box::new(with_holder(lease, &self.identity, DURATION, is_taken, wall))
    }
}

/// The holder of a Lease, if it has one.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The gateway in the identity of a holder: `edge-1` of `edge-1_5f3a`.
pub(super) fn gateway_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(name, _)| name)
}

/// The duration that the holder states. An invalid one is replaced by `ours`.
pub(super) fn duration_of(lease: &Lease, ours: Duration) -> Duration {
    let stated = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    stated.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0).map_or(ours, Duration::from_secs)
}

/// The metadata of the Lease of the election.
pub(super) fn metadata(namespace: &str) -> ObjectMeta {
    let (name, namespace) = (Some(LEASE.to_owned()), Some(namespace.to_owned()));
    ObjectMeta { name, namespace, ..ObjectMeta::default() }
}

/// The spec of a Lease that is acquired now.
pub(super) fn acquired(holder: &str, duration: Duration, wall: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
        acquire_time: Some(MicroTime(wall)),
        renew_time: Some(MicroTime(wall)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    }
}

/// The Lease with this holder, who renews it or (`is_taken`) acquires it from another one.
pub(super) fn with_holder(
    lease: &Lease,
    holder: &str,
    duration: Duration,
    is_taken: bool,
    wall: Timestamp,
) -> Lease {
    let mut lease = lease.clone();
    let before = lease.spec.take().unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_taken));
    let new = LeaseSpec { lease_transitions: Some(transitions), ..acquired(holder, duration, wall) };
    let acquire_time = if is_taken { new.acquire_time.clone() } else { before.acquire_time };
    lease.spec = Some(LeaseSpec { acquire_time, ..new });
    lease
}

/// The Lease without a holder, so that others need not wait until it expires.
pub(super) fn without_holder(mut lease: Lease, wall: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.renew_time = Some(MicroTime(wall));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An API server that stores one Lease.
    #[derive(Default)]
    struct Server {
        lease: Option<Lease>,
        version: u64,
    }

    impl Server {
        fn take(&mut self, request: &LeaseRequest) -> Option<Lease> {
            let lease = match request {
                LeaseRequest::Get => panic!("a read changes nothing"),
                LeaseRequest::Create(_) if self.lease.is_some() => return None,
                LeaseRequest::Create(lease) => lease,
                LeaseRequest::Replace(lease) => {
                    let now = self.lease.as_ref().and_then(|l| l.metadata.resource_version.clone());
                    if lease.metadata.resource_version != now {
                        return None;
                    }
                    lease
                }
            };
            self.version += 1;
            let mut lease = Lease::clone(lease);
            lease.metadata.resource_version = Some(self.version.to_string());
            self.lease = Some(lease.clone());
            Some(lease)
        }

        /// One attempt of a gateway. Returns whether it leads afterwards.
        fn attempt(&mut self, election: &mut Election) -> bool {
            let now = Instant::now();
            let mut request = election.request(wall());
            if request == LeaseRequest::Get {
                match election.found(self.lease.clone(), now, wall()) {
                    None => return leads(election),
                    Some(next) => request = next,
                }
            }
            match self.take(&request) {
                Some(lease) => election.granted(lease, now),
                None => election.refused(),
            }
            leads(election)
        }
    }

    /// A wall clock that advances. No test depends on how fast.
    fn wall() -> Timestamp {
        use std::sync::atomic::{AtomicU64, Ordering};
        static TICKS: AtomicU64 = AtomicU64::new(0);
        Timestamp::UNIX_EPOCH + Duration::from_millis(TICKS.fetch_add(1, Ordering::Relaxed))
    }

    fn leads(election: &Election) -> bool {
        election.leads_until().is_some_and(|until| Instant::now() < until)
    }

    async fn after(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    fn two() -> (Election, Election) {
        (Election::new("a", "tidegate-system"), Election::new("b", "tidegate-system"))
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_leads_and_remains_the_leader_while_it_renews() {
        let (mut a, mut b, mut server) = (two().0, two().1, Server::default());
        for _ in 0..30 {
            assert!(server.attempt(&mut a));
            assert!(!server.attempt(&mut b));
            assert_eq!(b.holder(), Some("a"));
            after(RETRY.as_secs()).await;
        }
        let spec = server.lease.and_then(|l| l.spec).expect("a lease");
        assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(0), Some(8)));
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_cannot_renew_stops_before_another_takes_over() {
        let (mut a, mut b, mut server) = (two().0, two().1, Server::default());
        assert!(server.attempt(&mut a) && !server.attempt(&mut b));
        // Gateway a is partitioned: none of its attempts reaches the server.
        for second in 0..40 {
            let b_leads = server.attempt(&mut b);
            assert!(!(leads(&a) && b_leads), "two leaders after {second} s");
            assert_eq!(leads(&a), second < 4, "after {second} s");
            assert_eq!(b_leads, second >= 8, "after {second} s");
            after(1).await;
        }
        assert!(!server.attempt(&mut a), "its copy is outdated");
        assert!(!server.attempt(&mut a));
        assert_eq!(a.holder(), Some("b"));
        assert_eq!((a.lapsed(), b.lapsed()), (None, Some("a")));
        assert_eq!(server.lease.and_then(|l| l.spec).and_then(|s| s.lease_transitions), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_acquired_immediately() {
        let (mut a, mut b, mut server) = (two().0, two().1, Server::default());
        assert!(server.attempt(&mut a) && !server.attempt(&mut b));
        let release = a.released(wall()).expect("it leads");
        assert!(server.take(&release).is_some());
        assert!(!leads(&a));
        assert!(server.attempt(&mut b));
        assert_eq!((a.released(wall()), b.lapsed()), (None, None), "once, and normally");
    }

    #[tokio::test(start_paused = true)]
    async fn the_resource_version_decides_between_concurrent_requests() {
        let (mut a, mut b, mut server) = (two().0, two().1, Server::default());
        let now = Instant::now();
        let (of_a, of_b) = (a.found(None, now, wall()), b.found(None, now, wall()));
        let (of_a, of_b) = (of_a.expect("free"), of_b.expect("free"));
        let granted = server.take(&of_b).expect("the first one");
        b.granted(granted, now);
        assert!(server.take(&of_a).is_none());
        a.refused();
        assert!(leads(&b) && !leads(&a) && !server.attempt(&mut a));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manually_edited_lease_is_lost_at_the_next_read() {
        let (mut a, mut server) = (two().0, Server::default());
        assert!(server.attempt(&mut a));
        let mut edited = server.lease.clone().expect("a lease");
        edited.spec.get_or_insert_default().holder_identity = Some("c".into());
        assert!(server.take(&LeaseRequest::Replace(Box::new(edited))).is_some());
        server.attempt(&mut a);
        assert!(!server.attempt(&mut a), "refused, then read again");
        assert_eq!(a.holder(), Some("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_of_an_uninstallation_is_never_acquired_until_it_is_deleted() {
        let (mut a, mut server) = (two().0, Server::default());
        assert!(server.attempt(&mut a));
        let mut lease = server.lease.clone().expect("a lease");
        lease.spec.get_or_insert_default().holder_identity = Some(UNINSTALLED.into());
        assert!(server.take(&LeaseRequest::Replace(Box::new(lease))).is_some());
        server.attempt(&mut a);
        for _ in 0..10 {
            assert!(!server.attempt(&mut a), "however long it lasts");
            after(3600).await;
        }
        assert_eq!(a.holder(), Some(UNINSTALLED));
        server.lease = None;
        assert!(server.attempt(&mut a));
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_gateway_waits_for_its_own_old_lease() {
        let (mut a, mut server) = (two().0, Server::default());
        assert!(server.attempt(&mut a));
        let mut again = Election::new("a-2", "tidegate-system");
        for _ in 0..8 {
            assert!(!server.attempt(&mut again));
            after(1).await;
        }
        assert!(server.attempt(&mut again));
    }
}
