//! Multihomed SCTP associations: all paths of an association, and no others, reach its backend.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::Phase;
use tidegate_spec::limits::ASSOCIATION_PATHS_MAX;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceLimits, ServiceSpec, SnapshotSpec};
use tidegate_wire::sctp::{self, chunk};
use tidegate_wire::sctp_parameters::addresses;

use super::connection::{ends, headers};
use super::lab::{FrameResult, Lab, backend_mac, ip, service, spec};
use crate::forward::snat_ports::Steering;
use crate::pipeline::Arrival;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:3868";
const SECOND_VIP: &str = "203.0.113.6:3868";
const PORT: u16 = 40_000;
/// The tags that the client and the server require.
const TO_CLIENT: u32 = 0x1111_1111;
const TO_SERVER: u32 = 0x2222_2222;
const BACKENDS: u8 = 8;

/// Address `n` of the client, each in a network of its own.
fn client(n: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([198, 51, 100 + n, 7]), PORT)
}

fn dsr() -> impl Iterator<Item = ForwardingMode> {
    ForwardingMode::ALL.into_iter().filter(|mode| mode.is_dsr())
}

fn translating() -> impl Iterator<Item = ForwardingMode> {
    ForwardingMode::ALL.into_iter().filter(|mode| !mode.is_dsr())
}

fn services(mode: ForwardingMode) -> Vec<ServiceSpec> {
    let port = if mode.is_dsr() { 3868 } else { 5000 };
    let backends: Vec<String> = (1..=BACKENDS).map(|n| format!("10.0.0.{n}:{port}")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    [VIP, SECOND_VIP].map(|vip| service(mode, Protocol::Sctp, vip, &backends)).into()
}

/// An IPv4 Address parameter (RFC 9260 section 3.3.2.1.1).
fn parameter(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => [&[0, 5, 0, 8], &addr.octets()[..]].concat(),
        IpAddr::V6(addr) => [&[0, 6, 0, 20], &addr.octets()[..]].concat(),
    }
}

/// Supported Extensions: RE-CONFIG, ASCONF and ASCONF-ACK.
const EXTENSIONS: [u8; 8] = [0x80, 8, 0, 7, 0x82, 0xc1, 0x80, 0];

/// The fields of an INIT or INIT ACK, with a list of addresses.
fn fields(initiate: u32, listed: &[IpAddr]) -> Vec<u8> {
    let listed: Vec<u8> = listed.iter().flat_map(|addr| parameter(*addr)).collect();
    [&initiate.to_be_bytes()[..], &[0, 0, 0x20, 0, 0, 1, 0, 1, 0, 0, 0, 1], &listed, &EXTENSIONS].concat()
}

fn packet_of(frame: &[u8]) -> &[u8] {
    let h = headers(frame);
    &frame[usize::from(h.l4)..usize::from(h.ip_end)]
}

/// The workers of one gateway, and a client and a server with one association.
struct Gateway {
    labs: Vec<Lab>,
    mode: ForwardingMode,
    backend: SocketAddr,
    /// The client as the backend sees it at the first path.
    local: SocketAddr,
}

impl Gateway {
    fn new(mode: ForwardingMode, workers: u8) -> Self {
        let services = services(mode).into_iter().map(Into::into).collect();
        let spec = SnapshotSpec { services, ..spec() };
        let steering = if workers == 1 { Steering::Single } else { Steering::Partition };
        let mut labs: Vec<Lab> =
            (0..workers).map(|n| Lab::worker(spec.clone(), n, workers, steering.clone())).collect();
        let shared = Arc::clone(labs[0].pipeline.associations());
        labs = labs
            .into_iter()
            .map(|lab| Lab { pipeline: lab.pipeline.with_associations(Arc::clone(&shared)), ..lab })
            .collect();
        Self { labs, mode, backend: client(0), local: client(0) }
    }

    /// Sends a packet of the client, which arrives at one of the workers.
    fn send(&mut self, at: usize, packet: Builder) -> (usize, FrameResult) {
        let frame = packet.mac(super::lab::ROUTER_MAC, GATEWAY_MAC).build();
        self.receive(at, &frame)
    }

    /// Receives a frame at a worker. Returns the worker that has processed it.
    fn receive(&mut self, at: usize, frame: &[u8]) -> (usize, FrameResult) {
        // Packets of one pair of addresses arrive at one worker. Modes with translation must not depend on that.
        let h = headers(frame);
        let of_addresses = usize::from(h.src.v4_bytes()[2]) + usize::from(h.dst.v4_bytes()[3]);
        let at = if self.mode.is_dsr() { of_addresses } else { at };
        let (mut at, mut arrival) = (at % self.labs.len(), Arrival::Wire(0));
        loop {
            let result = self.labs[at].receive_as(arrival, frame);
            let ended: Vec<_> = self.labs[at].pipeline.take_ended_paths().collect();
            for path in ended {
                let lab = &mut self.labs[usize::from(path.worker)];
                lab.pipeline.end_path(&path, lab.now);
            }
            let Verdict::HandOver(to) = result.verdict else { return (at, result) };
            (at, arrival) = (usize::from(to), arrival.handed_over(0));
            assert!(arrival.hand_overs() <= 2, "a frame loops");
        }
    }

    /// Sends a packet that must be forwarded. Returns the backend's address.
    fn forwarded(&mut self, at: usize, packet: Builder) -> (IpAddr, FrameResult) {
        let (at, result) = self.send(at, packet);
        let sent = result.sent(TransmitReason::Forward);
        if !self.mode.is_tunnel() {
            assert!(sctp::checksum_ok(sent, &headers(sent)), "{}", self.mode);
        }
        (self.labs[at].backend_of(&result), result)
    }

    /// Sends a packet of the backend to the client as it sees it, which must reach `client` from `vip`.
    fn answered(
        &mut self,
        to: SocketAddr,
        packet: impl Fn(Builder) -> Builder,
    ) -> (SocketAddr, SocketAddr, FrameResult) {
        let host = match self.backend.ip() {
            IpAddr::V4(addr) => addr.octets()[3],
            IpAddr::V6(_) => panic!("an IPv4 backend"),
        };
        let packet = packet(Builder::sctp(self.backend, to)).mac(backend_mac(host), GATEWAY_MAC);
        let (_, result) = self.receive(0, &packet.build());
        let sent = result.sent(TransmitReason::Reply);
        assert!(sctp::checksum_ok(sent, &headers(sent)));
        let (vip, client) = ends(sent);
        (vip, client, result)
    }

    /// Sends the INIT on the first path, which lists these addresses of the client.
    fn begin(&mut self, listed: &[IpAddr]) -> FrameResult {
        let init = Builder::sctp(client(0), VIP).tag(0).chunk(chunk::INIT, 0, &fields(TO_CLIENT, listed));
        let (backend, result) = self.forwarded(0, init);
        let port = if self.mode.is_dsr() { 3868 } else { 5000 };
        self.backend = SocketAddr::new(backend, port);
        if !self.mode.is_dsr() {
            self.local = ends(&result.frame).0;
        }
        result
    }

    /// The INIT ACK, which lists these addresses of the backend. With DSR it bypasses the gateway.
    fn acknowledge(&mut self, listed: &[IpAddr]) -> Option<FrameResult> {
        if self.mode.is_dsr() {
            return None;
        }
        let fields = fields(TO_SERVER, listed);
        let (vip, to, result) =
            self.answered(self.local, |packet| packet.tag(TO_CLIENT).chunk(chunk::INIT_ACK, 0, &fields));
        assert_eq!((vip, to), (VIP.parse().unwrap(), client(0)));
        Some(result)
    }

    /// A COOKIE ECHO, and its answer.
    fn confirm(&mut self, from: SocketAddr) {
        let echo = Builder::sctp(from, VIP).tag(TO_SERVER).chunk(chunk::COOKIE_ECHO, 0, &[0; 40]);
        let (backend, result) = self.forwarded(1, echo);
        assert_eq!(backend, self.backend.ip(), "{}", self.mode);
        if !self.mode.is_dsr() {
            let (local, _) = ends(&result.frame);
            self.answered(local, |packet| packet.tag(TO_CLIENT).chunk(chunk::COOKIE_ACK, 0, &[]));
        }
    }

    /// An association of a client with two addresses.
    fn associated(mode: ForwardingMode, workers: u8) -> Self {
        let mut gateway = Self::new(mode, workers);
        gateway.begin(&[client(0).ip(), client(1).ip()]);
        gateway.acknowledge(&[]);
        gateway.confirm(client(0));
        gateway
    }

    /// The phases of all flows, of the clients' addresses.
    fn phases(&self) -> Vec<(IpAddr, Phase)> {
        let mut phases = Vec::new();
        for lab in &self.labs {
            lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| {
                if !flow.expired {
                    phases.push((flow.client.ip(), flow.phase));
                }
            });
        }
        phases.sort_by_key(|(addr, _)| *addr);
        phases
    }

    fn wait(&mut self, time: Duration) {
        self.labs.iter_mut().for_each(|lab| lab.wait(time));
    }
}

fn data(from: SocketAddr, to: &str, tag: u32) -> Builder {
    Builder::sctp(from, to).tag(tag).chunk(chunk::DATA, 3, &[0; 16])
}

fn heartbeat(from: SocketAddr, to: &str) -> Builder {
    Builder::sctp(from, to).tag(TO_SERVER).chunk(chunk::HEARTBEAT, 0, &[0, 1, 0, 8, 1, 2, 3, 4])
}

#[test]
fn every_path_of_an_association_reaches_its_backend_in_every_mode() {
    for mode in ForwardingMode::ALL {
        for workers in [1, 3] {
            let mut gateway = Gateway::associated(mode, workers);
            // ASCONF (RFC 5061), which only DSR modes offer, adds addresses that the INIT didn't list.
            let addresses = if mode.is_dsr() { 6 } else { 2 };
            for n in 0..addresses {
                for (at, vip) in [VIP, SECOND_VIP].into_iter().enumerate() {
                    for packet in [heartbeat(client(n), vip), data(client(n), vip, TO_SERVER)] {
                        let (backend, result) = gateway.forwarded(at + usize::from(n), packet);
                        assert_eq!(backend, gateway.backend.ip(), "{mode}, address {n} to {vip}");
                        if mode.is_dsr() {
                            continue;
                        }
                        let (local, to) = ends(&result.frame);
                        assert_eq!(to, gateway.backend, "{mode}");
                        let expected = if mode == ForwardingMode::Nat { client(n) } else { gateway.local };
                        assert_eq!(local, expected, "{mode}");
                        // The answer takes the path in the other direction.
                        let (from, to, _) = gateway
                            .answered(local, |packet| packet.tag(TO_CLIENT).chunk(chunk::DATA, 3, &[0; 16]));
                        assert_eq!((from, to), (vip.parse().unwrap(), client(n)), "{mode}");
                    }
                }
                if usize::from(n) * 2 + 2 >= usize::from(ASSOCIATION_PATHS_MAX) {
                    break;
                }
            }
        }
    }
}

#[test]
fn without_the_tag_of_an_association_no_path_joins_it() {
    for mode in ForwardingMode::ALL {
        let mut gateway = Gateway::associated(mode, 1);
        let mut elsewhere = 0;
        for n in 1..40 {
            let from = SocketAddr::new(IpAddr::from([192, 0, 2, n]), PORT);
            let (_, result) = gateway.send(0, data(from, VIP, TO_SERVER ^ u32::from(n)));
            if mode.is_dsr() {
                // The hash chooses the backend.
                elsewhere += usize::from(gateway.labs[0].backend_of(&result) != gateway.backend.ip());
            } else {
                assert_eq!(result.refused(), Refusal::NoFlow, "{mode}");
            }
            // The tag alone is not sufficient: the ports of an association are the same on every path.
            let other_port = SocketAddr::new(from.ip(), PORT + 1);
            let (_, result) = gateway.send(0, data(other_port, VIP, TO_SERVER));
            if !mode.is_dsr() {
                assert_eq!(result.refused(), Refusal::NoFlow, "{mode}");
            }
        }
        assert!(elsewhere > 20 || !mode.is_dsr(), "{mode}: {elsewhere} of 39 at other backends");
    }
}

#[test]
fn an_association_does_not_extend_to_a_service_of_another_name() {
    for mode in translating() {
        let mut gateway = Gateway::associated(mode, 1);
        gateway.labs[0].change(|spec| {
            spec.services[1] = ServiceSpec { name: "other".into(), ..(*spec.services[1]).clone() }.into();
        });
        let (_, result) = gateway.send(0, data(client(1), SECOND_VIP, TO_SERVER));
        assert_eq!(result.refused(), Refusal::NoFlow, "{mode}");
    }
}

#[test]
fn a_handshake_may_continue_on_another_path() {
    for mode in ForwardingMode::ALL {
        for workers in [1, 3] {
            let mut gateway = Gateway::new(mode, workers);
            gateway.begin(&[client(0).ip(), client(1).ip()]);
            if mode.is_dsr() {
                // The client repeats its INIT, with its tag, on another path.
                let again = fields(TO_CLIENT, &[client(0).ip(), client(1).ip()]);
                let again = Builder::sctp(client(1), SECOND_VIP).tag(0).chunk(chunk::INIT, 0, &again);
                assert_eq!(gateway.forwarded(2, again).0, gateway.backend.ip(), "{mode}");
            }
            gateway.acknowledge(&[]);
            gateway.confirm(client(1));
            let (backend, _) = gateway.forwarded(0, data(client(0), VIP, TO_SERVER));
            assert_eq!(backend, gateway.backend.ip(), "{mode}");
        }
    }
}

#[test]
fn a_server_that_answers_two_inits_is_confirmed_by_either_cookie() {
    let other = TO_SERVER ^ 0xffff;
    let echo = |tag| Builder::sctp(client(0), VIP).tag(tag).chunk(chunk::COOKIE_ECHO, 0, &[0; 40]);
    for mode in translating() {
        for (taken, unused) in [(TO_SERVER, other), (other, TO_SERVER)] {
            let mut gateway = Gateway::new(mode, 1);
            gateway.begin(&[]);
            gateway.begin(&[]);
            for initiate in [TO_SERVER, other] {
                let fields = fields(initiate, &[]);
                gateway.answered(gateway.local, |p| p.tag(TO_CLIENT).chunk(chunk::INIT_ACK, 0, &fields));
            }
            // A cookie that no answer contained proves nothing.
            gateway.forwarded(0, echo(7));
            gateway.forwarded(0, echo(taken));
            assert_eq!(gateway.phases(), [(client(0).ip(), Phase::Established)], "{mode}");
            // Another path joins, and only the tag of the association ends it.
            let (backend, _) = gateway.forwarded(0, data(client(1), SECOND_VIP, taken));
            assert_eq!(backend, gateway.backend.ip(), "{mode}");
            let abort = |tag| Builder::sctp(client(1), SECOND_VIP).tag(tag).chunk(chunk::ABORT, 0, &[]);
            for wrong in [unused, 7] {
                gateway.forwarded(0, abort(wrong));
                assert!(gateway.phases().iter().all(|(_, phase)| *phase == Phase::Established), "{mode}");
            }
            gateway.forwarded(0, abort(taken));
            assert!(gateway.phases().iter().all(|(_, phase)| *phase == Phase::Closed), "{mode}");
        }
    }
}

#[test]
fn the_end_of_an_association_ends_its_flows_on_all_paths() {
    for mode in ForwardingMode::ALL {
        for workers in [1, 3] {
            let mut gateway = Gateway::associated(mode, workers);
            gateway.forwarded(1, data(client(1), SECOND_VIP, TO_SERVER));
            let open = gateway.phases();
            assert!(open.iter().all(|(_, phase)| *phase == Phase::Established), "{mode}: {open:?}");
            // In fullnat the flow has moved to the second path.
            assert_eq!(open.len(), if mode == ForwardingMode::FullNat { 1 } else { 2 }, "{mode}");
            let forged = Builder::sctp(client(1), SECOND_VIP).tag(7).chunk(chunk::ABORT, 0, &[]);
            // It may be dropped: without the tag, only the worker of the flow knows the path.
            gateway.send(1, forged);
            assert_eq!(gateway.phases(), open, "{mode}: a wrong tag");
            let abort = Builder::sctp(client(1), SECOND_VIP).tag(TO_SERVER).chunk(chunk::ABORT, 0, &[]);
            gateway.forwarded(1, abort);
            let closed = gateway.phases();
            assert!(closed.iter().all(|(_, phase)| *phase == Phase::Closed), "{mode}: {closed:?}");
            assert_eq!(closed.len(), open.len());
            if !mode.is_dsr() {
                // Late packets don't restore a path.
                let (_, result) = gateway.send(0, data(client(2), VIP, TO_SERVER));
                assert_eq!(result.refused(), Refusal::NoFlow, "{mode}");
            }
        }
    }
}

#[test]
fn an_association_has_a_limited_number_of_paths() {
    let mut gateway = Gateway::associated(ForwardingMode::Nat, 1);
    for n in 1..ASSOCIATION_PATHS_MAX {
        gateway.forwarded(0, data(client(n), VIP, TO_SERVER));
    }
    let (_, result) = gateway.send(0, data(client(ASSOCIATION_PATHS_MAX), VIP, TO_SERVER));
    assert_eq!(result.refused(), Refusal::NoFlow);
    gateway.forwarded(0, data(client(1), VIP, TO_SERVER));
}

#[test]
fn a_source_that_is_not_admitted_gets_no_path() {
    for mode in ForwardingMode::ALL {
        let mut gateway = Gateway::associated(mode, 1);
        let ranges: Arc<[_]> = ["198.51.100.0/24".parse().unwrap()].into();
        gateway.labs[0].change(|spec| {
            for service in &mut spec.services {
                let changed = ServiceSpec { source_ranges: Some(Arc::clone(&ranges)), ..(**service).clone() };
                *service = changed.into();
            }
        });
        let (_, result) = gateway.send(0, data(client(1), VIP, TO_SERVER));
        assert_eq!(result.refused(), Refusal::SourceRange, "{mode}");
    }
}

#[test]
fn in_nat_the_backend_may_create_a_path_to_an_address_of_the_client() {
    for workers in [1, 3] {
        let mut gateway = Gateway::associated(ForwardingMode::Nat, workers);
        let beat =
            |packet: Builder| packet.tag(TO_CLIENT).chunk(chunk::HEARTBEAT, 0, &[0, 1, 0, 8, 1, 2, 3, 4]);
        let (vip, to, _) = gateway.answered(client(1), beat);
        assert_eq!((vip, to), (VIP.parse().unwrap(), client(1)));
        assert_eq!(gateway.phases(), [0, 1].map(|n| (client(n).ip(), Phase::Established)));
        // Without the client's tag, the backend originates the packet.
        let host = backend_mac(1);
        let wrong = Builder::sctp(gateway.backend, client(2)).tag(7).chunk(chunk::HEARTBEAT, 0, &[]);
        let (_, result) = gateway.receive(0, &wrong.mac(host, GATEWAY_MAC).build());
        assert!(!matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Reply, .. }));
    }
}

#[test]
fn in_nat_the_backend_creates_no_path_of_an_ended_association() {
    for by_client in [true, false] {
        let mut gateway = Gateway::associated(ForwardingMode::Nat, 1);
        if by_client {
            let abort = Builder::sctp(client(0), VIP).tag(TO_SERVER).chunk(chunk::ABORT, 0, &[]);
            gateway.forwarded(0, abort);
        } else {
            gateway.answered(gateway.local, |packet| packet.tag(TO_CLIENT).chunk(chunk::ABORT, 0, &[]));
        }
        let late = Builder::sctp(gateway.backend, client(1)).tag(TO_CLIENT).chunk(chunk::DATA, 3, &[0; 16]);
        let host = gateway.backend.ip().to_string().rsplit('.').next().and_then(|n| n.parse().ok());
        let mac = backend_mac(host.expect("an IPv4 address"));
        let (_, result) = gateway.receive(0, &late.mac(mac, GATEWAY_MAC).build());
        assert!(
            !matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Reply, .. }),
            "{:?}",
            result.verdict
        );
        assert_eq!(gateway.phases(), [(client(0).ip(), Phase::Closed)]);
    }
}

#[test]
fn a_handshake_on_many_paths_counts_against_the_limits_of_new_flows() {
    for mode in ForwardingMode::ALL {
        let mut gateway = Gateway::new(mode, 1);
        gateway.labs[0].change(|spec| {
            for service in &mut spec.services {
                let limits =
                    ServiceLimits { connection_rate: NonZeroU32::new(1), ..ServiceLimits::default() };
                *service = ServiceSpec { limits, ..(**service).clone() }.into();
            }
        });
        gateway.begin(&[]);
        gateway.acknowledge(&[]);
        // The sources are forged: only the sender of the INIT has seen the tag of the server.
        for n in 1..4 {
            let packet = match mode.is_dsr() {
                true => Builder::sctp(client(n), VIP).tag(0).chunk(chunk::INIT, 0, &fields(TO_CLIENT, &[])),
                false => Builder::sctp(client(n), VIP).tag(TO_SERVER).chunk(chunk::COOKIE_ECHO, 0, &[0; 40]),
            };
            let (_, result) = gateway.send(0, packet);
            let refused = if mode.is_dsr() { Refusal::ServiceConnectionRate } else { Refusal::NoFlow };
            assert_eq!(result.refused(), refused, "{mode}: {n}");
        }
        assert_eq!(gateway.phases().len(), 1, "{mode}");
    }
}

#[test]
fn lists_of_addresses_that_bypass_the_gateway_are_overwritten() {
    let listed = [client(0).ip(), client(1).ip(), ip("2001:db8::7")];
    let backend_lists = [ip("10.0.0.1"), ip("fd00::1")];
    for mode in ForwardingMode::ALL {
        let mut gateway = Gateway::new(mode, 1);
        let init = gateway.begin(&listed).frame;
        let init_ack = gateway.acknowledge(&backend_lists).map(|result| result.frame);
        if mode.is_tunnel() {
            continue;
        }
        let seen: Vec<IpAddr> = addresses(packet_of(&init)).map(|addr| addr.ip()).collect();
        let extensions = packet_of(&init).last_chunk::<8>();
        if mode == ForwardingMode::FullNat {
            assert_eq!(seen, [] as [IpAddr; 0], "the backend knows the address of the gateway only");
        } else {
            assert_eq!(seen, listed, "{mode}");
        }
        match init_ack {
            None => assert_eq!(extensions, Some(&EXTENSIONS), "{mode}: untouched"),
            Some(answer) => {
                let seen: Vec<IpAddr> = addresses(packet_of(&answer)).map(|addr| addr.ip()).collect();
                assert_eq!(seen, [ip("203.0.113.6")], "{mode}: the other VIP");
                let answer = packet_of(&answer).split_last_chunk::<8>().expect("a parameter").0;
                for packet in [packet_of(&init), answer] {
                    let expected = [0x80, 8, 0, 7, 0x82, 0x84, 0x84, 0];
                    assert_eq!(packet.last_chunk::<8>(), Some(&expected), "{mode}: no change of addresses");
                }
                let sent = fields(TO_SERVER, &backend_lists).len();
                assert_eq!(answer.len(), 12 + 4 + sent, "{mode}: only the VIP is added");
            }
        }
    }
}

#[test]
fn further_vips_of_a_service_are_listed_in_a_valid_init_ack_if_they_fit() {
    for mode in translating() {
        let listed = |change: &dyn Fn(&mut SnapshotSpec), payload: usize, damage: bool| {
            let mut gateway = Gateway::new(mode, 1);
            gateway.labs[0].change(change);
            gateway.begin(&[]);
            let fields = [fields(TO_SERVER, &[]), vec![0x80, 5, 0, 4], vec![0; payload]].concat();
            let packet = Builder::sctp(gateway.backend, gateway.local).tag(TO_CLIENT);
            let mut frame =
                packet.chunk(chunk::INIT_ACK, 0, &fields).mac(backend_mac(1), GATEWAY_MAC).build();
            if damage {
                frame[60] ^= 1;
            }
            let (_, result) = gateway.receive(0, &frame);
            let sent = result.sent(TransmitReason::Reply);
            assert_eq!(sctp::checksum_ok(sent, &headers(sent)), !damage);
            // A client can find them: the list continues after other parameters.
            let packet = packet_of(sent);
            packet.last_chunk::<8>().is_some_and(|last| *last == [0, 5, 0, 8, 203, 0, 113, 6])
        };
        assert!(listed(&|_| {}, 0, false), "{mode}");
        assert!(!listed(&|_| {}, 0, true), "{mode}: a damaged packet stays damaged");
        // 20 + 12 + 4 + 24 + 4 bytes of headers, fields and extensions.
        assert!(listed(&|_| {}, 1428, false), "{mode}: 1500 bytes with the VIP");
        assert!(!listed(&|_| {}, 1432, false), "{mode}: too long");
        let other_name = |spec: &mut SnapshotSpec| {
            spec.services[1] = ServiceSpec { name: "other".into(), ..(*spec.services[1]).clone() }.into();
        };
        assert!(!listed(&other_name, 0, false), "{mode}: the VIP of another Service");
        assert!(!listed(&|spec| drop(spec.services.remove(1)), 0, false), "{mode}: no other VIP");
    }
}

#[test]
fn a_list_is_overwritten_in_a_damaged_packet_which_stays_damaged() {
    let mut gateway = Gateway::new(ForwardingMode::FullNat, 1);
    let init = Builder::sctp(client(0), VIP).tag(0).chunk(chunk::INIT, 0, &fields(7, &[client(1).ip()]));
    let mut frame = init.mac(super::lab::ROUTER_MAC, GATEWAY_MAC).build();
    let last = frame.len() - 20;
    frame[last] ^= 1;
    let (_, result) = gateway.receive(0, &frame);
    let sent = result.sent(TransmitReason::Forward);
    assert!(!sctp::checksum_ok(sent, &headers(sent)));
    assert_eq!(addresses(packet_of(sent)).count(), 0);
}

#[test]
fn a_flood_of_inits_with_long_lists_takes_no_path_from_an_association() {
    for mode in ForwardingMode::ALL {
        let mut gateway = Gateway::associated(mode, 1);
        let listed: Vec<IpAddr> = (0..30).map(|n| IpAddr::from([198, 51, 100 + n, 7])).collect();
        for n in 0..20_000_u32 {
            let [_, a, b, c] = n.to_be_bytes();
            let from = SocketAddr::new(IpAddr::from([192, a, b, c]), PORT);
            let init = Builder::sctp(from, VIP).tag(0).chunk(chunk::INIT, 0, &fields(n + 1, &listed));
            gateway.send(0, init);
            if n % 64 == 0 {
                gateway.wait(Duration::from_millis(50));
                gateway.forwarded(0, data(client(0), VIP, TO_SERVER));
            }
        }
        for n in [0, 1] {
            let (backend, _) = gateway.forwarded(0, data(client(n), VIP, TO_SERVER));
            assert_eq!(backend, gateway.backend.ip(), "{mode}");
        }
    }
}

#[test]
fn a_path_that_begins_after_hours_finds_the_association() {
    for mode in dsr() {
        let mut gateway = Gateway::associated(mode, 2);
        for _ in 0..200 {
            gateway.wait(Duration::from_secs(60));
            gateway.forwarded(0, data(client(0), VIP, TO_SERVER));
        }
        let (backend, _) = gateway.forwarded(1, heartbeat(client(1), SECOND_VIP));
        assert_eq!(backend, gateway.backend.ip(), "{mode}");
    }
}
