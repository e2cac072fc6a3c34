//! Compares two gateways of one or two workers with a slow and simple model, over random traces of TCP in DSR modes.
//! Routers send every packet to either of them, so both see packets of a connection; packets are lost and overtake each
//! other. Both gateways see the same changes of backends, as `flowTracking: on-change` requires.
//!
//! The model stores the entries of each gateway in a map, and recent weights in another. It takes only one value from
//! the gateway: the backend that owns a hash (the choice has its own tests). The rules are those of `BackendState`,
//! `flow_state` and `docs/selection.md`.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_conntrack::flow_record::Walks;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::pipeline::{FlowNote, SharedFlows};
use tidegate_pipeline::testing::builder::{Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::lab::{self, FrameResult, Lab, ROUTER_MAC, ip, service};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, FormerWeight, ForwardingMode, Protocol, ServiceSpec,
    SnapshotSpec,
};
use tidegate_structures::hash::selection_hash;
use tidegate_wire::{proto, tcp::flags};

const IDLE_S: u64 = 400;
/// The drain timeout: how long a change is in effect.
const WINDOW_S: u64 = 100;
const VIP: &str = "203.0.113.5:80";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    Syn,
    Data,
    Fin,
    Rst,
}

impl Segment {
    fn flags(self) -> u8 {
        match self {
            Self::Syn => flags::SYN,
            Self::Data => flags::ACK,
            Self::Fin => flags::FIN | flags::ACK,
            Self::Rst => flags::RST,
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A client sends. The packet waits in the network.
    Send {
        port: u16,
        segment: Segment,
    },
    /// One of the waiting packets arrives at a gateway.
    Arrive {
        which: usize,
        gateway: usize,
    },
    /// One of the waiting packets is lost.
    Lose {
        which: usize,
    },
    /// A backend gets a state, and is added if necessary.
    Set {
        n: u8,
        state: BackendState,
    },
    /// A backend is removed from the spec.
    Remove {
        n: u8,
    },
    Wait {
        seconds: u64,
    },
}

/// The state of the client's side, the only one that DSR shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Opening,
    /// The first segment was not a SYN.
    Stray,
    Established,
    Closing,
    Closed,
}

impl Side {
    fn next(self, segment: Segment) -> Self {
        match (self, segment) {
            (_, Segment::Rst) => Self::Closed,
            (Self::Opening, Segment::Syn | Segment::Fin) | (Self::Stray, Segment::Syn) => Self::Opening,
            (Self::Stray, _) => Self::Stray,
            (_, Segment::Fin) => Self::Closing,
            (Self::Closing, Segment::Data) => Self::Closing,
            (side, Segment::Syn) => side,
            (_, Segment::Data) => Self::Established,
        }
    }

    fn has_ended(self) -> bool {
        matches!(self, Self::Closing | Self::Closed)
    }

    fn idle_s(self) -> u64 {
        match self {
            Self::Opening | Self::Stray => 60,
            Self::Established => IDLE_S,
            Self::Closing => 120,
            Self::Closed => 10,
        }
    }
}

/// A backend, identified by its number and a count of additions: a backend that is removed and added again is a
/// different one.
type Identity = (u8, u32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    backend: Identity,
    side: Side,
    seen: u64,
}

/// The state that both gateways know.
#[derive(Debug, Default)]
struct Known {
    now: u64,
    lives: u32,
    backends: BTreeMap<u8, (u32, BackendState)>,
    /// The weight of a backend at the start of its window, and the end of the window.
    former: BTreeMap<u8, (u16, u64)>,
}

impl Known {
    fn weight(&self, n: u8) -> u16 {
        u16::from(self.backends.get(&n).is_some_and(|(_, state)| *state == BackendState::Active))
    }

    fn set(&mut self, n: u8, state: Option<BackendState>) {
        let was = self.weight(n);
        let life = self.backends.get(&n).map(|(life, _)| *life);
        match state {
            Some(state) => {
                let life = life.unwrap_or_else(|| {
                    self.lives += 1;
                    self.lives
                });
                self.backends.insert(n, (life, state));
            }
            None => drop(self.backends.remove(&n)),
        }
        if self.weight(n) != was {
            let until = self.now + WINDOW_S;
            self.former.entry(n).or_insert((was, until)).1 = until;
        }
        self.forget();
    }

    fn forget(&mut self) {
        let now = self.now;
        let weights: BTreeMap<u8, u16> = self.former.keys().map(|&n| (n, self.weight(n))).collect();
        self.former.retain(|n, (weight, until)| *until > now && *weight != weights[n]);
    }

    fn state(&self, (n, life): Identity) -> Option<BackendState> {
        self.backends.get(&n).filter(|(known, _)| *known == life).map(|(_, state)| *state)
    }
}

/// The owners of a flow: by the current seats, and by those before the changes of the window.
#[derive(Debug, Clone, Copy)]
struct Owners {
    present: Option<u8>,
    former: Option<u8>,
}

#[derive(Debug, Default)]
struct Model {
    entries: HashMap<u16, Entry>,
}

impl Model {
    /// The backend of a packet, and what the gateway notes about its flow. `None` without a backend.
    fn packet(
        &mut self,
        known: &Known,
        on_change: bool,
        port: u16,
        segment: Segment,
        owners: Owners,
    ) -> Option<(u8, FlowNote)> {
        self.entries.retain(|_, entry| known.now - entry.seen < entry.side.idle_s());
        let opening = segment == Segment::Syn;
        if let Some(entry) = self.entries.get_mut(&port) {
            let again = opening && entry.side.has_ended();
            entry.side = if again { Side::Opening } else { entry.side.next(segment) };
            entry.seen = known.now;
            let keeps = match known.state(entry.backend) {
                None => false,
                Some(_) if again => false,
                Some(BackendState::Active | BackendState::Draining) => true,
                Some(BackendState::Down) => !opening,
            };
            if keeps {
                return Some((entry.backend.0, FlowNote::Known));
            }
        }
        let in_flux = owners.present != owners.former;
        let (owner, note, side) = match (on_change, opening) {
            (true, true) => (owners.present, FlowNote::New, in_flux.then_some(Side::Opening)),
            (true, false) => {
                let remembers = in_flux && segment != Segment::Rst;
                let note = if remembers { FlowNote::Known } else { FlowNote::None };
                // The connections of a removed backend are lost anyway.
                let former = owners.former.filter(|n| known.backends.contains_key(n));
                (former.or(owners.present), note, remembers.then_some(Side::Opening))
            }
            (false, true) => (owners.present, FlowNote::New, Some(Side::Opening)),
            (false, false) => {
                (owners.present, FlowNote::New, (segment != Segment::Rst).then_some(Side::Stray))
            }
        };
        // A Service whose backends all refuse new flows has none for other packets either.
        owners.present.or(owner)?;
        let owner = owner?;
        match side {
            Some(side) => {
                let backend = (owner, known.backends[&owner].0);
                self.entries.insert(port, Entry { backend, side, seen: known.now });
            }
            None => drop(self.entries.remove(&port)),
        }
        Some((owner, note))
    }
}

/// The model and the gateways, side by side.
struct Run {
    known: Known,
    models: [Model; 2],
    gateways: [Vec<Lab>; 2],
    on_change: bool,
    network: Vec<(u16, Segment)>,
    /// The current seats, and the former ones.
    seats: [Snapshot; 2],
}

fn backend(n: u8) -> SocketAddr {
    SocketAddr::new(ip(&format!("10.0.0.{n}")), 80)
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(ip("198.51.100.7"), port)
}

fn vip() -> SocketAddr {
    VIP.parse().expect("written right")
}

fn number_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(a) => a.octets()[15],
    }
}

/// Seats of backends with these weights.
fn seats(mode: ForwardingMode, weights: impl Iterator<Item = (u8, u16)>) -> Snapshot {
    let weighted = weights.filter(|(_, weight)| *weight > 0).map(|(n, weight)| BackendSpec {
        address: backend(n).ip(),
        port: 80,
        weight,
        state: BackendState::Active,
    });
    let web = ServiceSpec { backends: weighted.collect(), ..service(mode, Protocol::Tcp, VIP, &[]) };
    let spec = SnapshotSpec { services: vec![web.into()], ..lab::spec() };
    Snapshot::compile(&spec, None, &NeighborTable::new()).expect("it compiles").0
}

impl Run {
    fn new(mode: ForwardingMode, on_change: bool, workers: u8) -> Self {
        let web = ServiceSpec {
            idle_timeout_tcp: Duration::from_secs(IDLE_S),
            flow_tracking: if on_change { FlowTracking::OnChange([].into()) } else { FlowTracking::Always },
            ..service(mode, Protocol::Tcp, VIP, &[])
        };
        let spec = lab::spec_with(vec![web.into()], |_| ());
        let steering = if workers == 1 { Steering::Single } else { Steering::Partition };
        let gateway =
            || (0..workers).map(|at| Lab::worker(spec.clone(), at, workers, steering.clone())).collect();
        let mut run = Self {
            known: Known::default(),
            models: [Model::default(), Model::default()],
            gateways: [gateway(), gateway()],
            on_change,
            network: Vec::new(),
            seats: [seats(mode, std::iter::empty()), seats(mode, std::iter::empty())],
        };
        for n in 1..4 {
            run.known.lives += 1;
            run.known.backends.insert(n, (run.known.lives, BackendState::Active));
        }
        run.publish();
        run
    }

    fn labs(&mut self) -> impl Iterator<Item = &mut Lab> {
        self.gateways.iter_mut().flatten()
    }

    fn publish(&mut self) {
        let mode = self.gateways[0][0].spec.services[0].mode;
        let backends: Vec<BackendSpec> = (self.known.backends.iter())
            .map(|(&n, &(_, state))| BackendSpec { address: backend(n).ip(), port: 80, weight: 1, state })
            .collect();
        let former: Vec<FormerWeight> = (self.known.former.iter())
            .map(|(&n, &(weight, _))| FormerWeight { address: backend(n).ip(), port: 80, weight })
            .collect();
        let on_change = self.on_change;
        for lab in self.labs() {
            lab.change(|spec| {
                spec.services[0].backends.clone_from(&backends);
                if on_change {
                    spec.services[0].flow_tracking = FlowTracking::OnChange(former.as_slice().into());
                }
            });
        }
        let known = &self.known;
        let present = |n: u8| (n, known.weight(n));
        // A removed backend keeps its former seats, as at gateways that still know it.
        let former = |n: u8| known.former.get(&n).map_or_else(|| present(n), |(weight, _)| (n, *weight));
        self.seats = [seats(mode, (1..6).map(present)), seats(mode, (1..6).map(former))];
    }

    fn owners(&self, port: u16) -> Owners {
        let (client, vip) = (client(port), vip());
        let hash =
            selection_hash(&client.ip().into(), client.port(), &vip.ip().into(), vip.port(), proto::TCP);
        let [present, former] = [0, 1].map(|at| {
            let snapshot: &Snapshot = &self.seats[at];
            let (service, _) = snapshot.services().next()?;
            Some(number_of(snapshot.backend(service.select(hash)?)?.address.ip()))
        });
        Owners { present, former: if self.on_change { former } else { present } }
    }

    /// Receives a packet at a gateway. The NIC distributes packets by flow to the workers.
    fn receive(&mut self, gateway: usize, port: u16, segment: Segment) -> (IpAddr, FrameResult) {
        let frame = Builder::tcp(client(port), vip()).flags(segment.flags());
        let frame = frame.mac(ROUTER_MAC, GATEWAY_MAC).build();
        let labs = &mut self.gateways[gateway];
        let at = (usize::from(port) + gateway) % labs.len();
        let result = labs[at].receive(&frame);
        let backend = match result.note.backend {
            Some(_) => labs[at].backend_of(&result),
            None => ip("0.0.0.0"),
        };
        (backend, result)
    }

    fn arrive(&mut self, gateway: usize, port: u16, segment: Segment) -> Option<u8> {
        let owners = self.owners(port);
        let expected = self.models[gateway].packet(&self.known, self.on_change, port, segment, owners);
        let (at, result) = self.receive(gateway, port, segment);
        let Some((n, note)) = expected else {
            let forwarded = matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Forward, .. });
            assert!(!forwarded, "no backend accepts it");
            return None;
        };
        result.sent(TransmitReason::Forward);
        assert_eq!((number_of(at), result.note.flow), (n, note), "{port} {segment:?} at gateway {gateway}");
        Some(n)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { port, segment } => self.network.push((port, segment)),
            Step::Arrive { which, gateway } => {
                if !self.network.is_empty() {
                    let (port, segment) = self.network.swap_remove(which % self.network.len());
                    self.arrive(gateway, port, segment);
                }
            }
            Step::Lose { which } => {
                if !self.network.is_empty() {
                    let lost = which % self.network.len();
                    self.network.swap_remove(lost);
                }
            }
            Step::Set { n, state } => {
                self.known.set(n, Some(state));
                self.publish();
            }
            Step::Remove { n } => {
                self.known.set(n, None);
                self.publish();
            }
            Step::Wait { seconds } => self.wait(seconds),
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.known.now += seconds;
        self.known.forget();
        for lab in self.labs() {
            lab.wait(Duration::from_secs(seconds));
        }
        self.publish();
    }

    /// Sends each gateway the flows in flux of the other one.
    fn share(&mut self) {
        for from in 0..2 {
            let mut updates: Vec<FlowUpdate> = Vec::new();
            for lab in &mut self.gateways[from] {
                // A walk starts only after a change of the backends.
                while lab
                    .pipeline
                    .share(&lab.snapshot, Walks::default(), true, lab.now, |update| updates.push(update))
                {
                }
            }
            for update in updates {
                for lab in &mut self.gateways[1 - from] {
                    lab.pipeline.adopt(&lab.snapshot, &update, lab.now);
                }
            }
        }
    }
}

fn segment() -> impl Strategy<Value = Segment> {
    prop_oneof![
        4 => Just(Segment::Syn),
        6 => Just(Segment::Data),
        2 => Just(Segment::Fin),
        1 => Just(Segment::Rst),
    ]
}

fn state() -> impl Strategy<Value = BackendState> {
    prop_oneof![
        3 => Just(BackendState::Active),
        2 => Just(BackendState::Draining),
        1 => Just(BackendState::Down),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let port = 40_000u16..40_004;
    prop_oneof![
        10 => (port, segment()).prop_map(|(port, segment)| Step::Send { port, segment }),
        10 => (any::<usize>(), 0..2usize)
            .prop_map(|(which, gateway)| Step::Arrive { which, gateway }),
        1 => any::<usize>().prop_map(|which| Step::Lose { which }),
        2 => (1u8..6, state()).prop_map(|(n, state)| Step::Set { n, state }),
        1 => (1u8..6).prop_map(|n| Step::Remove { n }),
        2 => prop_oneof![4 => 0u64..30, 1 => 59u64..61, 3 => 99u64..101, 1 => 119u64..121, 1 => 399u64..401]
            .prop_map(|seconds| Step::Wait { seconds }),
    ]
}

fn mode() -> impl Strategy<Value = ForwardingMode> {
    prop_oneof![Just(ForwardingMode::DsrL2), Just(ForwardingMode::DsrGue)]
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 400,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn both_gateways_follow_the_model(
        mode in mode(),
        on_change in prop::bool::weighted(0.7),
        workers in 1u8..3,
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let mut run = Run::new(mode, on_change, workers);
        for step in &steps {
            run.step(step);
        }
    }

    /// No backend is removed from the spec here: whether by `kubectl` or by a drain, it stays until the drain timeout.
    /// Each connection sends more often than that, and the gateways share their entries.
    #[test]
    fn no_connection_breaks_if_gateways_share_flows_in_flux(
        mode in mode(),
        workers in 1u8..3,
        rounds in prop::collection::vec(
            (1u8..6, prop::bool::ANY, 40_000u16..40_020, prop::collection::vec(0..2usize, 20)),
            1..12,
        ),
    ) {
        let mut run = Run::new(mode, true, workers);
        for lab in run.labs() {
            lab.pipeline.set_shared_flows(Some(SharedFlows::InFlux), Walks::default());
        }
        let mut connections = BTreeMap::<u16, u8>::new();
        for (n, active, begins, routes) in rounds {
            let state = if active { BackendState::Active } else { BackendState::Draining };
            run.known.set(n, Some(state));
            // One backend always accepts new flows.
            run.known.set(1, Some(BackendState::Active));
            run.publish();
            for (port, &gateway) in (40_000..).zip(&routes) {
                let to = match connections.get(&port) {
                    Some(_) => Segment::Data,
                    None if port == begins => Segment::Syn,
                    None => continue,
                };
                let (at, result) = run.receive(gateway, port, to);
                result.sent(TransmitReason::Forward);
                let backend = *connections.entry(port).or_insert(number_of(at));
                prop_assert_eq!(number_of(at), backend, "{} at gateway {}", port, gateway);
                run.share();
            }
            run.wait(WINDOW_S / 3);
        }
    }
}
