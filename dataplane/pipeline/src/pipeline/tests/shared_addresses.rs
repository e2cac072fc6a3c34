//! Next hops and addresses that the dataplane shares with the kernel and routers: changing routes, service ports on the
//! gateway's own addresses, VIPs that are not on a link.

use std::net::Ipv4Addr;

use tidegate_snapshot::addresses::AddressKind;
use tidegate_spec::verdict::{PuntReason, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, RouteSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{arp, ethernet, ndp};

use super::lab::{Lab, ROUTER_MAC, backend_mac, ip, service, spec};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:80";
const CLIENT: &str = "198.51.100.7:40000";
/// The gateway's own address, and a node port on it.
const OWN: &str = "10.0.0.254:30080";
const PUNTED: Verdict = Verdict::Punt(PuntReason::Local);

fn own(mode: ForwardingMode) -> Lab {
    let backend = if mode.is_dsr() { "10.0.0.1:30080" } else { "10.0.0.1:8080" };
    let services = [Protocol::Tcp, Protocol::Udp].map(|protocol| service(mode, protocol, OWN, &[backend]));
    Lab::new(services.to_vec())
}

#[test]
fn service_ports_on_own_addresses_are_served_and_others_punted() {
    for mode in ForwardingMode::ALL {
        let mut lab = own(mode);
        assert_eq!(lab.snapshot.address(&ip("10.0.0.254").into()), Some(AddressKind::Own(0)));
        let result = lab.send(Builder::tcp(CLIENT, OWN).flags(flags::SYN));
        assert_eq!(ethernet::destination(result.sent(TransmitReason::Forward)), backend_mac(1), "{mode}");
        lab.send(Builder::udp(CLIENT, OWN)).sent(TransmitReason::Forward);
        for other in [
            Builder::tcp(CLIENT, "10.0.0.254:22").flags(flags::SYN),
            Builder::udp(CLIENT, "10.0.0.254:30081"),
            Builder::sctp(CLIENT, OWN),
            // The answer of a backend to the gateway's own health check.
            Builder::tcp("10.0.0.1:8080", "10.0.0.254:45000").flags(flags::SYN | flags::ACK),
        ] {
            assert_eq!(lab.send(other).verdict, PUNTED, "{mode}");
        }
    }
}

#[test]
fn replies_of_a_service_port_have_its_own_address_as_source() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        let mut lab = own(mode);
        let result = lab.send(Builder::tcp(CLIENT, OWN).flags(flags::SYN));
        let sent = crate::testing::summary(result.sent(TransmitReason::Forward));
        let source =
            sent.split_whitespace().find(|word| word.ends_with(":40000") || word.starts_with("10.0.0.253:"));
        let to = source.unwrap_or_else(|| panic!("a source in {sent}")).to_owned();
        let answer = Builder::tcp("10.0.0.1:8080", to.as_str()).flags(flags::SYN | flags::ACK);
        let result = lab.send(answer);
        let Ok(tidegate_wire::Parsed::Ip(h)) = tidegate_wire::parse(result.sent(TransmitReason::Reply))
        else {
            panic!("not IP")
        };
        assert_eq!((h.src.ip(), h.src_port), (ip("10.0.0.254"), 30080), "{mode}");
        assert_eq!((h.dst.ip(), h.dst_port), (ip("198.51.100.7"), 40000), "{mode}");
    }
}

#[test]
fn pings_of_an_own_address_are_punted_and_arp_for_it_is_answered() {
    let mut lab = own(ForwardingMode::FullNat);
    let v6 = service(ForwardingMode::FullNat, Protocol::Tcp, "[fd00::fe]:30080", &["[fd00::1]:8080"]);
    lab.change(|spec| spec.services.push(v6.into()));
    let request =
        arp::request(ROUTER_MAC, Ipv4Addr::new(10, 0, 0, 250), Ipv4Addr::new(10, 0, 0, 254), None, None);
    lab.receive(&request).sent(TransmitReason::ArpReply);
    let request =
        ndp::solicitation(ROUTER_MAC, "fd00::fa".parse().unwrap(), "fd00::fe".parse().unwrap(), None, None);
    lab.receive(&request).sent(TransmitReason::NeighborAdvertisement);
    let ping = Builder::icmp(ip("198.51.100.7"), ip("10.0.0.254"), 8, 0, [0, 1, 0, 1]);
    assert_eq!(lab.send(ping).verdict, PUNTED);
    let ping = Builder::icmp(ip("2001:db8::7"), ip("fd00::fe"), 128, 0, [0, 1, 0, 1]);
    assert_eq!(lab.send(ping).verdict, PUNTED);
}

#[test]
fn an_icmp_error_to_an_own_address_follows_the_flow_that_it_quotes() {
    let mut lab = own(ForwardingMode::FullNat);
    lab.send(Builder::udp(CLIENT, OWN)).sent(TransmitReason::Forward);
    let too_big = |quoted: Builder| {
        Builder::icmp(ip("192.0.2.1"), ip("10.0.0.254"), 3, 4, [0, 0, 5, 0]).payload(&quoted.packet())
    };
    lab.send(too_big(Builder::udp(OWN, CLIENT))).sent(TransmitReason::IcmpError);
    // The kernel gets errors about its own connections.
    assert_eq!(lab.send(too_big(Builder::tcp("10.0.0.254:22", CLIENT))).verdict, PUNTED);
    assert_eq!(lab.send(too_big(Builder::udp(OWN, "198.51.100.8:1"))).verdict, PUNTED);
}

#[test]
fn fragments_to_an_own_address_follow_their_first_one() {
    let mut lab = own(ForwardingMode::FullNat);
    for (id, to, served) in [(7, OWN, true), (8, "10.0.0.254:53", false)] {
        let whole = Builder::udp(CLIENT, to).dont_fragment(false).payload_len(600);
        for fragment in builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), id, 256) {
            let verdict = lab.receive(&fragment).verdict;
            let forward = Verdict::Transmit { interface: 0, why: TransmitReason::Forward };
            assert_eq!(verdict, if served { forward } else { PUNTED });
        }
    }
}

#[test]
fn a_vip_inside_a_routed_network_is_served() {
    for mode in ForwardingMode::ALL {
        let port = if mode.is_dsr() { 80 } else { 8080 };
        let backend = format!("10.0.0.1:{port}");
        let mut lab = Lab::new(vec![service(mode, Protocol::Tcp, "10.96.0.10:80", &[&backend])]);
        lab.change(|spec| {
            spec.services[0].layer2 = tidegate_spec::ownership::Layer2::Answered;
            // The service CIDR may have a route on the gateway, too. Our own addresses are not routed.
            spec.network
                .routes
                .push(RouteSpec { to: "10.96.0.0/12".parse().unwrap(), via: ip("10.0.0.250") });
        });
        let result = lab.send(Builder::tcp(CLIENT, "10.96.0.10:80").flags(flags::SYN));
        assert_eq!(ethernet::destination(result.sent(TransmitReason::Forward)), backend_mac(1), "{mode}");
        let ping = Builder::icmp(ip("198.51.100.7"), ip("10.96.0.10"), 8, 0, [0, 1, 0, 1]);
        lab.send(ping).sent(TransmitReason::EchoReply);
    }
}

#[test]
fn a_changed_route_applies_to_the_next_packet_of_known_flows() {
    let pods: Vec<String> = (0..300).map(|n| format!("10.{}.{}.9:80", 100 + n / 100, n % 100)).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let route = |n: usize, node: usize| RouteSpec {
        to: format!("10.{}.{}.0/24", 100 + n / 100, n % 100).parse().unwrap(),
        via: ip(&format!("10.0.0.{node}")),
    };
    let mut with_routes = spec();
    with_routes.network.routes.extend((0..300).map(|n| route(n, 1 + n % 9)));
    with_routes.services = vec![service(ForwardingMode::FullNat, Protocol::Tcp, VIP, &pods).into()];
    let mut lab = Lab::with_spec(with_routes);
    let node = |lab: &mut Lab, port: u16, flags| {
        let result = lab.send(Builder::tcp(format!("198.51.100.7:{port}").as_str(), VIP).flags(flags));
        (ethernet::destination(result.sent(TransmitReason::Forward)), lab.backend_of(&result))
    };
    let number = |pod: std::net::IpAddr| match pod {
        std::net::IpAddr::V4(pod) => usize::from(pod.octets()[1] - 100) * 100 + usize::from(pod.octets()[2]),
        std::net::IpAddr::V6(_) => unreachable!("an IPv4 address"),
    };
    for port in 2000..2100 {
        let (to, pod) = node(&mut lab, port, flags::SYN);
        assert_eq!(to, backend_mac(1 + (number(pod) % 9) as u8));
    }
    lab.change(|spec| {
        spec.network.routes.truncate(2);
        spec.network.routes.extend((0..300).map(|n| route(n, 9 - n % 9)));
    });
    for port in 2000..2100 {
        let (to, pod) = node(&mut lab, port, flags::ACK);
        assert_eq!(to, backend_mac(9 - (number(pod) % 9) as u8));
    }
}
