//! A gateway of one or two workers in memory, driven by choices: changes of the snapshot, jumps of time, bursts.
//!
//! It acts like a driver: it hands frames over to the worker that a verdict names, counts each verdict once, and
//! resolves the requested neighbours. `checks` checks the properties of each frame.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tidegate_conntrack::FlowKind;
use tidegate_conntrack::associations::Associations;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, WorkerCounters};
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::limits::{BURST, HEADROOM_MIN, MASQUERADE_FLOWS_MIN, MASQUERADE_TABLE_SHARE};
use tidegate_spec::now::Now;
use tidegate_spec::source_lists::SourceLists;
use tidegate_spec::verdict::{DropReason, PuntReason, TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, ChoiceOptions, FlowTracking, FormerWeight, ForwardingMode, GatewaySpec,
    InterfaceSpec, LoadRule, MssClamp, NeighborSpec, NoEndpoints, PassiveHealth, Policy, Protocol, Scheduler,
    ServiceKey, ServiceLimits, ServiceSpec, SnapshotSpec, SourceRate, SynCookies, TunnelOptions, Warming,
};
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::encapsulation::{GENEVE_PORT, GUE_PORT, GueVariant, ServiceIdentity, Vni};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};
use tidegate_wire::{Addr, MacAddr, VlanId};

use super::checks::{self, Seen};
use super::choices::Choices;
use super::context::{Context, INSIDE_MAC, PORTS, VIPS, remember};
use super::frames;
use crate::forward::snat_ports::{Rss, Steering};
use crate::frame::{Frame, MemoryFrame};
use crate::pipeline::{Arrival, BurstOutput, NeighborEvent, Pipeline, PipelineConfig, View};
use crate::testing::builder::GATEWAY_MAC;
use crate::testing::lab::{self, backend_mac, ip};

const BACKENDS_V4: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.0.0.20", "10.9.0.1", "10.0.0.3"];
const BACKENDS_V6: [&str; 6] = ["fd00::1", "fd00::2", "fd01::1", "fd00::20", "fd09::1", "fd00::3"];

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The digest of all verdicts and bytes, in order.
    pub digest: u64,
    /// The count of each verdict, by kind and reason ("drop", "no_flow").
    pub reasons: BTreeMap<(&'static str, &'static str), u64>,
}

struct Worker {
    pipeline: Pipeline,
    counters: WorkerCounters,
    given: u64,
}

pub(super) struct World {
    spec: SnapshotSpec,
    context: Context,
    neighbors: NeighborTable,
    tallies: Tallies,
    workers: Vec<Worker>,
    entries: usize,
    now: Now,
    digest: u64,
}

impl World {
    pub(super) fn new(choices: &mut Choices<'_>) -> Self {
        let neighbors = NeighborTable::with_capacity(256);
        let spec = spec(choices);
        let (snapshot, _) =
            Snapshot::compile(&spec, None, &neighbors).expect("the services of a run have distinct keys");
        let entries = choices.pick(&[64usize, 8, 1, 300]);
        let workers = choices.pick(&[1u8, 2]);
        let steering = match (workers, choices.one_in(3)) {
            (1, _) => Steering::Single,
            (_, false) => Steering::Partition,
            (_, true) => {
                let queues = (0..128).map(|n| n % workers).collect();
                let key = (0..40u8).map(|n| n.wrapping_mul(37)).collect();
                // It depends on another choice, so that stored inputs keep their meaning.
                Steering::Rss(Box::new(Rss { key, queues, sctp_ports: entries != 8 }))
            }
        };
        let associations = Arc::new(Associations::new(entries, 7));
        if snapshot.has_sctp() {
            associations.prepare();
        }
        let worker = |worker| {
            let config = PipelineConfig { worker, workers, entries, seed: 7, steering: steering.clone() };
            let pipeline = Pipeline::new(&config).with_associations(Arc::clone(&associations));
            Worker { pipeline, counters: WorkerCounters::default(), given: 0 }
        };
        Self {
            context: Context { snapshot, sent: Vec::new(), received: Vec::new() },
            neighbors,
            tallies: Tallies::with_capacity(16, 32),
            workers: (0..workers).map(worker).collect(),
            entries,
            spec,
            now: Now(choices.pick(&[1_000_000_000, 0, u64::MAX / 2])),
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    /// Publishes another snapshot: a backend is changed, added or removed, a service is removed, or everything is new.
    pub(super) fn change(&mut self, choices: &mut Choices<'_>) {
        let at = choices.below(self.spec.services.len().max(1));
        match (choices.below(7), self.spec.services.get_mut(at)) {
            (0, _) | (_, None) => {
                let new = spec(choices);
                self.spec.services = new.services;
                self.spec.network.routes.clone_from(&new.network.routes);
            }
            (1, Some(_)) => drop(self.spec.services.remove(at)),
            (2, Some(service)) => {
                let new = backend(choices, service);
                if !service.backends.iter().any(|b| (b.address, b.port) == (new.address, new.port)) {
                    service.backends.push(new);
                }
            }
            (3, Some(service)) if !service.backends.is_empty() => {
                let at = choices.below(service.backends.len());
                service.backends.remove(at);
            }
            (6, Some(service)) => service.source_ranges = ranges(choices),
            (4, _) => self.spec.network.interfaces = interfaces(choices),
            (_, Some(service)) => {
                for backend in &mut service.backends {
                    backend.state = state(choices);
                }
            }
        }
        self.spec.generation += 1;
        // If a spec is refused, the last snapshot stays in use, as in a running gateway.
        if let Ok((snapshot, _)) =
            Snapshot::compile(&self.spec, Some(&self.context.snapshot), &self.neighbors)
        {
            self.context.snapshot = snapshot;
            for worker in &mut self.workers {
                if self.context.snapshot.has_sctp() {
                    worker.pipeline.associations().prepare();
                }
                while worker.pipeline.recheck(&self.context.snapshot, self.now) {}
            }
        }
    }

    /// Advances the time, sometimes by a jump.
    pub(super) fn wait(&mut self, choices: &mut Choices<'_>) {
        let now = self.now.0;
        self.now = match choices.below(16) {
            0 => Now(u64::MAX),
            1 => Now(now.saturating_sub(5_000_000)),
            2 => self.now.plus(Duration::from_secs(86_400 * 40)),
            3..6 => self.now.plus(Duration::from_secs(u64::from(choices.u16()))),
            6..10 => self.now.plus(Duration::from_secs(u64::from(choices.byte()))),
            _ => self.now.plus(Duration::from_millis(u64::from(choices.byte()))),
        };
    }

    /// Receives a burst of 1 to 32 frames on one of the workers.
    pub(super) fn burst(&mut self, choices: &mut Choices<'_>) {
        let count = if choices.one_in(4) { BURST } else { 1 + choices.below(6) };
        let worker = choices.below(self.workers.len());
        let arrival = Arrival::Wire(choices.pick(&[0, 0, 0, 0, 0, 1, 1, 9]));
        let interface = self.context.snapshot.interface(arrival.interface());
        let link = interface.map_or((GATEWAY_MAC, None), |i| (i.mac, i.vlan.map(VlanId::value)));
        let mut received = Vec::new();
        while received.len() < count && (received.is_empty() || !choices.is_over()) {
            frames::make(&self.context, link, choices, &mut received);
        }
        received.truncate(BURST);
        if !self.spec.network.gateway.masquerade.is_empty() {
            received.iter_mut().for_each(|frame| frames::redirect_outside(frame));
        }
        if !self.spec.network.tunnel_peers.is_empty() {
            received.iter_mut().for_each(frames::hand_over);
        }
        let tight = choices.one_in(16);
        self.process(worker, arrival, &received, tight);
        for frame in received {
            remember(&mut self.context.received, frame);
        }
    }

    fn process(&mut self, at: usize, arrival: Arrival, received: &[Vec<u8>], tight: bool) {
        let mut burst: Vec<MemoryFrame> = received.iter().map(|bytes| memory(bytes, tight)).collect();
        let workers = u8::try_from(self.workers.len()).expect("a few workers");
        let mut out = BurstOutput::default();
        let worker = &mut self.workers[at];
        let view =
            View { snapshot: &self.context.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
        worker.pipeline.process(view, self.now, arrival, &mut burst, &mut out);
        worker.pipeline.age(self.now);
        assert_eq!(out.verdicts.len(), received.len(), "one verdict a frame");
        assert_eq!(out.notes.len(), received.len(), "one note a frame");
        worker.given += received.len() as u64;
        let mut queue = Vec::new();
        for (n, &verdict) in out.verdicts.iter().enumerate() {
            worker.counters.record(verdict);
            let oversized = out.oversized.iter().find(|one| usize::from(one.frame) == n);
            let is_sent = matches!(verdict, Verdict::Transmit { .. });
            // A tunnel packet of the peer counts as its inner packet.
            let inner = frames::handed_over(&received[n]).filter(|_| is_sent);
            let seen = Seen {
                before: inner.as_deref().unwrap_or(&received[n]),
                handed_over: inner.is_some(),
                after: burst[n].bytes(),
                verdict,
                note: out.notes[n],
                cut_to: oversized.map(|one| (one.packet, one.mtu)),
                streams: worker.pipeline.flows().nat.has_streams(),
            };
            checks::frame(&self.context.snapshot, &seen);
            self.digest = fold(self.digest, format!("{verdict:?}").as_bytes());
            self.digest = fold(self.digest, seen.after);
            match verdict {
                Verdict::HandOver(to) => {
                    let most = workers.max(2);
                    assert!(arrival.hand_overs() < most, "a frame is handed over {most} times at most");
                    assert_ne!(usize::from(to), at, "no worker hands over to itself");
                    queue.push((usize::from(to), received[n].clone()));
                }
                Verdict::Transmit { .. } => remember(&mut self.context.sent, seen.after.to_vec()),
                Verdict::Punt(_) | Verdict::Drop(_) => {}
            }
        }
        for event in out.events {
            if let NeighborEvent::Wanted { interface, addr } = event
                && let Some(index) = self.neighbors.lookup(interface, &addr)
                && addr.bytes()[15] % 2 == 0
            {
                self.neighbors.set_resolved(index, MacAddr([2, 0, 0, 0, 2, addr.bytes()[15]]));
            }
        }
        for (to, frame) in queue {
            let by = u8::try_from(at).expect("a few workers");
            self.process(to, arrival.handed_over(by), &[frame], false);
        }
        if let Arrival::HandedOver(_, from) = arrival {
            for copy in &out.flow_copies {
                self.workers[usize::from(from)].pipeline.store_copy(copy, self.now);
            }
        }
        for (owner, used) in &out.flow_uses {
            let owner = &mut self.workers[usize::from(*owner)].pipeline;
            let answer = owner.confirm_copy(&self.context.snapshot, used, self.now);
            self.workers[usize::from(used.user)].pipeline.store_copy(&answer, self.now);
        }
        for first in out.first_fragments {
            let gatherer = &mut self.workers[usize::from(first.gatherer)];
            gatherer.pipeline.record_first_fragment(first.key, first.owner, self.now);
        }
    }

    /// Checks the properties of a whole run, and returns its result.
    pub(super) fn finish(mut self) -> Outcome {
        let mut reasons = BTreeMap::new();
        for worker in &mut self.workers {
            let c = &worker.counters;
            let transmits = TransmitReason::ALL.iter().map(|&r| (("transmit", r.as_str()), c.transmits(r)));
            let punts = PuntReason::ALL.iter().map(|&r| (("punt", r.as_str()), c.punts(r)));
            let drops = DropReason::all().map(|r| (("drop", r.as_str()), c.drops(r)));
            let hand_overs = std::iter::once((("hand over", ""), c.hand_overs()));
            let mut counted = 0;
            for (reason, count) in transmits.chain(punts).chain(drops).chain(hand_overs) {
                counted += count;
                *reasons.entry(reason).or_insert(0) += count;
            }
            assert_eq!(counted, worker.given, "every frame is counted once");

            let flows = worker.pipeline.flows();
            let (mut shown, mut translations) = (0, std::collections::HashSet::new());
            let mut masquerades = std::collections::HashSet::new();
            let end = flows.scan(0, u64::MAX, self.now, |flow| {
                shown += 1;
                if let FlowKind::Nat { endpoint, source, source_port } = flow.kind {
                    assert!(
                        translations.insert((endpoint, source, source_port)),
                        "two flows with the same replies: {flow:?}"
                    );
                }
                if let FlowKind::Masquerade { proto, peer, local } = flow.kind {
                    assert!(
                        masquerades.insert((proto, peer, local)),
                        "two flows with the same replies: {flow:?}"
                    );
                }
            });
            assert_eq!(end, None);
            assert_eq!(shown, flows.live(), "every flow has its entries, and no entry is left over");
            let most = (self.entries / MASQUERADE_TABLE_SHARE).max(MASQUERADE_FLOWS_MIN);
            assert!(masquerades.len() <= most, "{} masqueraded flows", masquerades.len());
            // At their limit tables are two thirds full; a table has at least four lines.
            let shown = shown - masquerades.len();
            assert!(shown <= 4 * (self.entries * 3 / 2 + 24), "{shown} flows in tables of {}", self.entries);
            self.digest = fold(self.digest, &(shown as u64).to_be_bytes());
        }
        Outcome { digest: self.digest, reasons }
    }
}

/// FNV-1a.
fn fold(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest, |digest, &b| (digest ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// A frame in a buffer, without headroom if `tight`.
fn memory(bytes: &[u8], tight: bool) -> MemoryFrame {
    let mut frame = MemoryFrame::new(bytes);
    if tight {
        assert!(frame.grow_front(HEADROOM_MIN), "all of the headroom");
        frame.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        assert!(frame.resize(bytes.len()), "it is shorter than before");
    }
    frame
}

/// Two links: the lab's link with the router, and an inner link with another MTU and another tag.
fn interfaces(choices: &mut Choices<'_>) -> Vec<InterfaceSpec> {
    let mut interfaces = lab::spec().network.interfaces.clone();
    interfaces[0].mtu = choices.pick(&[1500, 1500, 1500, 1280, 576, 68, 9000]);
    interfaces[0].vlan = choices.pick(&[None, None, None, Some(100)]);
    interfaces.push(InterfaceSpec {
        name: "inside".into(),
        mac: INSIDE_MAC,
        mtu: choices.pick(&[1500, 1400, 600]),
        vlan: choices.pick(&[None, Some(7)]),
        addresses: ["10.1.0.254/24", "fd01::fe/64"].map(|net| net.parse().expect("written right")).to_vec(),
    });
    interfaces
}

fn spec(choices: &mut Choices<'_>) -> SnapshotSpec {
    let mut spec = lab::spec();
    spec.network.interfaces = interfaces(choices);
    for (n, address) in [(0x11, "10.1.0.1"), (0x11, "fd01::1")] {
        spec.network.neighbors.push(NeighborSpec { ip: ip(address), mac: backend_mac(n) });
    }
    if choices.one_in(8) {
        spec.network.routes.clear();
    }
    if choices.one_in(8) {
        spec.network.snat_addresses.clear();
    }
    if choices.one_in(2) {
        spec.network.gateway = GatewaySpec {
            prefixes: ["10.0.0.0/24", "fd00::/64"].map(|net| net.parse().expect("written right")).into(),
            forward: !choices.one_in(4),
            masquerade: Vec::new(),
        };
    }
    spec.network.policy = Policy {
        reset_unknown_flows: !choices.one_in(4),
        reject_unserved_ports: !choices.one_in(4),
        serve_routers: choices.one_in(4),
        fragment_ipv4: !choices.one_in(4),
        syn_cookies: SynCookies::default(),
        selection_key: None,
    };
    for _ in 0..2 + choices.below(8) {
        let service = service(choices);
        if spec.services.iter().all(|other| other.key != service.key) {
            spec.services.push(service.into());
        }
    }
    protect(&mut spec);
    // Derived from earlier choices, so that stored inputs keep their meaning.
    if spec.services.len().is_multiple_of(2) {
        spec.network.gateway.masquerade = spec.network.gateway.prefixes.clone();
    }
    spec
}

/// Gives some gateways a key, SYN cookies, lists and rates of sources. The number of services decides, so that stored
/// inputs keep their meaning.
fn protect(spec: &mut SnapshotSpec) {
    let nets = |nets: &[&str]| -> Vec<IpNet> {
        nets.iter().map(|net| net.parse().expect("written right")).collect()
    };
    let services = spec.services.len();
    if services.is_multiple_of(2) {
        spec.network.tunnel_peers = vec![ip(frames::PEER)];
    }
    spec.network.policy.syn_cookies = match services % 5 {
        0 | 1 => SynCookies::Off,
        2 => SynCookies::Always,
        _ => SynCookies::Auto,
    };
    if services.is_multiple_of(3) {
        spec.network.policy.selection_key = SelectionKey::from_hex("000102030405060708090a0b0c0d0e0f");
    }
    if services % 4 == 1 {
        let deny = nets(&["198.51.100.0/24", "2001:db8::8/128"]);
        let allow = nets(&["198.51.100.7/32", "2001:db8::/64"]);
        spec.network.sources = Arc::new(SourceLists::new(&deny, &allow));
    }
    if services == 6 {
        spec.network.source_rate = Some(SourceRate { per_second: 1, burst: 2, v4_len: 24, v6_len: 56 });
    }
}

fn service(choices: &mut Choices<'_>) -> ServiceSpec {
    // The last VIP is the gateway's own address with a node port.
    let vip = ip(choices.pick(&VIPS));
    let seconds = |n| Duration::from_secs(n);
    let key = ServiceKey {
        vip,
        protocol: choices.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Tcp, Protocol::Sctp]),
        port: choices.pick(&PORTS),
    };
    let mut service = ServiceSpec {
        key,
        namespace: "default".into(),
        name: "web".into(),
        port_name: key.port.to_string(),
        mode: choices.pick(&ForwardingMode::ALL),
        tunnel: TunnelOptions {
            gue_variant: choices.pick(&[GueVariant::Direct, GueVariant::Header]),
            gue_port: choices.pick(&[GUE_PORT, 53]),
            gre_key: choices.pick(&[None, Some(7)]),
            geneve_port: choices.pick(&[GENEVE_PORT, GUE_PORT]),
            geneve_vni: choices.pick(&[Vni::default(), Vni::new(0x00ab_cdef).expect("24 bits")]),
            geneve_service: ServiceIdentity::of("default", "web"),
            dscp: 1 + key.port.to_be_bytes()[1] % 63,
        },
        scheduler: choices.pick(&[
            Scheduler::Rendezvous,
            Scheduler::Maglev { slots: 251 },
            Scheduler::Maglev { slots: 2 },
        ]),
        choice: ChoiceOptions::default(),
        flow_tracking: FlowTracking::Always,
        affinity: choices.pick(&[None, None, Some(seconds(100)), Some(seconds(1))]),
        no_endpoints: choices.pick(&[
            NoEndpoints::Reject,
            NoEndpoints::Reject,
            NoEndpoints::Drop,
            NoEndpoints::Unserved,
        ]),
        rejected_ppm: 0,
        mss_clamp: choices.pick(&[
            MssClamp::Off,
            MssClamp::Path,
            MssClamp::AtMost(536),
            MssClamp::AtMost(9000),
        ]),
        idle_timeout_tcp: seconds(choices.pick(&[900, 5, 86_400])),
        idle_timeout_udp: seconds(choices.pick(&[120, 1])),
        idle_timeout_sctp: seconds(choices.pick(&[120, 1])),
        source_ranges: None,
        limits: limits(&key),
        proxy_protocol: None,
        proxy_tlvs: ProxyTlvs::NONE,
        vpce_id: VpceId::default(),
        syn_cookies: None,
        passive_health: Some(PassiveHealth::default()).filter(|_| key.port.is_multiple_of(2)),
        flow_log: std::num::NonZeroU16::new(1).filter(|_| key.port.is_multiple_of(7)),
        layer2: tidegate_spec::ownership::Layer2::Always,
        backends: Vec::new(),
    };
    service.source_ranges = ranges(choices);
    // From earlier choices, so that stored inputs keep their meaning.
    service.proxy_protocol = match service.idle_timeout_tcp.as_secs() {
        5 => Some(ProxyVersion::V1),
        86_400 if key.port.is_multiple_of(3) => Some(ProxyVersion::Toa),
        86_400 => Some(ProxyVersion::V2),
        _ => None,
    };
    if (service.idle_timeout_sctp.as_secs(), key.port) == (1, 80) {
        service.rejected_ppm = 300_000;
    }
    service.proxy_tlvs = ProxyTlvs::from_bits((key.port % 8) as u8);
    service.syn_cookies = match (service.idle_timeout_udp.as_secs(), key.port % 4) {
        (1, 0) => Some(SynCookies::Off),
        (1, 1) => Some(SynCookies::Always),
        _ => None,
    };
    service.vpce_id = VpceId::new(&format!("vpce-{}", key.port)).expect("it is short");
    for _ in 0..choices.below(5) {
        let new = backend(choices, &service);
        if !service.backends.iter().any(|b| (b.address, b.port) == (new.address, new.port)) {
            service.backends.push(new);
        }
    }
    service.scheduler = scheduler(&service);
    if let Some(first) = service.backends.first().filter(|_| service.idle_timeout_udp == seconds(1)) {
        service.choice.warming = [Warming { address: first.address, port: first.port, step: 3 }].into();
    }
    if choices.one_in(3) {
        let former = |backend: &BackendSpec| FormerWeight {
            address: backend.address,
            port: backend.port,
            weight: choices.pick(&[0, 1, 1, 2]),
        };
        service.flow_tracking = FlowTracking::OnChange(service.backends.iter().map(former).collect());
    }
    service
}

/// The scheduler of a service, or another one for some keys.
fn scheduler(service: &ServiceSpec) -> Scheduler {
    match (service.key.port, Addr::from(service.key.vip).bytes()[15] % 2) {
        (8080, 1) => Scheduler::WeightedRoundRobin,
        (8080, _) => Scheduler::Loads(LoadRule::LeastConnections),
        (53, 1) => Scheduler::SourceHash,
        (53, _) => Scheduler::DestinationHash,
        _ => service.scheduler,
    }
}

/// A few services have limits that some packets exceed.
///
/// The key decides, so that stored inputs keep their meaning.
fn limits(key: &ServiceKey) -> ServiceLimits {
    let one = |wanted: bool| wanted.then_some(NonZeroU32::MIN);
    let chosen = Addr::from(key.vip).bytes()[15] % 4;
    ServiceLimits {
        connections: one(chosen == 1 && key.protocol == Protocol::Tcp),
        connection_rate: one(chosen == 1 && key.protocol == Protocol::Udp),
        bandwidth: NonZeroU64::new(8_000).filter(|_| chosen == 2),
    }
}

/// A few services have source ranges, which include only half of the clients.
fn ranges(choices: &mut Choices<'_>) -> Option<Arc<[IpNet]>> {
    let nets: &[&str] = match choices.below(8) {
        5 => &["198.51.100.0/25", "2001:db8::/33"],
        6 => &["198.51.100.128/25", "10.0.0.0/8", "::/0"],
        7 => &[],
        _ => return None,
    };
    Some(nets.iter().map(|net| net.parse().expect("written right")).collect())
}

fn state(choices: &mut Choices<'_>) -> BackendState {
    choices.pick(&[BackendState::Active, BackendState::Active, BackendState::Draining, BackendState::Down])
}

fn backend(choices: &mut Choices<'_>, service: &ServiceSpec) -> BackendSpec {
    let other_family = service.mode.is_tunnel() && choices.one_in(2);
    let addresses = if service.key.vip.is_ipv4() != other_family { &BACKENDS_V4 } else { &BACKENDS_V6 };
    BackendSpec {
        address: ip(choices.pick(addresses)),
        port: if service.mode.is_dsr() { service.key.port } else { choices.pick(&[8080, 80]) },
        weight: choices.pick(&[1, 1, 3, 0]),
        state: state(choices),
    }
}
