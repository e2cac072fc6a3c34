//! Any packet to a service survives any tunnel: the pipeline encapsulates it, and independent code, written from the
//! RFCs, decapsulates it.

use proptest::prelude::*;
use tidegate_pipeline::testing::builder::{self, Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::decapsulate::decapsulate;
use tidegate_pipeline::testing::lab::{Lab, ROUTER_MAC, ip, service};
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec, TunnelOptions};
use tidegate_wire::encapsulation::{GueVariant, ServiceIdentity, Vni};
use tidegate_wire::ethernet;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tcp,
    Udp,
    UdpWithoutChecksum,
    UdpWithOptions,
    Sctp,
    Fragments,
    IcmpError,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Tcp),
        Just(Kind::Udp),
        Just(Kind::UdpWithoutChecksum),
        Just(Kind::UdpWithOptions),
        Just(Kind::Sctp),
        Just(Kind::Fragments),
        Just(Kind::IcmpError),
    ]
}

fn tunnel() -> impl Strategy<Value = (ForwardingMode, TunnelOptions)> {
    let modes = ForwardingMode::ALL.into_iter().filter(|mode| mode.is_tunnel()).collect::<Vec<_>>();
    let variant = prop_oneof![Just(GueVariant::Direct), Just(GueVariant::Header)];
    let geneve = (1..=u16::MAX, 0..1_u32 << 24, any::<[u8; 8]>());
    (prop::sample::select(modes), variant, 1..=u16::MAX, any::<Option<u32>>(), geneve).prop_map(
        |(mode, gue_variant, gue_port, gre_key, (geneve_port, vni, service))| {
            let options = TunnelOptions {
                gue_variant,
                gue_port,
                gre_key,
                geneve_port,
                geneve_vni: Vni::new(vni).expect("24 bits"),
                geneve_service: ServiceIdentity::from_bytes(service),
                dscp: 0,
            };
            (mode, options)
        },
    )
}

/// The name that the receiver gives the tunnel.
fn name(mode: ForwardingMode, options: &TunnelOptions) -> String {
    match mode {
        ForwardingMode::DsrIpip => "ipip".into(),
        ForwardingMode::DsrGue => format!("gue{} {}", options.gue_variant.number(), options.gue_port),
        ForwardingMode::DsrGre => options.gre_key.map_or("gre".into(), |key| format!("gre {key}")),
        ForwardingMode::DsrGeneve => {
            let TunnelOptions { geneve_port, geneve_vni, geneve_service, .. } = options;
            format!("geneve {geneve_port} {} {geneve_service}", geneve_vni.number())
        }
        other => panic!("{other} is no tunnel"),
    }
}

/// Frames of a client, and the protocol of the service that they are for.
fn frames(
    kind: Kind,
    v6: bool,
    port: u16,
    payload: &[u8],
    extra: &[u8],
    tos: u8,
) -> (Protocol, Vec<Vec<u8>>) {
    let (client, vip) = if v6 {
        (format!("[2001:db8::7]:{port}"), "[2001:db8:1::5]:443")
    } else {
        (format!("198.51.100.7:{port}"), "203.0.113.5:443")
    };
    let client = client.as_str();
    let with_extras = |builder: Builder| {
        let builder = builder.mac(ROUTER_MAC, GATEWAY_MAC).tos(tos).payload(payload).trailer(extra.len());
        match (v6, extra.len() % 3) {
            (false, 1) => builder.ip_options(&[1, 1, 1, 0]),
            (true, 1) => builder.extension(60, &[1, 4, 0, 0, 0, 0]),
            _ => builder,
        }
    };
    match kind {
        Kind::Tcp => (Protocol::Tcp, vec![with_extras(Builder::tcp(client, vip)).build()]),
        Kind::Udp => (Protocol::Udp, vec![with_extras(Builder::udp(client, vip)).build()]),
        Kind::UdpWithoutChecksum => {
            (Protocol::Udp, vec![with_extras(Builder::udp(client, vip)).l4_checksum(0).build()])
        }
        // Bytes behind the datagram, outside of its checksum. The checksum covers them and so is wrong for a receiver;
        // the tunnel must carry it unchanged.
        Kind::UdpWithOptions => {
            (Protocol::Udp, vec![with_extras(Builder::udp(client, vip)).udp_len(8).build()])
        }
        Kind::Sctp => (Protocol::Sctp, vec![with_extras(Builder::sctp(client, vip)).build()]),
        Kind::Fragments => {
            let whole = with_extras(Builder::udp(client, vip)).dont_fragment(false).build();
            (Protocol::Udp, builder::fragments(&whole, 7, 64))
        }
        Kind::IcmpError => {
            let quoted = Builder::tcp(vip, client).payload(extra).packet();
            let (router, to) = if v6 {
                (ip("2001:db8:9::9"), ip("2001:db8:1::5"))
            } else {
                (ip("192.0.2.9"), ip("203.0.113.5"))
            };
            let (kind, code) = if v6 { (2, 0) } else { (3, 4) };
            let error = Builder::icmp(router, to, kind, code, [0, 0, 5, 0]).payload(&quoted);
            (Protocol::Tcp, vec![error.mac(ROUTER_MAC, GATEWAY_MAC).tos(tos).build()])
        }
    }
}

/// The packet of a frame after one hop.
fn after_a_hop(frame: &[u8]) -> Vec<u8> {
    let mut packet = frame[ethernet::HEADER_LEN..].to_vec();
    if packet[0] >> 4 == 4 {
        packet.truncate(usize::from(u16::from_be_bytes([packet[2], packet[3]])));
        packet[8] -= 1;
        // The sum grows by one in the upper half of a word, with the carry around.
        let (sum, carry) = u16::from_be_bytes([packet[10], packet[11]]).overflowing_add(0x0100);
        packet[10..12].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    } else {
        packet.truncate(40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])));
        packet[7] -= 1;
    }
    packet
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_packet_survives_any_tunnel_and_an_independent_receiver(
        kind in kind(),
        (mode, options) in tunnel(),
        inner_v6 in any::<bool>(),
        outer_v6 in any::<bool>(),
        port in 1024..=u16::MAX,
        payload in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..1300),
        extra in prop::collection::vec(any::<u8>(), 0..9),
        tos in any::<u8>(),
    ) {
        let (protocol, frames) = frames(kind, inner_v6, port, &payload, &extra, tos);
        let vip = if inner_v6 { "[2001:db8:1::5]:443" } else { "203.0.113.5:443" };
        let backend = if outer_v6 { "[fd00::1]:443" } else { "10.0.0.1:443" };
        let mut lab = Lab::new(vec![ServiceSpec { tunnel: options, ..service(mode, protocol, vip, &[backend]) }]);
        for frame in frames {
            let result = lab.receive(&frame);
            let why = if matches!(kind, Kind::IcmpError) { TransmitReason::IcmpError } else { TransmitReason::Forward };
            prop_assert!(matches!(result.verdict, Verdict::Transmit { why: is, .. } if is == why), "{:?}", result.verdict);
            let outer = decapsulate(&result.frame[ethernet::HEADER_LEN..]).map_err(TestCaseError::fail)?;
            prop_assert_eq!(outer.tunnel, name(mode, &options));
            prop_assert_eq!(outer.traffic_class, tos);
            prop_assert_eq!(outer.packet, after_a_hop(&frame));
        }
    }
}
