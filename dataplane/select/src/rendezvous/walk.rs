//! Look-up among many seats: walks a seat map in the order of a flow until a seat is occupied.
//!
//! The expected number of steps is `8192 / seats`. Eight steps are computed at once: their seats are one vector, and
//! are looked up in a bitmap of 1 KiB without a branch. Owners are listed by seat; the number of owners before each
//! block of 64 seats is stored beside the bitmap.
//!
//! Invariant: a walk ends, because the order visits every seat.

use tidegate_spec::ids::BackendId;

use super::chosen_seat::SEATS_PER_MAP;
use super::rank::{InverseOrder, Order};

/// Steps computed at once.
const STRIDE: u16 = 8;

const WORDS: usize = SEATS_PER_MAP as usize / 64;

/// A map of occupied and free seats.
#[derive(Debug)]
pub(super) struct SeatMap {
    occupied: [u64; WORDS],
    /// The number of occupied seats before each word.
    before: [u16; WORDS],
    /// The owners of the occupied seats, in the order of the seats.
    owners: Box<[BackendId]>,
}

impl SeatMap {
    /// Creates a map from occupied seats sorted by number.
    pub(super) fn new(seated: &[(u16, BackendId)]) -> Self {
        let mut occupied = [0_u64; WORDS];
        for &(seat, _) in seated {
            occupied[usize::from(seat / 64)] |= 1 << (seat % 64);
        }
        let mut before = [0_u16; WORDS];
        for n in 1..WORDS {
            // A word has at most 64 bits set.
            before[n] = before[n - 1] + occupied[n - 1].count_ones() as u16;
        }
        Self { occupied, before, owners: seated.iter().map(|&(_, owner)| owner).collect() }
    }

    /// The rank and number of the first occupied seat; `None` if there is none.
    #[inline]
    pub(super) fn first(&self, order: &Order) -> Option<(u16, u16)> {
        let inverse = order.inverse();
        for rank in (0..SEATS_PER_MAP).step_by(STRIDE.into()) {
            let (seats, found) = self.stride(&inverse, rank);
            if found != 0 {
                let n = found.trailing_zeros() as usize % seats.len();
                return Some((rank + n as u16, seats[n]));
            }
        }
        None
    }

    /// The rank and owner of the first occupied seat whose owner is `wanted`.
    pub(super) fn first_where(
        &self,
        order: &Order,
        wanted: impl Fn(BackendId) -> bool,
    ) -> Option<(u16, BackendId)> {
        let inverse = order.inverse();
        let seats = (0..SEATS_PER_MAP).map(|rank| (rank, inverse.seat(rank)));
        let occupied = seats.filter(|&(_, seat)| self.is_occupied(seat));
        occupied.map(|(rank, seat)| (rank, self.owner(seat))).find(|&(_, owner)| wanted(owner))
    }

    /// The seats at the next positions in an order, and a bit for each occupied one.
    #[inline(always)]
    fn stride(&self, inverse: &InverseOrder, rank: u16) -> ([u16; STRIDE as usize], u32) {
        let mut seats = [0; STRIDE as usize];
        for (n, seat) in (0..).zip(&mut seats) {
            *seat = inverse.seat(rank + n);
        }
        let mut found = 0;
        for (n, &seat) in seats.iter().enumerate() {
            found |= u32::from(self.is_occupied(seat)) << n;
        }
        (seats, found)
    }

    #[inline(always)]
    pub(super) fn is_occupied(&self, seat: u16) -> bool {
        self.occupied[usize::from(seat / 64) % WORDS] >> (seat % 64) & 1 != 0
    }

    /// The owner of an occupied seat.
    #[inline]
    pub(super) fn owner(&self, seat: u16) -> BackendId {
        let word = usize::from(seat / 64) % WORDS;
        let below = self.occupied[word] & ((1 << (seat % 64)) - 1);
        self.owners[usize::from(self.before[word]) + below.count_ones() as usize]
    }

    /// The seats with their owners.
    pub(super) fn seats(&self) -> impl Iterator<Item = (u16, BackendId)> + '_ {
        (0..SEATS_PER_MAP).filter(|&seat| self.is_occupied(seat)).zip(self.owners.iter().copied())
    }

    /// The number of bytes of the map and its list of owners.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.owners)
    }
}
