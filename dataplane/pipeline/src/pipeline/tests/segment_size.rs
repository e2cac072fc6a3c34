//! The segment size in SYNs: limited for services with `mssClamp` only.

use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{ForwardingMode, MssClamp, Protocol, ServiceSpec, SharedService};
use tidegate_wire::checksum::Sum;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Family, Headers, Parsed, parse, proto};

use super::lab::{Lab, ROUTER_MAC, backend_mac, service, spec_with};
use crate::testing::builder::{Builder, GATEWAY_MAC};

use MssClamp::{AtMost, Off, Path};

const V4: [&str; 3] = ["198.51.100.7:40000", "203.0.113.5:80", "10.0.0.1:80"];
const V6: [&str; 3] = ["[2001:db8::7]:40000", "[2001:db8:1::5]:80", "[fd00::1]:80"];

fn web(mode: ForwardingMode, clamp: MssClamp, [_, vip, backend]: [&str; 3]) -> ServiceSpec {
    ServiceSpec { mss_clamp: clamp, ..service(mode, Protocol::Tcp, vip, &[backend]) }
}

fn lab(mode: ForwardingMode, clamp: MssClamp, ends: [&str; 3], mtu: u16) -> Lab {
    let services: Vec<SharedService> = vec![web(mode, clamp, ends).into()];
    Lab::with_spec(spec_with(services, |network| network.interfaces[0].mtu = mtu))
}

/// A segment with the option at an odd offset, between others.
fn segment(from: &str, to: &str, bits: u8, size: u16) -> Builder {
    let [high, low] = size.to_be_bytes();
    Builder::tcp(from, to).flags(bits).tcp_options(&[1, 2, 4, high, low, 3, 3, 7])
}

fn ip_headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

/// The size in a frame, in a tunnel or not. Asserts that the TCP checksum is right.
fn size(frame: &[u8]) -> u16 {
    let outer = ip_headers(frame);
    let mut bare = vec![0; 12];
    let frame = if outer.proto == proto::IPIP || outer.proto == proto::IPV6 {
        bare.extend(if outer.proto == proto::IPIP { [0x08, 0x00] } else { [0x86, 0xdd] });
        bare.extend(&frame[usize::from(outer.l4)..]);
        &bare[..]
    } else {
        frame
    };
    let h = ip_headers(frame);
    let tcp = &frame[usize::from(h.l4)..usize::from(h.ip_end)];
    let pseudo = Sum::pseudo_header(h.family, &h.src, &h.dst, proto::TCP, tcp.len() as u32);
    assert_eq!(pseudo.bytes(tcp).finish(), 0, "the checksum is right");
    u16::from_be_bytes([tcp[23], tcp[24]])
}

fn sent_size(lab: &mut Lab, [client, vip, _]: [&str; 3], bits: u8, size_before: u16) -> u16 {
    let frame = segment(client, vip, bits, size_before).mac(ROUTER_MAC, GATEWAY_MAC).build();
    size(lab.receive(&frame).sent(TransmitReason::Forward))
}

#[test]
fn the_segment_size_in_a_syn_is_limited_to_the_path_and_never_grows() {
    use ForwardingMode::{DsrIpip, DsrL2, FullNat, Nat};
    for (mode, ends, clamp, mtu, limited) in [
        (Nat, V4, Path, 1500, 1460),
        (FullNat, V4, Path, 1500, 1460),
        (Nat, V6, Path, 1500, 1440),
        (FullNat, V6, Path, 1400, 1340),
        (DsrIpip, V4, Path, 1500, 1440),
        (DsrIpip, V6, Path, 1500, 1400),
        (Nat, V4, AtMost(1000), 1500, 1000),
        (Nat, V4, AtMost(9000), 1500, 1460),
        (DsrIpip, V6, AtMost(536), 1500, 1220),
        (Nat, V4, Off, 1500, 8960),
        (DsrIpip, V4, Off, 1500, 8960),
        (DsrL2, V4, Path, 1500, 8960),
    ] {
        let mut lab = lab(mode, clamp, ends, mtu);
        assert_eq!(sent_size(&mut lab, ends, flags::SYN, 8960), limited, "{mode} {clamp:?}");
        assert_eq!(sent_size(&mut lab, ends, flags::SYN, 8960), limited, "and when it is repeated");
        assert_eq!(sent_size(&mut lab, ends, flags::SYN, 500), 500, "{mode}: a smaller size stays");
        assert_eq!(sent_size(&mut lab, ends, flags::ACK, 8960), 8960, "{mode}: it is not a SYN");
    }
}

#[test]
fn a_tunnel_to_the_other_family_counts_its_own_header() {
    let [client, vip, _] = V4;
    let ends = [client, vip, "[fd00::1]:80"];
    let mut lab = lab(ForwardingMode::DsrIpip, Path, ends, 1500);
    assert_eq!(sent_size(&mut lab, ends, flags::SYN, 1460), 1500 - 40 - 40);
}

#[test]
fn a_path_mtu_of_a_tunnel_limits_the_segment_size() {
    let mut lab = lab(ForwardingMode::DsrIpip, Path, V4, 1500);
    let backend = tidegate_wire::Addr::from(super::lab::ip("10.0.0.1"));
    assert!(lab.neighbors.path_mtus().record(backend, 1400, lab.now));
    assert_eq!(sent_size(&mut lab, V4, flags::SYN, 1460), 1400 - 20 - 40);
}

#[test]
fn the_syn_ack_of_a_backend_is_limited_like_the_syn_of_its_client() {
    for (mode, ends, clamp, limited) in [
        (ForwardingMode::Nat, V4, Path, 1460),
        (ForwardingMode::Nat, V6, Path, 1440),
        (ForwardingMode::FullNat, V4, AtMost(1200), 1200),
        (ForwardingMode::Nat, V4, Off, 8960),
    ] {
        let mut lab = lab(mode, clamp, ends, 1500);
        let syn = segment(ends[0], ends[1], flags::SYN, 1460).mac(ROUTER_MAC, GATEWAY_MAC).build();
        let sent = lab.receive(&syn).sent(TransmitReason::Forward).to_vec();
        let h = ip_headers(&sent);
        let client = std::net::SocketAddr::new(h.src.ip(), h.src_port).to_string();
        let answer = segment(ends[2], &client, flags::SYN | flags::ACK, 8960);
        let result = lab.receive(&answer.mac(backend_mac(1), GATEWAY_MAC).build());
        assert_eq!(size(result.sent(TransmitReason::Reply)), limited, "{mode} {clamp:?}");
    }
}

#[test]
fn a_syn_with_a_vlan_tag_or_ip_options_is_limited_at_the_right_offset() {
    let mut lab = lab(ForwardingMode::Nat, Path, V4, 1500);
    let syn = segment(V4[0], V4[1], flags::SYN, 8960).ip_options(&[1, 1, 1, 1]);
    let result = lab.receive(&syn.mac(ROUTER_MAC, GATEWAY_MAC).build());
    assert_eq!(size(result.sent(TransmitReason::Forward)), 1460);
    lab.change(|spec| spec.network.interfaces[0].vlan = Some(7));
    let tagged = segment(V4[0], V4[1], flags::SYN, 8960).vlan(7).mac(ROUTER_MAC, GATEWAY_MAC).build();
    let result = lab.receive(&tagged);
    let sent = result.sent(TransmitReason::Forward);
    assert_eq!((size(sent), ip_headers(sent).family), (1460, Family::V4));
}
