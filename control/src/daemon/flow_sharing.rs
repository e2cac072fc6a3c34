//! The thread that exchanges messages with other gateways: a UDP socket of the host, the protocol ([`Hub`]), the queues of the
//! workers for messages about flows, and the controller for changes of backends that this gateway has not seen.
//!
//! The socket belongs to the kernel: its packets pass through the tap like those of any other program of the host. The
//! thread waits for datagrams at most [`TURN`] at a time, and then serves both sides.
//!
//! Invariant: nothing here waits for a worker or for a peer. If the socket fails, flows are forwarded as without sharing,
//! and the status says so.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_cluster::FlowPeers;
use tidegate_dataplane::flow_memory::Restoration;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_dataplane::worker::Sharing;
use tidegate_model::config::{FlowSharing, FlowSharingConfig, FlowSharingKey, GatewayConfig};
use tidegate_pipeline::pipeline::{Learned, SharedFlows};
use tidegate_sharing::hub::{Seats, VERSIONS};
use tidegate_sharing::limits::{LEFT_MAX, SEATS_MAX};
use tidegate_sharing::record::{Message, Walk};
use tidegate_sharing::{
    Hub, HubConfig, HubCounts, Keys, PeerState, PeerStatus, Rejection, SharedKey, SystemEntropy,
    limits::DATAGRAM_MAX,
};
use tidegate_spec::{BackendChange, ServiceKey};
use tokio::sync::{oneshot, watch};

use super::catch_up::{CatchUp, Seen, Step};
use super::found_peers::FoundPeers;
use super::moved_seats::{Moved, MovedSeats};
use super::snat_exchange::{SnatExchange, SnatLinks};
use crate::telemetry::FlowSharingSample;

/// The longest wait for a datagram: messages of workers wait at most this long.
const TURN: Duration = Duration::from_millis(5);
/// Datagrams that are received in one turn.
const DATAGRAMS_PER_TURN: usize = 512;
/// Messages of each worker that are taken in one turn.
const MESSAGES_PER_TURN: usize = 4_096;
/// Bytes that may wait at the socket in each direction.
const SOCKET_BUFFER: usize = 4 << 20;
/// How often the state is shown and changes of peers are logged.
const SHOWN_EVERY: Duration = Duration::from_millis(200);
/// If a turn is later than this, the process or its machine was paused: peers may have given it up, and datagrams are lost.
const PAUSE: Duration = Duration::from_secs(1);

/// What is shown of the exchange.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// `flowSharing.mode`.
    pub(crate) mode: &'static str,
    /// The fingerprint of `flowSharing.key`.
    pub(crate) key: String,
    /// The fingerprint of `flowSharing.acceptKey`.
    pub(crate) accepted_key: Option<String>,
    /// All peers.
    pub(crate) peers: Vec<PeerStatus>,
    /// Whether the peers are found by their `GatewayStatus`.
    pub(crate) finds_peers: bool,
    /// The found peers that need not answer: they have stopped, or have no heartbeat.
    pub(crate) absent: BTreeSet<SocketAddr>,
    /// Why other gateways cannot be peers, as text for display.
    pub(crate) faults: Vec<String>,
    /// What the protocol has counted.
    pub(crate) counts: HubCounts,
    /// Messages that workers could not hand over.
    pub(crate) lost_at_workers: u64,
    /// What became of the messages of other gateways, by [`Learned`].
    pub(crate) outcomes: [u64; Learned::COUNT],
    /// Why datagrams cannot be sent or received, if so.
    pub(crate) trouble: Option<String>,
    /// Whether the gateway has started or was interrupted, and has not got the flows of its peers yet.
    pub(crate) catches_up: bool,
    /// Whether it has not forwarded since the state was last shown, so that it must catch up again.
    pub(super) was_interrupted: bool,
    /// Whether it catches up because it has started, did not forward or was paused, so that other gateways may serve its
    /// VIPs; not if it has only lost its peers.
    pub(super) is_cut_off: bool,
    /// SNAT addresses of other gateways that flows use here although no reply to them arrives.
    pub(crate) without_replies: Vec<IpAddr>,
}

impl Shown {
    fn at_start(mode: &'static str, keys: &Keys, peers: Vec<PeerStatus>, finds_peers: bool) -> Self {
        Self {
            mode,
            key: keys.own.fingerprint(),
            accepted_key: keys.accepted.as_ref().map(SharedKey::fingerprint),
            peers,
            finds_peers,
            absent: BTreeSet::new(),
            faults: Vec::new(),
            counts: HubCounts::default(),
            lost_at_workers: 0,
            outcomes: [0; Learned::COUNT],
            trouble: None,
            catches_up: true,
            was_interrupted: false,
            is_cut_off: true,
            without_replies: Vec::new(),
        }
    }

    /// The same for metrics.
    pub(crate) fn sample(&self) -> FlowSharingSample {
        let others = self.expected();
        let peer = |peer: &PeerStatus| {
            let heard = peer.heard_ago.map(|ago| ago.as_secs_f64());
            (peer.address.to_string(), peer.state == PeerState::Up, peer.waiting, heard)
        };
        let counts = &self.counts;
        FlowSharingSample {
            peers: others.map(peer).collect(),
            datagrams: (counts.sent, counts.sent_again, counts.received),
            rejected: Rejection::ALL.map(|why| (why.as_str(), counts.rejected[why as usize])).into(),
            learned: Learned::ALL.map(|result| (result.as_str(), self.outcomes[result as usize])).into(),
            lost: [("worker", self.lost_at_workers), ("peer", counts.lost)],
        }
    }

    /// The peers that should answer.
    fn expected(&self) -> impl Iterator<Item = &PeerStatus> {
        let is_expected = |peer: &&PeerStatus| {
            peer.state == PeerState::Up || peer.state != PeerState::Itself && !self.is_absent(peer)
        };
        self.peers.iter().filter(is_expected)
    }

    /// Whether a peer need not answer, and does not.
    pub(crate) fn is_absent(&self, peer: &PeerStatus) -> bool {
        peer.state == PeerState::Connecting && self.absent.contains(&peer.address)
    }

    /// Why connections may break if another gateway takes over, as text for display; empty if there is no reason.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let mut troubles: Vec<String> =
            self.trouble.iter().map(|why| format!("flow sharing: {why}")).collect();
        troubles.extend(self.faults.iter().map(|fault| format!("flow sharing: {fault}")));
        let others: Vec<&PeerStatus> = self.expected().collect();
        if others.is_empty() {
            let found = if self.finds_peers {
                "has a GatewayStatus with the address of a peer"
            } else {
                "is configured as a peer"
            };
            troubles.push(format!("flow sharing: no other gateway {found}"));
        }
        for peer in others {
            let name = peer.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
            let why = match peer.state {
                PeerState::Itself | PeerState::Up => continue,
                PeerState::Behind => "more flows have changed than it takes".to_owned(),
                PeerState::OtherVersion(oldest, newest) => {
                    let (own_oldest, own_newest) = VERSIONS;
                    format!(
                        "it speaks versions {oldest} to {newest} of the protocol, this gateway {own_oldest} to {own_newest}"
                    )
                }
                PeerState::Connecting => match peer.last_rejection {
                    Some(why) => format!("no session; its last datagram was rejected: {}", why.as_str()),
                    None => "it does not answer".to_owned(),
                },
            };
            troubles.push(format!("flow sharing: peer {}{name}: {why}", peer.address));
        }
        let unled = self.without_replies.iter().map(|address| {
            format!(
                "flow sharing: connections that came from another gateway use its SNAT address {address}, and no reply to it \
                 arrives here: announce it (announce.bgp), or route it to this gateway"
            )
        });
        troubles.extend(unled);
        troubles
    }
}

/// The running exchange. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct FlowExchange {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<Mutex<Shown>>,
    /// The thread owns its sender.
    lives: watch::Receiver<()>,
}

impl FlowExchange {
    /// Opens the socket and starts the thread; `None` if the configuration shares no flows. `is_able` tells whether the
    /// workers have the Services: until then, messages of peers wait. `seats` are the controller's, and `teach` gives
    /// it those of others. `found` will have the gateways of the cluster, if peers are found there. `snat` are the connections
    /// to what moves SNAT addresses.
    pub(super) fn start(
        config: &GatewayConfig,
        dataplane: &Dataplane,
        is_able: impl Fn() -> bool + Send + 'static,
        (seats, teach): (&Arc<MovedSeats>, Teach),
        found: &Arc<OnceLock<FlowPeers>>,
        (new_keys, snat): (watch::Receiver<Option<Keys>>, SnatLinks),
    ) -> anyhow::Result<Option<Self>> {
        let settings = &config.flow_sharing;
        let (mode, flows) = match settings.mode {
            FlowSharing::None => return Ok(None),
            FlowSharing::InFlux => ("in-flux", SharedFlows::InFlux),
            FlowSharing::Nat => ("nat", SharedFlows::Nat),
        };
        let keys = keys(settings).context("flowSharing.key: there is none")?;
        let (listen, finds_peers) = (config.flow_sharing_socket(), config.finds_flow_peers());
        let socket =
            open(listen).with_context(|| format!("flowSharing.listen: cannot listen on {listen}"))?;
        let hub_config = HubConfig {
            name: config.name.clone(),
            keys: keys.clone(),
            rate_max: settings.rate_max,
            versions: VERSIONS,
            is_own,
        };
        let mut hub = Hub::new(hub_config, Box::new(SystemEntropy::new()));
        hub.set_peers(&settings.peers);
        let sharing = dataplane.share_flows(flows, listen.port());
        let keeps_flows = dataplane.restoration().is_some_and(|earlier| !Restoration::is_done(earlier));
        let shown = Shown::at_start(mode, &keys, hub.status(Duration::ZERO), finds_peers);
        let shown = Arc::new(Mutex::new(shown));
        let stop = Arc::new(AtomicBool::new(false));
        let exchange = Exchange {
            socket,
            is_v6: listen.is_ipv6(),
            hub,
            sharing,
            shown: Arc::clone(&shown),
            started: Instant::now(),
            lost: 0,
            trouble: None,
            is_able: Box::new(is_able),
            was_able: false,
            turned: Duration::ZERO,
            resumed: Duration::ZERO,
            was_up: false,
            was_interrupted: false,
            was_paused: false,
            catch_up: CatchUp::new(finds_peers, keeps_flows),
            found: finds_peers.then(|| FoundPeers::new(listen, Arc::clone(found))),
            seats: Arc::clone(seats),
            learning: Learning { teach, learnt: Vec::new(), applied: None },
            keys: new_keys,
            snat: (flows == SharedFlows::Nat).then(|| SnatExchange::new(config.name.clone(), snat)),
        };
        let (alive, lives) = watch::channel(());
        let thread = std::thread::Builder::new()
            .name("tg-sharing".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    exchange.run(&stop);
                    drop(alive);
                }
            })
            .context("cannot start the thread that shares flows")?;
        if finds_peers {
            tracing::info!(mode, %listen, "sharing flows with the gateways that have a GatewayStatus");
        } else {
            tracing::info!(mode, %listen, peers = settings.peers.len(), "sharing flows with other gateways");
        }
        Ok(Some(Self { stop, thread: Some(thread), shown, lives }))
    }

    /// A channel whose sender is dropped when the thread ends.
    pub(super) fn lives(&self) -> watch::Receiver<()> {
        self.lives.clone()
    }

    /// What is shown of it.
    pub(super) fn shown(&self) -> Arc<Mutex<Shown>> {
        Arc::clone(&self.shown)
    }
}

impl Drop for FlowExchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within a turn. A panic there has been reported.
            let _ = thread.join();
        }
    }
}

/// The keys of a configuration; `None` without one.
pub(super) fn keys(config: &FlowSharingConfig) -> Option<Keys> {
    let key = |key: &FlowSharingKey| SharedKey::new(key.0);
    Some(Keys { own: config.key.as_ref().map(key)?, accepted: config.accept_key.as_ref().map(key) })
}

/// Whether an address is one of this host: the kernel lets a socket have it.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn open(listen: SocketAddr) -> std::io::Result<UdpSocket> {
    let domain = socket2::Domain::for_address(listen);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if listen.is_ipv6() {
        socket.set_only_v6(!listen.ip().is_unspecified())?;
    }
    // The kernel may allow less.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&listen.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The state of the thread.
struct Exchange {
    /// Whether the workers have the Services.
    is_able: Box<dyn Fn() -> bool + Send>,
    /// Whether they had them once: they keep them from then on.
    was_able: bool,
    catch_up: CatchUp,
    /// When the last turn was.
    turned: Duration,
    /// When the process last continued after a pause.
    resumed: Duration,
    /// Whether there was a session with any peer in the last turn.
    was_up: bool,
    /// Whether the gateway may have missed messages since the state was last shown.
    was_interrupted: bool,
    /// Whether the process was paused since then.
    was_paused: bool,
    /// The gateways of the cluster, if peers are found there.
    found: Option<FoundPeers>,
    /// Changes of backends that peers are told.
    seats: Arc<MovedSeats>,
    learning: Learning,
    /// The keys of the configuration.
    keys: watch::Receiver<Option<Keys>>,
    /// Who has which SNAT addresses, if NAT flows are shared.
    snat: Option<SnatExchange>,
    socket: UdpSocket,
    is_v6: bool,
    hub: Hub,
    sharing: Arc<Sharing>,
    shown: Arc<Mutex<Shown>>,
    started: Instant,
    /// Messages that workers had lost in the last turn.
    lost: u64,
    trouble: Option<String>,
}

impl Exchange {
    fn run(mut self, stop: &AtomicBool) {
        let mut wait = Duration::ZERO;
        let mut shown = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let is_more = self.turn(wait);
            wait = if is_more { Duration::ZERO } else { TURN };
            if self.was_interrupted || shown.elapsed() >= SHOWN_EVERY {
                shown = Instant::now();
                self.show();
            }
        }
    }

    /// Serves the socket and the workers once. Returns whether there is more to do at once.
    fn turn(&mut self, wait: Duration) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        // A signal or an error of the wait only makes the turn shorter.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        let mut trouble = None;
        self.notice_interruptions();
        let is_full = self.receive(&mut trouble);
        let now = self.started.elapsed();
        let walked = self.sharing.walked();
        let (hub, snat) = (&mut self.hub, &mut self.snat);
        let is_more = self.sharing.take_told(MESSAGES_PER_TURN, |news| {
            if let Some(snat) = snat {
                snat.note(&news, now);
            }
            hub.tell(&news, now);
        });
        if !is_more {
            hub.walked(walked);
        }
        let lost = self.sharing.lost();
        if lost != std::mem::replace(&mut self.lost, lost) {
            hub.was_told_too_little();
        }
        if !self.was_able && (self.is_able)() {
            self.was_able = true;
            // It shows which SNAT addresses the restored flows use.
            hub.was_told_too_little();
        }
        if self.was_able {
            let (sharing, learning) = (&self.sharing, &mut self.learning);
            let has_caught_up = self.catch_up.was_over();
            hub.pass_on(|message| match message {
                // The flows of backends that have left follow these.
                Message::Flow(news) => !learning.is_under_way() && sharing.learn(news),
                // This gateway has already sent flows by what it knew, and stays with that.
                Message::Change(_, BackendChange::Moved(_)) if has_caught_up => true,
                Message::Change(service, change) => learning.learn(*service, *change),
                // The hub has used it.
                Message::Walk(_) => true,
                // The hub keeps it.
                Message::Snat(_) => true,
            });
            learning.pass_on();
        }
        let (socket, is_v6) = (&self.socket, self.is_v6);
        hub.poll(now, |to, datagram| send(socket, is_v6, to, datagram, &mut trouble));
        self.sharing.set_walks(hub.walks(), hub.has_room(now));
        if trouble.is_some() {
            self.trouble = trouble;
        }
        is_full || is_more
    }

    /// Notices a pause of the process, and the loss of the last session. Sessions that peers have ended during a pause end
    /// before anything is received.
    fn notice_interruptions(&mut self) {
        let now = self.started.elapsed();
        let paused = now.saturating_sub(std::mem::replace(&mut self.turned, now));
        self.hub.end_silent(now);
        let was_up = std::mem::replace(&mut self.was_up, self.hub.is_up());
        let lost_all = was_up && !self.was_up;
        if paused > PAUSE {
            self.resumed = now;
            tracing::warn!(?paused, "the process was paused: importing the flows of other gateways again");
        }
        self.was_paused |= paused > PAUSE;
        self.was_interrupted |= paused > PAUSE || lost_all;
    }

    /// Receives the datagrams that wait, up to a limit. Returns whether there may be more.
    fn receive(&mut self, trouble: &mut Option<String>) -> bool {
        let mut buffer = [0; DATAGRAM_MAX + 1];
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    let now = self.started.elapsed();
                    let (socket, is_v6) = (&self.socket, self.is_v6);
                    self.hub.receive(from, &mut buffer[..length], now, |to, datagram| {
                        send(socket, is_v6, to, datagram, trouble);
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // An ICMP error about an earlier datagram: the peer's program does not run.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    *trouble = Some(format!("cannot receive: {error}"));
                    return false;
                }
            }
        }
        true
    }

    /// Shows the state, and logs peers that have changed.
    fn show(&mut self) {
        let now = self.started.elapsed();
        let keys = self.keys.borrow_and_update().clone();
        let (key, accepted_key) = match &keys {
            Some(keys) => (keys.own.fingerprint(), keys.accepted.as_ref().map(SharedKey::fingerprint)),
            None => Default::default(),
        };
        if let Some(keys) = keys {
            self.hub.set_keys(keys);
        }
        if let Some((moved, at)) = self.seats.take() {
            let as_of = at.saturating_duration_since(self.started);
            self.hub.set_seats(Seats { moved: moved.into(), as_of });
        }
        if let Some(found) = &mut self.found {
            found.look(&mut self.hub);
        }
        let peers = self.hub.status(now);
        let (is_known, absent, faults) = match &self.found {
            Some(found) => (found.is_known(), found.absent(), found.faults()),
            None => {
                let faults = self.hub.strangers().map(|(address, name)| {
                    format!("gateway {name} sends from {address}, which is not in flowSharing.peers")
                });
                (true, BTreeSet::new(), faults.collect())
            }
        };
        let expected: Vec<PeerStatus> =
            peers.iter().filter(|peer| !absent.contains(&peer.address)).cloned().collect();
        let is_able = (self.is_able)();
        let shared = Arc::clone(&self.shown);
        let mut shown = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let was_interrupted = std::mem::take(&mut self.was_interrupted);
        let catches_up =
            self.catches_up(is_known.then_some(&expected), was_interrupted || shown.was_interrupted, is_able);
        let was_paused = std::mem::take(&mut self.was_paused);
        let is_cut_off = catches_up && (shown.is_cut_off || was_paused || !is_able);
        let state = (catches_up, is_cut_off);
        let snat = self.snat.as_mut().map(|snat| snat.look(&mut self.hub, &peers, state, self.resumed, now));
        for peer in &peers {
            let before = shown.peers.iter().find(|one| one.address == peer.address).map(|one| one.state);
            if before == Some(peer.state) {
                continue;
            }
            let (address, name) = (peer.address, peer.name.as_deref().unwrap_or("unknown"));
            match peer.state {
                PeerState::Up | PeerState::Itself => {
                    tracing::info!(peer = %address, name, state = peer.state.as_str(), "peer changed its state");
                }
                PeerState::Connecting if absent.contains(&peer.address) => {
                    tracing::info!(peer = %address, name, "peer has stopped, or has no heartbeat");
                }
                _ => tracing::warn!(
                    peer = %address,
                    name,
                    state = peer.state.as_str(),
                    rejected = peer.last_rejection.map_or("nothing", Rejection::as_str),
                    "peer changed its state: connections may break if it takes over"
                ),
            }
        }
        let trouble = self.trouble.take();
        if let Some(trouble) = trouble.as_ref().filter(|_| shown.trouble.is_none()) {
            tracing::warn!(error = trouble, "cannot exchange flows with other gateways");
        }
        *shown = Shown {
            peers,
            counts: *self.hub.counts(),
            lost_at_workers: self.lost,
            outcomes: self.sharing.outcomes(),
            trouble,
            catches_up,
            was_interrupted: false,
            is_cut_off,
            without_replies: snat.unwrap_or_default(),
            finds_peers: shown.finds_peers,
            absent,
            faults,
            mode: shown.mode,
            key,
            accepted_key,
        };
    }
}

impl Exchange {
    /// Whether the gateway has not got the flows of the peers that should answer.
    fn catches_up(
        &mut self,
        expected: Option<&Vec<PeerStatus>>,
        was_interrupted: bool,
        is_able: bool,
    ) -> bool {
        let now = self.started.elapsed();
        if was_interrupted {
            self.catch_up.interrupt();
        }
        let outcomes = self.sharing.outcomes();
        let unknown = [Learned::UnknownService, Learned::UnknownBackend];
        let seen = Seen {
            peers: expected.map(Vec::as_slice),
            passed_on: self.hub.counts().passed_on,
            refused: unknown.iter().map(|&why| outcomes[why as usize]).sum(),
            has_taken_all: !self.learning.is_under_way() && self.sharing.has_learned_all(),
            is_able,
        };
        let step = self.catch_up.step(&seen, now);
        match step {
            Step::Seeks => {
                self.hub.seek(now);
                self.hub.ask(Walk::Check);
            }
            Step::Checks => self.hub.ask(Walk::Check),
            Step::AsksAgain => self.hub.ask(Walk::Again),
            Step::Waits | Step::IsOver => {}
        }
        step != Step::IsOver
    }
}

/// Gives the controller changes of backends, and how to answer when the workers know them. Returns them if there is no room
/// at present.
pub(super) type Teach = Box<dyn Fn(Moved, oneshot::Sender<()>) -> Option<Moved> + Send>;

/// Changes of backends that peers have told, on their way to the controller.
struct Learning {
    teach: Teach,
    learnt: Moved,
    /// Answers when the workers know what the controller was told last.
    applied: Option<oneshot::Receiver<()>>,
}

impl Learning {
    /// Keeps a change for the controller. Returns false if there is no room.
    fn learn(&mut self, service: ServiceKey, change: BackendChange) -> bool {
        let has_room = self.learnt.len() < SEATS_MAX + LEFT_MAX;
        if has_room {
            self.learnt.push((service, change));
        }
        has_room
    }

    /// Tells the controller, if it has finished with what it was told before.
    fn pass_on(&mut self) {
        if let Some(applied) = &mut self.applied {
            if matches!(applied.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                return;
            }
            self.applied = None;
        }
        if self.learnt.is_empty() {
            return;
        }
        let (answer, applied) = oneshot::channel();
        match (self.teach)(std::mem::take(&mut self.learnt), answer) {
            None => self.applied = Some(applied),
            // It is tried again in the next turn.
            Some(refused) => self.learnt = refused,
        }
    }

    /// Whether the workers do not know everything yet.
    fn is_under_way(&self) -> bool {
        self.applied.is_some() || !self.learnt.is_empty()
    }
}

fn send(socket: &UdpSocket, is_v6: bool, to: SocketAddr, datagram: &[u8], trouble: &mut Option<String>) {
    let to = match to.ip() {
        IpAddr::V4(ip) if is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
        _ => to,
    };
    match socket.send_to(datagram, to) {
        // A datagram that the full socket does not take is sent again, like one that is lost.
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
        Err(error) => *trouble = Some(format!("cannot send to {to}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::snat_owners::tests::peer;

    #[test]
    fn an_address_without_replies_is_degraded_with_its_remedy() {
        let keys = Keys { own: SharedKey::new([7; 32]), accepted: None };
        let mut shown = Shown::at_start("nat", &keys, vec![peer(2, PeerState::Up, true)], false);
        assert!(shown.troubles().is_empty());
        shown.without_replies = vec![[192, 0, 2, 3].into()];
        let [trouble] = &shown.troubles()[..] else { panic!("one trouble") };
        assert!(trouble.contains("192.0.2.3") && trouble.contains("announce it (announce.bgp)"), "{trouble}");
    }
}
