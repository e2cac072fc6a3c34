//! Frames that wait until the link address of their next hop is known, so that the first packet to a neighbour is
//! delayed and not lost (TCP would send it again after a second; RFC 4861 section 7.2.2 requires that at least one is
//! kept).
//!
//! The pipeline leaves a frame that it cannot send unchanged, so the worker keeps it here and processes it once more
//! when the neighbour is found. A frame that waits too long, or finds no room, is dropped for its original reason.
//! While no frame waits, nothing is checked; otherwise no more often than every [`LOOK_EVERY`].
//!
//! Frames for dead backends and for forged addresses wait here too, and must not take the places of others. A neighbour
//! that left frames here without an answer is silent: it gets a place only while half of the places are free. If all are
//! taken, the neighbour that waits longest makes room for another one once its answer is late ([`YIELD_AFTER`]).
//!
//! Invariant: bounded in neighbours, frames and time; all memory is reserved at the start. A frame is counted when it
//! leaves, not when it arrives.

use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_pipeline::pipeline::Arrival;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_structures::hash::key_hash;
use tidegate_wire::Addr;

/// The maximum number of neighbours that frames wait for at once.
pub const NEIGHBORS_MAX: usize = 64;
/// The maximum number of frames that wait for one neighbour. It also limits a flood to an unused address.
pub const FRAMES_PER_NEIGHBOR: usize = 16;
/// The maximum number of frames that one worker keeps here.
pub const PARKED_MAX: usize = NEIGHBORS_MAX * FRAMES_PER_NEIGHBOR;
/// The longest time that a frame waits: two or three requests of the resolver, and as long as TCP waits before it sends
/// again.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// The longest time that a frame waits while other neighbours have no place: an answer on a link takes some milliseconds.
const YIELD_AFTER: Duration = Duration::from_millis(100);
/// Silent neighbours get a place only while fewer places than this are taken.
const SILENT_PLACES: usize = NEIGHBORS_MAX / 2;
/// How long a neighbour counts as silent. The time begins when a frame has waited for it in vain. It begins again when a frame
/// gets no place because the neighbour is silent.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// The number of silent neighbours that are remembered, at most: 64 KiB.
const SILENT_MAX: usize = 4096;
/// Pause between two checks of the pending neighbours: a check of 64 takes some 3 µs.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// A frame with its arrival.
pub type Parked<F> = (Arrival, F);

/// The frames that wait for a neighbour.
#[derive(Debug)]
pub struct PendingNeighborQueue<F> {
    /// It never grows beyond its initial capacity.
    waits: Vec<Wait<F>>,
    silent: Silent,
    next_look: Now,
}

#[derive(Debug)]
struct Wait<F> {
    interface: InterfaceIndex,
    addr: Addr,
    until: Now,
    frames: ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>,
}

/// The neighbours for which frames waited in vain. Each place has the hash of a neighbour, which determines the place, and the
/// time until which it is remembered. A neighbour that loses its place to another one is treated like a new one.
#[derive(Debug)]
struct Silent(Box<[(u64, Now)]>);

impl Default for Silent {
    fn default() -> Self {
        Self(vec![(0, Now(0)); SILENT_MAX].into())
    }
}

impl Silent {
    fn has(&self, neighbor: u64, now: Now) -> bool {
        let (last, until) = self.0[Self::place(neighbor)];
        last == neighbor && now < until
    }

    fn note(&mut self, neighbor: u64, now: Now) {
        self.0[Self::place(neighbor)] = (neighbor, now.plus(SILENT_FOR));
    }

    fn place(neighbor: u64) -> usize {
        // The remainder is below `SILENT_MAX`.
        neighbor as usize % SILENT_MAX
    }
}

/// The frames that waited for one neighbour, in the order of arrival.
#[derive(Debug)]
pub enum Released<F> {
    /// Its link address is known.
    Resolved(ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>),
    /// It was not found in time.
    Expired(ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>),
}

impl<F> Default for PendingNeighborQueue<F> {
    fn default() -> Self {
        Self { waits: Vec::with_capacity(NEIGHBORS_MAX), silent: Silent::default(), next_look: Now(0) }
    }
}

impl<F> PendingNeighborQueue<F> {
    /// Whether no frame is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Keeps a frame until this neighbour is found. Returns the number of frames that were dropped to make room for it.
    ///
    /// # Errors
    /// The frame, if there is no room.
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
                let Some(dropped) = self.make_room(key_hash(&addr, interface, 0), now) else {
                    return Err(frame);
                };
                let until = now.plus(WAIT_MAX);
                self.waits.push(Wait { interface, addr, until, frames: ArrayVec::new() });
                (self.waits.len() - 1, dropped)
            }
        };
        self.waits[at].frames.try_push((arrival, frame)).map(|()| dropped).map_err(|full| full.element().1)
    }

    /// Makes a place for one more neighbour, and returns the number of frames that were dropped for it. `None` if it may not
    /// have a place.
    fn make_room(&mut self, neighbor: u64, now: Now) -> Option<usize> {
        if self.waits.len() >= SILENT_PLACES && self.silent.has(neighbor, now) {
            self.silent.note(neighbor, now);
            return None;
        }
        if self.waits.len() < NEIGHBORS_MAX {
            return Some(0);
        }
        let (at, first) = self.waits.iter().enumerate().min_by_key(|(_, wait)| wait.until)?;
        let is_late = first.until <= now.plus(WAIT_MAX.saturating_sub(YIELD_AFTER));
        is_late.then(|| self.give_up(at, now).len())
    }

    /// Ends a wait without an answer.
    fn give_up(&mut self, at: usize, now: Now) -> ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR> {
        let Wait { interface, addr, frames, .. } = self.waits.swap_remove(at);
        self.silent.note(key_hash(&addr, interface, 0), now);
        frames
    }

    /// The frames of a neighbour that was found, or for which they waited too long. `None` if there is none, or it is
    /// too early for the next check.
    pub fn release(&mut self, now: Now, neighbors: &NeighborTable) -> Option<Released<F>> {
        if now < self.next_look {
            return None;
        }
        let is_resolved = |wait: &Wait<F>| {
            let slot = neighbors.lookup(wait.interface, &wait.addr);
            slot.is_some_and(|slot| neighbors.mac(slot).is_some())
        };
        let over = self.waits.iter().position(|wait| wait.until <= now || is_resolved(wait));
        let Some(at) = over else {
            self.next_look = now.plus(LOOK_EVERY);
            return None;
        };
        Some(if is_resolved(&self.waits[at]) {
            Released::Resolved(self.waits.swap_remove(at).frames)
        } else {
            Released::Expired(self.give_up(at, now))
        })
    }

    /// The number of waiting frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waits.iter().map(|wait| wait.frames.len()).sum()
    }

    /// Frees all waiting frames, and returns their number.
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
        let slot = neighbors.intern(0, host(2).1).unwrap();
        neighbors.set_resolved(slot, MacAddr([2, 0, 0, 0, 0, 9]));
        assert!(pending.release(Now(1), &neighbors).is_none(), "it has just looked");
        let later = Now(0).plus(LOOK_EVERY);
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
    fn neighbours_and_frames_of_each_are_bounded_and_what_has_no_room_is_given_back() {
        let mut pending = PendingNeighborQueue::default();
        for neighbor in 0..NEIGHBORS_MAX {
            for frame in 0..FRAMES_PER_NEIGHBOR {
                pending.park(host(neighbor as u8), HERE, frame, Now(0)).unwrap();
            }
        }
        assert_eq!(pending.park(host(0), HERE, 77, Now(0)), Err(77));
        assert_eq!(pending.park(host(200), HERE, 78, Now(0)), Err(78));
        assert_eq!(pending.waits.capacity(), NEIGHBORS_MAX, "no memory was asked for");
        assert_eq!((pending.clear(), pending.is_empty()), (PARKED_MAX, true));
    }

    #[test]
    fn neighbours_that_never_answer_leave_half_of_the_places_to_others() {
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
        // A few may have the same place in the memory by chance.
        assert!((SILENT_PLACES..SILENT_PLACES + 8).contains(&waiting), "{waiting}");
        for n in 100..124 {
            assert_eq!(pending.park(host(n), HERE, 3, over), Ok(0), "one that was never silent");
        }
        let slot = neighbors.intern(0, host(100).1).unwrap();
        neighbors.set_resolved(slot, MacAddr([2, 0, 0, 0, 0, 9]));
        let later = over.plus(LOOK_EVERY);
        let Some(Released::Resolved(frames)) = pending.release(later, &neighbors) else { panic!("found") };
        assert_eq!(frames[..], [(HERE, 3)]);
    }

    #[test]
    fn the_longest_wait_ends_early_if_another_neighbour_has_no_place() {
        let mut pending = PendingNeighborQueue::default();
        for n in 0..NEIGHBORS_MAX as u8 {
            assert_eq!(pending.park(host(n), HERE, n, Now(u64::from(n))), Ok(0));
        }
        let late = Now(0).plus(YIELD_AFTER);
        assert_eq!(
            pending.park(host(200), HERE, 200, Now(late.0 - 1)),
            Err(200),
            "its answer may still come"
        );
        assert_eq!(pending.park(host(200), HERE, 200, late), Ok(1), "the frame of the first is dropped");
        assert_eq!(pending.park(host(0), HERE, 0, late), Err(0), "and it is silent now");
        assert_eq!((pending.len(), pending.waits.capacity()), (NEIGHBORS_MAX, NEIGHBORS_MAX));
    }
}
