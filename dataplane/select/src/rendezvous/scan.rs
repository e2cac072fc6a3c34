//! Look-up among few seats: computes all ranks and takes the smallest.
//!
//! Seats and ranks are 16 bits wide and every step is the same for all lanes, so the compiler vectorises the loops.
//! This works on plain x86-64 (SSE2) too, which has a minimum of signed 16-bit lanes but not of unsigned ones. The
//! lower bits of a lane contain the chunk and the lane of its rank, so the owner is found without a second pass.
//!
//! Invariant: unused lanes repeat the last seat and its owner.

use tidegate_spec::ids::BackendId;
use tidegate_structures::prefetch;

use super::rank::Order;

/// Seats in a chunk.
pub(super) const LANES: usize = 16;

/// Chunks that share one minimum. Their number takes two bits in addition to the 13 of a rank, so the sign bit stays
/// clear.
const CHUNKS_AT_ONCE: usize = 4;

/// At most `16 * CHUNKS` seats.
#[derive(Debug)]
#[repr(align(16))]
pub(super) struct Scan<const CHUNKS: usize> {
    seats: [[u16; LANES]; CHUNKS],
    owners: [[BackendId; LANES]; CHUNKS],
}

impl<const CHUNKS: usize> Scan<CHUNKS> {
    /// Creates a scan from 1 to `16 * CHUNKS` seats, sorted by number.
    pub(super) fn new(seated: &[(u16, BackendId)]) -> Self {
        assert!((1..=CHUNKS * LANES).contains(&seated.len()), "a scan has 1 to 16 * CHUNKS seats");
        let at = |chunk: usize, lane: usize| seated[(chunk * LANES + lane).min(seated.len() - 1)];
        Self {
            seats: std::array::from_fn(|chunk| std::array::from_fn(|lane| at(chunk, lane).0)),
            owners: std::array::from_fn(|chunk| std::array::from_fn(|lane| at(chunk, lane).1)),
        }
    }

    /// The owner of the first seat in the order.
    #[inline]
    pub(super) fn owner(&self, order: &Order) -> BackendId {
        if CHUNKS == 1 { self.owner_of_one(order) } else { self.owner_of_many(order) }
    }

    /// [`Self::owner`] with one chunk. The bits that would contain the number of the chunk contain the number of a
    /// quarter of it, so only the last four values need more than 16 bits.
    #[inline(always)]
    fn owner_of_one(&self, order: &Order) -> BackendId {
        const QUARTER: usize = LANES / 4;
        let seats = &self.seats[0];
        let ranks: [i16; LANES] =
            std::array::from_fn(|n| (order.rank(seats[n]) << 2 | (n / QUARTER) as u16) as i16);
        let halves: [i16; LANES / 2] = std::array::from_fn(|n| ranks[n].min(ranks[n + LANES / 2]));
        let quarters: [i16; QUARTER] = std::array::from_fn(|n| halves[n].min(halves[n + QUARTER]));
        let value = |lane: usize| i32::from(quarters[lane]) << 2 | lane as i32;
        let first = value(0).min(value(1)).min(value(2).min(value(3))) as usize;
        let (quarter, lane) = (first >> 2 & 3, first & 3);
        self.owners[0][quarter * QUARTER + lane]
    }

    #[inline(always)]
    fn owner_of_many(&self, order: &Order) -> BackendId {
        let mut first = [i32::MAX; LANES];
        for (group, chunks) in (0_i32..).zip(self.seats.chunks(CHUNKS_AT_ONCE)) {
            let mut least = [i16::MAX; LANES];
            for (n, seats) in (0_u16..).zip(chunks) {
                for (least, &seat) in least.iter_mut().zip(seats) {
                    // A rank has 13 bits and `n` has 2, so the sign bit stays clear.
                    *least = (*least).min((order.rank(seat) << 2 | n) as i16);
                }
            }
            // A value is rank, chunk in the group, group and lane, so the smallest value identifies its seat.
            for (lane, (first, least)) in (0_i32..).zip(first.iter_mut().zip(least)) {
                *first = (*first).min(i32::from(least) << 8 | group << 4 | lane);
            }
        }
        let first = smallest(&first) as usize;
        let (chunk_in_group, group, lane) = (first >> 8 & 3, first >> 4 & 15, first & 15);
        self.owners[group * CHUNKS_AT_ONCE + chunk_in_group][lane]
    }

    /// The owner of the first seat in the order whose owner is `wanted`.
    pub(super) fn owner_where(&self, order: &Order, wanted: impl Fn(BackendId) -> bool) -> Option<BackendId> {
        let seats = self.seats.iter().flatten().zip(self.owners.iter().flatten());
        let wanted = seats.filter(|&(_, &owner)| wanted(owner));
        wanted.min_by_key(|&(&seat, _)| order.rank(seat)).map(|(_, &owner)| owner)
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

/// The smallest lane. It halves the lanes repeatedly, with a few vector instructions each; a plain fold would become
/// scalar code.
#[inline(always)]
fn smallest(lanes: &[i32; LANES]) -> i32 {
    let eight: [i32; 8] = std::array::from_fn(|n| lanes[n].min(lanes[n + 8]));
    let four: [i32; 4] = std::array::from_fn(|n| eight[n].min(eight[n + 4]));
    four[0].min(four[1]).min(four[2].min(four[3]))
}
