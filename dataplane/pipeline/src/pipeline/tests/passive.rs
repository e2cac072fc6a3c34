//! Backends that refuse or ignore new connections: another one is tried, and they are set aside.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{
    BackendState, ForwardingMode, LoadRule, PassiveHealth, Protocol, Scheduler, ServiceSpec,
};
use tidegate_wire::ethernet;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::tcp::{flags, segment};

use super::connection::{ends, headers};
use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service, spec_with};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Arrival, FlowNote};
use crate::testing::assert_only_changed;
use crate::testing::builder::{Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";
const NAT: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];
const RULES: PassiveHealth =
    PassiveHealth { failures: 3, retries: 2, set_aside: Duration::from_secs(10), share_max: 50 };
/// The options of a usual SYN: segment size, timestamps, window scale.
const OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];

fn spec(mode: ForwardingMode, backends: usize) -> ServiceSpec {
    let backends: Vec<String> = (1..=backends).map(|n| format!("10.0.0.{n}:8080")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    ServiceSpec { passive_health: Some(RULES), ..service(mode, Protocol::Tcp, VIP, &backends) }
}

fn lab(mode: ForwardingMode, backends: usize) -> Lab {
    Lab::new(vec![spec(mode, backends)])
}

fn client(n: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4((0x5000_0000 | n << 8 | 9).into()), 40_000)
}

fn syn(client: SocketAddr) -> Builder {
    let vip = if client.is_ipv4() { VIP } else { VIP6 };
    Builder::tcp(client, vip).flags(flags::SYN).seq_ack(1_000, 0).tcp_options(&OPTIONS)
}

fn from_backend(backend: SocketAddr, answer: Builder) -> Vec<u8> {
    let n = match backend.ip() {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    answer.mac(backend_mac(n), GATEWAY_MAC).build()
}

/// The answer of the host that got this SYN.
fn answer(sent: &[u8], flags: u8) -> Vec<u8> {
    let (local, backend) = ends(sent);
    let sequence = segment(sent, &headers(sent)).expect("a SYN").seq;
    from_backend(backend, Builder::tcp(backend, local).flags(flags).seq_ack(0, sequence.wrapping_add(1)))
}

fn refusal(sent: &[u8]) -> Vec<u8> {
    answer(sent, flags::RST | flags::ACK)
}

/// An ICMP error of a router about this SYN.
fn error(sent: &[u8], kind: u8, code: u8) -> Builder {
    let (local, _) = ends(sent);
    let router = if local.is_ipv4() { ip("10.0.0.200") } else { ip("fd00::200") };
    Builder::icmp(router, local.ip(), kind, code, [0; 4]).payload(&sent[ethernet::HEADER_LEN..])
}

fn backend_of(sent: &[u8]) -> IpAddr {
    ends(sent).1.ip()
}

/// Completes the handshake of a SYN that a backend got.
fn accept(lab: &mut Lab, client: SocketAddr, sent: &[u8]) {
    let result = lab.receive(&answer(sent, flags::SYN | flags::ACK));
    assert_eq!(ends(result.sent(TransmitReason::Reply)).1, client);
    let vip = if client.is_ipv4() { VIP } else { VIP6 };
    let result = lab.send(Builder::tcp(client, vip).flags(flags::ACK));
    assert_eq!(ends(result.sent(TransmitReason::Forward)), ends(sent));
}

/// Opens a connection of a client, whose SYN the dead backend refuses. Returns the backends that got the SYN.
fn open(lab: &mut Lab, client: SocketAddr, dead: IpAddr) -> Vec<IpAddr> {
    let first = lab.send(syn(client));
    let mut sent = first.sent(TransmitReason::Forward).to_vec();
    let mut tried = vec![backend_of(&sent)];
    while tried.last() == Some(&dead) {
        sent = lab.receive(&refusal(&sent)).sent(TransmitReason::Retried).to_vec();
        tried.push(backend_of(&sent));
    }
    accept(lab, client, &sent);
    tried
}

/// A client whose SYN goes to this backend.
fn client_of(lab: &mut Lab, backend: IpAddr, from: u32) -> (SocketAddr, Vec<u8>) {
    (from..from + 1_000)
        .find_map(|n| {
            let result = lab.send(syn(client(n)));
            (backend_of(&result.frame) == backend).then_some((client(n), result.frame))
        })
        .expect("each backend gets some of a thousand clients")
}

fn dead() -> IpAddr {
    ip("10.0.0.1")
}

#[test]
fn the_syn_of_a_refused_connection_goes_to_another_backend_unchanged() {
    for mode in NAT {
        let mut lab = lab(mode, 3);
        let (client, sent) = client_of(&mut lab, dead(), 0);
        let result = lab.receive(&refusal(&sent));
        assert_eq!((lab.backend_of(&result), result.note.flow), (backend_of(&result.frame), FlowNote::Known));
        let again = result.sent(TransmitReason::Retried);
        assert_ne!(backend_of(again), dead());
        let received = syn(client).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let mut changed = vec!["eth.dst", "eth.src", "ipv4.ttl", "ipv4.checksum", "ipv4.dst"];
        changed.extend(["tcp.dst_port", "tcp.checksum"]);
        if mode == ForwardingMode::FullNat {
            changed.extend(["ipv4.src", "tcp.src_port"]);
        }
        assert_only_changed(&received, again, &changed);
        assert_eq!(ends(again).0 == client, mode == ForwardingMode::Nat);
        accept(&mut lab, client, again);
        // The refused flow is replaced, so late packets of the dead host belong to no flow.
        let late = lab.receive(&refusal(&sent));
        assert_eq!(late.note.flow, FlowNote::None);
    }
}

#[test]
fn connections_open_while_a_backend_refuses_all() {
    for mode in NAT {
        let mut lab = lab(mode, 9);
        let mut tried_dead = 0;
        for n in 0..500 {
            tried_dead += usize::from(open(&mut lab, client(n), dead())[0] == dead());
            lab.wait(Duration::from_millis(2));
        }
        assert_eq!(tried_dead, 3, "{mode}: after that it is set aside");
        assert_eq!(lab.pipeline.set_aside_counts().set_aside, 1);
        assert_eq!(lab.counters.transmits(TransmitReason::Retried), 3);
    }
}

#[test]
fn every_scheduler_finds_another_backend() {
    let maglev = Scheduler::Maglev { slots: 251 };
    let least = Scheduler::Loads(LoadRule::LeastConnections);
    let all = [Scheduler::Rendezvous, Scheduler::SourceHash, maglev, Scheduler::WeightedRoundRobin, least];
    for scheduler in all {
        let mut lab = Lab::new(vec![ServiceSpec { scheduler, ..spec(ForwardingMode::FullNat, 4) }]);
        let mut seen = BTreeSet::new();
        for n in 0..200 {
            seen.extend(open(&mut lab, client(n), dead()).pop());
        }
        assert_eq!(seen.len(), 3, "{scheduler:?}");
        assert_eq!(lab.counters.transmits(TransmitReason::Retried), 3, "{scheduler:?}");
    }
}

#[test]
fn the_next_backend_is_the_choice_without_the_refused_one() {
    for mode in NAT {
        let mut lab = lab(mode, 5);
        let mut next = Vec::new();
        for n in 0..100 {
            let tried = open(&mut lab, client(n), dead());
            next.push((client(n), *tried.last().unwrap()));
        }
        let mut fresh = Lab::new(vec![spec(mode, 5)]);
        fresh.change(|spec| spec.services[0].backends[0].state = BackendState::Down);
        for (client, backend) in next {
            let result = fresh.send(syn(client));
            assert_eq!(fresh.backend_of(&result), backend, "{client}");
        }
    }
}

#[test]
fn unreachable_errors_of_routers_count_as_refusals() {
    for (mode, kind, code) in [(NAT[0], 3, 1), (NAT[1], 3, 3), (NAT[1], 3, 13)] {
        let mut lab = lab(mode, 3);
        let (client, sent) = client_of(&mut lab, dead(), 0);
        let result = lab.send(error(&sent, kind, code));
        let again = result.sent(TransmitReason::Retried);
        assert_ne!(backend_of(again), dead());
        accept(&mut lab, client, again);
    }
    let six: Vec<String> = (1..=3).map(|n| format!("[fd00::{n}]:8080")).collect();
    let six: Vec<&str> = six.iter().map(String::as_str).collect();
    let spec = ServiceSpec {
        passive_health: Some(RULES),
        ..service(ForwardingMode::FullNat, Protocol::Tcp, VIP6, &six)
    };
    let mut lab = Lab::new(vec![spec]);
    let client: SocketAddr = "[2001:db8::7]:40000".parse().unwrap();
    let sent = lab.send(syn(client)).frame;
    let again = lab.send(error(&sent, 1, 3)).sent(TransmitReason::Retried).to_vec();
    assert_ne!(backend_of(&again), backend_of(&sent));
    accept(&mut lab, client, &again);
}

#[test]
fn other_errors_are_forwarded() {
    for (kind, code) in [(3, 4), (11, 0)] {
        let mut lab = lab(ForwardingMode::Nat, 3);
        let (_, sent) = client_of(&mut lab, dead(), 0);
        lab.send(error(&sent, kind, code)).sent(TransmitReason::IcmpError);
    }
}

#[test]
fn a_refusal_is_forwarded_after_the_last_try() {
    for mode in NAT {
        let mut lab = lab(mode, 9);
        let mut sent = lab.send(syn(client(0))).frame;
        let mut tried = BTreeSet::from([backend_of(&sent)]);
        for _ in 0..RULES.retries {
            sent = lab.receive(&refusal(&sent)).sent(TransmitReason::Retried).to_vec();
            assert!(tried.insert(backend_of(&sent)), "each backend is tried once");
        }
        let result = lab.receive(&refusal(&sent));
        let answer = result.sent(TransmitReason::Reply);
        assert_eq!(ends(answer), (VIP.parse().unwrap(), client(0)));
        assert_ne!(headers(answer).tcp_flags & flags::RST, 0);
    }
}

#[test]
fn a_refusal_is_forwarded_without_another_backend_or_the_rules() {
    for mode in NAT {
        let off = ServiceSpec { passive_health: None, ..spec(mode, 3) };
        let no_retries = PassiveHealth { retries: 0, ..RULES };
        let no_retries = ServiceSpec { passive_health: Some(no_retries), ..spec(mode, 3) };
        for spec in [spec(mode, 1), off, no_retries] {
            let mut lab = Lab::new(vec![spec]);
            let sent = lab.send(syn(client(0))).frame;
            lab.receive(&refusal(&sent)).sent(TransmitReason::Reply);
        }
    }
}

#[test]
fn a_reset_that_does_not_acknowledge_the_syn_is_not_a_refusal() {
    for mode in NAT {
        let mut lab = lab(mode, 3);
        for n in 0..20 {
            let (_, sent) = client_of(&mut lab, dead(), 1_000 * n);
            let (local, backend) = ends(&sent);
            let forged = Builder::tcp(backend, local).flags(flags::RST | flags::ACK).seq_ack(0, 7_777);
            lab.receive(&from_backend(backend, forged)).sent(TransmitReason::Reply);
        }
        assert_eq!(lab.pipeline.set_aside_counts().set_aside, 0);
    }
}

#[test]
fn a_reset_of_an_answered_connection_is_forwarded() {
    for mode in NAT {
        let mut lab = lab(mode, 3);
        let (client, sent) = client_of(&mut lab, dead(), 0);
        accept(&mut lab, client, &sent);
        lab.receive(&refusal(&sent)).sent(TransmitReason::Reply);
    }
}

#[test]
fn a_repeated_unanswered_syn_goes_to_another_backend() {
    for mode in NAT {
        let mut lab = lab(mode, 4);
        let (client, sent) = client_of(&mut lab, dead(), 0);
        lab.wait(Duration::from_millis(10));
        let soon = lab.send(syn(client));
        assert_eq!(backend_of(soon.sent(TransmitReason::Forward)), dead(), "the network repeated it");
        let mut tried = BTreeSet::from([dead()]);
        for _ in 0..2 {
            lab.wait(Duration::from_secs(1));
            let again = lab.send(syn(client));
            assert!(tried.insert(backend_of(again.sent(TransmitReason::Forward))));
        }
        lab.wait(Duration::from_secs(1));
        let last = lab.send(syn(client));
        let sent_last = last.sent(TransmitReason::Forward).to_vec();
        // The late answer of the first backend belongs to no flow, unlike that of the last one.
        assert_eq!(lab.receive(&answer(&sent, flags::SYN | flags::ACK)).note.flow, FlowNote::None);
        accept(&mut lab, client, &sent_last);
    }
}

#[test]
fn a_repeated_syn_stays_with_a_backend_that_answered() {
    for mode in NAT {
        let mut lab = lab(mode, 3);
        let (client, sent) = client_of(&mut lab, dead(), 0);
        lab.receive(&answer(&sent, flags::SYN | flags::ACK)).sent(TransmitReason::Reply);
        lab.wait(Duration::from_secs(1));
        let again = lab.send(syn(client));
        assert_eq!(ends(again.sent(TransmitReason::Forward)), ends(&sent));
        assert_eq!(lab.pipeline.set_aside_counts().set_aside, 0);
    }
}

/// Both ends repeat their packets a second after the first ones, so the two often arrive together.
#[test]
fn a_syn_repeated_in_the_burst_of_its_answer_keeps_its_backend() {
    for mode in NAT {
        for answer_first in [true, false] {
            let mut lab = lab(mode, 4);
            let (client, sent) = client_of(&mut lab, dead(), 0);
            lab.wait(Duration::from_secs(1));
            let answer = answer(&sent, flags::SYN | flags::ACK);
            let mut burst = [answer, syn(client).build()];
            burst.rotate_left(usize::from(!answer_first));
            let results = lab.receive_burst(&burst);
            let [answered, repeated] = [0, 1].map(|n| &results[(n + usize::from(!answer_first)) % 2]);
            assert_eq!(ends(answered.sent(TransmitReason::Reply)).1, client);
            assert_eq!(ends(repeated.sent(TransmitReason::Forward)), ends(&sent), "{mode:?} {answer_first}");
            let result = lab.send(Builder::tcp(client, VIP).flags(flags::ACK));
            assert_eq!(ends(result.sent(TransmitReason::Forward)), ends(&sent));
        }
    }
}

/// Sends and repeats unanswered SYNs of clients of the dead backend.
fn ignore(lab: &mut Lab, clients: u32) {
    let silent: Vec<_> = (0..clients).map(|n| client_of(lab, dead(), 10_000 * (n + 1)).0).collect();
    lab.wait(Duration::from_secs(1));
    for client in silent {
        let result = lab.send(syn(client));
        assert_ne!(backend_of(result.sent(TransmitReason::Forward)), dead());
    }
}

#[test]
fn a_backend_that_ignores_syns_is_set_aside_until_its_trial_succeeds() {
    for mode in NAT {
        let mut lab = lab(mode, 4);
        ignore(&mut lab, 3);
        let gets = |lab: &mut Lab, from: u32| {
            (from..from + 100).filter(|&n| backend_of(&lab.send(syn(client(n))).frame) == dead()).count()
        };
        assert_eq!(gets(&mut lab, 200_000), 0);
        lab.wait(Duration::from_secs(10));
        let (tried, sent) = client_of(&mut lab, dead(), 300_000);
        assert_eq!(gets(&mut lab, 310_000), 0, "others wait for the trial");
        lab.receive(&refusal(&sent)).sent(TransmitReason::Retried);
        assert_eq!(lab.pipeline.set_aside_counts().set_aside, 2);
        lab.wait(Duration::from_secs(10));
        let (again, sent) = client_of(&mut lab, dead(), 320_000);
        assert_ne!(again, tried);
        accept(&mut lab, again, &sent);
        assert!(gets(&mut lab, 330_000) > 5);
        assert_eq!(lab.pipeline.set_aside_counts().returned, 1);
    }
}

#[test]
fn syns_that_are_not_repeated_are_no_failures() {
    let mut lab = lab(ForwardingMode::FullNat, 4);
    for n in 0..2_000 {
        lab.send(syn(client(n)));
        lab.wait(Duration::from_millis(1));
    }
    assert_eq!(lab.pipeline.set_aside_counts().set_aside, 0);
}

#[test]
fn refusals_of_one_client_do_not_set_a_backend_aside_at_once() {
    let mut lab = lab(ForwardingMode::FullNat, 4);
    for n in 0..200_u16 {
        let one = SocketAddr::new(ip("198.51.100.7"), 10_000 + n);
        open(&mut lab, one, dead());
    }
    assert_eq!(lab.pipeline.set_aside_counts().set_aside, 0);
    lab.wait(Duration::from_secs(1));
    open(&mut lab, client(0), dead());
}

#[test]
fn no_more_than_the_share_of_a_service_is_set_aside() {
    let mut lab = lab(ForwardingMode::FullNat, 4);
    // No backend listens any more.
    for n in 0..400 {
        let mut sent = lab.send(syn(client(n))).sent(TransmitReason::Forward).to_vec();
        while let result = lab.receive(&refusal(&sent))
            && result.note.flow == FlowNote::Known
            && headers(&result.frame).tcp_flags & flags::RST == 0
        {
            sent = result.frame;
        }
    }
    assert_eq!(lab.pipeline.set_aside_counts().set_aside, 2);
    lab.pipeline.report_set_aside(&lab.snapshot, &lab.tallies);
    assert_eq!((0..64).filter(|&at| lab.tallies.is_set_aside(at)).count(), 2);
}

#[test]
fn affinity_moves_to_another_backend_and_stays_there() {
    for mode in NAT {
        let affinity = Some(Duration::from_secs(600));
        let mut lab = Lab::new(vec![ServiceSpec { affinity, ..spec(mode, 4) }]);
        let (one, sent) = client_of(&mut lab, dead(), 0);
        accept(&mut lab, one, &sent);
        let again = |port: u16| SocketAddr::new(one.ip(), port);
        let tried = open(&mut lab, again(50_000), dead());
        assert_eq!(tried[0], dead());
        for port in 50_001..50_020 {
            assert_eq!(open(&mut lab, again(port), dead()), tried[1..]);
        }
    }
}

#[test]
fn only_active_checks_apply_to_a_backend_that_is_down() {
    let mut lab = lab(ForwardingMode::FullNat, 4);
    ignore(&mut lab, 3);
    let reported = |lab: &mut Lab| {
        lab.pipeline.report_set_aside(&lab.snapshot, &lab.tallies);
        (0..64).filter(|&at| lab.tallies.is_set_aside(at)).count()
    };
    assert_eq!(reported(&mut lab), 1);
    lab.change(|spec| spec.services[0].backends[0].state = BackendState::Down);
    assert_eq!(reported(&mut lab), 0);
    lab.change(|spec| spec.services[0].backends[0].state = BackendState::Active);
    client_of(&mut lab, dead(), 500_000);
}

#[test]
fn without_a_stored_syn_the_next_one_goes_to_another_backend() {
    for mode in NAT {
        let mut lab = lab(mode, 3);
        let with_data = || syn(client(0)).payload(b"data");
        let sent = lab.send(with_data()).frame;
        let (local, backend) = ends(&sent);
        let reset = Builder::tcp(backend, local).flags(flags::RST | flags::ACK).seq_ack(0, 1_005);
        assert_eq!(lab.receive(&from_backend(backend, reset)).refused(), Refusal::BackendRefused);
        lab.wait(Duration::from_secs(1));
        let again = lab.send(syn(client(0)));
        let again = again.sent(TransmitReason::Forward).to_vec();
        assert_ne!(backend_of(&again), backend.ip());
        accept(&mut lab, client(0), &again);
    }
}

#[test]
fn a_frame_too_small_for_the_syn_is_dropped_unchanged() {
    let mut lab = lab(ForwardingMode::Nat, 3);
    let (_, sent) = client_of(&mut lab, dead(), 0);
    lab.change(|spec| spec.network.neighbors.retain(|one| one.mac == backend_mac(1)));
    let result = lab.receive(&refusal(&sent));
    assert_eq!(result.refused(), Refusal::BackendRefused);
}

#[test]
fn a_connection_with_a_proxy_protocol_header_is_retried() {
    let proxy_protocol = Some(ProxyVersion::V1);
    let mut lab = Lab::new(vec![ServiceSpec { proxy_protocol, ..spec(ForwardingMode::FullNat, 3) }]);
    let (one, sent) = client_of(&mut lab, dead(), 0);
    let again = lab.receive(&refusal(&sent)).sent(TransmitReason::Retried).to_vec();
    lab.receive(&answer(&again, flags::SYN | flags::ACK)).sent(TransmitReason::Reply);
    let data = Builder::tcp(one, VIP).flags(flags::ACK).seq_ack(1_001, 1).payload(b"GET");
    let result = lab.send(data);
    let got = result.sent(TransmitReason::Forward);
    assert_eq!(ends(got), ends(&again));
    assert!(got.ends_with(b"GET") && got.windows(6).any(|bytes| bytes == b"PROXY "));
}

#[test]
fn the_worker_that_has_the_flow_retries_it() {
    for mode in NAT {
        let services = vec![spec(mode, 4).into()];
        let mut labs =
            [0, 1].map(|n| Lab::worker(spec_with(services.clone(), |_| ()), n, 2, Steering::Partition));
        // Receives a frame, if necessary at the worker that it is handed over to.
        let mut receive = |frame: &[u8]| match labs[0].receive(frame) {
            FrameResult { verdict: Verdict::HandOver(1), .. } => {
                labs[1].receive_as(Arrival::HandedOver(0, 0), frame)
            }
            result => result,
        };
        for n in 0..50 {
            let sent = receive(&syn(client(n)).mac(ROUTER_MAC, GATEWAY_MAC).build()).frame;
            let again = receive(&refusal(&sent)).sent(TransmitReason::Retried).to_vec();
            assert_ne!(backend_of(&again), backend_of(&sent));
            let result = receive(&answer(&again, flags::SYN | flags::ACK));
            assert_eq!(ends(result.sent(TransmitReason::Reply)).1, client(n));
        }
    }
}
