//! Which peers still have the routes from before the gateway was interrupted.
//!
//! After an interruption, the gateway must import the flows of other gateways before it receives their packets. A BGP
//! peer whose session survived the interruption sends packets anyway, so its routes stay. A peer whose session ended
//! has sent its packets to other gateways since, so it gets the routes only when this gateway has caught up.
//!
//! Invariant: nothing here reads a clock.

use std::time::Instant;

use crate::status::PeerStatus;

/// The interruption in progress, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Interruption {
    /// The latest observation.
    last: Option<Instant>,
    /// The last observation before the interruption.
    since: Option<Instant>,
}

impl Interruption {
    /// Records whether the gateway is catching up.
    pub(crate) fn observe(&mut self, catching_up: bool, now: Instant) {
        let before = self.last.replace(now).unwrap_or(now);
        self.since = catching_up.then(|| self.since.unwrap_or(before));
    }

    /// Whether the gateway is catching up.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the peer's session has been up since before the interruption; true without an interruption.
    pub(crate) fn keeps(&self, peer: &PeerStatus) -> bool {
        self.since.is_none_or(|since| peer.is_up() && peer.since_instant <= since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bird::replies::SessionState;

    #[test]
    fn a_session_that_started_during_the_interruption_keeps_no_routes() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let peer = |state, since| {
            let mut peer = PeerStatus::new("192.0.2.1".parse().unwrap(), 64_512);
            (peer.session.state, peer.since_instant) = (state, at(since));
            peer
        };
        let mut interruption = Interruption::default();
        interruption.observe(false, at(10));
        let keeps = |interruption: &Interruption| {
            let up = SessionState::Established;
            [peer(up, 5), peer(up, 12), peer(SessionState::Connect, 5)].map(|peer| interruption.keeps(&peer))
        };
        assert_eq!(keeps(&interruption), [true; 3]);
        // The process was paused from second 10 to second 40.
        interruption.observe(true, at(40));
        interruption.observe(true, at(41));
        assert_eq!((keeps(&interruption), interruption.is_catching_up()), ([true, false, false], true));
        interruption.observe(false, at(42));
        assert_eq!((keeps(&interruption), interruption.is_catching_up()), ([true; 3], false));
    }
}
