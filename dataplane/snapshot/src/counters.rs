//! The counters of a worker: written by one worker, read by anyone, without locks.
//!
//! A counter is an atomic that its worker loads, adds to and stores with relaxed order: plain moves on common machines,
//! and readers lag by at most a moment. [`WorkerCounters`] live as long as the worker. [`Tallies`] (per service, per
//! backend) have the size of a snapshot and are replaced to grow, so a reader sums all tallies of a worker. Forwarded
//! packets are counted by backend; the traffic of a service is the sum over its backends.
//!
//! Invariant: every frame given to a worker is counted once in exactly one of transmits, punts, hand-overs and drops
//! (`pipeline_fuzz.rs` in the tests of `tidegate-pipeline`).

use std::ops::Range;

use tidegate_select::loads::Load;
use tidegate_spec::ids::{BackendId, InterfaceIndex, ServiceId};
use tidegate_spec::limits::INTERFACES_MAX;
use tidegate_spec::verdict::{DropReason, PuntReason, TransmitReason, Verdict};
use tidegate_structures::counter::Counter;

/// Frames and bytes through one interface, as one worker saw them.
#[derive(Debug, Default)]
pub struct InterfaceCounters {
    /// Frames received.
    pub rx_packets: Counter,
    /// Bytes received, without preamble and check sequence.
    pub rx_bytes: Counter,
    /// Frames sent.
    pub tx_packets: Counter,
    /// Bytes sent.
    pub tx_bytes: Counter,
    /// Packets in which another station claimed an address of the gateway.
    pub address_conflicts: Counter,
    /// Sampled packets whose transport checksum was verified.
    pub checksums_sampled: Counter,
    /// Sampled packets whose checksum the sender left to its NIC, but no NIC completed.
    pub checksums_partial: Counter,
}

/// Everything that one worker counts over its life.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerCounters {
    interfaces: [InterfaceCounters; INTERFACES_MAX],
    transmits: [Counter; TransmitReason::COUNT],
    punts: [Counter; PuntReason::COUNT],
    drops: [Counter; DropReason::COUNT],
    hand_overs: Counter,
}

impl Default for WorkerCounters {
    fn default() -> Self {
        Self {
            interfaces: std::array::from_fn(|_| InterfaceCounters::default()),
            transmits: std::array::from_fn(|_| Counter::default()),
            punts: std::array::from_fn(|_| Counter::default()),
            drops: std::array::from_fn(|_| Counter::default()),
            hand_overs: Counter::default(),
        }
    }
}

impl WorkerCounters {
    /// Counts the verdict on one frame. The worker calls it once for each frame, when the outcome is certain: a
    /// `Transmit` that the queue did not accept is recorded as a drop instead.
    #[inline]
    pub fn record(&self, verdict: Verdict) {
        match verdict {
            Verdict::Transmit { why, .. } => self.transmits[why.index()].add(1),
            Verdict::Punt(why) => self.punts[why.index()].add(1),
            Verdict::HandOver(_) => self.hand_overs.add(1),
            Verdict::Drop(why) => self.drops[why.index()].add(1),
        }
    }

    /// The counters of an interface.
    ///
    /// # Panics
    /// If the index is not below [`INTERFACES_MAX`].
    #[inline]
    #[must_use]
    pub fn interface(&self, interface: InterfaceIndex) -> &InterfaceCounters {
        &self.interfaces[usize::from(interface)]
    }

    /// Frames sent for this reason.
    #[must_use]
    pub fn transmits(&self, why: TransmitReason) -> u64 {
        self.transmits[why.index()].value()
    }

    /// Frames handed to the kernel for this reason.
    #[must_use]
    pub fn punts(&self, why: PuntReason) -> u64 {
        self.punts[why.index()].value()
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn drops(&self, why: DropReason) -> u64 {
        self.drops[why.index()].value()
    }

    /// Frames handed to another worker.
    #[must_use]
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.value()
    }
}

tidegate_wire::named! {
    /// The direction of a forwarded packet.
    pub enum Direction {
        /// From a client to a backend.
        Request = 0 => "request",
        /// From a backend to a client. In the DSR modes replies don't pass through the gateway.
        Reply = 1 => "reply",
    }
}

/// Packets of one backend, or of one service port, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
}

impl Traffic {
    /// Adds other traffic.
    pub fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Traffic of one backend, by [`Direction`].
#[derive(Debug, Default)]
struct BackendTally([TrafficCounters; 2]);

#[derive(Debug, Default)]
struct TrafficCounters {
    packets: Counter,
    bytes: Counter,
}

/// A list in cache lines of its own, so that two workers never write to the same line.
#[derive(Debug)]
struct Lines<T> {
    parts: Box<[Part<T>]>,
    len: usize,
}

/// Counters that fill a cache line.
const PART: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Part<T>([T; PART]);

impl<T: Default> Lines<T> {
    fn new(len: usize) -> Self {
        Self { parts: std::iter::repeat_with(Part::default).take(len.div_ceil(PART)).collect(), len }
    }

    #[inline]
    fn get(&self, at: usize) -> Option<&T> {
        self.parts.get(at / PART).map(|part| &part.0[at % PART])
    }

    /// The addresses of all items.
    fn addresses(&self) -> Range<usize> {
        let start = self.parts.as_ptr().addr();
        start..start + size_of_val(&*self.parts)
    }
}

/// Per-service and per-backend counts of one worker, by the index of the ids.
#[derive(Debug)]
pub struct Tallies {
    traffic: Lines<BackendTally>,
    connections: Lines<Counter>,
    /// The loads of backends in this worker's flow tables, for the other workers ([`Load::word`]). Only those that
    /// schedulers compare are set.
    loads: Lines<Counter>,
    /// Whether this worker has set the backend aside: 1 or 0.
    set_aside: Lines<Counter>,
    /// Whether the service is under a SYN flood at this worker: 1 or 0.
    flooded: Lines<Counter>,
    /// Sampled packets to the service with a partial checksum.
    partial: Lines<Counter>,
    /// Packets to the service that were refused because they come from a default router's own address.
    from_router: Lines<Counter>,
}

impl Tallies {
    /// Tallies for ids with indices below these numbers. Larger indices may not be counted.
    #[must_use]
    pub fn with_capacity(services: usize, backends: usize) -> Self {
        Self {
            traffic: Lines::new(backends),
            connections: Lines::new(backends),
            loads: Lines::new(backends),
            set_aside: Lines::new(backends),
            flooded: Lines::new(services),
            partial: Lines::new(services),
            from_router: Lines::new(services),
        }
    }

    /// The numbers of service and backend indices that the tallies cover.
    #[must_use]
    pub fn capacity(&self) -> (usize, usize) {
        (self.flooded.len, self.connections.len)
    }

    /// The address ranges that the worker writes to.
    #[must_use]
    pub fn written(&self) -> [Range<usize>; 7] {
        [
            self.traffic.addresses(),
            self.connections.addresses(),
            self.loads.addresses(),
            self.set_aside.addresses(),
            self.flooded.addresses(),
            self.partial.addresses(),
            self.from_router.addresses(),
        ]
    }

    /// Counts one packet that was forwarded to or from a backend.
    #[inline]
    pub fn forwarded(&self, backend: BackendId, direction: Direction, bytes: usize) {
        if let Some(tally) = self.traffic.get(backend.index()) {
            let traffic = &tally.0[direction as usize];
            traffic.packets.add(1);
            traffic.bytes.add(bytes as u64);
        }
    }

    /// Counts one new flow given to a backend.
    #[inline]
    pub fn connected(&self, backend: BackendId) {
        if let Some(connections) = self.connections.get(backend.index()) {
            connections.add(1);
        }
    }

    /// Publishes the load of a backend to the other workers.
    pub fn publish_load(&self, backend: BackendId, load: Load) {
        if let Some(word) = self.loads.get(backend.index()) {
            word.set(load.word());
        }
    }

    /// The load of a backend that the worker published last.
    #[must_use]
    pub fn load(&self, backend: BackendId) -> Load {
        self.loads.get(backend.index()).map_or(Load::default(), |word| Load::from_word(word.value()))
    }

    /// Publishes whether the worker has set a backend aside.
    pub fn publish_set_aside(&self, backend: BackendId, is_aside: bool) {
        if let Some(word) = self.set_aside.get(backend.index()) {
            word.set(u64::from(is_aside));
        }
    }

    /// Whether the worker has set aside the backend at this index, as last published.
    #[must_use]
    pub fn is_set_aside(&self, index: usize) -> bool {
        self.set_aside.get(index).is_some_and(|word| word.value() != 0)
    }

    /// Publishes whether a service is under a SYN flood, which SYN cookies answer.
    pub fn publish_flood(&self, service: ServiceId, is_flooded: bool) {
        if let Some(word) = self.flooded.get(service.index()) {
            word.set(u64::from(is_flooded));
        }
    }

    /// Whether the service at this index is under a SYN flood, as last published.
    #[must_use]
    pub fn is_flooded(&self, index: usize) -> bool {
        self.flooded.get(index).is_some_and(|word| word.value() != 0)
    }

    /// Counts a sampled packet to a service whose sender left the checksum to its NIC.
    pub fn count_partial(&self, service: ServiceId) {
        if let Some(count) = self.partial.get(service.index()) {
            count.add(1);
        }
    }

    /// Sampled packets to the service at this index with a partial checksum, since these tallies were created.
    #[must_use]
    pub fn partial(&self, index: usize) -> u64 {
        self.partial.get(index).map_or(0, Counter::value)
    }

    /// Counts a packet to a service that is refused because it comes from a default router's own address.
    pub fn count_from_router(&self, service: ServiceId) {
        if let Some(count) = self.from_router.get(service.index()) {
            count.add(1);
        }
    }

    /// Packets to the service at this index that were refused because they came from a default router's own address,
    /// since these tallies were created.
    #[must_use]
    pub fn from_router(&self, index: usize) -> u64 {
        self.from_router.get(index).map_or(0, Counter::value)
    }

    /// The traffic of the backend at this index since these tallies were created, by [`Direction`].
    #[must_use]
    pub fn traffic(&self, index: usize) -> [Traffic; 2] {
        let read = |one: &TrafficCounters| Traffic { packets: one.packets.value(), bytes: one.bytes.value() };
        self.traffic.get(index).map_or_else(Default::default, |tally| tally.0.each_ref().map(read))
    }

    /// New flows of the backend at this index since these tallies were created.
    #[must_use]
    pub fn connections(&self, index: usize) -> u64 {
        self.connections.get(index).map_or(0, Counter::value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_spec::verdict::Refusal;

    #[test]
    fn each_verdict_is_counted_where_it_belongs() {
        let counters = WorkerCounters::default();
        counters.record(Refusal::NoService.into());
        counters.record(Verdict::Punt(PuntReason::Local));
        counters.record(Verdict::HandOver(3));
        counters.record(Verdict::Transmit { interface: 0, why: TransmitReason::Reply });
        assert_eq!(counters.drops(Refusal::NoService.into()), 1);
        assert_eq!(counters.drops(Refusal::NoFlow.into()), 0);
        assert_eq!(counters.punts(PuntReason::Local), 1);
        assert_eq!(counters.hand_overs(), 1);
        assert_eq!(counters.transmits(TransmitReason::Reply), 1);
    }

    #[test]
    fn ids_beyond_the_tallies_are_not_counted() {
        let tallies = Tallies::with_capacity(1, 1);
        tallies.forwarded(BackendId::new(0, 0), Direction::Reply, 100);
        tallies.forwarded(BackendId::new(8, 0), Direction::Request, 100);
        tallies.connected(BackendId::new(9, 0));
        let reply = Traffic { packets: 1, bytes: 100 };
        assert_eq!((tallies.traffic(0), tallies.capacity()), ([Traffic::default(), reply], (1, 1)));
        assert_eq!(tallies.traffic(8), [Traffic::default(); 2]);
        assert_eq!(tallies.connections(9), 0);
    }
}
