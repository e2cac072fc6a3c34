//! Frames that wait until the link address of their next hop is known, so that the first packet to a neighbour is
//! delayed and not lost (TCP would send it again after a second; RFC 4861 section 7.2.2 requires that at least one is
//! kept).
//!
//! The pipeline leaves a frame that it cannot send unchanged, so the worker keeps it here and processes it once more
//! when the neighbour is found. A frame that waits too long, or finds no room, is dropped for its original reason.
//! While no frame waits, nothing is checked; otherwise no more often than every [`LOOK_EVERY`].
//!
//! Invariant: bounded in neighbours, frames and time; all memory is reserved at the start. A frame is counted when it
//! leaves, not when it arrives.

use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_core::ids::InterfaceIndex;
use tidegate_core::neighbors::NeighborTable;
use tidegate_core::now::Now;
use tidegate_core::pipeline::Arrival;
use tidegate_core::wire::Addr;

/// The maximum number of neighbours that frames wait for at once.
pub const NEIGHBORS_MAX: usize = 64;
/// The maximum number of frames that wait for one neighbour. It also limits a flood to an unused address.
pub const FRAMES_PER_NEIGHBOR: usize = 16;
/// The maximum number of frames that one worker keeps here.
pub const PARKED_MAX: usize = NEIGHBORS_MAX * FRAMES_PER_NEIGHBOR;
/// The longest time that a frame waits: two or three requests of the resolver, and as long as TCP waits before it sends
/// again.
pub const WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause between two checks of the pending neighbours: a check of 64 takes some 3 µs.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// A frame with its arrival.
pub type Parked<F> = (Arrival, F);

/// The frames that wait for a neighbour.
#[derive(Debug)]
pub struct PendingNeighborQueue<F> {
    /// It never grows beyond its initial capacity.
    waits: Vec<Wait<F>>,
    next_look: Now,
}

#[derive(Debug)]
struct Wait<F> {
    interface: InterfaceIndex,
    addr: Addr,
    until: Now,
    frames: ArrayVec<Parked<F>, FRAMES_PER_NEIGHBOR>,
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
        Self { waits: Vec::with_capacity(NEIGHBORS_MAX), next_look: Now(0) }
    }
}

impl<F> PendingNeighborQueue<F> {
    /// Whether no frame is waiting.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Keeps a frame until this neighbour is found.
    ///
    /// # Errors
    /// The frame, if there is no room.
    pub fn park(
        &mut self,
        (interface, addr): (InterfaceIndex, Addr),
        arrival: Arrival,
        frame: F,
        now: Now,
    ) -> Result<(), F> {
        let known = self.waits.iter().position(|wait| (wait.interface, wait.addr) == (interface, addr));
        if known.is_none() && self.waits.len() == NEIGHBORS_MAX {
            return Err(frame);
        }
        let at = known.unwrap_or_else(|| {
            let until = now.plus(WAIT_MAX);
            self.waits.push(Wait { interface, addr, until, frames: ArrayVec::new() });
            self.waits.len() - 1
        });
        self.waits[at].frames.try_push((arrival, frame)).map_err(|full| full.element().1)
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
        let resolved = is_resolved(&self.waits[at]);
        let frames = self.waits.swap_remove(at).frames;
        Some(if resolved { Released::Resolved(frames) } else { Released::Expired(frames) })
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
    use tidegate_core::wire::MacAddr;

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
        neighbors.learn(slot, MacAddr([2, 0, 0, 0, 0, 9]));
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
}
