//! NAT with several workers: packets of an established flow are sent by the workers that receive them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, Protocol, ServiceSpec, SnapshotSpec};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, RST, SYN};
use tidegate_wire::{Headers, Parsed};

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, service, spec};
use crate::forward::snat_ports::{Rss, Steering};
use crate::pipeline::Arrival;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const WORKERS: u8 = 4;
const MODES: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
/// The addresses of a client, a VIP and a backend.
const SIDES: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:80"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:80"],
];

/// The workers of one gateway, with their messages.
struct Gateway {
    labs: Vec<Lab>,
    hand_overs: usize,
    /// Messages are lost.
    is_mute: bool,
}

impl Gateway {
    fn new(change: impl Fn(&mut ServiceSpec)) -> Self {
        Self::of(ForwardingMode::Nat, Protocol::Tcp, SIDES[0], change)
    }

    fn of(
        mode: ForwardingMode,
        protocol: Protocol,
        sides: [&str; 3],
        change: impl Fn(&mut ServiceSpec),
    ) -> Self {
        Self::with(&Steering::Partition, mode, protocol, sides, change)
    }

    fn with(
        steering: &Steering,
        mode: ForwardingMode,
        protocol: Protocol,
        [_, vip, backend]: [&str; 3],
        change: impl Fn(&mut ServiceSpec),
    ) -> Self {
        let mut service = service(mode, protocol, vip, &[backend]);
        change(&mut service);
        let spec = SnapshotSpec { services: vec![service.into()], ..spec() };
        let lab = |worker| Lab::worker(spec.clone(), worker, WORKERS, steering.clone());
        Self { labs: (0..WORKERS).map(lab).collect(), hand_overs: 0, is_mute: false }
    }

    /// Receives a frame at a worker, and delivers all messages.
    fn receive(&mut self, at: u8, frame: &[u8]) -> FrameResult {
        let (mut at, mut arrival) = (at, Arrival::Wire(0));
        loop {
            let result = self.labs[usize::from(at)].receive_as(arrival, frame);
            if let Arrival::HandedOver(_, from) = arrival
                && !self.is_mute
            {
                for copy in &result.flow_copies {
                    let lab = &mut self.labs[usize::from(from)];
                    lab.pipeline.store_copy(copy, lab.now);
                }
            }
            for (owner, used) in result.flow_uses.iter().filter(|_| !self.is_mute) {
                let lab = &mut self.labs[usize::from(*owner)];
                let answer = lab.pipeline.confirm_copy(&lab.snapshot, used, lab.now);
                let lab = &mut self.labs[usize::from(used.user)];
                lab.pipeline.store_copy(&answer, lab.now);
            }
            let Verdict::HandOver(to) = result.verdict else { return result };
            (at, arrival) = (to, arrival.handed_over(at));
            self.hand_overs += 1;
        }
    }

    fn wait(&mut self, time: Duration) {
        self.labs.iter_mut().for_each(|lab| lab.wait(time));
    }

    fn change(&mut self, change: impl Fn(&mut SnapshotSpec)) {
        self.labs.iter_mut().for_each(|lab| lab.change(&change));
    }

    /// The hand-overs since the last call.
    fn hand_overs(&mut self) -> usize {
        std::mem::take(&mut self.hand_overs)
    }

    /// The worker that owns the flow of this frame.
    fn owner(&mut self, frame: &[u8]) -> u8 {
        match self.labs[0].receive(frame).verdict {
            Verdict::HandOver(owner) => owner,
            _ => 0,
        }
    }
}

fn headers(frame: &[u8]) -> Headers {
    match tidegate_wire::parse(frame) {
        Ok(Parsed::Ip(headers)) => headers,
        other => panic!("not a sound IP packet: {other:?}"),
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address in a test")
}

fn frame(protocol: Protocol, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let builder = match protocol {
        Protocol::Udp => Builder::udp(from, to),
        _ => Builder::tcp(from, to).flags(flags),
    };
    let sender = if from.port() == 80 { backend_mac(1) } else { ROUTER_MAC };
    builder.payload_len(9).mac(sender, GATEWAY_MAC).build()
}

/// A connection whose two directions arrive at two workers that don't own it.
struct Connection {
    protocol: Protocol,
    client: SocketAddr,
    vip: SocketAddr,
    backend: SocketAddr,
    /// The client as the backend sees it.
    local: SocketAddr,
    at: [u8; 2],
}

impl Connection {
    fn open(gateway: &mut Gateway, protocol: Protocol, [client, vip, backend]: [&str; 3]) -> Self {
        let (client, vip, backend) = (addr(client), addr(vip), addr(backend));
        // A segment of no connection is answered by the worker that would own it.
        let owner = gateway.owner(&frame(Protocol::Tcp, client, vip, ACK));
        let at = [(owner + 1) % WORKERS, (owner + 2) % WORKERS];
        let mut connection = Self { protocol, client, vip, backend, local: client, at };
        connection.handshake(gateway);
        connection
    }

    fn handshake(&mut self, gateway: &mut Gateway) {
        let result = self.request(gateway, SYN);
        let h = headers(result.sent(TransmitReason::Forward));
        self.local = SocketAddr::new(h.src.ip(), h.src_port);
        self.reply(gateway, SYN | ACK).sent(TransmitReason::Reply);
        self.request(gateway, ACK).sent(TransmitReason::Forward);
    }

    fn request(&self, gateway: &mut Gateway, flags: u8) -> FrameResult {
        gateway.receive(self.at[0], &frame(self.protocol, self.client, self.vip, flags))
    }

    fn reply(&self, gateway: &mut Gateway, flags: u8) -> FrameResult {
        gateway.receive(self.at[1], &frame(self.protocol, self.backend, self.local, flags))
    }

    /// Sends data in both directions, and returns both frames.
    fn exchange(&self, gateway: &mut Gateway) -> [Vec<u8>; 2] {
        [
            self.request(gateway, ACK | PSH).sent(TransmitReason::Forward).to_vec(),
            self.reply(gateway, ACK | PSH).sent(TransmitReason::Reply).to_vec(),
        ]
    }

    /// [`Self::exchange`] until both workers have copies.
    fn exchange_until_copied(&self, gateway: &mut Gateway) {
        (0..2).for_each(|_| drop(self.exchange(gateway)));
        gateway.hand_overs();
        self.exchange(gateway);
        assert_eq!(gateway.hand_overs(), 0, "both workers have copies");
    }
}

/// Every mode, protocol and family.
fn cases() -> impl Iterator<Item = (ForwardingMode, Protocol, [&'static str; 3])> {
    MODES.into_iter().flat_map(|mode| {
        [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(move |p| SIDES.map(|sides| (mode, p, sides)))
    })
}

#[test]
fn every_worker_sends_packets_of_an_established_flow_alike() {
    for (mode, protocol, sides) in cases() {
        let mut gateway = Gateway::of(mode, protocol, sides, |_| {});
        let connection = Connection::open(&mut gateway, protocol, sides);
        gateway.is_mute = true;
        let by_owner = connection.exchange(&mut gateway);
        assert!(gateway.hand_overs() > 0);
        gateway.is_mute = false;
        connection.exchange_until_copied(&mut gateway);
        // Longer than any idle timeout of the service: the reports keep the flow alive.
        for _ in 0..2 * 1_200 {
            gateway.wait(Duration::from_millis(500));
            assert_eq!(connection.exchange(&mut gateway), by_owner);
        }
        assert_eq!(gateway.hand_overs(), 0);
        let live: usize = gateway.labs.iter().map(|lab| lab.pipeline.flows().live()).sum();
        assert_eq!(live, 1, "{mode:?}");
        let counted: u64 = gateway.labs.iter().map(|lab| lab.counters.hand_overs()).sum();
        assert!(counted < 20, "{counted}");
    }
}

#[test]
fn the_fast_path_sends_by_copies_what_the_stages_send() {
    let key = (0..40).map(|n: u8| n.wrapping_mul(167).wrapping_add(13)).collect();
    let rss = Rss { key, queues: (0..128).map(|n| n % WORKERS).collect(), sctp_ports: true };
    let rss = Steering::Rss(Box::new(rss));
    // With RSS, `fullnat` needs no copies.
    let by_rss = cases().filter(|(mode, ..)| *mode == ForwardingMode::Nat).map(|case| (&rss, case));
    for (steering, (mode, protocol, sides)) in cases().map(|case| (&Steering::Partition, case)).chain(by_rss)
    {
        let mut gateways = [true, false].map(|is_on| {
            let mut gateway = Gateway::with(steering, mode, protocol, sides, |_| {});
            gateway.labs.iter_mut().for_each(|lab| lab.pipeline.set_fast_path(is_on));
            gateway
        });
        let connections = gateways.each_mut().map(|gateway| Connection::open(gateway, protocol, sides));
        let mut fast = [0, 0];
        for iteration in 0..60 {
            let flags = if protocol == Protocol::Tcp && iteration == 50 { FIN | ACK } else { ACK | PSH };
            let results = [0, 1].map(|n| {
                let (gateway, connection) = (&mut gateways[n], &connections[n]);
                gateway.wait(Duration::from_millis(100));
                // The copies are not confirmed for a while.
                gateway.is_mute = (20..35).contains(&iteration);
                [connection.request(gateway, flags), connection.reply(gateway, flags)]
            });
            let [with, without] = &results;
            for (with, without) in with.iter().zip(without) {
                assert_eq!(
                    (with.verdict, &with.frame, with.note),
                    (without.verdict, &without.frame, without.note)
                );
            }
            assert_eq!(
                gateways[0].hand_overs(),
                gateways[1].hand_overs(),
                "{mode:?} {protocol:?}, iteration {iteration}"
            );
            fast.iter_mut().zip(&results[0]).for_each(|(count, result)| *count += u32::from(result.is_fast));
            assert!(results[1].iter().all(|result| !result.is_fast));
        }
        assert!(fast.iter().all(|&count| count >= 25), "{mode:?} {protocol:?}: {fast:?} of 60");
        let counted = gateways
            .each_ref()
            .map(|gateway| gateway.labs.iter().map(|lab| lab.counters.hand_overs()).sum::<u64>());
        assert_eq!(counted[0], counted[1]);
        // The client's address becomes a VIP. Then no worker sends replies to it, with or without a copy.
        let vip = SocketAddr::new(addr(sides[0]).ip(), 81).to_string();
        let results = [0, 1].map(|n| {
            let (gateway, connection) = (&mut gateways[n], &connections[n]);
            let other = service(mode, protocol, &vip, &[sides[2]]);
            gateway.change(|spec| spec.services.push(other.clone().into()));
            connection.reply(gateway, ACK | PSH)
        });
        assert_eq!(
            (results[0].verdict, &results[0].frame),
            (results[1].verdict, &results[1].frame),
            "{mode:?}"
        );
    }
}

#[test]
fn the_owner_gets_packets_that_end_a_connection_and_all_later_ones() {
    for (last, by_client) in [(FIN | ACK, true), (RST, true), (FIN | ACK, false), (RST | ACK, false)] {
        let mut gateway = Gateway::new(|_| {});
        let mut connection = Connection::open(&mut gateway, Protocol::Tcp, SIDES[0]);
        connection.exchange_until_copied(&mut gateway);
        let at = usize::from(!by_client);
        let other = usize::from(by_client);
        // Both sides end it.
        for side in [at, other] {
            let result = if side == 0 {
                connection.request(&mut gateway, last)
            } else {
                connection.reply(&mut gateway, last)
            };
            assert!(matches!(result.verdict, Verdict::Transmit { .. }));
            assert_eq!(gateway.hand_overs(), 1);
        }
        for _ in 0..3 {
            connection.request(&mut gateway, ACK);
            assert_eq!(gateway.hand_overs(), 1, "a connection that ends is not copied");
        }
        // The client uses its port again.
        connection.handshake(&mut gateway);
        assert_eq!(gateway.hand_overs(), 3);
        connection.exchange_until_copied(&mut gateway);
    }
}

#[test]
fn lost_messages_only_cost_hand_overs() {
    let mut gateway = Gateway::new(|_| {});
    let connection = Connection::open(&mut gateway, Protocol::Tcp, SIDES[0]);
    connection.exchange_until_copied(&mut gateway);
    gateway.is_mute = true;
    let mut hand_overs = Vec::new();
    for _ in 0..6 {
        gateway.wait(Duration::from_millis(900));
        connection.exchange(&mut gateway);
        hand_overs.push(gateway.hand_overs());
    }
    assert_eq!(hand_overs, [0, 0, 0, 0, 2, 2], "an unconfirmed copy is used for four seconds");
    gateway.is_mute = false;
    connection.exchange_until_copied(&mut gateway);
}

#[test]
fn the_owner_decides_on_packets_for_a_backend_that_is_down() {
    let mut gateway = Gateway::new(|_| {});
    let connection = Connection::open(&mut gateway, Protocol::Tcp, SIDES[0]);
    connection.exchange_until_copied(&mut gateway);
    gateway.change(|spec| spec.services[0].backends[0].state = BackendState::Down);
    connection.request(&mut gateway, ACK);
    assert_eq!(gateway.hand_overs(), 1);
}

#[test]
fn a_flow_outside_new_source_ranges_loses_its_copies_within_a_second() {
    let mut gateway = Gateway::new(|_| {});
    let connection = Connection::open(&mut gateway, Protocol::Tcp, SIDES[0]);
    connection.exchange_until_copied(&mut gateway);
    let ranges: Arc<[_]> = ["192.0.2.0/24".parse().expect("written right")].into();
    gateway.change(|spec| spec.services[0].source_ranges = Some(ranges.clone()));
    gateway.wait(Duration::from_secs(1));
    connection.request(&mut gateway, ACK);
    let result = connection.request(&mut gateway, ACK);
    assert_eq!(gateway.hand_overs(), 1, "the report of the previous packet has withdrawn the copy");
    assert!(matches!(result.verdict, Verdict::Drop(_)), "{:?}", result.verdict);
}

#[test]
fn flows_whose_bytes_change_or_that_may_end_soon_are_not_copied() {
    let proxy: fn(&mut ServiceSpec) = |service| service.proxy_protocol = Some(ProxyVersion::V2);
    let short: fn(&mut ServiceSpec) = |service| service.idle_timeout_tcp = Duration::from_secs(7);
    for change in [proxy, short] {
        let mut gateway = Gateway::new(change);
        let connection = Connection::open(&mut gateway, Protocol::Tcp, SIDES[0]);
        for _ in 0..3 {
            gateway.hand_overs();
            connection.request(&mut gateway, ACK);
            connection.reply(&mut gateway, ACK);
            assert_eq!(gateway.hand_overs(), 2);
        }
    }
}
