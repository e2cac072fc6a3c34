//! One worker: runs to completion on one core, from receive queues through the pipeline to transmit queues.
//!
//! Each loop iteration picks up the newest forwarding state. For each port it then receives a burst, runs it through
//! `tidegate_pipeline`, sends the frames that the queues accept and counts the rest as drops. After the ports, the
//! worker processes frames that other workers handed over, frames to send for the kernel and the resolver, and one
//! query. [`crate::gateway`] creates workers and runs each on its own thread; tests run them on [`drivers::memory`].
//!
//! Invariant: a received frame is counted as exactly one of transmitted, punted, handed over or dropped. A frame that
//! waits for the link address of its next hop ([`pending_neighbor`]) or for the first fragment of its datagram
//! ([`pending_fragments`]) is counted when the wait is over.
//! Invariant: no lock, no allocation and no system call per packet, except inside a driver.
//!
//! [`drivers::memory`]: crate::drivers::memory

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::pipeline::{Arrival, BurstOutput, View};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Refusal;

use crate::clock::cycles;
use crate::drivers::{FrameBatch, PortQueue};
use crate::punt::class::PuntRates;
use crate::topology::Idle;

pub mod counters;
mod deferred_frames;
mod dispatch;
pub mod exchange;
mod frame_ends;
pub mod idle;
pub mod mailbox;
pub mod neighbor_reports;
pub mod pending_fragments;
pub mod pending_neighbor;
pub mod queries;
mod report_counts;
mod reports;
pub mod rings;
mod sample;
mod share_flows;
pub mod sharing_queues;
mod transmit;
pub mod watch;
mod worker_resources;

pub use counters::LoopCounters;
pub use exchange::{Exchange, Forwarding, Shared};
pub use mailbox::Mailbox;
pub use queries::{BackendFlows, FlowCountQuery, FlowFilter, FlowQuery, FlowRemoval, LogEnd, Query};
pub use sharing_queues::Sharing;
pub use worker_resources::WorkerParts;

use deferred_frames::{MayWait, PendingFragment, TooLong};
use frame_ends::{count_unresolved, finish};
use idle::{Backoff, precise_sleeps};
use neighbor_reports::Recent;
use pending_fragments::FragmentBuffer;
use pending_neighbor::{PendingNeighborQueue, Released};
use transmit::{Sending, TxBatch};
use watch::Watches;

/// A worker: its resources, and the state that it keeps between bursts.
#[derive(Debug)]
pub struct Worker<Q: PortQueue> {
    parts: WorkerParts<Q>,
    received: FrameBatch<Q::Frame>,
    out: BurstOutput,
    sending: Vec<TxBatch<Q::Frame>>,
    /// Frames of the burst that must be fragmented.
    too_long: ArrayVec<TooLong<Q::Frame>, BURST>,
    /// Frames whose next hop is being resolved.
    pending_neighbor: PendingNeighborQueue<Q::Frame>,
    /// Fragments whose first fragment has not arrived.
    fragments: FragmentBuffer<PendingFragment<Q::Frame>>,
    /// The latest reports to the resolver.
    reported: Recent,
    /// Rate limits for frames to the kernel.
    punt_rates: PuntRates,
    /// The query in progress.
    current_query: Option<Query>,
    /// Packet captures requested by operators.
    watches: Watches,
    run_once: u32,
    /// Bursts received from ports.
    bursts: u32,
    /// Whether existing flows are still being checked against changed source ranges.
    rechecking: bool,
}

impl<Q: PortQueue> Worker<Q> {
    /// Creates a worker. It doesn't run yet.
    #[must_use]
    pub fn new(parts: WorkerParts<Q>) -> Self {
        let sending = parts.ports.iter().map(|_| TxBatch::new()).collect();
        let punt_rates = PuntRates::new(parts.exchange.mailboxes.len());
        Self {
            parts,
            received: FrameBatch::new(),
            out: BurstOutput::default(),
            sending,
            too_long: ArrayVec::new(),
            pending_neighbor: PendingNeighborQueue::default(),
            fragments: FragmentBuffer::new(RandomState::new().hash_one(0)),
            reported: Recent::default(),
            punt_rates,
            current_query: None,
            watches: Watches::default(),
            run_once: 0,
            bursts: 0,
            rechecking: true,
        }
    }

    /// Runs until `stop` is set, which it checks once per iteration. Call it on the worker's own thread.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.mailbox().belongs_to_this_thread();
        if matches!(self.parts.idle, Idle::AdaptiveUpTo(_)) {
            precise_sleeps();
        }
        let mut backoff = Backoff::new(self.parts.idle);
        let mut started = cycles();
        while !stop.load(Ordering::Relaxed) {
            let worked = self.run_once(self.parts.clock.at(started));
            let ended = cycles();
            let iterations = &self.parts.shared.loop_counters;
            iterations.iterations.add(1);
            if worked {
                iterations.busy.record(ended.saturating_sub(started));
                backoff.reset();
                started = ended;
            } else {
                backoff.pause(self.mailbox(), &self.parts.rings);
                let resumed = cycles();
                self.parts.shared.loop_counters.idle_cycles.add(resumed.saturating_sub(started));
                started = resumed;
            }
        }
        let waiting = self.pending_neighbor.clear();
        count_unresolved(&self.parts, waiting);
        let now = self.parts.clock.now();
        while let Some(fragment) = self.fragments.pop() {
            finish(&self.parts, &mut self.punt_rates, now, fragment);
        }
    }

    /// Runs one loop iteration at time `now`. Returns whether there was work.
    pub fn run_once(&mut self, now: Now) -> bool {
        self.rechecking |= self.parts.forwarding.refresh();
        let mut worked = false;
        if self.parts.persistence.is_waiting() {
            let Forwarding { snapshot, .. } = self.parts.forwarding.get();
            let restoring = &self.parts.shared.loop_counters.restoring;
            restoring.set(1);
            self.parts.persistence.restore(self.parts.worker, &mut self.parts.pipeline, snapshot, now);
            restoring.set(0);
        }
        if self.rechecking {
            let Forwarding { snapshot, .. } = self.parts.forwarding.get();
            self.rechecking = self.parts.pipeline.recheck(snapshot, now);
            worked = true;
        }
        let Forwarding { snapshot, tallies } = self.parts.forwarding.get();
        self.parts.pipeline.share_loads(snapshot, tallies, now);
        for port in 0..self.parts.ports.len() {
            worked |= self.receive(now, port);
        }
        if !self.parts.rings.is_empty() {
            self.receive_reports(now);
            self.take_handed_over(now);
            worked = true;
        }
        if !self.mailbox().is_empty() || self.current_query.is_some() {
            self.send_injected();
            self.answer(now);
            worked = true;
        }
        if !self.pending_neighbor.is_empty() {
            worked |= self.unpark(now);
        }
        while let Some(fragment) = self.fragments.expire(now) {
            finish(&self.parts, &mut self.punt_rates, now, fragment);
            worked = true;
        }
        if self.parts.exchange.sharing.get().is_some() {
            worked |= self.share_flows(now);
        }
        self.parts.pipeline.age(now);
        self.run_once = self.run_once.wrapping_add(1);
        if self.run_once.is_multiple_of(ITERATIONS_PER_REPORT) {
            self.report_counts(now);
        }
        worked
    }

    /// The data that other threads may read.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.parts.shared
    }

    fn mailbox(&self) -> &Mailbox<Q::Frame> {
        &self.parts.exchange.mailboxes[usize::from(self.parts.worker)]
    }

    /// Receives and processes one burst of one port.
    #[inline]
    fn receive(&mut self, now: Now, port: usize) -> bool {
        let unusable = self.parts.ports[port].rx(&mut self.received);
        for _ in 0..unusable {
            self.parts.shared.counters.record(Refusal::NotContiguous.into());
        }
        if self.received.is_empty() {
            return unusable > 0;
        }
        let interface = index_of(port);
        let counters = self.parts.shared.counters.interface(interface);
        counters.rx_packets.add((self.received.len() + unusable) as u64);
        counters.rx_bytes.add(self.received.iter().map(|frame| frame.bytes().len() as u64).sum());
        self.parts.shared.loop_counters.frames.add(self.received.len() as u64);
        self.sample(interface);
        self.process(now, Arrival::Wire(interface), MayWait::Yes);
        true
    }

    /// Runs the received batch through the pipeline, then dispatches each frame.
    #[inline]
    fn process(&mut self, now: Now, arrival: Arrival, may_wait: MayWait) {
        let parts = &mut self.parts;
        let forwarding = parts.forwarding.get();
        let view = View {
            snapshot: &forwarding.snapshot,
            neighbors: &parts.neighbors,
            tallies: &forwarding.tallies[usize::from(parts.worker)],
        };
        let watched = !self.watches.is_empty();
        self.out.set_takes_notes(watched);
        if watched {
            self.watches.begin(now, parts.worker, arrival.interface(), &self.received);
        }
        parts.pipeline.process(view, now, arrival, &mut self.received, &mut self.out);
        if watched {
            self.watches.end(&self.out, &self.received, may_wait != MayWait::No);
        }
        self.dispatch(now, arrival, may_wait);
        self.report_to_resolver(now);
        for port in 0..self.sending.len() {
            self.flush(port);
        }
        self.send_handed_over();
        if !self.too_long.is_empty() {
            self.send_fragments();
        }
        if !self.out.first_fragments.is_empty() {
            self.report_first_fragments(now);
        }
        if self.parts.pipeline.has_ended_paths() {
            self.report_ended_paths();
        }
        if !self.out.flow_copies.is_empty() || !self.out.flow_uses.is_empty() {
            self.send_flow_copies(arrival);
        }
    }

    /// Processes up to a burst of frames from each other worker. This worker owns their flows.
    fn take_handed_over(&mut self, now: Now) {
        for from in 0..self.parts.rings.workers() {
            let mut taken = 0;
            while taken < BURST
                && let Some(arrival) = self.parts.rings.take_frames(from, &mut self.received)
            {
                taken += self.received.len();
                self.parts.shared.loop_counters.frames.add(self.received.len() as u64);
                self.process(now, arrival, MayWait::Yes);
            }
        }
    }

    /// Processes frames whose next hop has been resolved, and drops those that waited too long.
    #[cold]
    fn unpark(&mut self, now: Now) -> bool {
        let mut any = false;
        while let Some(released) = self.pending_neighbor.release(now, &self.parts.neighbors) {
            any = true;
            let mut frames = match released {
                Released::Resolved(frames) => frames.into_iter().peekable(),
                Released::Expired(frames) => {
                    count_unresolved(&self.parts, frames.len());
                    continue;
                }
            };
            // All frames of a burst have the same arrival.
            while let Some((arrival, frame)) = frames.next() {
                self.received.push(frame);
                while let Some((_, frame)) = frames.next_if(|(next, _)| *next == arrival) {
                    self.received.push(frame);
                }
                self.process(now, arrival, MayWait::No);
            }
        }
        any
    }

    /// Sends up to a burst of frames from the kernel and the resolver.
    fn send_injected(&mut self) {
        for _ in 0..BURST {
            let Some((interface, frame)) = self.mailbox().next_injected() else { break };
            let port = usize::from(interface);
            let Some(batch) = self.sending.get_mut(port) else {
                self.parts.shared.loop_counters.injected_dropped.add(1);
                continue;
            };
            batch.frames.push(frame);
            batch.why.push(Sending::Injected);
        }
        for port in 0..self.sending.len() {
            self.flush(port);
        }
    }

    fn answer(&mut self, now: Now) {
        let query = self.current_query.take().or_else(|| self.mailbox().next_query());
        self.current_query = match query {
            Some(Query::Watch(watch)) => {
                self.watches.add(watch);
                None
            }
            other => other.and_then(|query| query.step(self.parts.pipeline.flows_mut(), now)),
        };
    }
}

/// Iterations between two reports of the pipeline's counts. A report costs a few cycles per iteration.
const ITERATIONS_PER_REPORT: u32 = 64;

fn index_of(port: usize) -> InterfaceIndex {
    InterfaceIndex::try_from(port).expect("at most INTERFACES_MAX ports")
}
