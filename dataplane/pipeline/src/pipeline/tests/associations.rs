//! SCTP associations through the pipeline, from handshake to end, in every mode and both families.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::Phase;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::sctp::{self, chunk};

use super::connection::{ends, headers};
use super::lab::{FrameResult, Lab, backend_mac, service};
use crate::testing::builder::{Builder, GATEWAY_MAC};

const TRANSLATING: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
/// Client, VIP and the backend's host, in both families.
const ENDS: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:3868", "10.0.0.1"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:3868", "[fd00::1]"],
];
/// The tags that the client and the server require.
const TO_CLIENT: u32 = 0x1111_1111;
const TO_SERVER: u32 = 0x2222_2222;

/// An association with the only backend of a service.
struct Association {
    lab: Lab,
    mode: ForwardingMode,
    client: SocketAddr,
    vip: SocketAddr,
    backend: SocketAddr,
    /// The client as the backend sees it.
    local: SocketAddr,
}

impl Association {
    /// Sends the INIT. With a mode that translates, the backend's port differs from the VIP's.
    fn begin(mode: ForwardingMode, [client, vip, backend]: [&str; 3]) -> Self {
        let backend = format!("{backend}:{}", if mode.is_dsr() { 3868 } else { 5000 });
        let mut spec = service(mode, Protocol::Sctp, vip, &[&backend]);
        spec.idle_timeout_sctp = Duration::from_secs(600);
        let client: SocketAddr = client.parse().unwrap();
        let mut association = Self {
            lab: Lab::new(vec![spec]),
            mode,
            client,
            vip: vip.parse().unwrap(),
            backend: backend.parse().unwrap(),
            local: client,
        };
        let result = association.query(Builder::sctp_init(client, vip, TO_CLIENT));
        if !mode.is_dsr() {
            association.local = ends(&result.frame).0;
        }
        association
    }

    fn open(mode: ForwardingMode, ends: [&str; 3]) -> Self {
        let mut association = Self::begin(mode, ends);
        let fields = [&TO_SERVER.to_be_bytes()[..], &[0; 12]].concat();
        association.answer(TO_CLIENT, chunk::INIT_ACK, 0, &fields);
        association.send_chunk(TO_SERVER, chunk::COOKIE_ECHO, 0, &[0; 40]);
        association.answer(TO_CLIENT, chunk::COOKIE_ACK, 0, &[]);
        assert_eq!(association.phase(), Some(Phase::Established), "{mode}");
        association
    }

    /// Sends a packet of the client, which must arrive unchanged.
    fn query(&mut self, packet: Builder) -> FrameResult {
        let result = self.lab.send(packet);
        let sent = result.sent(TransmitReason::Forward);
        if !self.mode.is_tunnel() {
            assert!(sctp::checksum_ok(sent, &headers(sent)), "{}", self.mode);
        }
        result
    }

    /// Sends a chunk of the client, which must reach the backend with unchanged translation.
    fn send_chunk(&mut self, tag: u32, kind: u8, flags: u8, value: &[u8]) {
        let packet = Builder::sctp(self.client, self.vip).tag(tag).chunk(kind, flags, value);
        let result = self.query(packet);
        assert_eq!(self.lab.backend_of(&result), self.backend.ip());
        if !self.mode.is_dsr() {
            assert_eq!(ends(&result.frame), (self.local, self.backend), "{}", self.mode);
        }
    }

    /// Sends a chunk of the backend, which must reach the client from the VIP. With DSR it bypasses the gateway.
    fn answer(&mut self, tag: u32, kind: u8, flags: u8, value: &[u8]) {
        if self.mode.is_dsr() {
            return;
        }
        let packet = Builder::sctp(self.backend, self.local).tag(tag).chunk(kind, flags, value);
        let result = self.lab.receive(&packet.mac(backend_mac(1), GATEWAY_MAC).build());
        let sent = result.sent(TransmitReason::Reply);
        assert_eq!(ends(sent), (self.vip, self.client));
        assert!(sctp::checksum_ok(sent, &headers(sent)));
    }

    /// Waits, and removes the flows that have expired.
    fn wait(&mut self, seconds: u64) {
        self.lab.wait(Duration::from_secs(seconds));
        for _ in 0..10_000 {
            self.lab.pipeline.age(self.lab.now);
        }
    }

    /// The phase of the only flow.
    fn phase(&self) -> Option<Phase> {
        let mut phases = Vec::new();
        self.lab.pipeline.flows().scan(0, u64::MAX, self.lab.now, |flow| {
            if !flow.expired {
                phases.push(flow.phase);
            }
        });
        assert!(phases.len() <= 1);
        phases.first().copied()
    }
}

fn every_association() -> impl Iterator<Item = Association> {
    let all = ForwardingMode::ALL.into_iter().flat_map(|mode| ENDS.map(|ends| (mode, ends)));
    all.map(|(mode, ends)| Association::open(mode, ends))
}

#[test]
fn each_phase_of_an_association_has_its_own_idle_timeout() {
    for mode in ForwardingMode::ALL {
        for ends in ENDS {
            let mut new = Association::begin(mode, ends);
            new.wait(59);
            assert_eq!(new.phase(), Some(Phase::Opening), "{mode}");
            new.wait(2);
            assert_eq!(new.phase(), None, "{mode}: an INIT without an answer");

            let mut established = Association::open(mode, ends);
            established.wait(599);
            established.send_chunk(TO_SERVER, chunk::DATA, 3, &[0; 16]);
            established.wait(599);
            assert_eq!(established.phase(), Some(Phase::Established), "{mode}");
            established.wait(2);
            assert_eq!(established.phase(), None, "{mode}");

            let mut closing = Association::open(mode, ends);
            closing.send_chunk(TO_SERVER, chunk::SHUTDOWN, 0, &[0; 4]);
            closing.answer(TO_CLIENT, chunk::SHUTDOWN_ACK, 0, &[]);
            assert_eq!(closing.phase(), Some(Phase::Closing), "{mode}");
            closing.wait(119);
            assert_eq!(closing.phase(), Some(Phase::Closing), "{mode}");
            closing.wait(2);
            assert_eq!(closing.phase(), None, "{mode}");
        }
    }
}

#[test]
fn only_an_abort_with_the_right_tag_ends_an_association() {
    for mut association in every_association() {
        // The sender's own tag needs bit T (RFC 9260 section 8.5.1).
        for (tag, bits) in [(0, 0), (7, 0), (7, 1), (TO_CLIENT, 0), (TO_SERVER, 1)] {
            association.send_chunk(tag, chunk::ABORT, bits, &[]);
            association.send_chunk(tag, chunk::SHUTDOWN_COMPLETE, bits, &[]);
            association.send_chunk(tag, chunk::SHUTDOWN, 0, &[0; 4]);
            if tag == TO_SERVER {
                // This SHUTDOWN has the right tag.
                assert_eq!(association.phase(), Some(Phase::Closing));
                continue;
            }
            assert_eq!(association.phase(), Some(Phase::Established), "tag {tag:#x}, bits {bits}");
        }
        association.send_chunk(TO_SERVER, chunk::ABORT, 0, &[]);
        assert_eq!(association.phase(), Some(Phase::Closed));
        // Late packets don't restore it.
        association.answer(TO_CLIENT, chunk::DATA, 3, &[0; 16]);
        assert_eq!(association.phase(), Some(Phase::Closed));
        association.wait(11);
        assert_eq!(association.phase(), None);
    }
}

#[test]
fn a_server_ends_an_association_only_with_a_valid_tag_or_bit_t() {
    for mode in TRANSLATING {
        for (tag, bits, ends_it) in
            [(TO_CLIENT, 0, true), (TO_SERVER, 1, true), (TO_SERVER, 0, false), (9, 0, false), (9, 1, false)]
        {
            for kind in [chunk::ABORT, chunk::SHUTDOWN_COMPLETE] {
                let mut association = Association::open(mode, ENDS[0]);
                association.answer(tag, kind, bits, &[]);
                let phase = if ends_it { Phase::Closed } else { Phase::Established };
                assert_eq!(association.phase(), Some(phase), "{mode} tag {tag:#x} bits {bits}");
            }
        }
    }
}

#[test]
fn a_forged_init_neither_moves_nor_ends_an_association() {
    for mut association in every_association() {
        association.query(Builder::sctp_init(association.client, association.vip, 666));
        association.answer(666, chunk::INIT_ACK, 0, &[7; 16]);
        association.send_chunk(8, chunk::COOKIE_ECHO, 0, &[0; 40]);
        for (tag, bits) in [(666, 0), (666, 1), (8, 0)] {
            association.send_chunk(tag, chunk::ABORT, bits, &[]);
            assert_eq!(association.phase(), Some(Phase::Established));
        }
    }
}

#[test]
fn a_client_that_restarts_from_its_port_is_tracked_by_its_new_tags() {
    for mode in TRANSLATING {
        let mut association = Association::open(mode, ENDS[0]);
        association.query(Builder::sctp_init(association.client, association.vip, 70));
        let fields = [&90_u32.to_be_bytes()[..], &[0; 12]].concat();
        association.answer(70, chunk::INIT_ACK, 0, &fields);
        association.send_chunk(90, chunk::COOKIE_ECHO, 0, &[0; 40]);
        association.send_chunk(TO_SERVER, chunk::ABORT, 0, &[]);
        assert_eq!(association.phase(), Some(Phase::Established), "{mode}: the former tag");
        association.send_chunk(90, chunk::ABORT, 0, &[]);
        assert_eq!(association.phase(), Some(Phase::Closed), "{mode}");
    }
}

#[test]
fn a_refused_init_ends_its_flow_and_the_next_one_creates_another() {
    for mode in TRANSLATING {
        let mut association = Association::begin(mode, ENDS[0]);
        association.answer(TO_CLIENT, chunk::ABORT, 0, &[]);
        assert_eq!(association.phase(), Some(Phase::Closed), "{mode}");
        association.lab.send(Builder::sctp_init(ENDS[0][0], ENDS[0][1], 70)).sent(TransmitReason::Forward);
        assert_eq!(association.phase(), Some(Phase::Opening), "{mode}");
    }
}

#[test]
fn packets_of_unknown_associations_are_refused_silently_in_nat_modes() {
    for mode in ForwardingMode::ALL {
        for [client, vip, backend] in ENDS {
            let backend = format!("{backend}:3868");
            let mut lab = Lab::new(vec![service(mode, Protocol::Sctp, vip, &[&backend])]);
            let data = Builder::sctp(client, vip).tag(5).chunk(chunk::DATA, 3, &[0; 16]);
            let result = lab.send(data);
            if mode.is_dsr() {
                result.sent(TransmitReason::Forward);
            } else {
                assert_eq!(result.refused(), Refusal::NoFlow, "an ABORT could end it at another address");
            }
        }
    }
}

#[test]
fn an_init_without_a_backend_is_answered_except_to_a_refused_source() {
    for mode in ForwardingMode::ALL {
        for [client, vip, backend] in ENDS {
            let backend = format!("{backend}:3868");
            let mut lab = Lab::new(vec![service(mode, Protocol::Sctp, vip, &[&backend])]);
            let ranges: Arc<[_]> = ["192.0.2.0/24".parse().unwrap()].into();
            lab.change(|spec| spec.services[0].source_ranges = Some(ranges));
            let init = || Builder::sctp_init(client, vip, 7);
            assert_eq!(lab.send(init()).refused(), Refusal::SourceRange, "{mode}");
            lab.change(|spec| {
                spec.services[0].source_ranges = None;
                spec.services[0].backends.clear();
            });
            let result = lab.send(init());
            let h = headers(result.sent(TransmitReason::NoEndpoints));
            let expected = if client.starts_with('[') { (1, 4) } else { (3, 3) };
            assert_eq!((h.icmp_type, h.icmp_code), expected, "{mode}");
        }
    }
}

#[test]
fn other_protocols_can_use_the_address_and_port_of_an_sctp_service() {
    let vip = "203.0.113.5:3868";
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let services = all
        .into_iter()
        .zip(1..)
        .map(|(protocol, n)| service(ForwardingMode::FullNat, protocol, vip, &[&format!("10.0.0.{n}:5000")]));
    let mut lab = Lab::new(services.collect());
    let client = "198.51.100.7:40000";
    let packets = [
        Builder::tcp(client, vip).flags(tidegate_wire::tcp::flags::SYN),
        Builder::udp(client, vip),
        Builder::sctp_init(client, vip, 7),
    ];
    for (packet, n) in packets.into_iter().zip(1..) {
        let result = lab.send(packet);
        result.sent(TransmitReason::Forward);
        assert_eq!(lab.backend_of(&result).to_string(), format!("10.0.0.{n}"));
    }
}

#[test]
fn an_icmp_error_about_a_packet_of_the_server_reaches_its_backend() {
    for mode in ForwardingMode::ALL {
        let mut association = Association::open(mode, ENDS[0]);
        let (vip, client) = (association.vip, association.client);
        let quoted = Builder::sctp(vip, client).tag(TO_CLIENT).chunk(chunk::DATA, 3, &[0; 600]).packet();
        let error = Builder::icmp(super::lab::ip("192.0.2.1"), vip.ip(), 3, 4, [0, 0, 4, 0]).payload(&quoted);
        let result = association.lab.send(error);
        result.sent(TransmitReason::IcmpError);
        assert_eq!(association.lab.backend_of(&result), association.backend.ip(), "{mode}");
    }
}
