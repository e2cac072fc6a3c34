//! Flows that gateways share: one gateway opens connections, and another one continues them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::TagPair;
use tidegate_conntrack::affinities::Affinities;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_conntrack::flow_record::Walks;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{
    BackendState, FlowTracking, FormerWeight, ForwardingMode, Protocol, ServiceSpec, SnapshotSpec,
};
use tidegate_wire::tcp::flags::{ACK, FIN, RST, SYN};
use tidegate_wire::{Headers, Parsed};

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend, backend_mac, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Arrival, ImportOutcome, KnownIds, SharedFlows};
use crate::testing::builder::{Builder, GATEWAY_MAC};

/// The entries and the secret of the tables of a lab.
const ENTRIES: usize = 4_096;
const SEED: u64 = 7;
const NAT: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
/// The addresses of a client, a VIP and a backend.
const SIDES: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:80"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:80"],
];

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address in a test")
}

fn spec_of(mode: ForwardingMode, vip: &str, backends: &[&str]) -> SnapshotSpec {
    SnapshotSpec { services: vec![service(mode, Protocol::Tcp, vip, backends).into()], ..spec() }
}

/// A change that adds a backend to the only service.
pub(super) fn adds(address: &'static str) -> impl Fn(&mut SnapshotSpec) + Copy {
    move |spec| {
        let mut service = (*spec.services[0]).clone();
        service.backends.push(backend(address, BackendState::Active));
        spec.services = vec![service.into()];
    }
}

pub(super) struct Gateway {
    pub(super) labs: Vec<Lab>,
    walks: Walks,
}

impl Gateway {
    pub(super) fn new(spec: &SnapshotSpec, workers: u8, shared: SharedFlows) -> Self {
        let steering = if workers == 1 { Steering::Single } else { Steering::Partition };
        let affinities = Arc::new(Affinities::new(1_000, 7));
        affinities.prepare();
        let labs = (0..workers).map(|at| {
            let mut lab = Lab::worker(spec.clone(), at, workers, steering.clone());
            lab.pipeline.set_shared_flows(Some(shared), Walks::default());
            if workers == 1 {
                return lab;
            }
            Lab { pipeline: lab.pipeline.with_affinities(Arc::clone(&affinities)), ..lab }
        });
        Self { labs: labs.collect(), walks: Walks::default() }
    }

    /// Another gateway with this spec, but with its own SNAT address.
    pub(super) fn second(spec: &SnapshotSpec, workers: u8) -> Self {
        let mut spec = spec.clone();
        spec.network.snat_addresses = vec!["10.0.0.252".parse().unwrap(), "fd00::fc".parse().unwrap()];
        Self::new(&spec, workers, SharedFlows::Nat)
    }

    pub(super) fn receive(&mut self, at: u8, frame: &[u8]) -> FrameResult {
        let (mut at, mut arrival) = (at, Arrival::Wire(0));
        loop {
            let result = self.labs[usize::from(at)].receive_as(arrival, frame);
            let Verdict::HandOver(to) = result.verdict else { return result };
            (at, arrival) = (to, arrival.handed_over(at));
        }
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, flags: u8) -> FrameResult {
        let at = (from.port() as usize % self.labs.len()) as u8;
        self.receive(at, &frame(from, to, flags))
    }

    /// The updates since the last call, including walks that are due.
    pub(super) fn updates(&mut self) -> Vec<FlowUpdate> {
        let mut all = Vec::new();
        for lab in &mut self.labs {
            while lab.pipeline.share(&lab.snapshot, self.walks, true, lab.now, |updates| all.push(updates)) {}
        }
        all
    }

    pub(super) fn adopt(&mut self, updates: &[FlowUpdate]) -> Vec<ImportOutcome> {
        let labs = &mut self.labs;
        let adopt = |updates| {
            labs.iter_mut().map(move |lab| lab.pipeline.adopt(&lab.snapshot, updates, lab.now)).min()
        };
        updates.iter().flat_map(adopt).collect()
    }

    /// Restores the flows of this gateway in the tables of the next process, whose snapshot is equal.
    fn restart_as(&self, next: &mut Self) {
        for lab in &mut next.labs {
            let mut ids = KnownIds::default();
            for (service, info) in lab.snapshot.services() {
                ids.service(service.id, Some(service.id));
                info.backends
                    .iter()
                    .for_each(|backend| ids.backend(backend.id, service.id, Some(backend.id)));
            }
            for before in &self.labs {
                let stored = before.pipeline.flows().as_stored(ENTRIES, SEED, before.now);
                lab.pipeline.restore(&lab.snapshot, &stored, &ids, lab.now);
            }
        }
    }

    pub(super) fn live(&self) -> usize {
        self.labs.iter().map(|lab| lab.pipeline.flows().live()).sum()
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        for lab in &mut self.labs {
            lab.wait(Duration::from_secs(seconds));
            lab.pipeline.flows_mut().age_each(lab.now, usize::MAX);
        }
    }
}

fn frame(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let sender = if from.port() == 80 { backend_mac(1) } else { ROUTER_MAC };
    Builder::tcp(from, to).flags(flags).payload_len(9).mac(sender, GATEWAY_MAC).build()
}

/// The source and the destination of a frame that was forwarded in either direction.
pub(super) fn sent(result: &FrameResult) -> (SocketAddr, SocketAddr) {
    let forwarded = [TransmitReason::Forward, TransmitReason::Reply];
    let is_forwarded = forwarded.iter().any(|&why| result.verdict == Verdict::Transmit { interface: 0, why });
    assert!(is_forwarded, "{:?}", result.verdict);
    let Ok(Parsed::Ip(Headers { src, src_port, dst, dst_port, .. })) = tidegate_wire::parse(&result.frame)
    else {
        panic!("not a sound IP packet");
    };
    (SocketAddr::new(src.ip(), src_port), SocketAddr::new(dst.ip(), dst_port))
}

/// Opens a connection, and returns its source towards the backend.
fn open(gateway: &mut Gateway, [client, vip, backend]: [&str; 3]) -> SocketAddr {
    let [client, vip, backend] = [client, vip, backend].map(addr);
    let (local, to) = sent(&gateway.send(client, vip, SYN));
    assert_eq!(to, backend);
    assert_eq!(sent(&gateway.send(backend, local, SYN | ACK)), (vip, client));
    assert_eq!(sent(&gateway.send(client, vip, ACK)), (local, backend));
    local
}

#[test]
fn nat_flow_continues_at_another_gateway_in_both_directions() {
    for (mode, sides, workers) in NAT
        .into_iter()
        .flat_map(|mode| SIDES.map(|sides| (mode, sides)))
        .flat_map(|(m, s)| [1, 3].map(|w| (m, s, w)))
    {
        let spec = spec_of(mode, sides[1], &[sides[2]]);
        let (mut first, mut second) =
            (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, workers));
        let local = open(&mut first, sides);
        let updates = first.updates();
        assert_eq!(second.adopt(&updates), [ImportOutcome::New], "{mode:?}, {workers} workers: {updates:?}");
        let [client, vip, backend] = sides.map(addr);
        // The first packet may be a reply that the client waits for.
        for _ in 0..3 {
            assert_eq!(sent(&second.send(backend, local, ACK)), (vip, client), "{mode:?}, {workers} workers");
            assert_eq!(sent(&second.send(client, vip, ACK)), (local, backend), "{mode:?}, {workers} workers");
        }
        // Without the record, the packet belongs to no connection.
        let unknown = Gateway::second(&spec, 1).send(client, vip, ACK);
        assert_eq!(unknown.verdict, Verdict::Transmit { interface: 0, why: TransmitReason::NoFlow });
    }
}

#[test]
fn adopted_flow_survives_a_restart_of_the_gateway_that_adopted_it() {
    let cases =
        NAT.into_iter().flat_map(|mode| SIDES.map(|sides| [1, 3].map(|workers| (mode, sides, workers))));
    for (mode, sides, workers) in cases.flatten() {
        let [client, vip, backend] = sides.map(addr);
        let spec = spec_of(mode, sides[1], &[sides[2]]);
        let mut gone = Gateway::new(&spec, 1, SharedFlows::Nat);
        let local = open(&mut gone, sides);
        let mut adopter = Gateway::second(&spec, workers);
        assert_eq!(adopter.adopt(&gone.updates()), [ImportOutcome::New]);
        let mut next = Gateway::second(&spec, workers);
        adopter.restart_as(&mut next);
        assert_eq!(next.live(), adopter.live(), "{mode:?}, {workers} workers");
        assert_eq!(sent(&next.send(client, vip, ACK)), (local, backend));
        assert_eq!(sent(&next.send(backend, local, ACK)), (vip, client));
    }
}

#[test]
fn new_connection_does_not_keep_the_snat_address_of_another_gateway() {
    for (sides, workers) in SIDES.into_iter().flat_map(|sides| [1, 3].map(|workers| (sides, workers))) {
        let spec = spec_of(ForwardingMode::FullNat, sides[1], &[sides[2]]);
        let [client, vip, backend] = sides.map(addr);
        let own = |gateway: &Gateway, local: SocketAddr| {
            gateway.labs[0].snapshot.is_snat_address(&local.ip().into())
        };
        for (packets, replies) in [(0, 0), (2, 0), (2, 2)] {
            let (mut first, mut second) =
                (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, workers));
            let local = open(&mut first, sides);
            second.adopt(&first.updates());
            second.wait(1);
            for _ in 0..packets {
                assert_eq!(sent(&second.send(client, vip, ACK)), (local, backend));
            }
            for _ in 0..replies {
                assert_eq!(sent(&second.send(backend, local, ACK)), (vip, client));
            }
            let (anew, to) = sent(&second.send(client, vip, SYN));
            assert_eq!(to, backend);
            // A connection that is used here is alive, and the SYN may be forged.
            assert_eq!(own(&second, anew), packets == 0, "{packets} packets, {replies} replies: {anew}");
            assert_eq!(sent(&second.send(backend, anew, SYN | ACK)), (vip, client));
            assert_eq!(sent(&second.send(client, vip, ACK)), (anew, backend));
        }
    }
}

#[test]
fn gateway_knows_whether_it_gets_replies_of_adopted_flows() {
    let [client, vip, backend] = SIDES[0].map(addr);
    let spec = spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]);
    let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
    let local = open(&mut first, SIDES[0]);
    second.adopt(&first.updates());
    let has_replies = |gateway: &mut Gateway| {
        gateway.wait(1);
        gateway.walks.complete += 1;
        let updates = gateway.updates();
        let [FlowUpdate::Live(record)] = updates[..] else { panic!("{updates:?}") };
        record.translation.expect("a NAT flow").has_replies
    };
    assert!(has_replies(&mut first), "its own flow");
    assert!(!has_replies(&mut second));
    second.send(client, vip, ACK);
    assert!(!has_replies(&mut second));
    second.send(backend, local, ACK);
    assert!(has_replies(&mut second));
}

#[test]
fn flow_that_is_not_established_is_not_exported() {
    let [client, vip, backend] = SIDES[0].map(addr);
    let mut gateway =
        Gateway::new(&spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]), 1, SharedFlows::Nat);
    let (local, _) = sent(&gateway.send(client, vip, SYN));
    gateway.send(backend, local, SYN | ACK);
    assert_eq!(gateway.updates(), []);
    gateway.send(client, vip, ACK);
    assert_eq!(gateway.updates().len(), 1);
    assert_eq!(gateway.updates(), [], "plain packets change nothing");
}

#[test]
fn end_of_a_flow_ends_it_at_other_gateways_unless_it_is_used_there() {
    for used in [false, true] {
        let spec = spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]);
        let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
        let local = open(&mut first, SIDES[0]);
        second.adopt(&first.updates());
        let [client, vip, backend] = SIDES[0].map(addr);
        if used {
            second.wait(1);
            second.send(client, vip, ACK);
        }
        first.send(client, vip, FIN | ACK);
        first.send(backend, local, RST);
        first.wait(11);
        assert_eq!(first.live(), 0);
        let updates = first.updates();
        assert!(matches!(updates[..], [FlowUpdate::Gone(_)]), "{updates:?}");
        assert_eq!(second.adopt(&updates), [ImportOutcome::Gone]);
        assert_eq!(second.live(), usize::from(used));
    }
}

#[test]
fn adopted_flow_is_relayed_only_to_a_gateway_that_has_lost_its_tables() {
    let spec = spec_of(ForwardingMode::Nat, SIDES[0][1], &[SIDES[0][2]]);
    let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
    open(&mut first, SIDES[0]);
    second.adopt(&first.updates());
    second.walks.refreshing += 1;
    assert_eq!(second.updates(), [], "the first gateway knows its own flow");
    second.walks.complete += 1;
    let back = second.updates();
    assert!(matches!(back[..], [FlowUpdate::Live(record)] if record.is_relayed), "{back:?}");
    let mut restarted = Gateway::new(&spec, 1, SharedFlows::Nat);
    assert_eq!(restarted.adopt(&back), [ImportOutcome::New]);
    let [client, vip, _] = SIDES[0].map(addr);
    second.wait(1);
    second.send(client, vip, ACK);
    second.walks.refreshing += 1;
    assert!(matches!(second.updates()[..], [FlowUpdate::Live(record)] if !record.is_relayed));
}

#[test]
fn adopted_flow_expires_by_its_age_however_often_it_is_sent() {
    let spec = spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]);
    let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
    open(&mut first, SIDES[0]);
    second.adopt(&first.updates());
    for _ in 0..8 {
        first.wait(100);
        second.wait(100);
        (first.walks.complete, second.walks.complete) = (first.walks.complete + 1, second.walks.complete + 1);
        let (to, fro) = (first.updates(), second.updates());
        assert_eq!(
            (second.adopt(&to), first.adopt(&fro)),
            (vec![ImportOutcome::Known], vec![ImportOutcome::Known])
        );
    }
    first.wait(100);
    second.wait(100);
    assert_eq!((first.live(), second.live()), (0, 0), "the idle timeout is 900 s");
}

#[test]
fn flow_in_use_is_never_replaced_by_a_record() {
    for mode in NAT {
        let spec = spec_of(mode, SIDES[0][1], &["10.0.0.1:80", "10.0.0.2:80"]);
        let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
        let [client, vip, _] = SIDES[0].map(addr);
        let (local, backend) = sent(&first.send(client, vip, SYN));
        first.send(backend, local, SYN | ACK);
        first.send(client, vip, ACK);
        let mut updates = first.updates();
        let [FlowUpdate::Live(record)] = &mut updates[..] else { panic!("{updates:?}") };
        // The other gateway has chosen the other backend for the same ports.
        let other = if backend == addr("10.0.0.1:80") { "10.0.0.2:80" } else { "10.0.0.1:80" };
        let mut elsewhere = *record;
        elsewhere.backend.addr = addr(other).ip().into();
        second.adopt(&[FlowUpdate::Live(elsewhere)]);
        second.wait(1);
        assert_eq!(sent(&second.send(client, vip, ACK)).1, addr(other));
        assert_eq!(second.adopt(&updates), [ImportOutcome::Conflict], "{mode:?}");
        assert_eq!(sent(&second.send(client, vip, ACK)).1, addr(other));
    }
}

#[test]
fn earlier_connection_of_a_client_port_is_replaced_by_the_active_one() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat] {
        let spec = spec_of(mode, SIDES[0][1], &["10.0.0.1:80", "10.0.0.2:80"]);
        let [client, vip, _] = SIDES[0].map(addr);
        let (mut first, mut second) = (Gateway::new(&spec, 1, SharedFlows::Nat), Gateway::second(&spec, 1));
        let gateways = [&mut first, &mut second];
        let mut chosen = None;
        for gateway in gateways {
            // Only one backend is active when a connection opens, a different one at each gateway.
            let other = |at: &str| chosen.is_none_or(|chosen: SocketAddr| chosen != addr(at));
            let all = ["10.0.0.1:80", "10.0.0.2:80"];
            let state = |at: &str| if other(at) { BackendState::Active } else { BackendState::Draining };
            let backends: Vec<_> = all.iter().map(|at| backend(at, state(at))).collect();
            gateway.labs[0].change(|spec| {
                let mut service = (*spec.services[0]).clone();
                service.backends = backends;
                spec.services = vec![service.into()];
            });
            let syn = gateway.send(client, vip, SYN);
            let to = SocketAddr::new(gateway.labs[0].backend_of(&syn), 80);
            if !mode.is_dsr() {
                let (local, to) = sent(&syn);
                gateway.send(to, local, SYN | ACK);
            }
            gateway.send(client, vip, ACK);
            gateway.updates();
            chosen = Some(to);
        }
        let newest = chosen.expect("the second gateway has chosen");
        first.wait(30);
        second.wait(30);
        second.send(client, vip, ACK);
        // The first one sends its connection, which is over, and the other one contradicts.
        first.walks.complete += 1;
        let outdated = first.updates();
        if mode.is_dsr() {
            // It equals the choice of this gateway's tables.
            assert_eq!(outdated, []);
            first.labs[0].change(|spec| {
                let mut service = (*spec.services[0]).clone();
                service.backends.iter_mut().for_each(|backend| backend.state = BackendState::Active);
                service.backends.retain(|backend| SocketAddr::new(backend.address, 80) == newest);
                service.backends.push(self::backend(
                    if newest == addr("10.0.0.1:80") { "10.0.0.2:80" } else { "10.0.0.1:80" },
                    BackendState::Draining,
                ));
                spec.services = vec![service.into()];
            });
        }
        let outdated = if mode.is_dsr() { first.updates() } else { outdated };
        assert_eq!(outdated.len(), 1, "{mode:?}");
        assert_eq!(second.adopt(&outdated), [ImportOutcome::Conflict]);
        let contradiction = second.updates();
        assert_eq!(contradiction.len(), 1, "{mode:?}");
        assert_eq!(first.adopt(&contradiction), [ImportOutcome::New], "{mode:?}");
        let result = first.send(client, vip, ACK);
        assert_eq!(SocketAddr::new(first.labs[0].backend_of(&result), 80), newest, "{mode:?}");
    }
}

#[test]
fn invalid_record_is_refused_with_its_reason() {
    let spec = spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]);
    let mut first = Gateway::new(&spec, 1, SharedFlows::Nat);
    open(&mut first, SIDES[0]);
    let [FlowUpdate::Live(record)] = first.updates()[..] else { panic!("one record") };
    let refuse = |change: &dyn Fn(&mut tidegate_conntrack::flow_record::FlowRecord)| {
        let mut record = record;
        change(&mut record);
        let mut second = Gateway::second(&spec, 1);
        let outcome = second.adopt(&[FlowUpdate::Live(record)])[0];
        assert_eq!(second.live(), usize::from(outcome == ImportOutcome::New));
        outcome
    };
    assert_eq!(refuse(&|_| ()), ImportOutcome::New);
    assert_eq!(refuse(&|record| record.name.service.port = 81), ImportOutcome::UnknownService);
    assert_eq!(refuse(&|record| record.translation = None), ImportOutcome::UnknownService);
    assert_eq!(
        refuse(&|record| record.tags = Some(TagPair { client: 1, server: 2 })),
        ImportOutcome::UnknownService
    );
    assert_eq!(refuse(&|record| record.backend.port = 81), ImportOutcome::UnknownBackend);
    assert_eq!(refuse(&|record| record.name.client.port = 0), ImportOutcome::UnknownService);
    assert_eq!(refuse(&|record| record.idle_ms = 900_000), ImportOutcome::Gone);
    let v6 = addr(SIDES[1][0]).ip();
    assert_eq!(
        refuse(&|record| record.translation.as_mut().unwrap().local.addr = v6.into()),
        ImportOutcome::UnknownService
    );
}

#[test]
fn records_fill_a_table_to_three_quarters_of_its_bound_at_most() {
    let spec = spec_of(ForwardingMode::FullNat, SIDES[0][1], &[SIDES[0][2]]);
    let mut first = Gateway::new(&spec, 1, SharedFlows::Nat);
    open(&mut first, SIDES[0]);
    let [FlowUpdate::Live(record)] = first.updates()[..] else { panic!("one record") };
    let mut second = Gateway::second(&spec, 1);
    let full = (1..60_000u16).filter(|port| {
        let mut record = record;
        record.name.client.port = *port;
        record.translation.as_mut().unwrap().local.port = *port;
        second.adopt(&[FlowUpdate::Live(record)]) == [ImportOutcome::Full]
    });
    assert!(full.count() > 50_000);
    // The tables of a lab have a capacity of 4,096 flows.
    assert!(second.live() <= 3_072, "{}", second.live());
    let before = second.live();
    let local = open(&mut second, ["198.51.100.8:40000", SIDES[0][1], SIDES[0][2]]);
    assert_eq!((second.live(), local.ip()), (before + 1, addr("10.0.0.252:0").ip()));
}

#[test]
fn dsr_flow_is_exported_when_a_change_of_backends_puts_it_in_flux() {
    let spec = spec_of(ForwardingMode::DsrL2, SIDES[0][1], &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let mut first = Gateway::new(&spec, 1, SharedFlows::InFlux);
    let mut second = Gateway::new(&spec, 1, SharedFlows::InFlux);
    let vip = addr(SIDES[0][1]);
    let client = |port| SocketAddr::new("198.51.100.7".parse().unwrap(), port);
    let mut backends = Vec::new();
    for port in 40_000..40_200 {
        first.send(client(port), vip, SYN);
        let result = first.send(client(port), vip, ACK);
        backends.push(first.labs[0].backend_of(&result));
    }
    assert_eq!(first.updates(), [], "the other gateway finds these backends by itself");
    let change = adds("10.0.0.4:80");
    first.labs[0].change(change);
    second.labs[0].change(change);
    let updates = first.updates();
    assert!((20..100).contains(&updates.len()), "a quarter moves: {}", updates.len());
    let outcome = second.adopt(&updates);
    assert!(outcome.iter().all(|outcome| *outcome == ImportOutcome::New), "{outcome:?}");
    for (port, expected) in (40_000..).zip(&backends) {
        let result = second.send(client(port), vip, ACK);
        assert_eq!(second.labs[0].backend_of(&result), *expected, "port {port}");
    }
}

#[test]
fn affinity_is_exported_when_the_tables_select_another_backend() {
    for (mode, workers) in
        [ForwardingMode::DsrL2, ForwardingMode::FullNat].into_iter().flat_map(|m| [(m, 1), (m, 3)])
    {
        let mut spec = spec_of(mode, SIDES[0][1], &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
        let sticky = ServiceSpec { affinity: Some(Duration::from_secs(100)), ..(*spec.services[0]).clone() };
        spec.services = vec![sticky.into()];
        let mut first = Gateway::new(&spec, 1, SharedFlows::InFlux);
        let mut second = Gateway::new(&spec, workers, SharedFlows::InFlux);
        let vip = addr(SIDES[0][1]);
        let client = |n, port| SocketAddr::from(([198, 51, 100, n], port));
        // A new connection of a client.
        let connect = |gateway: &mut Gateway, n, port| {
            let result = gateway.send(client(n, port), vip, SYN);
            gateway.labs[0].backend_of(&result)
        };
        let backends: Vec<_> = (1..=200).map(|n| connect(&mut first, n, 40_000)).collect();
        assert_eq!(first.updates(), [], "{mode}: the other gateway finds these backends by itself");
        let change = adds("10.0.0.4:80");
        first.labs[0].change(change);
        second.labs.iter_mut().for_each(|lab| lab.change(change));
        let updates = first.updates();
        assert!((20..100).contains(&updates.len()), "{mode}: a quarter moves: {}", updates.len());
        let outcome = second.adopt(&updates);
        assert!(outcome.iter().all(|outcome| *outcome == ImportOutcome::New), "{mode}: {outcome:?}");
        for (n, expected) in (1..=200).zip(&backends) {
            assert_eq!(connect(&mut second, n, 50_000), *expected, "{mode}: client {n}");
        }
        // A repeated record changes nothing.
        assert!(second.adopt(&updates).iter().all(|outcome| *outcome == ImportOutcome::Known));
        second.wait(101);
        let moved = (1..=200).zip(&backends).filter(|(n, was)| connect(&mut second, *n, 60_000) != **was);
        assert!((20..100).contains(&moved.count()), "{mode}: after the timeout");
    }
}

#[test]
fn flow_in_flux_of_a_service_that_tracks_on_change_is_exported_at_once() {
    let mut spec = spec_of(ForwardingMode::DsrL2, SIDES[0][1], &["10.0.0.1:80", "10.0.0.2:80"]);
    let mut service: ServiceSpec = (*spec.services[0]).clone();
    // The second backend is new, so its flows are in flux.
    let joined = FormerWeight { address: "10.0.0.2".parse().unwrap(), port: 80, weight: 0 };
    service.flow_tracking = FlowTracking::OnChange([joined].into());
    spec.services = vec![service.into()];
    let mut first = Gateway::new(&spec, 1, SharedFlows::InFlux);
    let mut second = Gateway::new(&spec, 1, SharedFlows::InFlux);
    assert_eq!(first.updates(), [], "the first walk finds nothing");
    let vip = addr(SIDES[0][1]);
    let client = |port| SocketAddr::new("198.51.100.7".parse().unwrap(), port);
    for port in 40_000..40_050 {
        first.send(client(port), vip, SYN);
    }
    let updates = first.updates();
    assert!((10..40).contains(&updates.len()), "{}", updates.len());
    second.adopt(&updates);
    for port in 40_000..40_050 {
        let results = [&mut first, &mut second].map(|gateway| {
            let result = gateway.send(client(port), vip, ACK);
            gateway.labs[0].backend_of(&result)
        });
        assert_eq!(results[0], results[1], "port {port}");
    }
}

#[test]
fn flows_of_a_lost_gateway_keep_their_backends_whenever_they_began() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80"];
    let before = spec_of(ForwardingMode::DsrL2, SIDES[0][1], &backends[..1]);
    let mut after = spec_of(ForwardingMode::DsrL2, SIDES[0][1], &backends);
    let mut service: ServiceSpec = (*after.services[0]).clone();
    let joined = FormerWeight { address: "10.0.0.2".parse().unwrap(), port: 80, weight: 0 };
    service.flow_tracking = FlowTracking::AlwaysAfter([joined].into());
    after.services = vec![service.into()];
    let gateway = |spec| Gateway::new(spec, 1, SharedFlows::InFlux);
    let (mut dead, mut first, mut second) = (gateway(&before), gateway(&after), gateway(&after));
    let vip = addr(SIDES[0][1]);
    let send = |gateway: &mut Gateway, port, flags| {
        let client = SocketAddr::new("198.51.100.7".parse().unwrap(), port);
        let result = gateway.send(client, vip, flags);
        gateway.labs[0].backend_of(&result)
    };
    for port in 40_000..40_050 {
        let began = send(&mut dead, port, SYN);
        assert_eq!(send(&mut second, port, ACK), began, "port {port}, which began before the change");
    }
    assert_eq!(first.updates(), [], "the first walk finds nothing");
    let began: Vec<_> = (50_000..50_050).map(|port| (port, send(&mut first, port, SYN))).collect();
    for (port, backend) in &began {
        assert_eq!(send(&mut first, *port, ACK), *backend);
    }
    second.adopt(&first.updates());
    for (port, backend) in began {
        assert_eq!(send(&mut second, port, ACK), backend, "port {port}, which began after the change");
    }
}
