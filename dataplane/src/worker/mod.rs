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
//! ([`fragment_room`]) is counted once it has stopped waiting.
//! Invariant: no lock, no allocation, no system call per packet (`drivers` may enter the kernel inside theirs).
//!
//! [`drivers::memory`]: crate::drivers::memory

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use tidegate_conntrack::flow_record::Walks;
use tidegate_pipeline::fragments::FragmentKey;
use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::pipeline::{Arrival, BurstOutput, NeighborEvent, Oversized, Pipeline, View};
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::{InterfaceIndex, WorkerIndex};
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason, Verdict};
use tidegate_wire::cut::Cut;

use crate::clock::{Clock, cycles};
use crate::drivers::{FrameBatch, PortQueue};
use crate::flow_memory::Outliving;
use crate::publish::Reader;
use crate::punt::class::{PuntClass, PuntRates, Punted};
use crate::topology::Idle;

pub mod counters;
pub mod exchange;
pub mod fragment_room;
pub mod idle;
pub mod mailbox;
pub mod news;
pub mod pending_neighbor;
pub mod questions;
pub mod rings;
mod sample;
pub mod sharing;
mod transmit;
pub mod watch;

pub use counters::LoopCounters;
pub use exchange::{Exchange, Forwarding, Shared};
pub use mailbox::Mailbox;
pub use questions::{FlowFilter, FlowQuestion, Question, SnatPorts, SnatQuestion};
pub use sharing::Sharing;

use fragment_room::FragmentRoom;
use idle::{Backoff, precise_sleeps};
use news::Recent;
use pending_neighbor::{PendingNeighborQueue, Released};
use rings::{HandedOver, Report, Rings};
use sharing::LEARNT_PER_TURN;
use transmit::{Sending, TxBatch};
use watch::Watches;

/// The resources of a worker.
#[derive(Debug)]
pub struct WorkerParts<Q: PortQueue> {
    /// Its number, which is its position in mailboxes and tallies.
    pub worker: WorkerIndex,
    /// Its queue of every port, indexed by interface.
    pub ports: Vec<Q>,
    /// Its flows and the stages of the pipeline.
    pub pipeline: Pipeline,
    /// The forwarding state.
    pub forwarding: Reader<Forwarding>,
    /// Link addresses of next hops.
    pub neighbors: Arc<NeighborTable>,
    /// The queues to all other threads.
    pub exchange: Arc<Exchange<Q::Frame>>,
    /// The rings to and from the other workers.
    pub rings: Rings<Q::Frame>,
    /// Its counters.
    pub shared: Arc<Shared>,
    /// What its flow tables have from earlier processes, and leave to the next one.
    pub outliving: Outliving,
    /// The clock.
    pub clock: Clock,
    /// How it waits.
    pub idle: Idle,
}

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

/// The reasons for which frames of a batch may still wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MayWait {
    /// Fragments may wait for their first fragment, and all frames for the link address of their next hop.
    Yes,
    /// Only for the link address: the frames are fragments that have already waited.
    ForNeighbor,
    /// None: the frames have already waited.
    No,
}

/// A fragment that waits for its first fragment.
#[derive(Debug)]
struct HeldFragment<F> {
    arrival: Arrival,
    frame: F,
    /// Its verdict if the first fragment is not seen.
    verdict: Verdict,
}

/// A frame that does not fit its link.
#[derive(Debug)]
struct TooLong<F> {
    interface: InterfaceIndex,
    why: TransmitReason,
    oversized: Oversized,
    frame: F,
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

    #[inline]
    fn dispatch(&mut self, now: Now, arrival: Arrival, may_wait: MayWait) {
        let Self { parts, received, out, sending, too_long, pending_neighbor, fragments, punt_rates, .. } =
            self;
        let interface = arrival.interface();
        let any_oversized = !out.oversized.is_empty();
        let may_hold = may_wait == MayWait::Yes && !out.unknown_fragments.is_empty();
        for ((n, frame), &verdict) in received.drain(..).enumerate().zip(&out.verdicts) {
            if may_hold
                && let Some(unknown) = out.unknown_fragments.iter().find(|one| usize::from(one.frame) == n)
            {
                let held = HeldFragment { arrival, frame, verdict };
                if let Some(given_up) = fragments.hold(unknown.key, held, now) {
                    settle(parts, punt_rates, now, given_up);
                }
                continue;
            }
            let end = match verdict {
                Verdict::Transmit { interface, why } => {
                    if any_oversized
                        && let Some(&oversized) = out.oversized.iter().find(|one| usize::from(one.frame) == n)
                    {
                        too_long.push(TooLong { interface, why, oversized, frame });
                        continue;
                    }
                    let batch = &mut sending[usize::from(interface)];
                    // At most `BURST` frames were added since the last flush, so there is room. The verdict is recorded
                    // when the outcome is certain.
                    batch.frames.push(frame);
                    batch.why.push(Sending::Received(why));
                    continue;
                }
                Verdict::Punt(why) => match punt(parts, punt_rates, now, why, interface, frame) {
                    Ok(()) => verdict,
                    Err(refusal) => refusal.into(),
                },
                Verdict::HandOver(worker) => {
                    match parts.rings.hand_over(worker, arrival.handed_over(parts.worker), frame) {
                        // The verdict is recorded when the frame is in the ring.
                        Ok(()) => continue,
                        Err(_) => Refusal::HandOverRingFull.into(),
                    }
                }
                Verdict::Drop(_) => {
                    let wanted = out.unresolved.iter().find(|one| usize::from(one.frame) == n);
                    if may_wait != MayWait::No
                        && let Some(one) = wanted
                        && let Ok(dropped) =
                            pending_neighbor.park((one.interface, one.addr), arrival, frame, now)
                    {
                        give_up(parts, dropped);
                        continue;
                    }
                    verdict
                }
            };
            parts.shared.counters.record(end);
        }
    }

    /// Sends frames that do not fit their link as fragments. Each frame is counted once, as sent if all of its
    /// fragments are.
    #[cold]
    fn send_in_pieces(&mut self) {
        for TooLong { interface, why, oversized, frame } in std::mem::take(&mut self.too_long) {
            let port = usize::from(interface);
            let cut = Cut::new(frame.bytes(), usize::from(oversized.packet), usize::from(oversized.mtu));
            let mut end = Verdict::Transmit { interface, why };
            for n in 0..cut.map_or(0, |cut| cut.pieces()) {
                let Some(cut) = cut else { break };
                let Some(mut piece) = self.parts.ports[port].spare(cut.frame_len(n)) else {
                    end = Refusal::NoBuffer.into();
                    break;
                };
                cut.write(frame.bytes(), n, piece.bytes_mut());
                let batch = &mut self.sending[port];
                batch.frames.push(piece);
                batch.why.push(Sending::Piece);
                if batch.frames.is_full() && !self.flush(port) {
                    end = Refusal::TxQueueFull.into();
                    break;
                }
            }
            if !self.flush(port) {
                end = Refusal::TxQueueFull.into();
            }
            self.parts.shared.counters.record(end);
        }
    }

    /// Sends the frames that wait for a port, and drops those that its queue does not accept. Returns whether it
    /// accepted all.
    #[inline]
    fn flush(&mut self, port: usize) -> bool {
        let batch = &mut self.sending[port];
        batch.frames.is_empty()
            || batch.flush(&mut self.parts.ports[port], index_of(port), &self.parts.shared)
    }

    #[inline]
    fn tell_resolver(&mut self, now: Now) {
        for event in self.out.events.drain(..) {
            let shared = &self.parts.shared;
            if let NeighborEvent::Conflict { interface, .. } = event {
                shared.counters.interface(interface).address_conflicts.add(1);
            }
            if self.reported.is_new(now, event) && !self.parts.exchange.news.report(event) {
                shared.turns.neighbor_events_lost.add(1);
            }
        }
    }

    /// Puts the frames of the burst that other workers must process into their rings.
    #[inline]
    fn send_handed_over(&mut self) {
        while let Some(HandedOver { to, sent, refused }) = self.parts.rings.send_next() {
            let counters = &self.parts.shared.counters;
            (0..sent).for_each(|_| counters.record(Verdict::HandOver(to)));
            (0..refused).for_each(|_| counters.record(Refusal::HandOverRingFull.into()));
            self.parts.exchange.mailboxes[usize::from(to)].wake();
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

    /// Handles the first fragments of the last burst: informs the workers that may receive later fragments of their
    /// datagrams, and releases those held here.
    #[cold]
    fn tell_of_first_fragments(&mut self, now: Now) {
        for first in std::mem::take(&mut self.out.first_fragments) {
            if first.gatherer != self.parts.worker {
                self.tell(first.gatherer, Report::FirstFragment(first.key, first.owner));
            }
            self.release_fragments(&first.key, now);
        }
    }

    /// Handles the reports of other workers.
    fn learn_reports(&mut self, now: Now) {
        for from in 0..self.parts.rings.workers() {
            for _ in 0..BURST {
                match self.parts.rings.next_report(from) {
                    None => break,
                    // The first fragment itself will be handed over to this worker, and releases the others.
                    Some(Report::FirstFragment(_, owner)) if owner == self.parts.worker => {}
                    Some(Report::FirstFragment(key, owner)) => {
                        self.parts.pipeline.learn_fragment(key, owner, now);
                        self.release_fragments(&key, now);
                    }
                    Some(Report::EndedPath(path)) => self.parts.pipeline.end_path(&path, now),
                    Some(Report::FlowCopy(copy)) => self.parts.pipeline.learn_copy(&copy, now),
                    Some(Report::FlowUse(used)) => {
                        let snapshot = &self.parts.forwarding.get().snapshot;
                        let answer = self.parts.pipeline.confirm_copy(snapshot, &used, now);
                        // See `REPORTS_MAX` for the effect of a full ring.
                        let _ = self.parts.rings.tell(used.user, Report::FlowCopy(answer));
                    }
                }
            }
        }
    }

    /// Informs the workers that have paths of ended SCTP associations.
    #[cold]
    fn tell_of_ended_paths(&mut self) {
        for path in self.parts.pipeline.take_ended_paths() {
            // See `REPORTS_MAX` for the effect of a full ring.
            if self.parts.rings.tell(path.worker, Report::EndedPath(path)).is_ok() {
                self.parts.exchange.mailboxes[usize::from(path.worker)].wake();
            }
        }
    }

    /// Sends copies of flows to the worker that handed the burst over, and reports the use of copies. No worker is woken:
    /// one that sleeps takes them within a millisecond.
    #[cold]
    fn tell_of_copies(&mut self, arrival: Arrival) {
        if let Arrival::HandedOver(_, from) = arrival {
            for copy in self.out.flow_copies.drain(..) {
                let _ = self.parts.rings.tell(from, Report::FlowCopy(copy));
            }
        }
        for (holder, used) in self.out.flow_uses.drain(..) {
            let _ = self.parts.rings.tell(holder, Report::FlowUse(used));
        }
    }

    /// Reports to another worker and wakes it.
    fn tell(&mut self, to: WorkerIndex, report: Report) {
        // See `REPORTS_MAX` for the effect of a full ring.
        if self.parts.rings.tell(to, report).is_ok() {
            self.parts.exchange.mailboxes[usize::from(to)].wake();
        }
    }

    /// Processes the held fragments of a datagram once more.
    #[cold]
    fn release_fragments(&mut self, key: &FragmentKey, now: Now) {
        let mut next = self.fragments.release(key);
        while let Some(HeldFragment { arrival, frame, .. }) = next {
            self.received.push(frame);
            loop {
                next = self.fragments.release(key);
                match next {
                    Some(held) if held.arrival == arrival && !self.received.is_full() => {
                        self.received.push(held.frame);
                    }
                    other => {
                        next = other;
                        break;
                    }
                }
            }
            self.process(now, arrival, MayWait::ForNeighbor);
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

    /// Tells other gateways of flows, and takes some of theirs. Returns whether there was anything to do.
    #[cold]
    fn share_flows(&mut self, now: Now) -> bool {
        let parts = &mut self.parts;
        let Some(sharing) = parts.exchange.sharing.get() else { return false };
        let (worker, pipeline) = (usize::from(parts.worker), &mut parts.pipeline);
        let snapshot = &parts.forwarding.get().snapshot;
        if pipeline.shared_flows() != Some(sharing.flows()) {
            pipeline.set_shared_flows(Some(sharing.flows()), Walks::default());
        }
        let (queues, may_walk) = (sharing.queues(worker), sharing.may_walk(worker));
        let walks = pipeline.share(snapshot, sharing.walks(), may_walk, now, |news| {
            if queues.told.push(news).is_err() {
                queues.lost.add(1);
            }
        });
        queues.walked.store(pipeline.walked(), Ordering::Release);
        let mut taken = 0;
        while taken < LEARNT_PER_TURN
            && let Some(news) = queues.learnt.pop()
        {
            let learned = pipeline.adopt(snapshot, &news, now);
            queues.outcomes[learned as usize].add(1);
            taken += 1;
        }
        walks && may_walk || taken > 0
    }

    fn report_counts(&mut self, now: Now) {
        let Forwarding { snapshot, tallies } = self.parts.forwarding.get();
        self.parts.pipeline.report_limits(snapshot);
        self.parts.outliving.keep_time(now);
        let tallies = &tallies[usize::from(self.parts.worker)];
        self.parts.pipeline.report_set_aside(snapshot, tallies);
        let under_flood = self.parts.pipeline.report_floods(snapshot, tallies, now);
        let cookies = self.parts.pipeline.cookie_counts();
        let (flows, turns) = (self.parts.pipeline.flows(), &self.parts.shared.turns);
        turns.flows.set(flows.live() as u64);
        let counters = flows.counters();
        turns.flows_refused.set(counters.refused);
        let aside = self.parts.pipeline.set_aside_counts();
        turns.backends_set_aside.set(aside.set_aside);
        turns.backends_returned.set(aside.returned);
        turns.services_under_flood.set(under_flood as u64);
        for (level, count) in turns.syn_cookies.iter().zip([cookies.sent, cookies.accepted, cookies.refused])
        {
            level.set(count);
        }
        for (level, &count) in turns.evictions.iter().zip(&counters.evictions) {
            level.set(count);
        }
        for (level, &count) in turns.answers_suppressed.iter().zip(self.parts.pipeline.suppressed_answers()) {
            level.set(count);
        }
    }
}

/// Counts frames that waited for a neighbour without success.
fn give_up<Q: PortQueue>(parts: &WorkerParts<Q>, frames: usize) {
    for _ in 0..frames {
        parts.shared.counters.record(Refusal::NeighborUnresolved.into());
    }
}

/// Completes the verdict on a frame that is not sent.
#[cold]
fn settle<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    punt_rates: &mut PuntRates,
    now: Now,
    held: HeldFragment<Q::Frame>,
) {
    let HeldFragment { arrival, frame, verdict } = held;
    let end = match verdict {
        Verdict::Punt(why) => match punt(parts, punt_rates, now, why, arrival.interface(), frame) {
            Ok(()) => verdict,
            Err(refusal) => refusal.into(),
        },
        other => other,
    };
    parts.shared.counters.record(end);
}

/// Hands a frame to the slow path, if its class is within its limits.
#[cold]
fn punt<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    rates: &mut PuntRates,
    now: Now,
    why: PuntReason,
    interface: InterfaceIndex,
    frame: Q::Frame,
) -> Result<(), Refusal> {
    // Not every packet with a VIP as its source may reach the gateway's own address: only answers to the host.
    if why == PuntReason::ProbeAnswer && !parts.exchange.own.is_answer(now, frame.bytes()) {
        return Err(Refusal::BadSource);
    }
    let class = PuntClass::of(now, frame.bytes(), &parts.exchange.own);
    let counters = &parts.shared.turns.punts[class as usize];
    if !rates.take(class, frame.bytes(), &parts.exchange.punts, now) {
        counters.rate_limited.add(1);
        return Err(Refusal::PuntRateLimited);
    }
    // The time of the turn is not used: this frame may be the last of many.
    let punted = Punted { interface, frame, queued: parts.clock.now() };
    if parts.exchange.punts.push(class, punted).is_err() {
        counters.queue_full.add(1);
        return Err(Refusal::PuntQueueFull);
    }
    counters.passed.add(1);
    Ok(())
}

/// The number of turns between two reports of the pipeline's own counts. A report costs a few cycles per turn.
const TURNS_PER_REPORT: u32 = 64;

fn index_of(port: usize) -> InterfaceIndex {
    InterfaceIndex::try_from(port).expect("at most INTERFACES_MAX ports")
}
