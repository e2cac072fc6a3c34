//! Traffic that backends themselves originate: forwarded for their networks only, or refused.

use std::time::Duration;

use tidegate_spec::testing;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, InterfaceSpec, NetworkSpec, Protocol, RouteSpec, SharedService};
use tidegate_wire::tcp::flags;
use tidegate_wire::{MacAddr, Parsed, ethernet, parse};

use super::lab::{CLIENT, FrameResult, Lab, ROUTER_MAC, backend_mac, ip, service, spec_with};
use crate::pipeline::NeighborEvent;
use crate::testing::assert_only_changed;
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const OUTSIDE: [(&str, &str); 2] =
    [("10.0.0.1:40000", "192.0.2.99:53"), ("[fd00::1]:40000", "[2001:db8:9::9]:53")];
const VIPS: [(&str, &str); 2] = [("203.0.113.5:80", "10.0.0.1:80"), ("[2001:db8:1::5]:80", "[fd00::1]:80")];

/// Backends in 10.0.0.0/24 and fd00::/64, whose traffic is forwarded.
fn lab(change: impl FnOnce(&mut NetworkSpec)) -> Lab {
    let nat = |(vip, backend): (&str, &str)| -> SharedService {
        service(ForwardingMode::Nat, Protocol::Tcp, vip, &[backend]).into()
    };
    Lab::with_spec(spec_with(VIPS.map(nat).into(), |network| {
        network.gateway.prefixes = ["10.0.0.0/24", "fd00::/64"].map(|net| net.parse().unwrap()).into();
        network.gateway.forward = true;
        change(network);
    }))
}

fn from_backend(lab: &mut Lab, builder: Builder) -> FrameResult {
    lab.receive(&builder.mac(backend_mac(1), GATEWAY_MAC).build())
}

fn icmp_of(frame: &[u8]) -> (u8, u8) {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => (h.icmp_type, h.icmp_code),
        other => panic!("{other:?}"),
    }
}

fn hop(v6: bool) -> &'static [&'static str] {
    match v6 {
        true => &["eth.dst", "eth.src", "ipv6.hop_limit"],
        false => &["eth.dst", "eth.src", "ipv4.ttl", "ipv4.checksum"],
    }
}

#[test]
fn a_backends_own_traffic_is_routed_and_only_its_hop_limit_changes() {
    for (from, to) in OUTSIDE {
        let v6 = from.starts_with('[');
        let mut lab = lab(|_| {});
        for make in
            [Builder::udp(from, to), Builder::tcp(from, to).flags(flags::SYN), Builder::sctp(from, to)]
        {
            let before = make.mac(backend_mac(1), GATEWAY_MAC).payload(b"question").build();
            let result = lab.receive(&before);
            let sent = result.sent(TransmitReason::Routed);
            assert_only_changed(&before, sent, hop(v6));
            assert_eq!((ethernet::destination(sent), ethernet::source(sent)), (ROUTER_MAC, GATEWAY_MAC));
        }
        let address = |text: &str| text.rsplit_once(':').unwrap().0.trim_matches(['[', ']']).to_owned();
        let ping = Builder::echo_request(ip(&address(from)), ip(&address(to)), 7, 1);
        from_backend(&mut lab, ping).sent(TransmitReason::Routed);
    }
}

#[test]
fn by_default_it_is_refused_and_without_prefixes_punted() {
    for ((from, to), prohibited) in OUTSIDE.into_iter().zip([(3, 13), (1, 1)]) {
        let mut closed = lab(|network| network.gateway.forward = false);
        let result = from_backend(&mut closed, Builder::udp(from, to));
        assert_eq!(icmp_of(result.sent(TransmitReason::NotRouted)), prohibited);
        let mut none = lab(|network| network.gateway.prefixes.clear());
        let result = from_backend(&mut none, Builder::udp(from, to));
        assert_eq!(result.verdict, Verdict::Punt(PuntReason::NotOurs));
    }
}

#[test]
fn the_answers_to_refused_traffic_are_limited_and_the_rest_is_counted() {
    let mut closed = lab(|network| network.gateway.forward = false);
    let (from, to) = OUTSIDE[0];
    let verdicts: Vec<Verdict> =
        (0..1_000).map(|_| from_backend(&mut closed, Builder::udp(from, to)).verdict).collect();
    let dropped = verdicts.iter().filter(|verdict| **verdict == Refusal::NotRouted.into()).count();
    assert!((800..1_000).contains(&dropped), "{dropped}");
}

#[test]
fn only_sources_in_the_prefixes_on_their_own_interface_are_forwarded() {
    let mut lab = lab(|network| {
        let outside = testing::interface(MacAddr([2, 0, 0, 0, 9, 9]), &["172.16.0.1/24"]);
        network.interfaces.push(InterfaceSpec { name: "outside".into(), ..outside });
    });
    let stranger = Builder::udp("198.51.100.7:5000", "192.0.2.99:53");
    assert_eq!(lab.send(stranger).verdict, Verdict::Punt(PuntReason::NotOurs));
    let to_backend = Builder::udp("198.51.100.7:5000", "10.0.0.1:53");
    assert_eq!(lab.send(to_backend).verdict, Verdict::Punt(PuntReason::NotOurs), "nor to a backend");
    let (from, to) = OUTSIDE[0];
    let forged = Builder::udp(from, to).mac(CLIENT, MacAddr([2, 0, 0, 0, 9, 9])).build();
    let result = lab.receive_as(crate::pipeline::Arrival::Wire(1), &forged);
    assert_eq!(result.refused(), Refusal::BadSource);
    for ours in ["10.0.0.254:40000", "10.0.0.253:40000", "203.0.113.5:80", "10.0.0.0:7", "10.0.0.255:7"] {
        assert_eq!(from_backend(&mut lab, Builder::udp(ours, to)).refused(), Refusal::BadSource, "{ours}");
    }
    for special in ["127.0.0.1:53", "0.0.0.0:53", "255.255.255.255:53", "240.0.0.1:53"] {
        let result = from_backend(&mut lab, Builder::udp(from, special));
        assert!(
            !matches!(result.verdict, Verdict::Transmit { why: TransmitReason::Routed, .. }),
            "{special}"
        );
    }
    let result = from_backend(&mut lab, Builder::udp(from, "169.254.1.1:53"));
    result.sent(TransmitReason::NotRouted);
}

#[test]
fn hop_limit_size_route_and_neighbour_are_checked_as_by_a_router() {
    for ((from, to), [late, too_big, no_route]) in
        OUTSIDE.into_iter().zip([[(11, 0), (3, 4), (3, 0)], [(3, 0), (2, 0), (1, 0)]])
    {
        let mut narrow = lab(|network| network.interfaces[0].mtu = 1280);
        let result = from_backend(&mut narrow, Builder::udp(from, to).ttl(1));
        assert_eq!(icmp_of(result.sent(TransmitReason::TtlExceeded)), late);
        let result = from_backend(&mut narrow, Builder::udp(from, to).payload_len(1300));
        assert_eq!(icmp_of(result.sent(TransmitReason::PacketTooBig)), too_big);
        let mut lost = lab(|network| network.routes.clear());
        let result = from_backend(&mut lost, Builder::udp(from, to));
        assert_eq!(icmp_of(result.sent(TransmitReason::NotRouted)), no_route);
    }
    let (from, to) = OUTSIDE[0];
    let mut narrow = lab(|network| network.interfaces[0].mtu = 1280);
    let result = from_backend(&mut narrow, Builder::udp(from, to).payload_len(1300).dont_fragment(false));
    result.sent(TransmitReason::Routed);
    assert_eq!(result.fragments.len(), 2);
    let mut unknown = lab(|network| network.neighbors.retain(|neighbor| neighbor.mac != ROUTER_MAC));
    let result = from_backend(&mut unknown, Builder::udp(from, to));
    assert_eq!(result.refused(), Refusal::NeighborUnresolved);
    assert_eq!(result.events, [NeighborEvent::Wanted { interface: 0, addr: ip("10.0.0.250").into() }]);
}

#[test]
fn a_packet_is_not_returned_to_the_station_that_sent_it() {
    let mut lab = lab(|network| {
        network.gateway.prefixes.push("172.16.0.0/16".parse().unwrap());
        network.routes.push(RouteSpec { to: "172.16.0.0/16".parse().unwrap(), via: ip("10.0.0.250") });
    });
    let result = lab.send(Builder::udp("172.16.1.1:5000", "192.0.2.99:53"));
    assert_eq!(icmp_of(result.sent(TransmitReason::NotRouted)), (3, 0));
}

#[test]
fn flows_of_services_continue_and_lost_ones_are_reset() {
    for ((vip, backend), client) in VIPS.into_iter().zip(["198.51.100.7:40000", "[2001:db8::7]:40000"]) {
        let mut lab = lab(|_| {});
        let answer = |bits| Builder::tcp(backend, client).flags(bits);
        let lost = from_backend(&mut lab, answer(flags::SYN | flags::ACK));
        lost.sent(TransmitReason::NoFlow);
        lab.send(Builder::tcp(client, vip).flags(flags::SYN)).sent(TransmitReason::Forward);
        from_backend(&mut lab, answer(flags::SYN | flags::ACK)).sent(TransmitReason::Reply);
        from_backend(&mut lab, answer(flags::ACK)).sent(TransmitReason::Reply);
        lab.wait(Duration::from_secs(100_000));
        from_backend(&mut lab, answer(flags::ACK)).sent(TransmitReason::NoFlow);
        from_backend(&mut lab, answer(flags::SYN)).sent(TransmitReason::Routed);
        let quiet = |spec: &mut tidegate_spec::SnapshotSpec| spec.network.policy.reset_unknown_flows = false;
        lab.change(quiet);
        assert_eq!(from_backend(&mut lab, answer(flags::ACK)).refused(), Refusal::NoFlow);
    }
}

#[test]
fn fragments_follow_their_first_one_and_no_other() {
    let mut lab = lab(|_| {});
    let (from, to) = OUTSIDE[0];
    let whole = Builder::udp(from, to).dont_fragment(false).payload_len(1200);
    let whole = whole.mac(backend_mac(1), GATEWAY_MAC).build();
    let parts = builder::fragments(&whole, 9, 512);
    assert_eq!(lab.receive(&parts[1]).refused(), Refusal::FragmentUnknown, "it arrived before the first");
    for part in &parts {
        let result = lab.receive(part);
        assert_only_changed(part, result.sent(TransmitReason::Routed), hop(false));
    }
    let other = builder::fragments(&whole, 10, 512);
    assert_eq!(lab.receive(&other[1]).refused(), Refusal::FragmentUnknown);
}

#[test]
fn a_change_of_the_prefixes_takes_effect_with_the_next_snapshot() {
    let mut lab = lab(|_| {});
    let (from, to) = OUTSIDE[0];
    from_backend(&mut lab, Builder::udp(from, to)).sent(TransmitReason::Routed);
    lab.change(|spec| spec.network.gateway.forward = false);
    from_backend(&mut lab, Builder::udp(from, to)).sent(TransmitReason::NotRouted);
    lab.change(|spec| spec.network.gateway.prefixes = vec!["10.0.0.128/25".parse().unwrap()]);
    assert_eq!(from_backend(&mut lab, Builder::udp(from, to)).verdict, Verdict::Punt(PuntReason::NotOurs));
}
