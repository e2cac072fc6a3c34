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

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::flow_record::FlowNews;
use tidegate_conntrack::flow_record::Walks;
use tidegate_spec::limits::SNAT_ADDRESSES_MAX;
use tidegate_spec::{BackendChange, ServiceKey};

use crate::allowance::Allowance;
use crate::crypt::{Entropy, Keys, Random, SharedKey, Side};
use crate::handshake::{HELLO, Hello, MAGIC};
use crate::limits::{
    FRESH, HELLO_EVERY, HELLO_SLOWLY_EVERY, HELLOS_PER_SECOND, LEFT_MAX, OPENS_PER_SECOND, PEERS_MAX,
    QUEUE_MAX, REFRESH_EVERY, REJECTION_MAX, SEATS_MAX, SILENCE_MAX, STRANGER_HEARD, STRANGERS_MAX,
};
use crate::record::{Message, SnatAddress, WALKS_SINCE, Walk};
use crate::session::{DATA, Session, Unread};

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

/// The recent changes of the backends, for peers that have not seen them.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    /// The changes, by service port.
    pub moved: Arc<[(ServiceKey, BackendChange)]>,
    /// When the remaining times of these were as they are here.
    pub as_of: Duration,
}

/// The SNAT addresses of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snat {
    /// All of them.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether replies are to reach this gateway: it forwards, does not drain, and has the flows of its peers.
    pub serves: bool,
}

/// Why a datagram was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Its sender is no peer.
    Stranger,
    /// It is no datagram of this protocol, or its content is not valid.
    Malformed,
    /// It was not sealed with our key, or was changed on the way.
    Unauthentic,
    /// It belongs to no session of now: a late one, or a copy of an old one.
    NoSession,
    /// It was received before.
    Replayed,
    /// The peer speaks no version that this gateway speaks.
    Version,
    /// More arrived than a peer may send.
    RateLimited,
}

impl Rejection {
    /// The number of variants.
    pub const COUNT: usize = 7;
    /// All of them, in their order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Stranger,
        Self::Malformed,
        Self::Unauthentic,
        Self::NoSession,
        Self::Replayed,
        Self::Version,
        Self::RateLimited,
    ];

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Malformed => "malformed",
            Self::Unauthentic => "unauthentic",
            Self::NoSession => "no_session",
            Self::Replayed => "replayed",
            Self::Version => "version",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// What a hub has counted since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HubCounts {
    /// Datagrams that were sent, with those that were sent again.
    pub sent: u64,
    /// Batches that were sent again because they were not acknowledged in time.
    pub sent_again: u64,
    /// Datagrams that were used.
    pub received: u64,
    /// Messages of peers that were passed on.
    pub passed_on: u64,
    /// Messages that were lost because too many waited for a peer.
    pub lost: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Datagrams that were not used, by [`Rejection`].
    pub rejected: [u64; Rejection::COUNT],
}

/// What a peer is to this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The address is one of this gateway.
    Itself,
    /// It has not answered.
    Connecting,
    /// It speaks only these versions of the protocol.
    OtherVersion(u8, u8),
    /// Flows are shared.
    Up,
    /// Flows are shared, but messages were lost, and a walk of the tables has not repeated them yet.
    Behind,
}

impl PeerState {
    /// The word in `tidegate status` and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::Connecting => "connecting",
            Self::OtherVersion(..) => "other-version",
            Self::Up => "up",
            Self::Behind => "behind",
        }
    }
}

/// A peer for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its name, once it has answered.
    pub name: Option<String>,
    /// What it is.
    pub state: PeerState,
    /// Time since something was last heard from it.
    pub heard_ago: Option<Duration>,
    /// Messages that wait to be sent.
    pub waiting: usize,
    /// Batches that it has not acknowledged.
    pub under_way: usize,
    /// Why a datagram of it was rejected lately, since it has its state.
    pub last_rejection: Option<Rejection>,
    /// The fingerprint of the key that it seals with, once it has answered.
    pub key: Option<String>,
    /// What it has last said of its SNAT addresses.
    pub snat: Snat,
    /// How far it has sent what it knows.
    pub walk: PeerWalk,
}

/// How far a peer has sent what it knew when its session began, or when it was last asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerWalk {
    /// There is no session, or not everything has arrived.
    UnderWay,
    /// Everything has arrived.
    Complete,
    /// Its version of the protocol doesn't say. This is the age of the session.
    Unknown(Duration),
}

struct Peer {
    address: SocketAddr,
    name: Option<String>,
    is_itself: bool,
    versions: Option<(u8, u8)>,
    session: Option<Session>,
    /// What an answer to the next handshake message must repeat.
    challenge: Random,
    hello_sent: Option<Duration>,
    heard: Option<Duration>,
    /// When the gateway last had to catch up: the peer is sought as if it had just been heard.
    sought: Option<Duration>,
    hellos: Allowance,
    opens: Allowance,
    /// Since the last session began or ended: an earlier one explains nothing.
    last_rejection: Option<(Rejection, Duration)>,
    /// The key of its last handshake message.
    key: Option<SharedKey>,
    snat: Snat,
    /// The list of its SNAT addresses that is arriving.
    arriving: Snat,
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
                self.peers.push(Peer {
                    address,
                    name: None,
                    is_itself: false,
                    versions: None,
                    session: None,
                    challenge: self.entropy.random(),
                    hello_sent: None,
                    heard: None,
                    sought: None,
                    hellos: Allowance::default(),
                    opens: Allowance::default(),
                    last_rejection: None,
                    key: None,
                    snat: Snat::default(),
                    arriving: Snat::default(),
                });
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
    pub fn tell(&mut self, news: &FlowNews, now: Duration) {
        let is_relayed = matches!(news, FlowNews::Is(record) if record.is_relayed);
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
            let every = match (&peer.session, peer.heard.max(peer.sought)) {
                (Some(session), _) if session.is_confirmed => None,
                _ if peer.is_itself => Some(HELLO_SLOWLY_EVERY),
                (Some(_), _) => Some(HELLO_EVERY),
                (None, Some(heard)) if now.saturating_sub(heard) < SILENCE_MAX * 4 => Some(HELLO_EVERY),
                (None, _) => Some(HELLO_SLOWLY_EVERY),
            };
            let is_due = |every| peer.hello_sent.is_none_or(|sent| now.saturating_sub(sent) >= every);
            if every.is_some_and(is_due) {
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
        let mut all: Vec<PeerStatus> = self.peers.iter().map(|peer| peer.status(&self.config, now)).collect();
        all.sort_by_key(|peer| peer.address);
        all
    }
}

impl Snat {
    /// The messages for a peer.
    fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        let none = self.addresses.is_empty().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (last, serves) = (self.addresses.len().saturating_sub(1), self.serves);
        let all = self.addresses.iter().copied().chain(none).enumerate();
        all.map(move |(n, address)| {
            Message::Snat(SnatAddress { address, is_first: n == 0, is_last: n == last, serves })
        })
    }

    /// Adds an address of a list.
    fn add(&mut self, said: &SnatAddress) {
        if said.is_first {
            self.addresses.clear();
        }
        self.serves = said.serves;
        if !said.address.is_unspecified() && self.addresses.len() < SNAT_ADDRESSES_MAX {
            self.addresses.insert(said.address);
        }
    }
}

impl Seats {
    /// The messages for a peer, with the times that remain now.
    fn of(&self, now: Duration) -> impl Iterator<Item = Message> + '_ {
        let passed = now.saturating_sub(self.as_of);
        let (mut seats, mut left) = (0, 0);
        self.moved.iter().filter_map(move |(key, change)| {
            let change = change.after(passed)?;
            let (count, max) = match change {
                BackendChange::Moved(_) => (&mut seats, SEATS_MAX),
                BackendChange::Left(_) => (&mut left, LEFT_MAX),
            };
            *count += 1;
            (*count <= max).then_some(Message::Change(*key, change))
        })
    }
}

impl Peer {
    fn status(&self, config: &HubConfig, now: Duration) -> PeerStatus {
        let session = self.session.as_ref().filter(|session| session.is_confirmed);
        let state = match (session, self.versions) {
            _ if self.is_itself => PeerState::Itself,
            (Some(session), _) if session.sender.is_behind => PeerState::Behind,
            (Some(_), _) => PeerState::Up,
            (None, Some((oldest, newest))) if oldest > config.versions.1 || newest < config.versions.0 => {
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
