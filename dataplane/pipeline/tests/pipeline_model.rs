//! Compares the pipeline with a slow and simple model, over random traces: SYN, data, FIN, RST, datagrams and replies,
//! while backends are added, drained, marked down and removed, and time passes. It covers every mode, both families,
//! with and without affinity.
//!
//! The model stores flows and affinity in maps. For each packet it predicts the backend and whether the flow is known,
//! or the refusal. It processes the packets of a burst one by one. The test compares the verdict, the note, and the
//! addresses and ports of sent packets. The model takes only three values from the gateway: the backend that owns a
//! hash, whether a 5-tuple is in the share of rejected flows (both have their own tests), and the free local port that
//! `fullnat` chose, which the model checks to be unused.
//! The rules are those of `BackendState`, `flow_state` and `docs/kubernetes.md`, section 2.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_pipeline::pipeline::FlowNote;
use tidegate_pipeline::testing::builder::{Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::lab::{self, FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service};
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendSpec, BackendState, ForwardingMode, Policy, Protocol, ServiceSpec};
use tidegate_structures::hash::{client_hash, selection_hash};
use tidegate_wire::sctp::chunk;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, ethernet, parse};

const IDLE_TCP_S: u64 = 200;
const IDLE_UDP_S: u64 = 90;
const IDLE_SCTP_S: u64 = 150;
const AFFINITY_S: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    Syn,
    Data,
    Fin,
    Rst,
}

impl Segment {
    /// The flags of a segment of the client. The server's first segment answers a SYN with SYN and ACK.
    fn flags(self, server: bool) -> u8 {
        match self {
            Self::Syn if server => flags::SYN | flags::ACK,
            Self::Syn => flags::SYN,
            Self::Data => flags::ACK,
            Self::Fin => flags::FIN | flags::ACK,
            Self::Rst => flags::RST,
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Request {
        client: u8,
        port: u16,
        segment: Segment,
    },
    Burst(Vec<(u8, u16, Segment)>),
    Reply {
        client: u8,
        port: u16,
        segment: Segment,
    },
    /// Adds backend `n`, or sets its state.
    Set {
        n: u8,
        state: BackendState,
    },
    Remove {
        n: u8,
    },
    /// Sets the share of rejected flows, in parts per million.
    Reject {
        ppm: u32,
    },
    Wait {
        seconds: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Closed,
    Opening,
    /// The first segment was not a SYN.
    Stray,
    Closing,
    Established,
}

impl Side {
    fn first(segment: Segment) -> Self {
        match segment {
            Segment::Rst => Self::Closed,
            Segment::Syn => Self::Opening,
            Segment::Fin | Segment::Data => Self::Stray,
        }
    }

    fn next(self, segment: Segment, server: bool) -> Self {
        match (segment, self) {
            (Segment::Rst, _) => Self::Closed,
            (Segment::Syn, Self::Opening) if server => Self::Established,
            (Segment::Syn | Segment::Fin, Self::Opening) => Self::Opening,
            (Segment::Syn, Self::Stray) => Self::Opening,
            (_, Self::Stray) => Self::Stray,
            (Segment::Fin, _) => Self::Closing,
            (Segment::Syn, Self::Closing) if !server => Self::Closed,
            (Segment::Syn, side) => side,
            (Segment::Data, Self::Closing) => Self::Closing,
            (Segment::Data, _) => Self::Established,
        }
    }

    fn has_ended(self) -> bool {
        matches!(self, Self::Closing | Self::Closed)
    }
}

/// A backend, identified by its number and a count of additions: a backend that is removed and added again is a
/// different one.
type Identity = (u8, u32);

#[derive(Debug, Clone, Copy)]
struct Flow {
    backend: Identity,
    client: Side,
    server: Side,
    /// The time of the last packet of either side in seconds.
    seen: u64,
    local: Option<SocketAddr>,
}

type Client = (u8, u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Forward { backend: Identity, note: FlowNote, local: Option<SocketAddr> },
    Reply { client: Client },
    Answer,
    Refused(Refusal),
    Punt,
}

struct Model {
    mode: ForwardingMode,
    protocol: Protocol,
    affine: bool,
    now: u64,
    backends: BTreeMap<u8, (u32, BackendState)>,
    lives: u32,
    flows: HashMap<Client, Flow>,
    affinity: HashMap<u8, (Identity, u64)>,
}

impl Model {
    fn tcp(&self) -> bool {
        self.protocol == Protocol::Tcp
    }

    /// Whether flows are connections, which only a first packet opens.
    fn connects(&self) -> bool {
        self.protocol != Protocol::Udp
    }

    /// The state of a side after another packet.
    fn next(&self, side: Side, segment: Segment, server: bool) -> Side {
        match (self.protocol, segment) {
            (Protocol::Tcp, _) => side.next(segment, server),
            (Protocol::Udp, _) => Side::Established,
            (Protocol::Sctp, Segment::Fin | Segment::Rst) => side,
            (Protocol::Sctp, _) => side.next(segment, server),
        }
    }

    fn state(&self, (n, life): Identity) -> Option<BackendState> {
        self.backends.get(&n).filter(|(known, _)| *known == life).map(|(_, state)| *state)
    }

    /// Whether both sides have ended a TCP flow, or one side did before it was established.
    fn is_over(&self, flow: &Flow) -> bool {
        let (client, server) = (flow.client, flow.server);
        if self.mode.is_dsr() {
            return client.has_ended();
        }
        let refused = [(client, server), (server, client)].contains(&(Side::Closed, Side::Opening));
        refused || client.has_ended() && server.has_ended()
    }

    /// Whether a SYN opens another connection: the flow is over, or the server has ended it and the client confirms
    /// that.
    fn reopens(&self, flow: &Flow) -> bool {
        self.is_over(flow) || !self.mode.is_dsr() && flow.server.has_ended()
    }

    fn timeout(&self, flow: &Flow) -> u64 {
        // With DSR, the gateway sees only one side.
        let sides = if self.mode.is_dsr() { [flow.client; 2] } else { [flow.client, flow.server] };
        let any = |side| sides.contains(&side);
        match () {
            () if !self.connects() && !self.mode.is_dsr() && flow.server == Side::Opening => 30,
            () if !self.connects() => IDLE_UDP_S,
            () if self.is_over(flow) && any(Side::Closed) => 10,
            () if any(Side::Opening) || any(Side::Stray) => 60,
            () if self.is_over(flow) => 120,
            () if self.tcp() => IDLE_TCP_S,
            () => IDLE_SCTP_S,
        }
    }

    fn remove_ended(&mut self) {
        let over: Vec<Client> = self
            .flows
            .iter()
            .filter(|(_, flow)| self.now - flow.seen >= self.timeout(flow))
            .map(|(client, _)| *client)
            .collect();
        for client in over {
            self.flows.remove(&client);
        }
        let now = self.now;
        self.affinity.retain(|_, (_, seen)| now - *seen < AFFINITY_S);
    }

    /// `owner` is the owner of the packet's hash, or of its client's hash with affinity. `rejects` is whether the service
    /// rejects a new flow with these addresses and ports.
    fn request(&mut self, from: Client, segment: Segment, (owner, rejects): (Option<u8>, bool)) -> Expected {
        self.remove_ended();
        let opening = self.connects() && segment == Segment::Syn;
        let (tcp, connects, protocol, now) = (self.tcp(), self.connects(), self.protocol, self.now);
        let mut is_new = true;
        if let Some(known) = self.flows.get(&from).copied() {
            let again = opening && self.reopens(&known);
            is_new = false;
            let client = if again { Side::Opening } else { self.next(known.client, segment, false) };
            let flow = self.flows.get_mut(&from).expect("just found");
            flow.seen = now;
            (flow.client, flow.server) = (client, if again { Side::Opening } else { flow.server });
            let keeps = match self.state(known.backend) {
                None => false,
                Some(_) if again => false,
                Some(BackendState::Active | BackendState::Draining) => true,
                Some(BackendState::Down) => protocol != Protocol::Udp && !opening,
            };
            if keeps {
                return Expected::Forward {
                    backend: known.backend,
                    note: FlowNote::Known,
                    local: known.local,
                };
            }
        }
        if rejects && is_new && (opening || !connects) {
            return Expected::Answer;
        }
        if connects && !opening && !self.mode.is_dsr() {
            return match owner {
                Some(_) => Expected::Refused(Refusal::NoFlow),
                None if tcp && segment == Segment::Rst => Expected::Refused(Refusal::NoEndpoints),
                None => Expected::Answer,
            };
        }
        let Some(backend) = self.choose(from.0, owner) else {
            let silent = tcp && segment == Segment::Rst;
            return if silent { Expected::Refused(Refusal::NoEndpoints) } else { Expected::Answer };
        };
        // A reset of an unknown connection is forwarded, but creates no flow.
        if !(self.mode.is_dsr() && connects && segment == Segment::Rst) {
            let client = if connects { Side::first(segment) } else { Side::Opening };
            let flow = Flow { backend, client, server: Side::Opening, seen: now, local: None };
            self.flows.insert(from, flow);
        }
        Expected::Forward { backend, note: FlowNote::New, local: None }
    }

    fn choose(&mut self, client: u8, owner: Option<u8>) -> Option<Identity> {
        if self.affine
            && let Some((backend, seen)) = self.affinity.get_mut(&client)
        {
            *seen = self.now;
            let backend = *backend;
            if self.state(backend) == Some(BackendState::Active) {
                return Some(backend);
            }
        }
        let n = owner?;
        let (life, state) = self.backends[&n];
        assert_eq!(state, BackendState::Active, "only active backends get new flows");
        if self.affine {
            self.affinity.insert(client, ((n, life), self.now));
        }
        Some((n, life))
    }

    fn reply(&mut self, to: Client, segment: Segment) -> Option<(Flow, Expected)> {
        let addressed = self.flows.get(&to).copied()?;
        self.remove_ended();
        let alive = self.state(addressed.backend).is_some();
        let lost = match self.mode {
            ForwardingMode::FullNat => Expected::Refused(Refusal::NoSnatFlow),
            _ => Expected::Punt,
        };
        let now = self.now;
        let server = self.flows.get(&to).map(|flow| self.next(flow.server, segment, true));
        let expected = match (self.flows.get_mut(&to), server) {
            (Some(flow), Some(server)) if alive => {
                (flow.server, flow.seen) = (server, now);
                Expected::Reply { client: to }
            }
            _ => lost,
        };
        Some((addressed, expected))
    }
}

/// The model and the gateway, side by side.
struct Run {
    model: Model,
    lab: Lab,
    v6: bool,
}

impl Run {
    fn new(mode: ForwardingMode, protocol: Protocol, v6: bool, affine: bool) -> Self {
        let vip = if v6 { "[2001:db8:1::5]:80" } else { "203.0.113.5:80" };
        let spec = ServiceSpec {
            affinity: affine.then_some(Duration::from_secs(AFFINITY_S)),
            idle_timeout_tcp: Duration::from_secs(IDLE_TCP_S),
            idle_timeout_udp: Duration::from_secs(IDLE_UDP_S),
            idle_timeout_sctp: Duration::from_secs(IDLE_SCTP_S),
            ..service(mode, protocol, vip, &[])
        };
        let model = Model {
            mode,
            protocol,
            affine,
            now: 0,
            backends: BTreeMap::new(),
            lives: 0,
            flows: HashMap::new(),
            affinity: HashMap::new(),
        };
        // Resets of unknown flows are rate limited, which is not part of the model.
        let policy = Policy { reset_unknown_flows: false, ..Policy::default() };
        let lab = Lab::with_spec(lab::spec_with(vec![spec.into()], |network| network.policy = policy));
        Self { model, lab, v6 }
    }

    fn vip(&self) -> SocketAddr {
        let key = self.lab.spec.services[0].key;
        SocketAddr::new(key.vip, key.port)
    }

    fn client(&self, (client, port): Client) -> SocketAddr {
        let host = if self.v6 { format!("2001:db8::{client}") } else { format!("198.51.100.{client}") };
        SocketAddr::new(ip(&host), port)
    }

    fn backend(&self, n: u8) -> SocketAddr {
        let host = if self.v6 { format!("fd00::{n}") } else { format!("10.0.0.{n}") };
        SocketAddr::new(ip(&host), if self.model.mode.is_dsr() { 80 } else { 8080 })
    }

    fn publish(&mut self) {
        let backends = self.model.backends.iter();
        let backends: Vec<BackendSpec> = backends
            .map(|(&n, &(_, state))| {
                let at = self.backend(n);
                BackendSpec { address: at.ip(), port: at.port(), weight: 1, state }
            })
            .collect();
        self.lab.change(|spec| spec.services[0].backends = backends);
    }

    /// The backend that the packet's hash selects, and whether a new flow is rejected.
    fn choice(&self, from: Client) -> (Option<u8>, bool) {
        let (client, vip) = (self.client(from), self.vip());
        let (src, dst) = (client.ip().into(), vip.ip().into());
        let (service, _) = self.lab.snapshot.services().next().expect("there is one service");
        let protocol = self.model.protocol.number();
        let rejects = self.lab.snapshot.rejects(service, (&src, client.port()), (&dst, vip.port()), protocol);
        (self.owner(from), rejects)
    }

    fn owner(&self, from: Client) -> Option<u8> {
        let (client, vip) = (self.client(from), self.vip());
        let src = client.ip().into();
        let hash = if self.model.affine {
            client_hash(&src)
        } else {
            let number = self.model.protocol.number();
            selection_hash(&src, client.port(), &vip.ip().into(), vip.port(), number)
        };
        let (service, _) = self.lab.snapshot.services().next().expect("there is one service");
        let id = service.select(hash)?;
        Some(self.number_of(self.lab.snapshot.backend(id).expect("an owner lives").address.ip()))
    }

    fn number_of(&self, address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(a) => a.octets()[3],
            IpAddr::V6(a) => a.octets()[15],
        }
    }

    fn tag(&self, client: SocketAddr) -> u32 {
        7 + u32::from(self.number_of(client.ip()))
    }

    fn packet(&self, from: SocketAddr, to: SocketAddr, segment: Segment, server: bool) -> Builder {
        match self.model.protocol {
            Protocol::Tcp => Builder::tcp(from, to).flags(segment.flags(server)),
            Protocol::Udp => Builder::udp(from, to),
            // The model ignores verification tags: these are always wrong, so nothing ends an association. Each client
            // has its own tag: two clients with equal port and tag would be two paths of one association.
            Protocol::Sctp => match segment {
                Segment::Syn if server => {
                    Builder::sctp(from, to).tag(self.tag(to)).chunk(chunk::INIT_ACK, 0, &[9; 16])
                }
                Segment::Syn => Builder::sctp_init(from, to, self.tag(from)),
                Segment::Data => Builder::sctp(from, to).chunk(chunk::DATA, 3, &[0; 16]),
                Segment::Fin => Builder::sctp(from, to).tag(1).chunk(chunk::SHUTDOWN, 0, &[0; 4]),
                Segment::Rst => Builder::sctp(from, to).tag(1).chunk(chunk::ABORT, 0, &[]),
            },
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Wait { seconds } => {
                self.model.now += seconds;
                self.lab.wait(Duration::from_secs(seconds));
            }
            Step::Set { n, state } => {
                let life = match self.model.backends.get(&n) {
                    Some((life, _)) => *life,
                    None => {
                        self.model.lives += 1;
                        self.model.lives
                    }
                };
                self.model.backends.insert(n, (life, state));
                self.publish();
            }
            Step::Reject { ppm } => self.lab.change(|spec| spec.services[0].rejected_ppm = ppm),
            Step::Remove { n } => {
                self.model.backends.remove(&n);
                self.publish();
            }
            Step::Request { client, port, segment } => {
                let from = (client, port);
                let choice = self.choice(from);
                let expected = self.model.request(from, segment, choice);
                let frame = self.packet(self.client(from), self.vip(), segment, false);
                let result = self.lab.receive(&frame.mac(ROUTER_MAC, GATEWAY_MAC).build());
                self.compare(from, expected, &result);
            }
            Step::Burst(ref requests) => {
                let make = |&(client, port, segment): &(u8, u16, Segment)| {
                    let frame = self.packet(self.client((client, port)), self.vip(), segment, false);
                    frame.mac(ROUTER_MAC, GATEWAY_MAC).build()
                };
                let frames: Vec<Vec<u8>> = requests.iter().map(make).collect();
                let results = self.lab.receive_burst(&frames);
                for (&(client, port, segment), result) in requests.iter().zip(&results) {
                    let choice = self.choice((client, port));
                    let expected = self.model.request((client, port), segment, choice);
                    self.compare((client, port), expected, result);
                }
            }
            Step::Reply { client, port, segment } => {
                if self.model.mode.is_dsr() {
                    return;
                }
                let Some((flow, expected)) = self.model.reply((client, port), segment) else { return };
                let to = flow.local.unwrap_or(self.client((client, port)));
                let n = flow.backend.0;
                let frame = self.packet(self.backend(n), to, segment, true);
                let result = self.lab.receive(&frame.mac(backend_mac(n), GATEWAY_MAC).build());
                self.compare((client, port), expected, &result);
            }
        }
    }

    fn compare(&mut self, from: Client, expected: Expected, result: &FrameResult) {
        match expected {
            Expected::Forward { backend, note, local } => {
                let sent = result.sent(TransmitReason::Forward);
                assert_eq!(result.note.flow, note);
                assert_eq!(self.lab.backend_of(result), self.backend(backend.0).ip());
                assert_eq!(ethernet::destination(sent), backend_mac(backend.0));
                self.compare_forwarded(from, backend, local, &headers(sent));
            }
            Expected::Reply { client } => {
                let h = headers(result.sent(TransmitReason::Reply));
                assert_eq!(ends(&h), (self.vip(), self.client(client)));
                assert_eq!(ethernet::destination(&result.frame), ROUTER_MAC);
            }
            // The rate limit of answers, which is not part of the model, is exceeded.
            Expected::Answer if result.verdict == Refusal::NoEndpoints.into() => {
                assert!(self.lab.pipeline.suppressed_answers().iter().any(|count| *count > 0));
            }
            Expected::Answer => {
                let h = headers(result.sent(TransmitReason::NoEndpoints));
                assert_eq!((h.src.ip(), h.dst.ip()), (self.vip().ip(), self.client(from).ip()));
            }
            Expected::Refused(refusal) => assert_eq!(result.verdict, refusal.into()),
            Expected::Punt => assert_eq!(result.verdict, Verdict::Punt(PuntReason::NotOurs)),
        }
    }

    fn compare_forwarded(&mut self, from: Client, to: Identity, local: Option<SocketAddr>, h: &Headers) {
        let (client, vip, backend) = (self.client(from), self.vip(), self.backend(to.0));
        match self.model.mode {
            ForwardingMode::DsrL2 => assert_eq!(ends(h), (client, vip)),
            ForwardingMode::DsrIpip
            | ForwardingMode::DsrGue
            | ForwardingMode::DsrGre
            | ForwardingMode::DsrGeneve => {
                assert_eq!(h.dst.ip(), backend.ip());
            }
            ForwardingMode::Nat | ForwardingMode::DsrDscp => assert_eq!(ends(h), (client, backend)),
            ForwardingMode::FullNat => {
                let (source, destination) = ends(h);
                assert_eq!(destination, backend);
                assert!(self.lab.spec.network.snat_addresses.contains(&source.ip()) && source.port() >= 1024);
                match local {
                    Some(local) => assert_eq!(source, local, "a flow keeps its local port"),
                    None => {
                        let theirs = self.model.flows.iter().filter(|(key, flow)| {
                            **key != from && flow.backend == to && flow.local == Some(source)
                        });
                        assert_eq!(theirs.count(), 0, "{source} is another flow's");
                        let flow = self.model.flows.get_mut(&from).expect("the flow exists");
                        flow.local = Some(source);
                    }
                }
            }
        }
    }
}

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("not IP: {other:?}"),
    }
}

fn ends(h: &Headers) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new(h.src.ip(), h.src_port), SocketAddr::new(h.dst.ip(), h.dst_port))
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
        1 => Just(BackendState::Draining),
        1 => Just(BackendState::Down),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (client, port) = (1u8..3, 40_000u16..40_004);
    prop_oneof![
        12 => (client.clone(), port.clone(), segment())
            .prop_map(|(client, port, segment)| Step::Request { client, port, segment }),
        3 => prop::collection::vec((client.clone(), port.clone(), segment()), 2..12).prop_map(Step::Burst),
        6 => (client, port, segment())
            .prop_map(|(client, port, segment)| Step::Reply { client, port, segment }),
        2 => (1u8..5, state()).prop_map(|(n, state)| Step::Set { n, state }),
        1 => (1u8..5).prop_map(|n| Step::Remove { n }),
        1 => prop::sample::select(vec![0, 0, 500_000, 1_000_000]).prop_map(|ppm| Step::Reject { ppm }),
        3 => prop_oneof![0u64..12, 9u64..11, 29u64..31, 59u64..61, 89u64..91, 99u64..101, 119u64..121, 149u64..151, 199u64..201]
            .prop_map(|seconds| Step::Wait { seconds }),
    ]
}

fn follows_the_model(mode: ForwardingMode, protocol: Protocol, v6: bool, affine: bool, steps: &[Step]) {
    let mut run = Run::new(mode, protocol, v6, affine);
    for n in 1..4 {
        run.step(&Step::Set { n, state: BackendState::Active });
    }
    for step in steps {
        run.step(step);
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1000,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

macro_rules! every_mode {
    ($($name:ident: $mode:ident,)+) => {
        proptest! {
            #![proptest_config(config())]
            $(
                #[test]
                fn $name(
                    protocol in prop_oneof![
                        3 => Just(Protocol::Tcp), 2 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)
                    ],
                    v6 in any::<bool>(),
                    affine in prop::bool::weighted(0.3),
                    steps in prop::collection::vec(step(), 1..80),
                ) {
                    follows_the_model(ForwardingMode::$mode, protocol, v6, affine, &steps);
                }
            )+
        }
    };
}

every_mode! {
    dsr_l2_follows_the_model: DsrL2,
    dsr_ipip_follows_the_model: DsrIpip,
    dsr_gue_follows_the_model: DsrGue,
    dsr_gre_follows_the_model: DsrGre,
    dsr_geneve_follows_the_model: DsrGeneve,
    dsr_dscp_follows_the_model: DsrDscp,
    nat_follows_the_model: Nat,
    fullnat_follows_the_model: FullNat,
}
