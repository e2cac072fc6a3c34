//! The real worker on real DPDK ports without NICs (`net_ring`, `net_null`, plain pages): every mbuf returns to its
//! pool.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use common::*;
use dpdk::testing::{self, Level};
use dpdk::{Burst, PktPool, PoolConfig, Port, PortConfig, RxQueue};
use tidegate_dataplane::drivers::dpdk::{DpdkFrame, DpdkQueue, DpdkSource};
use tidegate_dataplane::gateway::{
    Dataplane, DataplaneConfig, InterfaceConfig, StartError, WorkerPool, WorkerPoolConfig, interface_specs,
};
use tidegate_dataplane::topology::{Idle, WorkerPlacement};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason};
use tidegate_wire::{MacAddr, ethernet};

fn worker_pool(port: &mut Port, pool: &PktPool) -> WorkerPool<DpdkFrame> {
    let queues = port.start(&PortConfig::default(), pool).unwrap();
    let queues = queues
        .rx
        .into_iter()
        .zip(queues.tx)
        .map(|(rx, tx)| vec![DpdkQueue::new(rx, tx, pool.clone())])
        .collect();
    let config = WorkerPoolConfig {
        placements: vec![WorkerPlacement { worker: 0, core: 0, numa: None }],
        idle: Idle::Adaptive,
        flow_entries: 1024,
        flow_service_percent: 50,
        huge_pages: false,
        flow_store: None,
        steering: Steering::Single,
        seed: 7,
        announce: false,
        snat_is_released: false,
        main_cpus: Vec::new(),
    };
    let enter =
        |_: &WorkerPlacement| dpdk::Lcore::register(testing::eal()).map_err(|error| error.to_string());
    WorkerPool::start(&config, queues, DpdkSource(pool.clone()), vec![None], &spec(1), enter, None).unwrap()
}

fn pool() -> PktPool {
    PktPool::new(testing::eal(), &PoolConfig { mbufs: 8191, ..PoolConfig::default() }).unwrap()
}

/// Frames that returned from the gateway.
#[derive(Default)]
struct Back {
    forwarded: u64,
    /// The gateway requests its fixed neighbours by broadcast.
    queries: u64,
}

impl Back {
    /// Receives a burst, and returns its size.
    fn take(&mut self, queue: &mut RxQueue) -> usize {
        let mut got = Burst::<32>::new();
        let received = queue.rx(&mut got);
        for mbuf in got.drain(..) {
            let destination = ethernet::destination(mbuf.data());
            if destination == MacAddr::BROADCAST {
                self.queries += 1;
            } else {
                assert_eq!(destination, BACKEND);
                self.forwarded += 1;
            }
        }
        received
    }
}

#[test]
fn frames_cross_a_ring_port_and_every_mbuf_returns() {
    let pool = pool();
    let level = Level::of(&pool);
    let (mut inside, mut slow_path_state) = testing::port_pair(testing::eal(), 1, 256).unwrap();
    let mut wire = slow_path_state.start(&PortConfig::default(), &pool).unwrap();
    let mut worker_pool = worker_pool(&mut inside, &pool);

    let kinds = [syn(4000, VIP_L2), stray(), syn(4001, "192.0.2.100"), syn(9, "192.0.2.200")];
    let mut burst = Burst::<32>::new();
    let (mut sent, mut back) = (0_u64, Back::default());
    while sent < 4000 {
        for n in 0..32 {
            let mut mbuf = pool.alloc().unwrap();
            let frame = &kinds[n % kinds.len()];
            mbuf.append(frame.len()).unwrap().copy_from_slice(frame);
            burst.push(mbuf).unwrap();
        }
        sent += wire.tx[0].tx(&mut burst) as u64;
        burst.clear();
        back.take(&mut wire.rx[0]);
    }
    let received = || worker_pool.stats().interfaces[0].rx_packets;
    wait_until("all received", || {
        back.take(&mut wire.rx[0]);
        received() == sent
    });
    worker_pool.stop();
    while back.take(&mut wire.rx[0]) > 0 {}

    let stats = worker_pool.stats();
    let count = |why: TransmitReason| stats.transmits.iter().find(|(reason, _)| *reason == why).unwrap().1;
    let ends = stats.transmits.iter().map(|(_, n)| n).sum::<u64>()
        + stats.punts.iter().map(|(_, n)| n).sum::<u64>()
        + stats.drops.iter().map(|(_, n)| n).sum::<u64>();
    assert_eq!(ends, sent, "every frame has one end");
    assert_eq!(count(TransmitReason::Forward), back.forwarded);
    assert_eq!(stats.interfaces[0].tx_packets, back.forwarded + back.queries);
    let punts = stats.punts.iter().filter(|(why, _)| matches!(why, PuntReason::NotIp | PuntReason::NotOurs));
    let punted: u64 = punts.map(|(_, n)| n).sum();
    assert!(punted > 0 && stats.slow_path.to_kernel_dropped <= punted);

    drop((worker_pool, wire));
    inside.stop().unwrap();
    slow_path_state.stop().unwrap();
    drop((inside, slow_path_state));
    level.assert_restored();
}

#[test]
fn a_flood_beyond_every_queue_leaks_nothing() {
    let pool = pool();
    let level = Level::of(&pool);
    // net_null produces frames of zeros as fast as they are received. All of them are for the kernel, which has no tap
    // here.
    let mut port = Port::attach(testing::eal(), "net_null,size=60").unwrap();
    let mut worker_pool = worker_pool(&mut port, &pool);
    wait_until("a flood", || worker_pool.stats().interfaces[0].rx_packets > 20_000);
    worker_pool.stop();
    let stats = worker_pool.stats();
    let dropped: u64 = stats.drops.iter().map(|(_, n)| n).sum();
    let punted: u64 = stats.punts.iter().map(|(_, n)| n).sum();
    assert_eq!(stats.interfaces[0].rx_packets, dropped + punted);
    assert!(stats.drops.iter().any(|&(why, n)| why == Refusal::PuntQueueFull.into() || n == 0));
    drop(worker_pool);
    port.stop().unwrap();
    drop(port);
    level.assert_restored();
}

fn config(device: &str) -> DataplaneConfig {
    DataplaneConfig {
        cores: vec![dpdk::lcore::usable_cpus()[0]],
        flow_entries_per_core: 1024,
        taps: false,
        interfaces: vec![InterfaceConfig {
            name: "uplink".into(),
            device: device.into(),
            mac: None,
            mtu: None,
            vlan: None,
            addresses: vec!["192.0.2.2/24".parse().unwrap()],
        }],
        ..DataplaneConfig::default()
    }
}

#[test]
fn a_gateway_starts_publishes_and_stops_twice_on_the_same_device() {
    for _ in 0..2 {
        let config = config("net_ring");
        let gateway = Dataplane::start_on(testing::eal(), &config).unwrap();
        assert_eq!(gateway.interfaces()[0].driver, "net_ring");
        let mut next = spec(1);
        next.network.interfaces = interface_specs(&config, gateway.interfaces());
        gateway.publish(&next).unwrap();
        wait_until("applied", || gateway.applied_generation() == 1);
        assert!(gateway.healthy());
        assert_eq!(gateway.stats().workers.len(), 1);
        gateway.stop();
    }
}

#[test]
fn an_impossible_configuration_is_refused_before_anything_runs() {
    let refused = |config: &DataplaneConfig| Dataplane::start_on(testing::eal(), config).unwrap_err();
    let mut many = config("net_ring");
    many.cores = dpdk::lcore::usable_cpus().into_iter().chain([4096]).collect();
    let error = refused(&many);
    assert!(matches!(error, StartError::Topology(_)), "{error}");
    assert!(error.to_string().contains("core 4096 does not exist"), "{error}");
    let error = refused(&config("net_nonsense"));
    assert!(error.to_string().contains("uplink"), "{error}");
    let mut tagged = config("net_ring");
    tagged.interfaces[0].vlan = Some(4095);
    assert!(refused(&tagged).to_string().contains("accepted: 1 to 4094"));
}
