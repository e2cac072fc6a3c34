//! For every reason for which this crate drops a frame, a frame here sets its counter to 1.
//!
//! A new reason without a line in [`refused_by_dsr_l2`] or [`broken`] doesn't compile, and a reason that can no longer
//! occur fails the test. The reasons that only drivers count are exceptions.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::pipeline::Arrival;
use tidegate_pipeline::testing::builder::{self, Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::lab::{Lab, ROUTER_MAC, backend_mac, ip, service, spec, spec_with};
use tidegate_spec::limits::BANDWIDTH_BURST_MIN;
use tidegate_spec::source_lists::SourceLists;
use tidegate_spec::verdict::{DropReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{
    ForwardingMode, NoEndpoints, PassiveHealth, Policy, Protocol, ServiceLimits, ServiceSpec, SnapshotSpec,
    SourceRate, SynCookies,
};
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::{MacAddr, Malformed, Parsed, arp, parse, proto, tcp::flags};

/// The reasons that the crate `tidegate-dataplane` counts, because it owns the queues and the buffers.
const OF_THE_DRIVERS: [Refusal; 7] = [
    Refusal::NotContiguous,
    Refusal::NoBuffer,
    Refusal::TxQueueFull,
    Refusal::LinkDown,
    Refusal::PuntQueueFull,
    Refusal::PuntRateLimited,
    Refusal::HandOverRingFull,
];

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "203.0.113.5:53";
const CLIENT6: &str = "[2001:db8::7]:40000";
const VIP6: &str = "[2001:db8:1::5]:53";

#[test]
fn each_reason_of_this_crate_has_a_frame_that_makes_its_counter_one() {
    for reason in DropReason::all() {
        let (mut lab, frame) = match reason {
            DropReason::Refused(refusal) if OF_THE_DRIVERS.contains(&refusal) => continue,
            DropReason::Refused(Refusal::NoHeadroom) => {
                let mut lab = lab(ForwardingMode::DsrIpip);
                let result = lab.receive_tight(&to_gateway(question()));
                assert_eq!(result.verdict, Verdict::Drop(reason));
                assert_eq!(lab.counters.drops(reason), 1);
                continue;
            }
            DropReason::Refused(Refusal::HandOverLoop) => {
                let (mut lab, frame) = of_the_other_worker();
                let result = lab.receive_as(Arrival::HandedOver(0, 0), &frame);
                assert_eq!(result.verdict, Verdict::Drop(reason));
                assert_eq!(lab.counters.drops(reason), 1);
                continue;
            }
            DropReason::Refused(refusal) => refused(refusal),
            DropReason::Malformed(malformed) => (lab(ForwardingMode::DsrL2), broken(malformed)),
        };
        let before = lab.counters.drops(reason);
        assert_eq!(lab.receive(&frame).verdict, Verdict::Drop(reason), "{reason}");
        assert_eq!((before, lab.counters.drops(reason)), (0, 1), "{reason}");
    }
}

fn one(mode: ForwardingMode, protocol: Protocol, vip: &str) -> ServiceSpec {
    let backend = if vip.starts_with('[') { "[fd00::1]:53" } else { "10.0.0.1:53" };
    service(mode, protocol, vip, &[backend])
}

/// A gateway with UDP, TCP and SCTP services in this mode, of both families.
fn lab(mode: ForwardingMode) -> Lab {
    let all = [Protocol::Udp, Protocol::Tcp, Protocol::Sctp];
    Lab::new(all.iter().flat_map(|&p| [one(mode, p, VIP), one(mode, p, VIP6)]).collect())
}

/// [`lab`] with a gateway that doesn't answer packets of unknown flows.
fn silent(mode: ForwardingMode) -> Lab {
    let mut lab = lab(mode);
    lab.change(|spec| {
        spec.network.policy =
            Policy { reset_unknown_flows: false, reject_unserved_ports: false, ..Policy::default() };
    });
    lab
}

fn question() -> Builder {
    Builder::udp(CLIENT, VIP)
}

fn to_gateway(builder: Builder) -> Vec<u8> {
    builder.mac(ROUTER_MAC, GATEWAY_MAC).build()
}

/// An ICMP error about an answer of the VIP. It must not be answered with another error (RFC 1122 3.2.2).
fn error_about_an_answer(len: usize) -> Builder {
    let quoted = Builder::udp(VIP, CLIENT).payload_len(len).packet();
    Builder::icmp(ip("192.0.2.1"), ip("203.0.113.5"), 3, 3, [0; 4]).payload(&quoted)
}

/// The second of two workers, and a frame whose flow the first one owns.
fn of_the_other_worker() -> (Lab, Vec<u8>) {
    let spec = SnapshotSpec { services: vec![one(ForwardingMode::Nat, Protocol::Udp, VIP).into()], ..spec() };
    let mut lab = Lab::worker(spec, 1, 2, Steering::Partition);
    let frame = (1024..)
        .map(|port| to_gateway(Builder::udp((ip("198.51.100.7"), port), VIP)))
        .find(|frame| lab.receive(frame).verdict == Verdict::HandOver(0))
        .expect("half of all ports are the other worker's");
    (lab, frame)
}

/// A frame that is refused for this reason, and the gateway that refuses it.
fn refused(refusal: Refusal) -> (Lab, Vec<u8>) {
    use ForwardingMode::{DsrL2, FullNat, Nat};
    match refusal {
        Refusal::NoService => (silent(DsrL2), to_gateway(Builder::udp(CLIENT, "203.0.113.5:54"))),
        Refusal::SourceRange => {
            let ranges: Arc<[ipnet::IpNet]> = Arc::new(["203.0.113.0/24".parse().expect("a prefix")]);
            let closed = ServiceSpec { source_ranges: Some(ranges), ..one(DsrL2, Protocol::Udp, VIP) };
            (Lab::new(vec![closed]), to_gateway(question()))
        }
        Refusal::SourceDenied => {
            let denied = SourceLists::new(&["198.51.100.0/24".parse().expect("a prefix")], &[]);
            let services = vec![one(DsrL2, Protocol::Udp, VIP).into()];
            let spec = spec_with(services, |network| network.sources = Arc::new(denied));
            (Lab::with_spec(spec), to_gateway(question()))
        }
        Refusal::SourceConnectionRate => {
            let rate = SourceRate { per_second: 1, burst: 1, v4_len: 24, v6_len: 64 };
            let services = vec![one(DsrL2, Protocol::Udp, VIP).into()];
            let spec = spec_with(services, |network| network.source_rate = Some(rate));
            let mut lab = Lab::with_spec(spec);
            lab.receive(&to_gateway(Builder::udp("198.51.100.8:1", VIP)));
            (lab, to_gateway(question()))
        }
        Refusal::ServiceConnections => {
            limited(ServiceLimits { connections: Some(NonZeroU32::MIN), ..ServiceLimits::default() }, 0)
        }
        Refusal::ServiceConnectionRate => {
            limited(ServiceLimits { connection_rate: Some(NonZeroU32::MIN), ..ServiceLimits::default() }, 0)
        }
        Refusal::ServiceBandwidth => {
            limited(ServiceLimits { bandwidth: NonZeroU64::new(8_000), ..ServiceLimits::default() }, 1_400)
        }
        Refusal::NoEndpoints => {
            let silent =
                ServiceSpec { no_endpoints: NoEndpoints::Drop, ..service(DsrL2, Protocol::Udp, VIP, &[]) };
            (Lab::new(vec![silent]), to_gateway(question()))
        }
        Refusal::NoRoute => {
            let services = vec![one(Nat, Protocol::Udp, VIP).into()];
            let mut lab = Lab::with_spec(spec_with(services, |network| network.routes.clear()));
            lab.receive(&to_gateway(question()));
            (lab, to_gateway(Builder::udp("10.0.0.1:53", CLIENT)))
        }
        Refusal::NeighborUnresolved => {
            let services = vec![one(DsrL2, Protocol::Udp, VIP).into()];
            let lab = Lab::with_spec(spec_with(services, |network| network.neighbors.clear()));
            (lab, to_gateway(question()))
        }
        Refusal::NotRouted => {
            let spec = spec_with(Vec::new(), |network| {
                network.gateway.prefixes = vec!["10.0.0.0/24".parse().expect("a prefix")];
            });
            // An ICMP error must not be answered with another error (RFC 1122 3.2.2).
            let quoted = Builder::udp(CLIENT, "10.0.0.1:53").packet();
            let error = Builder::icmp(ip("10.0.0.1"), ip("198.51.100.7"), 3, 3, [0; 4]).payload(&quoted);
            (Lab::with_spec(spec), error.mac(backend_mac(1), GATEWAY_MAC).build())
        }
        Refusal::NoFlow => (silent(FullNat), to_gateway(Builder::tcp(CLIENT, VIP).flags(flags::ACK))),
        Refusal::SynCookie => {
            let services = vec![one(FullNat, Protocol::Tcp, VIP).into()];
            let lab = Lab::with_spec(spec_with(services, |network| {
                network.policy.syn_cookies = SynCookies::Always;
            }));
            let syn = Builder::tcp(CLIENT, VIP).flags(flags::SYN);
            (lab, syn.mac(MacAddr([3, 0, 0, 0, 0, 1]), GATEWAY_MAC).build())
        }
        Refusal::NatConflict => every_port_of_a_client_taken(),
        Refusal::FlowTableFull => {
            let mut lab = lab(Nat).with_entries(64);
            lab.pipeline.flows_mut().set_service_share(100);
            first_of_many(lab, refusal)
        }
        Refusal::Hairpin => {
            let services = vec![one(Nat, Protocol::Udp, VIP).into()];
            let lab = Lab::with_spec(spec_with(services, |network| network.snat_addresses.clear()));
            (lab, to_gateway(Builder::udp("10.0.0.1:40000", VIP)))
        }
        Refusal::ServiceFlowShare => first_of_many(lab(Nat).with_entries(64), refusal),
        Refusal::BackendRefused => {
            let passive_health = Some(PassiveHealth::default());
            let backends = ["10.0.0.1:80", "10.0.0.2:80"];
            let mut lab =
                Lab::new(vec![ServiceSpec { passive_health, ..service(Nat, Protocol::Tcp, VIP, &backends) }]);
            // A SYN with data is not stored, so it can't be sent to another backend.
            let syn = Builder::tcp(CLIENT, VIP).flags(flags::SYN).payload(b"data");
            let result = lab.receive(&to_gateway(syn));
            let backend = lab.backend_of(&result);
            let reset = Builder::tcp((backend, 80), CLIENT).flags(flags::RST | flags::ACK).seq_ack(0, 6);
            (lab, to_gateway(reset))
        }
        Refusal::SnatPortsExhausted => first_of_many(lab(FullNat).with_entries(100_000), refusal),
        Refusal::MasqueradeFull => full_of_masqueraded_flows(),
        Refusal::SctpFragment => {
            let whole = Builder::sctp_init(CLIENT, VIP, 7).dont_fragment(false).chunk(0x80, 0, &[0; 600]);
            (lab(FullNat), builder::fragments(&to_gateway(whole), 7, 256).swap_remove(0))
        }
        Refusal::ProxyFragment => {
            let proxied =
                ServiceSpec { proxy_protocol: Some(ProxyVersion::V2), ..one(FullNat, Protocol::Udp, VIP) };
            let whole = to_gateway(question().dont_fragment(false).payload_len(600));
            (Lab::new(vec![proxied]), builder::fragments(&whole, 7, 256).swap_remove(0))
        }
        Refusal::Authenticated => {
            let signed = Builder::udp(CLIENT6, VIP6).extension(proto::AH, &[0; 14]);
            (lab(Nat), to_gateway(signed))
        }
        Refusal::TunnelFragment
        | Refusal::TunnelHeaders
        | Refusal::TunnelCongestion
        | Refusal::TunnelUnserved => of_a_peer(refusal),
        _ => (lab(DsrL2), refused_by_dsr_l2(refusal)),
    }
}

/// A gateway with a peer, and an IP-in-IP packet of the peer that is refused for this reason.
fn of_a_peer(refusal: Refusal) -> (Lab, Vec<u8>) {
    let services = vec![one(ForwardingMode::DsrL2, Protocol::Udp, VIP).into()];
    let lab = Lab::with_spec(spec_with(services, |network| network.tunnel_peers = vec![ip("10.0.0.9")]));
    let around =
        |inner: Builder| Builder::ip(ip("10.0.0.9"), ip("10.0.0.254"), proto::IPIP).payload(&inner.packet());
    let packet = match refusal {
        Refusal::TunnelFragment => around(question().payload_len(4)).fragment(7, 0, true),
        Refusal::TunnelHeaders => Builder::ip(ip("10.0.0.9"), ip("10.0.0.254"), proto::IPIP),
        Refusal::TunnelCongestion => around(question()).tos(3),
        _ => around(Builder::udp(CLIENT, "203.0.113.5:54")),
    };
    (lab, to_gateway(packet))
}

/// A gateway whose service has used up its limits, and a datagram that exceeds them.
fn limited(limits: ServiceLimits, payload: usize) -> (Lab, Vec<u8>) {
    let mut lab = Lab::new(vec![ServiceSpec { limits, ..one(ForwardingMode::DsrL2, Protocol::Udp, VIP) }]);
    let datagram = |client: &str| to_gateway(Builder::udp(client, VIP).payload_len(payload));
    // Nothing is refused until the limit is reached.
    let packets = if payload == 0 { 1 } else { BANDWIDTH_BURST_MIN as usize / (payload + 28) };
    for _ in 0..packets {
        let result = lab.receive(&datagram(CLIENT));
        assert!(matches!(result.verdict, Verdict::Transmit { .. }), "{limits:?}: {:?}", result.verdict);
    }
    (lab, datagram("198.51.100.8:40000"))
}

/// A frame that a gateway of `dsr-l2` services refuses for this reason.
fn refused_by_dsr_l2(refusal: Refusal) -> Vec<u8> {
    let (client, vip) = (ip("198.51.100.7"), ip("203.0.113.5"));
    let icmp = |kind, code| Builder::icmp(client, vip, kind, code, [0; 4]);
    match refusal {
        Refusal::BadSource => to_gateway(Builder::udp("127.0.0.1:40000", VIP)),
        Refusal::OtherStation => question().mac(ROUTER_MAC, MacAddr([2, 9, 9, 9, 9, 9])).build(),
        Refusal::VlanMismatch => to_gateway(question().vlan(7)),
        Refusal::AddressConflict => {
            arp::announcement(MacAddr([2, 0, 0, 0, 0, 9]), "203.0.113.5".parse().expect("an address"), None)
                .to_vec()
        }
        Refusal::UnsupportedProtocol => to_gateway(Builder::ip(client, vip, proto::GRE)),
        Refusal::GroupFrame => question().mac(ROUTER_MAC, MacAddr::BROADCAST).build(),
        Refusal::TtlExceeded => to_gateway(error_about_an_answer(0).ttl(1)),
        Refusal::TooBig => to_gateway(error_about_an_answer(1480)),
        Refusal::NoSnatFlow => to_gateway(Builder::udp("10.0.0.1:53", "10.0.0.253:4000")),
        Refusal::FragmentUnknown => {
            let whole = to_gateway(question().dont_fragment(false).payload_len(600));
            builder::fragments(&whole, 7, 256).swap_remove(1)
        }
        Refusal::IcmpErrorUnknown => {
            let quoted = Builder::udp("203.0.113.5:99", CLIENT).packet();
            to_gateway(icmp(3, 4).payload(&quoted))
        }
        Refusal::TunnelError => {
            let inner = question().packet();
            let quoted = Builder::ip(ip("10.0.0.254"), ip("10.0.0.1"), proto::IPIP).payload(&inner).packet();
            to_gateway(Builder::icmp(ip("10.0.0.9"), ip("10.0.0.254"), 3, 1, [0; 4]).payload(&quoted))
        }
        Refusal::IcmpUnsupported => to_gateway(icmp(13, 0)),
        Refusal::IcmpRedirect => to_gateway(icmp(5, 1).payload(&Builder::udp(VIP, CLIENT).packet())),
        Refusal::IcmpChecksum => to_gateway(Builder::echo_request(client, vip, 7, 1).l4_checksum(1)),
        Refusal::NoHeadroom | Refusal::HandOverLoop => unreachable!("they depend on how a frame arrives"),
        Refusal::NotContiguous
        | Refusal::NoBuffer
        | Refusal::TxQueueFull
        | Refusal::LinkDown
        | Refusal::PuntQueueFull
        | Refusal::PuntRateLimited
        | Refusal::HandOverRingFull => unreachable!("the drivers count them"),
        Refusal::NoService
        | Refusal::SourceRange
        | Refusal::SourceDenied
        | Refusal::SourceConnectionRate
        | Refusal::ServiceConnections
        | Refusal::ServiceConnectionRate
        | Refusal::ServiceBandwidth
        | Refusal::NoEndpoints
        | Refusal::NoRoute
        | Refusal::NotRouted
        | Refusal::NeighborUnresolved
        | Refusal::NoFlow
        | Refusal::SynCookie
        | Refusal::NatConflict
        | Refusal::FlowTableFull
        | Refusal::Hairpin
        | Refusal::ServiceFlowShare
        | Refusal::BackendRefused
        | Refusal::SnatPortsExhausted
        | Refusal::MasqueradeFull
        | Refusal::SctpFragment
        | Refusal::ProxyFragment
        | Refusal::TunnelFragment
        | Refusal::TunnelHeaders
        | Refusal::TunnelCongestion
        | Refusal::TunnelUnserved
        | Refusal::Authenticated => unreachable!("they need a special gateway"),
    }
}

/// A gateway where one backend has its full share of masqueraded flows, all established, and the first frame of another
/// one.
fn full_of_masqueraded_flows() -> (Lab, Vec<u8>) {
    let spec = spec_with(Vec::new(), |network| {
        network.gateway.prefixes = vec!["10.0.0.0/24".parse().expect("a prefix")];
        network.gateway.masquerade.clone_from(&network.gateway.prefixes);
        network.gateway.forward = true;
    });
    let mut lab = Lab::with_spec(spec).with_entries(64);
    let question = |port: u16| {
        Builder::udp((ip("10.0.0.1"), port), "192.0.2.99:53").mac(backend_mac(1), GATEWAY_MAC).build()
    };
    for port in 1..=16 {
        let result = lab.receive(&question(port));
        let sent = result.sent(TransmitReason::Masqueraded);
        let Ok(Parsed::Ip(h)) = parse(sent) else { panic!("it was sent as a packet") };
        let answer = Builder::udp("192.0.2.99:53", (ip("10.0.0.253"), h.src_port));
        lab.receive(&to_gateway(answer)).sent(TransmitReason::Masqueraded);
    }
    (lab, question(17))
}

/// Sends datagrams of many clients, all of which are answered, until one is refused.
fn first_of_many(mut lab: Lab, refusal: Refusal) -> (Lab, Vec<u8>) {
    for n in 0..65_000u32 {
        let [_, b, c, d] = n.to_be_bytes();
        let frame = to_gateway(Builder::udp((ip(&format!("198.{b}.{c}.{d}")), 999), VIP));
        let result = lab.receive(&frame);
        if result.verdict == refusal.into() {
            // It is already counted: the test sends it again, with new counters.
            lab.counters = Default::default();
            return (lab, frame);
        }
        answer(&mut lab, &result.frame);
    }
    panic!("{refusal} does not occur")
}

/// Answers a frame as its backend.
fn answer(lab: &mut Lab, sent: &[u8]) {
    if let Ok(Parsed::Ip(h)) = parse(sent) {
        let to = (h.src.ip(), h.src_port);
        lab.receive(&Builder::udp((h.dst.ip(), h.dst_port), to).mac(backend_mac(1), GATEWAY_MAC).build());
    }
}

/// A client with flows from all its ports to a backend through one service port, and its datagram to another service
/// port.
fn every_port_of_a_client_taken() -> (Lab, Vec<u8>) {
    let of = |vip| one(ForwardingMode::Nat, Protocol::Udp, vip);
    let mut lab = Lab::new(vec![of(VIP), of("203.0.113.5:5353")]).with_entries(100_000);
    for port in 1..=u16::MAX {
        let result = lab.receive(&to_gateway(Builder::udp((ip("198.51.100.7"), port), VIP)));
        answer(&mut lab, &result.frame);
    }
    lab.counters = Default::default();
    (lab, to_gateway(Builder::udp(CLIENT, "203.0.113.5:5353")))
}

fn broken(malformed: Malformed) -> Vec<u8> {
    let tcp4 = || Builder::tcp(CLIENT, VIP);
    let tcp6 = || Builder::tcp(CLIENT6, VIP6);
    let udp4 = || Builder::udp(CLIENT, VIP);
    let raw4 = |proto| Builder::ip(ip("198.51.100.7"), ip("203.0.113.5"), proto);
    let raw6 = |proto| Builder::ip(ip("2001:db8::7"), ip("2001:db8:1::5"), proto);
    let error = |quoted: &[u8]| raw_error(quoted);
    let options = |count| (0..count).fold(tcp6(), |b, _| b.extension(proto::DESTINATION_OPTIONS, &[]));
    let builder = match malformed {
        Malformed::FrameTooLong => return vec![0; 65_536],
        Malformed::EthernetTruncated => return to_gateway(tcp4())[..13].to_vec(),
        Malformed::VlanTruncated => return to_gateway(tcp4().vlan(5))[..17].to_vec(),
        Malformed::VlanReserved => tcp4().vlan(0x0fff),
        Malformed::ArpTruncated | Malformed::ArpFormat => {
            let sender = [10, 0, 0, 250].into();
            let mut whole = arp::request(ROUTER_MAC, sender, [203, 0, 113, 5].into(), None, None).to_vec();
            whole[15] = if malformed == Malformed::ArpFormat { 3 } else { whole[15] };
            whole.truncate(if malformed == Malformed::ArpFormat { 42 } else { 41 });
            return whole;
        }
        Malformed::Ipv4Truncated => return to_gateway(tcp4())[..33].to_vec(),
        Malformed::Ipv4Version => tcp4().version_ihl(0x65),
        Malformed::Ipv4HeaderLength => tcp4().version_ihl(0x44),
        Malformed::Ipv4TotalLength => tcp4().ip_len(41),
        Malformed::Ipv4Checksum => tcp4().ip_checksum(0),
        Malformed::Ipv4Options => udp4().ip_options(&[7, 1, 0, 0]),
        Malformed::SourceRoute => udp4().ip_options(&[131, 3, 4, 0]),
        Malformed::Ipv6Truncated => return to_gateway(tcp6())[..53].to_vec(),
        Malformed::Ipv6Version => tcp6().version_ihl(0x40),
        Malformed::Ipv6PayloadLength => tcp6().ip_len(21),
        Malformed::Ipv6MappedAddress => {
            let mapped: std::net::Ipv6Addr = "::ffff:192.0.2.1".parse().expect("an address");
            Builder::ip(mapped, ip("2001:db8:1::5"), proto::NO_NEXT_HEADER)
        }
        Malformed::Ipv6ExtensionTruncated => raw6(proto::ROUTING).payload_len(7),
        Malformed::Ipv6ExtensionChain => options(9),
        Malformed::Ipv6HopByHopPosition => options(1).extension(proto::HOP_BY_HOP, &[]),
        Malformed::FragmentLength => tcp4().payload_len(3).fragment(1, 0, true),
        Malformed::FragmentBeyondEnd => tcp4().payload_len(80).fragment(1, 65_528, false),
        Malformed::FragmentInHeader => tcp4().payload_len(80).fragment(1, 8, false),
        Malformed::TcpTruncated => raw4(proto::TCP).payload_len(19),
        Malformed::TcpDataOffset => tcp4().data_offset(4),
        Malformed::UdpTruncated => raw4(proto::UDP).payload_len(7),
        Malformed::UdpLength => udp4().udp_len(7),
        Malformed::SctpTruncated => raw4(proto::SCTP).payload_len(7),
        Malformed::IcmpTruncated => raw4(proto::ICMP).payload_len(7),
        Malformed::Icmpv6Truncated => raw6(proto::ICMPV6).payload_len(7),
        Malformed::QuoteTruncated => error(&udp4().packet()[..27]),
        Malformed::QuoteHeader => error(&udp4().version_ihl(0x44).packet()),
        Malformed::NdpTruncated => solicitation(255, 15),
        Malformed::NdpInvalid => solicitation(254, 16),
    };
    to_gateway(builder)
}

fn raw_error(quoted: &[u8]) -> Builder {
    Builder::icmp(ip("192.0.2.1"), ip("203.0.113.5"), 3, 4, [0; 4]).payload(quoted)
}

/// A truncated neighbour solicitation to a VIP with this hop limit and this many bytes after its first words.
fn solicitation(hop_limit: u8, len: usize) -> Builder {
    Builder::icmp(ip("2001:db8::7"), ip("2001:db8:1::5"), 135, 0, [0; 4])
        .ttl(hop_limit)
        .payload(&vec![0x20; len])
}
