//! Which peers get no routes yet, because their BFD session has just started.
//!
//! A peer may not have noticed yet that the BFD session from before the gateway's restart ended. It notices when the
//! new one starts, and then ends the BGP session, which may already be established. Routes that it already had would
//! appear, disappear and reappear, and each change moves flows. So after each start of BIRD, a peer gets routes only
//! once BFD has been up: by then, the peer has seen its old session end.
//!
//! Invariant: while BIRD runs, a peer that gets routes does not lose them because of this module.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tidegate_model::config::BgpConfig;

use crate::status::PeerStatus;

/// A peer whose session has been established for this long gets the routes without BFD, which may not be configured on
/// its side.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The peers that may get routes since BIRD's start.
#[derive(Debug, Default)]
pub(crate) struct FirstBfd {
    ready: BTreeSet<IpAddr>,
}

impl FirstBfd {
    /// Records the state of the sessions. When BIRD exits (`runs` is false), this starts over.
    pub(crate) fn observe(&mut self, runs: bool, peers: &[PeerStatus], now: Instant) {
        if !runs {
            self.ready.clear();
            return;
        }
        self.ready.retain(|address| peers.iter().any(|peer| peer.address == *address));
        for peer in peers {
            let is_late = peer.is_up() && now.saturating_duration_since(peer.since_instant) >= WAIT_MAX;
            let has_no_bfd = peer.is_up() && peer.bfd.is_none();
            let is_ready = has_no_bfd || is_late || peer.bfd.as_deref() == Some("Up");
            if is_ready && self.ready.insert(peer.address) && is_late && !has_no_bfd {
                tracing::warn!(peer = %peer.address, "BFD is not up; sending routes to the peer anyway");
            }
        }
    }

    /// The peers that get no routes yet. A peer with graceful restart need not wait: it keeps its old routes until the
    /// session has sent all new ones, and an empty table would remove them.
    pub(crate) fn waiting(&self, bgp: &BgpConfig) -> BTreeSet<IpAddr> {
        let waits = bgp.peers.iter().filter(|peer| peer.bfd && !peer.graceful_restart);
        waits.map(|peer| peer.address).filter(|address| !self.ready.contains(address)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bird::replies::SessionState;

    const PEER: &str = "192.0.2.1";

    fn peer(state: SessionState, bfd: Option<&str>) -> PeerStatus {
        let mut peer = PeerStatus::new(PEER.parse().unwrap(), 64_513);
        peer.session.state = state;
        peer.bfd = bfd.map(str::to_owned);
        peer
    }

    fn may_get_routes(first: &FirstBfd) -> bool {
        first.ready.contains(&PEER.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn a_session_gets_routes_when_bfd_is_up_and_keeps_them_if_bfd_fails() {
        let (mut first, now) = (FirstBfd::default(), Instant::now());
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(!may_get_routes(&first), "the peer may still end the session");
        first.observe(true, &[peer(SessionState::Established, Some("Init"))], now);
        assert!(!may_get_routes(&first));
        first.observe(true, &[peer(SessionState::Down, Some("Up"))], now);
        assert!(may_get_routes(&first), "BFD is up: the next session may have routes at once");
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(may_get_routes(&first));
        first.observe(false, &[peer(SessionState::Down, Some("Down"))], now);
        assert!(!may_get_routes(&first), "a new BIRD starts over");
    }

    #[test]
    fn a_peer_without_bfd_gets_routes_after_a_time() {
        let mut first = FirstBfd::default();
        let one = peer(SessionState::Established, Some("Down"));
        let since = one.since_instant;
        first.observe(true, std::slice::from_ref(&one), since + WAIT_MAX / 2);
        assert!(!may_get_routes(&first));
        first.observe(true, &[one], since + WAIT_MAX);
        assert!(may_get_routes(&first));
    }

    #[test]
    fn bfd_that_is_configured_later_removes_no_routes() {
        let (mut first, now) = (FirstBfd::default(), Instant::now());
        first.observe(true, &[peer(SessionState::Established, None)], now);
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(may_get_routes(&first));
        first.observe(true, &[], now);
        assert!(!may_get_routes(&first), "a removed peer starts over");
    }
}
