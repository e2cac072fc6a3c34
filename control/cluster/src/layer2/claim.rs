//! One Lease for a group of VIPs, as one gateway sees it: when it takes, renews and gives back the Lease, and until when
//! it owns the VIPs.
//!
//! Pure: the Lease of the API server and times go in, the next write comes out. `keeper` sends it.
//!
//! The bound on two owners. A Lease states a duration D. Its holder owns the VIPs from the start of its last successful
//! write until D less [`MARGIN`] later, by a clock that also counts while the process or the machine is stopped; the
//! answering path compares that time for each answer. Another gateway takes the Lease only after it has seen it unchanged
//! for D by its own clock, and by a write that the API server refuses if the Lease was changed meanwhile
//! (`resourceVersion`). A write that succeeds was sent before others could see it, so the last owner is silent for at
//! least [`MARGIN`] before the next one begins, whatever the API server, the network or either process does. The clocks
//! must only run at about the same rate: two of them may differ by less than [`MARGIN`] over D. The holder of a Lease that
//! is given back has stopped answering before.
//!
//! Invariant: nothing here compares the clock of one machine with that of another.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tidegate_spec::ownership::BootTime;
use tokio::time::Instant;

use super::rank::Ranked;

/// How long before the end of the Lease its holder is silent.
pub(super) const MARGIN: Duration = Duration::from_secs(1);
/// The time between a Lease that is free and its taking by gateways that are not the preferred one, for each rank.
pub(super) const RANK_STEP: Duration = Duration::from_secs(2);
/// A gateway that let the Lease end, or did not take it in its turn, is the preferred one again only after this time: one
/// that has died counts as live for up to 50 s.
pub(super) const PASSED_OVER: Duration = Duration::from_secs(60);
/// A gateway that serves more of a group's Services than its owner gets the Lease after this time at most: until then, what
/// it reports may be older than a change that concerns both.
pub(super) const SERVES_MORE_DELAY: Duration = Duration::from_secs(15);
/// The label of our Leases.
pub(super) const LABEL: (&str, &str) = ("tidegate.dev/layer2", "group");

/// A write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// Create the Lease with this gateway as its holder.
    Create(Box<Lease>),
    /// Take or renew the Lease, if it was not modified meanwhile.
    Hold(Box<Lease>),
    /// Give it back, if it was not modified meanwhile.
    GiveBack(Box<Lease>),
}

/// The circumstances of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside<'a> {
    /// This gateway and this run of it.
    pub(super) identity: &'a str,
    /// The gateways that may own the group, the preferred one first; this gateway is one of them only if it may too.
    pub(super) ranked: &'a [Ranked],
    /// The duration of Leases.
    pub(super) lasts: Duration,
    /// How long another gateway must be the preferred one before it gets the Lease.
    pub(super) hand_back_delay: Duration,
    /// This gateway was cut off and does not have the flows of other gateways yet: it takes no Lease that another one may
    /// take, and keeps those that it has.
    pub(super) is_cut_off: bool,
    /// The number of Services of the group.
    pub(super) services: usize,
    /// The wall clock, for people who read the Lease.
    pub(super) wall: Timestamp,
}

/// The state of one Lease.
#[derive(Debug, Clone, Default)]
pub(super) struct Claim {
    /// The Lease as last seen, and the time of its last known change; `None` inside if there is none.
    seen: Option<(Option<Lease>, Instant)>,
    /// When the last successful write of this gateway began.
    renewed: Option<Instant>,
    /// The time until which this gateway owns the VIPs.
    pub(super) until: BootTime,
    /// Another gateway that is preferred, and since when; later than now, if it was passed over.
    preferred: Option<(String, Instant)>,
    /// Until when this gateway doesn't want the Lease, because it had no room for its VIPs.
    refused_until: Option<Instant>,
}

impl Claim {
    /// The name of the gateway that holds the Lease as last seen.
    pub(super) fn holder(&self) -> Option<&str> {
        let (lease, _) = self.seen.as_ref()?;
        gateway_of(holder(lease.as_ref()?)?)
    }

    /// Records the Lease of the API server, or that there is none.
    pub(super) fn look(&mut self, lease: Option<Lease>, identity: &str, now: Instant) {
        let is_held = lease.as_ref().is_some_and(|lease| holder(lease) == Some(identity));
        if !is_held {
            self.until = BootTime(0);
        }
        let is_unchanged = self.seen.as_ref().is_some_and(|(seen, _)| version(seen) == version(&lease));
        match &mut self.seen {
            Some((seen, _)) if is_unchanged => *seen = lease,
            _ => self.seen = Some((lease, now)),
        }
    }

    /// The next write, if one is due now.
    pub(super) fn ask(&mut self, beside: &Beside<'_>, now: Instant) -> Option<Ask> {
        let (lease, since) = self.seen.clone()?;
        let own = gateway_of(beside.identity)?;
        let is_refused = self.refused_until.is_some_and(|until| now < until);
        let is_eligible = !is_refused && beside.ranked.iter().any(|one| one.name == own);
        let Some(lease) = lease else {
            if !is_eligible || !self.is_our_turn(beside, own, None, since, now) {
                return None;
            }
            self.pass_over(beside, own, now);
            return Some(Ask::Create(Box::new(fresh(beside))));
        };
        match holder(&lease) {
            Some(by) if by == beside.identity => {
                if !is_eligible || self.is_handed_back(beside, own, now) {
                    self.until = BootTime(0);
                    return Some(Ask::GiveBack(Box::new(given_back(&lease, beside.wall))));
                }
                let is_due =
                    self.renewed.is_none_or(|at| now.duration_since(at) >= renew_every(beside.lasts));
                is_due.then(|| Ask::Hold(Box::new(held(&lease, beside, false))))
            }
            Some(by) => {
                let by = gateway_of(by);
                let end = since + duration_of(&lease, beside.lasts);
                let is_over = now >= end && is_eligible;
                let is_taken = is_over && self.is_our_turn(beside, own, by, end, now);
                self.takes(is_taken, &lease, beside, own, now)
            }
            None => {
                let is_taken = is_eligible && self.is_our_turn(beside, own, None, since, now);
                self.takes(is_taken, &lease, beside, own, now)
            }
        }
    }

    /// The write that takes the Lease, if so.
    fn takes(
        &mut self,
        is_taken: bool,
        lease: &Lease,
        beside: &Beside<'_>,
        own: &str,
        now: Instant,
    ) -> Option<Ask> {
        if !is_taken {
            return None;
        }
        self.pass_over(beside, own, now);
        Some(Ask::Hold(Box::new(held(lease, beside, true))))
    }

    /// Takes note that this gateway takes the Lease although another one may be preferred.
    fn pass_over(&mut self, beside: &Beside<'_>, own: &str, now: Instant) {
        let first = beside.ranked.first().filter(|first| first.name != own);
        self.preferred = first.map(|first| (first.name.clone(), now + PASSED_OVER));
    }

    /// When a write may be due without a change of the Lease.
    pub(super) fn due(&self, identity: &str, lasts: Duration) -> Option<Instant> {
        let (lease, since) = self.seen.as_ref()?;
        let lease = lease.as_ref()?;
        match holder(lease) {
            Some(by) if by == identity => self.renewed.map(|at| at + renew_every(lasts)),
            Some(_) => Some(*since + duration_of(lease, lasts)),
            None => None,
        }
    }

    /// Records that the API server accepted a write that began at these times. Returns whether this gateway owns the VIPs
    /// now and did not before.
    pub(super) fn written(
        &mut self,
        lease: Lease,
        identity: &str,
        (began, boot): (Instant, BootTime),
        lasts: Duration,
    ) -> bool {
        let had = self.until;
        if holder(&lease) == Some(identity) {
            self.until = boot.plus(lasts.saturating_sub(MARGIN));
            self.renewed = Some(began);
        } else {
            (self.until, self.renewed) = (BootTime(0), None);
        }
        self.seen = Some((Some(lease), began));
        had <= boot && self.until > boot
    }

    /// Gives the Lease back, and leaves it to others for a while: the workers have no room for its VIPs.
    pub(super) fn refuse(&mut self, now: Instant) {
        self.until = BootTime(0);
        self.refused_until = Some(now + PASSED_OVER);
    }

    /// Whether this gateway may take a Lease that is free since `since`. The preferred gateway takes it at once, others
    /// later. `except` is a gateway that did not renew it.
    fn is_our_turn(
        &self,
        beside: &Beside<'_>,
        own: &str,
        except: Option<&str>,
        since: Instant,
        now: Instant,
    ) -> bool {
        let others = beside.ranked.iter().filter(|one| Some(one.name.as_str()) != except || one.name == own);
        // A gateway that lacks all Services may not take the Lease at all.
        let may_take = |one: &Ranked| one.name != own && one.lacking < beside.services;
        if beside.is_cut_off && others.clone().any(may_take) {
            return false;
        }
        let rank = others.enumerate().find(|(_, one)| one.name == own).map(|(rank, _)| rank);
        let step = |rank: usize| RANK_STEP.saturating_mul(u32::try_from(rank).unwrap_or(u32::MAX));
        rank.is_some_and(|rank| now.duration_since(since) >= step(rank))
    }

    /// Whether another gateway has been the preferred one for long enough to get the Lease.
    fn is_handed_back(&mut self, beside: &Beside<'_>, own: &str, now: Instant) -> bool {
        let Some(first) = beside.ranked.first().filter(|first| first.name != own) else {
            self.preferred = None;
            return false;
        };
        let serves_more = beside.ranked.iter().any(|one| one.name == own && first.lacking < one.lacking);
        let delay = match serves_more {
            true => beside.hand_back_delay.min(SERVES_MORE_DELAY),
            false => beside.hand_back_delay,
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

/// The pause between two renewals.
pub(super) fn renew_every(lasts: Duration) -> Duration {
    lasts / 4
}

/// The gateway in an identity: `edge-1` of `edge-1_5f3a`.
fn gateway_of(identity: &str) -> Option<&str> {
    Some(identity.rsplit_once('_').map_or(identity, |(name, _)| name))
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn version(lease: &Option<Lease>) -> Option<&str> {
    lease.as_ref()?.metadata.resource_version.as_deref()
}

/// The duration that the holder states; an invalid one is replaced by ours.
fn duration_of(lease: &Lease, ours: Duration) -> Duration {
    let stated = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let stated = stated.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    stated.map_or(ours, Duration::from_secs)
}

fn spec_of(beside: &Beside<'_>) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(beside.identity.to_owned()),
        lease_duration_seconds: i32::try_from(beside.lasts.as_secs()).ok(),
        acquire_time: Some(MicroTime(beside.wall)),
        renew_time: Some(MicroTime(beside.wall)),
        lease_transitions: Some(0),
        ..LeaseSpec::default()
    }
}

fn fresh(beside: &Beside<'_>) -> Lease {
    let labels = [(LABEL.0.to_owned(), LABEL.1.to_owned())].into();
    let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
    Lease { metadata, spec: Some(spec_of(beside)) }
}

/// The Lease with this gateway as its holder, taken from another one or renewed.
fn held(lease: &Lease, beside: &Beside<'_>, is_taken: bool) -> Lease {
    let mut lease = lease.clone();
    let before = lease.spec.take().unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_taken));
    let acquire_time = if is_taken { Some(MicroTime(beside.wall)) } else { before.acquire_time };
    let spec = LeaseSpec { acquire_time, lease_transitions: Some(transitions), ..spec_of(beside) };
    lease.spec = Some(spec);
    lease
}

fn given_back(lease: &Lease, wall: Timestamp) -> Lease {
    let mut lease = lease.clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.renew_time = Some(MicroTime(wall));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(8);

    /// An API server with one Lease.
    #[derive(Default)]
    struct Server {
        lease: Option<Lease>,
        writes: u64,
    }

    impl Server {
        fn take(&mut self, ask: &Ask) -> Option<Lease> {
            let now = self.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
            let lease = match ask {
                Ask::Create(_) if self.lease.is_some() => return None,
                Ask::Create(lease) => lease,
                Ask::Hold(lease) | Ask::GiveBack(lease) if lease.metadata.resource_version == now => lease,
                Ask::Hold(_) | Ask::GiveBack(_) => return None,
            };
            self.writes += 1;
            let mut lease = Lease::clone(lease);
            lease.metadata.resource_version = Some(self.writes.to_string());
            self.lease = Some(lease.clone());
            Some(lease)
        }
    }

    /// A gateway with its clock: seconds since its start.
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

        /// One look and the resulting write. Returns whether the gateway owns the VIPs then.
        fn turn(&mut self, server: &mut Server, ranked: &[&str], start: Instant, millis: u64) -> bool {
            let (now, boot) = times(start, millis);
            self.claim.look(server.lease.clone(), &self.identity, now);
            // `edge*2` doesn't serve two of the Services.
            let ranked = ranked.iter().map(|one| {
                let (name, lacking) = one.split_once('*').unwrap_or((one, "0"));
                Ranked { name: name.to_owned(), lacking: lacking.parse().expect("a number") }
            });
            let ranked: Vec<Ranked> = ranked.collect();
            let beside = Beside {
                identity: &self.identity,
                ranked: &ranked,
                lasts: LASTS,
                hand_back_delay: self.delay,
                is_cut_off: self.is_cut_off,
                services: 1,
                wall: "2026-01-01T00:00:00Z".parse().expect("a time"),
            };
            if let Some(ask) = self.claim.ask(&beside, now)
                && let Some(lease) = server.take(&ask)
            {
                self.claim.written(lease, &self.identity, (now, boot), LASTS);
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
    fn the_owner_is_silent_a_margin_before_the_next_one_begins() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        let ranked = ["a", "b"];
        assert!(a.turn(&mut server, &ranked, start, 0) && !b.turn(&mut server, &ranked, start, 10));
        // a can no longer reach the API server.
        let (mut silent_at, mut taken_at) = (None, None);
        for millis in (10..20_000).step_by(10) {
            if !a.owns(millis) {
                silent_at.get_or_insert(millis);
            }
            if b.turn(&mut server, &ranked, start, millis) {
                taken_at.get_or_insert(millis);
            }
            assert!(!(a.owns(millis) && b.owns(millis)), "two owners at {millis} ms");
        }
        // b had seen the Lease 10 ms after it was written.
        assert_eq!((silent_at, taken_at), (Some(7_000), Some(8_010)));
        // When a is back it finds another holder, and owns nothing until it has the Lease again.
        assert!(!a.turn(&mut server, &ranked, start, 20_000));
    }

    #[test]
    fn a_holder_that_renews_keeps_the_lease_and_one_that_was_stopped_owns_nothing_when_it_wakes_up() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        for second in 0..60 {
            assert!(a.turn(&mut server, &["a", "b"], start, second * 1000));
            assert!(!b.turn(&mut server, &["a", "b"], start, second * 1000 + 500));
        }
        assert!(server.writes < 40, "it is not renewed at each look: {}", server.writes);
        // Stopped for longer than the Lease lasts.
        assert!(!a.owns(80_000), "before any of its tasks has run");
        assert!(a.turn(&mut server, &["a", "b"], start, 80_000), "nobody has taken it: it is renewed first");
    }

    #[test]
    fn the_preferred_gateway_takes_a_free_lease_at_once_and_others_in_order() {
        let start = Instant::now();
        let mut server = Server::default();
        let mut c = Gateway::new("c_1");
        let ranked = ["a", "b", "c"];
        let takes = (0..60).find(|n| c.turn(&mut server, &ranked, start, n * 100));
        assert_eq!(takes, Some(40), "2 s for each gateway before it");
        // The holder died: it does not count as a gateway that goes first.
        let mut b = Gateway::new("b_1");
        let takes = (0..200).find(|n| b.turn(&mut server, &["c", "b"], start, n * 100));
        assert_eq!(takes, Some(80), "after the duration");
    }

    #[test]
    fn a_lease_goes_back_to_the_preferred_gateway_after_a_delay_and_is_silent_in_between() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.turn(&mut server, &["b"], start, 0), "it is alone");
        let mut back = None;
        for millis in (0..60_000).step_by(500) {
            let b_owns = b.turn(&mut server, &["a", "b"], start, millis);
            let a_owns = a.turn(&mut server, &["a", "b"], start, millis);
            assert!(!(b.owns(millis) && a_owns), "two owners at {millis} ms");
            if a_owns {
                back.get_or_insert(millis);
            }
            assert!(back.is_none() || !b_owns);
        }
        assert_eq!(back, Some(30_000));
    }

    #[test]
    fn a_lease_is_not_handed_back_to_a_gateway_that_has_just_let_it_end() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.turn(&mut server, &["b"], start, 0));
        for millis in (0..40_000).step_by(500) {
            b.turn(&mut server, &["a", "b"], start, millis);
            a.turn(&mut server, &["a", "b"], start, millis);
        }
        assert!(a.owns(39_500) && !b.owns(39_500), "it was handed back");
        let mut taken = None;
        // a is dead, and still counts as live.
        for millis in (40_000..90_000).step_by(500) {
            let owns = b.turn(&mut server, &["a", "b"], start, millis);
            if owns {
                taken.get_or_insert(millis);
            }
            assert!(taken.is_none() || owns, "given back at {millis} ms");
        }
        assert!(taken.is_some_and(|at| at <= 49_000), "{taken:?}");
    }

    #[test]
    fn a_gateway_that_may_no_longer_own_gives_the_lease_back_and_another_takes_it() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(a.turn(&mut server, &["a", "b"], start, 0));
        assert!(!a.turn(&mut server, &["b"], start, 1000), "it drains");
        assert!(b.turn(&mut server, &["b"], start, 1100), "without a wait");
        assert!(!a.turn(&mut server, &["b"], start, 30_000));
    }

    #[test]
    fn a_gateway_without_room_for_the_vips_gives_the_lease_back_and_another_takes_it() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(a.turn(&mut server, &["a", "b"], start, 0));
        a.claim.refuse(start);
        assert!(!a.owns(10) && !a.turn(&mut server, &["a", "b"], start, 1000), "it gives it back");
        assert!(!b.turn(&mut server, &["a", "b"], start, 1050));
        assert!(!a.turn(&mut server, &["a"], start, 2000), "nor does it take it, being alone");
        assert!(b.turn(&mut server, &["a", "b"], start, 3100));
        assert!(a.turn(&mut Server::default(), &["a"], start, 60_000), "there may be room by then");
    }

    #[test]
    fn a_gateway_that_was_cut_off_takes_no_lease_of_others_before_it_has_the_flows() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        a.is_cut_off = true;
        assert!(
            !a.turn(&mut server, &["a", "b"], start, 0) && !a.turn(&mut server, &["a", "b"], start, 30_000)
        );
        assert!(!b.turn(&mut server, &["a", "b"], start, 29_000), "it isn't the preferred one");
        assert!(b.turn(&mut server, &["a", "b"], start, 31_000));
        // It keeps what it has, and what nobody else can serve it takes.
        b.is_cut_off = true;
        assert!(b.turn(&mut server, &["a", "b"], start, 34_000));
        assert!(b.turn(&mut server, &["a", "b"], start, 41_000), "it was renewed");
        assert!(a.turn(&mut Server::default(), &["a"], start, 50_000));
        assert!(a.turn(&mut Server::default(), &["a", "b*1"], start, 50_000), "the other one serves nothing");
        // The holder is gone, and nobody else is there.
        assert!(!a.turn(&mut server, &["a", "b"], start, 60_000));
        assert!(a.turn(&mut server, &["a", "b"], start, 69_000));
    }

    #[test]
    fn a_gateway_that_serves_more_gets_the_lease_soon_and_one_that_serves_as_much_after_the_delay() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        assert!(b.turn(&mut server, &["b"], start, 0));
        let ranked = ["a", "b*1"];
        let mut taken = None;
        for millis in (0..60_000).step_by(500) {
            let b_owns = b.turn(&mut server, &ranked, start, millis);
            let a_owns = a.turn(&mut server, &ranked, start, millis);
            assert!(!(b.owns(millis) && a_owns), "two owners at {millis} ms");
            assert!(b_owns || a_owns, "nobody owns it at {millis} ms");
            taken = taken.or(a_owns.then_some(millis));
        }
        assert_eq!(taken, Some(15_000));
    }

    #[test]
    fn a_restarted_gateway_waits_for_its_own_old_lease() {
        let (mut server, start) = (Server::default(), Instant::now());
        assert!(Gateway::new("a_1").turn(&mut server, &["a"], start, 0));
        let mut again = Gateway::new("a_2");
        let takes = (1..20).find(|second| again.turn(&mut server, &["a"], start, second * 1000));
        assert_eq!(takes, Some(9), "it saw it first after 1 s");
    }

    #[test]
    fn of_two_writes_at_once_the_api_server_accepts_one() {
        let (mut server, start) = (Server::default(), Instant::now());
        let (mut a, mut b) = (Gateway::new("a_1"), Gateway::new("b_1"));
        // Both think that they are alone.
        let (now, boot) = times(start, 0);
        a.claim.look(None, "a_1", now);
        assert!(b.turn(&mut server, &["b"], start, 0));
        let ranked = [Ranked { name: "a".to_owned(), lacking: 0 }];
        let wall = "2026-01-01T00:00:00Z".parse().expect("a time");
        let beside = Beside {
            identity: "a_1",
            ranked: &ranked,
            lasts: LASTS,
            hand_back_delay: LASTS,
            is_cut_off: false,
            services: 1,
            wall,
        };
        let ask = a.claim.ask(&beside, now).expect("it is free as far as it knows");
        assert_eq!(server.take(&ask), None);
        assert!(!a.owns(0) && b.owns(0) && boot == BootTime(0));
    }
}
