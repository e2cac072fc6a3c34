//! The rings between workers, which carry handed-over frames and reports.
//!
//! Each pair of workers has its own rings in each direction, with one writer and one reader. A worker that hands over a
//! burst writes the ring's position once, and no position is written by two workers. Frames of a worker stay in order.
//!
//! The rings don't wake a sleeping worker; [`Mailbox::wake`](super::Mailbox::wake) does.
//!
//! Invariant: no worker waits here. A full ring returns the item, and the caller counts it.

use arrayvec::ArrayVec;
use rtrb::{Consumer, Producer, RingBuffer};
use tidegate_conntrack::associations::EndedPath;
use tidegate_conntrack::flow_copies::{FlowCopy, FlowUse};
use tidegate_pipeline::fragments::FragmentKey;
use tidegate_pipeline::pipeline::Arrival;
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::BURST;

use crate::drivers::FrameBatch;

/// Maximum number of frames queued for one worker by all others: two full receive rings. With many workers, each ring
/// still has [`RING_MIN`].
pub const HANDED_OVER_MAX: usize = 2048;
/// Minimum capacity of one ring: two bursts.
pub const RING_MIN: usize = 2 * BURST;
/// Maximum number of reports queued in one ring; further ones are dropped. Without the report of a first fragment,
/// later fragments that arrive at another worker are dropped as `fragment_unknown`. Without the report of an ended
/// association, the flow of its path stays until its idle timeout. Without a report about a flow copy, more packets are
/// handed over, and the report is repeated.
pub const REPORTS_MAX: usize = 256;

/// The ring for reports is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingFull;

/// Maximum number of frames queued for one worker, with this many workers in total.
#[must_use]
pub fn handed_over_max(workers: usize) -> usize {
    workers.saturating_sub(1) * frames_max(workers)
}

/// Maximum number of frames in one ring.
fn frames_max(workers: usize) -> usize {
    (HANDED_OVER_MAX / workers.saturating_sub(1).max(1)).max(RING_MIN)
}

/// A report from one worker to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Report {
    /// The worker that has, or is about to get, the first fragment of a datagram.
    FirstFragment(FragmentKey, WorkerIndex),
    /// An SCTP association has ended; the receiver has a path of it.
    EndedPath(EndedPath),
    /// A copy of a flow that the sender owns.
    FlowCopy(FlowCopy),
    /// A copy of a flow that the receiver owns is in use.
    FlowUse(FlowUse),
}

/// One worker's ends of the rings to and from all others.
#[derive(Debug)]
pub struct Rings<F> {
    /// Indexed by worker; `None` for the worker itself.
    to: Vec<Option<ToWorker<F>>>,
    from: Vec<Option<FromWorker<F>>>,
    /// One bit for each worker with frames in [`ToWorker::waiting`].
    unsent: u64,
}

const _: () = assert!(tidegate_spec::limits::WORKERS_MAX <= 64, "`unsent` has one bit for each worker");

#[derive(Debug)]
struct ToWorker<F> {
    frames: Producer<(Arrival, F)>,
    reports: Producer<Report>,
    /// The frames of the burst in progress.
    waiting: ArrayVec<(Arrival, F), BURST>,
}

#[derive(Debug)]
struct FromWorker<F> {
    frames: Consumer<(Arrival, F)>,
    reports: Consumer<Report>,
}

/// The result of handing the frames of a burst over to one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedOver {
    /// The worker.
    pub to: WorkerIndex,
    /// The number of frames in its ring.
    pub sent: usize,
    /// The number of frames that didn't fit and were freed.
    pub refused: usize,
}

impl<F> Rings<F> {
    /// The ring ends of each of `workers` workers.
    #[must_use]
    pub fn between(workers: usize) -> Vec<Self> {
        let none = || (0..workers).map(|_| None).collect();
        let mut all: Vec<Self> = (0..workers)
            .map(|_| Self { to: none(), from: (0..workers).map(|_| None).collect(), unsent: 0 })
            .collect();
        for writer in 0..workers {
            for reader in (0..workers).filter(|&reader| reader != writer) {
                let (to_frames, from_frames) = RingBuffer::new(frames_max(workers));
                let (to_reports, from_reports) = RingBuffer::new(REPORTS_MAX);
                all[writer].to[reader] =
                    Some(ToWorker { frames: to_frames, reports: to_reports, waiting: ArrayVec::new() });
                all[reader].from[writer] = Some(FromWorker { frames: from_frames, reports: from_reports });
            }
        }
        all
    }

    /// The number of workers.
    #[inline]
    #[must_use]
    pub fn workers(&self) -> usize {
        self.from.len()
    }

    /// Adds a frame of the current burst for another worker. `arrival` is the arrival as that worker sees it. Call
    /// [`Self::send_next`] after the burst, which has at most [`BURST`] frames.
    ///
    /// # Errors
    /// The frame, if there is no such worker or it already has [`BURST`] frames of this burst.
    #[inline]
    pub fn hand_over(&mut self, to: WorkerIndex, arrival: Arrival, frame: F) -> Result<(), F> {
        let Some(Some(ring)) = self.to.get_mut(usize::from(to)) else { return Err(frame) };
        ring.waiting.try_push((arrival, frame)).map_err(|full| full.element().1)?;
        self.unsent |= 1 << to;
        Ok(())
    }

    /// Moves the frames of the burst into the ring of the next worker that has any. The caller wakes that worker.
    #[inline]
    pub fn send_next(&mut self) -> Option<HandedOver> {
        if self.unsent == 0 {
            return None;
        }
        let to = self.unsent.trailing_zeros();
        self.unsent &= self.unsent - 1;
        let ring = self.to[to as usize].as_mut()?;
        let all = ring.waiting.len();
        let free = ring.frames.slots().min(all);
        let sent = match ring.frames.write_chunk_uninit(free) {
            Ok(chunk) => chunk.fill_from_iter(ring.waiting.drain(..free)),
            Err(_) => 0,
        };
        ring.waiting.clear();
        // Below WORKERS_MAX.
        Some(HandedOver { to: to as WorkerIndex, sent, refused: all - sent })
    }

    /// Queues a report for another worker.
    ///
    /// # Errors
    /// [`RingFull`] if the ring is full or there is no such worker.
    pub fn report(&mut self, to: WorkerIndex, report: Report) -> Result<(), RingFull> {
        let Some(Some(ring)) = self.to.get_mut(usize::from(to)) else { return Err(RingFull) };
        ring.reports.push(report).map_err(|_| RingFull)
    }

    /// Receives the next frames from this worker that have the same arrival, as many as fit the batch.
    pub fn take_frames(&mut self, from: usize, batch: &mut FrameBatch<F>) -> Option<Arrival> {
        let ring = self.from.get_mut(from)?.as_mut()?;
        let &(arrival, _) = ring.frames.peek().ok()?;
        let most = ring.frames.slots().min(batch.remaining_capacity());
        let chunk = ring.frames.read_chunk(most).ok()?;
        let (first, second) = chunk.as_slices();
        let same = first.iter().chain(second).take_while(|(other, _)| *other == arrival).count();
        let frames = ring.frames.read_chunk(same).ok()?;
        batch.extend(frames.into_iter().map(|(_, frame)| frame));
        Some(arrival)
    }

    /// The next report of this worker.
    #[inline]
    pub fn next_report(&mut self, from: usize) -> Option<Report> {
        self.from.get_mut(from)?.as_mut()?.reports.pop().ok()
    }

    /// Whether all rings to this worker are empty. Costs a few loads per worker in each loop iteration.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.iter().flatten().all(|ring| ring.frames.is_empty() && ring.reports.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use tidegate_conntrack::FlowKey;
    use tidegate_spec::ids::ServiceId;
    use tidegate_wire::Addr;

    use super::*;

    const WIRE: Arrival = Arrival::HandedOver(0, 0);
    const OTHER: Arrival = Arrival::HandedOver(1, 0);

    fn sent(rings: &mut Rings<u32>) -> Vec<(WorkerIndex, usize, usize)> {
        std::iter::from_fn(|| rings.send_next()).map(|one| (one.to, one.sent, one.refused)).collect()
    }

    #[test]
    fn a_burst_reaches_its_workers_in_order_and_in_batches_of_one_arrival() {
        let mut all = Rings::<u32>::between(3);
        for n in 0..10 {
            let arrival = if n < 6 { WIRE } else { OTHER };
            all[0].hand_over(1 + (n % 2) as u8, arrival, n).unwrap();
        }
        assert!(all[1].is_empty(), "nothing is sent before the end of the burst");
        assert_eq!(sent(&mut all[0]), [(1, 5, 0), (2, 5, 0)]);
        assert!(!all[1].is_empty() && !all[2].is_empty() && all[0].is_empty());
        let mut batch = FrameBatch::new();
        assert_eq!(all[1].take_frames(0, &mut batch), Some(WIRE));
        assert_eq!(batch.drain(..).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(all[1].take_frames(0, &mut batch), Some(OTHER));
        assert_eq!(batch.drain(..).collect::<Vec<_>>(), [6, 8]);
        assert_eq!((all[1].take_frames(0, &mut batch), all[1].is_empty()), (None, true));
        assert_eq!([1, 2, 9].map(|from| all[1].take_frames(from, &mut batch)), [None; 3]);
    }

    #[test]
    fn a_full_ring_refuses_frames_and_reports_and_keeps_the_rest() {
        let mut all = Rings::<u32>::between(2);
        let mut accepted = 0;
        for n in 0..HANDED_OVER_MAX as u32 + 7 {
            all[0].hand_over(1, WIRE, n).unwrap();
            if n % 5 == 0 {
                accepted += sent(&mut all[0]).iter().map(|&(_, sent, _)| sent).sum::<usize>();
            }
        }
        accepted += sent(&mut all[0]).iter().map(|&(_, sent, _)| sent).sum::<usize>();
        assert_eq!(accepted, HANDED_OVER_MAX);
        let (mut batch, mut next) = (FrameBatch::new(), 0);
        while all[1].take_frames(0, &mut batch).is_some() {
            assert!(batch.len() <= BURST);
            for frame in batch.drain(..) {
                assert_eq!(frame, next);
                next += 1;
            }
        }
        assert_eq!(next as usize, HANDED_OVER_MAX);
        let key = FlowKey::flow(ServiceId::new(1, 0), Addr::v4([198, 51, 100, 7]), 1);
        let report = Report::FlowCopy(FlowCopy { key, copied: None });
        let accepted = (0..REPORTS_MAX + 3).filter(|_| all[0].report(1, report).is_ok()).count();
        assert_eq!(accepted, REPORTS_MAX);
        assert_eq!(std::iter::from_fn(|| all[1].next_report(0)).count(), REPORTS_MAX);
        assert_eq!((all[0].report(0, report), all[0].report(9, report)), (Err(RingFull), Err(RingFull)));
        assert_eq!((all[0].hand_over(0, WIRE, 1), all[0].hand_over(2, WIRE, 2)), (Err(1), Err(2)));
    }

    #[test]
    fn many_workers_share_the_capacity_and_each_ring_has_some() {
        let mut all = Rings::<u32>::between(64);
        for n in 0..300 {
            all[5].hand_over(63, WIRE, n).unwrap();
            if n % 30 == 29 {
                sent(&mut all[5]);
            }
        }
        let mut batch = FrameBatch::new();
        let mut taken = 0;
        while all[63].take_frames(5, &mut batch).is_some() {
            taken += batch.drain(..).count();
        }
        assert_eq!(taken, RING_MIN);
        assert_eq!(
            (Rings::<u32>::between(1)[0].workers(), handed_over_max(1), handed_over_max(2)),
            (1, 0, HANDED_OVER_MAX)
        );
    }
}
