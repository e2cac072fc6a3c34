//! The limits on answers: one sender or one kind of packet cannot use up the limit of others.

use tidegate_spec::verdict::{AnswerKind, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::tcp::flags;

use super::lab::{Lab, ROUTER_MAC, service};
use crate::testing::builder::{Builder, GATEWAY_MAC};

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "203.0.113.5:80";
const CLIENT6: &str = "[2001:db8::7]:40000";
const VIP6: &str = "[2001:db8:1::5]:80";

fn lab() -> Lab {
    Lab::new(vec![
        service(ForwardingMode::DsrIpip, Protocol::Tcp, VIP, &["10.0.0.1:80"]),
        service(ForwardingMode::DsrIpip, Protocol::Tcp, VIP6, &["[fd00::1]:80"]),
        service(ForwardingMode::DsrL2, Protocol::Tcp, "203.0.113.6:80", &[]),
        service(ForwardingMode::DsrL2, Protocol::Udp, "203.0.113.6:53", &[]),
    ])
}

fn too_big(client: &str, vip: &str) -> Builder {
    Builder::tcp(client, vip).flags(flags::ACK).payload_len(1450)
}

fn expiring(client: &str, vip: &str) -> Builder {
    Builder::tcp(client, vip).flags(flags::ACK).ttl(1)
}

#[test]
fn expiring_packets_do_not_stop_path_mtu_discovery() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
        let mut lab = lab();
        for _ in 0..300 {
            lab.send(expiring(client, vip));
        }
        assert_eq!(lab.send(expiring(client, vip)).refused(), Refusal::TtlExceeded, "over the limit");
        let big = if vip == VIP { too_big(client, vip) } else { too_big(client, vip).payload_len(1420) };
        lab.send(big).sent(TransmitReason::PacketTooBig);
    }
}

#[test]
fn no_kind_of_answer_uses_up_another() {
    let query = |kind| match kind {
        AnswerKind::PacketTooBig => too_big(CLIENT, VIP),
        AnswerKind::TimeExceeded => expiring(CLIENT, VIP),
        AnswerKind::Reset => Builder::tcp(CLIENT, "203.0.113.6:80").flags(flags::SYN),
        AnswerKind::Unreachable => Builder::udp(CLIENT, "203.0.113.6:53"),
    };
    let answered = |lab: &mut Lab, kind| matches!(lab.send(query(kind)).verdict, Verdict::Transmit { .. });
    for used_up in AnswerKind::ALL {
        let mut lab = lab();
        assert!((0..300).filter(|_| answered(&mut lab, used_up)).count() < 300, "{used_up}");
        for &other in AnswerKind::ALL.iter().filter(|&&other| other != used_up) {
            assert!(answered(&mut lab, other), "{other} after a flood of {used_up}");
        }
        assert!(lab.pipeline.suppressed_answers()[used_up.index()] >= 100);
    }
}

#[test]
fn one_source_prefix_does_not_use_up_the_answers_to_another() {
    for (vip, flooding, other) in
        [(VIP, CLIENT, "198.51.101.7:40000"), (VIP6, CLIENT6, "[2001:db8:0:100::7]:40000")]
    {
        let mut lab = lab();
        for _ in 0..3_000 {
            lab.send(expiring(flooding, vip));
        }
        lab.send(expiring(other, vip)).sent(TransmitReason::TtlExceeded);
    }
}

#[test]
fn a_packet_that_may_not_be_answered_costs_no_token() {
    let mut lab = lab();
    lab.send(Builder::tcp(CLIENT, VIP).flags(flags::SYN)).sent(TransmitReason::Forward);
    // An ICMP error must not be answered with another error (RFC 1122 section 3.2.2).
    let quoted = Builder::tcp(VIP, CLIENT).packet();
    for _ in 0..300 {
        let error = Builder::icmp("198.51.100.1", "203.0.113.5", 3, 3, [0; 4]).payload(&quoted);
        assert_eq!(lab.send(error.ttl(1)).refused(), Refusal::TtlExceeded);
    }
    let unicast = expiring(CLIENT, VIP).mac(ROUTER_MAC, GATEWAY_MAC).build();
    lab.receive(&unicast).sent(TransmitReason::TtlExceeded);
    // A reset must not be answered with a reset.
    for _ in 0..300 {
        let reset = Builder::tcp(CLIENT, "203.0.113.6:80").flags(flags::RST);
        assert_eq!(lab.send(reset).refused(), Refusal::NoEndpoints);
    }
    lab.send(Builder::tcp(CLIENT, "203.0.113.6:80").flags(flags::SYN)).sent(TransmitReason::NoEndpoints);
    assert_eq!(lab.pipeline.suppressed_answers(), &[0; AnswerKind::COUNT]);
}
