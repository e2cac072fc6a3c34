//! Segments of unknown connections, and packets to ports that a VIP does not serve: both are answered.

use tidegate_spec::limits::ANSWERS_SMALL;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{BackendState, ForwardingMode, NoEndpoints, Protocol, ServiceSpec, SnapshotSpec};
use tidegate_wire::tcp::{self, flags};
use tidegate_wire::{Headers, Parsed, parse};

use super::lab::{FrameResult, Lab, ip, service};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Arrival, FlowNote};
use crate::testing::builder::{Builder, GATEWAY_MAC};
use crate::testing::lab::{ROUTER_MAC, spec};

const TRANSLATED: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
/// Client, VIP and backend, in each family.
const ENDS: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:8080"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:8080"],
];

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

fn web(mode: ForwardingMode, vip: &str, backends: &[&str]) -> ServiceSpec {
    service(mode, Protocol::Tcp, vip, backends)
}

/// The flags, sequence and acknowledgment number of the reset that was sent for this reason.
fn reset(result: &FrameResult, why: TransmitReason) -> (u8, u32, u32) {
    let sent = result.sent(why);
    let segment = tcp::segment(sent, &headers(sent)).expect("a TCP segment");
    assert!(segment.flags & flags::RST != 0);
    (segment.flags, segment.seq, segment.ack)
}

#[test]
fn after_a_restart_both_ends_of_a_translated_connection_get_a_reset() {
    for mode in TRANSLATED {
        for [client, vip, backend] in ENDS {
            let mut lab = Lab::new(vec![web(mode, vip, &[backend])]);
            let syn = lab.send(Builder::tcp(client, vip).flags(flags::SYN));
            let h = headers(syn.sent(TransmitReason::Forward));
            let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);

            let mut lab = Lab::new(vec![web(mode, vip, &[backend])]);
            let data = Builder::tcp(client, vip).flags(flags::ACK).seq_ack(700, 900).payload(b"more");
            let result = lab.send(data);
            assert_eq!(reset(&result, TransmitReason::NoFlow), (flags::RST, 900, 0), "{mode}: to the client");
            let h = headers(&result.frame);
            assert_eq!((h.src.ip(), h.dst.ip()), (lab.spec.services[0].key.vip, ip_of(client)));
            assert_eq!(result.note.flow, FlowNote::None);
            assert_eq!(lab.pipeline.flows().live(), 0);

            let answer =
                lab.send(Builder::tcp(backend, local).flags(flags::ACK).seq_ack(900, 704).payload(b"x"));
            if mode == ForwardingMode::FullNat {
                assert_eq!(reset(&answer, TransmitReason::NoFlow), (flags::RST, 704, 0), "to the backend");
            } else {
                // The address isn't ours, so we don't answer for it.
                assert_eq!(answer.verdict, Verdict::Punt(PuntReason::NotOurs));
            }
        }
    }
}

fn ip_of(socket: &str) -> std::net::IpAddr {
    socket.parse::<std::net::SocketAddr>().unwrap().ip()
}

#[test]
fn unknown_connections_get_no_answer_if_the_policy_forbids_it() {
    for mode in TRANSLATED {
        let mut lab = Lab::new(vec![web(mode, "203.0.113.5:80", &["10.0.0.1:8080"])]);
        lab.change(|spec| spec.network.policy.reset_unknown_flows = false);
        let ack = Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::ACK);
        assert_eq!(lab.send(ack).refused(), Refusal::NoFlow);
        let from_backend = Builder::tcp("10.0.0.1:8080", "10.0.0.253:4000").flags(flags::ACK);
        assert_eq!(lab.send(from_backend).refused(), Refusal::NoSnatFlow);
    }
}

#[test]
fn resets_of_unknown_connections_are_limited_and_never_answer_resets() {
    let mut lab = Lab::new(vec![web(ForwardingMode::FullNat, "203.0.113.5:80", &["10.0.0.1:8080"])]);
    let from = |from: &str, flags| Builder::tcp(from, "203.0.113.5:80").flags(flags);
    assert_eq!(lab.send(from("198.51.100.7:40000", flags::RST)).refused(), Refusal::NoFlow);
    assert_eq!(lab.send(from("203.0.113.5:80", flags::ACK)).refused(), Refusal::BadSource);
    let ack = || from("198.51.100.7:40000", flags::ACK);
    let answered = (0..1000).filter(|_| matches!(lab.send(ack()).verdict, Verdict::Transmit { .. })).count();
    assert_eq!(answered, ANSWERS_SMALL.prefix.burst as usize);
    assert_eq!(lab.send(ack()).refused(), Refusal::NoFlow);
}

#[test]
fn a_segment_to_a_service_without_backends_is_reset_in_every_mode() {
    for mode in ForwardingMode::ALL {
        for [client, vip, backend] in ENDS {
            let backend = backend.replace("8080", "80");
            let mut lab = Lab::new(vec![web(mode, vip, &[backend.as_str()])]);
            lab.change(|spec| spec.services[0].backends.clear());
            for segment in [flags::SYN, flags::ACK, flags::FIN | flags::ACK] {
                let result = lab.send(Builder::tcp(client, vip).flags(segment).seq_ack(5, 9));
                reset(&result, TransmitReason::NoEndpoints);
            }
            lab.change(|spec| spec.services[0].no_endpoints = NoEndpoints::Drop);
            let silent = lab.send(Builder::tcp(client, vip).flags(flags::ACK));
            assert_eq!(silent.refused(), Refusal::NoEndpoints, "{mode}");
        }
    }
}

#[test]
fn known_connections_stay_with_the_last_backend_when_it_is_down() {
    let mut lab = Lab::new(vec![web(ForwardingMode::FullNat, "203.0.113.5:80", &["10.0.0.1:8080"])]);
    let segment = |flags| Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags);
    lab.send(segment(flags::SYN)).sent(TransmitReason::Forward);
    lab.change(|spec| spec.services[0].backends[0].state = BackendState::Down);
    lab.send(segment(flags::ACK)).sent(TransmitReason::Forward);
}

#[test]
fn a_port_that_a_vip_does_not_serve_is_refused_to_its_client() {
    for [client, vip, backend] in ENDS {
        let (address, v6) = (ip_of(vip), vip.starts_with('['));
        let mut lab = Lab::new(vec![web(ForwardingMode::FullNat, vip, &[backend])]);
        let other = (address, 81);
        let result = lab.send(Builder::tcp(client, other).flags(flags::SYN).seq_ack(100, 0));
        assert_eq!(reset(&result, TransmitReason::NoService), (flags::RST | flags::ACK, 0, 101));
        for datagram in [Builder::udp(client, (address, 80)), Builder::sctp(client, (address, 80))] {
            let result = lab.send(datagram);
            let h = headers(result.sent(TransmitReason::NoService));
            assert_eq!((h.icmp_type, h.icmp_code), if v6 { (1, 4) } else { (3, 3) });
            assert_eq!((h.src.ip(), h.dst.ip()), (address, ip_of(client)), "the VIP answers");
        }
        let forged = Builder::tcp((address, 40_000), other).flags(flags::SYN);
        assert_eq!(lab.send(forged).refused(), Refusal::BadSource);
        lab.change(|spec| spec.network.policy.reject_unserved_ports = false);
        let syn = Builder::tcp(client, other).flags(flags::SYN);
        assert_eq!(lab.send(syn).refused(), Refusal::NoService);
    }
}

#[test]
fn other_ports_of_an_own_address_are_punted() {
    let mut lab = Lab::new(vec![web(ForwardingMode::FullNat, "10.0.0.254:30080", &["10.0.0.1:8080"])]);
    let syn = Builder::tcp("198.51.100.7:40000", "10.0.0.254:30081").flags(flags::SYN);
    assert_eq!(lab.send(syn).verdict, Verdict::Punt(PuntReason::Local));
}

#[test]
fn a_segment_at_the_wrong_worker_is_handed_over_and_not_reset() {
    let services = vec![web(ForwardingMode::Nat, "203.0.113.5:80", &["10.0.0.1:8080"]).into()];
    let mut other = Lab::worker(SnapshotSpec { services, ..spec() }, 1, 2, Steering::Partition);
    let ack = |port| {
        let segment = Builder::tcp((ip("198.51.100.7"), port), "203.0.113.5:80").flags(flags::ACK);
        segment.mac(ROUTER_MAC, GATEWAY_MAC).build()
    };
    let verdicts: Vec<_> = (40_000..40_020).map(|port| other.receive(&ack(port)).verdict).collect();
    assert!(verdicts.contains(&Verdict::HandOver(0)));
    assert!(verdicts.iter().all(|verdict| match verdict {
        Verdict::HandOver(worker) => *worker == 0,
        other => *other == Verdict::Transmit { interface: 0, why: TransmitReason::NoFlow },
    }));
    // The owner of the flow answers.
    let mut owner = Lab::worker(other.spec.clone(), 0, 2, Steering::Partition);
    let port = (40_000..).find(|&port| other.receive(&ack(port)).verdict == Verdict::HandOver(0)).unwrap();
    owner.receive_as(Arrival::HandedOver(0, 0), &ack(port)).sent(TransmitReason::NoFlow);
}
