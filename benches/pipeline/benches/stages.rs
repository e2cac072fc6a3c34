//! Micro-benches of single packet steps and snapshot parts: header checks by kind of frame, the service lookup, the
//! flow lookup, Maglev builds. Single steps overlap in a loop, but not in the pipeline. Compare these times only with
//! earlier times of the same bench, and do not add them.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_conntrack::{First, FlowHash, FlowKey, FlowTables, IdleTimeout, NewFlow, Packet};
use tidegate_pipeline::testing::Builder;
use tidegate_pipeline_bench::traffic::{self, Random};
use tidegate_select::maglev::{Member, build};
use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::{Addr, parse, tcp::flags};

fn header_checks(c: &mut Criterion) {
    let (v4, v6) = (("192.0.2.1:40000", "203.0.113.5:443"), ("[2001:db8::1]:40000", "[2001:db8:1::5]:443"));
    let udp = || Builder::udp(v4.0, v4.1).payload_len(18);
    let frames = [
        ("ipv4-tcp", Builder::tcp(v4.0, v4.1).flags(flags::ACK).payload_len(6).build()),
        ("ipv4-udp", udp().build()),
        ("ipv4-udp-vlan", udp().vlan(100).build()),
        ("ipv4-udp-options", udp().ip_options(&[1; 8]).build()),
        ("ipv4-first-fragment", udp().payload_len(24).fragment(7, 0, true).build()),
        ("ipv6-tcp", Builder::tcp(v6.0, v6.1).flags(flags::ACK).build()),
        ("ipv6-udp", Builder::udp(v6.0, v6.1).build()),
        ("ipv6-udp-extension", Builder::udp(v6.0, v6.1).extension(60, &[1, 4, 0, 0, 0, 0]).build()),
        ("icmp-echo", Builder::echo_request("192.0.2.1", "203.0.113.5", 1, 1).build()),
    ];
    let mut group = c.benchmark_group("header-check");
    for (name, frame) in frames {
        assert!(parse(&frame).is_ok(), "{name}");
        group.bench_function(name, |b| b.iter(|| black_box(parse(black_box(&frame)))));
    }
    group.finish();
}

fn service_look_up(c: &mut Criterion) {
    use tidegate_snapshot::neighbors::NeighborTable;
    let scenario = "dsr-l2/known-1".parse().expect("a scenario");
    let spec = tidegate_pipeline_bench::lab::spec(&scenario);
    let (snapshot, _) =
        Snapshot::compile(&spec, None, &NeighborTable::new()).expect("the lab's spec compiles");
    let mut random = Random::new(1);
    let keys: Vec<(Addr, u8, u16)> = (0..4096)
        .map(|_| {
            let service = &spec.services[random.below(spec.services.len())].key;
            (service.vip.into(), service.protocol.number(), service.port)
        })
        .collect();
    let mut group = c.benchmark_group("service-look-up");
    group.throughput(Throughput::Elements(BURST as u64));
    let mut at = 0;
    group.bench_function("1000 services, burst of 32", |b| {
        b.iter(|| {
            at = (at + BURST) % keys.len();
            let hashes: [u64; BURST] = std::array::from_fn(|n| {
                let (vip, proto, port) = &keys[at + n];
                let hash = Snapshot::hash_service(vip, *proto, *port);
                snapshot.prefetch_service(hash);
                hash
            });
            let found = (0..BURST).filter(|&n| {
                let (vip, proto, port) = &keys[at + n];
                snapshot.service(hashes[n], vip, *proto, *port).is_some()
            });
            assert_eq!(found.count(), BURST);
        });
    });
    group.finish();
}

fn flow_look_up(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow-look-up");
    group.throughput(Throughput::Elements(BURST as u64));
    for flows in [1_000, 100_000, 1_000_000] {
        let mut tables = FlowTables::new(flows * 21 / 20, 7);
        let key = |flow: usize| {
            let client = traffic::client(flow, false);
            FlowKey::flow(ServiceId::new(flow % 1000, 0), client.ip().into(), client.port())
        };
        let idle = IdleTimeout::new(Duration::from_secs(900));
        for flow in 0..flows {
            let (key, backend) = (key(flow), BackendId::new(flow % 10_000, 0));
            let hash = tables.hash(&key);
            // A few flows do not fit in a table that is this full. A second packet establishes the others.
            let flow = NewFlow { key, hash, backend, packet: Packet::Datagram, idle, now: Now(0) };
            let _ = tables.dsr.insert(&flow);
            tables.dsr.lookup(&key, hash, Packet::Datagram, Now(0));
        }
        let mut random = Random::new(1);
        group.bench_with_input(BenchmarkId::new("dsr, burst of 32", flows), &flows, |b, &flows| {
            b.iter(|| {
                let keys: [(FlowKey, FlowHash); BURST] = std::array::from_fn(|_| {
                    let key = key(random.below(flows));
                    let hash = tables.hash(&key);
                    tables.dsr.prefetch(&key, hash);
                    (key, hash)
                });
                // As in the pipeline: check the first hash bucket of each key, then the second one for keys that were
                // not found.
                let first = keys.each_ref().map(|(key, hash)| {
                    matches!(tables.dsr.lookup_first(key, *hash, Packet::Datagram, Now(1)), First::Steady(_))
                });
                let mut found = 0;
                for ((key, hash), first) in keys.iter().zip(first) {
                    let hit = first || tables.dsr.lookup(key, *hash, Packet::Datagram, Now(1)).is_some();
                    found += usize::from(hit);
                }
                assert!(found * 10 >= BURST * 9, "{found} of {BURST} flows found");
            });
        });
    }
    group.finish();
}

fn maglev_build(c: &mut Criterion) {
    let mut group = c.benchmark_group("maglev-build");
    group.sample_size(10);
    for (backends, size) in [(10, 65_537), (100, 65_537), (1000, 65_537), (10_000, 655_373)] {
        let members: Vec<Member> =
            (0..backends).map(|n| Member { address: traffic::backend(n, false).into(), weight: 1 }).collect();
        let name = BenchmarkId::new(format!("{size} slots"), backends);
        group.bench_function(name, |b| {
            b.iter_batched(|| &members, |members| build(members, size), BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// Runs are short: the shape of the results matters, and the machine is often shared.
fn quick() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group!(name = stages; config = quick(); targets = header_checks, service_look_up, flow_look_up, maglev_build);
criterion_main!(stages);
