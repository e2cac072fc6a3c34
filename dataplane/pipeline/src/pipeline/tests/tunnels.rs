//! `dsr-gue`, `dsr-gre` and `dsr-geneve`: the bytes in front of the packet, by their RFCs, in all combinations of
//! families; and the fields by which receivers spread flows.

use std::collections::BTreeSet;

use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec, TunnelOptions};
use tidegate_wire::encapsulation::{GueVariant, ServiceIdentity, Vni};
use tidegate_wire::ethernet;

use super::lab::{Lab, ROUTER_MAC, backend_mac, service};
use crate::testing::builder::{Builder, GATEWAY_MAC};
use crate::testing::decapsulate::{Decapsulated, decapsulate};
use crate::testing::{assert_only_changed, hexdump};

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "203.0.113.5:80";
const CLIENT6: &str = "[2001:db8::7]:40000";
const VIP6: &str = "[2001:db8:1::5]:80";
const PAIRS: [(&str, &str); 2] = [(CLIENT, VIP), (CLIENT6, VIP6)];
const BACKENDS: [&str; 2] = ["10.0.0.2:80", "[fd00::2]:80"];

/// Each tunnel, its name at the receiver, and the number of bytes between outer header and packet.
fn tunnels() -> [(ForwardingMode, TunnelOptions, &'static str, usize); 8] {
    let usual = TunnelOptions::default();
    let variant_0 = TunnelOptions { gue_variant: GueVariant::Header, ..usual };
    let other_port = TunnelOptions { gue_port: 5555, ..usual };
    let keyed = TunnelOptions { gre_key: Some(0x0102_0304), ..usual };
    let identified = TunnelOptions {
        geneve_port: 5556,
        geneve_vni: Vni::new(0x00ab_cdef).unwrap(),
        geneve_service: ServiceIdentity::of("default", "web"),
        ..usual
    };
    [
        (ForwardingMode::DsrIpip, usual, "ipip", 0),
        (ForwardingMode::DsrGue, usual, "gue1 6080", 8),
        (ForwardingMode::DsrGue, variant_0, "gue0 6080", 12),
        (ForwardingMode::DsrGue, other_port, "gue1 5555", 8),
        (ForwardingMode::DsrGre, usual, "gre", 4),
        (ForwardingMode::DsrGre, keyed, "gre 16909060", 8),
        (ForwardingMode::DsrGeneve, usual, "geneve 6081 0 0000000000000000", 28),
        (ForwardingMode::DsrGeneve, identified, "geneve 5556 11259375 9d2ba50824d634bb", 28),
    ]
}

fn served(mode: ForwardingMode, tunnel: TunnelOptions, vip: &str, backend: &str) -> ServiceSpec {
    let port = vip.rsplit_once(':').unwrap().1;
    let backend = format!("{}:{port}", backend.rsplit_once(':').unwrap().0);
    ServiceSpec { tunnel, ..service(mode, Protocol::Tcp, vip, &[&backend]) }
}

fn to_gateway(packet: Builder) -> Vec<u8> {
    packet.mac(ROUTER_MAC, GATEWAY_MAC).build()
}

fn opened(frame: &[u8]) -> Decapsulated {
    decapsulate(&frame[ethernet::HEADER_LEN..]).unwrap_or_else(|why| panic!("{why}\n{}", hexdump(frame)))
}

/// The inner packet in a frame with the link addresses of the outer one.
fn inner_frame(sent: &[u8], packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&sent[..12], &kind, packet].concat()
}

#[test]
fn every_tunnel_carries_both_families_and_changes_only_the_hop_limit() {
    for (mode, options, name, overhead) in tunnels() {
        for ((client, vip), backend) in PAIRS.iter().flat_map(|pair| BACKENDS.map(|backend| (*pair, backend)))
        {
            let mut lab = Lab::new(vec![served(mode, options, vip, backend)]);
            let before = to_gateway(Builder::tcp(client, vip).tos(0x2d).payload(b"hello, tunnel"));
            let result = lab.receive(&before);
            let sent = result.sent(TransmitReason::Forward);
            let outer = opened(sent);
            let v6 = backend.starts_with('[');
            assert_eq!(outer.tunnel, name, "{vip} {backend}");
            assert_eq!(
                outer.source,
                if v6 { "fd00::fe" } else { "10.0.0.254" }.parse::<std::net::IpAddr>().unwrap()
            );
            assert_eq!(outer.destination, lab.backend_of(&result));
            // RFC 6040 normal mode copies ECN, and the DSCP is copied too.
            assert_eq!((outer.traffic_class, outer.hop_limit, outer.dont_fragment), (0x2d, 64, true));
            assert_eq!(ethernet::destination(sent), backend_mac(2));
            assert_eq!(sent.len() - before.len(), overhead + if v6 { 40 } else { 20 });
            let hop: &[&str] = match vip.starts_with('[') {
                true => &["eth.dst", "eth.src", "ipv6.hop_limit"],
                false => &["eth.dst", "eth.src", "ipv4.ttl", "ipv4.checksum"],
            };
            assert_only_changed(&before, &inner_frame(sent, &outer.packet), hop);
        }
    }
}

#[test]
fn the_encapsulation_headers_are_those_of_the_rfcs() {
    for (mode, options, name, len) in tunnels() {
        for ((client, vip), inner) in PAIRS.into_iter().zip([4_u8, 41]) {
            let mut lab = Lab::new(vec![served(mode, options, vip, BACKENDS[0])]);
            let result = lab.receive(&to_gateway(Builder::tcp(client, vip)));
            let sent = result.sent(TransmitReason::Forward);
            let (outer, rest) = sent[ethernet::HEADER_LEN..].split_at(20);
            let ether_type = if inner == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
            let [source_hi, source_lo] = opened(sent).source_port.to_be_bytes();
            let [len_hi, len_lo] = (rest.len() as u16).to_be_bytes();
            let udp = |port: [u8; 2]| vec![source_hi, source_lo, port[0], port[1], len_hi, len_lo, 0, 0];
            let (protocol, expected) = match name {
                "ipip" => (inner, vec![]),
                "gue1 6080" => (17, udp([0x17, 0xc0])),
                "gue1 5555" => (17, udp([0x15, 0xb3])),
                "gue0 6080" => (17, [udp([0x17, 0xc0]), vec![0, inner, 0, 0]].concat()),
                "geneve 6081 0 0000000000000000" => {
                    let header = [&[3, 0], &ether_type[..], &[0; 4], &[0xff, 0x54, 1, 2], &[0; 8]].concat();
                    (17, [udp([0x17, 0xc1]), header].concat())
                }
                "geneve 5556 11259375 9d2ba50824d634bb" => {
                    let identity = [0x9d, 0x2b, 0xa5, 0x08, 0x24, 0xd6, 0x34, 0xbb];
                    let vni = [0xab, 0xcd, 0xef, 0];
                    let header = [&[3, 0], &ether_type[..], &vni, &[0xff, 0x54, 1, 2], &identity].concat();
                    (17, [udp([0x15, 0xb4]), header].concat())
                }
                "gre" => (47, [&[0, 0], &ether_type[..]].concat()),
                _ => (47, [&[0x20, 0], &ether_type[..], &[1, 2, 3, 4]].concat()),
            };
            assert_eq!((outer[9], &rest[..len]), (protocol, &expected[..]), "{name} {vip}");
            assert_eq!(rest[len] >> 4, if inner == 4 { 4 } else { 6 });
        }
    }
}

#[test]
fn each_flow_has_one_udp_source_port_from_the_ephemeral_range() {
    for backend in BACKENDS {
        let mut lab = Lab::new(vec![served(ForwardingMode::DsrGue, TunnelOptions::default(), VIP, backend)]);
        let mut ports = BTreeSet::new();
        for n in 0..200_u16 {
            let client = format!("198.51.100.7:{}", 2000 + n);
            let mut of_flow = || {
                let result = lab.receive(&to_gateway(Builder::tcp(client.as_str(), VIP)));
                opened(result.sent(TransmitReason::Forward)).source_port
            };
            let port = of_flow();
            assert_eq!(port, of_flow(), "{client}");
            assert!(port >= 49_152);
            ports.insert(port);
        }
        assert!(ports.len() > 190, "{} ports", ports.len());
        // Each bit that a receiver may hash is set in about half of them.
        for bit in 0..14 {
            let set = ports.iter().filter(|port| *port >> bit & 1 == 1).count();
            assert!((70..130).contains(&set), "bit {bit}: {set}");
        }
    }
}

#[test]
fn over_ipv6_every_tunnel_has_a_flow_label_per_flow() {
    for (mode, options, name, _) in tunnels() {
        let mut lab = Lab::new(vec![served(mode, options, VIP, BACKENDS[1])]);
        let labels: BTreeSet<u32> = (0..50)
            .map(|n| {
                let client = format!("198.51.100.7:{}", 2000 + n);
                let result = lab.receive(&to_gateway(Builder::tcp(client.as_str(), VIP)));
                opened(result.sent(TransmitReason::Forward)).flow_label
            })
            .collect();
        assert!(labels.len() > 45, "{name}: {} labels", labels.len());
    }
}

#[test]
fn a_wrong_inner_checksum_only_makes_the_outer_udp_checksum_wrong() {
    let mut lab = Lab::new(vec![served(ForwardingMode::DsrGue, TunnelOptions::default(), VIP, BACKENDS[1])]);
    let result = lab.receive(&to_gateway(Builder::tcp(CLIENT, VIP).payload(b"broken").l4_checksum(1)));
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!(decapsulate(&sent[ethernet::HEADER_LEN..]), Err("the UDP checksum is wrong".into()));
}

#[test]
fn ipv4_without_df_passes_every_tunnel_in_fragments_that_fit() {
    for (mode, options, name, _) in tunnels() {
        for backend in BACKENDS {
            let spec = ServiceSpec {
                key: tidegate_spec::ServiceKey {
                    protocol: Protocol::Udp,
                    ..served(mode, options, VIP, backend).key
                },
                ..served(mode, options, VIP, backend)
            };
            let mut lab = Lab::new(vec![spec]);
            let before = to_gateway(Builder::udp(CLIENT, VIP).payload_len(1472).dont_fragment(false));
            let result = lab.receive(&before);
            result.sent(TransmitReason::Forward);
            assert_eq!(result.fragments.len(), 2, "{name} {backend}");
            let mut data = vec![0; 1480];
            for fragment in &result.fragments {
                assert!(fragment.len() <= ethernet::HEADER_LEN + 1500);
                let outer = opened(fragment);
                assert_eq!((outer.tunnel.as_str(), outer.dont_fragment), (name, true));
                let at = usize::from(u16::from_be_bytes([outer.packet[6], outer.packet[7]]) & 0x1fff) * 8;
                data[at..at + outer.packet.len() - 20].copy_from_slice(&outer.packet[20..]);
            }
            assert_eq!(data, before[ethernet::HEADER_LEN + 20..], "{name} {backend}");
        }
    }
}

#[test]
fn a_frame_without_headroom_is_dropped_and_counted_in_every_tunnel() {
    for (mode, options, name, _) in tunnels() {
        let mut lab = Lab::new(vec![served(mode, options, VIP, BACKENDS[1])]);
        let result = lab.receive_tight(&to_gateway(Builder::tcp(CLIENT, VIP)));
        assert_eq!(result.refused(), Refusal::NoHeadroom, "{name}");
    }
}

#[test]
fn a_burst_with_packets_of_all_tunnels_sends_each_in_its_own() {
    let services = tunnels().into_iter().enumerate().map(|(n, (mode, options, ..))| {
        served(mode, options, &format!("203.0.113.5:{}", 80 + n), BACKENDS[n % 2])
    });
    let mut lab = Lab::new(services.collect());
    let at = |n: usize| n % tunnels().len();
    let frame = |n: usize| {
        let (client, vip) = (format!("198.51.100.7:{}", 2000 + n), format!("203.0.113.5:{}", 80 + at(n)));
        to_gateway(Builder::tcp(client.as_str(), vip.as_str()).payload_len(n))
    };
    let frames: Vec<_> = (0..BURST).map(frame).collect();
    for (n, result) in lab.receive_burst(&frames).iter().enumerate() {
        assert_eq!(opened(result.sent(TransmitReason::Forward)).tunnel, tunnels()[at(n)].2);
    }
}
