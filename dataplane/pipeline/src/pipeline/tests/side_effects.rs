//! Side effects of a packet: no bytes behind it in the sent frame, no flow for a dropped packet, and notes that name
//! its service and backend.

use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{ForwardingMode, Protocol, ServiceSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, parse};

use super::lab::{Lab, ROUTER_MAC, ip, service};
use crate::pipeline::FlowNote;
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

const ENDS: [[&str; 3]; 2] = [
    ["198.51.100.7:40000", "203.0.113.5:53", "10.0.0.1:53"],
    ["[2001:db8::7]:40000", "[2001:db8:1::5]:53", "[fd00::1]:53"],
];

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

fn one(mode: ForwardingMode, protocol: Protocol, [_, vip, backend]: [&str; 3]) -> ServiceSpec {
    service(mode, protocol, vip, &[backend])
}

/// The number of bytes behind the packet in a frame.
fn trailer(frame: &[u8]) -> usize {
    frame.len() - usize::from(headers(frame).ip_end)
}

#[test]
fn bytes_beyond_the_packet_are_cut_in_every_mode_and_direction() {
    for mode in ForwardingMode::ALL {
        for ends in ENDS {
            let [client, vip, backend] = ends;
            for payload in [0, 100, 1380] {
                let mut lab = Lab::new(vec![one(mode, Protocol::Udp, ends)]);
                let there = lab.send(Builder::udp(client, vip).payload_len(payload).trailer(200));
                let h = headers(there.sent(TransmitReason::Forward));
                assert_eq!(trailer(&there.frame), 0, "{mode}: {payload} bytes");
                if mode.is_dsr() {
                    continue;
                }
                let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
                let back = lab.send(Builder::udp(backend, local).payload_len(payload).trailer(200));
                back.sent(TransmitReason::Reply);
                assert_eq!(trailer(&back.frame), 0, "{mode}: {payload} bytes back");
            }
        }
    }
}

#[test]
fn a_frame_with_a_trailer_never_exceeds_the_link() {
    for mode in [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat] {
        let mut lab = Lab::new(vec![one(mode, Protocol::Udp, ENDS[0])]);
        let full = Builder::udp(ENDS[0][0], ENDS[0][1]).payload_len(1472).trailer(4);
        assert_eq!(lab.send(full).sent(TransmitReason::Forward).len(), 14 + 1500, "{mode}");
    }
}

#[test]
fn the_padding_of_a_short_frame_stays() {
    // The next sender would have to add it again, because Ethernet has no shorter frames.
    for mode in [ForwardingMode::DsrL2, ForwardingMode::Nat, ForwardingMode::FullNat] {
        let mut lab = Lab::new(vec![one(mode, Protocol::Udp, ENDS[0])]);
        let short = Builder::udp(ENDS[0][0], ENDS[0][1]).trailer(18);
        assert_eq!(lab.send(short).sent(TransmitReason::Forward).len(), 60, "{mode}");
    }
}

#[test]
fn an_echo_reply_has_no_trailer() {
    let mut lab = Lab::new(vec![one(ForwardingMode::DsrL2, Protocol::Udp, ENDS[0])]);
    let ping = Builder::echo_request(ip("198.51.100.7"), ip("203.0.113.5"), 7, 1).payload_len(80).trailer(90);
    let result = lab.send(ping);
    result.sent(TransmitReason::EchoReply);
    assert_eq!(trailer(&result.frame), 0);
}

#[test]
fn a_packet_whose_hop_limit_ends_creates_no_flow() {
    for mode in ForwardingMode::ALL {
        for ends in ENDS {
            let [client, vip, _] = ends;
            let affine = |protocol| ServiceSpec {
                affinity: Some(std::time::Duration::from_secs(100)),
                ..one(mode, protocol, ends)
            };
            let mut lab = Lab::new(vec![affine(Protocol::Tcp), affine(Protocol::Udp)]);
            for ttl in [0, 1] {
                for packet in [Builder::tcp(client, vip).flags(flags::SYN), Builder::udp(client, vip)] {
                    let result = lab.send(packet.ttl(ttl));
                    result.sent(TransmitReason::TtlExceeded);
                    assert_eq!(result.note.flow, FlowNote::None);
                }
            }
            assert_eq!(lab.pipeline.flows().live(), 0, "{mode}");
            lab.send(Builder::udp(client, vip).ttl(2)).sent(TransmitReason::Forward);
            assert_eq!(lab.pipeline.flows().live(), 2, "{mode}: a flow and its client's affinity");
        }
    }
}

#[test]
fn notes_on_icmp_errors_name_the_service_and_backend_of_the_flow() {
    for mode in ForwardingMode::ALL {
        for ends in ENDS {
            let [client, vip, backend] = ends;
            let mut lab = Lab::new(vec![one(mode, Protocol::Udp, ends)]);
            let there = lab.send(Builder::udp(client, vip));
            let h = headers(there.sent(TransmitReason::Forward));
            let about_answer = (vip, Builder::udp(vip, client).packet());
            let sent = std::net::SocketAddr::new(h.src.ip(), h.src_port).to_string();
            let about_request = (sent.as_str(), Builder::udp(sent.as_str(), backend).packet());
            let errors = if mode.is_dsr() { vec![about_answer] } else { vec![about_answer, about_request] };
            for (to, quoted) in errors {
                let to = to.parse::<std::net::SocketAddr>().unwrap().ip();
                let error = match to {
                    std::net::IpAddr::V4(_) => Builder::icmp("192.0.2.1", to, 3, 4, [0, 0, 5, 0]),
                    std::net::IpAddr::V6(_) => Builder::icmp("2001:db8:ffff::1", to, 2, 0, [0, 0, 5, 0]),
                };
                let result = lab.send(error.payload(&quoted).mac(ROUTER_MAC, GATEWAY_MAC));
                result.sent(TransmitReason::IcmpError);
                assert_eq!(
                    result.note,
                    crate::pipeline::Note { flow: FlowNote::Known, ..there.note },
                    "{mode}"
                );
            }
        }
    }
}

#[test]
fn notes_on_later_fragments_name_the_service_and_backend() {
    for mode in ForwardingMode::ALL {
        for ends in ENDS {
            let [client, vip, backend] = ends;
            let mut lab = Lab::new(vec![one(mode, Protocol::Udp, ends)]);
            let parts = |b: Builder, id| {
                let whole = b.dont_fragment(false).payload_len(1200).mac(ROUTER_MAC, GATEWAY_MAC).build();
                builder::fragments(&whole, id, 512)
            };
            let results = lab.receive_burst(&parts(Builder::udp(client, vip), 7));
            let h = headers(results[0].sent(TransmitReason::Forward));
            let known = crate::pipeline::Note { flow: FlowNote::Known, ..results[0].note };
            assert!(known.service.is_some() && known.backend.is_some());
            for result in &results[1..] {
                result.sent(TransmitReason::Forward);
                assert_eq!(result.note, known, "{mode}");
            }
            if mode.is_dsr() {
                continue;
            }
            let local = std::net::SocketAddr::new(h.src.ip(), h.src_port);
            for part in parts(Builder::udp(backend, local), 8) {
                let result = lab.receive(&part);
                result.sent(TransmitReason::Reply);
                assert_eq!(result.note, known, "{mode}: back");
            }
        }
    }
}
