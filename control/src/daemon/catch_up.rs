//! Whether the gateway has the flows of its peers.
//!
//! Routers send packets of open connections to a gateway as soon as it announces its addresses. If it hasn't got the flows
//! in flux and the NAT flows of its peers by then, it breaks these connections. So it announces nothing until then, or
//! until waiting would take too long: after its start, and after each time in which it may have missed something. Nothing
//! here reads a clock.
//!
//! Invariant: after an interruption the gateway has caught up only if a look after it says so.

use std::time::Duration;

use tidegate_sharing::{PeerState, PeerStatus, PeerWalk};

/// A peer of an earlier version of the protocol doesn't say when it has sent everything: its session is at least this old.
const SESSION: Duration = Duration::from_secs(2);
/// If more messages than this arrive between two looks, such a peer still walks through its tables.
const OF_A_WALK: u64 = 500;
/// A peer without a session after this time is taken for absent.
const ABSENT: Duration = Duration::from_secs(4);
/// The same after a restart that has kept the flows: only what began during the restart can be missing.
const ABSENT_AFTER_RESTART: Duration = Duration::from_secs(1);
/// The same for peers that were found: they must find this gateway first.
const FOUND_ABSENT: Duration = Duration::from_secs(8);
/// A change of the Services or EndpointSlices reaches every gateway, and the peers are ready to send it, in this time. A
/// gateway that starts may have read one that its peers apply after they have sent everything, so it asks again then.
const SETTLED: Duration = Duration::from_secs(2);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// How often peers are asked for everything again because messages about unknown Services or backends were refused, and
/// the time before each.
const ASKED_AGAIN: (u32, Duration) = (2, Duration::from_secs(1));

/// The progress.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// When a peer without a session is taken for absent.
    absent: Duration,
    /// When the gateway could first use the flows of peers.
    began: Option<Duration>,
    /// Since when it waits, over all interruptions in which it forwarded.
    since: Option<Duration>,
    /// Messages that had reached the workers at the last look.
    passed_on: u64,
    /// Messages that had been refused when peers were last asked, when that was, and how often it was repeated.
    refused: u64,
    asked: Duration,
    repeated: u32,
    /// Whether peers have been asked for the changes that they may have applied later than this gateway.
    has_settled: bool,
    is_over: bool,
    /// Whether it was over once.
    was_over: bool,
}

/// What a look finds.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    /// The peers that should answer; `None` if they are not known yet.
    pub(super) peers: Option<&'a [PeerStatus]>,
    /// Messages of peers that have reached the workers so far.
    pub(super) passed_on: u64,
    /// Messages that workers have refused so far because they know no such Service or backend.
    pub(super) refused: u64,
    /// Whether the workers have taken all messages.
    pub(super) has_taken_all: bool,
    /// Whether the gateway forwards, so that it can use the messages.
    pub(super) is_able: bool,
}

impl Seen<'_> {
    /// Whether there is a session with a peer.
    fn has_session(&self) -> bool {
        let is_up = |peer: &PeerStatus| matches!(peer.state, PeerState::Up | PeerState::Behind);
        self.peers.is_some_and(|peers| peers.iter().any(is_up))
    }
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The gateway waits.
    Waits,
    /// The gateway begins to forward: peers without a session are to be sought. After an interruption, the others are also to
    /// send the changes of backends again and to say when everything has arrived.
    Seeks,
    /// Peers are to send the changes of backends again, and to say when everything has arrived.
    Checks,
    /// Peers are to send everything again.
    AsksAgain,
    /// The gateway has caught up.
    IsOver,
}

impl CatchUp {
    /// Before anything is known. `finds_peers`: peers are not configured, but must find each other. `keeps_flows`: there are
    /// flows of an earlier process, which had peers.
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
            asked: Duration::ZERO,
            repeated: 0,
            has_settled: false,
            is_over: false,
            was_over: false,
        }
    }

    /// Whether the gateway has caught up, now or before.
    pub(super) fn was_over(&self) -> bool {
        self.was_over
    }

    /// The gateway may have missed messages.
    pub(super) fn interrupt(&mut self) {
        (self.is_over, self.began) = (false, None);
    }

    /// Looks again.
    pub(super) fn step(&mut self, seen: &Seen<'_>, now: Duration) -> Step {
        let arrived = seen.passed_on - std::mem::replace(&mut self.passed_on, seen.passed_on);
        if !seen.is_able {
            self.interrupt();
            self.since = None;
            return Step::Waits;
        }
        if self.is_over {
            return Step::IsOver;
        }
        let since = *self.since.get_or_insert(now);
        let Some(began) = self.began else {
            (self.began, self.asked, self.repeated) = (Some(now), now, 0);
            self.refused = if self.was_over { seen.refused } else { 0 };
            // After an interruption, the gateway sees the changes itself.
            self.has_settled = self.was_over;
            return Step::Seeks;
        };
        let (waited, is_late) = (now.saturating_sub(began), now.saturating_sub(since) >= WAIT_MAX);
        if !is_late && !self.has_all(seen, arrived, waited) {
            return Step::Waits;
        }
        if !self.has_settled && !is_late && seen.has_session() {
            if waited < SETTLED {
                return Step::Waits;
            }
            self.has_settled = true;
            return Step::Checks;
        }
        // What was refused because this gateway was behind may be known by now.
        let (most, pause) = ASKED_AGAIN;
        if seen.refused != self.refused && self.repeated < most && !is_late {
            if now.saturating_sub(self.asked) < pause {
                return Step::Waits;
            }
            (self.refused, self.asked, self.repeated) = (seen.refused, now, self.repeated + 1);
            return Step::AsksAgain;
        }
        tracing::info!(
            ?waited,
            messages = seen.passed_on,
            "caught up: every peer that answers has sent its flows"
        );
        (self.is_over, self.was_over, self.absent, self.since) = (true, true, ABSENT, None);
        Step::IsOver
    }

    /// Whether every peer that answers has sent everything, and the workers have taken it.
    fn has_all(&self, seen: &Seen<'_>, arrived: u64, waited: Duration) -> bool {
        let has_all_of = |peer: &PeerStatus| match (peer.state, peer.walk) {
            (PeerState::Itself, _) => true,
            (PeerState::Up | PeerState::Behind, PeerWalk::Complete) => true,
            (PeerState::Up | PeerState::Behind, PeerWalk::Unknown(age)) => {
                age >= SESSION && arrived < OF_A_WALK
            }
            (PeerState::Up | PeerState::Behind, PeerWalk::UnderWay) => false,
            (PeerState::Connecting | PeerState::OtherVersion(..), _) => waited >= self.absent,
        };
        seen.has_taken_all && seen.peers.is_some_and(|peers| peers.iter().all(has_all_of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: (PeerState, PeerWalk) = (PeerState::Up, PeerWalk::Complete);
    const DOWN: (PeerState, PeerWalk) = (PeerState::Connecting, PeerWalk::UnderWay);
    const WALKS: (PeerState, PeerWalk) = (PeerState::Up, PeerWalk::UnderWay);

    fn peers(all: &[(PeerState, PeerWalk)]) -> Vec<PeerStatus> {
        let peer = |(n, &(state, walk)): (u16, &(PeerState, PeerWalk))| PeerStatus {
            address: ([192, 0, 2, 1], n).into(),
            name: None,
            state,
            heard_ago: None,
            waiting: 0,
            under_way: 0,
            last_rejection: None,
            key: None,
            snat: tidegate_sharing::Snat::default(),
            walk,
        };
        (1..).zip(all).map(peer).collect()
    }

    /// A look in which nothing was refused.
    fn look(catch_up: &mut CatchUp, all: &[(PeerState, PeerWalk)], is_able: bool, ms: u64) -> Step {
        refused(catch_up, all, is_able, ms, 0)
    }

    fn refused(
        catch_up: &mut CatchUp,
        all: &[(PeerState, PeerWalk)],
        is_able: bool,
        ms: u64,
        refused: u64,
    ) -> Step {
        let peers = peers(all);
        let seen = Seen { peers: Some(&peers), passed_on: 0, refused, has_taken_all: true, is_able };
        catch_up.step(&seen, Duration::from_millis(ms))
    }

    /// A gateway that has caught up once.
    fn caught_up(all: &[(PeerState, PeerWalk)]) -> CatchUp {
        let mut catch_up = CatchUp::new(false, false);
        let steps = [0, 3_000, 6_000].map(|ms| look(&mut catch_up, all, true, ms));
        assert_eq!(steps, [Step::Seeks, Step::Checks, Step::IsOver]);
        catch_up
    }

    #[test]
    fn a_gateway_waits_until_its_peers_have_sent_everything() {
        let mut catch_up = CatchUp::new(false, false);
        let itself = (PeerState::Itself, PeerWalk::UnderWay);
        assert_eq!(look(&mut catch_up, &[itself, UP], false, 0), Step::Waits, "it does not forward");
        assert_eq!(look(&mut catch_up, &[itself, UP], false, 60_000), Step::Waits);
        assert_eq!(look(&mut catch_up, &[itself, WALKS], true, 61_000), Step::Seeks);
        assert_eq!(look(&mut catch_up, &[itself, UP, WALKS], true, 64_000), Step::Waits);
        assert_eq!(look(&mut catch_up, &[itself, UP, UP], true, 64_200), Step::Checks);
        assert_eq!(look(&mut catch_up, &[itself, UP, WALKS], true, 64_400), Step::Waits);
        assert_eq!(look(&mut catch_up, &[itself, UP, UP], true, 64_600), Step::IsOver);
        assert_eq!(look(&mut catch_up, &[itself, UP, DOWN], true, 65_000), Step::IsOver);
    }

    #[test]
    fn a_gateway_catches_up_again_after_each_interruption() {
        let mut catch_up = CatchUp::new(false, true);
        assert_eq!(look(&mut catch_up, &[UP], true, 0), Step::Seeks);
        assert_eq!(look(&mut catch_up, &[UP], true, 1_800), Step::Waits, "peers may apply a change later");
        assert_eq!(look(&mut catch_up, &[UP], true, 2_000), Step::Checks);
        assert_eq!(look(&mut catch_up, &[UP], true, 2_200), Step::IsOver);
        // Its link is down.
        assert_eq!(look(&mut catch_up, &[UP], false, 10_000), Step::Waits);
        assert_eq!(look(&mut catch_up, &[DOWN], true, 20_000), Step::Seeks);
        assert_eq!(look(&mut catch_up, &[DOWN], true, 23_900), Step::Waits);
        assert_eq!(look(&mut catch_up, &[WALKS], true, 24_100), Step::Waits);
        assert_eq!(look(&mut catch_up, &[UP], true, 24_300), Step::IsOver);
        // Its process was paused, or it has lost all sessions.
        catch_up.interrupt();
        assert_eq!(look(&mut catch_up, &[UP], true, 60_000), Step::Seeks);
        assert_eq!(look(&mut catch_up, &[WALKS], true, 60_200), Step::Waits);
        assert_eq!(look(&mut catch_up, &[UP], true, 60_400), Step::IsOver);
    }

    #[test]
    fn refused_messages_are_sent_again_before_the_gateway_has_caught_up() {
        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(refused(&mut catch_up, &[UP], true, 0, 7), Step::Seeks);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_000, 7), Step::Checks);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_200, 7), Step::AsksAgain);
        assert_eq!(refused(&mut catch_up, &[UP], true, 2_400, 7), Step::IsOver);

        // Some are refused for ever, because the configurations differ.
        let mut catch_up = caught_up(&[UP]);
        catch_up.interrupt();
        let steps = (10..).map(|n| refused(&mut catch_up, &[UP], true, n * 1_000, n + 1));
        let steps: Vec<Step> = steps.take(5).collect();
        assert_eq!(steps, [Step::Seeks, Step::AsksAgain, Step::AsksAgain, Step::IsOver, Step::IsOver]);
        // The Services may follow soon.
        catch_up.interrupt();
        assert_eq!(refused(&mut catch_up, &[UP], true, 20_000, 7), Step::Seeks);
        assert_eq!(refused(&mut catch_up, &[UP], true, 20_200, 8), Step::Waits);
        assert_eq!(refused(&mut catch_up, &[UP], true, 21_000, 8), Step::AsksAgain);
    }

    #[test]
    fn absent_peers_and_endless_walks_do_not_keep_it_waiting() {
        let other = (PeerState::OtherVersion(7, 9), PeerWalk::UnderWay);
        for (finds_peers, keeps_flows, absent) in
            [(false, false, 4_000), (true, false, 8_000), (false, true, 1_000), (true, true, 1_000)]
        {
            let mut catch_up = CatchUp::new(finds_peers, keeps_flows);
            assert_eq!(look(&mut catch_up, &[DOWN, other], true, 0), Step::Seeks);
            assert_eq!(look(&mut catch_up, &[DOWN, other], true, absent - 100), Step::Waits);
            assert_eq!(look(&mut catch_up, &[DOWN, other], true, absent), Step::IsOver);
        }
        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(look(&mut catch_up, &[WALKS], true, 0), Step::Seeks);
        assert_eq!(look(&mut catch_up, &[WALKS], true, 14_900), Step::Waits);
        assert_eq!(look(&mut catch_up, &[WALKS], true, 15_000), Step::IsOver);
    }

    #[test]
    fn pauses_that_follow_each_other_do_not_keep_it_waiting() {
        let mut catch_up = CatchUp::new(false, false);
        for n in 0..14 {
            catch_up.interrupt();
            assert_eq!(look(&mut catch_up, &[DOWN], true, n * 1_000), Step::Seeks);
            assert_eq!(look(&mut catch_up, &[DOWN], true, n * 1_000 + 900), Step::Waits);
        }
        assert_eq!(look(&mut catch_up, &[DOWN], true, 15_000), Step::IsOver);
    }

    #[test]
    fn a_peer_of_an_earlier_version_has_sent_everything_when_little_arrives() {
        let mut catch_up = CatchUp::new(false, false);
        let mut look = |ms, passed_on| {
            let peers = peers(&[(PeerState::Up, PeerWalk::Unknown(Duration::from_millis(ms)))]);
            let seen =
                Seen { peers: Some(&peers), passed_on, refused: 0, has_taken_all: true, is_able: true };
            catch_up.step(&seen, Duration::from_millis(ms))
        };
        assert_eq!(look(0, 0), Step::Seeks);
        assert_eq!(look(1_900, 10_000), Step::Waits);
        assert_eq!(look(2_100, 20_000), Step::Waits, "the walk goes on");
        assert_eq!(look(2_300, 20_100), Step::Checks);
        assert_eq!(look(2_500, 20_100), Step::IsOver);
    }

    #[test]
    fn a_gateway_waits_until_its_peers_are_known_and_its_workers_have_all() {
        let mut catch_up = CatchUp::new(true, false);
        let up = peers(&[UP]);
        let mut look = |peers, has_taken_all, ms| {
            let seen = Seen { peers, passed_on: 0, refused: 0, has_taken_all, is_able: true };
            catch_up.step(&seen, Duration::from_millis(ms))
        };
        assert_eq!(look(None, true, 0), Step::Seeks);
        assert_eq!(look(None, true, 9_000), Step::Waits);
        assert_eq!(look(Some(&up), false, 10_000), Step::Waits);
        assert_eq!(look(Some(&up), true, 10_200), Step::Checks);
        assert_eq!(look(Some(&up), true, 10_400), Step::IsOver);

        let mut catch_up = CatchUp::new(false, false);
        assert_eq!(self::look(&mut catch_up, &[], true, 0), Step::Seeks);
        assert_eq!(self::look(&mut catch_up, &[], true, 0), Step::IsOver, "it has no peers");
    }
}
