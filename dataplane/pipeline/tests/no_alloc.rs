//! Measures that no frame causes an allocation. A counting allocator surrounds `Pipeline::process` and `Pipeline::age`,
//! for every mode and both families, with new and known flows, replies, answers and refusals.
//!
//! The frames, their buffers and the output are created before the measurement, as in a driver.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::pipeline::{Arrival, BurstOutput, View};
use tidegate_pipeline::testing::builder::{self, Builder, GATEWAY_MAC};
use tidegate_pipeline::testing::lab::{Lab, ROUTER_MAC, ip, service};
use tidegate_spec::limits::BURST;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{ForwardingMode, PassiveHealth, Protocol, ServiceSpec};
use tidegate_wire::sctp::chunk;
use tidegate_wire::tcp::flags;
use tidegate_wire::{arp, ndp};

const VIPS: [&str; 2] = ["203.0.113.5:80", "[2001:db8:1::5]:80"];

/// Processes bursts. Returns the number of allocations and the number of transmitted frames.
fn allocations(lab: &mut Lab, frames: &[Vec<u8>]) -> (u64, usize) {
    let mut bursts: Vec<Vec<MemoryFrame>> = frames
        .chunks(BURST)
        .map(|burst| burst.iter().map(|frame| MemoryFrame::new(frame)).collect())
        .collect();
    let mut out = BurstOutput::default();
    let mut sent = 0;
    let counted = allocation_counter::measure(|| {
        for burst in &mut bursts {
            let view = View { snapshot: &lab.snapshot, neighbors: &lab.neighbors, tallies: &lab.tallies };
            lab.pipeline.process(view, lab.now, Arrival::Wire(0), burst, &mut out);
            lab.pipeline.age(lab.now);
            for &verdict in &out.verdicts {
                lab.counters.record(verdict);
                sent += usize::from(matches!(verdict, Verdict::Transmit { .. }));
            }
        }
    });
    assert!(bursts.iter().flatten().all(|frame| !frame.bytes().is_empty()));
    (counted.count_total, sent)
}

/// Packets of `count` clients of a service on `vip`, each from its own port.
fn clients(vip: &str, protocol: Protocol, flags: u8, count: u16) -> Vec<Vec<u8>> {
    let vip: SocketAddr = vip.parse().expect("a VIP with its port");
    let client = ip(if vip.is_ipv4() { "198.51.100.7" } else { "2001:db8::7" });
    let packet = |port| match protocol {
        Protocol::Tcp => Builder::tcp((client, port), vip).flags(flags),
        Protocol::Udp => Builder::udp((client, port), vip),
        Protocol::Sctp if flags == flags::SYN => Builder::sctp_init((client, port), vip, 7),
        Protocol::Sctp if flags == flags::RST => {
            Builder::sctp((client, port), vip).chunk(chunk::ABORT, 0, &[])
        }
        Protocol::Sctp => Builder::sctp((client, port), vip).chunk(chunk::DATA, 3, &[0; 16]),
    };
    (0..count).map(|n| packet(20_000 + n).mac(ROUTER_MAC, GATEWAY_MAC).build()).collect()
}

fn backends(vip: &str, port: u16) -> Vec<String> {
    let host = |n| if vip.starts_with('[') { format!("[fd00::{n}]") } else { format!("10.0.0.{n}") };
    (1..=3).map(|n| format!("{}:{port}", host(n))).collect()
}

fn with_backends(mode: ForwardingMode, protocol: Protocol, vip: &str) -> ServiceSpec {
    let backends = backends(vip, if mode.is_dsr() { 80 } else { 8080 });
    service(mode, protocol, vip, &backends.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn flows_start_continue_and_end_without_an_allocation_in_every_mode() {
    for mode in ForwardingMode::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for vip in VIPS {
                for affinity in [None, Some(Duration::from_secs(100))] {
                    let spec = ServiceSpec { affinity, ..with_backends(mode, protocol, vip) };
                    let mut lab = Lab::new(vec![spec]);
                    for flags in [flags::SYN, flags::ACK, flags::FIN | flags::ACK, flags::RST] {
                        let frames = clients(vip, protocol, flags, 320);
                        let (count, sent) = allocations(&mut lab, &frames);
                        assert_eq!((count, sent), (0, 320), "{mode} {protocol} {vip} {affinity:?}");
                        lab.wait(Duration::from_secs(1));
                    }
                }
            }
        }
    }
}

#[test]
fn replies_are_translated_without_an_allocation() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        for vip in VIPS {
            let mut lab = Lab::new(vec![with_backends(mode, Protocol::Tcp, vip)]);
            let replies: Vec<Vec<u8>> = clients(vip, Protocol::Tcp, flags::SYN, 64)
                .iter()
                .map(|frame| {
                    let there = lab.receive(frame);
                    let Ok(tidegate_wire::Parsed::Ip(h)) = tidegate_wire::parse(&there.frame) else {
                        panic!("{there:?}")
                    };
                    Builder::tcp((h.dst.ip(), h.dst_port), (h.src.ip(), h.src_port))
                        .flags(flags::SYN | flags::ACK)
                        .build()
                })
                .collect();
            assert_eq!(allocations(&mut lab, &replies), (0, 64), "{mode} {vip}");
        }
    }
}

#[test]
fn refused_and_repeated_connections_are_retried_without_an_allocation() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        for vip in VIPS {
            let passive_health = Some(PassiveHealth { share_max: 100, ..PassiveHealth::default() });
            let spec = ServiceSpec { passive_health, ..with_backends(mode, Protocol::Tcp, vip) };
            let mut lab = Lab::new(vec![spec]);
            let syns = clients(vip, Protocol::Tcp, flags::SYN, 64);
            let refusals: Vec<Vec<u8>> = syns
                .iter()
                .map(|frame| {
                    let there = lab.receive(frame);
                    let Ok(tidegate_wire::Parsed::Ip(h)) = tidegate_wire::parse(&there.frame) else {
                        panic!("{there:?}")
                    };
                    Builder::tcp((h.dst.ip(), h.dst_port), (h.src.ip(), h.src_port))
                        .flags(flags::RST | flags::ACK)
                        .seq_ack(0, 2)
                        .build()
                })
                .collect();
            assert_eq!(allocations(&mut lab, &refusals), (0, 64), "{mode} {vip}");
            assert_eq!(lab.counters.transmits(TransmitReason::Retried), 64, "{mode} {vip}");
            lab.wait(Duration::from_secs(1));
            assert_eq!(allocations(&mut lab, &syns), (0, 64), "{mode} {vip}");
        }
    }
}

#[test]
fn a_full_table_and_a_flood_allocate_nothing() {
    for mode in ForwardingMode::ALL {
        let mut lab = Lab::new(vec![with_backends(mode, Protocol::Udp, VIPS[0])]).with_entries(64);
        let frames = clients(VIPS[0], Protocol::Udp, 0, 2048);
        let (count, sent) = allocations(&mut lab, &frames);
        assert_eq!(count, 0, "{mode}");
        assert!(sent >= 64, "{mode}: {sent}");
        let again = [frames.clone(), frames].concat();
        assert_eq!(allocations(&mut lab, &again).0, 0, "{mode}");
    }
}

#[test]
fn answers_fragments_and_refusals_allocate_nothing() {
    let mut lab = Lab::new(vec![
        with_backends(ForwardingMode::DsrL2, Protocol::Udp, VIPS[0]),
        service(ForwardingMode::DsrL2, Protocol::Tcp, VIPS[0], &[]),
        service(ForwardingMode::DsrL2, Protocol::Tcp, VIPS[1], &[]),
    ]);
    let (c4, c6) = ("198.51.100.7:4000", "[2001:db8::7]:4000");
    let [vip4, vip6] = VIPS.map(|vip| vip.parse::<SocketAddr>().expect("a VIP with its port").ip());
    let big = Builder::udp(c4, VIPS[0]).dont_fragment(false).payload_len(1400).build();
    let quoted = Builder::udp(VIPS[0], c4).packet();
    let mut frames = vec![
        arp::request(ROUTER_MAC, [10, 0, 0, 250].into(), [203, 0, 113, 5].into(), None, None).to_vec(),
        ndp::solicitation(
            ROUTER_MAC,
            "fd00::fa".parse().unwrap(),
            "2001:db8:1::5".parse().unwrap(),
            None,
            None,
        )
        .to_vec(),
        Builder::echo_request(ip("198.51.100.7"), vip4, 1, 1).payload_len(56).build(),
        Builder::echo_request(ip("2001:db8::7"), vip6, 1, 1).payload_len(56).build(),
        Builder::tcp(c4, VIPS[0]).flags(flags::SYN).build(),
        Builder::tcp(c6, VIPS[1]).flags(flags::SYN).build(),
        Builder::udp(c4, VIPS[0]).ttl(1).build(),
        Builder::udp(c4, VIPS[0]).payload_len(1600).build(),
        Builder::icmp(ip("192.0.2.1"), vip4, 3, 4, [0, 0, 5, 0]).payload(&quoted).build(),
        Builder::udp(c4, "203.0.113.5:81").build(),
        Builder::udp(c4, VIPS[0]).ip_checksum(1).build(),
        Builder::udp("10.0.0.7:1", "10.0.0.254:2").build(),
    ];
    frames.extend(builder::fragments(&big, 9, 512));
    let (count, sent) = allocations(&mut lab, &frames);
    assert_eq!(count, 0);
    assert_eq!(sent, frames.len() - 2, "all but a bad checksum and a punted frame");
}
