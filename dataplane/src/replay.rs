//! The real pipeline over a capture: what the gateway would do with these packets, without ports, root or DPDK.
//!
//! One worker, the capture's timestamps as the clock, static neighbours only, packet after packet in the order of the
//! file. Used by `tidegate replay` and by tests from outside.
//!
//! Invariant: the result is a function of the spec and the capture alone: same input, same bytes out.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

use tidegate_core::counters::Tallies;
use tidegate_core::forward::snat_ports::Steering;
use tidegate_core::frame::{Frame, MemoryFrame};
use tidegate_core::ids::InterfaceIndex;
use tidegate_core::neighbors::NeighborTable;
use tidegate_core::now::Now;
use tidegate_core::pipeline::{Arrival, BurstOutput, FlowNote, Note, Pipeline, PipelineConfig, View};
use tidegate_core::snapshot::{CompileError, ForwardingMode, Problem, Snapshot, SnapshotSpec};
use tidegate_core::testing::pcap::{PcapError, Reader, Writer};
use tidegate_core::verdict::Verdict;

/// Secret of the flow tables' hash: any, but always the same.
const SEED: u64 = 0x7469_6465_6761_7465;

/// What became of one packet of the capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its number in the capture, from 1.
    pub n: u64,
    /// The interface that it came by.
    pub interface: InterfaceIndex,
    /// Its end.
    pub verdict: Verdict,
    /// The service port that it belongs to, as `namespace/name:port`.
    pub service: Option<String>,
    /// The service's address.
    pub vip: Option<IpAddr>,
    /// The backend that it goes to or comes from.
    pub backend: Option<SocketAddr>,
    /// How the service forwards.
    pub mode: Option<ForwardingMode>,
    /// Whether its flow was known.
    pub flow: FlowNote,
    /// Frames sent because of it.
    pub frames: Vec<Vec<u8>>,
}

/// What became of the capture.
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
    /// What of the spec was left out.
    pub problems: Vec<Problem>,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The forwarding state does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The capture is no capture, or is cut off.
    #[error("input: {0}")]
    Input(#[from] PcapError),
    /// The output, or whoever was told of a packet.
    #[error("output: {0}")]
    Output(#[from] io::Error),
    /// A packet of an interface that the gateway does not have.
    #[error("packet {n} came by interface {interface} of the capture; accepted: 0 to {} (dataplane.interfaces)", .interfaces.saturating_sub(1))]
    Interface {
        /// Its number.
        n: u64,
        /// Its interface.
        interface: u32,
        /// How many the gateway has.
        interfaces: usize,
    },
}

/// Runs a capture (pcap or pcapng) through a pipeline that knows no flow yet; frames sent go to `output` with the
/// timestamp of the packet that caused them, and `each` is told of every packet in turn. Interface i of a pcapng is
/// interface i of the spec; a pcap has interface 0 only.
///
/// # Errors
/// [`ReplayError`]; what came before it has been written and told.
pub fn replay<R: Read, W: Write>(
    spec: &SnapshotSpec,
    flow_entries: usize,
    input: R,
    output: &mut Writer<W>,
    mut each: impl FnMut(&Replayed) -> io::Result<()>,
) -> Result<Summary, ReplayError> {
    let mut replay = Replay::new(spec, flow_entries)?;
    let mut summary = Summary { problems: std::mem::take(&mut replay.problems), ..Summary::default() };
    let mut reader = Reader::new(input)?;
    while let Some(packet) = reader.next_packet()? {
        summary.packets += 1;
        let n = summary.packets;
        let interfaces = spec.interfaces.len();
        let interface = InterfaceIndex::try_from(packet.interface)
            .ok()
            .filter(|&index| usize::from(index) < interfaces)
            .ok_or(ReplayError::Interface { n, interface: packet.interface, interfaces })?;
        let replayed = replay.one(n, Now(packet.timestamp_ns), interface, &packet.data);
        match replayed.verdict {
            Verdict::Transmit { .. } => summary.transmitted += 1,
            Verdict::Punt(_) => summary.punted += 1,
            // One worker hands nothing over.
            Verdict::HandOver(_) | Verdict::Drop(_) => summary.dropped += 1,
        }
        for frame in &replayed.frames {
            output.write(packet.timestamp_ns, frame)?;
        }
        each(&replayed)?;
    }
    Ok(summary)
}

/// A pipeline and what it works with, packet by packet: for those who have no capture in a file.
#[derive(Debug)]
pub struct Replay {
    snapshot: Snapshot,
    neighbors: NeighborTable,
    tallies: Tallies,
    pipeline: Pipeline,
    out: BurstOutput,
    clock: Now,
    /// What of the spec was left out.
    pub problems: Vec<Problem>,
}

impl Replay {
    /// A pipeline that knows no flow.
    ///
    /// # Errors
    /// When the spec does not compile.
    pub fn new(spec: &SnapshotSpec, flow_entries: usize) -> Result<Self, CompileError> {
        let neighbors = NeighborTable::new();
        let (snapshot, problems) = Snapshot::compile(spec, None, &neighbors)?;
        let tallies = Tallies::with_capacity(snapshot.service_indices(), snapshot.backend_indices());
        let pipeline = Pipeline::new(&PipelineConfig {
            worker: 0,
            workers: 1,
            entries: flow_entries,
            seed: SEED,
            steering: Steering::Single,
        });
        let (out, clock) = (BurstOutput::default(), Now::default());
        Ok(Self { snapshot, neighbors, tallies, pipeline, out, clock, problems })
    }

    /// One packet, at a time that counts as no earlier than the packet before.
    ///
    /// # Panics
    /// If the spec has no such interface.
    pub fn one(&mut self, n: u64, now: Now, interface: InterfaceIndex, bytes: &[u8]) -> Replayed {
        assert!(usize::from(interface) < self.snapshot.interfaces().len(), "an interface of the spec");
        self.clock = self.clock.max(now);
        let mut frames = [MemoryFrame::new(bytes)];
        let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
        self.pipeline.process(view, self.clock, Arrival::Wire(interface), &mut frames, &mut self.out);
        self.pipeline.age(self.clock);
        let (verdict, note) = (self.out.verdicts[0], self.out.notes[0]);
        let sent = matches!(verdict, Verdict::Transmit { .. });
        let frames = if sent { vec![frames[0].bytes().to_vec()] } else { Vec::new() };
        self.told(n, interface, verdict, note, frames)
    }

    fn told(
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
            service: service.map(tidegate_core::service::ServiceInfo::label),
            vip: service.map(|service| service.key.vip),
            backend: backend.map(|backend| SocketAddr::new(backend.address.ip(), backend.port)),
            mode: service.map(|service| service.mode),
            flow: note.flow,
            frames,
        }
    }
}
