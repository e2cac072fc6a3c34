//! One Lease for a group of VIPs from the point of view of one gateway: when it acquires, renews and releases the
//! Lease, and until when it owns the VIPs.
//!
//! Pure: its inputs are the API server's Lease and the time, its output is the next write, which `keeper` sends.
//!
//! Why two owners can't overlap: a Lease states a duration D. Its holder owns the VIPs until D minus [`MARGIN`] after
//! the start of its last successful write, by a clock that also advances while the process or the machine is suspended.
//! The code that answers for VIPs checks that time before each answer.
//!
//! Another gateway acquires the Lease only after it has seen it unchanged for D by its own clock, with a write that the
//! API server refuses if the Lease was changed meanwhile (`resourceVersion`). A successful write was sent before others
//! could see it. The previous owner is therefore silent for at least [`MARGIN`] before the next one starts, whatever
//! the API server, the network or either process does.
//!
//! The clocks must only run at about the same rate: over D, they must drift apart by less than [`MARGIN`]. A holder
//! that releases a Lease stops answering first.
//!
//! Invariant: nothing here compares the clocks of two machines.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tidegate_spec::ownership::BootTime;
use tokio::time::Instant;

use super::rank::Ranked;
use crate::lease::{acquired, duration_of, gateway_of, holder, with_holder, without_holder};

/// How long before the Lease expires its holder stops answering.
pub(super) const MARGIN: Duration = Duration::from_secs(1);
/// How long gateways that are not preferred wait before they acquire a free Lease, per rank.
pub(super) const RANK_STEP: Duration = Duration::from_secs(2);
/// A gateway that let the Lease expire, or didn't acquire it when it could, is preferred again only after this
/// time: a dead gateway counts as live for up to 50 s.
pub(super) const PASSED_OVER_FOR: Duration = Duration::from_secs(60);
/// A gateway that serves more of a group's Services than its owner gets the Lease after at most this time. Until then,
/// the report of that gateway may be older than a change that affects both gateways.
pub(super) const SERVES_MORE_DELAY: Duration = Duration::from_secs(15);
/// The label of our Leases.
pub(super) const LABEL: (&str, &str) = ("tidegate.dev/layer2", "group");

/// A write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LeaseWrite {
    /// Create the Lease with this gateway as its holder.
    Create(Box<Lease>),
    /// Acquire or renew the Lease, unless it was modified meanwhile.
    Update(Box<Lease>),
    /// Release it, unless it was modified meanwhile.
    Release(Box<Lease>),
}

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// The identity of this run of the gateway.
    pub(super) identity: &'a str,
    /// The gateways that may own the group, the preferred one first. They include this gateway if it may own the group.
    pub(super) ranked: &'a [Ranked],
    /// The duration of Leases.
    pub(super) duration: Duration,
    /// How long another gateway must be preferred before it gets the Lease.
    pub(super) hand_back_delay: Duration,
    /// Whether this gateway was cut off and has not yet imported the flows of other gateways. It then acquires no Lease
    /// that another gateway can acquire, but keeps the ones that it has.
    pub(super) is_cut_off: bool,
    /// The number of Services of the group.
    pub(super) services: usize,
    /// The wall clock, shown to users in the Lease.
    pub(super) wall: Timestamp,
}

impl Context<'_> {
    fn update(&self, lease: &Lease, is_taken: bool) -> LeaseWrite {
        let lease = with_holder(lease, self.identity, self.duration, is_taken, self.wall);
        LeaseWrite::Update(Box::new(lease))
    }
}

/// The state of one Lease.
#[derive(Debug, Clone, Default)]
pub(super) struct Claim {
    /// The Lease as last seen (`None` if there is none), and the time of its last known change.
    seen: Option<(Option<Lease>, Instant)>,
    /// The start of the last successful write of this gateway.
    renewed: Option<Instant>,
    /// Until when this gateway owns the VIPs.
    pub(super) until: BootTime,
    /// Another gateway that is preferred, and since when. The time is in the future if it was passed over.
    preferred: Option<(String, Instant)>,
    /// Until when this gateway doesn't want the Lease, because it lacked capacity for its VIPs.
    refused_until: Option<Instant>,
}

impl Claim {
    /// The name of the gateway that holds the Lease as last seen.
    pub(super) fn holder(&self) -> Option<&str> {
        let (lease, _) = self.seen.as_ref()?;
        Some(gateway_of(holder(lease.as_ref()?)?))
    }

    /// Records the API server's Lease, or that there is none.
    pub(super) fn observe(&mut self, lease: Option<Lease>, identity: &str, now: Instant) {
        let is_ours = lease.as_ref().is_some_and(|lease| holder(lease) == Some(identity));
        if !is_ours {
            self.until = BootTime(0);
        }
        let is_unchanged = self.seen.as_ref().is_some_and(|(seen, _)| version(seen) == version(&lease));
        match &mut self.seen {
            Some((seen, _)) if is_unchanged => *seen = lease,
            _ => self.seen = Some((lease, now)),
        }
    }

    /// The next write, if one is due.
    pub(super) fn next_write(&mut self, context: &Context<'_>, now: Instant) -> Option<LeaseWrite> {
        let (lease, since) = self.seen.clone()?;
        let own = gateway_of(context.identity);
        let is_refused = self.refused_until.is_some_and(|until| now < until);
        let is_eligible = !is_refused && context.ranked.iter().any(|one| one.name == own);
        let holder_now = lease.as_ref().and_then(holder);
        if let Some(lease) = &lease
            && holder_now == Some(context.identity)
        {
            if !is_eligible || self.is_handed_back(context, own, now) {
                self.until = BootTime(0);
                return Some(LeaseWrite::Release(Box::new(without_holder(lease.clone(), context.wall))));
            }
            let is_due =
                self.renewed.is_none_or(|at| now.duration_since(at) >= renew_every(context.duration));
            return is_due.then(|| context.update(lease, false));
        }
        // A Lease that its holder doesn't renew is free from its end on.
        let lasts = lease.as_ref().filter(|_| holder_now.is_some());
        let since = lasts.map_or(since, |lease| since + duration_of(lease, context.duration));
        let is_free = now >= since && self.may_acquire(context, own, holder_now.map(gateway_of), since, now);
        if !is_eligible || !is_free {
            return None;
        }
        self.pass_over(context, own, now);
        let Some(lease) = &lease else {
            let labels = [(LABEL.0.to_owned(), LABEL.1.to_owned())].into();
            let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
            let spec = Some(acquired(context.identity, context.duration, context.wall));
            return Some(LeaseWrite::Create(Box::new(Lease { metadata, spec })));
        };
        Some(context.update(lease, true))
    }

    /// Records that this gateway acquires the Lease although another one may be preferred.
    fn pass_over(&mut self, context: &Context<'_>, own: &str, now: Instant) {
        let first = context.ranked.first().filter(|first| first.name != own);
        self.preferred = first.map(|first| (first.name.clone(), now + PASSED_OVER_FOR));
    }

    /// When a write may be due even if the Lease doesn't change.
    pub(super) fn due(&self, identity: &str, duration: Duration) -> Option<Instant> {
        let (lease, since) = self.seen.as_ref()?;
        let lease = lease.as_ref()?;
        match holder(lease) {
            Some(by) if by == identity => self.renewed.map(|at| at + renew_every(duration)),
            Some(_) => Some(*since + duration_of(lease, duration)),
            None => None,
        }
    }

    /// Records that the API server accepted a write that started at these times. Returns whether this gateway has just
    /// become the owner of the VIPs.
    pub(super) fn written(
        &mut self,
        lease: Lease,
        identity: &str,
        (started, boot): (Instant, BootTime),
        duration: Duration,
    ) -> bool {
        let had = self.until;
        if holder(&lease) == Some(identity) {
            self.until = boot.plus(duration.saturating_sub(MARGIN));
            self.renewed = Some(started);
        } else {
            (self.until, self.renewed) = (BootTime(0), None);
        }
        self.seen = Some((Some(lease), started));
        had <= boot && self.until > boot
    }

    /// Releases the Lease and leaves it to others for a while, because the workers lack capacity for its VIPs.
    pub(super) fn reject(&mut self, now: Instant) {
        self.until = BootTime(0);
        self.refused_until = Some(now + PASSED_OVER_FOR);
    }

    /// Whether this gateway may acquire a Lease that has been free since `since`. The preferred gateway acquires it
    /// immediately, others later. `except` is a gateway that did not renew it.
    fn may_acquire(
        &self,
        context: &Context<'_>,
        own: &str,
        except: Option<&str>,
        since: Instant,
        now: Instant,
    ) -> bool {
        let others = context.ranked.iter().filter(|one| Some(one.name.as_str()) != except || one.name == own);
        // A gateway that lacks all Services may not acquire the Lease at all.
        let may_take = |one: &Ranked| one.name != own && one.lacking < context.services;
        if context.is_cut_off && others.clone().any(may_take) {
            return false;
        }
        let rank = others.enumerate().find(|(_, one)| one.name == own).map(|(rank, _)| rank);
        let step = |rank: usize| RANK_STEP.saturating_mul(u32::try_from(rank).unwrap_or(u32::MAX));
        rank.is_some_and(|rank| now.duration_since(since) >= step(rank))
    }

    /// Whether another gateway has been preferred for long enough to get the Lease.
    fn is_handed_back(&mut self, context: &Context<'_>, own: &str, now: Instant) -> bool {
        let Some(first) = context.ranked.first().filter(|first| first.name != own) else {
            self.preferred = None;
            return false;
        };
        let serves_more = context.ranked.iter().any(|one| one.name == own && first.lacking < one.lacking);
        let delay = match serves_more {
            true => context.hand_back_delay.min(SERVES_MORE_DELAY),
            false => context.hand_back_delay,
        };
        match &self.preferred {
            Some((name, since)) if *name == first.name => now >= *since + delay,
            _ => {
                self.preferred = Some((first.name.clone(), now));
                delay.is_zero()
            }
        }
    }
}

/// The interval of renewals.
pub(super) fn renew_every(duration: Duration) -> Duration {
    duration / 4
}

fn version(lease: &Option<Lease>) -> Option<&str> {
    lease.as_ref()?.metadata.resource_version.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(8);

    /// An API server with one Lease.
    #[derive(Default)]
    struct Server {
        lease: Option<Lease>,
        writes: u64,
    }

    impl Server {
        fn take(&mut self, next_write: &LeaseWrite) -> Option<Lease> {
            let now = self.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
            let lease = match next_write {
                LeaseWrite::Create(_) if self.lease.is_some() => return None,
                LeaseWrite::Create(lease) => lease,
                LeaseWrite::Update(lease) | LeaseWrite::Release(lease)
                    if lease.metadata.resource_version == now =>
                {
                    lease
                }
                LeaseWrite::Update(_) | LeaseWrite::Release(_) => return None,
            };
            self.writes += 1;
            let mut lease = Lease::clone(lease);
            lease.metadata.resource_version = Some(self.writes.to_string());
            self.lease = Some(lease.clone());
            Some(lease)
        }
    }

    /// A gateway whose clock shows the seconds since its start.
    struct Gateway {
        claim: Claim,
        identity: String,
        delay: Duration,
        is_cut_off: bool,
    }

    impl Gateway {
        fn new(identity: &str) -> Self {
            let delay = Duration::from_secs(30);
            Self { claim: Claim::default(), identity: identity.to_owned(), delay, is_cut_off: false }
        }

        /// One poll and the resulting write. Returns whether the gateway owns the VIPs afterwards.
        fn iterate(&mut self, server: &mut Server, ranked: &[&str], start: Instant, millis: u64) -> bool {
            let (now, boot) = times(start, millis);
            self.claim.observe(server.lease.clone(), &self.identity, now);
            // `edge*2` doesn't serve two of the Services.
            let ranked = ranked.iter().map(|one| {
                let (name, lacking) = one.split_once('*').unwrap_or((one, "0"));
                Ranked { name: name.to_owned(), lacking: lacking.parse().expect("a number") }
            });
            let ranked: Vec<Ranked> = ranked.collect();
            let context = Context {
                identity: &self.identity,
                ranked: &ranked,
                duration: DURATION,
                hand_back_delay: self.delay,
                is_cut_off: self.is_cut_off,
                services: 1,
                wall: "2026-01-01T00:00:00Z".parse().expect("a time"),
            };
            if let Some(next_write) = self.claim.next_write(&context, now)
                && let Some(lease) = server.take(&next_write)
            {
                self.claim.written(lease, &self.identity, (now, boot), DURATION);
            }
            self.owns(millis)
        }

        fn owns(&self, millis: u64) -> bool {
            BootTime(millis * 1_000_000) < self.claim.until
        }
    }

    fn times(start: Instant, millis: u64) -> (Instant, BootTime) {
        (start + Duration::from_millis(millis), BootTime(millis * 1_000_000))
    }

    #[test]
    fn the_owner_is_silent_a_margin_before_the_next_one_starts() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        let ranked = ["a", "b"];
        assert!(a.iterate(&mut server, &ranked, start, 0) && !b.iterate(&mut server, &ranked, start, 10));
        // a can no longer reach the API server.
        let (mut silent_at, mut taken_at) = (None, None);
        for millis in (10..20_000).step_by(10) {
            if !a.owns(millis) {
                silent_at.get_or_insert(millis);
            }
            if b.iterate(&mut server, &ranked, start, millis) {
                taken_at.get_or_insert(millis);
            }
            assert!(!(a.owns(millis) && b.owns(millis)), "two owners at {millis} ms");
        }
        // b saw the Lease 10 ms after it was written.
        assert_eq!((silent_at, taken_at), (Some(7_000), Some(8_010)));
        // When a is back it finds another holder, and owns nothing until it gets the Lease again.
        assert!(!a.iterate(&mut server, &ranked, start, 20_000));
    }

    #[test]
    fn a_renewing_holder_keeps_the_lease_and_a_suspended_one_owns_nothing() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        for second in 0..60 {
            assert!(a.iterate(&mut server, &["a", "b"], start, second * 1000));
            assert!(!b.iterate(&mut server, &["a", "b"], start, second * 1000 + 500));
        }
        assert!(server.writes < 40, "it must not be renewed at each poll: {}", server.writes);
        // Suspended for longer than the Lease lasts.
        assert!(!a.owns(80_000), "before any of its tasks has run");
        assert!(a.iterate(&mut server, &["a", "b"], start, 80_000), "no one acquired it, so it is renewed");
    }

    #[test]
    fn the_preferred_gateway_acquires_a_free_lease_first_others_in_order() {
        let start = Instant::now();
        let mut server = Server::default();
        let mut c = Gateway::new("c_1");
        let ranked = ["a", "b", "c"];
        let acquire = (0..60).find(|n| c.iterate(&mut server, &ranked, start, n * 100));
        assert_eq!(acquire, Some(40), "2 s for each gateway before it");
        // The holder died, so it doesn't count as a gateway with a better rank.
        let mut b = Gateway::new("b_1");
        let acquire = (0..200).find(|n| b.iterate(&mut server, &["c", "b"], start, n * 100));
        assert_eq!(acquire, Some(80), "after the duration");
    }

    #[test]
    fn a_lease_is_handed_back_to_the_preferred_gateway_after_a_delay() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.iterate(&mut server, &["b"], start, 0), "it is the only gateway");
        let mut back = None;
        for millis in (0..60_000).step_by(500) {
            let b_owns = b.iterate(&mut server, &["a", "b"], start, millis);
            let a_owns = a.iterate(&mut server, &["a", "b"], start, millis);
            assert!(!(b.owns(millis) && a_owns), "two owners at {millis} ms");
            if a_owns {
                back.get_or_insert(millis);
            }
            assert!(back.is_none() || !b_owns);
        }
        assert_eq!(back, Some(30_000));
    }

    #[test]
    fn a_lease_is_not_handed_back_to_a_gateway_that_just_lost_it() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.iterate(&mut server, &["b"], start, 0));
        for millis in (0..40_000).step_by(500) {
            b.iterate(&mut server, &["a", "b"], start, millis);
            a.iterate(&mut server, &["a", "b"], start, millis);
        }
        assert!(a.owns(39_500) && !b.owns(39_500), "the Lease was handed back");
        let mut taken = None;
        // a is dead but still counts as live.
        for millis in (40_000..90_000).step_by(500) {
            let owns = b.iterate(&mut server, &["a", "b"], start, millis);
            if owns {
                taken.get_or_insert(millis);
            }
            assert!(taken.is_none() || owns, "released at {millis} ms");
        }
        assert!(taken.is_some_and(|at| at <= 49_000), "{taken:?}");
    }

    #[test]
    fn a_gateway_that_may_no_longer_own_the_vips_releases_the_lease() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(a.iterate(&mut server, &["a", "b"], start, 0));
        assert!(!a.iterate(&mut server, &["b"], start, 1000), "it drains");
        assert!(b.iterate(&mut server, &["b"], start, 1100), "without waiting");
        assert!(!a.iterate(&mut server, &["b"], start, 30_000));
    }

    #[test]
    fn a_gateway_without_capacity_for_the_vips_releases_the_lease() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(a.iterate(&mut server, &["a", "b"], start, 0));
        a.claim.reject(start);
        assert!(!a.owns(10) && !a.iterate(&mut server, &["a", "b"], start, 1000), "it releases the Lease");
        assert!(!b.iterate(&mut server, &["a", "b"], start, 1050));
        assert!(
            !a.iterate(&mut server, &["a"], start, 2000),
            "it doesn't acquire it, even as the only gateway"
        );
        assert!(b.iterate(&mut server, &["a", "b"], start, 3100));
        assert!(a.iterate(&mut Server::default(), &["a"], start, 60_000), "there may be capacity by then");
    }

    #[test]
    fn a_gateway_that_was_cut_off_acquires_no_lease_before_it_has_the_flows() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        a.is_cut_off = true;
        assert!(
            !a.iterate(&mut server, &["a", "b"], start, 0)
                && !a.iterate(&mut server, &["a", "b"], start, 30_000)
        );
        assert!(!b.iterate(&mut server, &["a", "b"], start, 29_000), "it isn't the preferred one");
        assert!(b.iterate(&mut server, &["a", "b"], start, 31_000));
        // It keeps the Lease that it has, and acquires one that no other gateway can serve.
        b.is_cut_off = true;
        assert!(b.iterate(&mut server, &["a", "b"], start, 34_000));
        assert!(b.iterate(&mut server, &["a", "b"], start, 41_000), "it was renewed");
        assert!(a.iterate(&mut Server::default(), &["a"], start, 50_000));
        assert!(
            a.iterate(&mut Server::default(), &["a", "b*1"], start, 50_000),
            "the other one serves nothing"
        );
        // The holder is gone, and there is no other gateway.
        assert!(!a.iterate(&mut server, &["a", "b"], start, 60_000));
        assert!(a.iterate(&mut server, &["a", "b"], start, 69_000));
    }

    #[test]
    fn a_gateway_that_serves_more_gets_the_lease_before_the_usual_delay() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.iterate(&mut server, &["b"], start, 0));
        let ranked = ["a", "b*1"];
        let mut taken = None;
        for millis in (0..60_000).step_by(500) {
            let b_owns = b.iterate(&mut server, &ranked, start, millis);
            let a_owns = a.iterate(&mut server, &ranked, start, millis);
            assert!(!(b.owns(millis) && a_owns), "two owners at {millis} ms");
            assert!(b_owns || a_owns, "no owner at {millis} ms");
            taken = taken.or(a_owns.then_some(millis));
        }
        assert_eq!(taken, Some(15_000));
    }

    #[test]
    fn a_restarted_gateway_waits_for_its_own_old_lease() {
        let (mut server, start) = (Server::default(), Instant::now());
        assert!(Gateway::new("a_1").iterate(&mut server, &["a"], start, 0));
        let mut again = Gateway::new("a_2");
        let acquire = (1..20).find(|second| again.iterate(&mut server, &["a"], start, second * 1000));
        assert_eq!(acquire, Some(9), "first seen after 1 s");
    }

    #[test]
    fn the_api_server_accepts_one_of_two_concurrent_writes() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        // Each of them sees only itself.
        let (now, boot) = times(start, 0);
        a.claim.observe(None, "a_1", now);
        assert!(b.iterate(&mut server, &["b"], start, 0));
        let ranked = [Ranked { name: "a".to_owned(), lacking: 0 }];
        let wall = "2026-01-01T00:00:00Z".parse().expect("a time");
        let context = Context {
            identity: "a_1",
            ranked: &ranked,
            duration: DURATION,
            hand_back_delay: DURATION,
            is_cut_off: false,
            services: 1,
            wall,
        };
        let next_write = a.claim.next_write(&context, now).expect("the Lease looks free");
        assert_eq!(server.take(&next_write), None);
        assert!(!a.owns(0) && b.owns(0) && boot == BootTime(0));
    }
}
