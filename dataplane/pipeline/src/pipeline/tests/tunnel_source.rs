//! A prefix as the source of tunnels: flows are distributed over its addresses, which are the gateway's own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::addresses::AddressKind;
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{BackendProblem, ForwardingMode, Problem, Protocol};
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, arp, ethernet, parse};

use super::lab::{CLIENT as CLIENT_MAC, Lab, ip, service, spec_with};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const VIP6: &str = "[2001:db8:1::5]:80";

/// One tunnel backend of each family for a VIP of each family.
fn lab(v4: &str, v6: &str) -> Lab {
    let udp = |vip, backend: &str| service(ForwardingMode::DsrIpip, Protocol::Udp, vip, &[backend]).into();
    let services = vec![
        udp(VIP, "10.0.0.1:80"),
        udp(VIP6, "10.0.0.1:80"),
        udp("203.0.113.6:80", "[fd00::1]:80"),
        udp("[2001:db8:1::6]:80", "[fd00::1]:80"),
    ];
    Lab::with_spec(spec_with(services, |network| {
        network.tunnel_source_v4 = Some(v4.parse().unwrap());
        network.tunnel_source_v6 = Some(v6.parse().unwrap());
    }))
}

const MANY: [&str; 2] = ["10.0.0.64/28", "fd00::100/120"];

fn outer(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

fn sources(lab: &mut Lab, vip: &str, flows: u16) -> BTreeMap<IpAddr, usize> {
    let mut seen = BTreeMap::new();
    for n in 0..flows {
        let client = match vip.starts_with('[') {
            true => format!("[2001:db8::7]:{}", 40_000 + n),
            false => format!("198.51.100.7:{}", 40_000 + n),
        };
        let result = lab.send(Builder::udp(client.as_str(), vip));
        *seen.entry(outer(result.sent(TransmitReason::Forward)).src.ip()).or_insert(0) += 1;
    }
    seen
}

#[test]
fn ninety_nine_flows_have_many_outer_sources_and_by_default_one() {
    let mut many = lab(MANY[0], MANY[1]);
    for (vip, prefix) in [(VIP, 0), (VIP6, 0), ("203.0.113.6:80", 1), ("[2001:db8:1::6]:80", 1)] {
        let seen = sources(&mut many, vip, 99);
        let net: ipnet::IpNet = MANY[prefix].parse().unwrap();
        assert!(seen.keys().all(|source| net.contains(source) && *source != net.network()), "{seen:?}");
        let (enough, most) = if prefix == 0 { (13, 20) } else { (70, 5) };
        assert!(seen.len() >= enough && seen.values().all(|&flows| flows <= most), "{vip}: {seen:?}");
    }
    let mut one = lab("10.0.0.254", "fd00::fe");
    assert_eq!(Vec::from_iter(sources(&mut one, VIP, 99).into_keys()), [ip("10.0.0.254")]);
    assert_eq!(Vec::from_iter(sources(&mut one, "203.0.113.6:80", 99).into_keys()), [ip("fd00::fe")]);
}

#[test]
fn all_packets_of_a_flow_and_the_errors_about_it_have_one_outer_header() {
    let mut lab = lab(MANY[0], MANY[1]);
    for vip in [VIP, "203.0.113.6:80"] {
        for port in 40_000..40_050 {
            let client = format!("198.51.100.7:{port}");
            let key = |frame: &[u8]| {
                let h = outer(frame);
                // The first 4 bytes of an IPv6 header have the flow label.
                let label = if h.src.is_v4() { &[][..] } else { &frame[ethernet::HEADER_LEN..][..4] };
                (h.src, h.dst, label.to_vec())
            };
            let first = lab.send(Builder::udp(client.as_str(), vip));
            let second = lab.send(Builder::udp(client.as_str(), vip).payload_len(900));
            let expected = key(first.sent(TransmitReason::Forward));
            assert_eq!(key(second.sent(TransmitReason::Forward)), expected);
            // An error of a router between backend and client, about an answer of the VIP.
            let quoted = Builder::udp(vip, client.as_str()).packet();
            let vip = vip.parse::<std::net::SocketAddr>().unwrap().ip();
            let error = lab.send(Builder::icmp(ip("192.0.2.1"), vip, 3, 4, [0, 0, 5, 0]).payload(&quoted));
            assert_eq!(key(error.sent(TransmitReason::IcmpError)), expected, "{client}");
        }
    }
}

#[test]
fn all_fragments_of_a_datagram_have_one_outer_source() {
    let mut lab = lab(MANY[0], MANY[1]);
    let mut seen = BTreeSet::new();
    for id in 0..40_u16 {
        let client = format!("198.51.{id}.7:40000");
        let whole = Builder::udp(client.as_str(), VIP).dont_fragment(false).payload_len(600);
        let whole = whole.mac(super::lab::ROUTER_MAC, GATEWAY_MAC).build();
        let fragments = builder::fragments(&whole, u32::from(id), 256);
        let of_datagram: BTreeSet<IpAddr> = fragments
            .iter()
            .map(|frame| outer(lab.receive(frame).sent(TransmitReason::Forward)).src.ip())
            .collect();
        assert_eq!(of_datagram.len(), 1);
        seen.extend(of_datagram);
    }
    assert!(seen.len() > 10, "and those of other clients have others");
}

#[test]
fn the_addresses_of_the_prefix_are_ours_on_the_link() {
    let mut lab = lab(MANY[0], MANY[1]);
    let query = |target: &str| {
        arp::request(CLIENT_MAC, "10.0.0.90".parse().unwrap(), target.parse().unwrap(), None, None)
    };
    for target in ["10.0.0.65", "10.0.0.78"] {
        let result = lab.receive(&query(target));
        let Ok(Parsed::Arp(reply)) = parse(result.sent(TransmitReason::ArpReply)) else { panic!("not ARP") };
        assert_eq!(reply.sender_mac, GATEWAY_MAC);
        lab.send(Builder::echo_request(ip("198.51.100.7"), ip(target), 1, 1)).sent(TransmitReason::EchoReply);
    }
    for other in ["10.0.0.64", "10.0.0.79", "10.0.0.80"] {
        assert_eq!(lab.snapshot.address(&ip(other).into()), None);
    }
    assert_eq!(lab.snapshot.address(&ip("10.0.0.70").into()), Some(AddressKind::Tunnel));
    let target = "fd00::1ab".parse().unwrap();
    let result = lab.receive(&ndp::solicitation(CLIENT_MAC, "fd00::77".parse().unwrap(), target, None, None));
    let sent = result.sent(TransmitReason::NeighborAdvertisement);
    assert!(matches!(ndp::parse(sent, &outer(sent)), Ok(Some(Ndp::Advertisement { .. }))));
}

#[test]
fn an_error_to_any_address_of_the_prefix_sets_the_path_mtu() {
    for (vip, quoted_len) in [(VIP, 28), ("203.0.113.6:80", 1232)] {
        let mut lab = lab(MANY[0], MANY[1]);
        let big = || Builder::udp("198.51.100.7:40077", vip).payload_len(1400);
        let sent = lab.send(big()).sent(TransmitReason::Forward).to_vec();
        let (kind, code) = if quoted_len == 28 { (3, 4) } else { (2, 0) };
        let router = if quoted_len == 28 { ip("10.9.9.9") } else { ip("fd00:9::9") };
        let quoted = &sent[ethernet::HEADER_LEN..];
        let quoted = &quoted[..quoted_len.min(quoted.len())];
        let error = Builder::icmp(router, outer(&sent).src.ip(), kind, code, [0, 0, 5, 120]).payload(quoted);
        assert_eq!(lab.send(error).refused(), Refusal::TunnelError);
        lab.send(big()).sent(TransmitReason::PacketTooBig);
    }
}

#[test]
fn a_backend_inside_the_prefix_is_left_out() {
    let services = vec![service(ForwardingMode::DsrIpip, Protocol::Tcp, VIP, &["10.0.0.66:80"]).into()];
    let spec = spec_with(services, |network| network.tunnel_source_v4 = Some(MANY[0].parse().unwrap()));
    let (_, problems) =
        Snapshot::compile(&spec, None, &tidegate_snapshot::neighbors::NeighborTable::new()).unwrap();
    assert!(
        matches!(&problems[..], [Problem::Backend { reason: BackendProblem::AddressIsOurs, .. }]),
        "{problems:?}"
    );
}

#[test]
fn a_segment_to_a_tunnel_address_matches_no_service() {
    let mut lab = lab(MANY[0], MANY[1]);
    let result = lab.send(Builder::tcp("198.51.100.7:40000", "10.0.0.70:22").flags(flags::SYN));
    assert!(!matches!(result.verdict, tidegate_spec::verdict::Verdict::Punt(_)), "{:?}", result.verdict);
}
