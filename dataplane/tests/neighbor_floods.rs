//! The slow path, its resolver and the table that workers read, during floods from an attacker on the link: neighbours
//! in use stay resolved throughout, and the entries of the flood are removed afterwards.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod common;

use std::sync::Arc;

use common::*;
use crossbeam::queue::ArrayQueue;
use tidegate_dataplane::clock::Clock;
use tidegate_dataplane::drivers::memory::Heap;
use tidegate_dataplane::links::Links;
use tidegate_dataplane::slow_path::{Memory, SlowPath, SlowPathState};
use tidegate_dataplane::worker::Exchange;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::pipeline::{NeighborEvent, Sighting};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::now::Now;
use tidegate_wire::{Addr, MacAddr, Parsed, parse};

const ATTACKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// The slow path without threads and taps.
struct Link {
    slow_path: SlowPath<Heap>,
    memory: Memory,
    table: Arc<NeighborTable>,
    exchange: Arc<Exchange<MemoryFrame>>,
    _snapshot: Snapshot,
}

impl Link {
    fn new() -> Self {
        let mut spec = spec(1);
        spec.network.neighbors.clear();
        let table = Arc::new(NeighborTable::seeded(7));
        let (snapshot, _) = Snapshot::compile(&spec, None, &table).unwrap();
        let exchange = Arc::new(Exchange::new(1));
        let slow_path_state = Arc::new(ArrayQueue::new(1));
        slow_path_state.force_push(SlowPathState::of(&spec, true));
        let slow_path = SlowPath {
            exchange: Arc::clone(&exchange),
            source: Heap,
            taps: vec![None],
            probes: Arc::default(),
            probe_device: None,
            links: Arc::new(Links::new(["uplink"])),
            table: Arc::clone(&table),
            slow_path_state,
            counters: Arc::default(),
            clock: Clock::calibrated(),
        };
        Self { slow_path, memory: Memory::default(), table, exchange, _snapshot: snapshot }
    }

    fn wants(&self, addr: Addr) {
        self.exchange.neighbor_reports.report(NeighborEvent::Wanted { interface: 0, addr });
    }

    fn receives(&self, addr: Addr, mac: MacAddr, how: Sighting) {
        self.exchange.neighbor_reports.report(NeighborEvent::Seen {
            interface: 0,
            addr,
            mac: Some(mac),
            how,
        });
    }

    /// Runs the slow path until its queues are empty. The stations in `here` answer requests for them.
    fn run(&mut self, now: Now, here: &[(Addr, MacAddr)]) -> usize {
        let mut sent = 0;
        for _ in 0..64 {
            self.slow_path.run_once(&mut self.memory, now);
            while let Some((_, frame)) = self.exchange.mailboxes[0].next_injected() {
                sent += 1;
                let request = match parse(frame.bytes()) {
                    Ok(Parsed::Arp(packet)) => here.iter().find(|(addr, _)| *addr == packet.target_ip.into()),
                    _ => None,
                };
                if let Some(&(addr, mac)) = request {
                    self.receives(addr, mac, Sighting::Answer { overrides: true });
                }
            }
        }
        sent
    }
}

fn millis(millis: u64) -> Now {
    Now(millis * 1_000_000)
}

#[test]
fn neighbours_in_use_stay_resolved_through_a_flood() {
    let mut link = Link::new();
    let (client, backend) = (Addr::from(ip(CLIENT_IP)), Addr::from(ip(BACKEND_IP)));
    let here = [(client, CLIENT), (backend, BACKEND)];
    link.wants(client);
    link.run(millis(0), &here);
    link.run(millis(1), &here);
    let resolved = |link: &Link, addr| link.table.resolve(0, &addr);
    let before = link.table.usage();
    assert_eq!((resolved(&link, client), resolved(&link, backend)), (Some(CLIENT), Some(BACKEND)));

    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random
    };
    for round in 1..=100 {
        let now = millis(round * 1_000);
        for _ in 0..2_000 {
            let v6 = |n: u64| Addr::v6((0x2001_0db8_u128 << 96 | u128::from(n)).to_be_bytes());
            let v4 = |n: u64| Addr::v4([10, (n >> 40) as u8, (n >> 48) as u8, (n >> 56) as u8]);
            // Unused source addresses, requests with such sources, and unsolicited answers.
            link.wants(v6(next()));
            link.wants(v4(next()));
            link.receives(v6(next()), ATTACKER, Sighting::Request);
            link.receives(v4(next()), ATTACKER, Sighting::Answer { overrides: true });
        }
        // Nor do announcements for neighbours in use have an effect, unless the override flag is set.
        link.receives(backend, ATTACKER, Sighting::Announcement { overrides: false });
        let sent = link.run(now, &here);
        assert!(sent < 2_600, "{sent} frames in a second");
        assert_eq!(
            (resolved(&link, client), resolved(&link, backend)),
            (Some(CLIENT), Some(BACKEND)),
            "round {round}"
        );
    }
    let during = link.table.usage();
    assert!(during.on_demand < during.on_demand_max, "{during:?}");
    assert_eq!(during.next_hops, before.next_hops);

    for second in 101..900 {
        link.run(millis(second * 1_000), &here);
        assert!(resolved(&link, client).is_some() && resolved(&link, backend).is_some());
    }
    assert_eq!(link.table.usage(), before, "all entries of the flood are free again");
}
