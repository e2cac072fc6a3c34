//! Fragments in the real worker: those that arrive before the first one wait for it, whichever worker receives them,
//! and are dropped after a time limit.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::sync::Arc;

use common::*;
use tidegate_dataplane::drivers::memory::{MemoryPort, MemoryQueue};
use tidegate_dataplane::publish::Publisher;
use tidegate_dataplane::worker::pending_fragments::{FRAMES_MAX, FRAMES_PER_DATAGRAM, WAIT_MAX};
use tidegate_dataplane::worker::{Forwarding, Worker};
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::testing::Builder;
use tidegate_pipeline::testing::builder::fragments;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceKey, SnapshotSpec};
use tidegate_wire::{Fragment, Headers, Parsed, parse};

/// Workers that the test runs step by step, and their time.
struct Bench {
    wire: MemoryPort,
    workers: Vec<Worker<MemoryQueue>>,
    now: Now,
    _publisher: Publisher<Forwarding>,
}

impl Bench {
    fn new(workers: u8) -> Self {
        let udp = |vip, name, mode| {
            let tcp = service(vip, name, mode);
            let key = ServiceKey { protocol: Protocol::Udp, ..tcp.key };
            tidegate_spec::ServiceSpec { key, ..tcp }
        };
        let services = vec![
            udp(VIP_L2, "direct", ForwardingMode::DsrL2).into(),
            udp(VIP_FULLNAT, "translated", ForwardingMode::FullNat).into(),
        ];
        let spec = SnapshotSpec { services, ..spec(1) };
        let bench::Bench { wire, workers, publisher, .. } = bench::Bench::of(&spec, workers, 1024);
        Self { wire, workers, now: Now(1_000_000), _publisher: publisher }
    }

    /// Runs every worker once and returns the frames that they sent.
    fn run_once(&mut self) -> Vec<MemoryFrame> {
        let mut sent = Vec::new();
        for _ in 0..4 {
            for (n, worker) in self.workers.iter_mut().enumerate() {
                worker.run_once(self.now);
                sent.extend(std::iter::from_fn(|| self.wire.take(n)));
            }
        }
        sent
    }

    fn receive(&mut self, worker: usize, frame: &[u8]) -> Vec<MemoryFrame> {
        assert!(self.wire.offer(worker, frame));
        self.run_once()
    }

    fn drops(&self, why: Refusal) -> u64 {
        self.workers.iter().map(|worker| worker.shared().counters.drops(why.into())).sum()
    }
}

fn datagram(port: u16, vip: &str, len: usize, id: u32) -> Vec<Vec<u8>> {
    let (from, to) = (format!("{CLIENT_IP}:{port}"), format!("{vip}:80"));
    let whole = Builder::udp(from.as_str(), to.as_str()).dont_fragment(false).payload_len(len);
    fragments(&whole.mac(CLIENT, GATEWAY).build(), id, 1480)
}

fn headers(frame: &MemoryFrame) -> Headers {
    match parse(frame.bytes()) {
        Ok(Parsed::Ip(headers)) => headers,
        other => panic!("{other:?}"),
    }
}

fn offset(frame: &MemoryFrame) -> u16 {
    match headers(frame).fragment {
        Fragment::Later { offset, .. } => offset,
        _ => 0,
    }
}

#[test]
fn fragments_before_their_first_wait_for_it_and_all_arrive() {
    for vip in [VIP_L2, VIP_FULLNAT] {
        let mut bench = Bench::new(1);
        let parts = datagram(4000, vip, 60_000, 7);
        assert_eq!(parts.len(), 41);
        for part in parts[1..].iter().rev() {
            assert!(bench.receive(0, part).is_empty(), "it waits");
        }
        let sent = bench.receive(0, &parts[0]);
        let mut offsets: Vec<u16> = sent.iter().map(offset).collect();
        offsets.sort_unstable();
        let expected: Vec<u16> = (0..41).map(|n| n * 1480).collect();
        assert_eq!(offsets, expected, "every part once");
        let counters = &bench.workers[0].shared().counters;
        assert_eq!(
            (counters.transmits(TransmitReason::Forward), bench.drops(Refusal::FragmentUnknown)),
            (41, 0)
        );
    }
}

#[test]
fn fragments_that_wait_in_vain_are_dropped_in_time_and_counted_once() {
    let mut bench = Bench::new(1);
    let parts = datagram(4000, VIP_L2, 6000, 7);
    for part in &parts[1..] {
        bench.receive(0, part);
    }
    bench.now = bench.now.plus(WAIT_MAX / 2);
    bench.run_once();
    assert_eq!(bench.drops(Refusal::FragmentUnknown), 0);
    bench.now = bench.now.plus(WAIT_MAX / 2);
    bench.run_once();
    assert_eq!(bench.drops(Refusal::FragmentUnknown), parts.len() as u64 - 1);
    assert_eq!(bench.receive(0, &parts[0]).len(), 1, "the first is forwarded alone");
    bench.run_once();
    assert_eq!(bench.drops(Refusal::FragmentUnknown), parts.len() as u64 - 1);
}

#[test]
fn fragments_to_the_kernel_that_wait_in_vain_are_punted() {
    let mut bench = Bench::new(1);
    for part in &datagram(4000, "192.0.2.2", 3000, 7)[1..] {
        bench.receive(0, part);
    }
    let counters = Arc::clone(bench.workers[0].shared());
    assert_eq!(counters.counters.punts(PuntReason::Local), 0);
    bench.now = bench.now.plus(WAIT_MAX);
    bench.run_once();
    assert_eq!(counters.counters.punts(PuntReason::Local), 2);
}

#[test]
fn waiting_fragments_are_bounded_and_the_newest_datagram_is_kept() {
    let mut bench = Bench::new(1);
    let flood = 2 * FRAMES_MAX;
    for id in 0..flood as u32 {
        bench.receive(0, &datagram(4000, VIP_L2, 2000, 1000 + id)[1]);
    }
    assert_eq!(bench.drops(Refusal::FragmentUnknown), (flood - FRAMES_MAX) as u64);
    let parts = datagram(4000, VIP_L2, 3000, 7);
    assert!(bench.receive(0, &parts[1]).is_empty());
    assert_eq!(bench.receive(0, &parts[0]).len(), 2);
    for _ in 0..=FRAMES_PER_DATAGRAM {
        bench.receive(0, &datagram(4000, VIP_L2, 3000, 8)[1]);
    }
    assert_eq!(bench.receive(0, &datagram(4000, VIP_L2, 3000, 8)[0]).len(), 1 + FRAMES_PER_DATAGRAM);
}

#[test]
fn fragments_at_several_workers_use_one_snat_port_and_one_backend() {
    for vip in [VIP_L2, VIP_FULLNAT] {
        for port in 4000..4020_u16 {
            let mut bench = Bench::new(3);
            let parts = datagram(port, vip, 5000, u32::from(port));
            let mut sent = Vec::new();
            for (n, part) in parts.iter().enumerate() {
                let (at, n) = (n + usize::from(port), if port % 2 == 0 { n } else { parts.len() - 1 - n });
                sent.extend(bench.receive(at % 3, if port % 2 == 0 { part } else { &parts[n] }));
            }
            let mut offsets: Vec<u16> = sent.iter().map(offset).collect();
            offsets.sort_unstable();
            let drops: Vec<_> = tidegate_spec::verdict::DropReason::all()
                .filter(|&why| bench.workers.iter().any(|worker| worker.shared().counters.drops(why) > 0))
                .collect();
            assert_eq!((offsets, drops), (vec![0, 1480, 2960, 4440], Vec::new()), "{vip} {port}");
            let source = headers(&sent[0]).src;
            assert!(sent.iter().all(|frame| headers(frame).src == source));
            assert_eq!(bench.drops(Refusal::FragmentUnknown) + bench.drops(Refusal::HandOverLoop), 0);
        }
    }
}

#[test]
fn a_frame_that_exceeds_its_links_mtu_is_fragmented_and_counted_once() {
    let mut bench = Bench::new(1);
    let (from, to) = (format!("{CLIENT_IP}:4000"), format!("{VIP_FULLNAT}:80"));
    let whole = Builder::udp(from.as_str(), to.as_str()).dont_fragment(false).payload_len(60_000);
    let whole = whole.mac(CLIENT, GATEWAY).build();
    let sent = bench.receive(0, &whole);
    let offsets: Vec<u16> = sent.iter().map(offset).collect();
    assert_eq!(offsets, (0..41).map(|n| n * 1480).collect::<Vec<u16>>());
    assert!(sent.iter().all(|frame| headers(frame).ip_len() <= 1500));
    let shared = Arc::clone(bench.workers[0].shared());
    let counts = |bench: &Bench| {
        let tx = shared.counters.interface(0).tx_packets.value();
        let forwarded = shared.counters.transmits(TransmitReason::Forward);
        (forwarded, tx, bench.drops(Refusal::NoBuffer), bench.drops(Refusal::TxQueueFull))
    };
    assert_eq!(counts(&bench), (1, 41, 0, 0));
    bench.wire.starve(0, true);
    assert!(bench.receive(0, &whole).is_empty());
    assert_eq!(counts(&bench), (1, 41, 1, 0));
    bench.wire.starve(0, false);
    // The queue is 1,024 frames deep.
    for _ in 0..26 {
        assert!(bench.wire.offer(0, &whole));
    }
    bench.workers[0].run_once(bench.now);
    let (forwarded, _, no_buffer, full) = counts(&bench);
    assert_eq!((forwarded, no_buffer, full), (1 + 24, 1, 2));
}
