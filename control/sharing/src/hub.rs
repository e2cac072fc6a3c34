//! One gateway and all its peers.
//!
//! The daemon passes every datagram to [`Hub::receive`] and every message of the workers to [`Hub::tell`]; it calls
//! [`Hub::poll`] every few milliseconds, which sends, and [`Hub::pass_on`], which passes the messages of peers to the
//! workers. [`Hub::walks`] tells the workers to walk through their tables: completely when a session begins, because the
//! peer may have lost everything, and otherwise to repair what was lost.
//!
//! A session begins with challenges ([`Hello`]). A peer that restarts has another epoch and begins a new one. A copy of an
//! old message answers no challenge of today, so it begins none and ends none.
//!
//! Invariant: a datagram changes nothing unless its sender has the key, and a session changes only by a proof that is newer
//! than this gateway's present challenge.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate_conntrack::flow_record::{FlowUpdate, Walks};

use crate::allowance::Allowance;
use crate::crypt::{Entropy, Keys, Random, Side};
use crate::handshake::{HELLO, Hello, MAGIC};
use crate::limits::{
    FRESH, HELLOS_PER_SECOND, OPENS_PER_SECOND, PEERS_MAX, QUEUE_MAX, REFRESH_EVERY, SILENCE_MAX,
    STRANGER_HEARD, STRANGERS_MAX,
};
use crate::message::{Message, WALKS_SINCE, Walk};
use crate::peer::Peer;
pub use crate::seats_and_snat::{Seats, Snat};
use crate::session::{DATA, Session, Unread};
pub use crate::status::{HubCounts, PeerState, PeerStatus, PeerWalk, Rejection};

/// The versions of the protocol that this program speaks, the oldest and the newest.
pub const VERSIONS: (u8, u8) = (1, WALKS_SINCE);
/// A session that is younger than this gets the flows that this gateway has only from others.
const YOUNG: Duration = Duration::from_secs(60);

/// The settings of a hub.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The name of this gateway, for people.
    pub name: String,
    /// The secrets of the fleet.
    pub keys: Keys,
    /// Datagrams with messages in a second, to all peers together.
    pub rate_max: u32,
    /// The versions to speak: [`VERSIONS`], except in tests.
    pub versions: (u8, u8),
    /// Whether an address is one of this host.
    pub is_own: fn(IpAddr) -> bool,
}

/// See the [module](self).
pub struct Hub {
    config: HubConfig,
    epoch: Random,
    entropy: Box<dyn Entropy>,
    peers: Vec<Peer>,
    seats: Seats,
    snat: Snat,
    walks: Walks,
    refreshed: Duration,
    batches: Allowance,
    /// Gateways with the key that are no peers, with their names and when they were last heard.
    strangers: BTreeMap<SocketAddr, (String, Duration)>,
    stranger_hellos: Allowance,
    counts: HubCounts,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("config", &self.config)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// A hub without peers, in a new epoch.
    #[must_use]
    pub fn new(config: HubConfig, mut entropy: Box<dyn Entropy>) -> Self {
        Self {
            epoch: entropy.random(),
            config,
            entropy,
            peers: Vec::new(),
            seats: Seats::default(),
            snat: Snat::default(),
            walks: Walks::default(),
            refreshed: Duration::ZERO,
            batches: Allowance::default(),
            strangers: BTreeMap::new(),
            stranger_hellos: Allowance::default(),
            counts: HubCounts::default(),
        }
    }

    /// Sets the peers, at most [`PEERS_MAX`]. Sessions with those that stay continue.
    pub fn set_peers(&mut self, addresses: &[SocketAddr]) {
        let wanted = &addresses[..addresses.len().min(PEERS_MAX)];
        self.peers.retain(|peer| wanted.contains(&peer.address));
        self.strangers.retain(|address, _| !wanted.contains(address));
        for &address in wanted {
            if self.peers.iter().all(|peer| peer.address != address) {
                self.peers.push(Peer::new(address, self.entropy.random()));
            }
        }
    }

    /// Uses other keys from now on. The sessions begin anew, as after a restart of the gateway.
    pub fn set_keys(&mut self, keys: Keys) {
        if keys == self.config.keys {
            return;
        }
        self.config.keys = keys;
        self.epoch = self.entropy.random();
        for peer in &mut self.peers {
            (peer.session, peer.hello_sent, peer.challenge) = (None, None, self.entropy.random());
        }
    }

    /// Sets what a peer is told of changes of weights when a session with it begins: it may have just started, and not have
    /// seen them.
    pub fn set_seats(&mut self, seats: Seats) {
        self.seats = seats;
    }

    /// Sets what peers are told of the SNAT addresses of this gateway.
    pub fn set_snat(&mut self, snat: Snat) {
        if snat != self.snat {
            self.snat = snat;
            self.tell_snat();
        }
    }

    fn tell_snat(&mut self) {
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            self.snat.messages().for_each(|message| session.tell(&message));
        }
    }

    /// Handles a datagram. Times are since any moment that stays the same.
    pub fn receive(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Duration,
        mut send: impl FnMut(SocketAddr, &[u8]),
    ) {
        let Some(at) = self.peers.iter().position(|peer| peer.address == from) else {
            self.note_stranger(from, datagram, now);
            return self.reject(None, Rejection::Stranger, now);
        };
        let read = match (datagram.first_chunk() == Some(&MAGIC), datagram.get(4)) {
            (true, Some(&HELLO)) => self.hello(at, datagram, now, &mut send),
            (true, Some(&DATA)) => self.data(at, datagram, now),
            _ => Err(Rejection::Malformed),
        };
        match read {
            Ok(()) => self.counts.received += 1,
            Err(why) => self.reject(Some(at), why, now),
        }
    }

    /// Notes a gateway that has this one in its list of peers, and is not in this one's.
    fn note_stranger(&mut self, from: SocketAddr, datagram: &mut [u8], now: Duration) {
        self.strangers.retain(|_, (_, heard)| now.saturating_sub(*heard) < STRANGER_HEARD);
        let is_hello = datagram.first_chunk() == Some(&MAGIC) && datagram.get(4) == Some(&HELLO);
        let has_room = self.strangers.len() < STRANGERS_MAX || self.strangers.contains_key(&from);
        if !is_hello || !has_room || !self.stranger_hellos.take(HELLOS_PER_SECOND, now) {
            return;
        }
        let opened = Hello::open_with(&self.config.keys, datagram);
        if let Some((hello, _)) = opened.filter(|(hello, _)| hello.epoch != self.epoch) {
            self.strangers.insert(from, (hello.name, now));
        }
    }

    /// Gateways with the key that send to this one as a peer and are no peers of it, with their names.
    pub fn strangers(&self) -> impl Iterator<Item = (SocketAddr, &str)> {
        self.strangers.iter().map(|(address, (name, _))| (*address, name.as_str()))
    }

    fn reject(&mut self, peer: Option<usize>, why: Rejection, now: Duration) {
        self.counts.rejected[why as usize] += 1;
        if let Some(peer) = peer {
            self.peers[peer].last_rejection = Some((why, now));
        }
    }

    fn data(&mut self, at: usize, datagram: &mut [u8], now: Duration) -> Result<(), Rejection> {
        let peer = &mut self.peers[at];
        let session = peer.session.as_mut().ok_or(Rejection::NoSession)?;
        let opens = &mut peer.opens;
        let read = session.read(datagram, || opens.take(OPENS_PER_SECOND, now), now);
        if matches!(read, Ok(()) | Err(Unread::Invalid)) {
            peer.heard = Some(now);
        }
        read.map_err(|unread| match unread {
            Unread::OtherSession => Rejection::NoSession,
            Unread::Old => Rejection::Replayed,
            Unread::TooMany => Rejection::RateLimited,
            Unread::Unauthentic => Rejection::Unauthentic,
            Unread::Invalid => Rejection::Malformed,
        })
    }

    fn hello(
        &mut self,
        at: usize,
        datagram: &mut [u8],
        now: Duration,
        send: &mut impl FnMut(SocketAddr, &[u8]),
    ) -> Result<(), Rejection> {
        let (config, peer) = (&self.config, &mut self.peers[at]);
        if !peer.hellos.take(HELLOS_PER_SECOND, now) {
            return Err(Rejection::RateLimited);
        }
        let (hello, key) = Hello::open_with(&config.keys, datagram).ok_or(Rejection::Unauthentic)?;
        if hello.epoch == self.epoch {
            // Our own message: the address is ours, or somebody sends it back. A peer with a session is somebody else.
            peer.is_itself = peer.session.is_none() && (config.is_own)(peer.address.ip());
            return if peer.is_itself { Ok(()) } else { Err(Rejection::Replayed) };
        }
        (peer.is_itself, peer.name, peer.key) = (false, Some(hello.name.clone()), Some(key.clone()));
        let answers = hello.echo == peer.challenge;
        if let Some(session) = &mut peer.session {
            let theirs = Side { epoch: hello.epoch, challenge: hello.challenge };
            if session.peer == theirs {
                if hello.echo == session.own.challenge {
                    // The peer has not heard yet that the session has begun.
                    session.hurry();
                } else {
                    // It waits for the message that lets it begin the session.
                    let (versions, name) = (config.versions, config.name.clone());
                    let (challenge, echo) = (session.own.challenge, theirs.challenge);
                    let reply = Hello { versions, epoch: self.epoch, challenge, echo, name };
                    send(peer.address, &reply.seal(&config.keys.own, &self.entropy.random()));
                }
                return Ok(());
            }
            // A gateway that has lost a session sends nothing in it. So while the session is in use, this is a copy.
            let is_used = session.is_confirmed && now.saturating_sub(session.heard) < FRESH;
            if is_used && session.peer.epoch == hello.epoch {
                return Err(Rejection::Replayed);
            }
        }
        peer.versions = Some(hello.versions);
        let version = hello.versions.1.min(config.versions.1);
        let speaks_it = version >= hello.versions.0.max(config.versions.0);
        let theirs = Side { epoch: hello.epoch, challenge: hello.challenge };
        let mut own = Side { epoch: self.epoch, challenge: peer.challenge };
        if answers && speaks_it {
            // The challenge has served: a copy of this message finds another one.
            own.challenge = std::mem::replace(&mut peer.challenge, self.entropy.random());
            let mut session = Session::new((own, &config.keys.own), (theirs, key), version, now);
            self.snat.messages().for_each(|message| session.tell(&message));
            self.seats.of(now).for_each(|message| session.tell(&message));
            self.walks.complete += 1;
            session.walks.number = self.walks.complete;
            peer.session = Some(session);
            (peer.heard, peer.last_rejection) = (Some(now), None);
            self.counts.sessions += 1;
            self.refreshed = now;
        }
        peer.hello_sent = Some(now);
        let reply = Hello {
            versions: config.versions,
            epoch: own.epoch,
            challenge: own.challenge,
            echo: hello.challenge,
            name: config.name.clone(),
        };
        let is_needed = !answers || speaks_it;
        if is_needed {
            send(peer.address, &reply.seal(&config.keys.own, &self.entropy.random()));
        }
        if speaks_it { Ok(()) } else { Err(Rejection::Version) }
    }

    /// Adds a message of a worker for all peers that are up.
    pub fn tell(&mut self, news: &FlowUpdate, now: Duration) {
        let is_relayed = matches!(news, FlowUpdate::Live(record) if record.is_relayed);
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            if !is_relayed || now.saturating_sub(session.began) < YOUNG {
                session.tell(&Message::Flow(*news));
            }
        }
    }

    /// Whether workers may go on with their walks: no peer that is up has much to be sent, except one that takes nothing.
    #[must_use]
    pub fn has_room(&self, now: Duration) -> bool {
        let mut sessions = self.peers.iter().filter_map(|peer| peer.session.as_ref());
        sessions.all(|session| session.sender.waiting() < QUEUE_MAX / 2 || session.is_stuck(now))
    }

    /// The walks that workers should have made.
    #[must_use]
    pub fn walks(&self) -> Walks {
        self.walks
    }

    /// The workers have made this many of the complete walks, and everything that they said until then was passed to
    /// [`Self::tell`].
    pub fn walked(&mut self, complete: u64) {
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            session.walked(complete);
        }
    }

    /// Sends a request to every peer with a session. [`PeerStatus::walk`] says when its answer has arrived.
    pub fn ask(&mut self, request: Walk) {
        self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()).for_each(|one| one.ask(request));
    }

    /// Sends a handshake message to every peer without a session at once, and for some time as often as to a peer that has
    /// just been lost: this gateway begins to forward.
    pub fn seek(&mut self, now: Duration) {
        for peer in self.peers.iter_mut().filter(|peer| peer.session.is_none()) {
            (peer.sought, peer.hello_sent) = (Some(now), None);
        }
    }

    /// Asks for a walk, because messages of workers were lost before they arrived here.
    pub fn was_told_too_little(&mut self) {
        self.walks.refreshing += 1;
    }

    /// Whether there is a session with any peer.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.peers.iter().any(|peer| peer.session.is_some())
    }

    /// Ends sessions with peers that are silent. Call it before datagrams are received: after a pause of this process, those
    /// that have waited since then belong to sessions that the peers have ended.
    pub fn end_silent(&mut self, now: Duration) {
        for peer in &mut self.peers {
            if peer.session.as_ref().is_some_and(|session| now.saturating_sub(session.heard) >= SILENCE_MAX) {
                (peer.session, peer.last_rejection) = (None, None);
                peer.challenge = self.entropy.random();
            }
        }
    }

    /// Sends what is due, and ends sessions with peers that are silent.
    pub fn poll(&mut self, now: Duration, mut send: impl FnMut(SocketAddr, &[u8])) {
        self.end_silent(now);
        for peer in &mut self.peers {
            if peer.needs_hello(now) {
                peer.hello_sent = Some(now);
                let (challenge, echo) = match &peer.session {
                    Some(session) => (session.own.challenge, session.peer.challenge),
                    None => (peer.challenge, Random::default()),
                };
                let (versions, name) = (self.config.versions, self.config.name.clone());
                let hello = Hello { versions, epoch: self.epoch, challenge, echo, name };
                send(peer.address, &hello.seal(&self.config.keys.own, &self.entropy.random()));
            }
            let Some(session) = &mut peer.session else { continue };
            if std::mem::take(&mut session.walks.wants_changes) {
                self.seats.of(now).for_each(|message| session.tell(&message));
            }
            if std::mem::take(&mut session.walks.wants_flows) {
                self.walks.complete += 1;
                session.walks.number = self.walks.complete;
            }
            let lost = session.sender.lost;
            while self.batches.has(now)
                && let Some((datagram, again)) = session.batch(now)
            {
                self.batches.take(self.config.rate_max, now);
                self.counts.sent += 1;
                self.counts.sent_again += u64::from(again);
                send(peer.address, &datagram);
            }
            if session.is_due(now) {
                self.counts.sent += 1;
                let datagram = session.sign_of_life(now);
                send(peer.address, &datagram);
            }
            self.counts.lost += lost;
            session.sender.lost = 0;
            if session.sender.is_behind && session.sender.waiting() == 0 {
                session.sender.is_behind = false;
                self.walks.refreshing += 1;
            }
        }
        // A peer must not always be the last to get what the rate allows.
        if self.peers.len() > 1 {
            self.peers.rotate_left(1);
        }
        // Without a peer too: what a walk shows is also for this gateway.
        if now.saturating_sub(self.refreshed) >= REFRESH_EVERY {
            self.refreshed = now;
            self.walks.refreshing += 1;
            self.tell_snat();
        }
    }

    /// Passes the messages of peers on, in the order of each peer, while `accept` takes them.
    pub fn pass_on(&mut self, mut accept: impl FnMut(&Message) -> bool) {
        for Peer { session, snat, arriving, .. } in &mut self.peers {
            let mut accept = |message: &Message| match message {
                Message::Snat(one) => {
                    arriving.add(one);
                    // A part of the list would mean that the peer has given the other addresses up.
                    if one.is_last {
                        *snat = std::mem::take(arriving);
                    }
                    true
                }
                other => accept(other),
            };
            if let Some(session) = session {
                self.counts.passed_on += session.pass_on(&mut accept);
            }
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &HubCounts {
        &self.counts
    }

    /// All peers, by address.
    #[must_use]
    pub fn status(&self, now: Duration) -> Vec<PeerStatus> {
        let mut all: Vec<PeerStatus> =
            self.peers.iter().map(|peer| peer.status(self.config.versions, now)).collect();
        all.sort_by_key(|peer| peer.address);
        all
    }
}
