//! The state of one peer.
//!
//! Invariant: a peer without a session has a challenge that no message has matched yet.

use std::net::SocketAddr;
use std::time::Duration;

use crate::crypt::{Random, SharedKey};
use crate::gateway_state::Snat;
use crate::limits::{HELLO_EVERY, HELLO_SLOWLY_EVERY, REJECTION_MAX, SILENCE_MAX};
use crate::message::WALKS_SINCE;
use crate::session::Session;
use crate::status::{PeerState, PeerStatus, PeerWalk, Rejection};

/// A peer.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) name: Option<String>,
    pub(crate) is_itself: bool,
    pub(crate) versions: Option<(u8, u8)>,
    pub(crate) session: Option<Session>,
    /// The challenge that the response to the next handshake message must repeat.
    pub(crate) challenge: Random,
    pub(crate) hello_sent: Option<Duration>,
    pub(crate) last_seen: Option<Duration>,
    /// When `Hub::reconnect` was last called. From then on, handshake messages are sent as often as to a recently lost
    /// peer.
    pub(crate) reconnecting_since: Option<Duration>,
    /// The states of the token buckets of its datagrams.
    pub(crate) hellos: u64,
    pub(crate) opens: u64,
    /// Reset when a session starts or ends, because earlier rejections don't explain the new state.
    pub(crate) last_rejection: Option<(Rejection, Duration)>,
    /// The key of its last handshake message.
    pub(crate) key: Option<SharedKey>,
    pub(crate) snat: Snat,
    /// The list of its SNAT addresses that is being received.
    pub(crate) arriving: Snat,
}

impl Peer {
    /// A peer that has not responded yet.
    pub(crate) fn new(address: SocketAddr, challenge: Random) -> Self {
        Self {
            address,
            name: None,
            is_itself: false,
            versions: None,
            session: None,
            challenge,
            hello_sent: None,
            last_seen: None,
            reconnecting_since: None,
            hellos: 0,
            opens: 0,
            last_rejection: None,
            key: None,
            snat: Snat::default(),
            arriving: Snat::default(),
        }
    }

    /// The interval of handshake messages to this peer; `None` if it needs none.
    fn hello_every(&self, now: Duration) -> Option<Duration> {
        match (&self.session, self.last_seen.max(self.reconnecting_since)) {
            (Some(session), _) if session.is_confirmed => None,
            _ if self.is_itself => Some(HELLO_SLOWLY_EVERY),
            (Some(_), _) => Some(HELLO_EVERY),
            (None, Some(last_seen)) if now.saturating_sub(last_seen) < SILENCE_MAX * 4 => Some(HELLO_EVERY),
            (None, _) => Some(HELLO_SLOWLY_EVERY),
        }
    }

    /// Whether a handshake message is due.
    pub(crate) fn needs_hello(&self, now: Duration) -> bool {
        let is_due = |every| self.hello_sent.is_none_or(|sent| now.saturating_sub(sent) >= every);
        self.hello_every(now).is_some_and(is_due)
    }

    /// The peer's status for display. `versions` are those that this gateway supports.
    pub(crate) fn status(&self, versions: (u8, u8), now: Duration) -> PeerStatus {
        let session = self.session.as_ref().filter(|session| session.is_confirmed);
        let state = match (session, self.versions) {
            _ if self.is_itself => PeerState::Itself,
            (Some(session), _) if session.sender.is_behind => PeerState::Behind,
            (Some(_), _) => PeerState::Up,
            (None, Some((oldest, newest))) if oldest > versions.1 || newest < versions.0 => {
                PeerState::OtherVersion(oldest, newest)
            }
            (None, _) => PeerState::Connecting,
        };
        PeerStatus {
            address: self.address,
            name: self.name.clone(),
            state,
            silent_for: self.last_seen.map(|at| now.saturating_sub(at)),
            waiting: session.map_or(0, |session| session.sender.waiting()),
            in_flight: session.map_or(0, |session| session.sender.in_flight()),
            last_rejection: self
                .last_rejection
                .filter(|(_, at)| now.saturating_sub(*at) < REJECTION_MAX)
                .map(|(why, _)| why),
            walk: match session {
                Some(session) if session.version < WALKS_SINCE => {
                    PeerWalk::Unknown(now.saturating_sub(session.started))
                }
                Some(session) if session.walks.awaited == 0 => PeerWalk::Complete,
                _ => PeerWalk::InProgress,
            },
            key: self.key.as_ref().map(SharedKey::fingerprint),
            snat: self.snat.clone(),
        }
    }
}
