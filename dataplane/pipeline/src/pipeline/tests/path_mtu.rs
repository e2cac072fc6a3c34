//! Path MTU discovery inside tunnels: errors about the outer header, and the resulting messages to clients.

use tidegate_snapshot::path_mtu::LIFETIME;
use tidegate_spec::limits::PATH_MTU_UPDATES;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::ethernet;

use super::lab::{FrameResult, Lab, ip, service};
use super::path_mtu_packets::{
    CLIENT, CLIENT6, VIP, VIP6, about, answered_mtu, error, headers, path_mtu_count, segment,
};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Pipeline, PipelineConfig};
use crate::testing::builder::Builder;

fn lab(vip: &str, backend: &str) -> Lab {
    Lab::new(vec![
        service(ForwardingMode::DsrIpip, Protocol::Tcp, vip, &[backend]),
        service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.9:443", &["10.0.0.9:443"]),
    ])
}

#[test]
fn an_error_about_the_outer_header_limits_the_clients_next_packets() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        for (backend, overhead, quoted_len) in [("10.0.0.1:80", 20, 28), ("[fd00::1]:80", 40, 1232)] {
            let mut lab = lab(vip, backend);
            let big = || segment(client, vip, 1440);
            let sent = lab.send(big()).sent(TransmitReason::Forward).to_vec();
            assert_eq!(lab.send(error(&sent, 1400, quoted_len)).refused(), Refusal::TunnelError);
            assert_eq!(answered_mtu(&lab.send(big())), 1400 - overhead, "{vip} to {backend}");
            lab.send(segment(client, vip, 1400 - overhead)).sent(TransmitReason::Forward);
            // The MTU expires, because the path may change.
            lab.wait(LIFETIME);
            lab.send(big()).sent(TransmitReason::Forward);
        }
    }
}

#[test]
fn a_path_mtu_belongs_to_one_backend_and_all_workers_know_it() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80"];
    let mut lab = Lab::new(vec![service(ForwardingMode::DsrIpip, Protocol::Tcp, VIP, &backends)]);
    let flow = |n: usize| segment(&format!("198.51.100.7:{}", 2000 + n), VIP, 1440);
    let sent: Vec<_> = (0..20).map(|n| lab.send(flow(n)).sent(TransmitReason::Forward).to_vec()).collect();
    let slow = headers(&sent[0]).dst;
    lab.send(error(&sent[0], 1400, 28));
    for worker in 0..2 {
        let config =
            PipelineConfig { worker, workers: 2, entries: 4096, seed: 7, steering: Steering::Single };
        lab.pipeline = Pipeline::new(&config);
        for (n, sent) in sent.iter().enumerate() {
            let why = match headers(sent).dst == slow {
                true => TransmitReason::PacketTooBig,
                false => TransmitReason::Forward,
            };
            lab.send(flow(n)).sent(why);
        }
    }
}

#[test]
fn an_error_without_an_mtu_lowers_the_path_mtu_step_by_step() {
    let mut lab = lab(VIP, "10.0.0.1:80");
    for (ip_len, next) in [(1480, 1492), (1472, 1006), (986, 576)] {
        let sent = lab.send(segment(CLIENT, VIP, ip_len)).sent(TransmitReason::Forward).to_vec();
        lab.send(error(&sent, 0, 28));
        assert_eq!(answered_mtu(&lab.send(segment(CLIENT, VIP, ip_len))), next - 20);
    }
    // The MTU is never below the minimum.
    let sent = lab.send(segment(CLIENT, VIP, 556)).sent(TransmitReason::Forward).to_vec();
    lab.send(error(&sent, 0, 28));
    lab.send(error(&sent, 68, 28));
    lab.send(segment(CLIENT, VIP, 556)).sent(TransmitReason::Forward);
}

#[test]
fn an_mtu_below_the_minimum_of_the_outer_family_is_ignored() {
    let mut lab6 = lab(VIP, "[fd00::1]:80");
    let sent = lab6.send(segment(CLIENT, VIP, 1400)).sent(TransmitReason::Forward).to_vec();
    assert_eq!(lab6.send(error(&sent, 1279, 1232)).refused(), Refusal::TunnelError);
    assert_eq!(path_mtu_count(&lab6), 0, "RFC 8201 section 4");
    let mut lab4 = lab(VIP, "10.0.0.1:80");
    let sent = lab4.send(segment(CLIENT, VIP, 1400)).sent(TransmitReason::Forward).to_vec();
    lab4.send(error(&sent, 68, 28));
    assert_eq!(answered_mtu(&lab4.send(segment(CLIENT, VIP, 1400))), 576 - 20);
    // An IPv6 client would ignore less than 1280 (RFC 8201 section 4).
    let mut lab = lab(VIP6, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT6, VIP6, 1400)).sent(TransmitReason::Forward).to_vec();
    lab.send(error(&sent, 1290, 28));
    assert_eq!(answered_mtu(&lab.send(segment(CLIENT6, VIP6, 1400))), 1280);
}

#[test]
fn an_error_about_a_packet_that_was_not_sent_changes_nothing() {
    let mut lab = lab(VIP, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT, VIP, 1400)).sent(TransmitReason::Forward).to_vec();
    let packet = &sent[ethernet::HEADER_LEN..];
    let (us, whole) = (ip("10.0.0.254"), packet.len());
    let changed = |at: usize, to: &[u8]| {
        let mut quoted = packet.to_vec();
        quoted[at..at + to.len()].copy_from_slice(to);
        quoted
    };
    let known_backend = Refusal::TunnelError;
    for (error, what) in [
        (
            about(us, 1400, &changed(2, &2000_u16.to_be_bytes())[..28]),
            "another length than the packet inside",
        ),
        (about(us, 1400, &changed(6, &[0, 0])[..28]), "without DF"),
        (about(us, 1400, &changed(20, &[0x65])[..28]), "another version inside"),
        (about(us, 1420, &packet[..28]), "an MTU that the packet fits"),
        (about(us, 1400, &packet[..28]).l4_checksum(0x1234), "a wrong checksum"),
        (about(us, 1400, &changed(20 + 16, &[203, 0, 113, 6])[..whole.min(500)]), "no VIP inside"),
        (about(us, 1400, &changed(20 + 22, &[0, 81])[..whole.min(500)]), "no service port inside"),
        (about(us, 1400, &changed(16, &[10, 0, 0, 9])[..500]), "a backend of another service"),
    ] {
        assert_eq!(lab.send(error).refused(), known_backend, "{what}");
        assert_eq!(path_mtu_count(&lab), 0, "{what}");
    }
    // An MTU larger than that of the gateway's own link.
    let (outer, inner) = (1600_u16.to_be_bytes(), 1580_u16.to_be_bytes());
    let mut long = changed(2, &outer);
    long[22..24].copy_from_slice(&inner);
    lab.send(about(us, 1500, &long[..28]));
    assert_eq!(path_mtu_count(&lab), 0, "longer than the link");
    // A packet to no backend, or with another source, may belong to a tunnel of the kernel.
    let local = Verdict::Punt(PuntReason::Local);
    assert_eq!(lab.send(about(us, 1400, &changed(16, &[10, 0, 0, 7])[..28])).verdict, local);
    assert_eq!(lab.send(about(us, 1400, &changed(12, &[10, 0, 0, 7])[..28])).verdict, local);
    assert_eq!(path_mtu_count(&lab), 0);
    // An error that quotes the packet as it was sent is accepted.
    lab.send(about(us, 1400, &packet[..28]));
    assert_eq!(path_mtu_count(&lab), 1);
}

#[test]
fn other_errors_about_a_tunnel_are_dropped_and_change_nothing() {
    let mut lab = lab(VIP, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT, VIP, 1400)).sent(TransmitReason::Forward).to_vec();
    let quoted = &sent[ethernet::HEADER_LEN..][..28];
    for (kind, code) in [(3, 1), (3, 0), (11, 0), (12, 0)] {
        let error = Builder::icmp(ip("10.9.9.9"), ip("10.0.0.254"), kind, code, [0; 4]).payload(quoted);
        assert_eq!(lab.send(error).refused(), Refusal::TunnelError);
    }
    assert_eq!(path_mtu_count(&lab), 0);
}

#[test]
fn a_flood_of_errors_changes_path_mtus_at_a_limited_rate() {
    let mut lab = lab(VIP, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT, VIP, 1480)).sent(TransmitReason::Forward).to_vec();
    for mtu in (600..1500).rev() {
        lab.send(error(&sent, mtu, 28));
    }
    assert_eq!(lab.neighbors.path_mtus().recorded(), u64::from(PATH_MTU_UPDATES.burst));
}

#[test]
fn a_path_mtu_survives_a_new_snapshot_and_dsr_l2_has_none() {
    let mut lab = lab(VIP, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT, VIP, 1440)).sent(TransmitReason::Forward).to_vec();
    lab.send(error(&sent, 1400, 28));
    lab.change(|spec| {
        spec.services
            .push(service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.5:81", &["10.0.0.1:81"]).into());
    });
    assert_eq!(answered_mtu(&lab.send(segment(CLIENT, VIP, 1440))), 1380);
    lab.send(segment(CLIENT, "203.0.113.5:81", 1440)).sent(TransmitReason::Forward);
}

/// The packet inside the tunnel, reassembled from the fragments of the outer packet. Each fragment fits the MTU, and
/// all have the same identification.
fn reassembled(result: &FrameResult, mtu: u16, backend: &str) -> Vec<u8> {
    result.sent(TransmitReason::Forward);
    let mut inner = Vec::new();
    for (n, fragment) in result.fragments.iter().enumerate() {
        let h = headers(fragment);
        assert!(h.ip_len() <= mtu && h.is_fragment() && h.dst.ip() == ip(backend));
        assert!(!h.dst.is_v4() || !h.dont_fragment, "routers may fragment it again");
        let field = |at: usize| u16::from_be_bytes([fragment[at], fragment[at + 1]]);
        let (data, offset, more) = match h.dst.is_v4() {
            true => (34, (field(20) & 0x1fff) * 8, field(20) & 0x2000 != 0),
            false => (62, field(56) & !7, field(56) & 1 != 0),
        };
        assert_eq!(usize::from(offset), inner.len());
        assert_eq!(more, n + 1 < result.fragments.len());
        assert_eq!(identification(fragment), identification(&result.fragments[0]));
        inner.extend_from_slice(&fragment[data..]);
    }
    inner
}

fn identification(frame: &[u8]) -> u32 {
    match headers(frame).dst.is_v4() {
        true => u32::from(u16::from_be_bytes([frame[18], frame[19]])),
        false => u32::from_be_bytes(*frame[58..].first_chunk().unwrap()),
    }
}

#[test]
fn an_ipv6_packet_of_1280_bytes_passes_a_tunnel_of_any_path_mtu() {
    let cases = [
        ("10.0.0.1", "10.0.0.1:80", 20, 28, [1299, 1280, 576]),
        ("fd00::1", "[fd00::1]:80", 40, 1232, [1319, 1300, 1280]),
    ];
    for (backend, at, overhead, quoted_len, mtus) in cases {
        for mtu in mtus {
            let mut lab = lab(VIP6, at);
            let big = |ip_len| segment(CLIENT6, VIP6, ip_len);
            let sent = lab.send(big(1400)).sent(TransmitReason::Forward).to_vec();
            lab.send(error(&sent, u32::from(mtu), quoted_len));
            assert_eq!(path_mtu_count(&lab), 1, "{mtu}");
            assert_eq!(answered_mtu(&lab.send(big(1281))), 1280);
            let mut identifications = Vec::new();
            for ip_len in [1280, usize::from(mtu) - overhead + 1] {
                let mut expected = big(ip_len).build()[ethernet::HEADER_LEN..].to_vec();
                // The hop limit.
                expected[7] -= 1;
                let result = lab.send(big(ip_len));
                assert_eq!(reassembled(&result, mtu, backend), expected, "{ip_len} of {mtu}");
                identifications.push(identification(&result.fragments[0]));
            }
            assert_ne!(identifications[0], identifications[1]);
            let fits = lab.send(big(usize::from(mtu) - overhead));
            assert!(fits.fragments.is_empty() && !headers(fits.sent(TransmitReason::Forward)).is_fragment());
        }
    }
}

#[test]
fn an_expiring_ipv6_packet_of_1280_bytes_is_answered_in_a_small_tunnel() {
    let mut lab = lab(VIP6, "10.0.0.1:80");
    let sent = lab.send(segment(CLIENT6, VIP6, 1400)).sent(TransmitReason::Forward).to_vec();
    lab.send(error(&sent, 1290, 28));
    lab.send(segment(CLIENT6, VIP6, 1280).ttl(1)).sent(TransmitReason::TtlExceeded);
}

#[test]
fn ipv4_without_df_passes_a_tunnel_of_a_small_path_mtu_in_fragments() {
    for (backend, overhead, quoted_len, mtu) in
        [("10.0.0.1:80", 20, 28, 576), ("[fd00::1]:80", 40, 1232, 1280)]
    {
        let mut lab = lab(VIP, backend);
        let sent = lab.send(segment(CLIENT, VIP, 1400)).sent(TransmitReason::Forward).to_vec();
        lab.send(error(&sent, mtu, quoted_len));
        let result = lab.send(segment(CLIENT, VIP, 1400).dont_fragment(false));
        result.sent(TransmitReason::Forward);
        assert!(result.fragments.len() > 1);
        let mut data = 0;
        for fragment in &result.fragments {
            let outer = headers(fragment);
            assert!(u32::from(outer.ip_len()) <= mtu && !outer.is_fragment());
            data += usize::from(outer.ip_len()) - overhead - 20;
        }
        assert_eq!(data, 1380);
    }
}
