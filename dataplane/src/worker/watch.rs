//! Copies of packets with their verdicts, for `tidegate trace` and `tidegate capture`.
//!
//! A watch has one [`WatchFilter`] and, for each worker, a [`Watch`]: a queue of empty records and a queue of filled
//! ones, both allocated by the watcher. The worker takes an empty record, fills it and queues it. Without watches, a
//! worker pays one comparison per burst; with watches, it parses the headers of each frame once more.
//!
//! Invariant: nothing here waits or allocates on the worker. A packet that finds no empty record is counted as lost and
//! forwarded as usual.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use crossbeam::queue::ArrayQueue;
use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::pipeline::{BurstOutput, Note};
use tidegate_spec::ids::{BackendId, InterfaceIndex, ServiceId, WorkerIndex};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{DropReason, PuntReason, TransmitReason, Verdict};
use tidegate_wire::{Addr, Parsed, parse, proto};

/// Watches that a worker serves at a time.
pub const WATCHES_MAX: usize = 4;

/// The kind of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictKind {
    /// Sent.
    Transmit,
    /// For the kernel.
    Punt,
    /// Dropped, or kept until its next hop or first fragment is known.
    Drop,
}

/// The reason of a verdict. Reasons of different kinds may have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictReason {
    /// A frame is sent.
    Transmit(TransmitReason),
    /// A frame goes to the kernel.
    Punt(PuntReason),
    /// A frame is dropped.
    Drop(DropReason),
}

/// Selects packets. A field that is `None` matches all packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchFilter {
    /// The source or the destination has this address.
    pub host: Option<Addr>,
    /// The source or the destination has this port.
    pub port: Option<u16>,
    /// The IANA number of the protocol.
    pub protocol: Option<u8>,
    /// The interface that received the packet.
    pub interface: Option<InterfaceIndex>,
    /// The service port is one of these.
    pub services: Option<Arc<[ServiceId]>>,
    /// The backend is one of these.
    pub backends: Option<Arc<[BackendId]>>,
    /// The kind of the verdict.
    pub verdict: Option<VerdictKind>,
    /// The reason of the verdict is one of these.
    pub reasons: Option<Arc<[VerdictReason]>>,
}

impl WatchFilter {
    /// Whether a received frame matches the conditions that can be checked before it is processed.
    fn wants(&self, interface: InterfaceIndex, endpoints: Option<&Endpoints>) -> bool {
        let checks_headers = self.host.is_some() || self.port.is_some() || self.protocol.is_some();
        self.interface.is_none_or(|wanted| wanted == interface)
            && (!checks_headers
                || endpoints.is_some_and(|endpoints| {
                    self.host.is_none_or(|host| host == endpoints.source || host == endpoints.destination)
                        && self.port.is_none_or(|port| {
                            endpoints
                                .ports
                                .is_some_and(|(source, destination)| port == source || port == destination)
                        })
                        && self.protocol.is_none_or(|protocol| endpoints.protocol == Some(protocol))
                }))
    }

    /// Whether a frame whose headers match also matches the conditions on the result.
    fn wants_result(&self, verdict: Verdict, note: &Note) -> bool {
        let (kind, why) = match verdict {
            Verdict::Transmit { why, .. } => (VerdictKind::Transmit, VerdictReason::Transmit(why)),
            Verdict::Punt(why) => (VerdictKind::Punt, VerdictReason::Punt(why)),
            Verdict::Drop(why) => (VerdictKind::Drop, VerdictReason::Drop(why)),
            // The worker that owns the flow processes and records it.
            Verdict::HandOver(_) => return false,
        };
        self.verdict.is_none_or(|wanted| wanted == kind)
            && self.reasons.as_ref().is_none_or(|reasons| reasons.contains(&why))
            && self
                .services
                .as_ref()
                .is_none_or(|services| note.service.is_some_and(|service| services.contains(&service)))
            && self
                .backends
                .as_ref()
                .is_none_or(|backends| note.backend.is_some_and(|backend| backends.contains(&backend)))
    }
}

/// Source and destination of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// The IANA number of the protocol; `None` for ARP.
    pub protocol: Option<u8>,
    /// The source; the sender of an ARP packet.
    pub source: Addr,
    /// The destination; the target of an ARP packet.
    pub destination: Addr,
    /// Source and destination port, if the packet has its TCP, UDP or SCTP header.
    pub ports: Option<(u16, u16)>,
}

impl Endpoints {
    /// The endpoints of a frame; `None` if its headers are invalid, or it is neither IP nor ARP.
    fn of(bytes: &[u8]) -> Option<Self> {
        match parse(bytes).ok()? {
            Parsed::Ip(h) => Some(Self {
                protocol: Some(h.proto),
                source: h.src,
                destination: h.dst,
                ports: (matches!(h.proto, proto::TCP | proto::UDP | proto::SCTP) && !h.is_later_fragment())
                    .then_some((h.src_port, h.dst_port)),
            }),
            Parsed::Arp(arp) => Some(Self {
                protocol: None,
                source: IpAddr::V4(arp.sender_ip).into(),
                destination: IpAddr::V4(arp.target_ip).into(),
                ports: None,
            }),
            Parsed::Other => None,
        }
    }
}

/// A copy of a packet and its verdict.
#[derive(Debug, Clone)]
pub struct WatchedPacket {
    /// When its burst was processed.
    pub at: Now,
    /// The worker that processed it.
    pub worker: WorkerIndex,
    /// The interface that received it.
    pub interface: InterfaceIndex,
    /// Its source and destination.
    pub endpoints: Option<Endpoints>,
    /// The verdict.
    pub verdict: Verdict,
    /// Whether it waits for its next hop or its first fragment. It is then processed and recorded again, or ends with
    /// this verdict.
    pub waits: bool,
    /// Its Service, its backend, and whether its flow existed.
    pub note: Note,
    /// The first bytes of the frame as it was received.
    pub received: Vec<u8>,
    /// The length of the frame as received.
    pub received_len: usize,
    /// The first bytes of the frame as sent; empty if it wasn't sent.
    pub sent: Vec<u8>,
    /// Its length before fragmentation.
    pub sent_len: usize,
}

impl WatchedPacket {
    /// An empty record with capacity for `snap` bytes of each frame.
    fn with_capacity(snap: usize) -> Box<Self> {
        Box::new(Self {
            at: Now::default(),
            worker: 0,
            interface: 0,
            endpoints: None,
            verdict: Verdict::Punt(PuntReason::NotIp),
            waits: false,
            note: Note::default(),
            received: Vec::with_capacity(snap),
            received_len: 0,
            sent: Vec::with_capacity(snap),
            sent_len: 0,
        })
    }
}

/// Replaces the contents with the first bytes of a frame, as many as fit without allocating.
fn copy(bytes: &[u8], to: &mut Vec<u8>) -> usize {
    to.clear();
    to.extend_from_slice(&bytes[..bytes.len().min(to.capacity())]);
    bytes.len()
}

/// What one worker shares with the watcher.
#[derive(Debug)]
pub struct Watch {
    filter: WatchFilter,
    empty: ArrayQueue<Box<WatchedPacket>>,
    filled: ArrayQueue<Box<WatchedPacket>>,
    lost: AtomicU64,
    ended: AtomicBool,
}

impl Watch {
    /// A watch with capacity for `records` unread packets, with `snap` bytes of each frame.
    #[must_use]
    pub fn new(filter: WatchFilter, records: usize, snap: usize) -> Self {
        let empty = ArrayQueue::new(records.max(1));
        while empty.push(WatchedPacket::with_capacity(snap)).is_ok() {}
        let filled = ArrayQueue::new(empty.capacity());
        Self { filter, empty, filled, lost: AtomicU64::new(0), ended: AtomicBool::new(false) }
    }

    /// Calls `each` for up to `max` packets.
    pub fn take(&self, max: usize, mut each: impl FnMut(&WatchedPacket)) {
        for _ in 0..max {
            let Some(packet) = self.filled.pop() else { return };
            each(&packet);
            self.give_back(packet);
        }
    }

    /// Matching packets that were not recorded because earlier ones weren't read in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the watch. The worker drops it at its next burst, and the memory of the records is freed here.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        while self.empty.pop().is_some() || self.filled.pop().is_some() {}
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn give_back(&self, packet: Box<WatchedPacket>) {
        // There is capacity for every record.
        let _ = self.empty.push(packet);
    }
}

/// The watches of one worker.
#[derive(Debug, Default)]
pub(super) struct Watches {
    active: ArrayVec<Arc<Watch>, WATCHES_MAX>,
    /// The records of the current burst.
    pending: Vec<Pending>,
}

/// The record of a packet that is being processed.
#[derive(Debug)]
struct Pending {
    watch: usize,
    frame: usize,
    packet: Box<WatchedPacket>,
}

impl Watches {
    /// Adds a watch. Callers must keep count: a watch beyond [`WATCHES_MAX`] ends at once.
    #[cold]
    pub(super) fn add(&mut self, watch: Arc<Watch>) {
        self.active.retain(|watch| !watch.has_ended());
        // Allocated once per worker, between bursts.
        self.pending.reserve(BURST * WATCHES_MAX);
        if let Err(refused) = self.active.try_push(watch) {
            refused.element().ended.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Copies the matching frames before they are processed.
    #[cold]
    pub(super) fn begin<F: Frame>(
        &mut self,
        now: Now,
        worker: WorkerIndex,
        interface: InterfaceIndex,
        frames: &[F],
    ) {
        self.active.retain(|watch| !watch.has_ended());
        for (frame, bytes) in frames.iter().map(Frame::bytes).enumerate() {
            let endpoints = Endpoints::of(bytes);
            for (n, watch) in self.active.iter().enumerate() {
                if !watch.filter.wants(interface, endpoints.as_ref()) {
                    continue;
                }
                let Some(mut packet) = watch.empty.pop() else {
                    watch.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                (packet.at, packet.worker, packet.interface, packet.endpoints) =
                    (now, worker, interface, endpoints);
                packet.received_len = copy(bytes, &mut packet.received);
                self.pending.push(Pending { watch: n, frame, packet });
            }
        }
    }

    /// Completes the records with the results. `may_wait` is whether the frames may wait.
    #[cold]
    pub(super) fn end<F: Frame>(&mut self, out: &BurstOutput, frames: &[F], may_wait: bool) {
        for Pending { watch, frame, mut packet } in self.pending.drain(..) {
            let watch = &self.active[watch];
            let (verdict, note) = (out.verdicts[frame], out.notes[frame]);
            if !watch.filter.wants_result(verdict, &note) {
                watch.give_back(packet);
                continue;
            }
            (packet.verdict, packet.note) = (verdict, note);
            packet.waits = may_wait
                && (out.unresolved.iter().any(|one| usize::from(one.frame) == frame)
                    || out.unknown_fragments.iter().any(|one| usize::from(one.frame) == frame));
            packet.sent.clear();
            packet.sent_len = 0;
            if matches!(verdict, Verdict::Transmit { .. }) {
                packet.sent_len = copy(frames[frame].bytes(), &mut packet.sent);
            }
            // There is capacity for every record.
            let _ = watch.filled.push(packet);
        }
    }
}

/// The watches of all workers with one filter. They end when this is dropped.
#[derive(Debug)]
pub struct PacketWatch(Vec<Arc<Watch>>);

impl PacketWatch {
    /// Combines the watches of all workers.
    #[must_use]
    pub(crate) fn new(watches: Vec<Arc<Watch>>) -> Self {
        Self(watches)
    }

    /// Calls `each` for up to `max` packets of each worker, worker by worker.
    pub fn take(&self, max: usize, mut each: impl FnMut(&WatchedPacket)) {
        self.0.iter().for_each(|watch| watch.take(max, &mut each));
    }

    /// Matching packets that were not recorded.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.iter().map(|watch| watch.lost()).sum()
    }
}

impl Drop for PacketWatch {
    fn drop(&mut self) {
        self.0.iter().for_each(|watch| watch.end());
    }
}
