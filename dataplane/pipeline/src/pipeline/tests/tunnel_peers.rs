//! Packets that another gateway hands over in a tunnel: they are served as if they had arrived without it.

use std::net::IpAddr;

use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, NeighborSpec, Protocol, ServiceSpec, SnapshotSpec, TunnelOptions};
use tidegate_wire::encapsulation::GueVariant;
use tidegate_wire::tcp::flags::{ACK, SYN};
use tidegate_wire::{ethernet, headers::proto};

use super::lab::{Lab, ROUTER_MAC, backend_mac, ip, service, spec, spec_with};
use crate::forward::snat_ports::Steering;
use crate::pipeline::Arrival;
use crate::testing::builder::{Builder, CLIENT_MAC, GATEWAY_MAC};
use crate::testing::decapsulate::decapsulate;

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "203.0.113.5:80";
const CLIENT6: &str = "[2001:db8::7]:40000";
const VIP6: &str = "[2001:db8:1::5]:80";
const PAIRS: [(&str, &str, &str); 2] = [(CLIENT, VIP, "10.0.0.1:80"), (CLIENT6, VIP6, "[fd00::1]:80")];
const PEERS: [&str; 2] = ["10.0.0.9", "fd00::9"];
const GATEWAYS: [&str; 2] = ["10.0.0.254", "fd00::fe"];

/// Our gateway, with both addresses of its peer.
fn gateway(services: Vec<ServiceSpec>) -> Lab {
    let services = services.into_iter().map(Into::into).collect();
    Lab::with_spec(spec_with(services, |network| network.tunnel_peers = PEERS.map(ip).into()))
}

/// The peer: a gateway with its own addresses, and with our gateway as the backend behind a tunnel.
fn peer(mode: ForwardingMode, tunnel: TunnelOptions, vip: &str, to: IpAddr) -> Lab {
    let backend = std::net::SocketAddr::new(to, 80).to_string();
    let service = ServiceSpec { tunnel, ..service(mode, Protocol::Tcp, vip, &[&backend]) };
    let mut peer = SnapshotSpec { services: vec![service.into()], ..spec() };
    let network = &mut peer.network;
    network.interfaces[0].mac = backend_mac(9);
    network.interfaces[0].addresses = ["10.0.0.9/24", "fd00::9/64"].map(|net| net.parse().unwrap()).into();
    network.tunnel_source_v4 = Some(PEERS[0].parse().unwrap());
    network.tunnel_source_v6 = Some(PEERS[1].parse().unwrap());
    network.neighbors.retain(|neighbor| neighbor.mac != backend_mac(9));
    network.neighbors.extend(GATEWAYS.map(|at| NeighborSpec { ip: ip(at), mac: GATEWAY_MAC }));
    Lab::with_spec(peer)
}

/// An IP-in-IP packet of the peer.
fn ipip(inner: &Builder) -> Builder {
    let packet = inner.packet();
    let kind = if packet[0] >> 4 == 4 { proto::IPIP } else { proto::IPV6 };
    Builder::ip(ip(PEERS[0]), ip(GATEWAYS[0]), kind).payload(&packet)
}

fn from_peer(packet: Builder) -> Vec<u8> {
    packet.mac(backend_mac(9), GATEWAY_MAC).build()
}

fn syn(client: &str, vip: &str) -> Builder {
    Builder::tcp(client, vip).flags(SYN)
}

#[test]
fn packets_of_a_peer_in_any_tunnel_are_served_as_if_without_tunnel() {
    let usual = TunnelOptions::default();
    let variant_0 = TunnelOptions { gue_variant: GueVariant::Header, ..usual };
    let keyed = TunnelOptions { gre_key: Some(7), ..usual };
    let tunnels = [
        (ForwardingMode::DsrIpip, usual),
        (ForwardingMode::DsrGue, usual),
        (ForwardingMode::DsrGue, variant_0),
        (ForwardingMode::DsrGre, usual),
        (ForwardingMode::DsrGre, keyed),
        (ForwardingMode::DsrGeneve, usual),
    ];
    for ((tunnel, options), to) in tunnels.into_iter().flat_map(|tunnel| GATEWAYS.map(|to| (tunnel, ip(to))))
    {
        for (client, vip, backend) in PAIRS {
            let mut peer = peer(tunnel, options, vip, to);
            let arrived = syn(client, vip).tos(0x2a).mac(ROUTER_MAC, backend_mac(9)).build();
            let handed_over = peer.receive(&arrived).sent(TransmitReason::Forward).to_vec();
            let inner = decapsulate(&handed_over[ethernet::HEADER_LEN..]).expect("it is in a tunnel").packet;
            let ether_type = if inner[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
            let plain = [&handed_over[..12], &ether_type, &inner[..]].concat();
            for mode in
                [ForwardingMode::DsrL2, ForwardingMode::DsrIpip, ForwardingMode::Nat, ForwardingMode::FullNat]
            {
                let served = || gateway(vec![service(mode, Protocol::Tcp, vip, &[backend])]);
                let with = served().receive(&handed_over);
                let without = served().receive(&plain);
                assert_eq!(
                    with.sent(TransmitReason::Forward),
                    without.sent(TransmitReason::Forward),
                    "{mode}"
                );
                assert_eq!((with.note, with.events), (without.note, without.events));
            }
        }
    }
}

#[test]
fn tunnels_from_and_to_others_are_punted() {
    let web = || vec![service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &["10.0.0.1:80"])];
    let frame = from_peer(ipip(&syn(CLIENT, VIP)));
    let punted = Verdict::Punt(PuntReason::Local);
    assert_eq!(Lab::new(web()).receive(&frame).verdict, punted, "no peer is configured");
    let packet = syn(CLIENT, VIP).packet();
    let mut lab = gateway(web());
    let of_another = Builder::ip(ip("10.0.0.8"), ip(GATEWAYS[0]), proto::IPIP).payload(&packet);
    assert_eq!(lab.receive(&from_peer(of_another)).verdict, punted);
    let to_vip = Builder::ip(ip(PEERS[0]), ip("203.0.113.5"), proto::IPIP).payload(&packet);
    assert_eq!(lab.receive(&from_peer(to_vip)).refused(), Refusal::UnsupportedProtocol);
    let other_port = Builder::udp((ip(PEERS[0]), 50_000), (ip(GATEWAYS[0]), 6082)).payload(&packet);
    assert_eq!(lab.receive(&from_peer(other_port)).verdict, punted);
}

#[test]
fn a_tunnel_packet_that_cannot_be_opened_is_refused() {
    let mut lab = gateway(vec![service(ForwardingMode::Nat, Protocol::Tcp, VIP, &["10.0.0.1:80"])]);
    let inner = syn(CLIENT, VIP).packet();
    let behind = |headers: &[u8]| [headers, &inner].concat();
    let gre =
        |headers: &[u8]| Builder::ip(ip(PEERS[0]), ip(GATEWAYS[0]), proto::GRE).payload(&behind(headers));
    let udp = |family: usize, port: u16, headers: &[u8]| {
        Builder::udp((ip(PEERS[family]), 50_000), (ip(GATEWAYS[family]), port)).payload(&behind(headers))
    };
    let plain = |kind: u8, payload: &[u8]| Builder::ip(ip(PEERS[0]), ip(GATEWAYS[0]), kind).payload(payload);
    lab.receive(&from_peer(gre(&[0, 0, 8, 0]))).sent(TransmitReason::Forward);
    // The maximum length of Geneve options.
    let optional = [&[0x3f, 0, 8, 0, 0, 0, 0, 0][..], &[0; 252]].concat();
    lab.receive(&from_peer(udp(0, 6081, &optional))).sent(TransmitReason::Forward);
    for refused in [
        gre(&[0x80, 0, 8, 0, 0, 0, 0, 0]),
        gre(&[0x10, 0, 8, 0, 0, 0, 0, 1]),
        gre(&[0, 1, 8, 0]),
        gre(&[0, 0, 0x65, 0x58]),
        gre(&[0, 0, 0x86, 0xdd]),
        // GUE: a control message, an optional field, a flag, another protocol, no IP version.
        udp(0, 6080, &[0x20, 4, 0, 0]),
        udp(0, 6080, &[1, 4, 0, 0, 0, 0, 0, 0]),
        udp(0, 6080, &[0, 4, 0, 1]),
        udp(0, 6080, &[0, 17, 0, 0]),
        udp(0, 6080, &[0x51, 0, 0, 0]),
        // A wrong checksum, and none in IPv6.
        udp(0, 6080, &[]).l4_checksum(7),
        udp(1, 6080, &[]).l4_checksum(0),
        // Geneve: another version, a control packet, a critical option, Ethernet, options that are longer than the packet.
        udp(0, 6081, &[0x40, 0, 8, 0, 0, 0, 0, 0]),
        udp(0, 6081, &[0, 0x80, 8, 0, 0, 0, 0, 0]),
        udp(0, 6081, &[0, 0x40, 8, 0, 0, 0, 0, 0]),
        udp(0, 6081, &[0, 0, 0x65, 0x58, 0, 0, 0, 0]),
        udp(0, 6081, &[0x3f, 0, 8, 0, 0, 0, 0, 0]),
        plain(proto::IPIP, &[]),
        plain(proto::IPV6, &inner),
        plain(proto::IPIP, &inner[..11]),
        plain(proto::IPIP, &[0x75; 40]),
    ] {
        let frame = from_peer(refused);
        assert_eq!(lab.receive(&frame).refused(), Refusal::TunnelHeaders, "{frame:x?}");
    }
    let fragment = ipip(&syn(CLIENT, VIP)).fragment(1, 0, true);
    assert_eq!(lab.receive(&from_peer(fragment)).refused(), Refusal::TunnelFragment);
    // Errors of the inner packet have their own reasons.
    let truncated = plain(proto::IPIP, &inner[..30]);
    assert_eq!(
        lab.receive(&from_peer(truncated)).verdict,
        Verdict::Drop(tidegate_wire::Malformed::Ipv4TotalLength.into())
    );
}

#[test]
fn congestion_in_the_tunnel_reaches_the_backend_or_drops_the_packet() {
    for (mode, inner, outer, expected) in [
        (ForwardingMode::DsrL2, 0xb9, 0x03, Some(0xbb)),
        (ForwardingMode::Nat, 0xba, 0xff, Some(0xbb)),
        (ForwardingMode::Nat, 0xba, 0xfc, Some(0xba)),
        (ForwardingMode::FullNat, 0xb8, 0x03, None),
    ] {
        let mut lab = gateway(vec![service(mode, Protocol::Tcp, VIP, &["10.0.0.1:80"])]);
        let result = lab.receive(&from_peer(ipip(&syn(CLIENT, VIP).tos(inner)).tos(outer)));
        match expected {
            Some(tos) => {
                let sent = result.sent(TransmitReason::Forward);
                assert_eq!(sent[15], tos);
                assert_eq!(tidegate_wire::checksum::checksum(&sent[14..34]), 0);
            }
            None => assert_eq!(result.refused(), Refusal::TunnelCongestion),
        }
    }
}

#[test]
fn only_packets_to_services_are_accepted_from_a_tunnel() {
    let mut lab = gateway(vec![service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &["10.0.0.1:80"])]);
    lab.change(|spec| spec.network.gateway.forward = true);
    lab.change(|spec| spec.network.gateway.prefixes = vec!["10.0.0.0/24".parse().unwrap()]);
    let elsewhere = Builder::udp("10.0.0.1:40000", "192.0.2.9:53");
    assert_eq!(
        lab.receive(&elsewhere.clone().mac(backend_mac(1), GATEWAY_MAC).build()).verdict,
        Verdict::Transmit { interface: 0, why: TransmitReason::Routed }
    );
    for inner in [
        elsewhere,
        Builder::tcp(CLIENT, "203.0.113.5:81").flags(SYN),
        Builder::tcp(CLIENT, "10.0.0.254:179").flags(SYN),
        Builder::echo_request(ip("198.51.100.7"), ip("203.0.113.5"), 1, 1),
        ipip(&syn(CLIENT, VIP)),
        Builder::ip(ip("198.51.100.7"), ip("203.0.113.5"), proto::IPIP).payload(&syn(CLIENT, VIP).packet()),
    ] {
        assert_eq!(lab.receive(&from_peer(ipip(&inner))).refused(), Refusal::TunnelUnserved, "{inner:?}");
    }
}

#[test]
fn an_answer_to_a_client_is_routed_and_not_sent_to_the_peer() {
    let mut lab = gateway(vec![service(ForwardingMode::Nat, Protocol::Tcp, VIP, &["10.0.0.1:80"])]);
    let unknown = Builder::tcp(CLIENT, VIP).flags(ACK).seq_ack(7, 8);
    let result = lab.receive(&from_peer(ipip(&unknown)));
    let sent = result.sent(TransmitReason::NoFlow);
    assert_eq!((&sent[..6], &sent[6..12]), (&ROUTER_MAC.0[..], &GATEWAY_MAC.0[..]));
    // Without a tunnel, the answer returns to the station that sent the packet.
    let plain = lab.receive(&unknown.mac(CLIENT_MAC, GATEWAY_MAC).build());
    assert_eq!(plain.sent(TransmitReason::NoFlow)[..6], CLIENT_MAC.0);
}

#[test]
fn a_packet_for_another_worker_is_handed_over_in_its_tunnel() {
    let web = service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &["10.0.0.1:80"]);
    let worker = |worker| {
        let spec = spec_with(vec![web.clone().into()], |network| network.tunnel_peers = PEERS.map(ip).into());
        Lab::worker(spec, worker, 2, Steering::Partition)
    };
    let (mut first, mut second) = (worker(0), worker(1));
    let sent = first.receive(&from_peer(ipip(&syn(CLIENT, VIP))));
    let (local, _) = super::connection::ends(sent.sent(TransmitReason::Forward));
    let answer = Builder::tcp("10.0.0.1:80", local).flags(SYN | ACK);
    let reply = from_peer(ipip(&answer));
    let result = second.receive(&reply);
    assert_eq!((result.verdict, &result.frame), (Verdict::HandOver(0), &reply));
    first.receive_as(Arrival::HandedOver(0, 0), &reply).sent(TransmitReason::Reply);
}

#[test]
fn ethernet_padding_behind_a_tunnel_is_not_part_of_the_packet() {
    let mut lab =
        gateway(vec![service(ForwardingMode::Nat, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
    let query = Builder::udp(CLIENT, "203.0.113.5:53").payload(b"?");
    let result = lab.receive(&from_peer(ipip(&query).trailer(9)));
    assert_eq!(result.sent(TransmitReason::Forward).len(), 14 + 20 + 8 + 1);
    // An inner length that includes the padding.
    let longer = ipip(&query.ip_len(20 + 8 + 1 + 9)).trailer(9);
    assert_eq!(
        lab.receive(&from_peer(longer)).verdict,
        Verdict::Drop(tidegate_wire::Malformed::Ipv4TotalLength.into())
    );
}
