//! `dsr-dscp`: only the destination, the DSCP, the hop limit and the checksums over them change.

use std::net::SocketAddr;

use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, MssClamp, Protocol, ServiceSpec};
use tidegate_wire::checksum::Sum;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Family, Headers, L4Checksum, Parsed, ethernet, parse, proto, sctp};

use super::lab::{Lab, ROUTER_MAC, backend_mac, ip, service};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const DSCP: u8 = 0x2d;

/// VIP, client and backend of each family.
const ENDS: [(&str, &str, &str); 2] = [
    ("203.0.113.5:80", "198.51.100.7:40000", "10.0.0.1:80"),
    ("[2001:db8:1::5]:80", "[2001:db8::7]:40000", "[fd00::1]:80"),
];

fn lab(protocol: Protocol, change: impl Fn(&mut ServiceSpec)) -> Lab {
    let services = ENDS.map(|(vip, _, backend)| {
        let mut web = service(ForwardingMode::DsrDscp, protocol, vip, &[backend]);
        web.tunnel.dscp = DSCP;
        change(&mut web);
        web
    });
    Lab::new(services.into())
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("not IP: {other:?}"),
    }
}

fn traffic_class(frame: &[u8]) -> u8 {
    let h = headers(frame);
    let packet = &frame[usize::from(h.l3)..];
    match h.family {
        Family::V4 => packet[1],
        Family::V6 => packet[0] << 4 | packet[1] >> 4,
    }
}

fn is_checksum_right(frame: &[u8]) -> bool {
    let h = headers(frame);
    let bytes = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    match h.l4_checksum {
        L4Checksum::Sctp => sctp::checksum_ok(frame, &h),
        _ => {
            let sum = Sum::pseudo_header(h.family, &h.src, &h.dst, h.proto, bytes.len() as u32);
            sum.bytes(bytes).folded() == 0xffff
        }
    }
}

#[test]
fn the_backend_gets_the_packet_at_its_address_with_the_services_dscp() {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let mut lab = lab(protocol, |_| ());
        for (vip, client, backend) in ENDS {
            for tos in [0, 0x01, 0xb8, 0xff] {
                let packet = match protocol {
                    Protocol::Tcp => Builder::tcp(at(client), at(vip)),
                    Protocol::Udp => Builder::udp(at(client), at(vip)),
                    Protocol::Sctp => Builder::sctp_init(at(client), at(vip), 7),
                };
                let result = lab.send(packet.payload(b"some data").tos(tos));
                let sent = result.sent(TransmitReason::Forward);
                let h = headers(sent);
                assert_eq!(SocketAddr::new(h.src.ip(), h.src_port), at(client));
                assert_eq!(SocketAddr::new(h.dst.ip(), h.dst_port), at(backend));
                assert_eq!(traffic_class(sent), DSCP << 2 | tos & 3, "{protocol} {vip}: the ECN bits stay");
                assert_eq!(h.ttl, 63);
                assert!(is_checksum_right(sent), "{protocol} {vip} {tos:#x}");
                assert_eq!(ethernet::destination(sent), backend_mac(1));
            }
        }
    }
}

#[test]
fn every_fragment_goes_to_the_backend_with_the_dscp() {
    let mut lab = lab(Protocol::Udp, |_| ());
    for (vip, client, backend) in ENDS {
        let whole = Builder::udp(at(client), at(vip)).payload_len(600).dont_fragment(false);
        let whole = whole.mac(ROUTER_MAC, GATEWAY_MAC).build();
        let fragments = builder::fragments(&whole, 7, 200);
        assert!(fragments.len() > 2);
        for fragment in fragments {
            let result = lab.receive(&fragment);
            let sent = result.sent(TransmitReason::Forward);
            assert_eq!(headers(sent).dst.ip(), at(backend).ip());
            assert_eq!(traffic_class(sent) >> 2, DSCP);
        }
    }
}

#[test]
fn an_icmp_error_about_an_answer_follows_the_flow() {
    for (vip, client, backend) in ENDS {
        let mut lab = lab(Protocol::Tcp, |_| ());
        lab.send(Builder::tcp(at(client), at(vip)));
        let quoted = Builder::tcp(at(vip), at(client)).payload_len(64).packet();
        let (router, kind) = if at(vip).is_ipv4() { ("192.0.2.1", 3) } else { ("2001:db8:ffff::1", 1) };
        let code = if at(vip).is_ipv4() { 1 } else { 0 };
        let error = Builder::icmp(ip(router), at(vip).ip(), kind, code, [0; 4]).payload(&quoted);
        let result = lab.send(error);
        let sent = result.sent(TransmitReason::IcmpError);
        assert_eq!(headers(sent).dst.ip(), at(backend).ip());
        assert_eq!(traffic_class(sent) >> 2, DSCP);
        assert!(tidegate_wire::icmp::checksum_ok(sent, &headers(sent)), "{vip}");
    }
}

#[test]
fn a_packet_whose_addresses_are_authenticated_is_refused() {
    let mut lab = lab(Protocol::Tcp, |_| ());
    let (vip, client, _) = ENDS[1];
    let authenticated = Builder::tcp(at(client), at(vip)).extension(proto::AH, &[0; 10]);
    assert_eq!(lab.send(authenticated).refused(), Refusal::Authenticated);
}

#[test]
fn the_segment_size_can_be_limited() {
    let mut lab = lab(Protocol::Tcp, |web| web.mss_clamp = MssClamp::AtMost(536));
    for (vip, client, _) in ENDS {
        let syn = Builder::tcp(at(client), at(vip)).flags(flags::SYN).tcp_options(&[2, 4, 0x05, 0xb4]);
        let result = lab.send(syn);
        let sent = result.sent(TransmitReason::Forward);
        let options = usize::from(headers(sent).l4) + 20;
        // With IPv6 never less than fits every link: 1280 - 60.
        let most: u16 = if at(vip).is_ipv4() { 536 } else { 1220 };
        assert_eq!(sent[options..options + 4], [&[2, 4][..], &most.to_be_bytes()].concat(), "{vip}");
        assert!(is_checksum_right(sent), "{vip}");
    }
}
