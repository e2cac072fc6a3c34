//! IPv4 packets without DF that don't fit their link: they are fragmented within a limit, or answered.

use tidegate_spec::limits::FRAGMENTED;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, NetworkSpec, Protocol, SharedService};
use tidegate_wire::{Fragment, Parsed, parse};

use super::lab::{FrameResult, Lab, ROUTER_MAC, service, spec_with};
use crate::testing::builder::{Builder, GATEWAY_MAC};

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "203.0.113.5:53";

fn lab(mode: ForwardingMode, change: impl FnOnce(&mut NetworkSpec)) -> Lab {
    let services: Vec<SharedService> = vec![service(mode, Protocol::Udp, VIP, &["10.0.0.1:53"]).into()];
    Lab::with_spec(spec_with(services, |network| {
        network.interfaces[0].mtu = 600;
        change(network);
    }))
}

fn send(lab: &mut Lab, dont_fragment: bool) -> FrameResult {
    let whole = Builder::udp(CLIENT, VIP).payload_len(1400).id(77).dont_fragment(dont_fragment);
    lab.receive(&whole.mac(ROUTER_MAC, GATEWAY_MAC).build())
}

#[test]
fn a_packet_without_df_is_fragmented_in_every_mode_and_every_part_fits() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, |_| {});
        let result = send(&mut lab, false);
        result.sent(TransmitReason::Forward);
        assert!(result.fragments.len() >= 3, "{mode}");
        for fragment in &result.fragments {
            let Ok(Parsed::Ip(h)) = parse(fragment) else { panic!("{mode}: a valid packet") };
            assert!(h.ip_len() <= 600, "{mode}");
            let in_tunnel = mode.is_dsr() && mode != ForwardingMode::DsrL2;
            assert!(
                in_tunnel
                    || matches!(h.fragment, Fragment::First { id: 77 } | Fragment::Later { id: 77, .. })
            );
        }
    }
}

#[test]
fn without_fragment_ipv4_a_packet_without_df_is_answered() {
    for mode in ForwardingMode::ALL {
        let mut lab = lab(mode, |network| network.policy.fragment_ipv4 = false);
        for dont_fragment in [false, true] {
            let result = send(&mut lab, dont_fragment);
            assert!(result.fragments.is_empty());
            let Ok(Parsed::Ip(h)) = parse(result.sent(TransmitReason::PacketTooBig)) else {
                panic!("an ICMP error")
            };
            assert_eq!((h.icmp_type, h.icmp_code), (3, 4), "{mode}");
        }
    }
}

#[test]
fn a_flood_of_packets_that_need_fragments_is_limited() {
    let mut lab = lab(ForwardingMode::DsrL2, |_| {});
    let (mut fragmented, mut refused) = (0, 0);
    for _ in 0..FRAGMENTED.burst + 1_000 {
        match send(&mut lab, false).verdict {
            Verdict::Transmit { why: TransmitReason::Forward, .. } => fragmented += 1,
            Verdict::Transmit { why: TransmitReason::PacketTooBig, .. } => refused += 1,
            verdict if verdict == Refusal::TooBig.into() => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((FRAGMENTED.burst..=FRAGMENTED.burst + 1).contains(&fragmented), "{fragmented}");
    assert!(refused >= 999);
    lab.wait(std::time::Duration::from_millis(1));
    send(&mut lab, false).sent(TransmitReason::Forward);
}
