//! Sends each frame of a burst where its verdict says: to a port, the slow path, another worker or a waiting queue; or
//! drops it.
//!
//! Promises: a frame is counted once, when its outcome is final. The received batch is empty afterwards.

use tidegate_pipeline::frame::Frame;
use tidegate_pipeline::pipeline::Arrival;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, Verdict};
use tidegate_wire::cut::Cut;

use super::deferred_frames::{MayWait, PendingFragment, TooLong};
use super::frame_ends::{count_unresolved, finish, punt};
use super::rings::HandedOver;
use super::transmit::Sending;
use super::{Worker, index_of};
use crate::drivers::PortQueue;

impl<Q: PortQueue> Worker<Q> {
    #[inline]
    pub(super) fn dispatch(&mut self, now: Now, arrival: Arrival, may_wait: MayWait) {
        let Self { parts, received, out, sending, too_long, pending_neighbor, fragments, punt_rates, .. } =
            self;
        let interface = arrival.interface();
        let any_oversized = !out.oversized.is_empty();
        let may_defer = may_wait == MayWait::Yes && !out.unknown_fragments.is_empty();
        for ((n, frame), &verdict) in received.drain(..).enumerate().zip(&out.verdicts) {
            if may_defer
                && let Some(unknown) = out.unknown_fragments.iter().find(|one| usize::from(one.frame) == n)
            {
                let fragment = PendingFragment { arrival, frame, verdict };
                if let Some(evicted) = fragments.push(unknown.key, fragment, now) {
                    finish(parts, punt_rates, now, evicted);
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
                    // At most `BURST` frames were added since the last flush, so there is capacity. The verdict is
                    // recorded when the outcome is final.
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
                        // The verdict is recorded once the frame is in the ring.
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
                        count_unresolved(parts, dropped);
                        continue;
                    }
                    verdict
                }
            };
            parts.shared.counters.record(end);
        }
    }

    /// Sends the frames queued for a port and drops those that its transmit queue refuses. Returns whether it accepted
    /// all of them.
    #[inline]
    pub(super) fn flush(&mut self, port: usize) -> bool {
        let batch = &mut self.sending[port];
        batch.frames.is_empty()
            || batch.flush(&mut self.parts.ports[port], index_of(port), &self.parts.shared)
    }

    /// Fragments and sends frames that exceed the MTU of their link. Each frame is counted once: as sent only if all
    /// its fragments are.
    #[cold]
    pub(super) fn send_fragments(&mut self) {
        for TooLong { interface, why, oversized, frame } in std::mem::take(&mut self.too_long) {
            let port = usize::from(interface);
            let cut = Cut::new(frame.bytes(), usize::from(oversized.packet), usize::from(oversized.mtu));
            let mut end = Verdict::Transmit { interface, why };
            for n in 0..cut.map_or(0, |cut| cut.fragments()) {
                let Some(cut) = cut else { break };
                let Some(mut fragment) = self.parts.ports[port].spare(cut.frame_len(n)) else {
                    end = Refusal::NoBuffer.into();
                    break;
                };
                cut.write(frame.bytes(), n, fragment.bytes_mut());
                let batch = &mut self.sending[port];
                batch.frames.push(fragment);
                batch.why.push(Sending::Fragment);
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

    /// Moves frames for other workers into their rings.
    #[inline]
    pub(super) fn send_handed_over(&mut self) {
        while let Some(HandedOver { to, sent, refused }) = self.parts.rings.send_next() {
            let counters = &self.parts.shared.counters;
            (0..sent).for_each(|_| counters.record(Verdict::HandOver(to)));
            (0..refused).for_each(|_| counters.record(Refusal::HandOverRingFull.into()));
            self.parts.exchange.mailboxes[usize::from(to)].wake();
        }
    }
}
