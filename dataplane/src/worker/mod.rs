//! One worker: run to completion on one core, from receive queues through the pipeline to transmit queues.
//!
//! Each turn of the loop takes the newest forwarding state once, then, port by port, receives a burst, runs it through
//! `tidegate_pipeline`'s pipeline, sends the frames that the queues accept and counts the rest as drops. After the ports,
//! the worker processes frames that other workers handed over, frames to be sent for the kernel and the resolver, and
//! one query. Callers: [`crate::gateway`] creates workers and runs each on its own thread; tests run them on
//! [`drivers::memory`].
//!
//! Invariant: a received frame is counted as exactly one of transmitted, punted, handed over or dropped. A frame that
//! waits for the link address of its next hop ([`pending_neighbor`]) or for the first fragment of its datagram
//! ([`pending_fragments`]) is counted once it has stopped waiting.
//! Invariant: no lock, no allocation, no system call per packet (`drivers` may enter the kernel inside theirs).
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
mod dispatch;
pub mod exchange;
mod frame_ends;
mod held_frames;
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
pub use queries::{FlowFilter, FlowQuestion, Question, SnatPorts, SnatQuestion};
pub use sharing_queues::Sharing;
pub use worker_resources::WorkerParts;

use frame_ends::{give_up, settle};
use held_frames::{HeldFragment, MayWait, TooLong};
use idle::{Backoff, precise_sleeps};
use neighbor_reports::Recent;
use pending_fragments::FragmentRoom;
use pending_neighbor::{PendingNeighborQueue, Released};
use transmit::{Sending, TxBatch};
use watch::Watches;

/// One worker.
#[derive(Debug)]
pub struct Worker<Q: PortQueue> {
    parts: WorkerParts<Q>,
    received: FrameBatch<Q::Frame>,
    out: BurstOutput,
    sending: Vec<TxBatch<Q::Frame>>,
    /// Frames of the burst that must be sent in fragments.
    too_long: ArrayVec<TooLong<Q::Frame>, BURST>,
    /// Frames whose next hop is being resolved.
    pending_neighbor: PendingNeighborQueue<Q::Frame>,
    /// Fragments whose first fragment was not seen yet.
    fragments: FragmentRoom<HeldFragment<Q::Frame>>,
    /// The last reports to the resolver.
    reported: Recent,
    /// The limits on frames for the kernel.
    punt_rates: PuntRates,
    /// The query that is being answered.
    asked: Option<Question>,
    /// What operators watch.
    watches: Watches,
    turn: u32,
    /// Bursts received from ports.
    bursts: u32,
    /// Whether known flows are being checked against changed source ranges.
    rechecking: bool,
}

impl<Q: PortQueue> Worker<Q> {
    /// A worker that has not started.
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
            fragments: FragmentRoom::new(RandomState::new().hash_one(0)),
            reported: Recent::default(),
            punt_rates,
            asked: None,
            watches: Watches::default(),
            turn: 0,
            bursts: 0,
            rechecking: true,
        }
    }

    /// Runs until `stop` is set, which it checks once per turn. Call it on the worker's own thread.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.mailbox().belongs_to_this_thread();
        if matches!(self.parts.idle, Idle::AdaptiveUpTo(_)) {
            precise_sleeps();
        }
        let mut backoff = Backoff::new(self.parts.idle);
        let mut started = cycles();
        while !stop.load(Ordering::Relaxed) {
            let worked = self.turn(self.parts.clock.at(started));
            let ended = cycles();
            let turns = &self.parts.shared.turns;
            turns.turns.add(1);
            if worked {
                turns.busy.record(ended.saturating_sub(started));
                backoff.reset();
                started = ended;
            } else {
                backoff.pause(self.mailbox(), &self.parts.rings);
                let resumed = cycles();
                self.parts.shared.turns.idle_cycles.add(resumed.saturating_sub(started));
                started = resumed;
            }
        }
        let waiting = self.pending_neighbor.clear();
        give_up(&self.parts, waiting);
        let now = self.parts.clock.now();
        while let Some(held) = self.fragments.pop() {
            settle(&self.parts, &mut self.punt_rates, now, held);
        }
    }

    /// One turn of the loop, at time `now`. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Now) -> bool {
        self.rechecking |= self.parts.forwarding.refresh();
        let mut worked = false;
        if self.parts.outliving.is_waiting() {
            let Forwarding { snapshot, .. } = self.parts.forwarding.get();
            let restoring = &self.parts.shared.turns.restoring;
            restoring.set(1);
            self.parts.outliving.restore(self.parts.worker, &mut self.parts.pipeline, snapshot, now);
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
            self.learn_reports(now);
            self.take_handed_over(now);
            worked = true;
        }
        if !self.mailbox().is_empty() || self.asked.is_some() {
            self.send_injected();
            self.answer(now);
            worked = true;
        }
        if !self.pending_neighbor.is_empty() {
            worked |= self.unpark(now);
        }
        while let Some(held) = self.fragments.expire(now) {
            settle(&self.parts, &mut self.punt_rates, now, held);
            worked = true;
        }
        if self.parts.exchange.sharing.get().is_some() {
            worked |= self.share_flows(now);
        }
        self.parts.pipeline.age(now);
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(TURNS_PER_REPORT) {
            self.report_counts(now);
        }
        worked
    }

    /// Its counters.
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
        self.parts.shared.turns.frames.add(self.received.len() as u64);
        self.sample(interface);
        self.process(now, Arrival::Wire(interface), MayWait::Yes);
        true
    }

    /// Runs the received batch through the pipeline, and passes each frame on to its destination.
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
        self.tell_resolver(now);
        for port in 0..self.sending.len() {
            self.flush(port);
        }
        self.send_handed_over();
        if !self.too_long.is_empty() {
            self.send_in_pieces();
        }
        if !self.out.first_fragments.is_empty() {
            self.tell_of_first_fragments(now);
        }
        if self.parts.pipeline.has_ended_paths() {
            self.tell_of_ended_paths();
        }
        if !self.out.flow_copies.is_empty() || !self.out.flow_uses.is_empty() {
            self.tell_of_copies(arrival);
        }
    }

    /// Processes up to a burst of frames from each other worker, whose flows this worker holds.
    fn take_handed_over(&mut self, now: Now) {
        for from in 0..self.parts.rings.workers() {
            let mut taken = 0;
            while taken < BURST
                && let Some(arrival) = self.parts.rings.take_frames(from, &mut self.received)
            {
                taken += self.received.len();
                self.parts.shared.turns.frames.add(self.received.len() as u64);
                self.process(now, arrival, MayWait::Yes);
            }
        }
    }

    /// Processes frames whose next hop is now known once more, and drops those that waited too long.
    #[cold]
    fn unpark(&mut self, now: Now) -> bool {
        let mut any = false;
        while let Some(released) = self.pending_neighbor.release(now, &self.parts.neighbors) {
            any = true;
            let mut frames = match released {
                Released::Resolved(frames) => frames.into_iter().peekable(),
                Released::Expired(frames) => {
                    give_up(&self.parts, frames.len());
                    continue;
                }
            };
            // A burst has one arrival.
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

    /// Sends up to a burst of frames of the kernel and the resolver.
    fn send_injected(&mut self) {
        for _ in 0..BURST {
            let Some((interface, frame)) = self.mailbox().next_injected() else { break };
            let port = usize::from(interface);
            let Some(batch) = self.sending.get_mut(port) else {
                self.parts.shared.turns.injected_dropped.add(1);
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
        let question = self.asked.take().or_else(|| self.mailbox().next_question());
        self.asked = match question {
            Some(Question::Watch(watch)) => {
                self.watches.add(watch);
                None
            }
            other => other.and_then(|question| question.go_on(self.parts.pipeline.flows_mut(), now)),
        };
    }
}

/// The number of turns between two reports of the pipeline's own counts. A report costs a few cycles per turn.
const TURNS_PER_REPORT: u32 = 64;

fn index_of(port: usize) -> InterfaceIndex {
    InterfaceIndex::try_from(port).expect("at most INTERFACES_MAX ports")
}
