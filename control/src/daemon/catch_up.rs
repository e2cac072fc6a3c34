//! Whether a gateway that has just started has the flows of its peers.
//!
//! Routers send packets of open connections to a gateway as soon as it announces its addresses. If it has not got the flows
//! in flux and the NAT flows of its peers by then, it breaks these connections. So it announces nothing until then, or
//! until waiting would take too long. Nothing here reads a clock.
//!
//! Invariant: a gateway that has caught up once never waits again while it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_sharing::{PeerState, PeerStatus};

/// How long there must be a session with a peer: it walks through its tables when the session begins.
const SESSION: Duration = Duration::from_secs(2);
/// A peer without a session after this time is taken for absent.
const ABSENT: Duration = Duration::from_secs(4);
/// The same for peers that were found: they must find this gateway first.
const FOUND_ABSENT: Duration = Duration::from_secs(8);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// More messages than this between two looks are those of a walk, and not of flows that begin.
const OF_A_WALK: u64 = 500;

/// The progress.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// When a peer without a session is taken for absent.
    absent: Duration,
    /// When the gateway could first use the flows of peers.
    began: Option<Duration>,
    up_since: BTreeMap<SocketAddr, Duration>,
    passed_on: u64,
    is_over: bool,
}

impl CatchUp {
    /// Before anything is known. `finds_peers`: peers are not configured, but must find each other.
    pub(super) fn new(finds_peers: bool) -> Self {
        let absent = if finds_peers { FOUND_ABSENT } else { ABSENT };
        Self { absent, began: None, up_since: BTreeMap::new(), passed_on: 0, is_over: false }
    }

    /// Whether the gateway has caught up.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the gateway still waits. `peers` are those that should answer, `None` if they are not known yet. `passed_on`
    /// messages of peers have reached the workers so far; `is_able`: the workers have the Services, so that they can use them.
    pub(super) fn waits(
        &mut self,
        peers: Option<&[PeerStatus]>,
        passed_on: u64,
        is_able: bool,
        now: Duration,
    ) -> bool {
        if self.is_over {
            return false;
        }
        let news = passed_on - std::mem::replace(&mut self.passed_on, passed_on);
        if !is_able {
            return true;
        }
        let waited = now.saturating_sub(*self.began.get_or_insert(now));
        let others = peers.unwrap_or_default().iter().filter(|peer| peer.state != PeerState::Itself);
        let mut has_all = peers.is_some();
        for peer in others {
            if matches!(peer.state, PeerState::Up | PeerState::Behind) {
                let since = *self.up_since.entry(peer.address).or_insert(now);
                has_all &= now.saturating_sub(since) >= SESSION;
            } else {
                self.up_since.remove(&peer.address);
                has_all &= waited >= self.absent;
            }
        }
        self.is_over = has_all && news < OF_A_WALK || waited >= WAIT_MAX;
        if self.is_over {
            tracing::info!(
                ?waited,
                messages = passed_on,
                "the flows of other gateways are known, as far as they answer"
            );
        }
        !self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u16, state: PeerState) -> PeerStatus {
        PeerStatus {
            address: ([192, 0, 2, 1], n).into(),
            name: None,
            state,
            heard_ago: None,
            waiting: 0,
            under_way: 0,
            last_rejection: None,
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_gateway_waits_for_the_walks_of_its_peers_and_never_again() {
        let mut catch_up = CatchUp::new(false);
        let up = [peer(1, PeerState::Itself), peer(2, PeerState::Up)];
        assert!(catch_up.waits(Some(&up), 0, false, at(0)), "the workers have no Services");
        assert!(catch_up.waits(Some(&up), 0, false, at(60_000)));
        assert!(catch_up.waits(Some(&up), 0, true, at(61_000)));
        assert!(catch_up.waits(Some(&up), 10_000, true, at(62_900)));
        assert!(catch_up.waits(Some(&up), 20_000, true, at(63_100)), "the walk goes on");
        assert!(!catch_up.waits(Some(&up), 20_100, true, at(63_300)));
        let down = [peer(2, PeerState::Connecting)];
        assert!(!catch_up.waits(Some(&down), 90_000, false, at(63_500)));
    }

    #[test]
    fn absent_peers_and_endless_walks_do_not_keep_it_waiting() {
        let mut catch_up = CatchUp::new(false);
        let peers = [peer(1, PeerState::Connecting), peer(2, PeerState::OtherVersion(7, 9))];
        assert!(catch_up.waits(Some(&peers), 0, true, at(0)));
        assert!(catch_up.waits(Some(&peers), 0, true, at(3_900)));
        assert!(!catch_up.waits(Some(&peers), 0, true, at(4_000)));

        let mut catch_up = CatchUp::new(false);
        let up = [peer(1, PeerState::Up)];
        for turn in 0..75 {
            assert!(catch_up.waits(Some(&up), turn * 1_000, true, at(turn * 200)), "turn {turn}");
        }
        assert!(!catch_up.waits(Some(&up), 75_000, true, at(15_000)));
    }

    #[test]
    fn a_gateway_waits_until_it_knows_its_peers_and_longer_for_those_that_must_find_it_but_not_for_ever() {
        let mut catch_up = CatchUp::new(true);
        assert!(catch_up.waits(None, 0, true, at(0)));
        let peers = [peer(1, PeerState::Connecting)];
        assert!(catch_up.waits(Some(&peers), 0, true, at(7_900)));
        assert!(!catch_up.waits(Some(&peers), 0, true, at(8_000)));

        let mut catch_up = CatchUp::new(true);
        assert!(catch_up.waits(None, 0, true, at(0)));
        assert!(catch_up.waits(None, 0, true, at(14_900)));
        assert!(!catch_up.waits(None, 0, true, at(15_000)), "the API server does not answer");
    }

    #[test]
    fn a_gateway_without_peers_does_not_wait() {
        assert!(!CatchUp::new(false).waits(Some(&[]), 0, true, at(0)));
    }
}
