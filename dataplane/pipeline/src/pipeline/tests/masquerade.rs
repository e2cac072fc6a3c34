//! Masquerade of the traffic that backends originate: both directions, ICMP errors, fragments, bounds and workers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate_conntrack::FlowKind;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, NetworkSpec, Protocol, SharedService, SnapshotSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, ethernet, parse, quote};

use super::lab::{FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service, spec_with};
use crate::forward::snat_ports::{Rss, Steering};
use crate::pipeline::Arrival;
use crate::testing::assert_only_changed;
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

/// A backend, a host outside, and the SNAT address of the family.
const ENDS: [(&str, &str, &str); 2] = [
    ("10.0.0.1:40000", "192.0.2.99:53", "10.0.0.253"),
    ("[fd00::1]:40000", "[2001:db8:9::9]:53", "fd00::fd"),
];
const WORKERS: u8 = 3;

fn masquerading(change: impl FnOnce(&mut NetworkSpec)) -> SnapshotSpec {
    let services: [SharedService; 2] =
        [("203.0.113.5:80", "10.0.0.1:80"), ("[2001:db8:1::5]:80", "[fd00::1]:80")]
            .map(|(vip, backend)| service(ForwardingMode::Nat, Protocol::Tcp, vip, &[backend]).into());
    spec_with(services.into(), |network| {
        network.gateway.prefixes = ["10.0.0.0/24", "fd00::/64"].map(|net| net.parse().unwrap()).into();
        network.gateway.masquerade = ["10.0.0.0/25", "fd00::/64"].map(|net| net.parse().unwrap()).into();
        network.gateway.forward = true;
        change(network);
    })
}

fn lab() -> Lab {
    Lab::with_spec(masquerading(|_| {}))
}

fn from_backend(lab: &mut Lab, builder: Builder) -> FrameResult {
    lab.receive(&builder.mac(backend_mac(1), GATEWAY_MAC).build())
}

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(headers)) => headers,
        other => panic!("not a sound IP packet: {other:?}"),
    }
}

/// The local address and port that a frame was sent with.
fn local(result: &FrameResult) -> SocketAddr {
    let h = headers(result.sent(TransmitReason::Masqueraded));
    SocketAddr::new(h.src.ip(), h.src_port)
}

fn flows(lab: &Lab) -> Vec<FlowKind> {
    let mut kinds = Vec::new();
    assert_eq!(lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| kinds.push(flow.kind)), None);
    kinds
}

#[test]
fn packets_leave_with_the_snat_address_and_answers_return_to_the_backend() {
    for (source, peer, snat) in ENDS {
        let udp = |from: SocketAddr, to: SocketAddr| Builder::udp(from, to);
        let syn = |from: SocketAddr, to: SocketAddr| Builder::tcp(from, to).flags(flags::SYN);
        let both = flags::SYN | flags::ACK;
        let syn_ack = move |from: SocketAddr, to: SocketAddr| Builder::tcp(from, to).flags(both);
        let (source, peer): (SocketAddr, SocketAddr) = (source.parse().unwrap(), peer.parse().unwrap());
        let v6 = source.is_ipv6();
        type Make<'a> = &'a dyn Fn(SocketAddr, SocketAddr) -> Builder;
        for (proto, question, answer) in
            [("udp", &udp as Make<'_>, &udp as Make<'_>), ("tcp", &syn, &syn_ack)]
        {
            let mut lab = lab();
            let before = question(source, peer).mac(backend_mac(1), GATEWAY_MAC).payload(b"question").build();
            let result = lab.receive(&before);
            let sent = result.sent(TransmitReason::Masqueraded);
            let ports = [format!("{proto}.src_port"), format!("{proto}.checksum")];
            let changes = |address: &'static str| {
                let mut fields = vec!["eth.dst", "eth.src"];
                fields.extend(if v6 {
                    ["ipv6.hop_limit"].iter()
                } else {
                    ["ipv4.ttl", "ipv4.checksum"].iter()
                });
                fields.push(address);
                fields
            };
            let mut fields = changes(if v6 { "ipv6.src" } else { "ipv4.src" });
            fields.extend(ports.iter().map(String::as_str));
            assert_only_changed(&before, sent, &fields);
            assert_eq!((ethernet::destination(sent), ethernet::source(sent)), (ROUTER_MAC, GATEWAY_MAC));
            let local = local(&result);
            assert_eq!(local.ip(), ip(snat));
            assert!(local.port() >= 1024);

            let before = answer(peer, local).mac(ROUTER_MAC, GATEWAY_MAC).payload(b"answer").build();
            let result = lab.receive(&before);
            let sent = result.sent(TransmitReason::Masqueraded);
            let mut fields = changes(if v6 { "ipv6.dst" } else { "ipv4.dst" });
            let ports = [format!("{proto}.dst_port"), format!("{proto}.checksum")];
            fields.extend(ports.iter().map(String::as_str));
            assert_only_changed(&before, sent, &fields);
            assert_eq!(ethernet::destination(sent), backend_mac(1));
            let h = headers(sent);
            assert_eq!((h.dst.ip(), h.dst_port), (source.ip(), source.port()));

            let again = from_backend(&mut lab, question(source, peer));
            assert_eq!(self::local(&again), local, "the flow keeps its port");
            assert!(matches!(flows(&lab)[..], [FlowKind::Masquerade { .. }]), "it is listed");
            // Another host outside can't reach the backend by that port.
            let other_peer = SocketAddr::new(peer.ip(), peer.port() + 1);
            let result = lab.receive(&answer(other_peer, local).mac(ROUTER_MAC, GATEWAY_MAC).build());
            assert!(!matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Masqueraded, .. }));
        }
    }
}

#[test]
fn echo_is_translated_by_its_identifier() {
    for (source, peer, snat) in ENDS {
        let [source, peer] = [source, peer].map(|end| end.parse::<SocketAddr>().unwrap().ip());
        let mut lab = lab();
        let sent = |lab: &mut Lab, id| {
            let result = from_backend(lab, Builder::echo_request(source, peer, id, 1).payload(b"ping"));
            let h = headers(result.sent(TransmitReason::Masqueraded));
            assert!(tidegate_wire::icmp::checksum_ok(&result.frame, &h));
            assert_eq!(h.src.ip(), ip(snat));
            h.src_port
        };
        let (first, second) = (sent(&mut lab, 7), sent(&mut lab, 8));
        assert_ne!(first, second, "two echoes have two identifiers");
        for (sent, own) in [(first, 7), (second, 8)] {
            let [a, b] = sent.to_be_bytes();
            let kind = if source.is_ipv4() { 0 } else { 129 };
            let result = lab.send(Builder::icmp(peer, ip(snat), kind, 0, [a, b, 0, 1]).payload(b"ping"));
            let h = headers(result.sent(TransmitReason::Masqueraded));
            assert!(tidegate_wire::icmp::checksum_ok(&result.frame, &h));
            assert_eq!((h.dst.ip(), h.dst_port), (source, own));
        }
    }
}

#[test]
fn errors_about_a_flow_reach_the_other_end_with_the_quote_translated() {
    for ((source, peer, snat), (kind, code)) in ENDS.into_iter().zip([(3, 4), (2, 0)]) {
        let (source, peer): (SocketAddr, SocketAddr) = (source.parse().unwrap(), peer.parse().unwrap());
        let mut lab = lab();
        let local = local(&from_backend(&mut lab, Builder::udp(source, peer).payload(b"question")));
        let router = if source.is_ipv4() { ip("192.0.2.1") } else { ip("2001:db8:9::1") };
        let quoted = |from: SocketAddr, to: SocketAddr| Builder::udp(from, to).payload(b"question").packet();
        let error =
            |from, to, quoted: &[u8]| Builder::icmp(from, to, kind, code, [0, 0, 5, 0]).payload(quoted);

        let result = lab.send(error(router, ip(snat), &quoted(local, peer)));
        let sent = result.sent(TransmitReason::IcmpError);
        let h = headers(sent);
        assert!(tidegate_wire::icmp::checksum_ok(sent, &h));
        assert_eq!((h.src.ip(), h.dst.ip()), (router, source.ip()));
        let q = quote::parse(sent, &h).unwrap().unwrap();
        assert_eq!((q.src.ip(), q.src_port, q.dst.ip()), (source.ip(), source.port(), peer.ip()));
        let inner = usize::from(q.l3);
        assert_eq!(
            sent[inner..usize::from(h.ip_end)],
            quoted(source, peer),
            "the quote is the backend's own packet"
        );

        // The backend's error about an answer.
        let result = from_backend(&mut lab, error(source.ip(), peer.ip(), &quoted(peer, source)));
        let sent = result.sent(TransmitReason::IcmpError);
        let h = headers(sent);
        assert!(tidegate_wire::icmp::checksum_ok(sent, &h));
        assert_eq!((h.src.ip(), h.dst.ip()), (ip(snat), peer.ip()));
        let q = quote::parse(sent, &h).unwrap().unwrap();
        assert_eq!((q.dst.ip(), q.dst_port), (local.ip(), local.port()));

        let other = SocketAddr::new(local.ip(), local.port() ^ 1);
        let result = lab.send(error(router, ip(snat), &quoted(other, peer)));
        assert_eq!(result.refused(), Refusal::IcmpErrorUnknown);
        let other = SocketAddr::new(source.ip(), source.port() ^ 1);
        let result = from_backend(&mut lab, error(source.ip(), peer.ip(), &quoted(peer, other)));
        assert_eq!(result.refused(), Refusal::IcmpErrorUnknown, "it would show the backend's own address");
    }
}

#[test]
fn an_error_about_an_echo_finds_its_flow_by_the_identifier() {
    let mut lab = lab();
    let result = from_backend(&mut lab, Builder::echo_request(ip("10.0.0.1"), ip("192.0.2.99"), 7, 1));
    let id = headers(result.sent(TransmitReason::Masqueraded)).src_port;
    let quoted = Builder::echo_request(ip("10.0.0.253"), ip("192.0.2.99"), id, 1).packet();
    let result = lab.send(Builder::icmp(ip("192.0.2.1"), ip("10.0.0.253"), 11, 0, [0; 4]).payload(&quoted));
    let sent = result.sent(TransmitReason::IcmpError);
    let h = headers(sent);
    let q = quote::parse(sent, &h).unwrap().unwrap();
    assert_eq!((h.dst.ip(), q.src.ip(), q.src_port), (ip("10.0.0.1"), ip("10.0.0.1"), 7));
}

#[test]
fn fragments_follow_their_first_one_in_both_directions() {
    let mut lab = lab();
    let (source, peer, _) = ENDS[0];
    let parts = |from: SocketAddr, to: SocketAddr, mac, id| {
        let whole = Builder::udp(from, to).dont_fragment(false).payload_len(1200).mac(mac, GATEWAY_MAC);
        builder::fragments(&whole.build(), id, 512)
    };
    let (source, peer): (SocketAddr, SocketAddr) = (source.parse().unwrap(), peer.parse().unwrap());
    let out = parts(source, peer, backend_mac(1), 9);
    assert_eq!(lab.receive(&out[1]).refused(), Refusal::FragmentUnknown, "it arrived before the first");
    let results: Vec<FrameResult> = out.iter().map(|part| lab.receive(part)).collect();
    let local = local(&results[0]);
    for result in &results {
        assert_eq!(headers(result.sent(TransmitReason::Masqueraded)).src.ip(), local.ip());
    }
    for part in parts(peer, local, ROUTER_MAC, 10) {
        let result = lab.receive(&part);
        assert_eq!(headers(result.sent(TransmitReason::Masqueraded)).dst.ip(), source.ip());
    }
}

#[test]
fn only_traffic_to_the_outside_of_the_named_networks_is_masqueraded() {
    let mut lab = lab();
    let (_, peer, _) = ENDS[0];
    // 10.0.0.200 is in a network of backends, but not in the masqueraded part.
    lab.change(|spec| {
        let neighbor = tidegate_spec::NeighborSpec { ip: ip("10.0.0.200"), mac: backend_mac(9) };
        spec.network.neighbors.push(neighbor);
    });
    let other = Builder::udp("10.0.0.200:40000", peer).mac(backend_mac(9), GATEWAY_MAC).build();
    lab.receive(&other).sent(TransmitReason::Routed);
    let inside = from_backend(&mut lab, Builder::udp("10.0.0.1:40000", "10.0.0.2:53"));
    inside.sent(TransmitReason::Routed);
    let other_peer = lab.send(Builder::udp("198.51.100.7:5000", peer));
    assert_eq!(other_peer.verdict, Verdict::Punt(PuntReason::NotOurs));
    for unsupported in
        [Builder::sctp("10.0.0.1:40000", peer), Builder::ip(ip("10.0.0.1"), ip("192.0.2.99"), 47)]
    {
        from_backend(&mut lab, unsupported).sent(TransmitReason::NotRouted);
    }
    assert_eq!(flows(&lab), []);
}

#[test]
fn a_connection_without_syn_is_reset_and_an_unsendable_one_has_no_flow() {
    let (source, peer, _) = ENDS[0];
    let mut lab = lab();
    from_backend(&mut lab, Builder::tcp(source, peer).flags(flags::ACK)).sent(TransmitReason::NoFlow);
    from_backend(&mut lab, Builder::udp(source, peer).ttl(1)).sent(TransmitReason::TtlExceeded);
    let answer = lab.send(Builder::udp(peer, "10.0.0.253:4000"));
    assert_eq!(answer.refused(), Refusal::NoSnatFlow);
    lab.change(|spec| spec.network.routes.clear());
    from_backend(&mut lab, Builder::udp(source, peer)).sent(TransmitReason::NotRouted);
    lab.change(|spec| {
        spec.network.routes = spec_with(Vec::new(), |_| {}).network.routes.clone();
        spec.network.snat_addresses.retain(IpAddr::is_ipv6);
    });
    let result = from_backend(&mut lab, Builder::udp(source, peer));
    assert_eq!(result.refused(), Refusal::SnatPortsExhausted);
    assert_eq!(flows(&lab), []);
}

#[test]
fn flows_end_with_the_configuration_that_they_began_with() {
    let (source, peer, snat) = ENDS[0];
    let mut lab = lab();
    let first = local(&from_backend(&mut lab, Builder::udp(source, peer)));
    lab.send(Builder::udp(peer, first)).sent(TransmitReason::Masqueraded);
    lab.change(|spec| spec.network.snat_addresses = vec![ip("10.0.0.252"), ip("fd00::fd")]);
    let second = local(&from_backend(&mut lab, Builder::udp(source, peer)));
    assert_eq!((first.ip(), second.ip()), (ip(snat), ip("10.0.0.252")), "it gets an existing address");
    lab.send(Builder::udp(peer, second)).sent(TransmitReason::Masqueraded);
    lab.change(|spec| spec.network.gateway.masquerade.clear());
    assert_eq!(lab.send(Builder::udp(peer, second)).refused(), Refusal::NoSnatFlow);
    from_backend(&mut lab, Builder::udp(source, peer)).sent(TransmitReason::Routed);
}

#[test]
fn idle_flows_expire() {
    let (source, peer, _) = ENDS[0];
    let mut lab = lab();
    let local = local(&from_backend(&mut lab, Builder::udp(source, peer)));
    lab.wait(Duration::from_secs(29));
    lab.send(Builder::udp(peer, local)).sent(TransmitReason::Masqueraded);
    lab.wait(Duration::from_secs(299));
    lab.send(Builder::udp(peer, local)).sent(TransmitReason::Masqueraded);
    lab.wait(Duration::from_secs(300));
    assert_eq!(lab.send(Builder::udp(peer, local)).refused(), Refusal::NoSnatFlow);
    from_backend(&mut lab, Builder::udp(source, peer)).sent(TransmitReason::Masqueraded);
    lab.wait(Duration::from_secs(31));
    (0..100).for_each(|_| lab.pipeline.age(lab.now));
    assert_eq!(flows(&lab), []);
}

#[test]
fn a_flooding_backend_evicts_only_its_own_unanswered_flows() {
    let mut lab = lab().with_entries(1024);
    let (_, peer, _) = ENDS[0];
    let quiet = from_backend(&mut lab, Builder::udp("10.0.0.2:5000", peer));
    let quiet = local(&quiet);
    let client = "198.51.100.7:40000";
    lab.send(Builder::tcp(client, "203.0.113.5:80").flags(flags::SYN)).sent(TransmitReason::Forward);
    for port in 1..=5_000 {
        let question = Builder::udp((ip("10.0.0.1"), port), peer);
        from_backend(&mut lab, question).sent(TransmitReason::Masqueraded);
    }
    let of_flood = flows(&lab).len() - 2;
    assert_eq!(of_flood, 1024 / 8 / 4, "a quarter of an eighth of the table");
    lab.send(Builder::udp(peer, quiet)).sent(TransmitReason::Masqueraded);
    let answer = Builder::tcp("10.0.0.1:80", client).flags(flags::SYN | flags::ACK);
    from_backend(&mut lab, answer).sent(TransmitReason::Reply);
}

#[test]
fn services_and_masqueraded_flows_share_no_port_towards_an_endpoint() {
    let spec = masquerading(|_| {});
    // An endpoint outside of the networks of backends, with fullnat.
    let far = service(ForwardingMode::FullNat, Protocol::Udp, "203.0.113.6:53", &["192.0.2.99:53"]);
    let mut lab = Lab::with_spec(SnapshotSpec { services: vec![far.into()], ..spec }).with_entries(100_000);
    let mut used = std::collections::HashSet::new();
    for n in 1..=2_000 {
        let own = local(&from_backend(&mut lab, Builder::udp((ip("10.0.0.1"), n), "192.0.2.99:53")));
        let result = lab.send(Builder::udp((ip("198.51.100.7"), n), "203.0.113.6:53"));
        let h = headers(result.sent(TransmitReason::Forward));
        assert!(used.insert(own.port()) && used.insert(h.src_port), "{n}");
    }
    // Each answer returns to the sender of the request.
    for port in used.into_iter().take(100) {
        let result = lab.send(Builder::udp("192.0.2.99:53", (ip("10.0.0.253"), port)));
        let Verdict::Transmit { why, .. } = result.verdict else { panic!("{:?}", result.verdict) };
        let to = headers(&result.frame).dst.ip();
        let inside = why == TransmitReason::Masqueraded && to == ip("10.0.0.1");
        assert!(inside || why == TransmitReason::Reply && to == ip("198.51.100.7"), "{why} to {to}");
    }
}

/// Receives a frame at one worker of a gateway, and at the worker that it is handed over to.
fn receive(labs: &mut [Lab], at: usize, arrival: Arrival, frame: &[u8]) -> (usize, FrameResult) {
    let result = labs[at].receive_as(arrival, frame);
    match result.verdict {
        Verdict::HandOver(to) => receive(labs, usize::from(to), arrival.handed_over(0), frame),
        _ => (at, result),
    }
}

#[test]
fn every_worker_hands_packets_over_to_the_owner_of_the_flow() {
    let key = (0..40).map(|n: u8| n.wrapping_mul(167).wrapping_add(13)).collect();
    let rss = Rss { key, queues: (0..128).map(|n| n % WORKERS).collect(), sctp_ports: true };
    for steering in [Steering::Partition, Steering::Rss(Box::new(rss.clone()))] {
        let make = |worker| Lab::worker(masquerading(|_| {}), worker, WORKERS, steering.clone());
        let mut labs: Vec<Lab> = (0..WORKERS).map(make).collect();
        let queue = |src: SocketAddr, dst: SocketAddr, otherwise: usize| match &steering {
            Steering::Rss(rss) => {
                let (from, to) = (src.ip().into(), dst.ip().into());
                usize::from(rss.queue((&from, src.port()), (&to, dst.port())))
            }
            _ => otherwise % usize::from(WORKERS),
        };
        for (n, (source, peer, snat)) in (0..60).flat_map(|n| ENDS.map(|ends| (n, ends))) {
            let (mut source, peer): (SocketAddr, SocketAddr) =
                (source.parse().unwrap(), peer.parse().unwrap());
            // Port 80 belongs to an endpoint: packets from there may be replies of a Service.
            source.set_port(if n == 0 { 80 } else { 1000 + n });
            let n = usize::from(n);
            let wire = Arrival::Wire(0);
            let syn = Builder::tcp(source, peer).flags(flags::SYN).mac(backend_mac(1), GATEWAY_MAC).build();
            let (_, result) = receive(&mut labs, queue(source, peer, n), wire, &syn);
            let local = local(&result);
            let answer = Builder::tcp(peer, local).flags(flags::SYN | flags::ACK);
            let answer = answer.mac(ROUTER_MAC, GATEWAY_MAC).build();
            let (_, back) = receive(&mut labs, queue(peer, local, n / 3), wire, &answer);
            let h = headers(back.sent(TransmitReason::Masqueraded));
            assert_eq!((h.dst.ip(), h.dst_port), (source.ip(), source.port()));
            let quoted = Builder::tcp(local, peer).packet();
            let kind = if source.is_ipv4() { 3 } else { 1 };
            let error = Builder::icmp(peer.ip(), ip(snat), kind, 1, [0; 4]).payload(&quoted);
            let error = error.mac(ROUTER_MAC, GATEWAY_MAC).build();
            // An error may arrive at any worker.
            let (_, back) = receive(&mut labs, n % usize::from(WORKERS), wire, &error);
            assert_eq!(headers(back.sent(TransmitReason::IcmpError)).dst.ip(), source.ip());

            let id = 1000 + n as u16;
            let ping = Builder::echo_request(source.ip(), peer.ip(), id, 1).mac(backend_mac(1), GATEWAY_MAC);
            let (_, result) = receive(&mut labs, n % usize::from(WORKERS), wire, &ping.build());
            let [a, b] = headers(result.sent(TransmitReason::Masqueraded)).src_port.to_be_bytes();
            let kind = if source.is_ipv4() { 0 } else { 129 };
            let pong = Builder::icmp(peer.ip(), ip(snat), kind, 0, [a, b, 0, 1]).mac(ROUTER_MAC, GATEWAY_MAC);
            let (_, back) = receive(&mut labs, n / 3 % usize::from(WORKERS), wire, &pong.build());
            let h = headers(back.sent(TransmitReason::Masqueraded));
            assert_eq!((h.dst.ip(), h.dst_port), (source.ip(), id));
        }
        assert!(labs.iter().all(|lab| !flows(lab).is_empty()), "each worker has flows");
    }
}
