//! `nat` for a backend that is its own client: its answers return only if it doesn't see its own address.

use std::net::SocketAddr;

use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};
use tidegate_wire::tcp::flags;
use tidegate_wire::{Headers, Parsed, ethernet, parse, quote};

use super::lab::{Lab, backend_mac, ip, service, spec, spec_with};
use crate::forward::snat_ports::Steering;
use crate::pipeline::{Arrival, FlowNote};
use crate::testing::builder::{self, Builder, GATEWAY_MAC};

/// Backend, VIP and SNAT address, in each family.
const ENDS: [[&str; 3]; 2] =
    [["10.0.0.1:8080", "203.0.113.5:80", "10.0.0.253"], ["[fd00::1]:8080", "[2001:db8:1::5]:80", "fd00::fd"]];

fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("{other:?}"),
    }
}

fn from(h: &Headers) -> SocketAddr {
    SocketAddr::new(h.src.ip(), h.src_port)
}

fn to(h: &Headers) -> SocketAddr {
    SocketAddr::new(h.dst.ip(), h.dst_port)
}

#[test]
fn a_backend_that_is_its_own_client_is_masqueraded_in_both_directions() {
    for [backend, vip, snat] in ENDS {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut lab = Lab::new(vec![service(ForwardingMode::Nat, protocol, vip, &[backend])]);
            let server: SocketAddr = backend.parse().unwrap();
            let client = SocketAddr::new(server.ip(), 40_000);
            let packet = |src: SocketAddr, dst: SocketAddr, segment| match protocol {
                Protocol::Tcp => Builder::tcp(src, dst).flags(segment),
                _ => Builder::udp(src, dst),
            };
            let vip: SocketAddr = vip.parse().unwrap();
            let there = lab.send(packet(client, vip, flags::SYN));
            let h = headers(there.sent(TransmitReason::Forward));
            assert_eq!((from(&h).ip(), to(&h)), (ip(snat), server));
            assert_eq!(ethernet::destination(&there.frame), backend_mac(1));
            let local = from(&h);

            let back = lab.send(packet(server, local, flags::SYN | flags::ACK));
            let h = headers(back.sent(TransmitReason::Reply));
            assert_eq!((from(&h), to(&h)), (vip, client));

            let again = lab.send(packet(client, vip, flags::ACK));
            let h = headers(again.sent(TransmitReason::Forward));
            assert_eq!((from(&h), to(&h), again.note.flow), (local, server, FlowNote::Known));

            // The clients of other backends keep their addresses.
            let other_client: SocketAddr =
                if vip.is_ipv4() { "198.51.100.7:1" } else { "[2001:db8::7]:1" }.parse().unwrap();
            let other = lab.send(packet(other_client, vip, flags::SYN));
            assert_eq!(from(&headers(other.sent(TransmitReason::Forward))), other_client);
        }
    }
}

#[test]
fn without_a_snat_address_of_the_family_it_is_refused() {
    for ([backend, vip, _], others) in ENDS.into_iter().zip([["fd00::fd"], ["10.0.0.253"]]) {
        let services = vec![service(ForwardingMode::Nat, Protocol::Udp, vip, &[backend]).into()];
        let mut lab =
            Lab::with_spec(spec_with(services, |network| network.snat_addresses = others.map(ip).to_vec()));
        let client = SocketAddr::new(backend.parse::<SocketAddr>().unwrap().ip(), 40_000);
        assert_eq!(lab.send(Builder::udp(client, vip)).refused(), Refusal::Hairpin);
        assert_eq!(lab.pipeline.flows().live(), 0);
    }
}

#[test]
fn errors_and_fragments_of_a_masqueraded_flow_follow_it() {
    let [backend, vip, snat] = ENDS[0];
    let mut lab = Lab::new(vec![service(ForwardingMode::Nat, Protocol::Udp, vip, &[backend])]);
    let question = || Builder::udp("10.0.0.1:40000", vip);
    let local = from(&headers(lab.send(question()).sent(TransmitReason::Forward)));
    let quoted = Builder::udp(vip, "10.0.0.1:40000").packet();
    let error = Builder::icmp("10.0.0.9", "203.0.113.5", 3, 4, [0, 0, 5, 0]).payload(&quoted);
    let result = lab.send(error);
    let sent = result.sent(TransmitReason::IcmpError);
    let h = headers(sent);
    let quote = quote::parse(sent, &h).unwrap().unwrap();
    assert_eq!((quote.src.ip(), quote.src_port), (ip("10.0.0.1"), 8080));
    assert_eq!((quote.dst.ip(), quote.dst_port), (local.ip(), local.port()));

    let whole = question().dont_fragment(false).payload_len(600).mac(backend_mac(1), GATEWAY_MAC).build();
    for part in builder::fragments(&whole, 7, 256) {
        let result = lab.receive(&part);
        assert_eq!(headers(result.sent(TransmitReason::Forward)).src.ip(), ip(snat));
    }
}

#[test]
fn a_masqueraded_reply_reaches_the_worker_that_owns_its_flow() {
    let [backend, vip, _] = ENDS[0];
    let services = vec![service(ForwardingMode::Nat, Protocol::Tcp, vip, &[backend]).into()];
    let spec = SnapshotSpec { services, ..spec() };
    let mut workers = [0, 1].map(|n| Lab::worker(spec.clone(), n, 2, Steering::Partition));
    for port in 40_000..40_010u16 {
        let syn =
            Builder::tcp((ip("10.0.0.1"), port), vip).flags(flags::SYN).mac(backend_mac(1), GATEWAY_MAC);
        let mut pass = |frame: &[u8]| {
            let first = workers[0].receive(frame);
            match first.verdict {
                Verdict::HandOver(1) => workers[1].receive_as(Arrival::HandedOver(0, 0), frame),
                _ => first,
            }
        };
        let local = from(&headers(pass(&syn.build()).sent(TransmitReason::Forward)));
        let back =
            Builder::tcp(backend, local).flags(flags::SYN | flags::ACK).mac(backend_mac(1), GATEWAY_MAC);
        let h = headers(pass(&back.build()).sent(TransmitReason::Reply)).dst_port;
        assert_eq!(h, port);
    }
}
