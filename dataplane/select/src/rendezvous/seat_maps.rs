//! Several seat maps, for services with more seats than one map contains. Each has its own order, and times make the
//! orders comparable.
//!
//! Ranks of maps that aren't equally full cannot be compared. So each rank has a time: the sum of exponentially
//! distributed steps up to it, drawn from the flow's hash for the map. The occupied seat with the earliest time wins,
//! and all seats have the same chance. Within a map the order by time is the order by rank, so a second map takes its
//! share of flows and moves no others.
//!
//! Invariant: times are integers. If two are equal, the map with the larger hash wins.

use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::mix;

use super::chosen_seat::{ChosenSeat, SEATS_PER_MAP};
use super::exponential::{STEP_BITS, STEPS, STEPS_PER_WORD};
use super::rank::Order;
use super::seats::{GOLDEN, Seated};
use super::walk::SeatMap;

/// Two or more seat maps.
#[derive(Debug)]
pub(super) struct SeatMaps(Box<[SeatMap]>);

impl SeatMaps {
    pub(super) fn new(seated: &[Seated]) -> Self {
        Self(seated.iter().map(|seats| SeatMap::new(seats)).collect())
    }

    pub(super) fn all(&self) -> &[SeatMap] {
        &self.0
    }

    /// The occupied seat with the earliest time.
    #[inline(never)]
    pub(super) fn first(&self, hash: u64) -> Option<ChosenSeat> {
        let (first, others) = self.0.split_first()?;
        // Only the first map is certain to be full enough to walk in strides.
        let (rank, seat) = first.first(&Order::new(hash))?;
        let mut best = (Time::of(hash, rank), hash, 0, rank, seat);
        for (n, seat_map) in (1_u16..).zip(others) {
            let hash = hash_of(hash, n);
            if let Some((time, rank, seat)) = first_before(seat_map, hash, (best.0, best.1)) {
                best = (time, hash, n, rank, seat);
            }
        }
        let (_, _, seat_map, rank, seat) = best;
        Some(ChosenSeat { seat_map, seat, rank, owner: self.0[usize::from(seat_map)].owner(seat) })
    }
}

/// The owner of the occupied seat with the earliest time among those whose owner is `wanted`.
pub(super) fn owner_where(
    seat_maps: &SeatMaps,
    hash: u64,
    wanted: impl Fn(BackendId) -> bool,
) -> Option<BackendId> {
    let firsts = (0_u16..).zip(seat_maps.all()).filter_map(|(n, seat_map)| {
        let hash = hash_of(hash, n);
        let (rank, owner) = seat_map.first_where(&Order::new(hash), &wanted)?;
        Some((Time::of(hash, rank), std::cmp::Reverse(hash), owner))
    });
    firsts.min_by_key(|&(time, hash, _)| (time, hash)).map(|(.., owner)| owner)
}

/// The hash of a flow for one of the maps.
pub(super) fn hash_of(hash: u64, seat_map: u16) -> u64 {
    match seat_map {
        0 => hash,
        n => mix(hash.wrapping_add(u64::from(n).wrapping_mul(GOLDEN))),
    }
}

/// The first occupied seat of a map, if its time is earlier than the best so far. The search ends once the time is
/// later, so a map with few seats costs no more than a full one.
#[inline]
fn first_before(seat_map: &SeatMap, hash: u64, best: (u64, u64)) -> Option<(u64, u16, u16)> {
    let is_earlier = |time: u64| time < best.0 || time == best.0 && hash > best.1;
    let mut time = Time::new(hash);
    let mut total = time.next();
    if !is_earlier(total) {
        return None;
    }
    let inverse = Order::new(hash).inverse();
    for rank in 0..SEATS_PER_MAP {
        let seat = inverse.seat(rank);
        if seat_map.is_occupied(seat) {
            return Some((total, rank, seat));
        }
        total += time.next();
        if !is_earlier(total) {
            return None;
        }
    }
    None
}

/// The time steps of one flow over one seat map.
pub(super) struct Time {
    hash: u64,
    steps: u64,
    word: u64,
}

impl Time {
    pub(super) fn new(hash: u64) -> Self {
        Self { hash, steps: 0, word: 0 }
    }

    /// The time of a rank.
    pub(super) fn of(hash: u64, rank: u16) -> u64 {
        let mut time = Self::new(hash);
        (0..=rank).map(|_| time.next()).sum()
    }

    /// The length of the next step.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        if self.steps.is_multiple_of(STEPS_PER_WORD) {
            // The count starts at 1, so that the word differs from the mix of the hash itself.
            self.word = mix(self.hash ^ (self.steps / STEPS_PER_WORD + 1) << 48);
        } else {
            self.word >>= STEP_BITS;
        }
        self.steps += 1;
        u64::from(STEPS[self.word as usize % STEPS.len()])
    }
}
