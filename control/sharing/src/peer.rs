//! What a hub knows of one peer.
//!
//! Invariant: a peer without a session has a challenge that no message has answered yet.

use std::net::SocketAddr;
use std::time::Duration;

use crate::allowance::Allowance;
use crate::crypt::{Random, SharedKey};
use crate::limits::{HELLO_EVERY, HELLO_SLOWLY_EVERY, REJECTION_MAX, SILENCE_MAX};
use crate::message::WALKS_SINCE;
use crate::seats_and_snat::Snat;
use crate::session::Session;
use crate::status::{PeerState, PeerStatus, PeerWalk, Rejection};

/// A peer.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) name: Option<String>,
    pub(crate) is_itself: bool,
    pub(crate) versions: Option<(u8, u8)>,
    pub(crate) session: Option<Session>,
    /// What an answer to the next handshake message must repeat.
    pub(crate) challenge: Random,
    pub(crate) hello_sent: Option<Duration>,
    pub(crate) heard: Option<Duration>,
    /// When the gateway last had to catch up: the peer is sought as if it had just been heard.
    pub(crate) sought: Option<Duration>,
    pub(crate) hellos: Allowance,
    pub(crate) opens: Allowance,
    /// Since the last session began or ended: an earlier one explains nothing.
    pub(crate) last_rejection: Option<(Rejection, Duration)>,
    /// The key of its last handshake message.
    pub(crate) key: Option<SharedKey>,
    pub(crate) snat: Snat,
    /// The list of its SNAT addresses that is arriving.
    pub(crate) arriving: Snat,
}

impl Peer {
    /// A peer that has not answered.
    pub(crate) fn new(address: SocketAddr, challenge: Random) -> Self {
        Self {
            address,
            name: None,
            is_itself: false,
            versions: None,
            session: None,
            challenge,
            hello_sent: None,
            heard: None,
            sought: None,
            hellos: Allowance::default(),
            opens: Allowance::default(),
            last_rejection: None,
            key: None,
            snat: Snat::default(),
            arriving: Snat::default(),
        }
    }

    /// How often the peer is sent a handshake message; `None` if it needs none.
    fn hello_every(&self, now: Duration) -> Option<Duration> {
        match (&self.session, self.heard.max(self.sought)) {
            (Some(session), _) if session.is_confirmed => None,
            _ if self.is_itself => Some(HELLO_SLOWLY_EVERY),
            (Some(_), _) => Some(HELLO_EVERY),
            (None, Some(heard)) if now.saturating_sub(heard) < SILENCE_MAX * 4 => Some(HELLO_EVERY),
            (None, _) => Some(HELLO_SLOWLY_EVERY),
        }
    }

    /// Whether a handshake message is due.
    pub(crate) fn needs_hello(&self, now: Duration) -> bool {
        let is_due = |every| self.hello_sent.is_none_or(|sent| now.saturating_sub(sent) >= every);
        self.hello_every(now).is_some_and(is_due)
    }

    /// The peer for display; `versions` are those that this gateway speaks.
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
            heard_ago: self.heard.map(|heard| now.saturating_sub(heard)),
            waiting: session.map_or(0, |session| session.sender.waiting()),
            under_way: session.map_or(0, |session| session.sender.under_way()),
            last_rejection: self
                .last_rejection
                .filter(|(_, at)| now.saturating_sub(*at) < REJECTION_MAX)
                .map(|(why, _)| why),
            walk: match session {
                Some(session) if session.version < WALKS_SINCE => {
                    PeerWalk::Unknown(now.saturating_sub(session.began))
                }
                Some(session) if session.walks.awaited == 0 => PeerWalk::Complete,
                _ => PeerWalk::UnderWay,
            },
            key: self.key.as_ref().map(SharedKey::fingerprint),
            snat: self.snat.clone(),
        }
    }
}
