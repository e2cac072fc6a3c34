//! `sessionAffinity: ClientIP` with the threads of a gateway: the connections of a client arrive at two workers.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::time::Duration;

use common::*;
use tidegate_dataplane::drivers::memory::{self, Heap, MemoryPort};
use tidegate_dataplane::gateway::{WorkerPool, WorkerPoolConfig};
use tidegate_dataplane::topology::WorkerPlacement;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::testing::Builder;
use tidegate_spec::{BackendSpec, BackendState, NeighborSpec, SnapshotSpec};
use tidegate_wire::{MacAddr, ethernet, tcp};

/// A gateway with one Service with affinity and these backends.
fn sticky(generation: u64, backends: std::ops::RangeInclusive<u8>) -> SnapshotSpec {
    let mut spec = spec(generation);
    let neighbor = |n: u8| NeighborSpec { ip: ip(&format!("192.0.2.{n}")), mac: MacAddr([2, 0, 0, 0, 1, n]) };
    spec.network.neighbors = (10..=80).map(neighbor).collect();
    spec.services.truncate(1);
    let service = &mut spec.services[0];
    service.affinity = Some(Duration::from_secs(10_800));
    service.scheduler = tidegate_spec::Scheduler::Rendezvous;
    let backend = |n: u8| BackendSpec {
        address: ip(&format!("192.0.2.{n}")),
        port: 80,
        weight: 1,
        state: BackendState::Active,
    };
    service.backends = backends.map(backend).collect();
    spec
}

/// The link addresses of the backends of 40 clients that connect through this worker's queue, one after another.
fn connect(wire: &MemoryPort, queue: usize, port: u16) -> Vec<MacAddr> {
    let one = |client: u8| {
        let (from, to) = (format!("192.0.2.{client}:{port}"), format!("{VIP_L2}:80"));
        let syn =
            Builder::tcp(from.as_str(), to.as_str()).mac(CLIENT, GATEWAY).flags(tcp::flags::SYN).build();
        assert!(wire.offer(queue, &syn));
        let mut sent = None;
        wait_until("the SYN is forwarded", || {
            // The gateway requests its fixed neighbours by broadcast.
            sent = wire.take(queue).filter(|sent| ethernet::destination(sent.bytes()) != MacAddr::BROADCAST);
            // The link address of a fixed neighbour changes a moment after the state is applied.
            if sent.as_ref().is_some_and(|sent| ethernet::destination(sent.bytes()).0[4] != 1) {
                sent = None;
                assert!(wire.offer(queue, &syn));
            }
            sent.is_some()
        });
        ethernet::destination(sent.unwrap().bytes())
    };
    (41..=80).map(one).collect()
}

#[test]
fn clients_keep_their_backends_across_workers_when_backends_are_added() {
    let (wire, ends) = memory::port(2, 64);
    let config = WorkerPoolConfig {
        placements: (0..2)
            .map(|worker| WorkerPlacement { worker, core: usize::from(worker), numa: None })
            .collect(),
        steering: Steering::Partition,
        ..WorkerPoolConfig::one_worker(0, 4096)
    };
    let queues = ends.into_iter().map(|end| vec![end]).collect();
    let enter = |_: &WorkerPlacement| Ok::<(), String>(());
    // As in a gateway, the first Service with affinity arrives with a later state.
    let worker_pool = WorkerPool::start(&config, queues, Heap, vec![None], &spec(1), enter, None).unwrap();
    let publish = |spec: &SnapshotSpec| {
        worker_pool.publish(spec).unwrap();
        wait_until("applied", || worker_pool.applied_generation() == spec.generation);
    };
    publish(&sticky(2, 10..=12));
    let before = connect(&wire, 0, 4000);
    publish(&sticky(3, 10..=30));
    assert_eq!(connect(&wire, 1, 4001), before, "worker 1 saw none of these clients");
    publish(&sticky(4, 11..=30));
    let after = connect(&wire, 0, 4002);
    let gone = MacAddr([2, 0, 0, 0, 1, 10]);
    for (after, before) in after.iter().zip(&before) {
        assert!(*after != gone && (after == before || *before == gone), "{after} {before}");
    }
    assert!(before.contains(&gone), "the test needs clients of the backend that leaves");
    assert_eq!(connect(&wire, 1, 4003), after);
}
