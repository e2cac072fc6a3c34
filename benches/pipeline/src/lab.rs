//! A gateway in memory with its flows, on which a scenario is run.
//!
//! The frames are in a ring as long as a receive ring of a NIC. The ring is larger than the second-level cache, so the
//! pipeline finds the frames in the third-level cache, where a NIC's DDIO puts them. [`Lab::refill`] writes packets to
//! the ring and is not timed. [`Lab::run`] is timed: like a worker, it processes the ring in bursts, counts the
//! verdicts, and ages the flows.
//!
//! Invariant: a run panics if any frame has another verdict than the scenario expects, so it produces no figure.

use std::net::SocketAddr;
use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_pipeline::frame::{Frame, MemoryFrame};
use tidegate_pipeline::pipeline::{Arrival, BurstOutput, Pipeline, PipelineConfig, View};
use tidegate_pipeline::testing::builder::GATEWAY_MAC;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::{Tallies, WorkerCounters};
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::testing;
use tidegate_spec::verdict::{TransmitReason, Verdict};
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, GatewaySpec, NeighborSpec, NetworkSpec, Policy, Protocol,
    RouteSpec, ServiceSpec, SnapshotSpec,
};
use tidegate_wire::MacAddr;

use crate::scenario::{Flows, Path, Scenario};
use crate::traffic::{self, DATA, FIRST, ROUTER_MAC, Random, Tuple, Wire};

/// The default of `flowTable.entriesPerCore`, for all but smaller scenarios.
pub const ENTRIES: usize = 1 << 20;

/// Frames of the ring.
pub const RING: usize = 4096;

/// The simulated time of a burst: 100 ns per packet.
const BURST_NS: u64 = 3200;

/// The number of flows that `new` puts into an empty table before the table is emptied again. It is nearly half of the
/// capacity, so that no flow is refused.
const NEW_MAX: usize = ENTRIES / 2;

/// A gateway in memory with the flows of a scenario.
pub struct Lab {
    scenario: Scenario,
    /// The number of flows for which the tables are sized.
    entries: usize,
    snapshot: Snapshot,
    neighbors: NeighborTable,
    tallies: Tallies,
    counters: WorkerCounters,
    pipeline: Pipeline,
    /// The worker that owns the flows, if it is not the measured one.
    owner: Option<Pipeline>,
    /// When the measured worker got its copies.
    copied_at: Now,
    out: BurstOutput,
    now: Now,
    wire: Wire,
    random: Random,
    ring: Vec<MemoryFrame>,
    /// The next flow to start, in scenarios in which each packet starts a flow.
    next: usize,
    /// The established flows: all started flows, except the few that did not fit.
    known: Vec<u32>,
    /// The tuple of the replies of each flow.
    replies: Vec<Tuple>,
}

impl Lab {
    /// Builds the gateway with flow tables for `entries`, and starts the scenario's flows.
    ///
    /// # Panics
    /// If the scenario does not behave as expected.
    #[must_use]
    pub fn new(scenario: Scenario, entries: usize) -> Self {
        let neighbors = NeighborTable::new();
        let spec = spec(&scenario);
        let (snapshot, problems) =
            Snapshot::compile(&spec, None, &neighbors).expect("the lab's spec compiles");
        assert!(problems.is_empty(), "{problems:?}");
        let (workers, steering) = match scenario.copied {
            true => (2, Steering::Partition),
            false => (1, Steering::Single),
        };
        let config = |worker| PipelineConfig {
            worker,
            workers,
            entries,
            seed: 0x71de_9a7e,
            steering: steering.clone(),
        };
        let mut out = BurstOutput::default();
        // Tracing is off for this worker.
        out.set_takes_notes(false);
        let mut lab = Self {
            tallies: Tallies::with_capacity(snapshot.service_indices(), snapshot.backend_indices()),
            counters: WorkerCounters::default(),
            pipeline: Pipeline::new(&config(0)),
            owner: scenario.copied.then(|| Pipeline::new(&config(1))),
            copied_at: Now(0),
            out,
            now: Now(1_000_000_000),
            wire: Wire::new(scenario.v6),
            random: Random::new(42),
            ring: (0..RING).map(|_| MemoryFrame::with_capacity(256)).collect(),
            next: 0,
            known: Vec::new(),
            replies: Vec::new(),
            scenario,
            entries,
            snapshot,
            neighbors,
        };
        match (scenario.path, scenario.flows) {
            (Path::Trivial, _) => lab.known.push(0),
            (_, Flows::New) => {
                // The timed part must not include the first access to each page.
                lab.begin(NEW_MAX.min(entries), false);
                lab.next = NEW_MAX;
                lab.pipeline.flows_mut().retain(lab.now, |_| false);
            }
            (_, Flows::Known(flows)) => {
                lab.begin(flows, true);
                lab.keep_copied();
            }
            (_, Flows::Flood) => {
                lab.begin(entries, false);
                lab.next = entries;
            }
        }
        lab
    }

    /// The number of packets of one run.
    #[must_use]
    pub fn packets(&self) -> usize {
        RING
    }

    /// The number of flows in the tables.
    #[must_use]
    pub fn live(&self) -> usize {
        self.pipeline.flows().live()
    }

    /// The number of flows that did not fit.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.pipeline.flows().counters().refused
    }

    /// Writes the next packets to the ring.
    pub fn refill(&mut self) {
        if self.scenario.flows == Flows::New
            && self.pipeline.flows().live() + RING > self.entries.min(NEW_MAX)
        {
            self.pipeline.flows_mut().retain(self.now, |_| false);
        }
        if self.owner.is_some() && self.now.since(self.copied_at) > Duration::from_millis(500) {
            self.copy_flows();
        }
        for at in 0..RING {
            let (tuple, flags) = self.next_packet();
            self.wire.write(&mut self.ring[at], &tuple, flags);
        }
    }

    /// Processes the ring to its verdicts. This is the timed part.
    #[inline(never)]
    pub fn run(&mut self) {
        let why = match self.scenario.path {
            Path::Trivial => {
                self.run_trivial();
                TransmitReason::Forward
            }
            Path::Requests(_) => {
                self.run_pipeline();
                TransmitReason::Forward
            }
            Path::Replies(_) => {
                self.run_pipeline();
                TransmitReason::Reply
            }
        };
        assert_eq!(self.counters.transmits(why), RING as u64, "every frame of {} is sent", self.scenario);
        self.counters = WorkerCounters::default();
    }

    fn run_pipeline(&mut self) {
        let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
        for frames in self.ring.chunks_mut(BURST) {
            self.now.0 += BURST_NS;
            one_burst(&mut self.pipeline, view, self.now, frames, &mut self.out, &self.counters);
        }
    }

    fn run_trivial(&mut self) {
        for frames in self.ring.chunks_mut(BURST) {
            one_trivial_burst(frames, &mut self.out, &self.counters);
        }
    }

    /// Starts flows `0..count`. If `established`, sends packets of both directions (if the gateway sees both) until the
    /// flows are established. A NAT table near its limit refuses a few, see `conntrack::eviction`.
    fn begin(&mut self, count: usize, established: bool) {
        let translated = !self.scenario.mode().is_dsr();
        for start in (0..count).step_by(BURST) {
            let flows: Vec<usize> = (start..count.min(start + BURST)).collect();
            let requests: Vec<Tuple> = flows.iter().map(|&flow| self.request(flow)).collect();
            let sent = self.set_up(&requests, FIRST);
            let replies = sent.map(|tuple| tuple.map(|sent| Tuple { src: sent.dst, dst: sent.src, ..sent }));
            let mut known: Vec<(usize, Tuple)> =
                flows.into_iter().zip(replies).filter_map(|(flow, reply)| Some((flow, reply?))).collect();
            if established && translated {
                let replies: Vec<Tuple> = known.iter().map(|(_, reply)| *reply).collect();
                let mut sent = self.set_up(&replies, FIRST | DATA);
                known.retain(|_| sent.next().flatten().is_some());
            }
            if established {
                let requests: Vec<Tuple> = known.iter().map(|(flow, _)| self.request(*flow)).collect();
                let mut sent = self.set_up(&requests, DATA);
                known.retain(|_| sent.next().flatten().is_some());
            }
            for (flow, reply) in known {
                self.known.push(flow as u32);
                if matches!(self.scenario.path, Path::Replies(_)) {
                    self.replies.push(reply);
                }
            }
        }
        let refused = count - self.known.len();
        assert!(refused * 200 <= count, "{refused} of {count} flows of {} refused", self.scenario);
    }

    /// Sends a burst of packets and returns the tuple of each packet that left.
    fn set_up(&mut self, tuples: &[Tuple], tcp_flags: u8) -> impl Iterator<Item = Option<Tuple>> + use<> {
        for (frame, tuple) in self.ring.iter_mut().zip(tuples) {
            self.wire.write(frame, tuple, tcp_flags);
        }
        let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
        self.now.0 += BURST_NS;
        let frames = &mut self.ring[..tuples.len()];
        let unchanged: ArrayVec<MemoryFrame, BURST> = frames.iter().cloned().collect();
        self.pipeline.process(view, self.now, Arrival::Wire(0), frames, &mut self.out);
        self.pipeline.age(self.now);
        let mut verdicts = self.out.verdicts.clone();
        if let Some(owner) = &mut self.owner {
            for (at, frame) in unchanged.into_iter().enumerate() {
                if let Verdict::HandOver(_) = verdicts[at] {
                    let mut one = [frame];
                    // The owner's own number: otherwise the measured worker would get a copy before all flows are
                    // established.
                    owner.process(view, self.now, Arrival::HandedOver(0, 1), &mut one, &mut self.out);
                    [frames[at]] = one;
                    verdicts[at] = self.out.verdicts[0];
                }
            }
        }
        let sent = frames.iter().zip(&verdicts).map(|(frame, verdict)| {
            matches!(verdict, Verdict::Transmit { .. }).then(|| sent_tuple(frame.bytes(), self.scenario.v6))
        });
        sent.collect::<ArrayVec<_, BURST>>().into_iter()
    }

    /// Gives the measured worker copies of all flows, and drops flows that it owns itself or that did not fit.
    fn keep_copied(&mut self) {
        if self.owner.is_none() {
            return;
        }
        let is_copied = |lab: &mut Self, at: usize| {
            let tuple = lab.packet_of(at);
            lab.wire.write(&mut lab.ring[0], &tuple, DATA);
            let view = View { snapshot: &lab.snapshot, neighbors: &lab.neighbors, tallies: &lab.tallies };
            lab.pipeline.process(view, lab.now, Arrival::Wire(0), &mut lab.ring[..1], &mut lab.out);
            matches!(lab.out.verdicts[0], Verdict::Transmit { .. })
        };
        let keep = |lab: &mut Self, wanted: bool| {
            let kept: Vec<bool> = (0..lab.known.len()).map(|at| is_copied(lab, at) == wanted).collect();
            let mut each = kept.iter();
            lab.known.retain(|_| *each.next().expect("one answer for each flow"));
            let mut each = kept.iter();
            lab.replies.retain(|_| *each.next().expect("one answer for each flow"));
        };
        keep(self, false);
        self.copy_flows();
        keep(self, true);
        assert!(!self.known.is_empty(), "no flow of {} is copied", self.scenario);
    }

    fn copy_flows(&mut self) {
        self.copied_at = self.now;
        for at in 0..self.known.len() {
            let tuple = self.packet_of(at);
            self.wire.write(&mut self.ring[0], &tuple, DATA);
            let Some(owner) = &mut self.owner else { return };
            let view = View { snapshot: &self.snapshot, neighbors: &self.neighbors, tallies: &self.tallies };
            owner.process(view, self.now, Arrival::HandedOver(0, 0), &mut self.ring[..1], &mut self.out);
            for copy in &self.out.flow_copies {
                self.pipeline.store_copy(copy, self.now);
            }
        }
    }

    /// The next packet of the known flow at this position.
    fn packet_of(&self, at: usize) -> Tuple {
        self.replies.get(at).copied().unwrap_or_else(|| self.request(self.known[at] as usize))
    }

    fn request(&self, flow: usize) -> Tuple {
        // Neighboring flows go to services in different parts of the table.
        let service = flow.wrapping_mul(0x9e37_79b1) % self.scenario.services;
        let tcp = self.scenario.is_tcp(service);
        Tuple {
            src: traffic::client(flow, self.scenario.v6),
            dst: traffic::vip(service, self.scenario.v6, tcp),
            tcp,
        }
    }

    fn next_packet(&mut self) -> (Tuple, u8) {
        match self.scenario.flows {
            Flows::Known(_) => {
                let at = self.random.below(self.known.len());
                (self.packet_of(at), DATA)
            }
            Flows::New | Flows::Flood => {
                self.next += 1;
                (self.request(self.next - 1), FIRST)
            }
        }
    }
}

/// A worker's processing of a burst. It is not inlined, so that callgrind can count it separately.
#[inline(never)]
fn one_burst(
    pipeline: &mut Pipeline,
    view: View<'_>,
    now: Now,
    frames: &mut [MemoryFrame],
    out: &mut BurstOutput,
    counters: &WorkerCounters,
) {
    pipeline.process(view, now, Arrival::Wire(0), frames, out);
    for &verdict in &out.verdicts {
        counters.record(verdict);
    }
    pipeline.age(now);
}

/// The minimum work of a forwarder: it reads each frame, swaps its link addresses, and counts it.
#[inline(never)]
fn one_trivial_burst(frames: &mut [MemoryFrame], out: &mut BurstOutput, counters: &WorkerCounters) {
    const AHEAD: usize = 4;
    out.verdicts.clear();
    frames.iter().take(AHEAD).for_each(Frame::prefetch);
    for at in 0..frames.len() {
        if let Some(next) = frames.get(at + AHEAD) {
            next.prefetch();
        }
        let bytes = frames[at].bytes_mut();
        let (to, from) = bytes.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        out.verdicts.push(Verdict::Transmit { interface: 0, why: TransmitReason::Forward });
    }
    for &verdict in &out.verdicts {
        counters.record(verdict);
    }
}

/// The tuple of a frame that left.
fn sent_tuple(bytes: &[u8], v6: bool) -> Tuple {
    let (src, dst, l4, proto) = if v6 {
        let v6 = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen bytes").into();
        (v6(22), v6(38), 54, bytes[20])
    } else {
        let v4 = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes").into();
        (v4(26), v4(30), 34, bytes[23])
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let tcp = proto == tidegate_wire::proto::TCP;
    Tuple { src: SocketAddr::new(src, port(l4)), dst: SocketAddr::new(dst, port(l4 + 2)), tcp }
}

/// The spec of a gateway with one interface. Its backends are on the link, and its clients are behind a router.
#[must_use]
pub fn spec(scenario: &Scenario) -> SnapshotSpec {
    let v6 = scenario.v6;
    let mac = |n: usize| {
        let [_, a, b, c] = (n as u32).to_be_bytes();
        MacAddr([2, 1, 0, a, b, c])
    };
    let all = scenario.services * scenario.backends;
    let parse = |text: &str| text.parse().expect("an address of the lab");
    let router = parse(if v6 { "2001:db8:0:bac:ffff::1" } else { "10.255.255.1" });
    let neighbors = (0..all).map(|n| NeighborSpec { ip: traffic::backend(n, v6), mac: mac(n) });
    SnapshotSpec {
        generation: 1,
        network: NetworkSpec {
            interfaces: vec![testing::interface(
                GATEWAY_MAC,
                &["10.255.255.254/8", "2001:db8:0:bac:ffff::fe/64"],
            )],
            routes: ["0.0.0.0/0", "::/0"]
                .map(|to| RouteSpec { to: to.parse().expect("a prefix of the lab"), via: router })
                .into(),
            neighbors: neighbors.chain([NeighborSpec { ip: router, mac: ROUTER_MAC }]).collect(),
            snat_addresses: (1..=32)
                .map(|n| {
                    parse(&if v6 { format!("2001:db8:0:bac:fffe::{n}") } else { format!("10.255.254.{n}") })
                })
                .collect(),
            tunnel_source_v4: Some("10.255.255.254".parse().expect("an address of the lab")),
            tunnel_source_v6: Some("2001:db8:0:bac:ffff::fe".parse().expect("an address of the lab")),
            gateway: GatewaySpec::default(),
            policy: Policy::default(),
            ..NetworkSpec::default()
        }
        .into(),
        services: (0..scenario.services).map(|n| service(scenario, n).into()).collect(),
    }
}

fn service(scenario: &Scenario, n: usize) -> ServiceSpec {
    let tcp = scenario.is_tcp(n);
    let vip = traffic::vip(n, scenario.v6, tcp);
    let backends = (0..scenario.backends).map(|at| BackendSpec {
        address: traffic::backend(n * scenario.backends + at, scenario.v6),
        // DSR does not change the port.
        port: if scenario.mode().is_dsr() { vip.port() } else { 8080 },
        weight: 1,
        state: BackendState::Active,
    });
    let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
    ServiceSpec {
        name: format!("service-{n}"),
        port_name: "main".into(),
        flow_tracking: if scenario.on_change {
            FlowTracking::OnChange([].into())
        } else {
            FlowTracking::Always
        },
        backends: backends.collect(),
        ..testing::service(scenario.mode(), protocol, &vip.to_string(), &[])
    }
}

#[cfg(test)]
mod tests {
    use tidegate_spec::ForwardingMode;

    use super::*;

    #[test]
    fn every_path_sends_every_frame() {
        let modes = ForwardingMode::ALL.iter().map(|mode| mode.as_str());
        for path in modes.chain(["trivial", "nat-reply", "fullnat-reply"]) {
            for rest in ["known-1", "known-300", "known-300/v6", "known-300/tcp/1x100", "known-300/udp/3x2"] {
                let scenario: Scenario = format!("{path}/{rest}").parse().expect("a scenario");
                let mut lab = Lab::new(scenario, 1000);
                for _ in 0..2 {
                    lab.refill();
                    lab.run();
                }
            }
        }
    }

    #[test]
    fn a_worker_sends_every_frame_of_flows_that_it_only_has_copies_of() {
        for path in ["nat", "nat-reply", "fullnat", "fullnat-reply/v6"] {
            let (path, rest) = path.split_once('/').unwrap_or((path, "tcp"));
            let scenario: Scenario = format!("{path}/known-300/{rest}/copied").parse().expect("a scenario");
            let mut lab = Lab::new(scenario, 4000);
            assert!(lab.known.len() > 50, "{} of 300 flows", lab.known.len());
            // Longer than copies are valid without a confirmation.
            for _ in 0..20 {
                lab.now.0 += 700_000_000;
                lab.refill();
                lab.run();
            }
        }
    }

    #[test]
    fn without_tracking_no_flow_is_remembered_and_every_frame_is_sent() {
        for path in ["dsr-l2/known-300", "dsr-gue/new"] {
            let scenario: Scenario = format!("{path}/on-change").parse().expect("a scenario");
            let mut lab = Lab::new(scenario, 1000);
            lab.refill();
            lab.run();
            assert_eq!(lab.live(), 0, "{path}");
        }
    }

    #[test]
    fn a_known_flow_is_found_and_a_new_one_is_remembered() {
        let mut known = Lab::new("dsr-l2/known-300".parse().expect("a scenario"), 1000);
        known.refill();
        known.run();
        assert_eq!(known.live(), 300);
        let mut new = Lab::new("dsr-l2/new".parse().expect("a scenario"), 2 * RING);
        new.refill();
        new.run();
        assert_eq!(new.live(), RING);
        let mut flood = Lab::new("dsr-l2/flood".parse().expect("a scenario"), 1000);
        flood.refill();
        flood.run();
        // New flows of the last 10 ms use free entries beyond the limit, up to a quarter of it.
        assert!(flood.live() < 1350, "{} flows in a table for 1000", flood.live());
    }
}
