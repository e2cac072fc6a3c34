//! The counters of a gateway, summed over its workers, as plain values for metrics and tables.
//!
//! Any thread may read them at any time; only the control plane's ledger is locked. All values are recent, but not all
//! are from the same moment.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tidegate_conntrack::EvictionReason;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Traffic;
pub use tidegate_snapshot::neighbors::Usage as NeighborUsage;
use tidegate_snapshot::service::{Service, ServiceInfo};
use tidegate_snapshot::service_limits::LimitedService;
use tidegate_spec::ids::{BackendId, InterfaceIndex, ServiceId};
use tidegate_spec::verdict::{AnswerKind, DropReason, PuntReason, TransmitReason};
use tidegate_spec::{ForwardingMode, ServiceKey};
use tidegate_structures::counter::Counter;
use tidegate_structures::histogram::Durations;
use tidegate_structures::selection_key::SelectionKey;
use tidegate_wire::{Addr, Family};

use super::flow_counts::{Answer, BackendFlowStats};
use super::ledger::BackendCounts;
use super::worker_handle::WorkerStats;
use super::worker_pool::WorkerPool;
use crate::flow_memory::{Restoration, Restored};
use crate::punt::class::{ClassCounters, PuntClass};
use crate::worker::{FlowCountQuery, Query};

/// Maximum number of pairs of a backend and a SNAT address whose flows are counted. Further pairs are ignored.
const PAIRS_MAX: usize = 1 << 16;

/// All counters of a gateway.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Indexed by interface.
    pub interfaces: Vec<InterfaceStats>,
    /// Frames dropped, for every reason.
    pub drops: Vec<(DropReason, u64)>,
    /// Frames sent, by reason.
    pub transmits: Vec<(TransmitReason, u64)>,
    /// Frames punted to the kernel, by reason.
    pub punts: Vec<(PuntReason, u64)>,
    /// Frames handed over between workers.
    pub hand_overs: u64,
    /// Sampled packets that arrived at the worker that RSS computes; 0 if it isn't computed.
    pub arrivals_as_computed: u64,
    /// Sampled packets that arrived at another worker.
    pub arrivals_elsewhere: u64,
    /// Indexed by worker.
    pub workers: Vec<WorkerStats>,
    /// Durations of loop iterations with work, in nanoseconds, indexed by worker.
    pub iterations: Vec<Durations>,
    /// How long frames for the kernel waited in their queue, in nanoseconds.
    pub punt_queue: Durations,
    /// Flows removed from the tables, by reason.
    pub evictions: Vec<(EvictionReason, u64)>,
    /// New flows refused because all flows that could have been evicted were established.
    pub flows_refused: u64,
    /// How often a worker set a backend aside because it refused or ignored new connections.
    pub backends_set_aside: u64,
    /// How often a backend that was set aside accepted connections again.
    pub backends_returned: u64,
    /// Resets and ICMP errors suppressed by a rate limit, by kind.
    pub answers_suppressed: Vec<(AnswerKind, u64)>,
    /// How often an ICMP error reduced the path MTU of a tunnel.
    pub path_mtus_received: u64,
    /// The slow path.
    pub slow_path: SlowPathStats,
    /// Frames for the kernel, by class.
    pub punt_classes: Vec<(PuntClass, PuntClassStats)>,
    /// The usage of the table of next hops.
    pub neighbors: NeighborUsage,
    /// The flows of earlier processes; `None` if flow tables don't survive a restart.
    pub restored: Option<Restored>,
}

/// One interface, as counted by the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterfaceStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets in which another station claimed an address of ours.
    pub address_conflicts: u64,
    /// Sampled packets whose transport checksum was checked.
    pub checksums_sampled: u64,
    /// Sampled packets with a partial checksum: the sender left it to its NIC, but no NIC completed it.
    pub checksums_partial: u64,
}

/// Frames of one class that workers punted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PuntClassStats {
    /// Handed to the slow path.
    pub passed: u64,
    /// Dropped because the rate of the class was exceeded.
    pub rate_limited: u64,
    /// Dropped because the queue of the class was full.
    pub queue_full: u64,
}

/// The counters of the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlowPathStats {
    /// Frames written to the kernel.
    pub to_kernel: u64,
    /// Frames that the kernel refused.
    pub to_kernel_dropped: u64,
    /// Frames from the kernel passed to workers.
    pub from_kernel: u64,
    /// Frames from the kernel dropped because memory or queue capacity was exhausted.
    pub from_kernel_dropped: u64,
    /// Requests, probes and announcements sent.
    pub neighbor_frames: u64,
    /// On-demand neighbours that were refused because all entries of their share are in use.
    pub neighbors_refused: u64,
    /// On-demand neighbours that were evicted for newer ones.
    pub neighbors_evicted: u64,
    /// Frames from the kernel and the resolver that workers sent.
    pub injected: u64,
    /// Frames from the kernel and the resolver dropped because the transmit queue was full.
    pub injected_dropped: u64,
    /// Whether its thread runs and doesn't hang.
    pub is_healthy: bool,
    /// How often its thread has started to hang.
    pub hangs: u64,
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
    /// Its forwarding mode.
    pub mode: ForwardingMode,
    /// Traffic, by [`Direction`](tidegate_snapshot::counters::Direction).
    pub traffic: [Traffic; 2],
    /// Sampled packets to it with a partial checksum, which the sender left to its NIC.
    pub partial_checksums: u64,
    /// Packets to it that were refused because they came from a default router's own address.
    pub from_router: u64,
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
    /// Traffic, by [`Direction`](tidegate_snapshot::counters::Direction).
    pub traffic: [Traffic; 2],
    /// New flows assigned to it.
    pub connections: u64,
    /// The number of workers that have set it aside because it refused or ignored new connections.
    pub set_aside: usize,
}

/// Each of `all` with its count.
fn counted<T: Copy>(all: &[T], count: impl Fn(T) -> u64) -> Vec<(T, u64)> {
    all.iter().map(|&one| (one, count(one))).collect()
}

impl<F> WorkerPool<F> {
    /// All counts since the start.
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
            checksums_sampled: sum(&|shared| shared.counters.interface(index).checksums_sampled.value()),
            checksums_partial: sum(&|shared| shared.counters.interface(index).checksums_partial.value()),
        };
        let slow = self.slow_path_counters();
        let nanos = |cycles| self.clock().nanos(cycles);
        let of_class = |class: PuntClass| {
            let count = |read: fn(&ClassCounters) -> &Counter| {
                sum(&|shared| read(&shared.loop_counters.punts[class as usize]).value())
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
            transmits: counted(&TransmitReason::ALL, |why| sum(&|shared| shared.counters.transmits(why))),
            punts: counted(&PuntReason::ALL, |why| sum(&|shared| shared.counters.punts(why))),
            hand_overs: sum(&|shared| shared.counters.hand_overs()),
            arrivals_as_computed: sum(&|shared| shared.loop_counters.arrivals_as_computed.value()),
            arrivals_elsewhere: sum(&|shared| shared.loop_counters.arrivals_elsewhere.value()),
            workers: handles
                .iter()
                .map(|handle| handle.stats(self.flow_memory().of_worker(handle.placement.worker)))
                .collect(),
            iterations: handles
                .iter()
                .map(|one| one.shared.loop_counters.busy.read().convert(nanos))
                .collect(),
            punt_queue: slow.punt_queue.read(),
            evictions: counted(&EvictionReason::ALL, |why| {
                sum(&|shared| shared.loop_counters.evictions[why as usize].value())
            }),
            flows_refused: sum(&|shared| shared.loop_counters.flows_refused.value()),
            backends_set_aside: sum(&|shared| shared.loop_counters.backends_set_aside.value()),
            backends_returned: sum(&|shared| shared.loop_counters.backends_returned.value()),
            answers_suppressed: counted(&AnswerKind::ALL, |kind| {
                sum(&|shared| shared.loop_counters.answers_suppressed[kind.index()].value())
            }),
            punt_classes: PuntClass::ALL.map(|class| (class, of_class(class))).into(),
            neighbors: self.neighbors().usage(),
            restored: self.restoration().map(Restoration::found),
            path_mtus_received: self.neighbors().path_mtus().recorded(),
            slow_path: SlowPathStats {
                to_kernel: slow.to_kernel.value(),
                to_kernel_dropped: slow.to_kernel_dropped.value(),
                from_kernel: slow.from_kernel.value(),
                from_kernel_dropped: slow.from_kernel_dropped.value(),
                neighbor_frames: slow.neighbor_frames.value(),
                neighbors_refused: slow.neighbors_refused.value(),
                neighbors_evicted: slow.neighbors_evicted.value(),
                injected: sum(&|shared| shared.loop_counters.injected.value()),
                injected_dropped: sum(&|shared| shared.loop_counters.injected_dropped.value()),
                is_healthy: self.slow_path().is_healthy(),
                hangs: self.slow_path().hangs(),
            },
        }
    }

    /// The counts of the services of the published snapshot, since each was created.
    #[must_use]
    pub fn service_stats(&self) -> Vec<ServiceStats> {
        let control = self.control();
        let snapshot = &control.publisher.current().snapshot;
        let traffic = control.ledger.traffic();
        let service = |mode: ForwardingMode, info: &ServiceInfo| {
            let backends = info.backends.iter().map(|backend| {
                let BackendCounts { traffic, connections } = control.ledger.backend(backend.id);
                let set_aside = control.ledger.set_aside(backend.id);
                let (id, address, port) = (backend.id, backend.address, backend.port);
                BackendStats { id, address, port, traffic, connections, set_aside }
            });
            ServiceStats {
                id: info.id,
                key: info.key,
                namespace: info.namespace.clone(),
                name: info.name.clone(),
                port_name: info.port_name.clone(),
                mode,
                traffic: traffic[info.id.index()],
                partial_checksums: control.ledger.partial(info.id),
                from_router: control.ledger.sent_by_router(info.id),
                backends: backends.collect(),
            }
        };
        snapshot.services().map(|(one, info)| service(one.mode, info)).collect()
    }
}

impl<F> WorkerPool<F> {
    /// The Services of the published snapshot that have limits, with their counts.
    #[must_use]
    pub fn limited_services(&self) -> Vec<LimitedService> {
        self.control().publisher.current().snapshot.limited_services().to_vec()
    }

    /// The backends that a worker has set aside because they refused or ignored new connections.
    #[must_use]
    pub fn set_aside(&self) -> Vec<BackendId> {
        let control = self.control();
        let services = control.publisher.current().snapshot.services();
        let backends = services.flat_map(|(_, info)| info.backends.iter().map(|backend| backend.id));
        backends.filter(|&id| control.ledger.set_aside(id) > 0).collect()
    }

    /// The service ports under SYN flood at a worker, which then sends SYN cookies: namespace, name and key, sorted by
    /// key.
    #[must_use]
    pub fn flooded_services(&self) -> Vec<(String, String, ServiceKey)> {
        if self.handles().iter().all(|handle| handle.shared.loop_counters.services_under_flood.value() == 0) {
            return Vec::new();
        }
        let control = self.control();
        let services = control.publisher.current().snapshot.services();
        let flooded = services.filter(|(_, info)| control.ledger.flooded(info.id) > 0);
        flooded.map(|(_, info)| (info.namespace.clone(), info.name.clone(), info.key)).collect()
    }

    /// The secret by which the published snapshot selects backends, if any.
    #[must_use]
    pub fn selection_key(&self) -> Option<SelectionKey> {
        self.control().publisher.current().snapshot.policy().selection_key
    }

    /// The flows of each backend that has any. If the workers don't finish within `wait`, the result is the last
    /// finished count, which is empty at first.
    #[must_use]
    pub fn backend_flows(&self, wait: Duration) -> Vec<BackendFlowStats> {
        self.flow_counts().read(wait, || self.query_flow_counts())
    }

    /// Queries all available workers.
    fn query_flow_counts(&self) -> Vec<Answer> {
        let pairs = pairs(&self.control().publisher.current().snapshot).min(PAIRS_MAX);
        if pairs == 0 {
            return Vec::new();
        }
        let mailboxes = self.exchange().mailboxes.iter();
        let answers = mailboxes.filter_map(|mailbox| {
            let (reply, answer) = sync_channel(1);
            let query = Query::Count(FlowCountQuery::new(pairs, reply));
            mailbox.query(query).ok().map(|()| answer)
        });
        answers.collect()
    }
}

/// The maximum number of pairs of a backend and a SNAT address.
fn pairs(snapshot: &Snapshot) -> usize {
    let of_service = |(service, info): (&Service, &ServiceInfo)| {
        let family = if info.key.vip.is_ipv4() { Family::V4 } else { Family::V6 };
        let addresses = match service.mode {
            ForwardingMode::FullNat => snapshot.snat_addresses(family).len(),
            // A backend that is its own client gets another source.
            ForwardingMode::Nat => 1 + snapshot.snat_addresses(family).len(),
            _ => 1,
        };
        info.backends.len() * addresses
    };
    snapshot.services().map(of_service).sum()
}
