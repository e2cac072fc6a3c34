//! Tests of probes without a kernel: packets as its sockets send and expect them, and frames as backends receive and
//! send them.

use tidegate_pipeline::frame::MemoryFrame;
use tidegate_pipeline::testing::Builder;
use tidegate_pipeline::testing::builder::GATEWAY_MAC;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::testing;
use tidegate_spec::{NetworkSpec, SnapshotSpec, TunnelOptions};
use tidegate_wire::encapsulation::Encapsulation;
use tidegate_wire::tcp::flags;

use super::*;

const BACKEND_MAC: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);
const VIP: &str = "203.0.113.5";
const VIP6: &str = "2001:db8:1::5";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A gateway on 192.0.2.0/24, with a router to 10.244.0.0/16.
fn probes(vlan: Option<u16>) -> Probes {
    let interface = testing::interface(GATEWAY_MAC, &["192.0.2.2/24", "2001:db8::2/64"]);
    let interface = InterfaceSpec { vlan, ..interface };
    let spec = SnapshotSpec {
        network: NetworkSpec {
            interfaces: vec![interface],
            routes: vec![testing::route("10.244.0.0/16", "192.0.2.1")],
            tunnel_source_v4: Some("192.0.2.2".parse().expect("an address")),
            ..NetworkSpec::default()
        }
        .into(),
        ..SnapshotSpec::default()
    };
    let (snapshot, _) = Snapshot::compile(&spec, None, &NeighborTable::seeded(7)).expect("it compiles");
    let probes = Probes::default();
    probes.set_device(Some("tg-probe"));
    probes.follow(&spec.network.interfaces, &snapshot);
    probes
}

fn parsed(bytes: &[u8]) -> Headers {
    match tidegate_wire::parse(bytes) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

/// A frame around a packet that was passed to the kernel.
fn framed(packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    [&[0; 12][..], &kind, packet].concat()
}

/// Sends a packet of the kernel. Returns the transmitted frame with its headers.
fn outward(probes: &Probes, packet: &Builder) -> Option<(Vec<u8>, Headers)> {
    let mut frame = MemoryFrame::new(&packet.build());
    let mut noted = None;
    let mac = |interface, _: &Addr| Some(BACKEND_MAC).filter(|_| interface == 0);
    probes.outward(&mut frame, mac, |bytes| noted = Some(parsed(bytes)))?;
    Some((frame.bytes().to_vec(), noted.expect("it is noted")))
}

fn inward(probes: &Probes, frame: &Builder) -> Option<Vec<u8>> {
    let mut frame = MemoryFrame::new(&frame.build());
    probes.inward(&mut frame).map(<[u8]>::to_vec)
}

fn socket(ip: IpAddr, port: u16) -> (IpAddr, u16) {
    (ip, port)
}

#[test]
fn a_probe_to_the_vip_uses_its_backends_link_address_and_gets_an_answer() {
    for (vip, backend, own) in [(VIP, "192.0.2.9", "192.0.2.2"), (VIP6, "2001:db8::9", "2001:db8::2")] {
        let probes = probes(Some(100));
        let path = probes
            .path(ip(vip), ip(backend), ForwardingMode::DsrL2, &TunnelOptions::default())
            .expect("it is on the link");
        let Ends { near, far } = path.ends();
        let _flow = probes.open(proto::TCP, 40_001, 80, path);
        let syn = Builder::tcp(socket(near, 40_001), socket(far, 80)).flags(flags::SYN);
        let (frame, noted) = outward(&probes, &syn).expect("it is sent");
        let h = parsed(&frame);
        assert_eq!(frame[..6], BACKEND_MAC.0);
        assert_eq!((h.src.ip(), h.src_port, h.dst.ip(), h.dst_port), (ip(own), 40_001, ip(vip), 80));
        assert_eq!((noted.dst.ip(), h.vlan), (ip(vip), VlanId::new(100)));
        let same = Builder::tcp((ip(own), 40_001), (ip(vip), 80)).flags(flags::SYN).ttl(63);
        let l3 = usize::from(h.l3);
        let mut expected = same.packet();
        expected.truncate(usize::from(h.ip_len()));
        assert_eq!(frame[l3..l3 + usize::from(h.ip_len())], expected, "with sound checksums");

        let answer = Builder::tcp((ip(vip), 80), (ip(own), 40_001)).flags(flags::SYN | flags::ACK);
        let packet = inward(&probes, &answer.vlan(100)).expect("it belongs to a probe");
        let expected =
            Builder::tcp(socket(far, 80), socket(near, 40_001)).flags(flags::SYN | flags::ACK).ttl(63);
        assert_eq!(packet, expected.packet());
    }
}

#[test]
fn a_probe_reaches_its_backend_through_the_tunnel() {
    let probes = probes(None);
    let path = probes
        .path(ip(VIP), ip("10.244.1.7"), ForwardingMode::DsrIpip, &TunnelOptions::default())
        .expect("there is a route");
    let Ends { near, far } = path.ends();
    let _flow = probes.open(proto::TCP, 40_001, 80, path);
    let (frame, _) =
        outward(&probes, &Builder::tcp(socket(near, 40_001), socket(far, 80))).expect("it is sent");
    let outer = parsed(&frame);
    assert_eq!(
        (outer.src.ip(), outer.dst.ip(), outer.proto),
        (ip("192.0.2.2"), ip("10.244.1.7"), proto::IPIP)
    );
    let inner = parsed(&framed(&frame[usize::from(outer.l4)..]));
    assert_eq!((inner.src.ip(), inner.dst.ip(), inner.dst_port), (ip("192.0.2.2"), ip(VIP), 80));
}

#[test]
fn a_probe_uses_the_tunnel_type_of_its_service() {
    let options =
        TunnelOptions { gue_port: 5555, geneve_port: 5556, gre_key: Some(7), ..TunnelOptions::default() };
    for (mode, protocol, begins) in [
        (ForwardingMode::DsrGue, proto::UDP, None),
        (ForwardingMode::DsrGre, proto::GRE, Some([0x20, 0, 8, 0, 0, 0, 0, 7])),
        (ForwardingMode::DsrGeneve, proto::UDP, None),
    ] {
        let probes = probes(None);
        let path = probes.path(ip(VIP), ip("10.244.1.7"), mode, &options).expect("there is a route");
        let Ends { near, far } = path.ends();
        let _flow = probes.open(proto::TCP, 40_001, 80, path);
        let (frame, _) =
            outward(&probes, &Builder::tcp(socket(near, 40_001), socket(far, 80))).expect("it is sent");
        let outer = parsed(&frame);
        assert_eq!((outer.dst.ip(), outer.proto), (ip("10.244.1.7"), protocol), "{mode}");
        let (between, inner) = frame[usize::from(outer.l4)..]
            .split_at(mode.encapsulation(&options).expect("a tunnel").header_len());
        match begins {
            Some(bytes) => assert_eq!(between, bytes),
            None => {
                assert_eq!(Some(outer.dst_port), mode.encapsulation(&options).and_then(Encapsulation::port));
            }
        }
        let inner = parsed(&framed(inner));
        assert_eq!((inner.src.ip(), inner.dst.ip(), inner.dst_port), (ip("192.0.2.2"), ip(VIP), 80));
    }
}

#[test]
fn a_probe_of_dsr_dscp_is_marked_and_an_error_about_it_reaches_the_socket() {
    let options = TunnelOptions { dscp: 46, ..TunnelOptions::default() };
    let probes = probes(None);
    let backend = ip("10.244.1.7");
    let unmarked = probes.path(ip(VIP), backend, ForwardingMode::DsrDscp, &TunnelOptions::default());
    assert!(unmarked.is_none(), "the backend would not know the VIP");
    let path = probes.path(ip(VIP), backend, ForwardingMode::DsrDscp, &options).expect("there is a route");
    let Ends { near, far } = path.ends();
    let _flow = probes.open(proto::TCP, 40_001, 80, path);
    let (frame, _) =
        outward(&probes, &Builder::tcp(socket(near, 40_001), socket(far, 80))).expect("it is sent");
    let h = parsed(&frame);
    assert_eq!((h.src.ip(), h.dst.ip(), h.dst_port), (ip("192.0.2.2"), backend, 80));
    assert_eq!(frame[usize::from(h.l3) + 1], 46 << 2);

    let packet = &frame[usize::from(h.l3)..usize::from(h.ip_end)];
    let error = Builder::icmp(ip("192.0.2.254"), ip("192.0.2.2"), 3, 1, [0; 4]).payload(packet);
    let inward_error = inward(&probes, &error).expect("it is about a probe");
    let frame = framed(&inward_error);
    let quoted = quote::parse(&frame, &parsed(&frame)).expect("a sound quote").expect("an error");
    assert_eq!((quoted.src.ip(), quoted.dst.ip(), quoted.dst_port), (near, far, 80));
}

#[test]
fn port_unreachable_from_a_vip_reaches_the_probe_socket() {
    for (vip, own, kind, code) in [(VIP, "192.0.2.2", 3, 3), (VIP6, "2001:db8::2", 1, 4)] {
        let probes = probes(None);
        let backend = if vip == VIP { "192.0.2.9" } else { "2001:db8::9" };
        let path = probes
            .path(ip(vip), ip(backend), ForwardingMode::DsrL2, &TunnelOptions::default())
            .expect("it is on the link");
        let Ends { near, far } = path.ends();
        let _flow = probes.open(proto::UDP, 40_001, 53, path);
        let request = Builder::udp((ip(own), 40_001), (ip(vip), 53)).packet();
        let error = Builder::icmp(ip(vip), ip(own), kind, code, [0; 4]).payload(&request);
        let packet = inward(&probes, &error).expect("it is about a probe");
        let frame = framed(&packet);
        let h = parsed(&frame);
        assert_eq!((h.src.ip(), h.dst.ip(), h.icmp_code), (far, near, code));
        let quoted = quote::parse(&frame, &h).expect("a sound quote").expect("an error");
        assert_eq!((quoted.src.ip(), quoted.src_port), (near, 40_001));
        assert_eq!((quoted.dst.ip(), quoted.dst_port), (far, 53));
        let own_quote = Builder::udp(socket(near, 40_001), socket(far, 53)).packet();
        let expected = Builder::icmp(far, near, kind, code, [0; 4]).ttl(63).payload(&own_quote);
        assert_eq!(packet, expected.packet(), "with sound checksums");
    }
}

#[test]
fn packets_of_no_probe_are_not_changed() {
    let probes = probes(None);
    let path = || {
        probes
            .path(ip(VIP), ip("192.0.2.9"), ForwardingMode::DsrL2, &TunnelOptions::default())
            .expect("it is on the link")
    };
    let Ends { near, far } = path().ends();
    let _flow = probes.open(proto::TCP, 40_001, 80, path());
    let others = [
        Builder::tcp((ip(VIP), 81), (ip("192.0.2.2"), 40_001)),
        Builder::tcp((ip(VIP), 80), (ip("192.0.2.2"), 40_002)),
        Builder::tcp((ip(VIP), 80), (ip("192.0.2.3"), 40_001)),
        Builder::tcp((ip("203.0.113.6"), 80), (ip("192.0.2.2"), 40_001)),
        Builder::udp((ip(VIP), 80), (ip("192.0.2.2"), 40_001)),
    ];
    for other in others {
        let mut frame = MemoryFrame::new(&other.build());
        assert!(probes.inward(&mut frame).is_none());
        assert_eq!(frame.bytes(), other.build());
    }
    for other in [(40_001, 81), (40_002, 80)] {
        assert!(outward(&probes, &Builder::tcp(socket(near, other.0), socket(far, other.1))).is_none());
    }
    // The host's own packets to the VIP are independent of probes.
    assert!(outward(&probes, &Builder::tcp((ip("192.0.2.2"), 40_001), (ip(VIP), 80))).is_none());
}

#[test]
fn a_reused_port_belongs_to_the_new_probe_and_closed_ones_are_forgotten() {
    let probes = probes(None);
    let path = |backend| {
        probes
            .path(ip(VIP), ip(backend), ForwardingMode::DsrL2, &TunnelOptions::default())
            .expect("it is on the link")
    };
    let first = probes.open(proto::TCP, 40_001, 80, path("192.0.2.9"));
    let key = first.key;
    drop(first);
    assert!(probes.entry(key).is_some(), "its reset is still sent");
    let second = probes.open(proto::TCP, 40_001, 80, path("192.0.2.10"));
    lock(&probes.flows).forget(Instant::now() + CLOSED_FOR);
    assert_eq!(probes.entry(key).expect("it is open").0.backend, Addr::from(ip("192.0.2.10")));
    drop(second);
    lock(&probes.flows).forget(Instant::now() + CLOSED_FOR);
    assert!(probes.entry(key).is_none() && lock(&probes.flows).closed.is_empty());
}

#[test]
fn without_a_path_there_is_no_probe() {
    let probes = probes(None);
    let path =
        |vip, backend, mode| probes.path(ip(vip), ip(backend), mode, &TunnelOptions::default()).is_some();
    assert!(!path(VIP, "10.244.1.7", ForwardingMode::DsrL2), "it is on no link");
    assert!(!path(VIP, "198.51.100.1", ForwardingMode::DsrIpip), "no route");
    assert!(!path(VIP, "2001:db8::9", ForwardingMode::DsrIpip), "no IPv6 tunnel source");
    assert!(!path(VIP, "192.0.2.9", ForwardingMode::Nat), "backends answer the gateway");
    assert!(path(VIP6, "10.244.1.7", ForwardingMode::DsrIpip), "families may differ");
    probes.set_device(None);
    assert!(!path(VIP, "192.0.2.9", ForwardingMode::DsrL2), "no device");
}
