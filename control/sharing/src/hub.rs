//! The flow sharing of one gateway with all its peers.
//!
//! The daemon passes every datagram to [`Hub::receive`] and every update of the workers to [`Hub::enqueue`]. Every few
//! milliseconds it calls [`Hub::poll`], which sends, and [`Hub::deliver`], which passes the messages of peers to the
//! workers. [`Hub::walks`] requests walks through the flow tables of the workers: a complete one when a session starts,
//! because the peer may have lost everything, and others to repeat lost messages.
//!
//! A session starts with an exchange of challenges ([`Hello`]). A peer that restarts has another epoch and starts a new
//! session. A replayed message doesn't match the current challenge, so it can neither start nor end a session.
//!
//! Invariant: a datagram changes nothing unless its sender has the key, and a session changes only on a proof that is
//! newer than this gateway's current challenge.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate_conntrack::flow_record::{FlowUpdate, Walks};
use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::Rate;

use crate::crypt::{Entropy, Keys, Random, Side};
pub use crate::gateway_state::{BackendChanges, Snat};
use crate::handshake::{HELLO, Hello, MAGIC};
use crate::limits::{
    FRESH, HELLOS_PER_SECOND, OPENS_PER_SECOND, PEERS_MAX, QUEUE_MAX, REFRESH_EVERY, SILENCE_MAX,
    STRANGER_TIMEOUT, STRANGERS_MAX,
};
use crate::message::{Message, WALKS_SINCE, Walk};
use crate::peer::Peer;
use crate::session::{DATA, Session, Unread};
pub use crate::status::{HubCounts, PeerState, PeerStatus, PeerWalk, Rejection};

/// The oldest and the newest protocol version that this program supports.
pub const VERSIONS: (u8, u8) = (1, WALKS_SINCE);
/// In a session younger than this, the peer also receives the flows that this gateway has only imported.
const YOUNG: Duration = Duration::from_secs(60);

/// The settings of a hub.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The name of this gateway, for display.
    pub name: String,
    /// The secrets of the fleet.
    pub keys: Keys,
    /// The maximum number of datagrams with messages per second, to all peers together.
    pub rate_max: u32,
    /// The supported versions: [`VERSIONS`], except in tests.
    pub versions: (u8, u8),
    /// Whether an address belongs to this host.
    pub is_own: fn(IpAddr) -> bool,
}

/// The flow sharing of one gateway; see the [module](self).
pub struct Hub {
    config: HubConfig,
    epoch: Random,
    entropy: Box<dyn Entropy>,
    peers: Vec<Peer>,
    backend_changes: BackendChanges,
    snat: Snat,
    walks: Walks,
    refreshed: Duration,
    /// The states of token buckets.
    batches: u64,
    stranger_hellos: u64,
    /// Gateways that have the key but are not configured as peers, with their names and the time of the last datagram.
    strangers: BTreeMap<SocketAddr, (String, Duration)>,
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
            backend_changes: BackendChanges::default(),
            snat: Snat::default(),
            walks: Walks::default(),
            refreshed: Duration::ZERO,
            batches: 0,
            strangers: BTreeMap::new(),
            stranger_hellos: 0,
            counts: HubCounts::default(),
        }
    }

    /// Sets the peers, at most [`PEERS_MAX`]. Sessions with remaining peers continue.
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

    /// Replaces the keys. All sessions start again, as after a restart of the gateway.
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

    /// Sets the backend changes to send to a peer when a session starts, because the peer may have missed them.
    pub fn set_backend_changes(&mut self, backend_changes: BackendChanges) {
        self.backend_changes = backend_changes;
    }

    /// Sets the SNAT addresses that are sent to peers.
    pub fn set_snat(&mut self, snat: Snat) {
        if snat != self.snat {
            self.snat = snat;
            self.enqueue_snat();
        }
    }

    fn enqueue_snat(&mut self) {
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            self.snat.messages().for_each(|message| session.enqueue(&message));
        }
    }

    /// Handles a datagram. All times are relative to one fixed moment.
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

    /// Remembers a gateway that lists this one as a peer but is not a peer of this one.
    fn note_stranger(&mut self, from: SocketAddr, datagram: &mut [u8], now: Duration) {
        self.strangers.retain(|_, (_, last_seen)| now.saturating_sub(*last_seen) < STRANGER_TIMEOUT);
        let is_hello = datagram.first_chunk() == Some(&MAGIC) && datagram.get(4) == Some(&HELLO);
        let has_space = self.strangers.len() < STRANGERS_MAX || self.strangers.contains_key(&from);
        if !is_hello || !has_space || !rate(HELLOS_PER_SECOND).take(&mut self.stranger_hellos, time(now)) {
            return;
        }
        let opened = Hello::open_with(&self.config.keys, datagram);
        if let Some((hello, _)) = opened.filter(|(hello, _)| hello.epoch != self.epoch) {
            self.strangers.insert(from, (hello.name, now));
        }
    }

    /// Gateways that have the key and list this one as a peer, but are not its peers, with their names.
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
        let read = session.read(datagram, || rate(OPENS_PER_SECOND).take(opens, time(now)), now);
        if matches!(read, Ok(()) | Err(Unread::Invalid)) {
            peer.last_seen = Some(now);
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
        if !rate(HELLOS_PER_SECOND).take(&mut peer.hellos, time(now)) {
            return Err(Rejection::RateLimited);
        }
        let (hello, key) = Hello::open_with(&config.keys, datagram).ok_or(Rejection::Unauthentic)?;
        if hello.epoch == self.epoch {
            // Our own message: either the address is ours, or someone reflects datagrams. A peer with a session isn't
            // us.
            peer.is_itself = peer.session.is_none() && (config.is_own)(peer.address.ip());
            return if peer.is_itself { Ok(()) } else { Err(Rejection::Replayed) };
        }
        (peer.is_itself, peer.name, peer.key) = (false, Some(hello.name.clone()), Some(key.clone()));
        let answers = hello.echo == peer.challenge;
        if let Some(session) = &mut peer.session {
            let theirs = Side { epoch: hello.epoch, challenge: hello.challenge };
            if session.peer == theirs {
                if hello.echo == session.own.challenge {
                    // The peer doesn't know yet that the session is established.
                    session.send_soon();
                } else {
                    // The peer waits for the message with which it can establish the session.
                    let (versions, name) = (config.versions, config.name.clone());
                    let (challenge, echo) = (session.own.challenge, theirs.challenge);
                    let reply = Hello { versions, epoch: self.epoch, challenge, echo, name };
                    send(peer.address, &reply.seal(&config.keys.own, &self.entropy.random()));
                }
                return Ok(());
            }
            // A peer that has lost its session sends nothing in it. If the session was used just now, this message is a
            // replay.
            let is_used = session.is_confirmed && now.saturating_sub(session.last_seen) < FRESH;
            if is_used && session.peer.epoch == hello.epoch {
                return Err(Rejection::Replayed);
            }
        }
        peer.versions = Some(hello.versions);
        let version = hello.versions.1.min(config.versions.1);
        let is_supported = version >= hello.versions.0.max(config.versions.0);
        let theirs = Side { epoch: hello.epoch, challenge: hello.challenge };
        let mut own = Side { epoch: self.epoch, challenge: peer.challenge };
        if answers && is_supported {
            // Each challenge is used once, so that a replay of this message doesn't match.
            own.challenge = std::mem::replace(&mut peer.challenge, self.entropy.random());
            let mut session = Session::new((own, &config.keys.own), (theirs, key), version, now);
            self.snat.messages().for_each(|message| session.enqueue(&message));
            self.backend_changes.of(now).for_each(|message| session.enqueue(&message));
            self.walks.complete += 1;
            session.walks.number = self.walks.complete;
            peer.session = Some(session);
            (peer.last_seen, peer.last_rejection) = (Some(now), None);
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
        let is_needed = !answers || is_supported;
        if is_needed {
            send(peer.address, &reply.seal(&config.keys.own, &self.entropy.random()));
        }
        if is_supported { Ok(()) } else { Err(Rejection::Version) }
    }

    /// Queues a worker's update for all peers with a session.
    pub fn enqueue(&mut self, update: &FlowUpdate, now: Duration) {
        let is_relayed = matches!(update, FlowUpdate::Live(record) if record.is_relayed);
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            if !is_relayed || now.saturating_sub(session.started) < YOUNG {
                session.enqueue(&Message::Flow(*update));
            }
        }
    }

    /// Whether workers may continue their walks: no peer that makes progress has a long queue.
    #[must_use]
    pub fn has_capacity(&self, now: Duration) -> bool {
        let mut sessions = self.peers.iter().filter_map(|peer| peer.session.as_ref());
        sessions.all(|session| session.sender.waiting() < QUEUE_MAX / 2 || session.is_stuck(now))
    }

    /// The walks requested from the workers so far.
    #[must_use]
    pub fn walks(&self) -> Walks {
        self.walks
    }

    /// Reports that the workers have finished this many complete walks, and that all updates from them were passed to
    /// [`Self::enqueue`].
    pub fn walked(&mut self, complete: u64) {
        for session in self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()) {
            session.walked(complete);
        }
    }

    /// Sends a request to every peer with a session. [`PeerStatus::walk`] shows when the response is complete.
    pub fn request(&mut self, request: Walk) {
        self.peers.iter_mut().filter_map(|peer| peer.session.as_mut()).for_each(|one| one.request(request));
    }

    /// Sends a handshake message to every peer without a session at the next poll, then as often as to a recently lost
    /// peer. Call it when this gateway starts forwarding.
    pub fn reconnect(&mut self, now: Duration) {
        for peer in self.peers.iter_mut().filter(|peer| peer.session.is_none()) {
            (peer.reconnecting_since, peer.hello_sent) = (Some(now), None);
        }
    }

    /// Requests a walk because updates of workers were lost before they reached the hub.
    pub fn request_refresh(&mut self) {
        self.walks.refreshing += 1;
    }

    /// Whether there is a session with any peer.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.peers.iter().any(|peer| peer.session.is_some())
    }

    /// Ends the sessions of silent peers. Call it before receiving datagrams: after a pause of this process, the
    /// datagrams that waited in the socket belong to sessions that the peers have already ended.
    pub fn end_silent(&mut self, now: Duration) {
        for peer in &mut self.peers {
            if peer
                .session
                .as_ref()
                .is_some_and(|session| now.saturating_sub(session.last_seen) >= SILENCE_MAX)
            {
                (peer.session, peer.last_rejection) = (None, None);
                peer.challenge = self.entropy.random();
            }
        }
    }

    /// Sends what is due, and ends the sessions of silent peers.
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
                self.backend_changes.of(now).for_each(|message| session.enqueue(&message));
            }
            if std::mem::take(&mut session.walks.wants_flows) {
                self.walks.complete += 1;
                session.walks.number = self.walks.complete;
            }
            let lost = session.sender.lost;
            while let Some(spent) = rate(self.config.rate_max).spend(self.batches, time(now))
                && let Some((datagram, again)) = session.batch(now)
            {
                self.batches = spent;
                self.counts.sent += 1;
                self.counts.sent_again += u64::from(again);
                send(peer.address, &datagram);
            }
            if session.is_due(now) {
                self.counts.sent += 1;
                let datagram = session.keepalive(now);
                send(peer.address, &datagram);
            }
            self.counts.lost += lost;
            session.sender.lost = 0;
            if session.sender.is_behind && session.sender.waiting() == 0 {
                session.sender.is_behind = false;
                self.walks.refreshing += 1;
            }
        }
        // Rotate, so that no peer is always the last one to use the rate limit.
        if self.peers.len() > 1 {
            self.peers.rotate_left(1);
        }
        // Walk even without peers: this gateway uses the results, too.
        if now.saturating_sub(self.refreshed) >= REFRESH_EVERY {
            self.refreshed = now;
            self.walks.refreshing += 1;
            self.enqueue_snat();
        }
    }

    /// Delivers the messages of peers, those of each peer in order, as long as `accept` returns true.
    pub fn deliver(&mut self, mut accept: impl FnMut(&Message) -> bool) {
        for Peer { session, snat, arriving, .. } in &mut self.peers {
            let mut accept = |message: &Message| match message {
                Message::Snat(one) => {
                    arriving.add(one);
                    // Wait for the complete list: a part of it would look as if the peer had given up the other
                    // addresses.
                    if one.is_last {
                        *snat = std::mem::take(arriving);
                    }
                    true
                }
                other => accept(other),
            };
            if let Some(session) = session {
                self.counts.delivered += session.deliver(&mut accept);
            }
        }
    }

    /// The counters.
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

/// This many datagrams per second, in bursts of at most a fifth of them.
fn rate(per_second: u32) -> Rate {
    Rate { per_second, burst: per_second.div_ceil(5) }
}

/// The time for token buckets, which need one second to start.
fn time(now: Duration) -> Now {
    Now(0).plus(now + Duration::from_secs(1))
}
