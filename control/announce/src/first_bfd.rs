//! Which peers get no routes yet, because BFD has just begun.
//!
//! A peer may not have noticed the end of the BFD session that the gateway had before its restart. It notices it when the new
//! one begins, and ends the BGP session, which may be established by then. Routes that it had already would come, go and come
//! again, and each change moves flows. So after each start of BIRD a peer gets the routes when BFD has been up once: the
//! peer has then seen the end of its old session.
//!
//! Invariant: a peer that gets routes does not lose them because of this while BIRD runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tidegate_model::config::BgpConfig;

use crate::status::PeerStatus;

/// A peer whose session has been established for this time gets the routes without BFD: it may not be configured there.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The peers that may have routes since BIRD's start.
#[derive(Debug, Default)]
pub(crate) struct FirstBfd {
    ready: BTreeSet<IpAddr>,
}

impl FirstBfd {
    /// Takes note of the sessions. At the end of a BIRD (`runs` is false) everything begins anew.
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
                tracing::warn!(peer = %peer.address, "BFD is not up: the peer gets the routes without");
            }
        }
    }

    /// The peers that get no routes yet. With graceful restart they keep the old ones until the session has sent all, so they
    /// need not wait, and an empty table would remove these.
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

    fn may_have_routes(first: &FirstBfd) -> bool {
        first.ready.contains(&PEER.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn an_established_session_has_no_routes_until_bfd_is_up_and_keeps_them_when_bfd_fails() {
        let (mut first, now) = (FirstBfd::default(), Instant::now());
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(!may_have_routes(&first), "the peer may still end the session");
        first.observe(true, &[peer(SessionState::Established, Some("Init"))], now);
        assert!(!may_have_routes(&first));
        first.observe(true, &[peer(SessionState::Down, Some("Up"))], now);
        assert!(may_have_routes(&first), "BFD is up: the next session may have routes at once");
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(may_have_routes(&first));
        first.observe(false, &[peer(SessionState::Down, Some("Down"))], now);
        assert!(!may_have_routes(&first), "a new BIRD begins anew");
    }

    #[test]
    fn a_peer_that_does_not_speak_bfd_gets_routes_after_a_time() {
        let mut first = FirstBfd::default();
        let one = peer(SessionState::Established, Some("Down"));
        let since = one.since_instant;
        first.observe(true, std::slice::from_ref(&one), since + WAIT_MAX / 2);
        assert!(!may_have_routes(&first));
        first.observe(true, &[one], since + WAIT_MAX);
        assert!(may_have_routes(&first));
    }

    #[test]
    fn bfd_that_is_configured_later_takes_no_routes_away() {
        let (mut first, now) = (FirstBfd::default(), Instant::now());
        first.observe(true, &[peer(SessionState::Established, None)], now);
        first.observe(true, &[peer(SessionState::Established, Some("Down"))], now);
        assert!(may_have_routes(&first));
        first.observe(true, &[], now);
        assert!(!may_have_routes(&first), "a peer that was removed begins anew");
    }
}
