//! The thread that shares flows with other gateways. It connects a UDP socket of the host, the protocol ([`Hub`]), the
//! workers' queues of messages about flows, and the controller, which imports changes of backends that this gateway has
//! not seen.
//!
//! The socket belongs to the kernel: its packets pass through the tap, like any other program's packets. The thread
//! waits for datagrams for at most [`RECEIVE_WAIT_MAX`], and then serves both sides.
//!
//! Invariant: nothing here waits for a worker or for a peer. If the socket fails, flows are forwarded but not shared,
//! and the status reports the failure.

mod interruptions;
mod received_changes;
mod socket;
mod status;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use interruptions::Interruptions;
pub(super) use received_changes::ApplyChanges;
use received_changes::ReceivedChanges;
use socket::{FlowSocket, is_own};
use status::Fingerprints;
pub(crate) use status::{Gap, Shown};
use tidegate_cluster::FlowPeers;
use tidegate_dataplane::flow_memory::Restoration;
use tidegate_dataplane::gateway::Dataplane;
use tidegate_dataplane::worker::Sharing;
use tidegate_model::config::{FlowSharing, FlowSharingConfig, FlowSharingKey, GatewayConfig};
use tidegate_pipeline::pipeline::{ImportOutcome, SharedFlows};
use tidegate_sharing::hub::{BackendChanges, VERSIONS};
use tidegate_sharing::message::{Message, Walk};
use tidegate_sharing::{Hub, HubConfig, Keys, PeerState, PeerStatus, Rejection, SharedKey, SystemEntropy};
use tidegate_spec::BackendChange;
use tokio::sync::watch;

use super::catch_up::{CatchUp, Observation, Step};
use super::found_peers::FoundPeers;
use super::recent_changes::RecentChanges;
use super::snat_exchange::{SnatExchange, SnatLinks};

/// The longest wait for a datagram, and so the longest delay of messages from workers.
const RECEIVE_WAIT_MAX: Duration = Duration::from_millis(5);
/// How many datagrams are received per loop iteration.
const DATAGRAMS_PER_ITERATION: usize = 512;
/// How many messages of each worker are sent per loop iteration.
const MESSAGES_PER_ITERATION: usize = 4_096;
/// How often the state is shown and changes of peers are logged.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// The running thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct FlowExchange {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<Mutex<Shown>>,
    /// The thread owns the sender.
    lives: watch::Receiver<()>,
}

impl FlowExchange {
    /// Opens the socket and starts the thread; `None` if the configuration shares no flows. `can_import` returns
    /// whether the workers have the Services: until then, messages of peers wait. `changes` come from the controller,
    /// and `apply` passes it the changes of peers. `found` will contain the gateways of the cluster if peers are
    /// discovered. `snat` connects the thread to what moves SNAT addresses.
    pub(super) fn start(
        config: &GatewayConfig,
        dataplane: &Dataplane,
        can_import: impl Fn() -> bool + Send + 'static,
        (changes, apply): (&Arc<RecentChanges>, ApplyChanges),
        found: &Arc<OnceLock<FlowPeers>>,
        (new_keys, snat): (watch::Receiver<Option<Keys>>, SnatLinks),
    ) -> anyhow::Result<Option<Self>> {
        let settings = &config.flow_sharing;
        let (mode, flows) = match settings.mode {
            FlowSharing::None => return Ok(None),
            FlowSharing::InFlux => ("in-flux", SharedFlows::InFlux),
            FlowSharing::Nat => ("nat", SharedFlows::Nat),
        };
        let keys = keys(settings).context("flowSharing.key is missing")?;
        let (listen, finds_peers) = (config.flow_sharing_socket(), config.finds_flow_peers());
        let socket = FlowSocket::open(listen)
            .with_context(|| format!("flowSharing.listen: cannot listen on {listen}"))?;
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
            hub,
            sharing,
            shown: Arc::clone(&shown),
            started: Instant::now(),
            lost: 0,
            trouble: None,
            ability: Ability { can_import: Box::new(can_import), could_import: false },
            interruptions: Interruptions::default(),
            catch_up: CatchUp::new(finds_peers, keeps_flows),
            found: finds_peers.then(|| FoundPeers::new(listen, Arc::clone(found))),
            changes: Arc::clone(changes),
            received: ReceivedChanges::new(apply),
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
            tracing::info!(mode, %listen, "sharing flows with discovered gateways");
        } else {
            tracing::info!(mode, %listen, peers = settings.peers.len(), "sharing flows with other gateways");
        }
        Ok(Some(Self { stop, thread: Some(thread), shown, lives }))
    }

    /// A channel whose sender is dropped when the thread ends.
    pub(super) fn lives(&self) -> watch::Receiver<()> {
        self.lives.clone()
    }

    /// Its state for display.
    pub(super) fn shown(&self) -> Arc<Mutex<Shown>> {
        Arc::clone(&self.shown)
    }
}

impl Drop for FlowExchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within one iteration. A panic there has been reported.
            let _ = thread.join();
        }
    }
}

/// The keys of a configuration; `None` without one.
pub(super) fn keys(config: &FlowSharingConfig) -> Option<Keys> {
    let key = |key: &FlowSharingKey| SharedKey::new(key.0);
    Some(Keys { own: config.key.as_ref().map(key)?, accepted: config.accept_key.as_ref().map(key) })
}

/// Whether the workers can import messages of peers.
struct Ability {
    /// Whether the workers have the Services.
    can_import: Box<dyn Fn() -> bool + Send>,
    /// Whether the workers have ever had the Services, which they then keep.
    could_import: bool,
}

impl Ability {
    /// Whether the workers have the Services for the first time.
    fn begins(&mut self) -> bool {
        let begins = !self.could_import && (self.can_import)();
        self.could_import |= begins;
        begins
    }
}

/// The state of the thread.
struct Exchange {
    ability: Ability,
    catch_up: CatchUp,
    interruptions: Interruptions,
    /// The gateways of the cluster, if peers are discovered.
    found: Option<FoundPeers>,
    /// Changes of backends to send to peers.
    changes: Arc<RecentChanges>,
    received: ReceivedChanges,
    /// The keys of the configuration.
    keys: watch::Receiver<Option<Keys>>,
    /// Which gateway owns which SNAT addresses, if NAT flows are shared.
    snat: Option<SnatExchange>,
    socket: FlowSocket,
    hub: Hub,
    sharing: Arc<Sharing>,
    shown: Arc<Mutex<Shown>>,
    started: Instant,
    /// Messages that workers had lost at the last iteration.
    lost: u64,
    trouble: Option<String>,
}

impl Exchange {
    fn run(mut self, stop: &AtomicBool) {
        let mut wait = Duration::ZERO;
        let mut shown = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let is_more = self.serve_once(wait);
            wait = if is_more { Duration::ZERO } else { RECEIVE_WAIT_MAX };
            if self.interruptions.was_interrupted || shown.elapsed() >= SHOWN_EVERY {
                shown = Instant::now();
                self.show();
            }
        }
    }

    /// Serves the socket and the workers once. Returns whether there is more work right now.
    fn serve_once(&mut self, wait: Duration) -> bool {
        self.socket.wait(wait);
        let mut trouble = None;
        self.interruptions.notice(&mut self.hub, self.started.elapsed());
        let is_full = self.receive(&mut trouble);
        let now = self.started.elapsed();
        let walked = self.sharing.walked();
        let (hub, snat) = (&mut self.hub, &mut self.snat);
        let is_more = self.sharing.drain_exports(MESSAGES_PER_ITERATION, |update| {
            if let Some(snat) = snat {
                snat.record_use(&update, now);
            }
            hub.enqueue(&update, now);
        });
        if !is_more {
            hub.walked(walked);
        }
        let lost = self.sharing.lost();
        if lost != std::mem::replace(&mut self.lost, lost) {
            hub.request_refresh();
        }
        if self.ability.begins() {
            // The refresh reports which SNAT addresses the restored flows use.
            hub.request_refresh();
        }
        if self.ability.could_import {
            let (sharing, received) = (&self.sharing, &mut self.received);
            let has_caught_up = self.catch_up.was_done();
            hub.deliver(|message| match message {
                // Flows wait until the changes of their backends are applied.
                Message::Flow(update) => !received.is_pending() && sharing.import(update),
                // This gateway has already forwarded flows by the weights that it knew, and keeps using these.
                Message::Change(_, BackendChange::WeightChanged(_)) if has_caught_up => true,
                Message::Change(service, change) => received.add(*service, *change),
                // The hub has processed it.
                Message::Walk(_) => true,
                // The hub stores it.
                Message::Snat(_) => true,
            });
            received.pass_on();
        }
        let socket = &self.socket;
        hub.poll(now, |to, datagram| socket.send(to, datagram, &mut trouble));
        self.sharing.set_walks(hub.walks(), hub.has_capacity(now));
        if trouble.is_some() {
            self.trouble = trouble;
        }
        is_full || is_more
    }

    /// Receives waiting datagrams, up to a limit. Returns whether there may be more.
    fn receive(&mut self, trouble: &mut Option<String>) -> bool {
        let (socket, hub, started) = (&self.socket, &mut self.hub, self.started);
        socket.receive(DATAGRAMS_PER_ITERATION, trouble, |from, datagram, trouble| {
            hub.receive(from, datagram, started.elapsed(), |to, answer| socket.send(to, answer, trouble));
        })
    }

    /// Publishes the state for display, and logs peers that have changed.
    fn show(&mut self) {
        let now = self.started.elapsed();
        let keys = self.use_inputs();
        let peers = self.hub.status(now);
        let Known { is_complete, absent, faults } = self.known();
        let expected: Vec<PeerStatus> =
            peers.iter().filter(|peer| !absent.contains(&peer.address)).cloned().collect();
        let can_import = (self.ability.can_import)();
        let shared = Arc::clone(&self.shown);
        let mut shown = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let was_interrupted = std::mem::take(&mut self.interruptions.was_interrupted);
        let catches_up = self.catches_up(
            is_complete.then_some(&expected),
            was_interrupted || shown.gap.was_interrupted,
            can_import,
        );
        let was_paused = std::mem::take(&mut self.interruptions.was_paused);
        let is_cut_off = catches_up && (shown.gap.is_cut_off || was_paused || !can_import);
        let (state, resumed) = ((catches_up, is_cut_off), self.interruptions.resumed);
        let snat = self.snat.as_mut().map(|snat| snat.look(&mut self.hub, &peers, state, resumed, now));
        log_changes(&shown.peers, &peers, &absent);
        let trouble = self.trouble.take();
        if let Some(trouble) = trouble.as_ref().filter(|_| shown.trouble.is_none()) {
            tracing::warn!(error = trouble, "cannot share flows with other gateways");
        }
        *shown = Shown {
            peers,
            counts: *self.hub.counts(),
            lost_at_workers: self.lost,
            outcomes: self.sharing.outcomes(),
            trouble,
            gap: Gap { catches_up, was_interrupted: false, is_cut_off },
            without_replies: snat.unwrap_or_default(),
            finds_peers: shown.finds_peers,
            absent,
            faults,
            mode: shown.mode,
            keys,
        };
    }

    /// Gives the hub the latest keys, changes of backends, and gateways of the cluster. Returns the fingerprints of the
    /// keys.
    fn use_inputs(&mut self) -> Fingerprints {
        let keys = self.keys.borrow_and_update().clone();
        let fingerprints = keys.as_ref().map(Fingerprints::of).unwrap_or_default();
        if let Some(keys) = keys {
            self.hub.set_keys(keys);
        }
        if let Some((moved, at)) = self.changes.take() {
            let as_of = at.saturating_duration_since(self.started);
            self.hub.set_backend_changes(BackendChanges { changes: moved.into(), as_of });
        }
        if let Some(found) = &mut self.found {
            found.look(&mut self.hub);
        }
        fingerprints
    }

    /// What is known about the other gateways.
    fn known(&self) -> Known {
        match &self.found {
            Some(found) => {
                Known { is_complete: found.is_known(), absent: found.absent(), faults: found.faults() }
            }
            None => {
                let faults = self.hub.strangers().map(|(address, name)| {
                    format!("gateway {name} sends from {address}, which is not in flowSharing.peers")
                });
                Known { is_complete: true, absent: BTreeSet::new(), faults: faults.collect() }
            }
        }
    }
}

impl Exchange {
    /// Whether the gateway still lacks flows of the peers that should answer.
    fn catches_up(
        &mut self,
        expected: Option<&Vec<PeerStatus>>,
        was_interrupted: bool,
        can_import: bool,
    ) -> bool {
        let now = self.started.elapsed();
        if was_interrupted {
            self.catch_up.interrupt();
        }
        let outcomes = self.sharing.outcomes();
        let unknown = [ImportOutcome::UnknownService, ImportOutcome::UnknownBackend];
        let seen = Observation {
            peers: expected.map(Vec::as_slice),
            passed_on: self.hub.counts().delivered,
            refused: unknown.iter().map(|&why| outcomes[why as usize]).sum(),
            has_applied_all: !self.received.is_pending() && self.sharing.has_imported_all(),
            can_import,
        };
        let step = self.catch_up.step(&seen, now);
        match step {
            Step::Connect => {
                self.hub.reconnect(now);
                // After the start, peers send everything on their own, and are queried later.
                if self.catch_up.was_done() {
                    self.hub.request(Walk::Check);
                }
            }
            Step::Recheck => self.hub.request(Walk::Check),
            Step::Requery => self.hub.request(Walk::Again),
            Step::Wait | Step::Done => {}
        }
        step != Step::Done
    }
}

/// What is known about the other gateways.
struct Known {
    /// Whether all of them are known.
    is_complete: bool,
    /// Gateways that need not answer.
    absent: BTreeSet<SocketAddr>,
    /// Why others cannot be peers, as text for display.
    faults: Vec<String>,
}

/// Logs the peers whose state has changed.
fn log_changes(before: &[PeerStatus], peers: &[PeerStatus], absent: &BTreeSet<SocketAddr>) {
    for peer in peers {
        let was = before.iter().find(|one| one.address == peer.address).map(|one| one.state);
        if was == Some(peer.state) {
            continue;
        }
        let (address, name) = (peer.address, peer.name.as_deref().unwrap_or("unknown"));
        match peer.state {
            PeerState::Up | PeerState::Itself => {
                tracing::info!(peer = %address, name, state = peer.state.as_str(), "peer changed state");
            }
            PeerState::Connecting if absent.contains(&peer.address) => {
                tracing::info!(peer = %address, name, "peer has stopped or sends no heartbeat");
            }
            _ => tracing::warn!(
                peer = %address,
                name,
                state = peer.state.as_str(),
                rejected = peer.last_rejection.map_or("nothing", Rejection::as_str),
                "peer changed state: connections may break if it takes over"
            ),
        }
    }
}
