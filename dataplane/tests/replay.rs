//! Replay is deterministic: a capture always results in the same verdicts and the same output.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::num::NonZeroU32;

use common::*;
use tidegate_capture::{Reader, Writer};
use tidegate_dataplane::replay::{ASSUMED_MAC, FlowTable, ReplayError, Replayed, Summary, replay};
use tidegate_pipeline::pipeline::FlowNote;
use tidegate_pipeline::testing::Builder;
use tidegate_pipeline::testing::builder::fragments;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, ForwardingMode, LoadRule, NeighborSpec, Protocol, Scheduler, ServiceLimits,
    ServiceSpec, SnapshotSpec,
};

const VIP_WEIGHTED: &str = "192.0.2.102";

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let frames: Vec<_> = (0..).zip(frames).map(|(ms, frame)| (ms, frame.clone())).collect();
    capture_at(&frames)
}

/// A capture of frames with their arrival times in milliseconds.
fn capture_at(frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (ms, frame) in frames {
        writer.write(1_700_000_000_000_000_000 + ms * 1_000_000, frame).unwrap();
    }
    writer.finish().unwrap()
}

fn run(spec: &SnapshotSpec, input: &[u8]) -> (Vec<Replayed>, Result<Summary, ReplayError>, Vec<u8>) {
    let mut packets = Vec::new();
    let mut writer = Writer::new(Vec::new()).unwrap();
    let summary =
        replay(spec, FlowTable { entries: 1024, service_percent: 50 }, input, &mut writer, |packet| {
            packets.push(packet.clone());
            Ok(())
        });
    (packets, summary, writer.finish().unwrap())
}

#[test]
fn every_packet_gets_its_verdict_with_service_backend_and_flow() {
    let frames = [syn(4000, VIP_L2), syn(4000, VIP_L2), stray(), syn(4000, VIP_FULLNAT), vec![0; 10]];
    let (packets, summary, out) = run(&spec(1), &capture(&frames));
    let summary = summary.unwrap();
    assert_eq!((summary.packets, summary.transmitted, summary.punted, summary.dropped), (5, 3, 1, 1));
    let first = &packets[0];
    assert_eq!(
        (first.n, first.verdict),
        (1, Verdict::Transmit { interface: 0, why: TransmitReason::Forward })
    );
    assert_eq!(first.service.as_deref(), Some("default/direct:http"));
    assert_eq!((first.vip, first.backend), (Some(ip(VIP_L2)), Some("192.0.2.10:80".parse().unwrap())));
    assert_eq!((first.mode, first.flow), (Some(ForwardingMode::DsrL2), FlowNote::New));
    assert_eq!(packets[1].flow, FlowNote::Known);
    assert_eq!(packets[2].verdict, Verdict::Punt(PuntReason::NotIp));
    assert!(packets[2].frames.is_empty() && packets[2].service.is_none());
    assert!(matches!(packets[4].verdict, Verdict::Drop(_)));
    let mut reader = Reader::new(&out[..]).unwrap();
    let mut written = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        written.push((packet.timestamp_ns, packet.data));
    }
    assert_eq!(written.len(), 3);
    assert_eq!(written[1], (1_700_000_000_001_000_000, packets[1].frames[0].clone()));
}

#[test]
fn the_same_capture_gives_the_same_bytes_for_any_order_of_services() {
    let frames: Vec<Vec<u8>> =
        (0..200).map(|n| syn(1024 + n, if n % 2 == 0 { VIP_L2 } else { VIP_FULLNAT })).collect();
    let input = capture(&frames);
    let mut turned = spec(1);
    turned.services.reverse();
    let (packets, _, out) = run(&spec(1), &input);
    assert_eq!(run(&spec(1), &input).2, out);
    let (other, _, other_out) = run(&turned, &input);
    assert_eq!((other, other_out), (packets, out));
}

#[test]
fn neighbours_that_are_not_given_are_assumed_to_be_resolved_and_listed() {
    let mut bare = spec(1);
    let given = std::mem::take(&mut bare.network.neighbors);
    let (packets, summary, _) = run(&bare, &capture(&[syn(4000, VIP_L2)]));
    assert_eq!(packets[0].frames[0][..6], ASSUMED_MAC.0);
    assert_eq!(packets[0].service.as_deref(), Some("default/direct:http"));
    let assumed = summary.unwrap().assumed;
    assert!(assumed.len() == 1 && given.iter().any(|one| assumed.contains(&one.ip)), "{assumed:?}");
    assert_eq!(run(&spec(1), &capture(&[syn(4000, VIP_L2)])).1.unwrap().assumed.len(), 0);
}

#[test]
fn a_file_that_is_not_a_capture_is_refused_with_the_offset() {
    let (_, summary, _) = run(&spec(1), b"not a capture at all, surely");
    assert!(matches!(summary, Err(ReplayError::Input(_))), "{summary:?}");
}

#[test]
fn time_does_not_go_back_with_the_capture() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.write(2_000_000_000, &syn(4000, VIP_L2)).unwrap();
    writer.write(1_000_000_000, &syn(4000, VIP_L2)).unwrap();
    let (packets, summary, _) = run(&spec(1), &writer.finish().unwrap());
    assert_eq!((summary.unwrap().transmitted, packets[1].flow), (2, FlowNote::Known));
}

#[test]
fn early_fragments_are_reported_in_order_and_sent_with_the_first_one() {
    let udp = |name, mode| {
        let tcp = service(VIP_L2, name, mode);
        let key = tidegate_spec::ServiceKey { protocol: Protocol::Udp, ..tcp.key };
        tidegate_spec::ServiceSpec { key, ..tcp }
    };
    let spec = SnapshotSpec { services: vec![udp("direct", ForwardingMode::DsrL2).into()], ..spec(1) };
    let (from, to) = (format!("{CLIENT_IP}:4000"), format!("{VIP_L2}:80"));
    let whole = |len| {
        let whole = Builder::udp(from.as_str(), to.as_str()).dont_fragment(false).payload_len(len);
        whole.mac(CLIENT, GATEWAY).build()
    };
    let (parts, lost) = (fragments(&whole(3000), 7, 1480), fragments(&whole(3000), 8, 1480));
    let frames =
        [parts[2].clone(), lost[1].clone(), parts[1].clone(), parts[0].clone(), stray(), whole(1473)];
    let (packets, summary, out) = run(&spec, &capture(&frames));
    let summary = summary.unwrap();
    assert_eq!((summary.packets, summary.transmitted, summary.punted, summary.dropped), (6, 4, 1, 1));
    let forward = Verdict::Transmit { interface: 0, why: TransmitReason::Forward };
    let expected = [
        forward,
        Refusal::FragmentUnknown.into(),
        forward,
        forward,
        Verdict::Punt(PuntReason::NotIp),
        forward,
    ];
    let verdicts: Vec<_> = packets.iter().map(|packet| packet.verdict).collect();
    assert_eq!(verdicts, expected);
    assert!(packets.iter().enumerate().all(|(at, packet)| packet.n == at as u64 + 1));
    let counts: Vec<usize> = packets.iter().map(|packet| packet.frames.len()).collect();
    assert_eq!(counts, [1, 0, 1, 1, 0, 2], "the last one does not fit the link");
    let mut reader = Reader::new(&out[..]).unwrap();
    let mut written = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        written.push((packet.timestamp_ns % 1_000_000_000 / 1_000_000, packet.data));
    }
    let times: Vec<u64> = written.iter().map(|(time, _)| *time).collect();
    assert_eq!(times, [3, 3, 3, 5, 5], "sent when the first fragment arrived");
    assert_eq!(written[1].1, packets[0].frames[0], "in the order of arrival");
}

/// A DSR service with backends of the weights 1, 2 and 3, in addition to the services of [`spec`].
fn with_weighted_service(scheduler: Scheduler) -> SnapshotSpec {
    let backend = |weight: u16| BackendSpec {
        address: ip(&format!("192.0.2.{}", 10 + weight)),
        port: 80,
        weight,
        state: BackendState::Active,
    };
    let weighted = service(VIP_WEIGHTED, "weighted", ForwardingMode::DsrL2);
    let weighted = ServiceSpec { scheduler, backends: [1, 2, 3].map(backend).to_vec(), ..weighted };
    let mut spec = spec(1);
    let neighbors = weighted.backends.iter().map(|one| NeighborSpec { ip: one.address, mac: BACKEND });
    spec.network.neighbors.extend(neighbors);
    spec.services.push(weighted.into());
    spec
}

#[test]
fn loads_are_counted_whatever_flows_there_were_before() {
    for scheduler in
        [LoadRule::LeastConnections, LoadRule::ShortestDelay, LoadRule::NeverQueue].map(Scheduler::Loads)
    {
        let mut frames = vec![syn(4000, VIP_L2)];
        frames.extend((5000..5600).map(|port| syn(port, VIP_WEIGHTED)));
        let (packets, summary, _) = run(&with_weighted_service(scheduler), &capture(&frames));
        assert_eq!(summary.unwrap().transmitted, 601);
        for weight in [1, 2, 3] {
            let backend = Some(format!("192.0.2.{}:80", 10 + weight).parse().unwrap());
            let flows = packets.iter().filter(|packet| packet.backend == backend).count();
            assert!(flows.abs_diff(100 * weight) <= 3, "{flows} flows for weight {weight} by {scheduler:?}");
        }
    }
}

#[test]
fn flows_that_expire_in_a_silent_capture_free_their_entries() {
    let limits = ServiceLimits { connections: NonZeroU32::new(10), ..ServiceLimits::default() };
    let names =
        [(VIP_L2, "direct", ForwardingMode::DsrL2), (VIP_FULLNAT, "translated", ForwardingMode::FullNat)];
    let service = |(vip, name, mode)| ServiceSpec { limits, ..service(vip, name, mode) }.into();
    let spec = SnapshotSpec { services: names.map(service).to_vec(), ..spec(1) };
    for (vip, ..) in names {
        // The longest times are days after which the timestamps of flows wrap around.
        for (seconds, transmitted) in [(1, 10), (3_600, 20), (30 * 86_400, 20), (50 * 86_400, 20)] {
            let first = (0..15).map(|n| (u64::from(n), syn(4000 + n, vip)));
            let second = (0..15).map(|n| (seconds * 1_000 + u64::from(n), syn(5000 + n, vip)));
            let frames: Vec<_> = first.chain(second).collect();
            let (packets, summary, _) = run(&spec, &capture_at(&frames));
            assert_eq!(summary.unwrap().transmitted, transmitted, "{vip} after {seconds} s");
            let refused =
                packets.iter().filter(|one| one.verdict == Refusal::ServiceConnections.into()).count();
            assert_eq!(refused as u64, 30 - transmitted);
        }
    }
}
