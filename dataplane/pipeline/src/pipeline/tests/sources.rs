//! Packets with forged sources create no flow, get no answer, and cause no forwarding of ICMP errors.

use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, MacAddr, Malformed, Parsed, parse, proto};

use super::lab::{CLIENT, FrameResult, Lab, ROUTER_MAC, ip, service, spec_with};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

fn socket(address: &str, port: u16) -> String {
    std::net::SocketAddr::new(ip(address), port).to_string()
}

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

/// UDP 53 and TCP 80 on two VIPs of each family.
fn services(mode: ForwardingMode) -> Vec<ServiceSpec> {
    let one = |protocol, vip: &str, backend: &str, port| {
        service(mode, protocol, &socket(vip, port), &[socket(backend, port).as_str()])
    };
    let of_family = |vip, other, backend| {
        [vip, other]
            .into_iter()
            .flat_map(move |vip| [one(Protocol::Udp, vip, backend, 53), one(Protocol::Tcp, vip, backend, 80)])
    };
    let v4 = of_family("203.0.113.5", "203.0.113.6", "10.0.0.1");
    v4.chain(of_family("2001:db8:1::5", "2001:db8:1::6", "fd00::1")).collect()
}

/// Sources that no real client has: VIPs, own, SNAT and tunnel addresses, and the first and last addresses of connected
/// networks.
const FORGED: [(&str, &[&str]); 2] = [
    (
        "203.0.113.5",
        &["203.0.113.5", "203.0.113.6", "10.0.0.254", "10.0.0.253", "10.9.9.9", "10.0.0.0", "10.0.0.255"],
    ),
    ("2001:db8:1::5", &["2001:db8:1::5", "2001:db8:1::6", "fd00::fe", "fd00::fd", "fd09::9", "fd00::"]),
];

/// A gateway whose tunnel sources are not addresses of its interface.
fn gateway(mode: ForwardingMode) -> Lab {
    Lab::with_spec(spec_with(services(mode).into_iter().map(Into::into).collect(), |network| {
        network.tunnel_source_v4 = Some("10.9.9.9".parse().unwrap());
        network.tunnel_source_v6 = Some("fd09::9".parse().unwrap());
    }))
}

#[test]
fn a_forged_source_creates_no_flow_in_any_mode() {
    for mode in ForwardingMode::ALL {
        let mut lab = gateway(mode);
        for (vip, sources) in FORGED {
            for source in sources {
                let datagram = Builder::udp(socket(source, 53).as_str(), socket(vip, 53).as_str());
                assert_eq!(lab.send(datagram).refused(), Refusal::BadSource, "{mode}: {source} -> {vip}");
                let syn = Builder::tcp(socket(source, 40_000).as_str(), socket(vip, 80).as_str());
                assert_eq!(lab.send(syn.flags(flags::SYN)).refused(), Refusal::BadSource, "{mode}: {source}");
            }
        }
        assert_eq!(lab.pipeline.flows().live(), 0, "{mode}");
    }
}

#[test]
fn a_flow_whose_client_becomes_a_vip_does_not_loop() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        let mut lab = Lab::new(vec![service(mode, Protocol::Udp, "203.0.113.5:53", &["10.0.0.1:53"])]);
        let question = || Builder::udp("203.0.113.9:53", "203.0.113.5:53");
        let h = headers(lab.send(question()).sent(TransmitReason::Forward));
        lab.change(|spec| {
            spec.services.push(service(mode, Protocol::Udp, "203.0.113.9:53", &["10.0.0.2:53"]).into());
        });
        let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
        // With `nat`, the answer is to the new VIP, so it is a packet from the backend for its service.
        let answer = lab.send(Builder::udp("10.0.0.1:53", local));
        if mode == ForwardingMode::FullNat {
            answer.sent(TransmitReason::Reply);
            assert_eq!(lab.receive(&to_us(&answer)).refused(), Refusal::BadSource);
        } else {
            assert_eq!(lab.backend_of(&answer), ip("10.0.0.2"));
        }
    }
}

/// The frame in which the router returns a packet to one of our VIPs.
fn to_us(sent: &FrameResult) -> Vec<u8> {
    let mut frame = sent.frame.clone();
    frame[..6].copy_from_slice(&GATEWAY_MAC.0);
    frame[6..12].copy_from_slice(&ROUTER_MAC.0);
    frame
}

#[test]
fn pings_of_vips_with_a_forged_source_are_not_answered() {
    let mut lab = gateway(ForwardingMode::FullNat);
    for (vip, sources) in FORGED {
        for source in sources.iter().chain(if vip.contains(':') {
            &["::", "ff02::1"]
        } else {
            &["0.0.0.0", "224.0.0.1"]
        }) {
            for to in [vip, if vip.contains(':') { "fd00::fd" } else { "10.0.0.253" }] {
                let ping = Builder::echo_request(ip(source), ip(to), 7, 1);
                assert_eq!(lab.send(ping).refused(), Refusal::BadSource, "{source} -> {to}");
            }
        }
    }
}

#[test]
fn a_packet_from_a_vip_to_an_own_address_is_punted_as_a_check_answer() {
    for (vip, own) in [("203.0.113.5", "10.0.0.254"), ("2001:db8:1::5", "fd00::fe")] {
        let mut lab = gateway(ForwardingMode::DsrL2);
        let (from, to) = (socket(vip, 80), socket(own, 40_000));
        let answer = Builder::tcp(from.as_str(), to.as_str()).flags(flags::SYN | flags::ACK);
        assert_eq!(lab.send(answer).verdict, Verdict::Punt(PuntReason::ProbeAnswer));
        let ping = Builder::echo_request(ip(vip), ip(own), 7, 1);
        assert_eq!(lab.send(ping).refused(), Refusal::BadSource, "no check is a ping");
    }
}

#[test]
fn a_default_router_is_no_client_but_may_ping_and_reach_the_kernel() {
    for (vip, router, own) in
        [("203.0.113.5", "10.0.0.250", "10.0.0.254"), ("2001:db8:1::5", "fd00::fa", "fd00::fe")]
    {
        for mode in ForwardingMode::ALL {
            let mut lab = gateway(mode);
            let syn =
                || Builder::tcp(socket(router, 40_000).as_str(), socket(vip, 80).as_str()).flags(flags::SYN);
            assert_eq!(lab.send(syn()).refused(), Refusal::BadSource, "{mode}");
            let reported: u64 = (0..8).map(|service| lab.tallies.from_router(service)).sum();
            assert_eq!(reported, 1, "{mode}: a finding reports it");
            lab.send(Builder::echo_request(ip(router), ip(vip), 7, 1)).sent(TransmitReason::EchoReply);
            let bgp =
                Builder::tcp(socket(router, 40_000).as_str(), socket(own, 179).as_str()).flags(flags::SYN);
            assert_eq!(lab.send(bgp).verdict, Verdict::Punt(PuntReason::Local));
            lab.change(|spec| spec.network.policy.serve_routers = true);
            lab.send(syn()).sent(TransmitReason::Forward);
        }
    }
}

#[test]
fn the_next_hop_of_a_narrower_route_is_an_ordinary_client() {
    let mut lab = gateway(ForwardingMode::FullNat);
    lab.change(|spec| {
        let to = "10.244.1.0/24".parse().unwrap();
        spec.network.routes.push(tidegate_spec::RouteSpec { to, via: ip("10.0.0.9") });
    });
    let syn = Builder::tcp("10.0.0.9:40000", "203.0.113.5:80").flags(flags::SYN);
    lab.send(syn).sent(TransmitReason::Forward);
}

#[test]
fn link_local_clients_are_served_on_their_link_and_refused_from_beyond() {
    for (vip, client) in [("203.0.113.5", "169.254.7.7"), ("2001:db8:1::5", "fe80::77")] {
        for mode in ForwardingMode::ALL {
            let mut lab = gateway(mode);
            let syn =
                || Builder::tcp(socket(client, 40_000).as_str(), socket(vip, 80).as_str()).flags(flags::SYN);
            assert_eq!(lab.send(syn()).refused(), Refusal::BadSource, "{mode}: by the router");
            let on_link = syn().mac(CLIENT, GATEWAY_MAC).build();
            // 169.254/16 is not connected, so the gateway's own answers would go to the router.
            if vip.contains('.') && !mode.is_dsr() {
                assert_eq!(lab.receive(&on_link).refused(), Refusal::BadSource, "{mode}");
                lab.change(|spec| {
                    spec.network.interfaces[0].addresses.push("169.254.0.9/16".parse().unwrap());
                });
            }
            lab.receive(&on_link).sent(TransmitReason::Forward);
        }
    }
}

#[test]
fn icmp_errors_with_a_forged_source_reach_no_backend() {
    let mut lab = gateway(ForwardingMode::FullNat);
    lab.send(Builder::udp("198.51.100.7:40000", "203.0.113.5:53")).sent(TransmitReason::Forward);
    let quoted = Builder::udp("203.0.113.5:53", "198.51.100.7:40000").packet();
    let error = |from: &str| Builder::icmp(ip(from), ip("203.0.113.5"), 3, 4, [0, 0, 5, 0]).payload(&quoted);
    for forged in ["203.0.113.6", "10.0.0.254", "10.0.0.255", "127.0.0.1"] {
        assert_eq!(lab.send(error(forged)).refused(), Refusal::BadSource, "{forged}");
    }
    for router in ["10.0.0.250", "192.0.2.1"] {
        lab.send(error(router)).sent(TransmitReason::IcmpError);
    }
}

#[test]
fn fragments_with_a_forged_source_are_all_refused() {
    let mut lab = gateway(ForwardingMode::FullNat);
    let whole = Builder::udp("203.0.113.6:53", "203.0.113.5:53").dont_fragment(false).payload_len(600);
    for part in builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), 7, 256) {
        assert_eq!(lab.receive(&part).refused(), Refusal::BadSource);
    }
}

#[test]
fn packets_from_our_own_address_are_dropped_and_from_none_punted() {
    let mut lab = gateway(ForwardingMode::FullNat);
    for (from, to) in [
        ("10.0.0.254:40000", "10.0.0.254:22"),
        ("10.0.0.255:40000", "10.0.0.254:22"),
        ("203.0.113.5:53", "192.0.2.8:53"),
    ] {
        assert_eq!(lab.send(Builder::udp(from, to)).refused(), Refusal::BadSource, "{from} -> {to}");
    }
    for (from, to) in [("0.0.0.0:68", "255.255.255.255:67"), ("10.0.0.250:179", "10.0.0.254:40000")] {
        assert_eq!(
            lab.send(Builder::udp(from, to)).verdict,
            Verdict::Punt(PuntReason::Local),
            "{from} -> {to}"
        );
    }
}

#[test]
fn unfinished_source_routes_are_refused() {
    for mode in ForwardingMode::ALL {
        let mut lab = gateway(mode);
        let v4 = || Builder::udp("198.51.100.7:40000", "203.0.113.5:53");
        let v6 = || Builder::udp("[2001:db8::7]:40000", "[2001:db8:1::5]:53");
        let via = [10, 0, 0, 9];
        for kind in [131, 137] {
            let option = [&[kind, 7, 4][..], &via, &[0]].concat();
            let result = lab.send(v4().ip_options(&option));
            assert_eq!(result.verdict, Verdict::Drop(Malformed::SourceRoute.into()), "{mode}: {kind}");
        }
        for kind in [0, 2, 3, 4] {
            let remaining = |remaining| v6().extension(proto::ROUTING, &[kind, remaining, 0, 0, 0, 0]);
            assert_eq!(
                lab.send(remaining(1)).verdict,
                Verdict::Drop(Malformed::SourceRoute.into()),
                "{mode}"
            );
            lab.send(remaining(0)).sent(TransmitReason::Forward);
        }
        // Record route, timestamp, router alert.
        lab.send(v4().ip_options(&[7, 7, 4, 0, 0, 0, 0, 68, 8, 5, 0, 0, 0, 0, 0, 148, 4, 0, 0, 0]))
            .sent(TransmitReason::Forward);
    }
}

#[test]
fn an_authentication_header_passes_only_modes_without_translation() {
    for mode in ForwardingMode::ALL {
        let mut lab = gateway(mode);
        let plain = || Builder::udp("[2001:db8::7]:40000", "[2001:db8:1::5]:53");
        for signed in [
            plain().extension(proto::AH, &[0; 14]),
            plain().extension(proto::HOP_BY_HOP, &[1; 6]).extension(proto::AH, &[0; 14]),
        ] {
            let result = lab.send(signed);
            if !mode.changes_addresses() {
                result.sent(TransmitReason::Forward);
                continue;
            }
            assert_eq!(result.refused(), Refusal::Authenticated, "{mode}");
            assert_eq!(lab.pipeline.flows().live(), 0, "{mode}");
        }
        if mode.is_dsr() {
            continue;
        }
        // A known flow, in both directions, and ICMP errors about it.
        let h = headers(lab.send(plain()).sent(TransmitReason::Forward));
        let answer = || Builder::udp("[fd00::1]:53", std::net::SocketAddr::new(h.src.ip(), h.src_port));
        assert_eq!(lab.send(plain().extension(proto::AH, &[0; 14])).refused(), Refusal::Authenticated);
        assert_eq!(lab.send(answer().extension(proto::AH, &[0; 14])).refused(), Refusal::Authenticated);
        lab.send(answer()).sent(TransmitReason::Reply);
        let quoted = Builder::udp("[2001:db8:1::5]:53", "[2001:db8::7]:40000").packet();
        let error =
            || Builder::icmp("2001:db8:ffff::1", "2001:db8:1::5", 2, 0, [0, 0, 5, 0]).payload(&quoted);
        assert_eq!(lab.send(error().extension(proto::AH, &[0; 14])).refused(), Refusal::Authenticated);
        lab.send(error()).sent(TransmitReason::IcmpError);
    }
}

#[test]
fn a_packet_to_one_host_in_a_frame_to_a_group_is_refused() {
    let groups = [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 5]), MacAddr([0x33, 0x33, 0, 0, 0, 5])];
    for mode in ForwardingMode::ALL {
        let mut lab = gateway(mode);
        for group in groups {
            for packet in [
                Builder::udp("198.51.100.7:40000", "203.0.113.5:53"),
                Builder::udp("[2001:db8::7]:40000", "[2001:db8:1::5]:53"),
                Builder::echo_request("198.51.100.7", "203.0.113.5", 7, 1),
                Builder::udp("10.0.0.7:40000", "10.0.0.254:22"),
                Builder::udp("10.0.0.7:40000", "192.0.2.8:53"),
            ] {
                let result = lab.receive(&packet.mac(ROUTER_MAC, group).build());
                assert_eq!(result.refused(), Refusal::GroupFrame, "{mode}");
            }
        }
        // To all hosts of a network, and to a group. A packet to a group may arrive in a frame to this host only (RFC
        // 6085).
        for to in ["255.255.255.255:67", "10.0.0.255:67", "224.0.0.251:67", "[ff02::fb]:67"] {
            let from = if to.starts_with('[') { "[fd00::7]:68" } else { "10.0.0.7:68" };
            for station in [MacAddr::BROADCAST, GATEWAY_MAC] {
                let result = lab.receive(&Builder::udp(from, to).mac(CLIENT, station).build());
                assert_eq!(result.verdict, Verdict::Punt(PuntReason::Local), "{to} in a frame to {station}");
            }
        }
    }
}

#[test]
fn redirects_go_to_the_kernel_or_are_dropped() {
    let mut lab = gateway(ForwardingMode::FullNat);
    let client = "198.51.100.7:40000";
    let h = headers(lab.send(Builder::udp(client, "203.0.113.5:53")).sent(TransmitReason::Forward));
    let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
    for (to, about) in [
        ("203.0.113.5", Builder::udp("203.0.113.5:53", client)),
        ("10.0.0.253", Builder::udp(local, "10.0.0.1:53")),
        ("192.0.2.8", Builder::udp("192.0.2.8:53", client)),
    ] {
        let redirect = Builder::icmp("10.0.0.250", to, 5, 1, [10, 0, 0, 9]).payload(&about.packet());
        assert_eq!(lab.send(redirect).refused(), Refusal::IcmpRedirect, "{to}");
    }
    let redirect = |to: &str| Builder::icmp("fe80::1", to, 137, 0, [0; 4]).payload(&[0; 32]).ttl(255);
    for to in ["2001:db8:1::5", "fd00::fd", "2001:db8:2::8"] {
        assert_eq!(lab.send(redirect(to)).refused(), Refusal::IcmpRedirect, "{to}");
    }
    assert_eq!(lab.send(redirect("fd00::fe")).verdict, Verdict::Punt(PuntReason::Local));
    let own = Builder::icmp("10.0.0.250", "10.0.0.254", 5, 1, [10, 0, 0, 9]);
    let about = Builder::udp("10.0.0.254:53", "192.0.2.8:53").packet();
    assert_eq!(lab.send(own.payload(&about)).verdict, Verdict::Punt(PuntReason::Local));
}

#[test]
fn a_ping_with_a_wrong_checksum_is_not_answered() {
    let mut lab = gateway(ForwardingMode::DsrL2);
    for (client, vip) in [("198.51.100.7", "203.0.113.5"), ("2001:db8::7", "2001:db8:1::5")] {
        let ping = || Builder::echo_request(ip(client), ip(vip), 7, 1).payload(b"abcdefgh");
        assert_eq!(lab.send(ping().l4_checksum(0x1234)).refused(), Refusal::IcmpChecksum);
        lab.send(ping()).sent(TransmitReason::EchoReply);
    }
}
