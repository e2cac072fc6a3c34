//! `flowTracking: on-change`: stable flows have no entries, and no connection breaks in a change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_conntrack::flow_record::Walks;
use tidegate_select::rendezvous::WeightHistory;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, FormerWeight, ForwardingMode, NeighborSpec, Protocol, Scheduler,
    ServiceLimits, ServiceSpec,
};
use tidegate_wire::tcp::flags;

use super::lab::{Lab, service};
use crate::pipeline::{FlowNote, ImportOutcome, SharedFlows};
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const WINDOW: Duration = Duration::from_secs(300);

/// A gateway with a list of backends, as from the control plane.
struct Fleet {
    lab: Lab,
    history: WeightHistory,
    backends: BTreeMap<SocketAddr, (BackendState, Duration)>,
    elapsed: Duration,
}

fn host(n: u32) -> SocketAddr {
    let [_, _, high, low] = n.to_be_bytes();
    SocketAddr::new([10, 0, high, low].into(), 80)
}

impl Fleet {
    fn new(mode: ForwardingMode, protocol: Protocol, backends: impl Iterator<Item = u32>) -> Self {
        let mut lab = Lab::new(vec![service(mode, protocol, VIP, &[])]);
        lab.change(|spec| {
            spec.network.interfaces[0].addresses[0] = "10.0.255.254/16".parse().unwrap();
            spec.network.neighbors.retain(|neighbor| neighbor.ip.is_ipv6());
            let mac = super::lab::backend_mac(1);
            spec.network.neighbors.extend((1..2000).map(|n| NeighborSpec { ip: host(n).ip(), mac }));
            spec.network.routes.retain(|route| route.via.is_ipv6());
            spec.network.snat_addresses.clear();
        });
        let active = backends.map(|n| (host(n), (BackendState::Active, Duration::MAX))).collect();
        let mut fleet =
            Self { lab, history: WeightHistory::default(), backends: active, elapsed: Duration::ZERO };
        fleet.history = WeightHistory::next(None, fleet.weights(), WINDOW, Duration::ZERO);
        fleet.publish();
        fleet
    }

    fn weights(&self) -> BTreeMap<SocketAddr, u16> {
        let active = self.backends.iter().filter(|(_, (state, _))| *state == BackendState::Active);
        active.map(|(at, _)| (*at, 1)).collect()
    }

    fn change(&mut self, leave: &[u32], join: &[u32]) {
        for n in leave {
            self.backends.insert(host(*n), (BackendState::Down, self.elapsed + WINDOW));
        }
        for n in join {
            self.backends.insert(host(*n), (BackendState::Active, Duration::MAX));
        }
        self.publish();
    }

    fn publish(&mut self) {
        let elapsed = self.elapsed;
        self.backends.retain(|_, (_, until)| *until > elapsed);
        self.history = WeightHistory::next(Some(&self.history), self.weights(), WINDOW, elapsed);
        let moved = self.history.former_weights();
        let moved = moved.map(|(at, weight)| FormerWeight { address: at.ip(), port: at.port(), weight });
        let moved: Vec<_> = moved.collect();
        let backend = |(at, (state, _)): (&SocketAddr, &(BackendState, Duration))| BackendSpec {
            address: at.ip(),
            port: at.port(),
            weight: 1,
            state: *state,
        };
        let backends: Vec<BackendSpec> = self.backends.iter().map(backend).collect();
        self.lab.change(|spec| {
            spec.services[0].backends = backends;
            spec.services[0].flow_tracking = FlowTracking::OnChange(moved.into());
        });
    }

    fn wait(&mut self, time: Duration) {
        self.elapsed += time;
        self.lab.wait(time);
        self.publish();
    }

    fn send(&mut self, port: u16, bits: u8) -> IpAddr {
        let result =
            self.lab.send(Builder::tcp(client(port), VIP.parse::<SocketAddr>().unwrap()).flags(bits));
        result.sent(TransmitReason::Forward);
        self.lab.backend_of(&result)
    }

    fn entries(&self) -> usize {
        self.lab.pipeline.flows().dsr.live()
    }
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new([198, 51, 100, 7].into(), port)
}

#[test]
fn stable_flows_have_no_entries() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::DsrIpip] {
        let mut fleet = Fleet::new(mode, Protocol::Tcp, 1..=10);
        for port in 1000..1500 {
            let owner = fleet.send(port, flags::SYN);
            assert_eq!(fleet.send(port, flags::ACK), owner);
            assert_eq!(fleet.send(port, flags::ACK | flags::FIN), owner);
        }
        assert_eq!(fleet.entries(), 0, "{mode}");
    }
}

#[test]
fn a_change_moves_new_connections_and_no_known_ones() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let ports = 1000..3000;
    let owners: Vec<IpAddr> = ports.clone().map(|port| fleet.send(port, flags::SYN)).collect();
    fleet.change(&[3], &[11]);
    let (mut moved, mut stayed) = (0, 0);
    for (port, owner) in ports.clone().zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner, "the segment doesn't open a connection");
        // Another range of ports is as good as another client.
        let new = fleet.send(port + 10_000, flags::SYN);
        assert_ne!(new, host(3).ip(), "a removed backend gets no new connection");
        assert_eq!(fleet.send(port + 10_000, flags::ACK), new);
        if *owner == host(3).ip() { moved += 1 } else { stayed += 1 }
    }
    assert!(moved > 100 && stayed > 1000, "{moved} {stayed}");
    // About a tenth belonged to the removed backend, and a tenth goes to the added one; other connections are not in
    // flux.
    assert!((300..1500).contains(&fleet.entries()), "{}", fleet.entries());
}

#[test]
fn a_rolling_update_of_100_backends_breaks_no_connection() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=100);
    let mut owners: BTreeMap<u16, IpAddr> =
        (1000..2500).map(|port| (port, fleet.send(port, flags::SYN))).collect();
    let (mut checked, mut next) = (0, 3000);
    for n in 1..=100 {
        fleet.change(&[n], &[n + 1000]);
        for step in 0..2 {
            fleet.wait(Duration::from_secs(5));
            for _ in 0..5 {
                let owner = fleet.send(next, flags::SYN);
                owners.insert(next, owner);
                next += 1;
            }
            // Each connection sends every 20 s.
            owners.retain(|_, owner| fleet.backends.keys().any(|at| at.ip() == *owner));
            for (port, owner) in owners.iter().filter(|(port, _)| (u32::from(**port) + step) % 2 == 0) {
                assert_eq!(fleet.send(*port, flags::ACK | flags::PSH), *owner, "{port}, after {n}");
                checked += 1;
            }
        }
    }
    assert!(checked > 50_000, "{checked}");
}

#[test]
fn after_the_window_flows_are_stable_and_entries_stay() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let owners: Vec<IpAddr> = (1000..2000).map(|port| fleet.send(port, flags::SYN)).collect();
    fleet.change(&[], &[11, 12]);
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner);
        assert_eq!(fleet.send(port, flags::ACK), *owner);
    }
    let entries = fleet.entries();
    assert!((50..400).contains(&entries), "those that would move: {entries}");
    fleet.wait(WINDOW);
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner, "its entry lasts for the idle timeout");
    }
    for port in 20_000..20_500 {
        let owner = fleet.send(port, flags::SYN);
        assert_eq!(fleet.send(port, flags::ACK), owner);
    }
    assert_eq!(fleet.entries(), entries, "nothing new is in flux");
}

#[test]
fn datagrams_move_with_the_next_packet_and_never_have_an_entry() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Udp, 1..=4);
    let to: SocketAddr = VIP.parse().unwrap();
    let send = |fleet: &mut Fleet, port| {
        let result = fleet.lab.send(Builder::udp(client(port), to));
        result.sent(TransmitReason::Forward);
        assert_eq!(result.note.flow, FlowNote::None);
        fleet.lab.backend_of(&result)
    };
    let owners: Vec<IpAddr> = (1000..1200).map(|port| send(&mut fleet, port)).collect();
    fleet.change(&[2], &[]);
    for (port, owner) in (1000..1200).zip(owners) {
        let now = send(&mut fleet, port);
        assert_eq!(now == owner, owner != host(2).ip(), "only those of the removed backend move");
    }
    assert_eq!(fleet.entries(), 0);
}

#[test]
fn a_forged_segment_creates_no_established_entry() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=4);
    fleet.change(&[2], &[]);
    for port in 1000..2000 {
        fleet.send(port, flags::ACK);
    }
    let mut established = 0;
    let now = fleet.lab.now;
    fleet.lab.pipeline.flows().scan(0, u64::MAX, now, |flow| {
        established += usize::from(flow.phase == tidegate_conntrack::Phase::Established);
    });
    assert_eq!(established, 0);
    let before = fleet.entries();
    for port in 3000..4000 {
        fleet.send(port, flags::RST);
    }
    assert_eq!(fleet.entries(), before, "a reset creates no entry");
}

#[test]
fn flows_in_flux_can_be_shared_with_another_gateway() {
    let mut one = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let mut other = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    for fleet in [&mut one, &mut other] {
        fleet.change(&[3], &[11]);
    }
    let owners: Vec<IpAddr> = (1000..2000).map(|port| one.send(port, flags::SYN)).collect();
    let mut exported: Vec<FlowUpdate> = Vec::new();
    one.lab.pipeline.set_shared_flows(Some(SharedFlows::InFlux), Walks::default());
    while one
        .lab
        .pipeline
        .share(&one.lab.snapshot, Walks::default(), true, one.lab.now, |updates| exported.push(updates))
    {}
    assert_eq!(exported.len(), one.entries());
    assert!(exported.len() > 100);
    for flow in &exported {
        assert_eq!(other.lab.pipeline.adopt(&other.lab.snapshot, flow, other.lab.now), ImportOutcome::New);
    }
    for (port, owner) in (1000..2000).zip(owners) {
        assert_eq!(
            other.send(port, flags::ACK),
            owner,
            "the other gateway would have chosen the former owner"
        );
    }
}

#[test]
fn a_flow_in_flux_has_its_first_used_seat_of_before_and_after_a_change() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=300);
    let before = fleet.lab.snapshot.services().next().unwrap().0.clone();
    fleet.change(&[1, 2, 3, 4, 5], &[1001, 1002, 1003]);
    let after = fleet.lab.snapshot.services().next().unwrap().0;
    let mut in_flux = 0;
    for hash in (0..20_000).map(tidegate_structures::hash::mix) {
        let (then, now) = (before.select(hash), after.select(hash));
        assert_eq!(after.selector().former(hash), (then != now).then_some(then));
        in_flux += usize::from(then != now);
    }
    // 5 of 300 were removed, and 3 of 298 were added.
    assert!((350..750).contains(&in_flux), "{in_flux}");
}

#[test]
fn former_seats_follow_from_addresses_alone() {
    let mut knows = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let mut fresh = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    for fleet in [&mut knows, &mut fresh] {
        fleet.change(&[3], &[11]);
    }
    // It has started since, and doesn't know the removed backend.
    fresh.backends.remove(&host(3));
    fresh.publish();
    let former = |fleet: &Fleet, hash| {
        let snapshot = &fleet.lab.snapshot;
        let former = snapshot.services().next().unwrap().0.selector().former(hash);
        former.map(|id| snapshot.backend(id.expect("there were backends")).map(|backend| backend.address))
    };
    let mut of_unknown = 0;
    for hash in (0..20_000).map(tidegate_structures::hash::mix) {
        let [knows, fresh] = [&knows, &fresh].map(|fleet| former(fleet, hash));
        assert_eq!(fresh.is_some(), knows.is_some(), "the same flows are in flux");
        match fresh {
            Some(None) => of_unknown += 1,
            known => assert_eq!(known, knows),
        }
    }
    assert!(of_unknown > 1_000, "{of_unknown}");
}

#[test]
fn schedulers_and_modes_that_need_entries_track_always() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=4);
    fleet.lab.change(|spec| spec.services[0].scheduler = Scheduler::Maglev { slots: 251 });
    fleet.send(1000, flags::SYN);
    assert_eq!(fleet.entries(), 1);
}

#[test]
fn a_connection_with_reused_ports_stays_with_its_own_backend() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let owners: Vec<IpAddr> = (1000..2000).map(|port| fleet.send(port, flags::SYN)).collect();
    fleet.change(&[], &[11, 12]);
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner);
        assert_eq!(fleet.send(port, flags::ACK), *owner);
    }
    fleet.wait(WINDOW - Duration::from_secs(10));
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::FIN | flags::ACK), *owner);
    }
    fleet.wait(Duration::from_secs(20));
    for (port, owner) in (1000..2000).zip(&owners) {
        let now = fleet.send(port, flags::SYN);
        assert_eq!(fleet.send(port, flags::ACK), now, "{port} was with {owner}");
    }
}

#[test]
fn connections_of_a_service_that_tracks_always_again_keep_their_backends() {
    let mut fleet = Fleet::new(ForwardingMode::DsrIpip, Protocol::Tcp, 1..=10);
    let owners: Vec<IpAddr> = (1000..2000).map(|port| fleet.send(port, flags::SYN)).collect();
    fleet.change(&[3], &[11]);
    fleet.lab.change(|spec| {
        let FlowTracking::OnChange(moved) = spec.services[0].flow_tracking.clone() else { panic!("it did") };
        spec.services[0].flow_tracking = FlowTracking::AlwaysAfter(moved);
    });
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner, "it has no entry yet");
    }
    assert_eq!(fleet.entries(), 1000, "all have an entry now");
    for port in 3000..3500 {
        assert_ne!(fleet.send(port, flags::SYN), host(3).ip(), "a removed backend gets no new connection");
    }
    fleet.lab.change(|spec| spec.services[0].flow_tracking = FlowTracking::Always);
    for (port, owner) in (1000..2000).zip(&owners) {
        assert_eq!(fleet.send(port, flags::ACK), *owner, "it has an entry now");
    }
}

#[test]
fn a_stable_flow_is_refused_for_its_source_hop_limit_and_service_limits() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let packet = |from: SocketAddr, bits| Builder::tcp(from, VIP.parse::<SocketAddr>().unwrap()).flags(bits);
    for bits in [flags::SYN, flags::ACK] {
        let ours = SocketAddr::new("10.0.255.254".parse().unwrap(), 1000);
        let group = SocketAddr::new([224, 0, 0, 1].into(), 1000);
        for from in [ours, group] {
            assert_eq!(fleet.lab.send(packet(from, bits)).refused(), Refusal::BadSource, "{from} {bits}");
        }
        let result = fleet.lab.send(packet(client(1), bits).ttl(1));
        assert!(
            !matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Forward, .. }),
            "{result:?}"
        );
    }
    let (port, bits) = (2, flags::SYN);
    let backend = fleet.send(port, bits);
    fleet.lab.change(|spec| {
        let ranges = Some(["198.51.100.0/28".parse().unwrap()].into());
        let limits = ServiceLimits { connection_rate: NonZeroU32::new(2), ..ServiceLimits::default() };
        let service = ServiceSpec { source_ranges: ranges, limits, ..(*spec.services[0]).clone() };
        spec.services[0] = service.into();
    });
    let outside = SocketAddr::new([198, 51, 100, 77].into(), 1000);
    for bits in [flags::SYN, flags::ACK] {
        assert_eq!(fleet.lab.send(packet(outside, bits)).refused(), Refusal::SourceRange);
    }
    let refused = (100..200).filter(|&port| {
        let result = fleet.lab.send(packet(client(port), flags::SYN));
        result.verdict == Verdict::Drop(Refusal::ServiceConnectionRate.into())
    });
    assert!(refused.count() > 90, "SYNs beyond the limit");
    // Packets of existing connections don't count.
    (100..200).for_each(|port| assert!(fleet.send(port, flags::ACK).is_ipv4()));
    assert_eq!(fleet.send(port, flags::ACK), backend);
    assert_eq!(fleet.entries(), 0);
}

#[test]
fn flows_with_and_without_entries_share_bursts() {
    let mut fleet = Fleet::new(ForwardingMode::DsrL2, Protocol::Tcp, 1..=10);
    let ports = 1000..1032;
    let before: Vec<IpAddr> = ports.clone().map(|port| fleet.send(port, flags::SYN)).collect();
    fleet.change(&[3, 4], &[11, 12]);
    let burst: Vec<Vec<u8>> = ports
        .clone()
        .map(|port| {
            let packet = Builder::tcp(client(port), VIP.parse::<SocketAddr>().unwrap()).flags(flags::ACK);
            packet.mac(super::lab::ROUTER_MAC, GATEWAY_MAC).build()
        })
        .collect();
    // In the window some flows get entries. After it they keep them, and the other flows have none.
    let mut entries = 0;
    for _ in 0..10 {
        let results = fleet.lab.receive_burst(&burst);
        let reached: Vec<IpAddr> = results.iter().map(|result| fleet.lab.backend_of(result)).collect();
        let expected = before.iter().map(|&addr| {
            let gone = [host(3).ip(), host(4).ip()].contains(&addr);
            (!gone || entries == 0).then_some(addr)
        });
        for ((port, expected), reached) in ports.clone().zip(expected).zip(reached) {
            assert!(expected.is_none_or(|expected| expected == reached), "{port}: {expected:?} {reached}");
        }
        entries = entries.max(fleet.entries());
        fleet.wait(Duration::from_secs(40));
    }
    assert!(entries > 0 && entries < 32, "{entries} of 32 were in flux");
}
