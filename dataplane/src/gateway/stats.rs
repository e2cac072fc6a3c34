//! What a gateway has counted, added up over its workers: plain values for metrics and tables.
//!
//! Read from counters with one writer each, at any time, by anyone; nothing is locked but control's own ledger.
//! Numbers read while traffic flows were each true a moment ago, not all at the same moment.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tidegate_core::conntrack::EvictionReason;
use tidegate_core::counters::Counter;
use tidegate_core::histogram::Durations;
use tidegate_core::ids::{BackendId, InterfaceIndex, ServiceId, WorkerIndex};
pub use tidegate_core::neighbors::Usage as NeighborUsage;
use tidegate_core::snapshot::ServiceKey;
use tidegate_core::verdict::{AnswerKind, DropReason, PuntReason, TransmitReason};
use tidegate_core::wire::Addr;

use super::worker_handle::{WorkerHandle, WorkerState};
use super::worker_pool::WorkerPool;
use crate::punt::class::{ClassCounters, PuntClass};

/// Everything. See the module.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// By interface index.
    pub interfaces: Vec<InterfaceStats>,
    /// Frames dropped, for every reason that there is.
    pub drops: Vec<(DropReason, u64)>,
    /// Frames sent, by reason.
    pub transmits: Vec<(TransmitReason, u64)>,
    /// Frames given to the kernel, by reason.
    pub punts: Vec<(PuntReason, u64)>,
    /// Frames handed from worker to worker.
    pub hand_overs: u64,
    /// By worker index.
    pub workers: Vec<WorkerStats>,
    /// Turns of each worker's loop that had work, in nanoseconds; by worker index.
    pub turns: Vec<Durations>,
    /// How long frames for the kernel waited in their queue, in nanoseconds.
    pub punt_queue: Durations,
    /// Flows that left their table, by reason.
    pub evictions: Vec<(EvictionReason, u64)>,
    /// New flows not taken in because all that could have made way were established.
    pub flows_refused: u64,
    /// Resets and ICMP errors that were due and were not sent because of a limit, by kind.
    pub answers_suppressed: Vec<(AnswerKind, u64)>,
    /// How often an ICMP error made a path MTU of a tunnel smaller.
    pub path_mtus_learnt: u64,
    /// The threads beside the workers.
    pub slow_path: SlowPathStats,
    /// Frames for the kernel, by their class.
    pub punt_classes: Vec<(PuntClass, PuntClassStats)>,
    /// How full the table of next hops is.
    pub neighbors: NeighborUsage,
}

/// One interface, as its workers saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterfaceStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Packets in which another station claimed an address of ours.
    pub address_conflicts: u64,
}

/// Frames of one class for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PuntClassStats {
    /// Handed to the slow path.
    pub passed: u64,
    /// Dropped: over the rate of the class.
    pub rate_limited: u64,
    /// Dropped: its queue was full.
    pub queue_full: u64,
}

/// One worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerStats {
    /// Which.
    pub worker: WorkerIndex,
    /// The CPU that it is on.
    pub core: usize,
    /// Its life.
    pub state: WorkerState,
    /// Share of its time with work, 0 to 1, over the last second or more.
    pub busy_ratio: f64,
    /// Cycles per frame over the same time, of turns that had work; 0 without traffic.
    pub cycles_per_packet: f64,
    /// Frames through its pipeline, since the start.
    pub frames: u64,
    /// Flows that it remembers.
    pub flows: u64,
    /// News for the resolver that was lost; it comes again.
    pub neighbor_events_lost: u64,
}

/// The kernel's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlowPathStats {
    /// Frames given to the kernel.
    pub to_kernel: u64,
    /// Frames that it did not take.
    pub to_kernel_dropped: u64,
    /// Frames of the kernel's given to workers.
    pub from_kernel: u64,
    /// Those that found no memory or no room.
    pub from_kernel_dropped: u64,
    /// Requests, probes and announcements.
    pub neighbor_frames: u64,
    /// Neighbours that only packets want, not taken in because all of their share are in use.
    pub neighbors_refused: u64,
    /// Neighbours that only packets want, given up for newer ones.
    pub neighbors_evicted: u64,
    /// Frames of both kinds sent by workers.
    pub injected: u64,
    /// Those that the transmit queue did not take.
    pub injected_dropped: u64,
}

/// One service port.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceStats {
    /// Its id in this snapshot.
    pub id: ServiceId,
    /// (VIP, protocol, port).
    pub key: ServiceKey,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// Name of the port.
    pub port_name: String,
    /// Packets forwarded, both directions where the gateway sees both.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
    /// Its backends.
    pub backends: Vec<BackendStats>,
}

/// One backend of a service port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackendStats {
    /// Its id in this snapshot.
    pub id: BackendId,
    /// Its address.
    pub address: Addr,
    /// Its port.
    pub port: u16,
    /// New flows given to it.
    pub connections: u64,
}

impl<F> WorkerPool<F> {
    /// What was counted since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let handles = self.handles();
        let sum = |count: &dyn Fn(&crate::worker::Shared) -> u64| {
            handles.iter().map(|handle| count(&handle.shared)).sum()
        };
        let interface = |index: InterfaceIndex| InterfaceStats {
            rx_packets: sum(&|shared| shared.counters.interface(index).rx_packets.value()),
            rx_bytes: sum(&|shared| shared.counters.interface(index).rx_bytes.value()),
            tx_packets: sum(&|shared| shared.counters.interface(index).tx_packets.value()),
            tx_bytes: sum(&|shared| shared.counters.interface(index).tx_bytes.value()),
            address_conflicts: sum(&|shared| shared.counters.interface(index).address_conflicts.value()),
        };
        let slow = self.slow_path_counters();
        let nanos = |cycles| self.clock().nanos(cycles);
        let of_class = |class: PuntClass| {
            let count = |read: fn(&ClassCounters) -> &Counter| {
                sum(&|shared| read(&shared.turns.punts[class as usize]).value())
            };
            PuntClassStats {
                passed: count(|counters| &counters.passed),
                rate_limited: count(|counters| &counters.rate_limited),
                queue_full: count(|counters| &counters.queue_full),
            }
        };
        Stats {
            interfaces: (0..self.ports())
                .map(|n| interface(InterfaceIndex::try_from(n).expect("few ports")))
                .collect(),
            drops: DropReason::all().map(|why| (why, sum(&|shared| shared.counters.drops(why)))).collect(),
            transmits: TransmitReason::ALL
                .iter()
                .map(|&why| (why, sum(&|shared| shared.counters.transmits(why))))
                .collect(),
            punts: PuntReason::ALL
                .iter()
                .map(|&why| (why, sum(&|shared| shared.counters.punts(why))))
                .collect(),
            hand_overs: sum(&|shared| shared.counters.hand_overs()),
            workers: handles.iter().map(WorkerHandle::stats).collect(),
            turns: handles.iter().map(|one| one.shared.turns.busy.read().convert(nanos)).collect(),
            punt_queue: slow.punt_queue.read(),
            evictions: EvictionReason::ALL
                .iter()
                .map(|&why| (why, sum(&|shared| shared.turns.evictions[why as usize].value())))
                .collect(),
            flows_refused: sum(&|shared| shared.turns.flows_refused.value()),
            answers_suppressed: AnswerKind::ALL
                .iter()
                .map(|&kind| (kind, sum(&|shared| shared.turns.answers_suppressed[kind.index()].value())))
                .collect(),
            punt_classes: PuntClass::ALL.map(|class| (class, of_class(class))).into(),
            neighbors: self.neighbors().usage(),
            path_mtus_learnt: self.neighbors().path_mtus().learnt(),
            slow_path: SlowPathStats {
                to_kernel: slow.to_kernel.value(),
                to_kernel_dropped: slow.to_kernel_dropped.value(),
                from_kernel: slow.from_kernel.value(),
                from_kernel_dropped: slow.from_kernel_dropped.value(),
                neighbor_frames: slow.neighbor_frames.value(),
                neighbors_refused: slow.neighbors_refused.value(),
                neighbors_evicted: slow.neighbors_evicted.value(),
                injected: sum(&|shared| shared.turns.injected.value()),
                injected_dropped: sum(&|shared| shared.turns.injected_dropped.value()),
            },
        }
    }

    /// What the services of the published snapshot have counted since they are there.
    #[must_use]
    pub fn service_stats(&self) -> Vec<ServiceStats> {
        let control = self.control();
        let snapshot = &control.publisher.current().snapshot;
        let service = |info: &tidegate_core::service::ServiceInfo| {
            let (packets, bytes) = control.ledger.service(info.id);
            let backends = info.backends.iter().map(|backend| BackendStats {
                id: backend.id,
                address: backend.address,
                port: backend.port,
                connections: control.ledger.connections(backend.id),
            });
            ServiceStats {
                id: info.id,
                key: info.key,
                namespace: info.namespace.clone(),
                name: info.name.clone(),
                port_name: info.port_name.clone(),
                packets,
                bytes,
                backends: backends.collect(),
            }
        };
        snapshot.services().map(|(_, info)| service(info)).collect()
    }
}

/// Readings of a worker's cycles, so that ratios are over a time that is long enough to mean something and short
/// enough to be now. Whoever reads most often sets the pace.
#[derive(Debug, Default)]
pub(super) struct Window(Mutex<Option<(Reading, Reading)>>);

/// The shortest time that a ratio is made of.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// One reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) busy: u64,
    pub(super) idle: u64,
    pub(super) frames: u64,
}

impl Window {
    /// (busy ratio, cycles per packet) since the reading before, or since the start for the first.
    pub(super) fn ratios(&self, now: Reading) -> (f64, f64) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let zero = Reading { at: now.at, busy: 0, idle: 0, frames: 0 };
        let (older, newer) = held.get_or_insert((zero, now));
        if now.at.duration_since(newer.at) >= WINDOW_MIN {
            (*older, *newer) = (*newer, now);
        }
        let busy = now.busy.saturating_sub(older.busy) as f64;
        let idle = now.idle.saturating_sub(older.idle) as f64;
        let frames = now.frames.saturating_sub(older.frames) as f64;
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        (ratio(busy, busy + idle), ratio(busy, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_last_second_not_of_the_whole_life() {
        let window = Window::default();
        let start = Instant::now();
        let reading = |seconds, busy, idle, frames| Reading {
            at: start + Duration::from_secs(seconds),
            busy,
            idle,
            frames,
        };
        assert_eq!(window.ratios(reading(0, 100, 300, 10)), (0.25, 10.0));
        assert_eq!(window.ratios(reading(2, 100, 1300, 10)), (0.0, 0.0), "idle since");
        assert_eq!(window.ratios(reading(4, 600, 1800, 110)), (0.5, 5.0));
    }

    #[test]
    fn readers_in_a_hurry_share_one_window() {
        let window = Window::default();
        let start = Instant::now();
        let reading =
            |millis, busy| Reading { at: start + Duration::from_millis(millis), busy, idle: 0, frames: busy };
        window.ratios(reading(0, 10));
        window.ratios(reading(1000, 20));
        assert_eq!(window.ratios(reading(1001, 21)), (1.0, 1.0));
    }
}
