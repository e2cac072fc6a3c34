//! Direct server return: the packets that a backend receives, over both tunnels and the link.

use tidegate_snapshot::counters::Traffic;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Parsed, ethernet, ipv4, ipv6, parse, proto};

use super::lab::{Lab, ROUTER_MAC, backend_mac, ip, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::{Builder, GATEWAY_MAC};
use crate::testing::{assert_only_changed, summary};

const MODES: [ForwardingMode; 5] = [
    ForwardingMode::DsrL2,
    ForwardingMode::DsrIpip,
    ForwardingMode::DsrGue,
    ForwardingMode::DsrGre,
    ForwardingMode::DsrGeneve,
];

fn syn(from: &str, to: &str) -> Builder {
    Builder::tcp(from, to).flags(flags::SYN).mac(ROUTER_MAC, GATEWAY_MAC)
}

/// The fields that a hop changes.
fn hop(v6: bool) -> &'static [&'static str] {
    if v6 {
        &["eth.dst", "eth.src", "ipv6.hop_limit"]
    } else {
        &["eth.dst", "eth.src", "ipv4.ttl", "ipv4.checksum"]
    }
}

#[test]
fn dsr_l2_changes_only_link_addresses_and_hop_limit() {
    for (client, vip, backend) in [
        ("198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:80"),
        ("[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:80"),
    ] {
        let mut lab = Lab::new(vec![service(ForwardingMode::DsrL2, Protocol::Tcp, vip, &[backend])]);
        let before = syn(client, vip).payload(b"hello").build();
        let result = lab.receive(&before);
        let sent = result.sent(TransmitReason::Forward);
        assert_only_changed(&before, sent, hop(vip.starts_with('[')));
        assert_eq!(ethernet::destination(sent), backend_mac(1));
        assert_eq!(ethernet::source(sent), GATEWAY_MAC);
        assert!(matches!(parse(sent), Ok(Parsed::Ip(h)) if h.ttl == 63), "{}", summary(sent));
    }
}

#[test]
fn dsr_ipip_wraps_the_packet_in_all_four_combinations_of_families() {
    for (client, vip) in
        [("198.51.100.7:40000", "203.0.113.5:80"), ("[2001:db8::7]:40000", "[2001:db8:1::5]:80")]
    {
        for backend in ["10.0.0.2:80", "[fd00::2]:80"] {
            let mut lab = Lab::new(vec![service(ForwardingMode::DsrIpip, Protocol::Tcp, vip, &[backend])]);
            let before = syn(client, vip).tos(0x2d).build();
            let result = lab.receive(&before);
            let sent = result.sent(TransmitReason::Forward);
            let Ok(Parsed::Ip(outer)) = parse(sent) else { panic!("{}", summary(sent)) };
            let inner_is_v6 = vip.starts_with('[');
            assert_eq!(outer.proto, if inner_is_v6 { proto::IPV6 } else { proto::IPIP });
            assert_eq!(outer.dst.ip(), ip(backend.rsplit_once(':').unwrap().0.trim_matches(['[', ']'])));
            assert_eq!(outer.src.ip(), ip(if outer.dst.is_v4() { "10.0.0.254" } else { "fd00::fe" }));
            assert_eq!((outer.ttl, outer.tos), (64, 0x2d));
            assert_eq!(ethernet::destination(sent), backend_mac(2));
            let outer_len = if outer.dst.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
            // The inner packet is the original packet with its hop limit reduced by one.
            let mut inner = sent[..12].to_vec();
            inner.extend(if inner_is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
            inner.extend_from_slice(&sent[ethernet::HEADER_LEN + outer_len..]);
            assert_only_changed(&before, &inner, hop(inner_is_v6));
        }
    }
}

#[test]
fn ethernet_padding_does_not_enter_the_tunnel() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::DsrIpip, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
    let bare = Builder::udp("198.51.100.7:40000", "203.0.113.5:53").mac(ROUTER_MAC, GATEWAY_MAC);
    let len = bare.clone().build().len();
    let result = lab.receive(&bare.trailer(18).build());
    assert_eq!(result.sent(TransmitReason::Forward).len(), len + ipv4::HEADER_LEN);
}

#[test]
fn a_flow_is_new_once_and_then_known() {
    for mode in MODES {
        let mut lab =
            Lab::new(vec![service(mode, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80", "10.0.0.2:80"])]);
        let first = lab.receive(&syn("198.51.100.7:40000", "203.0.113.5:80").build());
        let second = lab.receive(&syn("198.51.100.7:40000", "203.0.113.5:80").flags(flags::ACK).build());
        assert_eq!((first.note.flow, second.note.flow), (FlowNote::New, FlowNote::Known));
        assert_eq!(lab.backend_of(&first), lab.backend_of(&second));
        assert_eq!(lab.tallies.connections(first.note.backend.unwrap().index()), 1);
        let requests = Traffic { packets: 2, bytes: 80 };
        let traffic = lab.tallies.traffic(first.note.backend.unwrap().index());
        assert_eq!(traffic, [requests, Traffic::default()]);
    }
}

#[test]
fn established_connections_find_their_backend_after_a_restart() {
    let services = || {
        vec![service(
            ForwardingMode::DsrL2,
            Protocol::Tcp,
            "203.0.113.5:80",
            &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"],
        )]
    };
    let (mut before, mut after) = (Lab::new(services()), Lab::new(services()));
    for port in 40_000..40_100 {
        let from = format!("198.51.100.7:{port}");
        let opened = before.receive(&syn(&from, "203.0.113.5:80").build());
        let later = after.receive(&syn(&from, "203.0.113.5:80").flags(flags::ACK).build());
        assert_eq!(before.backend_of(&opened), after.backend_of(&later));
    }
}

#[test]
fn a_packet_too_large_for_the_tunnel_is_answered_with_the_fitting_size() {
    let mut lab = Lab::new(vec![
        service(ForwardingMode::DsrIpip, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"]),
        service(ForwardingMode::DsrIpip, Protocol::Udp, "[2001:db8:1::5]:53", &["[fd00::1]:53"]),
    ]);
    for (client, vip, headers, fits) in [
        ("198.51.100.7:40000", "203.0.113.5:53", 28, 1480),
        ("[2001:db8::7]:40000", "[2001:db8:1::5]:53", 48, 1460),
    ] {
        let result = lab.send(Builder::udp(client, vip).payload_len(fits - headers));
        assert_eq!(result.sent(TransmitReason::Forward).len(), 14 + 1500);
        let result = lab.send(Builder::udp(client, vip).payload_len(fits - headers + 1));
        let sent = result.sent(TransmitReason::PacketTooBig);
        let Ok(Parsed::Ip(h)) = parse(sent) else { panic!("{}", summary(sent)) };
        assert_eq!(tidegate_wire::icmp::reported_mtu(sent, &h), Some(fits as u16));
        assert!(tidegate_wire::icmp::checksum_ok(sent, &h));
        assert_eq!(ethernet::destination(sent), ROUTER_MAC);
    }
}

#[test]
fn a_packet_whose_hop_limit_ends_is_answered_and_not_forwarded() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80"])]);
    let result = lab.send(syn("198.51.100.7:40000", "203.0.113.5:80").ttl(1));
    let sent = result.sent(TransmitReason::TtlExceeded);
    let Ok(Parsed::Ip(h)) = parse(sent) else { panic!("{}", summary(sent)) };
    assert_eq!((h.icmp_type, h.src.ip(), h.dst.ip()), (11, ip("10.0.0.254"), ip("198.51.100.7")));
}

#[test]
fn a_vlan_tag_is_added_and_removed() {
    let vlan = |vlan| {
        let mut spec = super::lab::spec();
        spec.network.interfaces[0].vlan = vlan;
        spec.services =
            vec![service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80"]).into()];
        Lab::with_spec(spec)
    };
    let (plain, tagged) =
        (syn("198.51.100.7:40000", "203.0.113.5:80"), syn("198.51.100.7:40000", "203.0.113.5:80").vlan(100));
    assert_eq!(vlan(Some(100)).receive(&plain.build()).refused(), Refusal::VlanMismatch);
    assert_eq!(vlan(None).receive(&tagged.clone().build()).refused(), Refusal::VlanMismatch);
    let result = vlan(Some(100)).receive(&tagged.build());
    let sent = result.sent(TransmitReason::Forward);
    let Ok(Parsed::Ip(h)) = parse(sent) else { panic!("{}", summary(sent)) };
    assert_eq!(h.vlan.map(tidegate_wire::VlanId::value), Some(100));
}
