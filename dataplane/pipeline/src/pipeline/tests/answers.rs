//! The packets that the gateway answers itself, and those that it punts to the kernel.

use std::sync::Arc;
use std::time::Duration;

use tidegate_spec::limits::ANSWERS_WITH_QUOTE;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, NoEndpoints, Protocol, ServiceSpec};
use tidegate_wire::arp::ArpOperation;
use tidegate_wire::ndp::{self, Ndp};
use tidegate_wire::tcp::flags;
use tidegate_wire::{
    ArpPacket, Fragment, Headers, MacAddr, Malformed, Parsed, arp, ethernet, icmp, parse, tcp,
};

use super::lab::{CLIENT, Lab, ROUTER_MAC, ip, service};
use crate::pipeline::{FlowNote, NeighborEvent, Sighting};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};
use crate::testing::summary;

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}: {}", summary(frame)),
    }
}

fn services() -> Vec<ServiceSpec> {
    vec![
        service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80"]),
        service(ForwardingMode::DsrL2, Protocol::Tcp, "[2001:db8:1::5]:80", &["[fd00::1]:80"]),
    ]
}

#[test]
fn arp_for_our_addresses_is_answered_and_for_others_punted() {
    let mut lab = Lab::new(services());
    let query = |target: &str| {
        let target = target.parse().unwrap();
        arp::request(CLIENT, "10.0.0.77".parse().unwrap(), target, None, None)
    };
    for target in ["203.0.113.5", "10.0.0.253", "10.0.0.254"] {
        let result = lab.receive(&query(target));
        let Ok(Parsed::Arp(reply)) = parse(result.sent(TransmitReason::ArpReply)) else { panic!("not ARP") };
        assert_eq!((reply.sender_mac, reply.sender_ip), (GATEWAY_MAC, target.parse().unwrap()));
        assert_eq!((reply.target_mac, reply.target_ip), (CLIENT, "10.0.0.77".parse().unwrap()));
        assert_eq!(ethernet::destination(&result.frame), CLIENT);
        assert_eq!(result.events, [seen("10.0.0.77", CLIENT, Sighting::Request)]);
    }
    let result = lab.receive(&query("10.0.0.42"));
    assert_eq!((result.verdict, &result.events[..]), (Verdict::Punt(PuntReason::Local), &[][..]));
}

fn seen(addr: &str, mac: MacAddr, how: Sighting) -> NeighborEvent {
    NeighborEvent::Seen { interface: 0, addr: ip(addr).into(), mac: Some(mac), how }
}

#[test]
fn the_resolver_gets_only_new_information_about_requested_neighbours() {
    let mut lab = Lab::new(services());
    let reply = |sender: &str, mac: MacAddr, to: MacAddr| {
        let packet = ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip: sender.parse().unwrap(),
            target_mac: to,
            target_ip: "10.0.0.254".parse().unwrap(),
            vlan: None,
        };
        packet.frame(to)
    };
    let wanted = "10.0.0.77";
    assert_eq!(lab.receive(&reply(wanted, CLIENT, GATEWAY_MAC)).events, [], "nobody requested it");
    let id = lab.neighbors.intern(0, ip(wanted).into()).unwrap();
    let answer = seen(wanted, CLIENT, Sighting::Answer { overrides: true });
    assert_eq!(lab.receive(&reply(wanted, CLIENT, GATEWAY_MAC)).events, [answer]);
    lab.neighbors.set_resolved(id, CLIENT);
    assert_eq!(
        lab.receive(&reply(wanted, CLIENT, GATEWAY_MAC)).events,
        [answer],
        "it may be an answer to a probe"
    );
    let announced = |mac| arp::announcement(mac, wanted.parse().unwrap(), None);
    assert_eq!(lab.receive(&announced(CLIENT)).events, [], "known");
    let moved = seen(wanted, ROUTER_MAC, Sighting::Announcement { overrides: true });
    assert_eq!(lab.receive(&announced(ROUTER_MAC)).events, [moved]);
    let off_link =
        arp::request(CLIENT, "192.0.2.7".parse().unwrap(), "203.0.113.5".parse().unwrap(), None, None);
    let result = lab.receive(&off_link);
    result.sent(TransmitReason::ArpReply);
    assert_eq!(result.events, [], "off-link hosts are reached by a router");
}

#[test]
fn advertisements_show_whether_they_are_solicited_and_override() {
    let mut lab = Lab::new(services());
    let wanted = "fd00::77";
    lab.neighbors.intern(0, ip(wanted).into()).unwrap();
    for (flags, how) in [
        (0x60, Sighting::Answer { overrides: true }),
        (0x40, Sighting::Answer { overrides: false }),
        (0x20, Sighting::Announcement { overrides: true }),
        (0x00, Sighting::Announcement { overrides: false }),
    ] {
        let advertised = advertisement(wanted, flags, CLIENT);
        assert_eq!(lab.receive(&advertised).events, [seen(wanted, CLIENT, how)]);
    }
    assert_eq!(lab.receive(&advertisement("fd00::78", 0x60, CLIENT)).events, [], "nobody requested it");
}

/// An advertisement to the gateway's own address, or to all nodes if it is unsolicited.
fn advertisement(target: &str, flags: u8, mac: MacAddr) -> Vec<u8> {
    let is_solicited = flags & 0x40 != 0;
    let to = if is_solicited { "fd00::fe" } else { "ff02::1" };
    let to_mac = if is_solicited { GATEWAY_MAC } else { ndp::multicast_mac(ndp::ALL_NODES) };
    let mut body = target.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
    body.extend_from_slice(&[2, 1]);
    body.extend_from_slice(&mac.0);
    let message = Builder::icmp(ip(target), ip(to), 136, 0, [flags, 0, 0, 0]).ttl(255);
    message.payload(&body).mac(mac, to_mac).build()
}

/// The clock of the tests of owners.
static BOOT_TIME: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(100);

#[test]
fn only_the_owner_of_a_shared_vip_answers_until_its_time_is_over() {
    use std::sync::atomic::Ordering;
    use tidegate_spec::ownership::{BootTime, Layer2, OwnerKey};
    let key = OwnerKey::new(7);
    let mut lab = Lab::new(services());
    lab.neighbors = lab.neighbors.with_ownership(|| BootTime(BOOT_TIME.load(Ordering::Relaxed)));
    lab.change(|spec| spec.services.iter_mut().for_each(|service| service.layer2 = Layer2::Owned(key)));
    let arp = arp::request(CLIENT, "10.0.0.77".parse().unwrap(), "203.0.113.5".parse().unwrap(), None, None);
    let solicits =
        ndp::solicitation(CLIENT, "fd00::77".parse().unwrap(), "2001:db8:1::5".parse().unwrap(), None, None);
    let answers = |lab: &mut Lab| {
        let answered = [&arp[..], &solicits[..]].map(|frame| match lab.receive(frame).verdict {
            Verdict::Transmit {
                why: TransmitReason::ArpReply | TransmitReason::NeighborAdvertisement,
                ..
            } => true,
            verdict => panic_unless_punted(verdict),
        });
        assert_eq!(answered[0], answered[1], "ARP and neighbour discovery agree");
        answered[0]
    };
    assert!(!answers(&mut lab), "nothing is granted");
    // The owner announces it, which isn't a conflict for us.
    let theirs = arp::announcement(ROUTER_MAC, "203.0.113.5".parse().unwrap(), None);
    assert_eq!(lab.receive(&theirs).events, []);
    assert!(lab.neighbors.ownership().grant(key, BootTime(101)));
    assert!(answers(&mut lab));
    let conflict = lab.receive(&theirs);
    assert_eq!(conflict.refused(), Refusal::AddressConflict, "we own it now");
    BOOT_TIME.store(101, Ordering::Relaxed);
    assert!(!answers(&mut lab), "its time is over, although nobody has revoked it");
    // Its packets are forwarded as before.
    lab.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::SYN))
        .sent(TransmitReason::Forward);
    for (layer2, answered) in [(Layer2::Silent, false), (Layer2::Answered, true), (Layer2::Always, true)] {
        lab.change(|spec| spec.services.iter_mut().for_each(|service| service.layer2 = layer2));
        assert_eq!(answers(&mut lab), answered, "{layer2:?}");
    }
}

#[test]
fn a_router_answers_for_the_next_hop_even_if_it_is_an_address_of_ours() {
    let vip = service(ForwardingMode::DsrL2, Protocol::Tcp, "10.0.0.250:80", &["10.0.0.1:80"]);
    let arp = arp::request(CLIENT, "10.0.0.77".parse().unwrap(), "10.0.0.250".parse().unwrap(), None, None);
    let router = "fd00::fa".parse().unwrap();
    let solicits = ndp::solicitation(CLIENT, "fd00::77".parse().unwrap(), router, None, None);
    let uses: [fn(&mut tidegate_spec::NetworkSpec); 4] = [
        |network| network.snat_addresses = vec![ip("10.0.0.250"), ip("fd00::fa")],
        |network| {
            network.tunnel_source_v4 = Some("10.0.0.250".parse().unwrap());
            network.tunnel_source_v6 = Some("fd00::fa".parse().unwrap());
        },
        |network| {
            network.tunnel_source_v4 = Some("10.0.0.248/29".parse().unwrap());
            network.tunnel_source_v6 = Some("fd00::f0/124".parse().unwrap());
        },
        |_| {},
    ];
    for (n, uses) in uses.into_iter().enumerate() {
        // The last case is a VIP, which is added by a revision of the snapshot.
        let mut lab = Lab::new(services());
        lab.change(|spec| uses(&mut spec.network));
        lab.change(|spec| spec.services.extend((n == 3).then(|| vip.clone().into())));
        for frame in [&arp[..], &solicits[..]] {
            assert_eq!(lab.receive(frame).verdict, Verdict::Punt(PuntReason::Local), "{n}");
        }
        // The router's answers are those of a neighbour, and no conflict.
        let moved = arp::announcement(CLIENT, "10.0.0.250".parse().unwrap(), None);
        let sighting = Sighting::Announcement { overrides: true };
        assert_eq!(lab.receive(&moved).events, [seen("10.0.0.250", CLIENT, sighting)], "{n}");
    }
}

#[test]
fn snat_addresses_are_answered_by_the_gateway_that_replies_are_to_reach() {
    use tidegate_spec::ownership::BootTime;
    let mut lab = Lab::new(services());
    lab.neighbors = lab.neighbors.with_ownership(|| BootTime(100));
    let answers = |lab: &mut Lab, v4: &str, v6: &str| {
        let arp = arp::request(CLIENT, "10.0.0.77".parse().unwrap(), v4.parse().unwrap(), None, None);
        let from = "fd00::77".parse().unwrap();
        let solicits = ndp::solicitation(CLIENT, from, v6.parse().unwrap(), None, None);
        // This is how a neighbour confirms a known link address.
        let known = ndp::solicitation(CLIENT, from, v6.parse().unwrap(), None, Some(GATEWAY_MAC));
        let answered = [&arp[..], &solicits[..], &known[..]].map(|frame| {
            use TransmitReason::{ArpReply, NeighborAdvertisement};
            let why = lab.receive(frame).verdict;
            matches!(why, Verdict::Transmit { why: ArpReply | NeighborAdvertisement, .. })
        });
        assert!(answered.iter().all(|one| *one == answered[0]), "{answered:?}");
        answered[0]
    };
    let (own, other) = (["10.0.0.253", "fd00::fd"], ["10.0.0.252", "fd00::fc"]);
    let theirs = arp::announcement(ROUTER_MAC, own[0].parse().unwrap(), None);
    assert!(answers(&mut lab, own[0], own[1]) && !answers(&mut lab, other[0], other[1]));
    assert_eq!(lab.receive(&theirs).refused(), Refusal::AddressConflict);
    lab.neighbors.ownership().release_snat(true);
    assert!(!answers(&mut lab, own[0], own[1]));
    assert_eq!(lab.receive(&theirs).events, [], "another gateway has taken it over");
    lab.neighbors.ownership().release_snat(false);
    assert!(answers(&mut lab, own[0], own[1]));

    let taken = Arc::new(other.iter().map(|address| address.parse().unwrap()).collect());
    lab.neighbors.ownership().take_over(&taken, BootTime(101));
    assert!(answers(&mut lab, other[0], other[1]));
    lab.neighbors.ownership().take_over(&taken, BootTime(100));
    assert!(!answers(&mut lab, other[0], other[1]), "its time is over");
    lab.neighbors.ownership().take_over(&taken, BootTime(101));
    lab.neighbors.ownership().take_over(&Arc::default(), BootTime(101));
    assert!(!answers(&mut lab, other[0], other[1]), "its gateway is back");
}

fn panic_unless_punted(verdict: Verdict) -> bool {
    assert_eq!(verdict, Verdict::Punt(PuntReason::Local));
    false
}

#[test]
fn claims_of_our_addresses_are_reported_and_not_answered() {
    let mut lab = Lab::new(services());
    let conflict = |addr: &str, mac| NeighborEvent::Conflict { interface: 0, addr: ip(addr).into(), mac };
    for ours in ["203.0.113.5", "10.0.0.253", "10.0.0.254"] {
        let address = ours.parse().unwrap();
        let arp = arp::request(CLIENT, address, "10.0.0.42".parse().unwrap(), None, None);
        for claim in [arp::announcement(CLIENT, address, None), arp] {
            let result = lab.receive(&claim);
            assert_eq!(result.refused(), Refusal::AddressConflict);
            assert_eq!(result.events, [conflict(ours, Some(CLIENT))]);
        }
        let echo = lab.receive(&arp::announcement(GATEWAY_MAC, address, None));
        assert_eq!(echo.events, [], "our own packet was looped back");
    }
    for ours in ["2001:db8:1::5", "fd00::fd", "fd00::fe"] {
        let result = lab.receive(&advertisement(ours, 0x20, CLIENT));
        assert_eq!(result.refused(), Refusal::AddressConflict);
        assert_eq!(result.events, [conflict(ours, Some(CLIENT))]);
    }
    // A probe for the address is answered, so that the prober doesn't use it (RFC 5227 2.1.1, RFC 4862 5.4.3).
    let probe =
        arp::request(CLIENT, std::net::Ipv4Addr::UNSPECIFIED, "203.0.113.5".parse().unwrap(), None, None);
    let result = lab.receive(&probe);
    result.sent(TransmitReason::ArpReply);
    assert_eq!(result.events, []);
}

#[test]
fn group_addresses_as_senders_are_ignored_and_counted() {
    let mut lab = Lab::new(services());
    let (client, vip) = ("10.0.0.77".parse().unwrap(), "203.0.113.5".parse().unwrap());
    for mac in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        let result = lab.receive(&arp::request(mac, client, vip, None, None));
        assert_eq!((result.refused(), &result.events[..]), (Refusal::BadSource, &[][..]));
        let from = "fd00::77".parse().unwrap();
        let result = lab.receive(&ndp::solicitation(mac, from, "2001:db8:1::5".parse().unwrap(), None, None));
        assert_eq!((result.refused(), &result.events[..]), (Refusal::BadSource, &[][..]));
    }
    for sender in ["255.255.255.255", "224.0.0.1", "127.0.0.1"] {
        let result = lab.receive(&arp::request(CLIENT, sender.parse().unwrap(), vip, None, None));
        assert_eq!((result.refused(), &result.events[..]), (Refusal::BadSource, &[][..]));
    }
}

#[test]
fn solicitations_for_our_addresses_are_answered_and_for_others_punted() {
    let mut lab = Lab::new(services());
    let query = |target: &str, known: Option<MacAddr>| {
        ndp::solicitation(CLIENT, "fd00::77".parse().unwrap(), target.parse().unwrap(), None, known)
    };
    for (target, known) in [
        ("2001:db8:1::5", None),
        ("fd00::fd", None),
        ("2001:db8:1::5", Some(GATEWAY_MAC)),
        ("fd00::fe", None),
        ("fd00::fe", Some(GATEWAY_MAC)),
    ] {
        let result = lab.receive(&query(target, known));
        let sent = result.sent(TransmitReason::NeighborAdvertisement);
        let Ok(Some(Ndp::Advertisement { target: advertised, target_mac, solicited, .. })) =
            ndp::parse(sent, &headers(sent))
        else {
            panic!("{}", summary(sent))
        };
        assert_eq!((ip(target), target_mac, solicited), (advertised.into(), Some(GATEWAY_MAC), true));
        assert_eq!(result.events, [seen("fd00::77", CLIENT, Sighting::Request)]);
    }
    assert_eq!(lab.receive(&query("fd00::42", None)).verdict, Verdict::Punt(PuntReason::Local));
}

#[test]
fn a_solicitation_from_a_group_address_is_not_answered() {
    let mut lab = Lab::new(services());
    for group in ["ff02::1", "::1"] {
        let (from, vip) = (group.parse().unwrap(), "2001:db8:1::5".parse().unwrap());
        let result = lab.receive(&ndp::solicitation(CLIENT, from, vip, None, None));
        assert_eq!(result.verdict, Verdict::Drop(Malformed::NdpInvalid.into()));
        assert_eq!(result.events, [], "nor does it change a neighbour");
    }
}

#[test]
fn pings_of_vips_are_answered_and_of_our_own_address_punted() {
    let mut lab = Lab::new(services());
    for (client, vip) in [("198.51.100.7", "203.0.113.5"), ("2001:db8::7", "2001:db8:1::5")] {
        let result = lab.send(Builder::echo_request(ip(client), ip(vip), 7, 9).payload(b"abcdefgh"));
        let sent = result.sent(TransmitReason::EchoReply);
        let h = headers(sent);
        assert_eq!((h.src.ip(), h.dst.ip(), h.src_port), (ip(vip), ip(client), 7));
        assert!(icmp::checksum_ok(sent, &h));
        assert_eq!(ethernet::destination(sent), ROUTER_MAC);
    }
    // All bytes of the reply are zero, so its checksum is 0xffff and not 0 (RFC 1624 section 3).
    let result =
        lab.send(Builder::echo_request(ip("198.51.100.7"), ip("203.0.113.5"), 0, 0).payload(&[0; 8]));
    let sent = result.sent(TransmitReason::EchoReply);
    assert!(icmp::checksum_ok(sent, &headers(sent)));
    let own = Builder::echo_request(ip("198.51.100.7"), ip("10.0.0.254"), 7, 9);
    assert_eq!(lab.send(own).verdict, Verdict::Punt(PuntReason::Local));
}

#[test]
fn a_service_without_backends_resets_tcp_and_reports_udp_as_unreachable() {
    for (client, vip) in
        [("198.51.100.7:40000", "203.0.113.5:80"), ("[2001:db8::7]:40000", "[2001:db8:1::5]:80")]
    {
        let mut lab = Lab::new(vec![
            service(ForwardingMode::FullNat, Protocol::Tcp, vip, &[]),
            service(ForwardingMode::DsrL2, Protocol::Udp, vip, &[]),
        ]);
        let result = lab.send(Builder::tcp(client, vip).flags(flags::SYN).seq_ack(100, 0));
        // A segment of an unknown connection is answered, too, if the mode needs no flow state.
        let sent = result.sent(TransmitReason::NoEndpoints);
        let segment = tcp::segment(sent, &headers(sent)).unwrap();
        assert_eq!((segment.flags, segment.ack), (flags::RST | flags::ACK, 101));
        assert_eq!(result.note.flow, FlowNote::None);
        let result = lab.send(Builder::udp(client, vip));
        let sent = result.sent(TransmitReason::NoEndpoints);
        let h = headers(sent);
        assert_eq!((h.icmp_type, h.icmp_code), if vip.starts_with('[') { (1, 4) } else { (3, 3) });
        assert_eq!(h.src.ip(), vip.parse::<std::net::SocketAddr>().unwrap().ip());
        assert_eq!(lab.pipeline.flows().live(), 0, "it creates no flow");
    }
}

#[test]
fn a_service_with_silent_policy_does_not_answer() {
    let silent = ServiceSpec {
        no_endpoints: NoEndpoints::Drop,
        ..service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:80", &[])
    };
    let mut lab = Lab::new(vec![silent]);
    let result = lab.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::SYN));
    assert_eq!(result.refused(), Refusal::NoEndpoints);
}

#[test]
fn answers_are_rate_limited_and_resume_with_time() {
    let mut lab = Lab::new(vec![service(ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.5:53", &[])]);
    let query = || Builder::udp("198.51.100.7:40000", "203.0.113.5:53");
    let burst = ANSWERS_WITH_QUOTE.prefix.burst;
    let answered =
        (0..burst + 50).filter(|_| matches!(lab.send(query()).verdict, Verdict::Transmit { .. })).count();
    assert_eq!(answered, burst as usize);
    assert_eq!(lab.send(query()).refused(), Refusal::NoEndpoints);
    lab.wait(Duration::from_secs(1));
    lab.send(query()).sent(TransmitReason::NoEndpoints);
}

#[test]
fn path_mtu_errors_about_answers_of_a_vip_reach_the_backend_of_their_flow() {
    for mode in ForwardingMode::ALL.into_iter().filter(|mode| mode.is_dsr()) {
        let mut lab =
            Lab::new(vec![service(mode, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:80", "10.0.0.2:80"])]);
        let flow = lab.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::SYN));
        let result = lab.send(too_big("192.0.2.1", "203.0.113.5:80", "198.51.100.7:40000"));
        result.sent(TransmitReason::IcmpError);
        assert_eq!(ethernet::destination(&result.frame), ethernet::destination(&flow.frame));
    }
}

/// A router's "fragmentation needed" about a segment from `src` to `dst`, sent to `src`.
fn too_big(router: &str, src: &str, dst: &str) -> Builder {
    let quoted = Builder::tcp(src, dst).flags(flags::ACK).packet();
    let to = src.parse::<std::net::SocketAddr>().unwrap().ip();
    Builder::icmp(ip(router), to, 3, 4, [0, 0, 5, 0x14]).payload(&quoted[..28])
}

#[test]
fn translated_path_mtu_errors_quote_what_their_receiver_sent() {
    let mut lab =
        Lab::new(vec![service(ForwardingMode::FullNat, Protocol::Tcp, "203.0.113.5:80", &["10.0.0.1:8080"])]);
    let there = lab.send(Builder::tcp("198.51.100.7:40000", "203.0.113.5:80").flags(flags::SYN));
    let h = headers(there.sent(TransmitReason::Forward));
    let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);

    // The error is about the answer and goes to the backend.
    let result = lab.send(too_big("192.0.2.1", "203.0.113.5:80", "198.51.100.7:40000"));
    let sent = result.sent(TransmitReason::IcmpError);
    let h = headers(sent);
    let quoted = tidegate_wire::quote::parse(sent, &h).unwrap().unwrap();
    assert!(icmp::checksum_ok(sent, &h));
    assert_eq!(h.dst.ip(), ip("10.0.0.1"));
    assert_eq!((quoted.src.ip(), quoted.src_port), (ip("10.0.0.1"), 8080));
    assert_eq!((quoted.dst.ip(), quoted.dst_port), (local.ip(), local.port()));

    // The error is about the request and goes to the client.
    let result = lab.send(too_big("10.0.0.9", &local.to_string(), "10.0.0.1:8080"));
    let sent = result.sent(TransmitReason::IcmpError);
    let h = headers(sent);
    let quoted = tidegate_wire::quote::parse(sent, &h).unwrap().unwrap();
    assert!(icmp::checksum_ok(sent, &h));
    assert_eq!((h.src.ip(), h.dst.ip()), (ip("203.0.113.5"), ip("198.51.100.7")));
    assert_eq!((quoted.src.ip(), quoted.src_port), (ip("198.51.100.7"), 40000));
    assert_eq!((quoted.dst.ip(), quoted.dst_port), (ip("203.0.113.5"), 80));
}

#[test]
fn packets_that_are_not_ours_go_to_the_kernel() {
    let mut lab = Lab::new(services());
    for frame in [
        Builder::udp("10.0.0.7:68", "255.255.255.255:67"),
        Builder::udp("0.0.0.0:68", "255.255.255.255:67"),
        Builder::udp("10.0.0.7:5353", "224.0.0.251:5353"),
        Builder::tcp("10.0.0.7:40000", "10.0.0.254:22").flags(flags::SYN),
    ] {
        assert_eq!(lab.send(frame).verdict, Verdict::Punt(PuntReason::Local));
    }
    let transit = Builder::udp("10.0.0.7:1000", "192.0.2.8:53");
    assert_eq!(lab.send(transit).verdict, Verdict::Punt(PuntReason::NotOurs));
    let lldp = Builder::ip(ip("10.0.0.7"), ip("10.0.0.254"), 0).ether_type(0x88cc);
    assert_eq!(lab.send(lldp).verdict, Verdict::Punt(PuntReason::NotIp));
}

/// A ping of a VIP in fragments, and its data.
fn ping_in_fragments(from: &str, vip: &str) -> (Vec<Vec<u8>>, Vec<u8>) {
    let data: Vec<u8> = (0..3000_u32).map(|n| n as u8).collect();
    let whole = Builder::echo_request(from, vip, 7, 1).payload(&data).dont_fragment(false);
    (builder::fragments(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build(), 0x5eed, 1200), data)
}

/// The bytes behind the IP header, reassembled by offset. Asserts that all fragments are valid and of one datagram.
fn reassembled(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut parts: Vec<(u16, u32, Vec<u8>)> = parts
        .iter()
        .map(|part| {
            let h = headers(part);
            let (offset, id) = match h.fragment {
                Fragment::First { id } => (0, id),
                Fragment::Later { id, offset } => (offset, id),
                Fragment::None => panic!("whole"),
            };
            (offset, id, part[usize::from(h.l4)..usize::from(h.ip_end)].to_vec())
        })
        .collect();
    parts.sort();
    assert!(parts.windows(2).all(|two| two[0].1 == two[1].1), "one datagram");
    parts.into_iter().flat_map(|(_, _, data)| data).collect()
}

#[test]
fn a_ping_of_a_vip_in_fragments_is_answered_in_fragments() {
    for (from, vip) in [("198.51.100.7", "203.0.113.5"), ("2001:db8::7", "2001:db8:1::5")] {
        let (parts, data) = ping_in_fragments(from, vip);
        assert!(parts.len() > 2);
        for order in [[0, 1, 2], [0, 2, 1], [2, 0, 1]] {
            let mut lab = Lab::new(services());
            let mut answers = Vec::new();
            let mut waiting = Vec::new();
            for n in order {
                let result = lab.receive(&parts[n]);
                match result.waits_for {
                    Some(_) => waiting.push(n),
                    None => answers.push(result.sent(TransmitReason::EchoReply).to_vec()),
                }
            }
            for n in waiting {
                answers.push(lab.receive(&parts[n]).sent(TransmitReason::EchoReply).to_vec());
            }
            for answer in &answers {
                let h = headers(answer);
                assert_eq!((h.src.ip(), h.dst.ip(), h.ttl), (ip(vip), ip(from), 64));
                assert_eq!(ethernet::destination(answer), ROUTER_MAC);
            }
            let message = reassembled(&answers);
            assert_eq!(message[0], if vip.contains(':') { 129 } else { 0 });
            assert_eq!(message[8..], data, "the data is returned");
            let whole =
                Builder::ip(ip(vip), ip(from), if vip.contains(':') { 58 } else { 1 }).payload(&message);
            let whole = whole.build();
            assert!(icmp::checksum_ok(&whole, &headers(&whole)), "{vip} {order:?}");
        }
    }
}

#[test]
fn the_answer_to_a_ping_reassembled_by_the_driver_is_fragmented() {
    let mut lab = Lab::new(services());
    let data: Vec<u8> = (0..4000_u32).map(|n| n as u8).collect();
    for dont_fragment in [false, true] {
        let ping = Builder::echo_request("198.51.100.7", "203.0.113.5", 7, 1).payload(&data).id(77);
        let result = lab.send(ping.dont_fragment(dont_fragment));
        result.sent(TransmitReason::EchoReply);
        assert!(
            result.fragments.len() > 2
                && result.fragments.iter().all(|fragment| headers(fragment).ip_len() <= 1500)
        );
        assert_eq!(reassembled(&result.fragments)[8..], data);
    }
}

#[test]
fn frames_from_a_group_address_are_not_answered() {
    let vip = "203.0.113.5";
    for group in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        let mut lab = Lab::new(services());
        for packet in [
            Builder::echo_request("198.51.100.7", vip, 7, 1),
            Builder::udp("198.51.100.7:4000", "203.0.113.5:99"),
            Builder::tcp("198.51.100.7:4000", "203.0.113.5:99").flags(flags::SYN),
        ] {
            let result = lab.receive(&packet.mac(group, GATEWAY_MAC).build());
            assert_eq!(result.refused(), Refusal::BadSource, "{group}");
        }
        let expires = Builder::tcp("198.51.100.7:4000", "203.0.113.5:80").flags(flags::SYN).ttl(1);
        let result = lab.receive(&expires.mac(group, GATEWAY_MAC).build());
        assert_eq!(result.refused(), Refusal::TtlExceeded);
    }
}
