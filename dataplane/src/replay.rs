//! Runs the real pipeline over a capture: what would the gateway do with these packets? Needs no ports, root or DPDK.
//!
//! One worker processes the packets in the order of the file, with the capture's timestamps as its clock. Nothing
//! answers for neighbours whose link address the spec lacks, so [`replay`] assumes [`ASSUMED_MAC`]. Flows expire as the
//! clock advances. A fragment that precedes the first fragment of its datagram waits for it, as in the worker. Its
//! result is reported in the order of the capture. Frames sent because of it are written when they are sent, with the
//! timestamp of the packet that ended the wait. `tidegate replay` and tests use this module.
//!
//! Invariant: the result is a function of the spec and the capture alone: same input, same output bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tidegate_capture::{PcapError, Reader, Writer};
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::pipeline::{
    Arrival, BurstOutput, FlowNote, Note, Oversized, Pipeline, PipelineConfig, View,
};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Verdict;
use tidegate_spec::{CompileError, ForwardingMode, Problem, SnapshotSpec};
use tidegate_wire::MacAddr;
use tidegate_wire::cut::Cut;

use crate::worker::pending_fragments::FragmentBuffer;

/// The secret of the flow tables' hash. Any constant will do.
const SEED: u64 = 0x7469_6465_6761_7465;

/// The link address of neighbours that a replay assumes to be resolved.
pub const ASSUMED_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// The settings of the flow table of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTable {
    /// The number of flows in each kind of table.
    pub entries: usize,
    /// The percentage of `entries` that one service port may use in a full table; 100 means no limit.
    pub service_percent: u8,
}

/// The result for one packet of the capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its number in the capture, from 1.
    pub n: u64,
    /// The interface that received it.
    pub interface: InterfaceIndex,
    /// The verdict.
    pub verdict: Verdict,
    /// The service port that it belongs to, as `namespace/name:port`.
    pub service: Option<String>,
    /// The service's address.
    pub vip: Option<IpAddr>,
    /// The backend that it goes to or comes from.
    pub backend: Option<SocketAddr>,
    /// The forwarding mode of the service.
    pub mode: Option<ForwardingMode>,
    /// Whether its flow existed.
    pub flow: FlowNote,
    /// The frames that were sent because of it.
    pub frames: Vec<Vec<u8>>,
}

/// The result for the whole capture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Packets read.
    pub packets: u64,
    /// Frames sent.
    pub transmitted: u64,
    /// Packets for the kernel.
    pub punted: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// The parts of the spec that were left out.
    pub problems: Vec<Problem>,
    /// The neighbours that were assumed to have [`ASSUMED_MAC`].
    pub assumed: BTreeSet<IpAddr>,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The forwarding state does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The input is not a capture, or is truncated.
    #[error("input: {0}")]
    Input(#[from] PcapError),
    /// The output, or the callback for a packet, failed.
    #[error("output: {0}")]
    Output(#[from] io::Error),
    /// A packet was received on an interface that the gateway does not have.
    #[error("packet {n} arrived on interface {interface} of the capture; accepted: 0 to {} (dataplane.interfaces)", .interfaces.saturating_sub(1))]
    Interface {
        /// Its number.
        n: u64,
        /// Its interface.
        interface: u32,
        /// The number of interfaces of the gateway.
        interfaces: usize,
    },
}

/// Runs a capture (pcap or pcapng) through a pipeline without flows. Transmitted frames go to `output` with the
/// timestamp of the packet that caused them, and `each` is called for every packet in order. Interface i of a pcapng is
/// interface i of the spec; a pcap only has interface 0.
///
/// # Errors
/// [`ReplayError`]; earlier results have been written and reported.
pub fn replay<R: Read, W: Write>(
    spec: &SnapshotSpec,
    flow_table: FlowTable,
    input: R,
    output: &mut Writer<W>,
    mut each: impl FnMut(&Replayed) -> io::Result<()>,
) -> Result<Summary, ReplayError> {
    let mut replay = Replay::new(spec, flow_table)?;
    replay.assumed = Some(BTreeSet::new());
    let mut summary = Summary { problems: std::mem::take(&mut replay.problems), ..Summary::default() };
    let mut reader = Reader::new(input)?;
    let mut in_order = InOrder { next: 1, early: BTreeMap::new() };
    let ended = loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        let n = summary.packets + 1;
        let interfaces = spec.network.interfaces.len();
        let interface = InterfaceIndex::try_from(packet.interface)
            .ok()
            .filter(|&index| usize::from(index) < interfaces)
            .ok_or(ReplayError::Interface { n, interface: packet.interface, interfaces });
        let interface = match interface {
            Ok(interface) => interface,
            Err(error) => break Err(error),
        };
        summary.packets = n;
        for replayed in replay.one(n, Now(packet.timestamp_ns), interface, &packet.data) {
            for frame in &replayed.frames {
                output.write(packet.timestamp_ns, frame)?;
            }
            in_order.report(replayed, &mut summary, &mut each)?;
        }
    };
    for replayed in replay.finish() {
        in_order.report(replayed, &mut summary, &mut each)?;
    }
    summary.assumed = replay.assumed.unwrap_or_default();
    ended.map(|()| summary)
}

/// Reports packets in the order of the capture.
struct InOrder {
    next: u64,
    early: BTreeMap<u64, Replayed>,
}

impl InOrder {
    fn report(
        &mut self,
        replayed: Replayed,
        summary: &mut Summary,
        each: &mut impl FnMut(&Replayed) -> io::Result<()>,
    ) -> io::Result<()> {
        match replayed.verdict {
            Verdict::Transmit { .. } => summary.transmitted += 1,
            Verdict::Punt(_) => summary.punted += 1,
            // A single worker never hands packets over.
            Verdict::HandOver(_) | Verdict::Drop(_) => summary.dropped += 1,
        }
        self.early.insert(replayed.n, replayed);
        while let Some(replayed) = self.early.remove(&self.next) {
            each(&replayed)?;
            self.next += 1;
        }
        Ok(())
    }
}

/// A pipeline with its state, for callers that process packets one by one without a capture file.
#[derive(Debug)]
pub struct Replay {
    snapshot: Snapshot,
    neighbors: NeighborTable,
    tallies: [Arc<Tallies>; 1],
    pipeline: Pipeline,
    out: BurstOutput,
    clock: Now,
    fragments: FragmentBuffer<PendingPacket>,
    /// The neighbours that were assumed to be resolved; `None` if that is not assumed.
    assumed: Option<BTreeSet<IpAddr>>,
    /// The parts of the spec that were left out.
    pub problems: Vec<Problem>,
}

impl Replay {
    /// A pipeline without flows.
    ///
    /// # Errors
    /// When the spec does not compile.
    pub fn new(spec: &SnapshotSpec, flow_table: FlowTable) -> Result<Self, CompileError> {
        let neighbors = NeighborTable::new();
        let (snapshot, problems) = Snapshot::compile(spec, None, &neighbors)?;
        let tallies = Tallies::with_capacity(snapshot.service_indices(), snapshot.backend_indices());
        let tallies = [Arc::new(tallies)];
        let mut pipeline = Pipeline::new(&PipelineConfig {
            worker: 0,
            workers: 1,
            entries: flow_table.entries,
            seed: SEED,
            steering: Steering::Single,
        });
        pipeline.flows_mut().set_service_share(flow_table.service_percent);
        if snapshot.has_sctp() {
            pipeline.associations().prepare();
        }
        let (out, clock, fragments) = (BurstOutput::default(), Now::default(), FragmentBuffer::new(0));
        Ok(Self { snapshot, neighbors, tallies, pipeline, out, clock, fragments, assumed: None, problems })
    }

    /// Processes one packet. If `now` is before the previous packet's timestamp, that timestamp is used. Returns its
    /// result, and the results of packets that waited for it or whose wait has timed out. If the packet itself must
    /// wait for its first fragment, its result is not included.
    ///
    /// # Panics
    /// If the spec has no such interface.
    pub fn one(&mut self, n: u64, now: Now, interface: InterfaceIndex, bytes: &[u8]) -> Vec<Replayed> {
        assert!(usize::from(interface) < self.snapshot.interfaces().len(), "an interface of the spec");
        let before = self.clock;
        self.clock = before.max(now);
        // A new replay has no flows, so the time before its first packet costs nothing.
        self.pipeline.age_between(before, self.clock);
        // A worker does this in each loop iteration. Starting with the first packet lets the tables count the loads of
        // all flows.
        self.pipeline.share_loads(&self.snapshot, &self.tallies, self.clock);
        let expired: Vec<PendingPacket> = std::iter::from_fn(|| self.fragments.expire(self.clock)).collect();
        let mut done: Vec<Replayed> = expired.into_iter().map(|packet| packet.replayed).collect();
        let mut frames = [MemoryFrame::new(bytes)];
        let replayed = self.process(n, interface, &mut frames);
        let firsts = self.out.first_fragments.clone();
        match self.out.unknown_fragments.first().copied() {
            Some(unknown) => {
                let [frame] = frames;
                let evicted = self.fragments.push(unknown.key, PendingPacket { frame, replayed }, self.clock);
                done.extend(evicted.map(|packet| packet.replayed));
            }
            None => done.push(replayed),
        }
        for first in firsts {
            while let Some(PendingPacket { frame, replayed }) = self.fragments.release(&first.key) {
                done.push(self.process(replayed.n, replayed.interface, &mut [frame]));
            }
        }
        done
    }

    /// Ends the capture and returns the results of the packets that are still waiting.
    pub fn finish(&mut self) -> Vec<Replayed> {
        std::iter::from_fn(|| self.fragments.pop()).map(|packet| packet.replayed).collect()
    }

    fn process(&mut self, n: u64, interface: InterfaceIndex, frames: &mut [MemoryFrame; 1]) -> Replayed {
        let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies[0] };
        self.pipeline.process(view, self.clock, Arrival::Wire(interface), frames, &mut self.out);
        // The flow exists when the packet is processed again.
        let flow = self.out.notes[0].flow;
        if let (Some(assumed), Some(unresolved)) = (&mut self.assumed, self.out.unresolved.first()) {
            let (on, addr) = (unresolved.interface, unresolved.addr);
            // A full table leaves the verdict as it is.
            if let Ok(id) = self.neighbors.intern(on, addr) {
                self.neighbors.set_resolved(id, ASSUMED_MAC);
                assumed.insert(addr.ip());
                self.pipeline.process(view, self.clock, Arrival::Wire(interface), frames, &mut self.out);
            }
        }
        let (verdict, note) = (self.out.verdicts[0], Note { flow, ..self.out.notes[0] });
        let sent = match verdict {
            Verdict::Transmit { .. } => sent(frames[0].bytes(), self.out.oversized.first()),
            _ => Vec::new(),
        };
        self.replayed(n, interface, verdict, note, sent)
    }

    fn replayed(
        &self,
        n: u64,
        interface: InterfaceIndex,
        verdict: Verdict,
        note: Note,
        frames: Vec<Vec<u8>>,
    ) -> Replayed {
        let service = note.service.and_then(|id| self.snapshot.service_info(id));
        let backend = note.backend.and_then(|id| self.snapshot.backend(id));
        Replayed {
            n,
            interface,
            verdict,
            service: service.map(tidegate_snapshot::service::ServiceInfo::label),
            vip: service.map(|service| service.key.vip),
            backend: backend.map(|backend| SocketAddr::new(backend.address.ip(), backend.port)),
            mode: service.map(|service| service.mode),
            flow: note.flow,
            frames,
        }
    }
}

/// The frames as sent: the whole frame, or fragments of it that fit the link.
fn sent(frame: &[u8], oversized: Option<&Oversized>) -> Vec<Vec<u8>> {
    let cut = oversized.and_then(|one| Cut::new(frame, usize::from(one.packet), usize::from(one.mtu)));
    let Some(cut) = cut else { return vec![frame.to_vec()] };
    let fragment = |n| {
        let mut fragment = vec![0; cut.frame_len(n)];
        cut.write(frame, n, &mut fragment);
        fragment
    };
    (0..cut.fragments()).map(fragment).collect()
}

/// A fragment waiting for the first fragment of its datagram.
#[derive(Debug)]
struct PendingPacket {
    frame: MemoryFrame,
    /// The result if the first fragment doesn't arrive.
    replayed: Replayed,
}
