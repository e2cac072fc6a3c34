//! Tests the real protocol with a simulated clock and simulated random numbers. The network between the gateways drops,
//! duplicates, delays and reorders datagrams and replays any earlier ones. Gateways restart, and the network is
//! partitioned.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_conntrack::SideState;
use tidegate_conntrack::flow_record::Walks;
use tidegate_conntrack::flow_record::{FlowName, FlowRecord, FlowUpdate};
use tidegate_spec::{BackendChange, Protocol, RemovedBackend, ServiceKey, WeightChange};
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

use crate::crypt::Keys;
use crate::crypt::{Entropy, Random, SharedKey};
use crate::hub::{BackendChanges, Hub, HubConfig, PeerState, PeerWalk, Rejection, Snat, VERSIONS};
use crate::limits::{OPENS_PER_SECOND, QUEUE_MAX, SILENCE_MAX, WEIGHT_CHANGES_MAX};
use crate::message::{Message, Walk};

/// Numbers that are all different.
struct Counted(u64);

impl Entropy for Counted {
    fn random(&mut self) -> Random {
        self.0 += 1;
        let mut random = Random::default();
        random[..8].copy_from_slice(&self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        random[8..].copy_from_slice(&self.0.to_be_bytes());
        random
    }
}

fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n as u8 + 1], 10_357))
}

/// An update of flow `n` whose value is the backend's port. The age identifies the incarnation of the gateway that sent
/// it.
fn record(n: u16, value: u16, incarnation: u32) -> FlowUpdate {
    let service = ServiceKey { vip: "203.0.113.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    let client = Endpoint { addr: Addr::v4([198, 51, 100, 7]), port: n };
    FlowUpdate::Live(FlowRecord {
        name: FlowName { service, client },
        backend: Endpoint { addr: Addr::v4([10, 0, 0, 1]), port: value },
        client: SideState::from_number(2).unwrap(),
        translation: None,
        tags: None,
        idle_ms: incarnation,
        idle_timeout: None,
        is_relayed: false,
    })
}

/// A gateway with the flows that it exports and those that it has imported.
struct Gateway {
    hub: Hub,
    flows: BTreeMap<u16, u16>,
    imported: HashMap<u16, u16>,
    /// The changes of backends that it has received.
    changes: Vec<(ServiceKey, BackendChange)>,
    /// Its process is suspended.
    is_paused: bool,
    walks: Walks,
    incarnation: u32,
    /// The incarnation of the other gateway that sent the last message.
    last_sender: u32,
    offset: Duration,
}

struct World {
    gateways: Vec<Gateway>,
    now: Duration,
    /// Datagrams in flight: arrival, sender, receiver.
    network: Vec<(Duration, usize, usize, Vec<u8>)>,
    /// Everything that was ever sent.
    sent: Vec<(usize, usize, Vec<u8>)>,
    is_cut: bool,
    incarnations: u64,
    versions: Vec<(u8, u8)>,
    keys: Vec<SharedKey>,
    is_own: fn(IpAddr) -> bool,
}

impl World {
    fn new(gateways: usize) -> Self {
        let mut world = Self {
            gateways: Vec::new(),
            now: Duration::from_secs(1),
            network: Vec::new(),
            sent: Vec::new(),
            is_cut: false,
            incarnations: 0,
            versions: vec![VERSIONS; gateways],
            is_own: |_| false,
            keys: vec![SharedKey::new([7; 32]); gateways],
        };
        for n in 0..gateways {
            let gateway = world.gateway(n, gateways);
            world.gateways.push(gateway);
        }
        world
    }

    fn gateway(&mut self, n: usize, gateways: usize) -> Gateway {
        self.incarnations += 1;
        let config = HubConfig {
            name: format!("edge-{n}"),
            keys: Keys { own: self.keys[n].clone(), accepted: None },
            rate_max: 20_000,
            versions: self.versions[n],
            is_own: self.is_own,
        };
        let mut hub = Hub::new(config, Box::new(Counted(self.incarnations << 32)));
        hub.set_peers(&(0..gateways).filter(|&other| other != n).map(address).collect::<Vec<_>>());
        let incarnation = self.incarnations as u32;
        let (flows, imported) = (BTreeMap::new(), HashMap::new());
        // Clocks differ by an hour between gateways, and between incarnations.
        let offset = Duration::from_secs(3600) * incarnation;
        Gateway {
            hub,
            flows,
            imported,
            changes: Vec::new(),
            is_paused: false,
            walks: Walks::default(),
            incarnation,
            last_sender: 0,
            offset,
        }
    }

    fn restart(&mut self, n: usize) {
        let flows = self.gateways[n].flows.clone();
        let count = self.gateways.len();
        self.gateways[n] = self.gateway(n, count);
        self.gateways[n].flows = flows;
    }

    fn enqueue(&mut self, n: usize, flow: u16, value: u16) {
        let gateway = &mut self.gateways[n];
        gateway.flows.insert(flow, value);
        gateway.hub.enqueue(&record(flow, value, gateway.incarnation), self.now + gateway.offset);
    }

    /// Advances the time. `fate` decides for each datagram whether it is lost (`None`) or delayed by some milliseconds.
    fn step(&mut self, ms: u64, mut fate: impl FnMut() -> Option<u64>) {
        self.now += Duration::from_millis(ms);
        let mut out = Vec::new();
        for at in 0..self.gateways.len() {
            if self.gateways[at].is_paused {
                continue;
            }
            let due: Vec<_> = {
                let is_due = |one: &mut (Duration, usize, usize, Vec<u8>)| one.0 <= self.now && one.2 == at;
                self.network.extract_if(.., is_due).collect()
            };
            let gateway = &mut self.gateways[at];
            let now = self.now + gateway.offset;
            let mut send = |to: SocketAddr, datagram: &[u8]| {
                let to = (0..).find(|&n| address(n) == to).unwrap();
                out.push((at, to, datagram.to_vec()));
            };
            gateway.hub.end_silent(now);
            for (_, from, _, mut datagram) in due {
                gateway.hub.receive(address(from), &mut datagram, now, &mut send);
            }
            if gateway.walks != gateway.hub.walks() {
                gateway.walks = gateway.hub.walks();
                for (&flow, &value) in &gateway.flows {
                    gateway.hub.enqueue(&record(flow, value, gateway.incarnation), now);
                }
            }
            gateway.hub.walked(gateway.walks.complete);
            gateway.hub.poll(now, &mut send);
            let (imported, last_sender) = (&mut gateway.imported, &mut gateway.last_sender);
            let changes = &mut gateway.changes;
            gateway.hub.deliver(|message| {
                let record = match message {
                    Message::Flow(FlowUpdate::Live(record)) => record,
                    Message::Flow(FlowUpdate::Gone(_)) => return true,
                    Message::Change(service, change) => {
                        changes.push((*service, *change));
                        return true;
                    }
                    Message::Walk(walk) => panic!("{walk:?} is for the hub"),
                    Message::Snat(_) => panic!("the hub keeps it"),
                };
                assert!(record.idle_ms >= *last_sender, "a message of an earlier incarnation");
                *last_sender = record.idle_ms;
                imported.insert(record.name.client.port, record.backend.port);
                true
            });
        }
        for (from, to, datagram) in out {
            if !self.is_cut
                && let Some(late) = fate()
            {
                self.network.push((self.now + Duration::from_millis(late), from, to, datagram.clone()));
            }
            self.sent.push((from, to, datagram));
        }
    }

    /// Injects a datagram that no gateway has just sent.
    fn forge(&mut self, from: usize, to: usize, mut datagram: Vec<u8>) {
        let gateway = &mut self.gateways[to];
        gateway.hub.receive(address(from), &mut datagram, self.now + gateway.offset, |_, _| ());
    }

    fn run(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 10 {
            self.step(10, || Some(1));
        }
    }

    /// Two gateways send and receive but deliver nothing.
    fn exchange(&mut self) {
        let mut out = Vec::new();
        for (at, gateway) in self.gateways.iter_mut().enumerate() {
            let now = self.now + gateway.offset;
            gateway.hub.poll(now, |_, datagram| out.push((at, datagram.to_vec())));
        }
        for (from, datagram) in out {
            self.forge(from, 1 - from, datagram);
        }
    }

    fn state(&self, at: usize, of: usize) -> PeerState {
        let gateway = &self.gateways[at];
        let all = gateway.hub.status(self.now + gateway.offset);
        all.iter().find(|peer| peer.address == address(of)).unwrap().state
    }

    fn walk(&self, at: usize, of: usize) -> PeerWalk {
        let gateway = &self.gateways[at];
        let all = gateway.hub.status(self.now + gateway.offset);
        all.iter().find(|peer| peer.address == address(of)).unwrap().walk
    }

    /// The gateway starts to forward again.
    fn catch_up(&mut self, at: usize) {
        let gateway = &mut self.gateways[at];
        gateway.hub.reconnect(self.now + gateway.offset);
        gateway.hub.request(Walk::Check);
    }

    fn rejected(&self, at: usize, why: Rejection) -> u64 {
        self.gateways[at].hub.counts().rejected[why as usize]
    }
}

#[derive(Debug, Clone)]
enum Event {
    Send {
        gateway: usize,
        flow: u16,
        value: u16,
    },
    Pass {
        ms: u64,
    },
    Cut,
    Heal,
    Restart {
        gateway: usize,
    },
    /// Repeats an earlier datagram, to its receiver or back to its sender.
    Replay {
        which: prop::sample::Index,
        back: bool,
    },
    /// A forged datagram from a peer's address.
    Forge {
        to: usize,
        bytes: Vec<u8>,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..2usize, 0..40u16, 1..100u16).prop_map(|(gateway, flow, value)| Event::Send { gateway, flow, value }),
        8 => prop_oneof![1u64..50, 1u64..1_000, Just(4_000)].prop_map(|ms| Event::Pass { ms }),
        1 => Just(Event::Cut),
        2 => Just(Event::Heal),
        1 => (0..2usize).prop_map(|gateway| Event::Restart { gateway }),
        4 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, back)| Event::Replay { which, back }),
        1 => (0..2usize, prop::collection::vec(any::<u8>(), 0..80), any::<bool>()).prop_map(|(to, mut bytes, like)| {
            if like {
                bytes.splice(0..0, *b"tgfs");
            }
            Event::Forge { to, bytes }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Once the network heals, every exported flow arrives. No message of an earlier incarnation arrives after one of a
    /// later incarnation, whatever is lost, delayed, replayed or forged.
    #[test]
    fn every_update_arrives_once_the_network_heals_and_no_stale_one_does(
        events in prop::collection::vec(event(), 1..80),
        losses in prop::collection::vec(prop::option::weighted(0.7, 0u64..60), 64),
    ) {
        let mut world = World::new(2);
        let mut fates = losses.iter().cycle();
        for event in events {
            match event {
                Event::Send { gateway, flow, value } => world.enqueue(gateway, flow, value),
                Event::Pass { ms } => {
                    for _ in 0..ms.div_ceil(10) {
                        world.step(10, || *fates.next().unwrap());
                    }
                }
                Event::Cut => world.is_cut = true,
                Event::Heal => world.is_cut = false,
                Event::Restart { gateway } => world.restart(gateway),
                Event::Replay { which, back } if !world.sent.is_empty() => {
                    let (from, to, datagram) = world.sent[which.index(world.sent.len())].clone();
                    let (from, to) = if back { (to, from) } else { (from, to) };
                    world.network.push((world.now, from, to, datagram));
                }
                Event::Replay { .. } => {}
                Event::Forge { to, bytes } => world.network.push((world.now, 1 - to, to, bytes)),
            }
        }
        world.is_cut = false;
        // The longest silence, a handshake at the slowest interval, and a walk.
        world.run(SILENCE_MAX * 2 + Duration::from_secs(8));
        for (one, other) in [(0, 1), (1, 0)] {
            prop_assert_eq!(world.state(one, other), PeerState::Up);
            let (sent, imported) = (&world.gateways[one].flows, &world.gateways[other].imported);
            for (flow, value) in sent {
                prop_assert_eq!(imported.get(flow), Some(value), "flow {} of {}", flow, one);
            }
        }
    }

    #[test]
    fn no_datagram_panics(bytes in prop::collection::vec(any::<u8>(), 0..1_300), kind in 0u8..4) {
        let mut world = World::new(2);
        world.run(Duration::from_secs(1));
        let mut bytes = bytes;
        for head in [&[][..], b"tgfs", &[b't', b'g', b'f', b's', kind, 1, 0, 0]] {
            let n = head.len().min(bytes.len());
            bytes[..n].copy_from_slice(&head[..n]);
            world.gateways[0].hub.receive(address(1), &mut bytes.clone(), world.now, |_, _| ());
        }
        world.run(Duration::from_secs(1));
        prop_assert_eq!(world.state(0, 1), PeerState::Up);
    }
}

#[test]
fn gateways_with_different_keys_share_nothing_and_show_the_reason() {
    let mut world = World::new(2);
    world.keys[1] = SharedKey::new([8; 32]);
    world.restart(1);
    world.enqueue(0, 1, 1);
    world.run(Duration::from_secs(10));
    assert_eq!((world.state(0, 1), world.state(1, 0)), (PeerState::Connecting, PeerState::Connecting));
    assert!(world.rejected(0, Rejection::Unauthentic) > 3 && world.rejected(1, Rejection::Unauthentic) > 3);
    assert!(world.gateways[1].imported.is_empty());
}

#[test]
fn peers_use_the_newest_common_version_or_report_theirs() {
    let mut world = World::new(2);
    for (first, second, expected) in [
        ((1, 1), VERSIONS, PeerState::Up),
        ((1, 2), (2, 3), PeerState::Up),
        ((1, 1), (2, 3), PeerState::OtherVersion(2, 3)),
    ] {
        world.versions = vec![first, second];
        world.restart(0);
        world.restart(1);
        world.run(Duration::from_secs(8));
        assert_eq!(world.state(0, 1), expected, "{first:?} and {second:?}");
        assert_eq!(world.rejected(0, Rejection::Version) > 0, expected != PeerState::Up);
    }
    assert_eq!(world.state(1, 0), PeerState::OtherVersion(1, 1));
}

#[test]
fn a_peer_receives_the_backend_changes_that_its_version_supports() {
    let mut world = World::new(2);
    let service = ServiceKey { vip: "203.0.113.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    let weight = |n: usize, seconds| {
        let at = SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80));
        let weight = WeightChange { backend: at, former: 1, remaining: Duration::from_secs(seconds) };
        (service, BackendChange::WeightChanged(weight))
    };
    let backend = SocketAddr::from(([10, 0, 0, 9], 80));
    let left = RemovedBackend { owner: 7, backend, remaining: Duration::from_secs(100) };
    for versions in [(1, 1), (1, 3), VERSIONS] {
        world.versions = vec![VERSIONS, versions];
        world.restart(1);
        let as_of = world.now + world.gateways[0].offset;
        // After a minute, the first change has expired.
        let weights = [weight(1, 60), weight(2, 100)]
            .into_iter()
            .chain((3..3 + WEIGHT_CHANGES_MAX).map(|n| weight(n, 3_600)));
        let moved = [(service, BackendChange::Removed(left))].into_iter().chain(weights);
        world.gateways[0].hub.set_backend_changes(BackendChanges { changes: moved.collect(), as_of });
        world.now += Duration::from_secs(60);
        world.run(Duration::from_secs(10));
        assert_eq!(world.state(0, 1), PeerState::Up);
        for walk in [world.walk(0, 1), world.walk(1, 0)] {
            assert_eq!(walk == PeerWalk::Complete, versions == VERSIONS, "{versions:?}: {walk:?}");
        }
        world.enqueue(0, 1, 1);
        world.run(Duration::from_secs(1));
        let imported = &world.gateways[1];
        assert!(imported.imported.contains_key(&1));
        let has_left = usize::from(versions == VERSIONS);
        let weights = if versions == (1, 1) { 0 } else { WEIGHT_CHANGES_MAX };
        assert_eq!(imported.changes.len(), has_left + weights, "{versions:?}: the limit applies");
        for (n, (_, change)) in imported.changes.iter().take(2).enumerate() {
            let is_left =
                matches!(change, BackendChange::Removed(one) if one.backend == backend && one.owner == 7);
            let is_weight = matches!(change, BackendChange::WeightChanged(one) if one.former == 1);
            assert!(if n < has_left { is_left } else { is_weight }, "{change:?}");
        }
        if let Some((_, first)) = imported.changes.first() {
            assert!((30..=40).contains(&first.remaining().as_secs()), "{first:?}");
        }
    }
}

#[test]
fn a_gateway_that_was_suspended_gets_everything_again_immediately() {
    let mut world = World::new(2);
    (0..10).for_each(|flow| world.enqueue(0, flow, 1));
    world.run(Duration::from_secs(8));
    assert_eq!(world.walk(1, 0), PeerWalk::Complete);
    // Its peer notices after 3 s. Until then, datagrams wait in its socket.
    world.gateways[1].is_paused = true;
    world.run(Duration::from_secs(30));
    (10..20).for_each(|flow| world.enqueue(0, flow, 1));
    world.gateways[1].is_paused = false;
    world.catch_up(1);
    world.run(Duration::from_millis(500));
    assert_eq!(world.state(1, 0), PeerState::Up);
    assert_eq!(world.walk(1, 0), PeerWalk::Complete);
    assert_eq!(world.gateways[1].imported.len(), 20);
}

#[test]
fn a_gateway_knows_when_everything_has_arrived_that_was_sent_before() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(8));
    world.is_cut = true;
    world.enqueue(0, 1, 1);
    world.run(Duration::from_secs(2));
    let walks = world.gateways[0].walks;
    world.catch_up(1);
    world.run(Duration::from_millis(100));
    assert_eq!(world.walk(1, 0), PeerWalk::InProgress, "nothing arrives");
    world.is_cut = false;
    world.run(Duration::from_secs(1));
    assert_eq!((world.walk(1, 0), world.gateways[1].imported.len()), (PeerWalk::Complete, 1));
    assert_eq!(world.gateways[0].walks, walks, "the session is still up, so no walk is needed");
    // What it has refused is sent again only by a walk.
    world.gateways[1].imported.clear();
    world.gateways[1].hub.request(Walk::Again);
    assert_eq!(world.walk(1, 0), PeerWalk::InProgress);
    world.run(Duration::from_secs(1));
    assert_eq!((world.walk(1, 0), world.gateways[1].imported.len()), (PeerWalk::Complete, 1));
    assert_eq!(world.gateways[1].hub.counts().sessions, 1);
}

#[test]
fn a_check_returns_the_changes_applied_since_the_session_started() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(8));
    let service = ServiceKey { vip: "203.0.113.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    let backend = SocketAddr::from(([10, 0, 0, 1], 80));
    let weight =
        BackendChange::WeightChanged(WeightChange { backend, former: 1, remaining: Duration::from_secs(60) });
    let as_of = world.now + world.gateways[0].offset;
    world.gateways[0].hub.set_backend_changes(BackendChanges { changes: [(service, weight)].into(), as_of });
    world.run(Duration::from_secs(1));
    assert!(world.gateways[1].changes.is_empty());
    world.gateways[1].hub.request(Walk::Check);
    world.run(Duration::from_secs(1));
    assert_eq!((world.walk(1, 0), world.gateways[1].changes.len()), (PeerWalk::Complete, 1));
}

#[test]
fn a_handshake_follows_immediately_when_a_link_returns() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(8));
    world.is_cut = true;
    world.run(Duration::from_secs(60));
    assert_eq!(world.state(1, 0), PeerState::Connecting);
    world.is_cut = false;
    world.catch_up(1);
    world.run(Duration::from_millis(100));
    assert_eq!(world.state(1, 0), PeerState::Up);
}

#[test]
fn only_a_recent_rejection_explains_the_state_of_a_peer() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(8));
    let rejection = |world: &World| {
        let gateway = &world.gateways[0];
        gateway.hub.status(world.now + gateway.offset)[0].last_rejection
    };
    let copy = world.sent.iter().rfind(|(from, ..)| *from == 1).expect("it has sent something").2.clone();
    world.forge(1, 0, copy.clone());
    assert_eq!(rejection(&world), Some(Rejection::Replayed));
    world.is_cut = true;
    world.run(Duration::from_secs(4));
    assert_eq!(
        (world.state(0, 1), rejection(&world)),
        (PeerState::Connecting, None),
        "the rejection is older than the state"
    );
    world.forge(1, 0, copy);
    assert_eq!(rejection(&world), Some(Rejection::NoSession));
    world.run(Duration::from_secs(11));
    assert_eq!(rejection(&world), None);
}

#[test]
fn a_peer_with_an_earlier_version_gets_all_but_sctp_and_affinity() {
    let mut world = World::new(2);
    for versions in [(1, 2), VERSIONS] {
        world.versions = vec![VERSIONS, versions];
        world.restart(1);
        world.run(Duration::from_secs(10));
        let gateway = &mut world.gateways[0];
        let FlowUpdate::Live(mut flow) = record(7, 80, gateway.incarnation) else { panic!("a flow") };
        flow.name.service.protocol = Protocol::Sctp;
        let FlowUpdate::Live(mut affinity) = record(0, 80, gateway.incarnation) else { panic!("a flow") };
        affinity.client = SideState::from_number(4).unwrap();
        for update in [flow, affinity] {
            gateway.hub.enqueue(&FlowUpdate::Live(update), world.now + gateway.offset);
        }
        world.enqueue(0, 8, 80);
        world.run(Duration::from_secs(1));
        let imported = &world.gateways[1].imported;
        assert!(imported.contains_key(&8), "{versions:?}");
        assert_eq!([7, 0].map(|n| imported.contains_key(&n)), [versions == VERSIONS; 2]);
    }
}

#[test]
fn gateway_that_is_its_own_peer_recognises_itself() {
    let mut world = World::new(1);
    world.is_own = |_| true;
    world.restart(0);
    world.gateways[0].hub.set_peers(&[address(0)]);
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0, 0), PeerState::Itself);
}

#[test]
fn a_dead_peer_with_reflected_datagrams_does_not_count_as_itself() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0, 1), PeerState::Up);
    // Everything that is sent to gateway 1 is reflected from its address.
    world.gateways[1].hub.set_peers(&[]);
    world.gateways[1] = world.gateway(1, 2);
    world.gateways[1].hub.set_peers(&[]);
    for _ in 0..100 {
        let before = world.sent.len();
        world.run(Duration::from_millis(100));
        let to_peer = world.sent[before..].iter().filter(|(from, to, _)| (*from, *to) == (0, 1));
        let reflected: Vec<_> = to_peer.map(|(_, _, datagram)| datagram.clone()).collect();
        for datagram in reflected {
            world.network.push((world.now, 1, 0, datagram));
        }
    }
    assert_eq!(world.state(0, 1), PeerState::Connecting);
    assert!(world.rejected(0, Rejection::Replayed) > 0);
}

#[test]
fn a_gateway_with_the_key_that_is_not_a_peer_is_listed() {
    let mut world = World::new(2);
    world.gateways[0].hub.set_peers(&[]);
    world.run(Duration::from_secs(1));
    let strangers = |world: &World| -> Vec<(SocketAddr, String)> {
        let all = world.gateways[0].hub.strangers();
        all.map(|(address, name)| (address, name.to_owned())).collect()
    };
    assert_eq!(strangers(&world), [(address(1), "edge-1".to_owned())]);
    assert_eq!(world.state(1, 0), PeerState::Connecting);
    world.gateways[0].hub.set_peers(&[address(1)]);
    assert_eq!(strangers(&world), []);
    // Without the key, an address proves nothing.
    world.gateways[0].hub.set_peers(&[]);
    world.keys[1] = SharedKey::new([8; 32]);
    world.restart(1);
    world.run(Duration::from_secs(20));
    assert_eq!(strangers(&world), []);
}

#[test]
fn peers_know_the_snat_addresses_of_a_gateway_and_whether_it_serves() {
    let mut world = World::new(2);
    let snat = |addresses: &[[u8; 4]], serves| Snat {
        addresses: addresses.iter().map(|&address| address.into()).collect(),
        serves,
    };
    let of_peer = |world: &World| {
        let status = world.gateways[1].hub.status(world.now);
        status.into_iter().find(|peer| peer.address == address(0)).expect("a peer").snat
    };
    let first = snat(&[[192, 0, 2, 12], [192, 0, 2, 13]], false);
    world.gateways[0].hub.set_snat(first.clone());
    world.run(Duration::from_secs(1));
    assert_eq!(of_peer(&world), first);
    for next in [snat(&[[192, 0, 2, 12]], true), snat(&[], true), snat(&[[192, 0, 2, 12]], false)] {
        world.gateways[0].hub.set_snat(next.clone());
        world.run(Duration::from_secs(1));
        assert_eq!(of_peer(&world), next);
    }
    // The addresses stay known after the peer is gone.
    world.is_cut = true;
    world.run(Duration::from_secs(10));
    assert_eq!(
        (world.state(1, 0), of_peer(&world)),
        (PeerState::Connecting, snat(&[[192, 0, 2, 12]], false))
    );
}

#[test]
fn the_key_can_be_changed_one_gateway_at_a_time_without_a_gap() {
    let mut world = World::new(2);
    let [old, new] = [7, 9].map(|n| SharedKey::new([n; 32]));
    let keys = |own: &SharedKey, accepted: Option<&SharedKey>| Keys {
        own: own.clone(),
        accepted: accepted.cloned(),
    };
    let steps = [keys(&old, Some(&new)), keys(&new, Some(&old)), keys(&new, None)];
    world.run(Duration::from_secs(1));
    let mut flow = 0;
    for step in steps {
        for n in 0..2 {
            world.gateways[n].hub.set_keys(step.clone());
            world.run(Duration::from_secs(1));
            for from in 0..2 {
                flow += 1;
                world.enqueue(from, flow, 1);
                world.run(Duration::from_millis(500));
                let knows = |gateway: &Gateway| {
                    gateway.imported.contains_key(&flow) || gateway.flows.contains_key(&flow)
                };
                assert!(world.gateways.iter().all(knows), "flow {flow} of gateway {from}, after gateway {n}");
            }
            let used = world.gateways[1 - n].hub.status(world.now);
            let of_changed = used.into_iter().find(|peer| peer.address == address(n)).expect("a peer");
            assert_eq!(of_changed.key, Some(step.own.fingerprint()));
        }
    }
}

#[test]
fn replays_within_a_session_are_recognized_and_do_not_disturb_it() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    world.enqueue(0, 1, 1);
    world.run(Duration::from_secs(1));
    let sessions = world.gateways.iter().map(|gateway| gateway.hub.counts().sessions).collect::<Vec<_>>();
    for (from, to, datagram) in world.sent.clone() {
        world.network.push((world.now, from, to, datagram));
        world.run(Duration::from_millis(100));
    }
    assert!(world.rejected(1, Rejection::Replayed) > 2);
    let after = world.gateways.iter().map(|gateway| gateway.hub.counts().sessions).collect::<Vec<_>>();
    assert_eq!((world.state(0, 1), world.state(1, 0), after), (PeerState::Up, PeerState::Up, sessions));
}

#[test]
fn a_restarted_peer_gets_everything_again_and_its_old_session_ends() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    (0..5_000).for_each(|flow| world.enqueue(0, flow, flow));
    world.run(Duration::from_secs(2));
    assert_eq!(world.gateways[1].imported.len(), 5_000);
    let old: Vec<_> = world.sent.clone();
    world.restart(1);
    world.run(Duration::from_secs(2));
    assert_eq!(world.gateways[1].imported.len(), 5_000, "by a complete walk of the other gateway");
    let before = world.gateways[1].hub.counts().delivered;
    for (from, to, datagram) in old {
        world.forge(from, to, datagram);
    }
    world.gateways[1].hub.deliver(|_| true);
    assert_eq!(world.gateways[1].hub.counts().delivered, before);
    assert!(world.rejected(1, Rejection::NoSession) > 50);
}

#[test]
fn a_flood_of_forged_datagrams_is_rate_limited_and_the_session_lives() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    let hello = world.sent[0].2.clone();
    for n in 0..20_000u64 {
        let mut forged = hello.clone();
        forged[8..16].copy_from_slice(&n.to_be_bytes());
        world.forge(1, 0, forged);
        let stranger = hello.clone();
        world.forge(9, 0, stranger);
    }
    // Handshakes of peers are opened at a limited rate, and those of strangers never.
    assert!(world.rejected(0, Rejection::Unauthentic) <= 5, "{}", world.rejected(0, Rejection::Unauthentic));
    assert_eq!(world.rejected(0, Rejection::Stranger), 20_000);
    // An attacker who sees the datagrams knows the number of the session, too.
    let data =
        world.sent.iter().rfind(|(from, _, datagram)| *from == 1 && datagram[4] == 2).unwrap().2.clone();
    for n in 0..u64::from(OPENS_PER_SECOND) {
        let mut forged = data.clone();
        forged[16..24].copy_from_slice(&(1_000 + n).to_be_bytes());
        world.forge(1, 0, forged);
    }
    assert!(world.rejected(0, Rejection::RateLimited) > u64::from(OPENS_PER_SECOND) / 2);
    world.enqueue(1, 3, 4);
    world.run(Duration::from_secs(2));
    assert_eq!((world.state(0, 1), world.gateways[0].imported.get(&3)), (PeerState::Up, Some(&4)));
}

#[test]
fn a_slow_peer_uses_bounded_memory_and_is_behind_until_a_walk() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    for n in 0..QUEUE_MAX as u32 + 10_000 {
        world.enqueue(0, (n % 60_000) as u16, (n / 60_000) as u16);
    }
    let peer = world.gateways[0].hub.status(world.now + world.gateways[0].offset).remove(0);
    assert_eq!((peer.state, peer.waiting), (PeerState::Behind, QUEUE_MAX));
    assert!(!world.gateways[0].hub.has_capacity(world.now + world.gateways[0].offset));
    world.run(Duration::from_secs(10));
    let counts = world.gateways[0].hub.counts();
    assert_eq!((world.state(0, 1), counts.lost), (PeerState::Up, 10_000));
    assert_eq!(world.gateways[1].imported.len(), 60_000);
    assert!(world.gateways[0].flows.iter().all(|(flow, value)| world.gateways[1].imported[flow] == *value));
}

#[test]
fn a_peer_that_delivers_nothing_delays_walks_for_a_limited_time() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    (0..40_000).for_each(|flow| world.enqueue(0, flow, flow));
    let has_capacity =
        |world: &World| world.gateways[0].hub.has_capacity(world.now + world.gateways[0].offset);
    assert!(!has_capacity(&world));
    // The peer receives but never delivers anything: it has no objects yet.
    for _ in 0..500 {
        world.now += Duration::from_millis(10);
        world.exchange();
    }
    assert!(has_capacity(&world) && world.state(0, 1) == PeerState::Up);
    assert!(world.gateways[1].imported.is_empty());
}

#[test]
fn busy_workers_slow_the_peer_down_and_lose_nothing() {
    let mut world = World::new(2);
    world.run(Duration::from_secs(1));
    (0..30_000).for_each(|flow| world.enqueue(0, flow, flow));
    let mut imported = HashMap::new();
    for _ in 0..4_000 {
        let mut space = 10;
        world.now += Duration::from_millis(5);
        world.exchange();
        world.gateways[1].hub.deliver(|message| {
            let Message::Flow(FlowUpdate::Live(record)) = message else { return true };
            if space > 0 {
                imported.insert(record.name.client.port, record.backend.port);
                space -= 1;
                return true;
            }
            false
        });
    }
    assert_eq!(imported.len(), 30_000);
}

#[test]
fn three_gateways_share_with_each_other() {
    let mut world = World::new(3);
    world.run(Duration::from_secs(1));
    for n in 0..3u16 {
        world.enqueue(usize::from(n), n, 7);
    }
    world.run(Duration::from_secs(1));
    for at in 0..3usize {
        let others: Vec<u16> = (0..3).filter(|&n| usize::from(n) != at).collect();
        assert!(others.iter().all(|n| world.gateways[at].imported.contains_key(n)));
    }
}
