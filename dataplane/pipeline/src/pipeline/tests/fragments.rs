//! Fragmented datagrams: every fragment has the destination of the first one.

use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::{Parsed, parse, proto};

use super::lab::{Lab, ROUTER_MAC, service, spec};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const VIP: &str = "203.0.113.5:53";
const VIP6: &str = "[2001:db8:1::5]:53";

fn lab(mode: ForwardingMode) -> Lab {
    Lab::new(vec![
        service(mode, Protocol::Udp, VIP, &["10.0.0.1:53", "10.0.0.2:53"]),
        service(mode, Protocol::Udp, VIP6, &["[fd00::1]:53", "[fd00::2]:53"]),
    ])
}

fn cut(whole: Builder, id: u32) -> Vec<Vec<u8>> {
    builder::fragments(&whole.dont_fragment(false).mac(ROUTER_MAC, GATEWAY_MAC).build(), id, 512)
}

#[test]
fn ipv6_fragments_of_a_datagram_with_extension_headers_follow_their_first() {
    for mode in ForwardingMode::ALL {
        for extension in [proto::DESTINATION_OPTIONS, proto::ROUTING, proto::AH] {
            if extension == proto::AH && mode.changes_addresses() {
                // The authentication header covers the addresses, so such packets are not translated.
                continue;
            }
            let mut lab = lab(mode);
            // The extension header follows the fragment header, which names it in every fragment.
            let whole = Builder::udp("[2001:db8::7]:40000", VIP6).extension(extension, &[]);
            let parts = cut(whole.payload_len(1400), 0x1234_5678);
            assert!(parts.len() > 2 && parts[1][54] == extension);
            let first = lab.receive(&parts[0]);
            first.sent(TransmitReason::Forward);
            for part in &parts[1..] {
                let result = lab.receive(part);
                let sent = result.sent(TransmitReason::Forward);
                assert_eq!(sent[..12], first.frame[..12], "{mode}: to the same station");
            }
        }
    }
}

#[test]
fn ipv4_fragments_of_another_protocol_with_equal_id_do_not_follow() {
    let mut lab = lab(ForwardingMode::DsrL2);
    let parts = cut(Builder::udp("198.51.100.7:40000", VIP).payload_len(1200), 77);
    lab.receive(&parts[0]).sent(TransmitReason::Forward);
    let other = Builder::ip(super::lab::ip("198.51.100.7"), super::lab::ip("203.0.113.5"), proto::TCP);
    let other = cut(other.payload_len(1200), 77);
    assert_eq!(lab.receive(&other[1]).refused(), Refusal::FragmentUnknown);
}

#[test]
fn spoofed_first_fragments_do_not_evict_a_datagram_in_progress() {
    for (from, vip) in [("198.51.100.7:40000", VIP), ("[2001:db8::7]:40000", VIP6)] {
        let mut lab = lab(ForwardingMode::DsrL2);
        let parts = cut(Builder::udp(from, vip).payload_len(1200), 77);
        lab.receive(&parts[0]).sent(TransmitReason::Forward);
        for n in 0..20_000_u32 {
            let source = if from.starts_with('[') {
                format!("[2001:db8:f::{:x}:{:x}]:1", n >> 16, n & 0xffff)
            } else {
                format!("100.64.{}.{}:1", n >> 8 & 0xff, n & 0xff)
            };
            let spoofed = cut(Builder::udp(source.as_str(), vip).payload_len(600), n);
            lab.receive(&spoofed[0]);
        }
        for part in &parts[1..] {
            lab.receive(part).sent(TransmitReason::Forward);
        }
    }
}

#[test]
fn later_fragments_share_the_verdict_of_a_refused_or_punted_first_one() {
    let mut lab = lab(ForwardingMode::FullNat);
    let fragments = |to: &str, id| cut(Builder::udp("198.51.100.7:40000", to).payload_len(1200), id);
    // Only the first fragment is answered.
    let parts = fragments("203.0.113.5:54", 8);
    lab.receive(&parts[0]).sent(TransmitReason::NoService);
    assert_eq!(lab.receive(&parts[1]).refused(), Refusal::NoService);
    lab.change(|spec| spec.network.policy.reject_unserved_ports = false);
    for (to, verdict) in [
        ("203.0.113.5:54", Refusal::NoService.into()),
        ("10.0.0.253:5000", Refusal::NoSnatFlow.into()),
        ("10.0.0.254:5000", Verdict::Punt(PuntReason::Local)),
        ("192.0.2.99:5000", Verdict::Punt(PuntReason::NotOurs)),
    ] {
        for part in fragments(to, 9) {
            let result = lab.receive(&part);
            assert_eq!((result.verdict, result.waits_for), (verdict, None), "{to}");
        }
    }
    lab.change(|spec| spec.services[0].backends.clear());
    let parts = fragments(VIP, 10);
    assert_eq!(
        lab.receive(&parts[0]).verdict,
        Verdict::Transmit { interface: 0, why: TransmitReason::NoEndpoints }
    );
    assert_eq!(lab.receive(&parts[1]).refused(), Refusal::NoEndpoints);
}

#[test]
fn later_fragments_of_a_client_that_is_no_longer_admitted_are_dropped() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode);
        let parts = cut(Builder::udp("198.51.100.7:40000", VIP).payload_len(1400), 78);
        lab.receive(&parts[0]).sent(TransmitReason::Forward);
        lab.change(|spec| {
            let mut closed = (*spec.services[0]).clone();
            closed.source_ranges = Some(["192.0.2.0/24".parse().unwrap()].into_iter().collect());
            spec.services[0] = closed.into();
        });
        assert_eq!(lab.receive(&parts[1]).refused(), Refusal::SourceRange, "{mode}");
    }
}

#[test]
fn a_fragment_that_arrives_before_the_first_one_can_be_processed_later() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode);
        let parts = cut(Builder::udp("198.51.100.7:40000", VIP).payload_len(1200), 77);
        for part in parts[1..].iter().rev() {
            let early = lab.receive(part);
            assert_eq!(early.refused(), Refusal::FragmentUnknown);
            assert!(early.waits_for.is_some());
        }
        let first = lab.receive(&parts[0]);
        first.sent(TransmitReason::Forward);
        for part in &parts[1..] {
            let again = lab.receive(part);
            again.sent(TransmitReason::Forward);
            assert_eq!((again.waits_for, &again.frame[..12]), (None, &first.frame[..12]), "{mode}");
        }
        assert_eq!(first.first_fragments.len(), 1);
    }
}

#[test]
fn fragments_wait_for_their_next_hop_like_their_first_one() {
    let mut without_neighbors = spec();
    without_neighbors.network.neighbors.clear();
    without_neighbors.services =
        vec![service(ForwardingMode::DsrL2, Protocol::Udp, VIP, &["10.0.0.1:53"]).into()];
    let mut lab = Lab::with_spec(without_neighbors);
    for part in cut(Builder::udp("198.51.100.7:40000", VIP).payload_len(1200), 77) {
        assert_eq!(lab.receive(&part).refused(), Refusal::NeighborUnresolved);
    }
}

#[test]
fn oversized_ipv4_without_df_is_sent_in_fragments_that_fit() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode);
        // Ethernet frames of 1,500 bytes fit every path except the tunnel.
        for len in [1472, 1473, 1700] {
            let fits = len <= 1472 && !mode.is_tunnel();
            let whole = Builder::udp("198.51.100.7:40000", VIP).payload_len(len);
            let result = lab.send(whole.clone().dont_fragment(false));
            result.sent(TransmitReason::Forward);
            assert_eq!(result.fragments.is_empty(), fits, "{mode} {len}");
            for fragment in &result.fragments {
                let Ok(Parsed::Ip(h)) = parse(fragment) else { panic!("not sound") };
                assert!(h.ip_len() <= 1500 && fragment[..12] == result.frame[..12], "{mode} {len}");
            }
            let result = lab.send(whole);
            let why = if fits { TransmitReason::Forward } else { TransmitReason::PacketTooBig };
            assert!(result.fragments.is_empty());
            result.sent(why);
        }
        let whole = Builder::udp("[2001:db8::7]:40000", VIP6).payload_len(1473);
        lab.send(whole).sent(TransmitReason::PacketTooBig);
    }
}
