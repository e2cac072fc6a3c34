//! Reports to the resolver and between workers: first fragments, ended SCTP paths, and copies of flows.
//!
//! Promises: nothing waits. A report that doesn't fit its ring is dropped; see `REPORTS_MAX` for the cost.

use tidegate_pipeline::fragments::FragmentKey;
use tidegate_pipeline::pipeline::{Arrival, NeighborEvent};
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;

use super::Worker;
use super::deferred_frames::{MayWait, PendingFragment};
use super::rings::Report;
use crate::drivers::PortQueue;

impl<Q: PortQueue> Worker<Q> {
    #[inline]
    pub(super) fn report_to_resolver(&mut self, now: Now) {
        for event in self.out.events.drain(..) {
            let shared = &self.parts.shared;
            if let NeighborEvent::Conflict { interface, .. } = event {
                shared.counters.interface(interface).address_conflicts.add(1);
            }
            if self.reported.is_new(now, event) && !self.parts.exchange.neighbor_reports.report(event) {
                shared.loop_counters.neighbor_events_lost.add(1);
            }
        }
    }

    /// Handles the reports of other workers.
    pub(super) fn receive_reports(&mut self, now: Now) {
        for from in 0..self.parts.rings.workers() {
            for _ in 0..BURST {
                match self.parts.rings.next_report(from) {
                    None => break,
                    // The first fragment itself will be handed over to this worker and releases the others.
                    Some(Report::FirstFragment(_, owner)) if owner == self.parts.worker => {}
                    Some(Report::FirstFragment(key, owner)) => {
                        self.parts.pipeline.record_first_fragment(key, owner, now);
                        self.release_fragments(&key, now);
                    }
                    Some(Report::EndedPath(path)) => self.parts.pipeline.end_path(&path, now),
                    Some(Report::FlowCopy(copy)) => self.parts.pipeline.store_copy(&copy, now),
                    Some(Report::FlowUse(used)) => {
                        let snapshot = &self.parts.forwarding.get().snapshot;
                        let answer = self.parts.pipeline.confirm_copy(snapshot, &used, now);
                        // See `REPORTS_MAX` for the effect of a full ring.
                        let _ = self.parts.rings.report(used.user, Report::FlowCopy(answer));
                    }
                }
            }
        }
    }

    /// Handles the first fragments of the last burst: informs the workers that may receive later fragments of their
    /// datagrams, and releases those waiting here.
    #[cold]
    pub(super) fn report_first_fragments(&mut self, now: Now) {
        for first in std::mem::take(&mut self.out.first_fragments) {
            if first.gatherer != self.parts.worker {
                self.report(first.gatherer, Report::FirstFragment(first.key, first.owner));
            }
            self.release_fragments(&first.key, now);
        }
    }

    /// Informs the workers that have paths of ended SCTP associations.
    #[cold]
    pub(super) fn report_ended_paths(&mut self) {
        for path in self.parts.pipeline.take_ended_paths() {
            // See `REPORTS_MAX` for the effect of a full ring.
            if self.parts.rings.report(path.worker, Report::EndedPath(path)).is_ok() {
                self.parts.exchange.mailboxes[usize::from(path.worker)].wake();
            }
        }
    }

    /// Sends copies of flows to the worker that handed the burst over, and reports the use of copies. Wakes no worker:
    /// a sleeping one reads its rings within a millisecond.
    #[cold]
    pub(super) fn send_flow_copies(&mut self, arrival: Arrival) {
        if let Arrival::HandedOver(_, from) = arrival {
            for copy in self.out.flow_copies.drain(..) {
                let _ = self.parts.rings.report(from, Report::FlowCopy(copy));
            }
        }
        for (owner, used) in self.out.flow_uses.drain(..) {
            let _ = self.parts.rings.report(owner, Report::FlowUse(used));
        }
    }

    /// Reports to another worker and wakes it.
    fn report(&mut self, to: WorkerIndex, report: Report) {
        // See `REPORTS_MAX` for the effect of a full ring.
        if self.parts.rings.report(to, report).is_ok() {
            self.parts.exchange.mailboxes[usize::from(to)].wake();
        }
    }

    /// Processes the waiting fragments of a datagram.
    #[cold]
    fn release_fragments(&mut self, key: &FragmentKey, now: Now) {
        let mut next = self.fragments.release(key);
        while let Some(PendingFragment { arrival, frame, .. }) = next {
            self.received.push(frame);
            loop {
                next = self.fragments.release(key);
                match next {
                    Some(fragment) if fragment.arrival == arrival && !self.received.is_full() => {
                        self.received.push(fragment.frame);
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
}
