//! Frames waiting for the link address of their next hop, so that the first packet to a neighbour is delayed instead of
//! lost. TCP would retransmit only after a second; RFC 4861 section 7.2.2 requires queueing at least one packet.
//!
//! The pipeline leaves a frame that it can't send unchanged, so the worker keeps it here and processes it again once
//! the neighbour is resolved. A frame that waits too long, or finds the queue full, is dropped for its original reason.
//! The queue is checked only while frames wait, and at most every [`CHECK_INTERVAL`].
//!
//! Frames for dead backends and forged addresses wait here too, and must not displace others. A neighbour that did not
//! answer before is silent: it gets an entry only while half of the entries are free. If all entries are used, the
//! neighbour that has waited longest is evicted once its answer is late ([`EVICT_AFTER`]).
//!
//! Invariant: neighbours, frames and time are bounded, and all memory is reserved at the start. A frame is counted when
//! it leaves, not when it arrives.

use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_pipeline::pipeline::Arrival;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_structures::hash::key_hash;
use tidegate_wire::Addr;

/// Maximum number of neighbours that frames wait for.
pub const NEIGHBORS_MAX: usize = 64;
/// Maximum number of frames waiting for one neighbour. It also limits a flood to an unused address.
pub const FRAMES_PER_NEIGHBOR: usize = 16;
/// Maximum number of waiting frames per worker.
pub const PARKED_MAX: usize = NEIGHBORS_MAX * FRAMES_PER_NEIGHBOR;
/// The longest wait: the resolver sends two or three requests in that time, and TCP starts to retransmit after it.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// A neighbour may be evicted after this time if the queue is full: on a link, answers take milliseconds.
const EVICT_AFTER: Duration = Duration::from_millis(100);
/// Silent neighbours get an entry only while fewer entries than this are used.
const SILENT_ENTRIES: usize = NEIGHBORS_MAX / 2;
/// How long a neighbour counts as silent after a frame waited for it in vain, or was refused because the neighbour is
/// silent.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// Maximum number of silent neighbours remembered: 64 KiB.
const SILENT_MAX: usize = 4096;
/// Interval between two checks of the pending neighbours: checking all 64 takes some 3 µs.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// A frame with its arrival.
pub type Parked<F> = (Arrival, F);

/// The frames waiting for neighbours.
#[derive(Debug)]
pub struct PendingNeighborQueue<F> {
    /// Never grows beyond its initial capacity.
    waits: Vec<Wait<F>>,
    silent: Silent,
    next_check: Now,
}

#[derive(Debug)]
struct Wait<F> {
    interface: InterfaceIndex,
    addr: Addr,
    until: Now,
    frames: ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>,
}

/// Neighbours for which frames waited in vain: the hash of each, and when it is forgotten. The hash determines the
/// index. A neighbour displaced by a collision is treated like a new one.
#[derive(Debug)]
struct Silent(Box<[(u64, Now)]>);

impl Default for Silent {
    fn default() -> Self {
        Self(vec![(0, Now(0)); SILENT_MAX].into())
    }
}

impl Silent {
    fn has(&self, neighbor: u64, now: Now) -> bool {
        let (last, until) = self.0[Self::index(neighbor)];
        last == neighbor && now < until
    }

    fn note(&mut self, neighbor: u64, now: Now) {
        self.0[Self::index(neighbor)] = (neighbor, now.plus(SILENT_FOR));
    }

    fn index(neighbor: u64) -> usize {
        // The remainder is below `SILENT_MAX`.
        neighbor as usize % SILENT_MAX
    }
}

/// The frames that waited for one neighbour, in the order of arrival.
#[derive(Debug)]
pub enum Released<F> {
    /// The link address is known.
    Resolved(ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>),
    /// The neighbour was not resolved in time.
    Expired(ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>),
}

impl<F> Default for PendingNeighborQueue<F> {
    fn default() -> Self {
        Self { waits: Vec::with_capacity(NEIGHBORS_MAX), silent: Silent::default(), next_check: Now(0) }
    }
}

impl<F> PendingNeighborQueue<F> {
    /// Whether no frame is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Keeps a frame until this neighbour is resolved. Returns the number of frames evicted for it.
    ///
    /// # Errors
    /// The frame, if it can't be kept.
    pub fn park(
        &mut self,
        (interface, addr): (InterfaceIndex, Addr),
        arrival: Arrival,
        frame: F,
        now: Now,
    ) -> Result<usize, F> {
        let known = self.waits.iter().position(|wait| (wait.interface, wait.addr) == (interface, addr));
        let (at, dropped) = match known {
            Some(at) => (at, 0),
            None => {
                let Some(dropped) = self.reserve_entry(key_hash(&addr, interface, 0), now) else {
                    return Err(frame);
                };
                let until = now.plus(WAIT_MAX);
                self.waits.push(Wait { interface, addr, until, frames: ArrayVec::new() });
                (self.waits.len() - 1, dropped)
            }
        };
        self.waits[at].frames.try_push((arrival, frame)).map(|()| dropped).map_err(|full| full.element().1)
    }

    /// Reserves an entry for another neighbour. Returns the number of frames evicted for it; `None` if it may not have
    /// an entry.
    fn reserve_entry(&mut self, neighbor: u64, now: Now) -> Option<usize> {
        if self.waits.len() >= SILENT_ENTRIES && self.silent.has(neighbor, now) {
            self.silent.note(neighbor, now);
            return None;
        }
        if self.waits.len() < NEIGHBORS_MAX {
            return Some(0);
        }
        let (at, first) = self.waits.iter().enumerate().min_by_key(|(_, wait)| wait.until)?;
        let is_late = first.until <= now.plus(WAIT_MAX.saturating_sub(EVICT_AFTER));
        is_late.then(|| self.expire(at, now).len())
    }

    /// Ends a wait without an answer.
    fn expire(&mut self, at: usize, now: Now) -> ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR> {
        let Wait { interface, addr, frames, .. } = self.waits.swap_remove(at);
        self.silent.note(key_hash(&addr, interface, 0), now);
        frames
    }

    /// The frames of a neighbour that was resolved or has timed out. `None` if there is none, or the next check isn't
    /// due.
    pub fn release(&mut self, now: Now, neighbors: &NeighborTable) -> Option<Released<F>> {
        if now < self.next_check {
            return None;
        }
        let is_resolved = |wait: &Wait<F>| {
            let entry = neighbors.lookup(wait.interface, &wait.addr);
            entry.is_some_and(|entry| neighbors.mac(entry).is_some())
        };
        let over = self.waits.iter().position(|wait| wait.until <= now || is_resolved(wait));
        let Some(at) = over else {
            self.next_check = now.plus(CHECK_INTERVAL);
            return None;
        };
        Some(if is_resolved(&self.waits[at]) {
            Released::Resolved(self.waits.swap_remove(at).frames)
        } else {
            Released::Expired(self.expire(at, now))
        })
    }

    /// The number of waiting frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waits.iter().map(|wait| wait.frames.len()).sum()
    }

    /// Frees all waiting frames and returns their number.
    pub fn clear(&mut self) -> usize {
        let waiting = self.len();
        self.waits.clear();
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_wire::MacAddr;

    const HERE: Arrival = Arrival::Wire(0);

    fn host(n: u8) -> (InterfaceIndex, Addr) {
        (0, Addr::v4([192, 0, 2, n]))
    }

    #[test]
    fn frames_come_back_in_order_once_their_neighbour_is_found() {
        let (neighbors, mut pending) = (NeighborTable::with_capacity(8), PendingNeighborQueue::default());
        for frame in 0..3 {
            pending.park(host(1), HERE, frame, Now(0)).unwrap();
            pending.park(host(2), Arrival::HandedOver(0, 0), 10 + frame, Now(0)).unwrap();
        }
        assert!(pending.release(Now(0), &neighbors).is_none());
        let entry = neighbors.intern(0, host(2).1).unwrap();
        neighbors.set_resolved(entry, MacAddr([2, 0, 0, 0, 0, 9]));
        assert!(pending.release(Now(1), &neighbors).is_none(), "the next check is not due");
        let later = Now(0).plus(CHECK_INTERVAL);
        let Some(Released::Resolved(frames)) = pending.release(later, &neighbors) else { panic!("found") };
        assert_eq!(frames[..], [10, 11, 12].map(|frame| (Arrival::HandedOver(0, 0), frame)));
        assert!(pending.release(later, &neighbors).is_none());
        assert_eq!((pending.len(), pending.is_empty()), (3, false));
    }

    #[test]
    fn waiting_ends_after_a_second_counted_from_the_first_frame() {
        let (neighbors, mut pending) = (NeighborTable::with_capacity(8), PendingNeighborQueue::default());
        pending.park(host(1), HERE, 1, Now(0)).unwrap();
        pending.park(host(1), HERE, 2, Now(900_000_000)).unwrap();
        assert!(pending.release(Now(999_999_999), &neighbors).is_none());
        let Some(Released::Expired(frames)) = pending.release(Now(1_000_100_000), &neighbors) else {
            panic!("over")
        };
        assert_eq!((frames.len(), pending.is_empty()), (2, true));
    }

    #[test]
    fn neighbours_and_frames_are_bounded_and_excess_frames_are_returned() {
        let mut pending = PendingNeighborQueue::default();
        for neighbor in 0..NEIGHBORS_MAX {
            for frame in 0..FRAMES_PER_NEIGHBOR {
                pending.park(host(neighbor as u8), HERE, frame, Now(0)).unwrap();
            }
        }
        assert_eq!(pending.park(host(0), HERE, 77, Now(0)), Err(77));
        assert_eq!(pending.park(host(200), HERE, 78, Now(0)), Err(78));
        assert_eq!(pending.waits.capacity(), NEIGHBORS_MAX, "no memory was allocated");
        assert_eq!((pending.clear(), pending.is_empty()), (PARKED_MAX, true));
    }

    #[test]
    fn neighbours_that_never_answer_leave_half_of_the_entries_to_others() {
        let (neighbors, mut pending) = (NeighborTable::with_capacity(8), PendingNeighborQueue::default());
        let dead = 0..NEIGHBORS_MAX as u8;
        for n in dead.clone() {
            assert_eq!(pending.park(host(n), HERE, 1, Now(0)), Ok(0), "none is known to be dead");
        }
        let over = Now(0).plus(WAIT_MAX);
        while let Some(released) = pending.release(over, &neighbors) {
            assert!(matches!(released, Released::Expired(_)));
        }
        assert!(pending.is_empty());
        let waiting = dead.filter(|&n| pending.park(host(n), HERE, 2, over).is_ok()).count();
        // A few may collide by chance.
        assert!((SILENT_ENTRIES..SILENT_ENTRIES + 8).contains(&waiting), "{waiting}");
        for n in 100..124 {
            assert_eq!(pending.park(host(n), HERE, 3, over), Ok(0), "one that was never silent");
        }
        let entry = neighbors.intern(0, host(100).1).unwrap();
        neighbors.set_resolved(entry, MacAddr([2, 0, 0, 0, 0, 9]));
        let later = over.plus(CHECK_INTERVAL);
        let Some(Released::Resolved(frames)) = pending.release(later, &neighbors) else { panic!("found") };
        assert_eq!(frames[..], [(HERE, 3)]);
    }

    #[test]
    fn the_longest_wait_ends_early_if_another_neighbour_needs_the_entry() {
        let mut pending = PendingNeighborQueue::default();
        for n in 0..NEIGHBORS_MAX as u8 {
            assert_eq!(pending.park(host(n), HERE, n, Now(u64::from(n))), Ok(0));
        }
        let late = Now(0).plus(EVICT_AFTER);
        assert_eq!(
            pending.park(host(200), HERE, 200, Now(late.0 - 1)),
            Err(200),
            "its answer may still arrive"
        );
        assert_eq!(pending.park(host(200), HERE, 200, late), Ok(1), "the frame of the first is dropped");
        assert_eq!(pending.park(host(0), HERE, 0, late), Err(0), "it now counts as silent");
        assert_eq!((pending.len(), pending.waits.capacity()), (NEIGHBORS_MAX, NEIGHBORS_MAX));
    }
}
