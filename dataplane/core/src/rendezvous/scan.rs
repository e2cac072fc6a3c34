//! Few seats: the rank of each, and the smallest.
//!
//! Seats and ranks are 16 bits wide and every step is the same for all lanes, so the compiler makes vectors of the
//! loops; on plain x86-64 (SSE2) as well, which has a minimum of signed 16-bit lanes and of no other 16 bits. The
//! lowest bits of a lane say which chunk its rank came from, so that the owner is found without a second pass.
//!
//! Invariant: a place that no seat fills repeats the last seat and its owner.

use super::rank::Order;
use crate::ids::BackendId;
use crate::prefetch;

/// Seats in a chunk.
pub(super) const LANES: usize = 16;

/// Chunks that share one minimum: their number takes two bits beside the 13 of a rank, and the sign stays clear.
const CHUNKS_AT_ONCE: usize = 4;

/// Up to `16 * CHUNKS` seats.
#[derive(Debug)]
#[repr(align(16))]
pub(super) struct Scan<const CHUNKS: usize> {
    seats: [[u16; LANES]; CHUNKS],
    owners: [[BackendId; LANES]; CHUNKS],
}

impl<const CHUNKS: usize> Scan<CHUNKS> {
    /// Of seats by number; at least one, at most `16 * CHUNKS`.
    pub(super) fn new(seated: &[(u16, BackendId)]) -> Self {
        assert!((1..=CHUNKS * LANES).contains(&seated.len()), "a scan has a seat, and room for all");
        let at = |chunk: usize, lane: usize| seated[(chunk * LANES + lane).min(seated.len() - 1)];
        Self {
            seats: std::array::from_fn(|chunk| std::array::from_fn(|lane| at(chunk, lane).0)),
            owners: std::array::from_fn(|chunk| std::array::from_fn(|lane| at(chunk, lane).1)),
        }
    }

    /// The owner of the first seat in the order.
    #[inline]
    pub(super) fn owner(&self, order: &Order) -> BackendId {
        let (mut best, mut chunk, mut lane) = (i16::MAX, 0, 0);
        for (group, chunks) in self.seats.chunks(CHUNKS_AT_ONCE).enumerate() {
            let mut least = [i16::MAX; LANES];
            for (n, seats) in (0_u16..).zip(chunks) {
                for (least, &seat) in least.iter_mut().zip(seats) {
                    // A rank has 13 bits and `n` has 2: the sign stays clear.
                    *least = (*least).min((order.rank(seat) << 2 | n) as i16);
                }
            }
            let smallest = least.into_iter().fold(i16::MAX, i16::min);
            // Only one group has the smallest rank of all, but for repeated seats, whose owner is the same.
            if smallest >> 2 < best >> 2 || group == 0 {
                best = smallest;
                chunk = group * CHUNKS_AT_ONCE + usize::from(smallest as u16 & 3);
                lane = lane_of(&least, smallest);
            }
        }
        self.owners[chunk][lane]
    }

    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch::read(&self.seats);
        if let Some(owners) = self.owners.last() {
            prefetch::read(owners);
        }
    }

    /// The seats with their owners.
    pub(super) fn seats(&self) -> Vec<(u16, BackendId)> {
        let mut all: Vec<_> =
            self.seats.iter().flatten().copied().zip(self.owners.iter().flatten().copied()).collect();
        all.dedup();
        all
    }
}

/// The first lane that holds a value: as a minimum over lanes, which needs no branch.
#[inline(always)]
fn lane_of(lanes: &[i16; LANES], value: i16) -> usize {
    let numbers = (0_i16..).zip(lanes).map(|(n, &lane)| if lane == value { n } else { i16::MAX });
    // Below `LANES`: the value is that of a lane.
    numbers.fold(i16::MAX, i16::min) as usize % LANES
}
