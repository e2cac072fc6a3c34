//! Whether the gateway has imported the flows of its peers.
//!
//! Routers send packets of open connections to a gateway as soon as it announces its addresses. If it hasn't imported
//! the flows in flux and the NAT flows of its peers by then, it breaks these connections. So it announces nothing until
//! it has, or until waiting takes too long: after its start, and after each time when it may have missed messages.
//! Nothing here reads a clock.
//!
//! Invariant: after an interruption, the gateway has caught up only if a later observation shows it.

use std::time::Duration;

use tidegate_sharing::{PeerState, PeerStatus, PeerWalk};

/// A peer with an earlier version of the protocol doesn't report when it has sent everything, so it can count as
/// complete only when its session is this old.
const SESSION: Duration = Duration::from_secs(2);
/// If more messages than this arrive between two observations, a peer with an earlier protocol version is still walking
/// through its tables.
const WALK_MIN: u64 = 500;
/// A peer without a session after this time counts as absent.
const ABSENT: Duration = Duration::from_secs(4);
/// The shorter limit after a restart that kept the flows: only what started during the restart can be missing.
const ABSENT_AFTER_RESTART: Duration = Duration::from_secs(1);
/// The longer limit for discovered peers, which must find this gateway first.
const FOUND_ABSENT: Duration = Duration::from_secs(8);
/// Within this time, a change of Services or EndpointSlices reaches every gateway, and the peers are ready to send it.
/// A gateway that starts may read a change that its peers apply only after they have sent everything, so it queries
/// them again after this time.
const RECHECK_AFTER: Duration = Duration::from_secs(2);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// How often, and after which pause, peers are queried for everything again because messages about unknown Services or
/// backends were refused.
const REQUERIES: (u32, Duration) = (2, Duration::from_secs(1));

/// The progress of importing the peers' flows.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// After this time, a peer without a session counts as absent.
    absent: Duration,
    /// When the gateway could first use the flows of peers.
    began: Option<Duration>,
    /// Since when it has been waiting; interruptions restart this only if the gateway didn't forward.
    since: Option<Duration>,
    /// Messages that had reached the workers at the last observation.
    passed_on: u64,
    /// Messages that had been refused when peers were last queried, when that was, and how often the query was
    /// repeated.
    refused: u64,
    queried_at: Duration,
    repeated: u32,
    /// Whether peers were queried for changes that they may have applied later than this gateway.
    has_rechecked: bool,
    is_done: bool,
    /// Whether the gateway has ever caught up.
    was_done: bool,
}

/// An observation of the peers and workers.
#[derive(Debug)]
pub(super) struct Observation<'a> {
    /// The peers that should answer; `None` if they are not known yet.
    pub(super) peers: Option<&'a [PeerStatus]>,
    /// Messages of peers that have reached the workers so far.
    pub(super) passed_on: u64,
    /// Messages that workers have refused so far because they know no such Service or backend.
    pub(super) refused: u64,
    /// Whether the workers have processed all messages.
    pub(super) has_applied_all: bool,
    /// Whether the gateway forwards, so that it can use the messages.
    pub(super) can_import: bool,
}

impl Observation<'_> {
    /// Whether there is a session with a peer.
    fn has_session(&self) -> bool {
        let is_up = |peer: &PeerStatus| matches!(peer.state, PeerState::Up | PeerState::Behind);
        self.peers.is_some_and(|peers| peers.iter().any(is_up))
    }
}

/// What to do after an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait.
    Wait,
    /// The gateway has started to forward: connect to the peers that have no session. After an interruption, also
    /// request from the others the changes of backends, and a report when they have sent everything.
    Connect,
    /// Request from the peers the changes of backends, and a report when they have sent everything.
    Recheck,
    /// Query the peers for everything again.
    Requery,
    /// The gateway has caught up.
    Done,
}

impl CatchUp {
    /// Creates the initial state. `finds_peers`: peers are discovered, so they must find each other first.
    /// `keeps_flows`: there are flows of an earlier process, which had peers.
    pub(super) fn new(finds_peers: bool, keeps_flows: bool) -> Self {
        let absent = match (keeps_flows, finds_peers) {
            (true, _) => ABSENT_AFTER_RESTART,
            (false, true) => FOUND_ABSENT,
            (false, false) => ABSENT,
        };
        Self {
            absent,
            began: None,
            since: None,
            passed_on: 0,
            refused: 0,
            queried_at: Duration::ZERO,
            repeated: 0,
            has_rechecked: false,
            is_done: false,
            was_done: false,
        }
    }

    /// Whether the gateway has ever caught up.
    pub(super) fn was_done(&self) -> bool {
        self.was_done
    }

    /// Records that the gateway may have missed messages.
    pub(super) fn interrupt(&mut self) {
        (self.is_done, self.began) = (false, None);
    }

    /// Evaluates an observation.
    pub(super) fn step(&mut self, seen: &Observation<'_>, now: Duration) -> Step {
        let arrived = seen.passed_on - std::mem::replace(&mut self.passed_on, seen.passed_on);
        if !seen.can_import {
            self.interrupt();
            self.since = None;
            return Step::Wait;
        }
        if self.is_done {
            return Step::Done;
        }
        let since = *self.since.get_or_insert(now);
        let Some(began) = self.began else {
            (self.began, self.queried_at, self.repeated) = (Some(now), now, 0);
            self.refused = if self.was_done { seen.refused } else { 0 };
            // After an interruption, the gateway has seen the changes itself.
            self.has_rechecked = self.was_done;
            return Step::Connect;
        };
        let (waited, is_late) = (now.saturating_sub(began), now.saturating_sub(since) >= WAIT_MAX);
        if !is_late && !self.has_all(seen, arrived, waited) {
            return Step::Wait;
        }
        if !self.has_rechecked && !is_late && seen.has_session() {
            if waited < RECHECK_AFTER {
                return Step::Wait;
            }
            self.has_rechecked = true;
            return Step::Recheck;
        }
        // Messages that were refused because this gateway was behind may be accepted by now.
        let (most, pause) = REQUERIES;
        if seen.refused != self.refused && self.repeated < most && !is_late {
            if now.saturating_sub(self.queried_at) < pause {
                return Step::Wait;
            }
            (self.refused, self.queried_at, self.repeated) = (seen.refused, now, self.repeated + 1);
            return Step::Requery;
        }
        tracing::info!(?waited, messages = seen.passed_on, "imported the flows of every peer that answers");
        (self.is_done, self.was_done, self.absent, self.since) = (true, true, ABSENT, None);
        Step::Done
    }

    /// Whether every peer that answers has sent everything, and the workers have processed it.
    fn has_all(&self, seen: &Observation<'_>, arrived: u64, waited: Duration) -> bool {
        let has_all_of = |peer: &PeerStatus| match (peer.state, peer.walk) {
            (PeerState::Itself, _) => true,
            (PeerState::Up | PeerState::Behind, PeerWalk::Complete) => true,
            (PeerState::Up | PeerState::Behind, PeerWalk::Unknown(age)) => {
                age >= SESSION && arrived < WALK_MIN
            }
            (PeerState::Up | PeerState::Behind, PeerWalk::InProgress) => false,
            (PeerState::Connecting | PeerState::OtherVersion(..), _) => waited >= self.absent,
        };
        seen.has_applied_all && seen.peers.is_some_and(|peers| peers.iter().all(has_all_of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: (PeerState, PeerWalk) = (PeerState::Up, PeerWalk::Complete);
    const DOWN: (PeerState, PeerWalk) = (PeerState::Connecting, PeerWalk::InProgress);
    const WALKS: (PeerState, PeerWalk) = (PeerState::Up, PeerWalk::InProgress);

    fn peers(all: &[(PeerState, PeerWalk)]) -> Vec<PeerStatus> {
        let peer = |(n, &(state, walk)): (u16, &(PeerState, PeerWalk))| PeerStatus {
            address: ([192, 0, 2, 1], n).into(),
            name: None,
            state,
            silent_for: None,
            waiting: 0,
            in_flight: 0,
            last_rejection: None,
            key: None,
            snat: tidegate_sharing::Snat::default(),
            walk,
        };
        (1..).zip(all).map(peer).collect()
    }

    /// An observation without refused messages.
    fn observe(catch_up: &mut CatchUp, all: &[(PeerState, PeerWalk)], can_import: bool, ms: u64) -> Step {
        refused(catch_up, all, can_import, ms, 0)
    }

    fn refused(
        catch_up: &mut CatchUp,
        all: &[(PeerState, PeerWalk)],
        can_import: bool,
        ms: u64,
        refused: u64,
    ) -> Step {
        let peers = peers(all);
        let seen =
            Observation { peers: Some(&peers), passed_on: 0, refused, has_applied_all: true, can_import };
        catch_up.step(&seen, Duration::from_millis(ms))
    }

    /// A gateway that has caught up before.
    fn caught_up(all: &[(PeerState, PeerWalk)]) -> CatchUp {
        let mut catch_up = CatchUp::new(false, false);
        let steps = [0, 3_000, 6_000].map(|ms| observe(&mut catch_up, all, true, ms));
        assert_eq!(steps, [Step::Connect, Step::Recheck, Step::Done]);
        catch_up
    }

    #[test]
    fn a_gateway_waits_until_its_peers_have_sent_everything() {
        let mut catch_up = CatchUp::new(false, false);
        let itself = (PeerState::Itself, PeerWalk::InProgress);
        assert_eq!(observe(&mut catch_up, &[itself, UP], false, 0), Step::Wait, "it does not forward");
        assert_eq!(observe(&mut catch_up, &[itself, UP], false, 60_000), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[itself, WALKS], true, 61_000), Step::Connect);
        assert_eq!(observe(&mut catch_up, &[itself, UP, WALKS], true, 64_000), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[itself, UP, UP], true, 64_200), Step::Recheck);
        assert_eq!(observe(&mut catch_up, &[itself, UP, WALKS], true, 64_400), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[itself, UP, UP], true, 64_600), Step::Done);
        assert_eq!(observe(&mut catch_up, &[itself, UP, DOWN], true, 65_000), Step::Done);
    }

    #[test]
    fn a_gateway_catches_up_again_after_each_interruption() {
        let mut catch_up = CatchUp::new(false, true);
        assert_eq!(observe(&mut catch_up, &[UP], true, 0), Step::Connect);
        assert_eq!(observe(&mut catch_up, &[UP], true, 1_800), Step::Wait, "peers may apply a change later");
        assert_eq!(observe(&mut catch_up, &[UP], true, 2_000), Step::Recheck);
        assert_eq!(observe(&mut catch_up, &[UP], true, 2_200), Step::Done);
        // Its link is down.
        assert_eq!(observe(&mut catch_up, &[UP], false, 10_000), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[DOWN], true, 20_000), Step::Connect);
        assert_eq!(observe(&mut catch_up, &[DOWN], true, 23_900), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[WALKS], true, 24_100), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[UP], true, 24_300), Step::Done);
        // Its process was paused, or it has lost all sessions.
        catch_up.interrupt();
        assert_eq!(observe(&mut catch_up, &[UP], true, 60_000), Step::Connect);
        assert_eq!(observe(&mut catch_up, &[WALKS], true, 60_200), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[UP], true, 60_400), Step::Done);
    }

    #[test]
    fn refused_messages_are_sent_again_before_the_gateway_has_caught_up() {
        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(refused(&mut catch_up, &[UP], true, 0, 7), Step::Connect);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_000, 7), Step::Recheck);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_200, 7), Step::Requery);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_400, 7), Step::Done);

        // Some are never accepted, because the configurations differ.
        let mut catch_up = caught_up(&[UP]);
        catch_up.interrupt();
        let steps = (10..).map(|n| refused(&mut catch_up, &[UP], true, n * 1_000, n + 1));
        let steps: Vec<Step> = steps.take(5).collect();
        assert_eq!(steps, [Step::Connect, Step::Requery, Step::Requery, Step::Done, Step::Done]);
        // The Services may arrive soon.
        catch_up.interrupt();
        assert_eq!(refused(&mut catch_up, &[UP], true, 20_000, 7), Step::Connect);
        assert_eq!(refused(&mut catch_up, &[UP], true, 20_200, 8), Step::Wait);
        assert_eq!(refused(&mut catch_up, &[UP], true, 21_000, 8), Step::Requery);
    }

    #[test]
    fn absent_peers_and_endless_walks_do_not_delay_it_forever() {
        let other = (PeerState::OtherVersion(7, 9), PeerWalk::InProgress);
        for (finds_peers, keeps_flows, absent) in
            [(false, false, 4_000), (true, false, 8_000), (false, true, 1_000), (true, true, 1_000)]
        {
            let mut catch_up = CatchUp::new(finds_peers, keeps_flows);
            assert_eq!(observe(&mut catch_up, &[DOWN, other], true, 0), Step::Connect);
            assert_eq!(observe(&mut catch_up, &[DOWN, other], true, absent - 100), Step::Wait);
            assert_eq!(observe(&mut catch_up, &[DOWN, other], true, absent), Step::Done);
        }
        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(observe(&mut catch_up, &[WALKS], true, 0), Step::Connect);
        assert_eq!(observe(&mut catch_up, &[WALKS], true, 14_900), Step::Wait);
        assert_eq!(observe(&mut catch_up, &[WALKS], true, 15_000), Step::Done);
    }

    #[test]
    fn repeated_pauses_do_not_delay_it_forever() {
        let mut catch_up = CatchUp::new(false, false);
        for n in 0..14 {
            catch_up.interrupt();
            assert_eq!(observe(&mut catch_up, &[DOWN], true, n * 1_000), Step::Connect);
            assert_eq!(observe(&mut catch_up, &[DOWN], true, n * 1_000 + 900), Step::Wait);
        }
        assert_eq!(observe(&mut catch_up, &[DOWN], true, 15_000), Step::Done);
    }

    #[test]
    fn a_peer_of_an_earlier_version_has_sent_everything_when_little_arrives() {
        let mut catch_up = CatchUp::new(false, false);
        let mut observe = |ms, passed_on| {
            let peers = peers(&[(PeerState::Up, PeerWalk::Unknown(Duration::from_millis(ms)))]);
            let seen = Observation {
                peers: Some(&peers),
                passed_on,
                refused: 0,
                has_applied_all: true,
                can_import: true,
            };
            catch_up.step(&seen, Duration::from_millis(ms))
        };
        assert_eq!(observe(0, 0), Step::Connect);
        assert_eq!(observe(1_900, 10_000), Step::Wait);
        assert_eq!(observe(2_100, 20_000), Step::Wait, "the walk continues");
        assert_eq!(observe(2_300, 20_100), Step::Recheck);
        assert_eq!(observe(2_500, 20_100), Step::Done);
    }

    #[test]
    fn a_gateway_waits_until_peers_are_known_and_workers_are_done() {
        let mut catch_up = CatchUp::new(true, false);
        let up = peers(&[UP]);
        let mut observe = |peers, has_applied_all, ms| {
            let seen = Observation { peers, passed_on: 0, refused: 0, has_applied_all, can_import: true };
            catch_up.step(&seen, Duration::from_millis(ms))
        };
        assert_eq!(observe(None, true, 0), Step::Connect);
        assert_eq!(observe(None, true, 9_000), Step::Wait);
        assert_eq!(observe(Some(&up), false, 10_000), Step::Wait);
        assert_eq!(observe(Some(&up), true, 10_200), Step::Recheck);
        assert_eq!(observe(Some(&up), true, 10_400), Step::Done);

        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(self::observe(&mut catch_up, &[], true, 0), Step::Connect);
        assert_eq!(self::observe(&mut catch_up, &[], true, 0), Step::Done, "it has no peers");
    }
}
