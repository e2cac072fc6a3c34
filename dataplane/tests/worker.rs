//! The real worker and pipeline with ports in memory: how frames are handled when queues are full, when another worker
//! owns the flow, when the forwarding state changes, and when the worker stops.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::bench::Bench;
use common::*;
use tidegate_conntrack::Phase;
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::drivers::{FrameBatch, PortQueue};
use tidegate_dataplane::gateway::{
    BackendFlowStats, OnFailure, OnHang, WorkerPool, WorkerPoolConfig, WorkerState,
};
use tidegate_dataplane::punt::class::PuntClass;
use tidegate_dataplane::topology::{Idle, WorkerPlacement};
use tidegate_dataplane::worker::pending_neighbor::FRAMES_PER_NEIGHBOR;
use tidegate_dataplane::worker::rings::HANDED_OVER_MAX;
use tidegate_dataplane::worker::watch::{VerdictKind, WATCHES_MAX, Watch, WatchFilter, WatchedPacket};
use tidegate_dataplane::worker::{FlowFilter, Query};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::pipeline::NeighborEvent;
use tidegate_pipeline::testing::Builder;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason};
use tidegate_spec::{BackendState, NeighborSpec, SnapshotSpec};
use tidegate_wire::{MacAddr, Parsed, arp, ethernet, parse, tcp};

fn bench(workers: u8, depth: usize) -> Bench {
    Bench::of(&spec(1), workers, depth)
}

impl Bench {
    fn run_once(&mut self, worker: usize) {
        self.run_once_at(worker, 1);
    }

    fn run_once_at(&mut self, worker: usize, millis: u64) {
        self.workers[worker].run_once(Now(millis * 1_000_000));
    }

    /// Records that the resolver has resolved this neighbour.
    fn resolve(&self, address: &str, mac: MacAddr) {
        let entry = self.neighbors.intern(0, ip(address).into()).unwrap();
        assert!(self.neighbors.set_resolved(entry, mac));
    }

    fn drops(&self, worker: usize, why: Refusal) -> u64 {
        self.workers[worker].shared().counters.drops(why.into())
    }
}

#[test]
fn a_frame_reaches_its_backend_and_is_counted() {
    let mut bench = bench(1, 64);
    let frame = syn(4000, VIP_L2);
    assert!(bench.wire.offer(0, &frame));
    bench.run_once(0);
    let sent = bench.wire.take(0).expect("forwarded");
    assert_eq!((ethernet::destination(sent.bytes()), ethernet::source(sent.bytes())), (BACKEND, GATEWAY));
    let shared = bench.workers[0].shared();
    assert_eq!(shared.counters.transmits(TransmitReason::Forward), 1);
    let interface = shared.counters.interface(0);
    let (rx, tx) = (&interface.rx_packets, &interface.tx_packets);
    assert_eq!((rx.value(), tx.value()), (1, 1));
    assert_eq!(interface.rx_bytes.value(), frame.len() as u64);
    assert_eq!(interface.tx_bytes.value(), frame.len() as u64);
}

#[test]
fn frames_beyond_a_full_transmit_queue_are_dropped_and_counted() {
    let mut bench = bench(1, 8);
    for burst in 0..3 {
        for n in 0..8 {
            assert!(bench.wire.offer(0, &syn(4000 + burst * 8 + n, VIP_L2)));
        }
        bench.run_once(0);
    }
    assert_eq!(bench.drops(0, Refusal::TxQueueFull), 16);
    assert_eq!(bench.workers[0].shared().counters.transmits(TransmitReason::Forward), 8);
    assert_eq!(bench.workers[0].shared().counters.interface(0).tx_packets.value(), 8);
    let taken = std::iter::from_fn(|| bench.wire.take(0)).count();
    assert_eq!(taken, 8);
}

#[test]
fn frames_for_a_port_without_link_are_dropped_and_flows_continue_later() {
    let mut bench = bench(1, 64);
    bench.wire.set_link(0, false);
    assert!(bench.wire.offer(0, &syn(4000, VIP_L2)));
    bench.run_once(0);
    assert_eq!((bench.drops(0, Refusal::LinkDown), bench.drops(0, Refusal::TxQueueFull)), (1, 0));
    assert!(bench.wire.take(0).is_none());
    bench.wire.set_link(0, true);
    assert!(bench.wire.offer(0, &syn(4000, VIP_L2)));
    bench.run_once(0);
    assert!(bench.wire.take(0).is_some());
    assert_eq!(bench.drops(0, Refusal::LinkDown), 1);
}

#[test]
fn a_full_punt_queue_drops_and_counts_further_frames() {
    let mut bench = bench(1, 64);
    let (capacity, extra) = (PuntClass::Other.queue_max(), 50);
    for _ in 0..capacity + extra {
        assert!(bench.wire.offer(0, &stray()));
        bench.run_once(0);
    }
    let shared = bench.workers[0].shared();
    assert_eq!(shared.counters.punts(PuntReason::NotIp), capacity as u64);
    assert_eq!(bench.drops(0, Refusal::PuntQueueFull), extra as u64);
    let punted = bench.exchange.punts.pop(PuntClass::Other).unwrap();
    assert_eq!((punted.interface, punted.frame.bytes()), (0, &stray()[..]));
}

#[test]
fn a_packet_from_a_vip_reaches_the_kernel_only_as_an_answer() {
    let mut bench = bench(1, 64);
    let vip = "192.0.2.100:80";
    let answer = Builder::tcp(vip, "192.0.2.2:40001").flags(tcp::flags::SYN | tcp::flags::ACK);
    let answer = answer.mac(BACKEND, GATEWAY).build();
    assert!(bench.wire.offer(0, &answer));
    bench.run_once(0);
    assert_eq!(bench.drops(0, Refusal::BadSource), 1);
    let request = Builder::tcp("192.0.2.2:40001", vip).flags(tcp::flags::SYN);
    bench.exchange.host_connections.note(Now(0), &request.build());
    assert!(bench.wire.offer(0, &answer));
    bench.run_once(0);
    assert_eq!(bench.exchange.punts.pop(PuntClass::Answer).unwrap().frame.bytes(), &answer[..]);
    assert_eq!(bench.drops(0, Refusal::BadSource), 1);
}

#[test]
fn a_flood_for_the_kernel_is_limited_and_answers_to_the_host_pass_it() {
    let mut bench = bench(1, 64);
    let check = || Builder::tcp("192.0.2.2:40001", "192.0.2.10:8080").flags(tcp::flags::SYN);
    let answer = Builder::tcp("192.0.2.10:8080", "192.0.2.2:40001").flags(tcp::flags::SYN | tcp::flags::ACK);
    let answer = answer.mac(BACKEND, GATEWAY).build();
    bench.exchange.host_connections.note(Now(0), &check().build());
    let mut answered = 0;
    for milli in 1..=1_000 {
        for _ in 0..40 {
            assert!(bench.wire.offer(0, &stray()));
        }
        assert!(bench.wire.offer(0, &answer));
        bench.run_once_at(0, milli);
        bench.run_once_at(0, milli);
        // The kernel accepts a few frames at a time.
        (0..8).for_each(|_| drop(bench.exchange.punts.pop(PuntClass::Other)));
        answered += u64::from(bench.exchange.punts.pop(PuntClass::Answer).is_some());
    }
    assert_eq!(answered, 1_000, "each of them, in the iteration in which it arrived");
    let (limited, full) = (bench.drops(0, Refusal::PuntRateLimited), bench.drops(0, Refusal::PuntQueueFull));
    let counters = &bench.workers[0].shared().loop_counters.punts[PuntClass::Other as usize];
    assert_eq!((counters.rate_limited.value(), counters.queue_full.value()), (limited, full));
    assert!(limited > 28_000 && full > 1_000 && limited + full + counters.passed.value() == 40_000);
}

/// Sends SYNs to a worker's queue until one creates a flow on that worker. Returns the client's port and the local port
/// of the flow.
fn open_fullnat(bench: &mut Bench, worker: usize) -> (u16, u16) {
    let mut try_port = |port: u16| {
        assert!(bench.wire.offer(worker, &syn(port, VIP_FULLNAT)));
        bench.run_once(worker);
        bench.wire.take(worker).map(|sent| (port, sent))
    };
    let (client, sent) = (5000..5100).find_map(&mut try_port).expect("it owns half of the flows");
    // Remove the frames that it handed over to the other worker.
    bench.run_once(1 - worker);
    while bench.wire.take(1 - worker).is_some() {}
    let Ok(Parsed::Ip(headers)) = parse(sent.bytes()) else { panic!("not IP") };
    assert_eq!((headers.src.ip(), headers.dst.ip()), (ip(SNAT), ip(BACKEND_IP)));
    (client, headers.src_port)
}

fn reply(port: u16) -> Vec<u8> {
    let (from, to) = (format!("{BACKEND_IP}:80"), format!("{SNAT}:{port}"));
    let flags = tcp::flags::SYN | tcp::flags::ACK;
    Builder::tcp(from.as_str(), to.as_str()).mac(BACKEND, GATEWAY).flags(flags).build()
}

#[test]
fn a_reply_at_the_wrong_worker_is_handed_over_to_the_worker_with_the_flow() {
    let mut bench = bench(2, 64);
    let (client, port) = open_fullnat(&mut bench, 1);
    let received = bench.workers[1].shared().counters.interface(0).rx_packets.value();
    assert!(bench.wire.offer(0, &reply(port)));
    bench.run_once(0);
    assert!(bench.wire.take(0).is_none());
    assert_eq!(bench.workers[0].shared().counters.hand_overs(), 1);
    bench.run_once(1);
    let sent = bench.wire.take(1).expect("worker 1 owns the flow");
    let Ok(Parsed::Ip(headers)) = parse(sent.bytes()) else { panic!("not IP") };
    assert_eq!((headers.src.ip(), headers.src_port), (ip(VIP_FULLNAT), 80));
    assert_eq!((headers.dst.ip(), headers.dst_port), (ip(CLIENT_IP), client));
    assert_eq!(bench.workers[1].shared().counters.transmits(TransmitReason::Reply), 1);
    assert_eq!(
        bench.workers[1].shared().counters.interface(0).rx_packets.value(),
        received,
        "received once, by worker 0"
    );
}

#[test]
fn a_worker_sends_replies_of_an_established_flow_that_another_owns() {
    let mut bench = bench(2, 64);
    let (client, port) = open_fullnat(&mut bench, 1);
    let (from, vip) = (format!("{CLIENT_IP}:{client}"), format!("{VIP_FULLNAT}:80"));
    let (backend, local) = (format!("{BACKEND_IP}:80"), format!("{SNAT}:{port}"));
    let ack = Builder::tcp(from.as_str(), vip.as_str()).mac(CLIENT, GATEWAY).flags(tcp::flags::ACK).build();
    let data =
        Builder::tcp(backend.as_str(), local.as_str()).mac(BACKEND, GATEWAY).flags(tcp::flags::ACK).build();
    for (worker, frame) in [(0, &reply(port)), (1, &ack), (0, &data)] {
        assert!(bench.wire.offer(worker, frame));
        bench.run_once(worker);
        bench.run_once(1);
    }
    bench.run_once(0);
    assert_eq!(bench.workers[0].shared().counters.hand_overs(), 2, "the SYN ACK and the first data");
    let by_owner = std::iter::from_fn(|| bench.wire.take(1)).last().unwrap();
    // Longer than the idle timeout of the service: the reports of worker 0 keep the flow alive.
    for half_seconds in 1..2_000 {
        assert!(bench.wire.offer(0, &data));
        bench.run_once_at(0, half_seconds * 500);
        bench.run_once_at(1, half_seconds * 500);
        assert_eq!(bench.wire.take(0).unwrap().bytes(), by_owner.bytes());
    }
    assert_eq!(bench.workers[0].shared().counters.hand_overs(), 2);
}

/// The cache lines of some addresses.
fn lines(written: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
    written.start / 64..written.end.div_ceil(64)
}

#[test]
fn no_cache_line_of_counters_is_written_by_two_workers() {
    let mut bench = bench(4, 64);
    let mut seen = std::collections::HashMap::new();
    for (worker, tallies) in bench.publisher.current().tallies.iter().enumerate() {
        let shared = bench.workers[worker].shared();
        let start = Arc::as_ptr(shared).addr();
        let counters = start..start + size_of_val(&**shared);
        let written = tallies.written().into_iter().chain([counters]);
        for line in written.flat_map(lines) {
            assert_eq!(seen.insert(line, worker).unwrap_or(worker), worker, "line {line:x}");
        }
    }
    assert!(seen.len() > 4 * 8, "{} lines", seen.len());
    assert!(bench.workers.iter().all(|worker| align_of_val(&**worker.shared()) >= 64));
    bench.run_once(0);
}

#[test]
fn a_full_ring_between_workers_drops_and_counts_further_frames() {
    let mut bench = bench(2, 64);
    let (_, port) = open_fullnat(&mut bench, 1);
    let extra = 40;
    for _ in 0..HANDED_OVER_MAX + extra {
        assert!(bench.wire.offer(0, &reply(port)));
        bench.run_once(0);
    }
    assert_eq!(bench.workers[0].shared().counters.hand_overs(), HANDED_OVER_MAX as u64);
    assert_eq!(bench.drops(0, Refusal::HandOverRingFull), extra as u64);
}

#[test]
fn injected_frames_leave_as_they_are_and_are_no_traffic_of_a_service() {
    let mut bench = bench(1, 2);
    for _ in 0..3 {
        bench.exchange.mailboxes[0].inject(0, MemoryFrame::new(&stray())).unwrap();
    }
    bench.exchange.mailboxes[0].inject(9, MemoryFrame::new(&stray())).unwrap();
    bench.run_once(0);
    let counters = &bench.workers[0].shared().loop_counters;
    assert_eq!(
        (counters.injected.value(), counters.injected_dropped.value()),
        (2, 2),
        "a full queue, and no such port"
    );
    assert_eq!(bench.wire.take(0).unwrap().bytes(), stray());
    assert_eq!(counters.frames.value(), 0);
}

/// A gateway without a resolved neighbour.
fn alone() -> SnapshotSpec {
    let mut spec = spec(1);
    spec.network.neighbors.clear();
    spec
}

#[test]
fn frames_for_an_unresolved_next_hop_wait_and_leave_in_order() {
    let mut bench = Bench::of(&alone(), 1, 64);
    for port in [4000, 4001, 4002] {
        assert!(bench.wire.offer(0, &syn(port, VIP_L2)));
    }
    assert!(bench.wire.offer(0, &syn(4003, VIP_FULLNAT)));
    bench.run_once_at(0, 1);
    let counted = |bench: &Bench| {
        let shared = bench.workers[0].shared();
        let interface = shared.counters.interface(0);
        let sent = shared.counters.transmits(TransmitReason::Forward);
        (interface.rx_packets.value(), sent, bench.drops(0, Refusal::NeighborUnresolved))
    };
    assert!(bench.wire.take(0).is_none());
    assert_eq!(counted(&bench), (4, 0, 0), "their outcomes are not final yet");
    let wanted = NeighborEvent::Wanted { interface: 0, addr: ip(BACKEND_IP).into() };
    assert_eq!(
        (bench.exchange.neighbor_reports.wanted.pop(), bench.exchange.neighbor_reports.wanted.pop()),
        (Some(wanted), None)
    );

    bench.resolve(BACKEND_IP, BACKEND);
    bench.run_once_at(0, 3);
    for (port, vip) in [(4000, VIP_L2), (4001, VIP_L2), (4002, VIP_L2)] {
        let sent = bench.wire.take(0).expect("it waited");
        assert_eq!(ethernet::destination(sent.bytes()), BACKEND);
        let Ok(Parsed::Ip(headers)) = parse(sent.bytes()) else { panic!("not IP") };
        assert_eq!((headers.src_port, headers.dst.ip()), (port, ip(vip)));
    }
    assert!(bench.wire.take(0).is_some() && bench.wire.take(0).is_none());
    assert_eq!(counted(&bench), (4, 4, 0), "each frame once");
    assert_eq!(bench.workers[0].shared().loop_counters.frames.value(), 4);
}

#[test]
fn a_reply_to_an_unresolved_client_waits_too() {
    let mut spec = alone();
    spec.network.neighbors = vec![NeighborSpec { ip: ip(BACKEND_IP), mac: BACKEND }];
    let mut bench = Bench::of(&spec, 2, 64);
    let (_, port) = open_fullnat(&mut bench, 1);
    // It arrives at the other worker first, and waits at the owner of its flow.
    assert!(bench.wire.offer(0, &reply(port)));
    bench.run_once_at(0, 2);
    bench.run_once_at(1, 2);
    assert_eq!((bench.wire.take(1).is_some(), bench.drops(1, Refusal::NeighborUnresolved)), (false, 0));
    bench.resolve(CLIENT_IP, CLIENT);
    bench.run_once_at(1, 3);
    let sent = bench.wire.take(1).expect("it waited");
    assert_eq!(ethernet::destination(sent.bytes()), CLIENT);
    assert_eq!(bench.workers[1].shared().counters.transmits(TransmitReason::Reply), 1);
}

#[test]
fn frames_that_wait_too_long_or_exceed_the_queue_are_dropped() {
    let mut bench = Bench::of(&alone(), 1, 64);
    let extra = 5;
    for n in 0..FRAMES_PER_NEIGHBOR + extra {
        assert!(bench.wire.offer(0, &syn(4000 + n as u16, VIP_L2)));
    }
    bench.run_once_at(0, 1);
    assert_eq!(bench.drops(0, Refusal::NeighborUnresolved), extra as u64, "the queue is full");
    bench.run_once_at(0, 1000);
    assert_eq!(bench.drops(0, Refusal::NeighborUnresolved), extra as u64, "not over yet");
    bench.run_once_at(0, 1002);
    let all = (FRAMES_PER_NEIGHBOR + extra) as u64;
    assert_eq!(bench.drops(0, Refusal::NeighborUnresolved), all);
    bench.resolve(BACKEND_IP, BACKEND);
    bench.run_once_at(0, 1003);
    assert!(bench.wire.take(0).is_none(), "a dropped frame does not return");
    assert!(bench.wire.offer(0, &syn(4000, VIP_L2)));
    bench.run_once_at(0, 1004);
    assert!(bench.wire.take(0).is_some());
}

#[test]
fn frames_that_wait_at_the_end_are_counted_and_freed() {
    let (wire, ends) = memory::port(1, 64);
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let mut worker_pool = start_with(&alone(), 1, queues, None);
    assert!(wire.offer(0, &syn(4000, VIP_L2)) && wire.offer(0, &syn(4001, VIP_L2)));
    wait_until("both received", || worker_pool.stats().interfaces[0].rx_packets == 2);
    worker_pool.stop();
    let drops = worker_pool.stats().drops;
    let unresolved = drops.iter().find(|(why, _)| *why == Refusal::NeighborUnresolved.into());
    assert_eq!(unresolved.map(|(_, count)| *count), Some(2));
}

#[test]
fn the_first_packet_to_a_neighbour_arrives_once_that_one_has_answered() {
    let (wire, ends) = memory::port(1, 64);
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let mut worker_pool = start_with(&alone(), 1, queues, None);
    assert!(wire.offer(0, &syn(4000, VIP_L2)));
    let mut forwarded = None;
    wait_until("forwarded", || {
        while let Some(frame) = wire.take(0) {
            match parse(frame.bytes()) {
                Ok(Parsed::Arp(request)) if IpAddr::from(request.target_ip) == ip(BACKEND_IP) => {
                    assert!(wire.offer(0, &arp::reply(&request, BACKEND)));
                }
                Ok(Parsed::Ip(_)) => forwarded = Some(frame),
                _ => {}
            }
        }
        forwarded.is_some()
    });
    assert_eq!(ethernet::destination(forwarded.unwrap().bytes()), BACKEND);
    wait_until("counted", || {
        worker_pool.stats().transmits.iter().any(|&(why, count)| why == TransmitReason::Forward && count == 1)
    });
    worker_pool.stop();
    assert!(
        worker_pool.stats().drops.iter().all(|(_, count)| *count == 0),
        "{:?}",
        worker_pool.stats().drops
    );
}

fn worker_pool(
    workers: u8,
    depth: usize,
    on_failure: Option<&OnFailure>,
) -> (MemoryPort, WorkerPool<MemoryFrame>) {
    let (wire, ends) = memory::port(usize::from(workers), depth);
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let worker_pool = start(workers, queues, on_failure);
    (wire, worker_pool)
}

fn start<Q: PortQueue<Frame = MemoryFrame> + 'static>(
    workers: u8,
    queues: Vec<Vec<Q>>,
    on_failure: Option<&OnFailure>,
) -> WorkerPool<MemoryFrame> {
    start_with(&spec(1), workers, queues, on_failure)
}

fn start_with<Q: PortQueue<Frame = MemoryFrame> + 'static>(
    first: &SnapshotSpec,
    workers: u8,
    queues: Vec<Vec<Q>>,
    on_failure: Option<&OnFailure>,
) -> WorkerPool<MemoryFrame> {
    let config = WorkerPoolConfig {
        placements: (0..workers)
            .map(|worker| WorkerPlacement { worker, core: usize::from(worker), numa: None })
            .collect(),
        idle: Idle::Adaptive,
        flow_entries: 4096,
        flow_service_percent: 50,
        huge_pages: false,
        flow_store: None,
        steering: if workers == 1 { Steering::Single } else { Steering::Partition },
        seed: 7,
        announce: false,
        snat_is_released: false,
        main_cpus: Vec::new(),
    };
    let enter = |_: &WorkerPlacement| Ok::<(), String>(());
    WorkerPool::start(&config, queues, Heap, vec![None], first, enter, on_failure).unwrap()
}

/// Takes the frames that a queue has sent, and returns the number of IP packets: the gateway also sends ARP requests.
fn ip_packets(wire: &MemoryPort, queue: usize) -> u64 {
    let frames = std::iter::from_fn(|| wire.take(queue));
    frames.filter(|frame| matches!(parse(frame.bytes()), Ok(Parsed::Ip(_)))).count() as u64
}

#[test]
fn states_published_under_load_lose_no_frame_and_are_applied_by_all() {
    // The queue is longer than the number of offered frames, so none is dropped.
    let (wire, worker_pool) = worker_pool(2, 8192, None);
    let mut offered = 0_u64;
    let mut taken = 0_u64;
    for generation in 2..=60 {
        for n in 0..40_u16 {
            for queue in 0..2 {
                offered += u64::from(wire.offer(queue, &syn(1024 + n * 7, VIP_L2)));
                taken += ip_packets(&wire, queue);
            }
        }
        let mut next = spec(generation);
        let state = if generation % 2 == 0 { BackendState::Draining } else { BackendState::Active };
        next.services[1].backends[0].state = state;
        // Another address is another backend, which gets the index of the former one.
        if generation % 3 == 0 {
            next.services[0].backends[0].address = ip(CLIENT_IP);
        }
        let published = worker_pool.publish(&next).unwrap();
        assert_eq!((published.generation, published.problems.len()), (generation, 0));
    }
    wait_until("applied", || worker_pool.applied_generation() == 60);
    wait_until("everything sent", || {
        taken += (0..2).map(|queue| ip_packets(&wire, queue)).sum::<u64>();
        taken == offered
    });
    for n in 0..40_u16 {
        offered += u64::from(wire.offer(0, &syn(1024 + n * 7, VIP_L2)));
    }
    wait_until("everything sent to the last backend", || {
        taken += ip_packets(&wire, 0);
        taken == offered
    });
    let stats = worker_pool.stats();
    let forwarded = stats.transmits.iter().find(|(why, _)| *why == TransmitReason::Forward).unwrap().1;
    assert_eq!((stats.interfaces[0].rx_packets, forwarded), (offered, offered));
    assert_eq!(stats.drops.iter().map(|(_, count)| count).sum::<u64>(), 0);
    let services = worker_pool.service_stats();
    let direct = services.iter().find(|service| service.name == "direct").unwrap();
    let packets = direct.traffic.map(|one| one.packets);
    assert_eq!(packets, [offered, 0], "counted across all generations and backends");
    let last = direct.backends[0].traffic[0].packets;
    assert!((40..=offered).contains(&last), "the last backend got {last} of {offered} packets");
    assert!(worker_pool.healthy());
}

#[test]
fn a_spec_that_cannot_be_is_refused_and_the_last_one_stays() {
    let (_wire, worker_pool) = worker_pool(1, 8, None);
    let mut bad = spec(2);
    bad.services.push(bad.services[0].clone());
    let error = worker_pool.publish(&bad).unwrap_err().to_string();
    assert!(error.contains("two services"), "{error}");
    assert!(worker_pool.publish(&spec(1)).unwrap_err().to_string().contains("generation 1"));
    let mut two = spec(3);
    two.network.interfaces.push(interface(GATEWAY));
    assert!(worker_pool.publish(&two).unwrap_err().to_string().contains("2 interfaces"));
    assert_eq!(worker_pool.published_generation(), 1);
}

#[test]
fn flows_of_backends_are_counted_while_the_worker_runs() {
    let (wire, worker_pool) = worker_pool(2, 256, None);
    for n in 0..100 {
        assert!(wire.offer(n as usize % 2, &syn(2000 + n, VIP_FULLNAT)));
        assert!(wire.offer(n as usize % 2, &syn(2000 + n, VIP_L2)));
    }
    let mut sent = 0;
    wait_until("forwarded", || {
        sent += (0..2).map(|queue| ip_packets(&wire, queue)).sum::<u64>();
        sent == 200
    });
    let wait = std::time::Duration::from_secs(20);
    let counted = worker_pool.backend_flows(wait);
    let services = worker_pool.service_stats();
    let of_service = |name: &str| {
        let backends = &services.iter().find(|service| service.name == name).unwrap().backends;
        let all: Vec<_> =
            counted.iter().filter(|one| backends.iter().any(|backend| backend.id == one.backend)).collect();
        let opening = |one: &&BackendFlowStats| {
            one.flows.iter().find(|(phase, _)| *phase == Phase::Opening).map_or(0, |&(_, count)| count)
        };
        assert_eq!(all.iter().map(opening).sum::<u64>(), 100, "the first reading is current: {counted:?}");
        let flows = all.iter().flat_map(|one| one.flows).map(|(_, count)| count).sum::<u64>();
        assert_eq!(flows, 100, "all flows are opening");
        all.iter().map(|one| one.local).collect::<Vec<_>>()
    };
    assert_eq!(of_service("translated"), [Some(ip(SNAT).into())]);
    assert!(of_service("direct").iter().all(Option::is_none));
    // A caller that doesn't wait gets the last count. The next count is current again.
    assert_eq!(worker_pool.backend_flows(std::time::Duration::ZERO), counted);
    assert_eq!(worker_pool.backend_flows(wait), counted);
}

#[test]
fn flows_are_listed_while_the_worker_runs_and_one_is_found_among_many() {
    let (wire, worker_pool) = worker_pool(1, 256, None);
    for n in 0..100 {
        assert!(wire.offer(0, &syn(2000 + n, VIP_L2)));
    }
    wait_until("forwarded", || wire.take(0).is_some() && wire.waiting(0) == 0);
    let timeout = std::time::Duration::from_secs(20);
    wait_until("all flows", || worker_pool.flows(&FlowFilter::default(), 1000, timeout).0.len() == 100);
    assert_eq!(worker_pool.flows(&FlowFilter::default(), 10, timeout).0.len(), 10);
    let stranger = FlowFilter { client: Some(ip("198.51.100.1").into()), ..FlowFilter::default() };
    assert_eq!(worker_pool.flows(&stranger, 10, timeout), (Vec::new(), 0));
    let (all, _) = worker_pool.flows(&FlowFilter::default(), 1000, timeout);
    let of_service = FlowFilter { services: Some([all[0].service].into()), ..FlowFilter::default() };
    assert_eq!(worker_pool.flows(&of_service, 1000, timeout).0.len(), 100);
    let to_backend = FlowFilter { backends: Some([all[0].backend].into()), ..of_service };
    assert_eq!(worker_pool.flows(&to_backend, 1000, timeout).0.len(), 100);
    // Each flow is found with a limit of one, however many flows its client has.
    for flow in &all {
        let one = FlowFilter {
            client: Some(flow.client),
            client_port: Some(flow.client_port),
            ..FlowFilter::default()
        };
        let (found, _) = worker_pool.flows(&one, 1, timeout);
        assert_eq!(found.iter().map(|found| found.client_port).collect::<Vec<_>>(), [flow.client_port]);
    }
    let to_none = FlowFilter { backends: Some([].into()), ..FlowFilter::default() };
    assert_eq!(worker_pool.flows(&to_none, 1000, timeout).0, []);
    let idle = FlowFilter { idle_ms_min: u32::MAX, ..FlowFilter::default() };
    assert_eq!(worker_pool.flows(&idle, 1000, timeout).0, []);
    let of_phase = |phase| FlowFilter { phase: Some(phase), ..FlowFilter::default() };
    assert_eq!(worker_pool.flows(&of_phase(all[0].phase), 1000, timeout).0.len(), 100);
    assert_eq!(worker_pool.flows(&of_phase(Phase::Closing), 1000, timeout).0, []);
    wait_until("the gauge", || worker_pool.stats().workers[0].flows == 100);
    // Only the flows that pass the filter are removed.
    let one = FlowFilter { client_port: Some(all[0].client_port), ..FlowFilter::default() };
    assert_eq!(worker_pool.remove_flows(&one, timeout), (1, 0));
    assert_eq!(worker_pool.flows(&FlowFilter::default(), 1000, timeout).0.len(), 99);
    assert_eq!(worker_pool.flows(&one, 1000, timeout).0, []);
    assert_eq!(worker_pool.remove_flows(&FlowFilter::default(), timeout), (99, 0));
    wait_until("the gauge", || worker_pool.stats().workers[0].flows == 0);
}

#[test]
fn stopping_ends_every_thread_and_frees_what_waits() {
    let (wire, mut worker_pool) = worker_pool(2, 64, None);
    assert!(wire.offer(0, &stray()));
    wait_until("received", || wire.waiting(0) == 0);
    worker_pool.stop();
    assert!(worker_pool.worker_states().all(|state| state == WorkerState::Stopped));
    assert!(worker_pool.exchange().punts.is_empty());
    worker_pool.stop();
}

/// A queue whose driver fails at the third poll.
struct Broken(Arc<AtomicU64>);

impl PortQueue for Broken {
    type Frame = MemoryFrame;

    fn rx(&mut self, _batch: &mut FrameBatch<MemoryFrame>) -> usize {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) < 2, "the device is on fire");
        0
    }

    fn tx(&mut self, _batch: &mut FrameBatch<MemoryFrame>) -> usize {
        0
    }

    fn spare(&mut self, _len: usize) -> Option<MemoryFrame> {
        None
    }
}

/// A device whose driver blocks while it is stuck.
struct Sticky(Arc<AtomicBool>);

impl PortQueue for Sticky {
    type Frame = MemoryFrame;

    fn rx(&mut self, _batch: &mut FrameBatch<MemoryFrame>) -> usize {
        while self.0.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        0
    }

    fn tx(&mut self, _batch: &mut FrameBatch<MemoryFrame>) -> usize {
        0
    }

    fn spare(&mut self, _len: usize) -> Option<MemoryFrame> {
        None
    }
}

#[test]
fn a_hung_worker_is_detected_bypassed_and_given_up_and_may_recover() {
    let (changes, failures) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let stuck = [false, false].map(|one| Arc::new(AtomicBool::new(one)));
    let mut worker_pool = start(2, stuck.iter().map(|one| vec![Sticky(Arc::clone(one))]).collect(), None);
    let (count, listener) = (Arc::clone(&changes), Arc::clone(&failures));
    let on_hang: OnHang = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let on_failure: OnFailure = Arc::new(move |failure| listener.lock().unwrap().push(failure.clone()));
    worker_pool.watch_threads(Vec::new(), on_hang, Some(on_failure)).unwrap();
    assert!(worker_pool.healthy() && worker_pool.hung().is_empty());
    stuck[0].store(true, Ordering::Relaxed);
    wait_until("noticed", || !worker_pool.healthy() && changes.load(Ordering::Relaxed) == 1);
    let states = |pool: &WorkerPool<MemoryFrame>| pool.worker_states().collect::<Vec<_>>();
    assert_eq!(states(&worker_pool), [WorkerState::Hung, WorkerState::Running]);
    assert!(worker_pool.hung()[0].0.contains("worker 0 hangs"), "{:?}", worker_pool.hung());
    let exchange = worker_pool.exchange();
    let of_first = exchange.mailbox_or_next(0).unwrap();
    assert!(std::ptr::eq(of_first, &exchange.mailboxes[1]), "the kernel's frames use the other worker");
    wait_until("given up", || !failures.lock().unwrap().is_empty());
    assert_eq!(failures.lock().unwrap()[0].thread, "worker 0");
    stuck[0].store(false, Ordering::Relaxed);
    wait_until("healthy again", || worker_pool.healthy() && changes.load(Ordering::Relaxed) == 2);
    assert_eq!(worker_pool.stats().workers.iter().map(|one| one.hangs).collect::<Vec<_>>(), [1, 0]);
    worker_pool.stop();
}

#[test]
fn a_panicking_worker_is_detected_reported_and_does_not_block_anything() {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&failures);
    let on_failure: OnFailure = Arc::new(move |failure| listener.lock().unwrap().push(failure.clone()));
    let mut worker_pool = start(1, vec![vec![Broken(Arc::default())]], Some(&on_failure));
    wait_until("noticed", || !worker_pool.healthy() && !failures.lock().unwrap().is_empty());
    assert_eq!(worker_pool.worker_states().collect::<Vec<_>>(), [WorkerState::Failed]);
    assert_eq!(failures.lock().unwrap()[0].message, "the device is on fire");
    worker_pool.publish(&spec(2)).unwrap();
    assert_eq!(worker_pool.applied_generation(), 2, "no live worker has anything older");
    worker_pool.stop();
}

#[test]
fn each_worker_records_iterations_with_work_and_no_others() {
    let (wire, worker_pool) = worker_pool(2, 64, None);
    let frames = 200;
    for n in 0..frames {
        assert!(wire.offer(0, &syn(1024 + n, VIP_L2)));
        wait_until("forwarded", || wire.take(0).is_some());
    }
    let iterations = || worker_pool.stats().iterations;
    wait_until("the last iteration is recorded", || {
        iterations()[0].count() > 0 && worker_pool.stats().workers[0].frames == 200
    });
    let iterations = iterations();
    assert_eq!(iterations.len(), 2);
    // Each frame was offered alone. An iteration may also have checked flows against a new snapshot.
    assert!((1..=u64::from(frames) + 2).contains(&iterations[0].count()), "{:?}", iterations[0]);
    assert!(iterations[1].count() <= 2, "the other worker had nothing to do: {:?}", iterations[1]);
    for one in &iterations {
        let least = one.buckets().first().map_or(0, |&(nanos, _)| nanos);
        let greatest = one.buckets().last().map_or(0, |&(nanos, _)| nanos);
        // Values of histogram buckets are up to 1/32 above the counted values.
        assert!(one.sum() <= greatest * one.count() && one.sum() * 32 >= least * one.count() * 31 - 64);
    }
}

#[test]
fn the_queueing_time_of_frames_for_the_kernel_is_recorded() {
    let (wire, worker_pool) = worker_pool(1, 64, None);
    for _ in 0..20 {
        assert!(wire.offer(0, &stray()));
    }
    // There is no tap, so the slow path drops the frames.
    wait_until("taken", || worker_pool.stats().slow_path.to_kernel_dropped == 20);
    let waits = worker_pool.stats().punt_queue;
    assert_eq!(waits.count(), 20);
    assert!(waits.sum() > 0, "the slow path is another thread: {waits:?}");
    let longest = waits.buckets().last().map_or(0, |&(nanos, _)| nanos);
    assert!(longest < 30_000_000_000, "{waits:?}");
}

/// Starts a watch at the first worker.
fn watch(bench: &mut Bench, filter: WatchFilter, records: usize, snap: usize) -> Arc<Watch> {
    let watch = Arc::new(Watch::new(filter, records, snap));
    bench.exchange.mailboxes[0].query(Query::Watch(Arc::clone(&watch))).unwrap();
    bench.run_once(0);
    watch
}

/// The packets that a watch has recorded.
fn recorded(watch: &Watch) -> Vec<WatchedPacket> {
    let mut packets = Vec::new();
    watch.take(usize::MAX, |packet| packets.push(packet.clone()));
    packets
}

#[test]
fn a_watched_packet_is_recorded_as_received_and_sent_with_its_verdict() {
    let mut bench = bench(1, 64);
    let host = Some(ip(VIP_L2).into());
    let all = watch(&mut bench, WatchFilter::default(), 8, 2_048);
    let one = watch(&mut bench, WatchFilter { host, port: Some(4001), ..WatchFilter::default() }, 8, 40);
    let drops = WatchFilter { verdict: Some(VerdictKind::Drop), ..WatchFilter::default() };
    let drops = watch(&mut bench, drops, 8, 40);
    let frames = [syn(4000, VIP_L2), syn(4001, VIP_L2), stray()];
    for frame in &frames {
        assert!(bench.wire.offer(0, frame));
    }
    bench.run_once(0);
    let packets = recorded(&all);
    assert_eq!(packets.len(), 3);
    for (packet, frame) in packets.iter().zip(&frames) {
        assert_eq!((&packet.received, packet.received_len), (frame, frame.len()));
    }
    for packet in &packets[..2] {
        let sent = bench.wire.take(0).expect("forwarded");
        assert_eq!((&packet.sent[..], packet.sent_len), (sent.bytes(), sent.bytes().len()));
        assert!(packet.note.service.is_some() && packet.note.backend.is_some() && !packet.waits);
    }
    assert_eq!((packets[2].sent.len(), packets[2].note.service), (0, None));
    let packets = recorded(&one);
    assert_eq!(packets.len(), 1);
    assert_eq!((&packets[0].received[..], packets[0].received_len), (&frames[1][..40], frames[1].len()));
    assert_eq!((recorded(&drops).len(), all.lost()), (0, 0));
}

#[test]
fn an_unread_watch_loses_records_but_no_packets() {
    let mut bench = bench(1, 64);
    let full = watch(&mut bench, WatchFilter::default(), 2, 64);
    for n in 0..5 {
        assert!(bench.wire.offer(0, &syn(4000 + n, VIP_L2)));
    }
    bench.run_once(0);
    assert_eq!(std::iter::from_fn(|| bench.wire.take(0)).count(), 5);
    assert_eq!((full.lost(), recorded(&full).len()), (3, 2));
    assert!(bench.wire.offer(0, &syn(4100, VIP_L2)));
    bench.run_once(0);
    assert_eq!((full.lost(), recorded(&full).len()), (3, 1), "records are reused");
}

#[test]
fn ended_watches_are_forgotten_and_others_can_start() {
    let mut bench = bench(1, 64);
    let watches: Vec<_> =
        (0..WATCHES_MAX).map(|_| watch(&mut bench, WatchFilter::default(), 2, 64)).collect();
    watches[0].end();
    let next = watch(&mut bench, WatchFilter::default(), 2, 64);
    assert!(bench.wire.offer(0, &syn(4000, VIP_L2)));
    bench.run_once(0);
    assert_eq!(recorded(&next).len(), 1);
    assert_eq!((recorded(&watches[0]).len(), Arc::strong_count(&watches[0])), (0, 1), "the worker has none");
    watches.iter().chain([&next]).for_each(|watch| watch.end());
    assert!(bench.wire.offer(0, &syn(4001, VIP_L2)));
    bench.run_once(0);
    assert!(watches.iter().chain([&next]).all(|watch| Arc::strong_count(watch) == 1));
}

#[test]
fn a_packet_that_waits_is_recorded_as_waiting_and_again_when_sent() {
    let mut bench = Bench::of(&alone(), 1, 64);
    let all = watch(&mut bench, WatchFilter::default(), 8, 64);
    assert!(bench.wire.offer(0, &syn(4000, VIP_L2)));
    bench.run_once_at(0, 2);
    let packets = recorded(&all);
    assert_eq!((packets.len(), packets[0].waits), (1, true));
    assert_eq!(packets[0].verdict, Refusal::NeighborUnresolved.into());
    bench.resolve(BACKEND_IP, BACKEND);
    bench.run_once_at(0, 3);
    let packets = recorded(&all);
    assert_eq!((packets.len(), packets[0].waits, packets[0].sent_len > 0), (1, false, true));
}

#[test]
fn a_packet_that_is_handed_over_is_recorded_by_the_worker_that_decides() {
    let mut bench = Bench::of(&spec(1), 2, 64);
    let (_, port) = open_fullnat(&mut bench, 1);
    let watches = [0, 1].map(|worker: usize| {
        let one = Arc::new(Watch::new(WatchFilter::default(), 8, 64));
        bench.exchange.mailboxes[worker].query(Query::Watch(Arc::clone(&one))).unwrap();
        bench.run_once(worker);
        one
    });
    assert!(bench.wire.offer(0, &reply(port)));
    bench.run_once_at(0, 2);
    bench.run_once_at(1, 2);
    assert_eq!(watches.each_ref().map(|watch| recorded(watch).len()), [0, 1]);
}
