//! Path MTU discovery in `dsr-gue`, `dsr-gre` and `dsr-geneve`: errors about the outer packet become answers to
//! clients, as in `path_mtu` for IP-in-IP, and errors about the host's own packets do not.

use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec, TunnelOptions};
use tidegate_wire::encapsulation::{GueVariant, ServiceIdentity, Vni};
use tidegate_wire::{ethernet, proto};

use super::lab::{Lab, ip, service};
use super::path_mtu_packets::{
    CLIENT, CLIENT6, VIP, VIP6, about, answered_mtu, error, headers, path_mtu_count, segment,
};
use crate::testing::builder::Builder;
use crate::testing::decapsulate::decapsulate;

/// Each tunnel, and the bytes of its headers behind the outer IP header.
fn tunnels() -> [(ForwardingMode, TunnelOptions, usize); 5] {
    let usual = TunnelOptions::default();
    [
        (ForwardingMode::DsrGue, usual, 8),
        (ForwardingMode::DsrGue, TunnelOptions { gue_variant: GueVariant::Header, ..usual }, 12),
        (ForwardingMode::DsrGre, usual, 4),
        (ForwardingMode::DsrGre, TunnelOptions { gre_key: Some(7), ..usual }, 8),
        (ForwardingMode::DsrGeneve, usual, 28),
    ]
}

fn lab(mode: ForwardingMode, tunnel: TunnelOptions, vip: &str, backend: &str) -> Lab {
    Lab::new(vec![ServiceSpec { tunnel, ..service(mode, Protocol::Tcp, vip, &[backend]) }])
}

#[test]
fn an_error_about_any_outer_packet_limits_the_clients_next_packets() {
    for (mode, options, between) in tunnels() {
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            // RFC 792 guarantees 8 bytes behind the header, RFC 1812 much more, RFC 4443 up to 1,280 bytes in all.
            for (backend, outer, quoted) in
                [("10.0.0.1:80", 20, 28), ("10.0.0.1:80", 20, 548), ("[fd00::1]:80", 40, 1232)]
            {
                let mut lab = lab(mode, options, vip, backend);
                let sent = lab.send(segment(client, vip, 1430)).sent(TransmitReason::Forward).to_vec();
                assert_eq!(lab.send(error(&sent, 1400, quoted)).refused(), Refusal::TunnelError);
                let fits = 1400 - outer - between;
                assert_eq!(
                    answered_mtu(&lab.send(segment(client, vip, 1430))),
                    fits,
                    "{mode} {vip} {backend}"
                );
                lab.send(segment(client, vip, fits)).sent(TransmitReason::Forward);
                assert_eq!(answered_mtu(&lab.send(segment(client, vip, fits + 1))), fits);
            }
        }
    }
}

#[test]
fn clients_get_the_link_mtu_minus_all_outer_headers() {
    for (mode, options, between) in tunnels() {
        for (backend, outer) in [("10.0.0.1:80", 20), ("[fd00::1]:80", 40)] {
            let mut lab = lab(mode, options, VIP, backend);
            let fits = 1500 - outer - between;
            lab.send(segment(CLIENT, VIP, fits)).sent(TransmitReason::Forward);
            assert_eq!(answered_mtu(&lab.send(segment(CLIENT, VIP, fits + 1))), fits, "{mode} {backend}");
        }
    }
}

#[test]
fn a_custom_gue_port_is_recognised_by_the_packet_that_the_error_quotes() {
    let options = TunnelOptions { gue_port: 5555, ..TunnelOptions::default() };
    let mut lab = lab(ForwardingMode::DsrGue, options, VIP, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT, VIP, 1430)).sent(TransmitReason::Forward).to_vec();
    lab.send(error(&sent, 1400, 28));
    assert_eq!(path_mtu_count(&lab), 0, "eight bytes do not show that it is a tunnel");
    assert_eq!(lab.send(error(&sent, 1400, 128)).refused(), Refusal::TunnelError);
    assert_eq!(answered_mtu(&lab.send(segment(CLIENT, VIP, 1430))), 1400 - 28);
}

#[test]
fn an_error_about_a_udp_packet_of_the_host_goes_to_the_kernel() {
    let mut lab = lab(ForwardingMode::DsrGue, TunnelOptions::default(), VIP, "10.0.0.1:80");
    // A health check by UDP, and a resolver's request, from the same address to the same backend.
    for (from, to) in [("10.0.0.254:40000", "10.0.0.1:80"), ("10.0.0.254:60000", "10.0.0.1:53")] {
        let quoted = Builder::udp(from, to).payload(b"a question").packet();
        let result = lab.send(about(ip("10.0.0.254"), 1400, &quoted));
        assert!(matches!(result.verdict, Verdict::Punt(_)), "{from} {to}: {:?}", result.verdict);
    }
    assert_eq!(path_mtu_count(&lab), 0);
}

#[test]
fn an_error_that_quotes_another_tunnel_than_the_services_changes_nothing() {
    let usual = TunnelOptions::default();
    for (mode, options, other, other_options) in [
        (ForwardingMode::DsrGue, usual, ForwardingMode::DsrIpip, usual),
        (ForwardingMode::DsrGre, usual, ForwardingMode::DsrGre, TunnelOptions { gre_key: Some(7), ..usual }),
        (ForwardingMode::DsrIpip, usual, ForwardingMode::DsrGre, usual),
        (ForwardingMode::DsrGeneve, usual, ForwardingMode::DsrGue, usual),
        (
            ForwardingMode::DsrGeneve,
            usual,
            ForwardingMode::DsrGeneve,
            TunnelOptions { geneve_vni: Vni::new(7).unwrap(), ..usual },
        ),
        (
            ForwardingMode::DsrGeneve,
            usual,
            ForwardingMode::DsrGeneve,
            TunnelOptions { geneve_service: ServiceIdentity::of("default", "other"), ..usual },
        ),
    ] {
        let mut sender = lab(other, other_options, VIP, "10.0.0.1:80");
        let sent = sender.send(segment(CLIENT, VIP, 1430)).sent(TransmitReason::Forward).to_vec();
        let mut lab = lab(mode, options, VIP, "10.0.0.1:80");
        let result = lab.send(error(&sent, 1400, 128));
        // A UDP packet of none of our services may be the host's.
        match other {
            ForwardingMode::DsrGue | ForwardingMode::DsrGeneve => {
                assert!(matches!(result.verdict, Verdict::Punt(_)), "{mode} {other}: {:?}", result.verdict);
            }
            _ => assert_eq!(result.refused(), Refusal::TunnelError),
        }
        assert_eq!(path_mtu_count(&lab), 0, "{mode} {other}");
    }
}

#[test]
fn an_ipv6_packet_of_1280_bytes_passes_a_small_path_in_outer_fragments() {
    for (mode, options, between) in tunnels() {
        for (backend, outer) in [("10.0.0.1:80", 20), ("[fd00::1]:80", 40)] {
            let mut lab = lab(mode, options, VIP6, backend);
            let sent = lab.send(segment(CLIENT6, VIP6, 1430)).sent(TransmitReason::Forward).to_vec();
            lab.send(error(&sent, 1284, 1232));
            let result = lab.send(segment(CLIENT6, VIP6, 1280));
            result.sent(TransmitReason::Forward);
            assert_eq!(result.fragments.len(), 2, "{mode} {backend}");
            let whole = reassembled(&result.fragments, outer);
            assert_eq!(whole.len(), 1280 + outer + between);
            let opened = decapsulate(&whole).unwrap_or_else(|why| panic!("{mode} {backend}: {why}"));
            assert_eq!(opened.packet.len(), 1280);
            assert_eq!(answered_mtu(&lab.send(segment(CLIENT6, VIP6, 1281))), 1280);
        }
    }
}

/// Reassembles an outer packet from its fragments, which are in order.
fn reassembled(fragments: &[Vec<u8>], outer: usize) -> Vec<u8> {
    let data = fragments.iter().flat_map(|fragment| {
        let h = headers(fragment);
        assert!(h.is_fragment());
        fragment[usize::from(h.l4)..usize::from(h.ip_end)].to_vec()
    });
    let data: Vec<u8> = data.collect();
    let mut header = fragments[0][ethernet::HEADER_LEN..][..outer].to_vec();
    if outer == 20 {
        let len = (outer + data.len()) as u16;
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[4..8].fill(0);
        header[10..12].fill(0);
        let sum = tidegate_wire::checksum::checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[4..6].copy_from_slice(&(data.len() as u16).to_be_bytes());
        assert_eq!(header[6], proto::FRAGMENT);
        header[6] = fragments[0][ethernet::HEADER_LEN + 40];
    }
    [header, data].concat()
}
