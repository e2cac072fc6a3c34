//! A gateway in memory: a spec that is easy to change, a clock that tests set, and one call per frame.
//!
//! The tests of the pipeline in this crate and in `tests/` use it. It runs the real pipeline with a real snapshot, and
//! replaces only the driver and the clock. It panics on invalid specs and frames.
//!
//! Invariant: every frame's verdict is recorded in the lab's counters, and a frame that is not sent is unchanged.

use std::net::IpAddr;
use std::time::Duration;

use tidegate_conntrack::flow_copies::{FlowCopy, FlowUse};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, WorkerCounters};
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{DropReason, Refusal, TransmitReason, Verdict};
use tidegate_spec::{ServiceSpec, SnapshotSpec};
use tidegate_wire::MacAddr;
use tidegate_wire::cut::Cut;

pub use tidegate_spec::testing::*;

use crate::forward::snat_ports::Steering;
use crate::fragments::FragmentKey;
use crate::frame::{Frame, MemoryFrame};
use crate::pipeline::{
    Arrival, BurstOutput, FirstFragment, NeighborEvent, Note, Oversized, Pipeline, PipelineConfig, View,
};
use crate::testing::builder::{Builder, CLIENT_MAC, GATEWAY_MAC};

/// The result of one frame.
#[derive(Debug)]
pub struct FrameResult {
    /// The verdict.
    pub verdict: Verdict,
    /// The note about the frame.
    pub note: Note,
    /// Whether it took the fast path.
    pub is_fast: bool,
    /// The bytes after processing: as sent, or unchanged.
    pub frame: Vec<u8>,
    /// The neighbour events of the whole burst.
    pub events: Vec<NeighborEvent>,
    /// The datagram whose first fragment the frame may wait for.
    pub waits_for: Option<FragmentKey>,
    /// The fragments that are sent if the frame doesn't fit its link.
    pub fragments: Vec<Vec<u8>>,
    /// The first fragments in the whole burst.
    pub first_fragments: Vec<FirstFragment>,
    /// The copies of flows for the worker that handed the burst over.
    pub flow_copies: Vec<FlowCopy>,
    /// The uses of copies in the whole burst, each with the worker that owns the flow.
    pub flow_uses: Vec<(WorkerIndex, FlowUse)>,
}

impl FrameResult {
    /// The frame as sent.
    ///
    /// # Panics
    /// If it was not sent for this reason.
    pub fn sent(&self, why: TransmitReason) -> &[u8] {
        assert_eq!(self.verdict, Verdict::Transmit { interface: 0, why });
        &self.frame
    }

    /// The reason for which it was refused.
    ///
    /// # Panics
    /// If it was not refused.
    #[must_use]
    pub fn refused(&self) -> Refusal {
        match self.verdict {
            Verdict::Drop(DropReason::Refused(refusal)) => refusal,
            other => panic!("not refused but {other:?}"),
        }
    }
}

/// One worker with its snapshot.
#[derive(Debug)]
pub struct Lab {
    /// The spec from which the snapshot was compiled.
    pub spec: SnapshotSpec,
    /// The forwarding state.
    pub snapshot: Snapshot,
    /// Link addresses of next hops.
    pub neighbors: NeighborTable,
    /// The worker.
    pub pipeline: Pipeline,
    /// Counts by service and backend.
    pub tallies: Tallies,
    /// Counts by verdict.
    pub counters: WorkerCounters,
    /// The clock.
    pub now: Now,
}

impl Lab {
    /// The gateway of [`spec`] with these services.
    #[must_use]
    pub fn new(services: Vec<ServiceSpec>) -> Self {
        let services = services.into_iter().map(Into::into).collect();
        Self::with_spec(SnapshotSpec { services, ..spec() })
    }

    /// Creates a single worker.
    #[must_use]
    pub fn with_spec(spec: SnapshotSpec) -> Self {
        Self::worker(spec, 0, 1, Steering::Single)
    }

    /// Creates one worker of several.
    ///
    /// # Panics
    /// If the spec is invalid.
    #[must_use]
    pub fn worker(spec: SnapshotSpec, worker: u8, workers: u8, steering: Steering) -> Self {
        let neighbors = NeighborTable::new();
        let (snapshot, problems) =
            Snapshot::compile(&spec, None, &neighbors).expect("the spec of a test compiles");
        assert!(problems.is_empty(), "{problems:?}");
        let config = PipelineConfig { worker, workers, entries: 4096, seed: 7, steering };
        let pipeline = Pipeline::new(&config);
        prepare(&pipeline, &snapshot);
        Self {
            spec,
            snapshot,
            neighbors,
            pipeline,
            tallies: Tallies::with_capacity(64, 64),
            counters: WorkerCounters::default(),
            now: Now(1_000_000_000),
        }
    }

    /// Changes the capacity of the flow tables.
    #[must_use]
    pub fn with_entries(mut self, entries: usize) -> Self {
        let config = PipelineConfig { worker: 0, workers: 1, entries, seed: 7, steering: Steering::Single };
        self.pipeline = Pipeline::new(&config);
        prepare(&self.pipeline, &self.snapshot);
        self
    }

    /// Changes the secret of the gateway.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        let config =
            PipelineConfig { worker: 0, workers: 1, entries: 4096, seed, steering: Steering::Single };
        self.pipeline = Pipeline::new(&config);
        self
    }

    /// Publishes a changed spec.
    pub fn change(&mut self, change: impl FnOnce(&mut SnapshotSpec)) {
        change(&mut self.spec);
        self.spec.generation += 1;
        let (snapshot, _) =
            Snapshot::compile(&self.spec, Some(&self.snapshot), &self.neighbors).expect("compiles");
        self.snapshot = snapshot;
        prepare(&self.pipeline, &self.snapshot);
        while self.pipeline.recheck(&self.snapshot, self.now) {}
    }

    /// Advances the clock.
    pub fn wait(&mut self, time: Duration) {
        self.now = self.now.plus(time);
    }

    /// Sends a frame from the builder, from the router to the gateway.
    pub fn send(&mut self, builder: Builder) -> FrameResult {
        self.receive(&builder.mac(ROUTER_MAC, GATEWAY_MAC).build())
    }

    /// Receives a frame from the wire.
    pub fn receive(&mut self, frame: &[u8]) -> FrameResult {
        self.receive_as(Arrival::Wire(0), frame)
    }

    /// Receives a frame from any arrival.
    pub fn receive_as(&mut self, arrival: Arrival, frame: &[u8]) -> FrameResult {
        self.process(arrival, MemoryFrame::new(frame), frame)
    }

    /// [`Self::receive`] with a buffer without headroom.
    pub fn receive_tight(&mut self, frame: &[u8]) -> FrameResult {
        let mut tight = MemoryFrame::new(frame);
        assert!(tight.grow_front(tidegate_spec::limits::HEADROOM_MIN), "all of the headroom");
        tight.bytes_mut()[..frame.len()].copy_from_slice(frame);
        assert!(tight.resize(frame.len()));
        self.process(Arrival::Wire(0), tight, frame)
    }

    /// Receives frames that arrive together from the wire, at most one burst.
    pub fn receive_burst(&mut self, frames: &[Vec<u8>]) -> Vec<FrameResult> {
        let received = frames.iter().map(|frame| MemoryFrame::new(frame)).collect();
        self.process_burst(Arrival::Wire(0), received, frames)
    }

    fn process(&mut self, arrival: Arrival, received: MemoryFrame, frame: &[u8]) -> FrameResult {
        let results = self.process_burst(arrival, vec![received], &[frame.to_vec()]);
        results.into_iter().next().expect("one result for each frame")
    }

    fn process_burst(
        &mut self,
        arrival: Arrival,
        mut frames: Vec<MemoryFrame>,
        received: &[Vec<u8>],
    ) -> Vec<FrameResult> {
        let mut out = BurstOutput::default();
        let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
        self.pipeline.process(view, self.now, arrival, &mut frames, &mut out);
        assert_eq!((out.verdicts.len(), out.notes.len()), (frames.len(), frames.len()));
        let result = |n: usize| FrameResult {
            verdict: out.verdicts[n],
            note: out.notes[n],
            is_fast: out.fast >> n & 1 != 0,
            frame: frames[n].bytes().to_vec(),
            events: out.events.to_vec(),
            waits_for: out
                .unknown_fragments
                .iter()
                .find(|unknown| usize::from(unknown.frame) == n)
                .map(|unknown| unknown.key),
            fragments: fragments(
                frames[n].bytes(),
                out.oversized.iter().find(|one| usize::from(one.frame) == n),
            ),
            first_fragments: out.first_fragments.to_vec(),
            flow_copies: out.flow_copies.to_vec(),
            flow_uses: out.flow_uses.to_vec(),
        };
        let results: Vec<FrameResult> = (0..frames.len()).map(result).collect();
        for (result, received) in results.iter().zip(received) {
            self.counters.record(result.verdict);
            if !matches!(result.verdict, Verdict::Transmit { .. }) {
                assert_eq!(result.frame, *received, "a frame that is not sent is unchanged");
            }
        }
        results
    }

    /// The address of the backend that a note names.
    #[must_use]
    pub fn backend_of(&self, result: &FrameResult) -> IpAddr {
        let id = result.note.backend.expect("the packet has a backend");
        self.snapshot.backend(id).expect("the backend lives").address.ip()
    }
}

/// Makes the preparations of the publisher for a snapshot.
fn prepare(pipeline: &Pipeline, snapshot: &Snapshot) {
    if snapshot.has_sctp() {
        pipeline.associations().prepare();
    }
}

/// The client's own link address, for on-link clients.
pub const CLIENT: MacAddr = CLIENT_MAC;

fn fragments(frame: &[u8], oversized: Option<&Oversized>) -> Vec<Vec<u8>> {
    let Some(one) = oversized else { return Vec::new() };
    let cut = Cut::new(frame, usize::from(one.packet), usize::from(one.mtu)).expect("it can be cut");
    let fragment = |n| {
        let mut bytes = vec![0; cut.frame_len(n)];
        cut.write(frame, n, &mut bytes);
        bytes
    };
    (0..cut.fragments()).map(fragment).collect()
}
