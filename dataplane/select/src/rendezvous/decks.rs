//! Several decks for more seats than one deck holds: each deck has its own order, and times make them comparable.
//!
//! Ranks of decks that are not equally full cannot be compared. So each rank has a time: the sum of exponentially
//! distributed steps up to it, drawn from the flow's hash for the deck. The occupied seat with the earliest time
//! wins, and each of all seats has the same chance. Within a deck the order by time is the order by rank, so a second
//! deck takes its share of flows and leaves the others where they are.
//!
//! Invariant: integers only; equal times are decided by the decks' hashes.

use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::mix;

use super::exponential::{STEP_BITS, STEPS, STEPS_PER_WORD};
use super::place::{DECK_SEATS, Place};
use super::rank::Order;
use super::seats::{GOLDEN, Seated};
use super::walk::Deck;

/// Two or more decks.
#[derive(Debug)]
pub(super) struct Decks(Box<[Deck]>);

impl Decks {
    pub(super) fn new(seated: &[Seated]) -> Self {
        Self(seated.iter().map(|seats| Deck::new(seats)).collect())
    }

    pub(super) fn all(&self) -> &[Deck] {
        &self.0
    }

    /// The occupied seat with the earliest time.
    #[inline(never)]
    pub(super) fn first(&self, hash: u64) -> Option<Place> {
        let (first, others) = self.0.split_first()?;
        // The first deck is walked in strides, because it is the only one that is certain to be full enough.
        let (rank, seat) = first.first(&Order::new(hash))?;
        let mut best = (Time::of(hash, rank), hash, 0, rank, seat);
        for (n, deck) in (1_u16..).zip(others) {
            let hash = hash_of(hash, n);
            if let Some((time, rank, seat)) = first_before(deck, hash, (best.0, best.1)) {
                best = (time, hash, n, rank, seat);
            }
        }
        let (_, _, deck, rank, seat) = best;
        Some(Place { deck, seat, rank, owner: self.0[usize::from(deck)].owner(seat) })
    }
}

/// The owner of the occupied seat with the earliest time among those whose owner is `wanted`.
pub(super) fn owner_where(decks: &Decks, hash: u64, wanted: impl Fn(BackendId) -> bool) -> Option<BackendId> {
    let firsts = (0_u16..).zip(decks.all()).filter_map(|(n, deck)| {
        let hash = hash_of(hash, n);
        let (rank, owner) = deck.first_where(&Order::new(hash), &wanted)?;
        Some((Time::of(hash, rank), std::cmp::Reverse(hash), owner))
    });
    firsts.min_by_key(|&(time, hash, _)| (time, hash)).map(|(.., owner)| owner)
}

/// The hash of a flow for one of the decks.
pub(super) fn hash_of(hash: u64, deck: u16) -> u64 {
    match deck {
        0 => hash,
        n => mix(hash.wrapping_add(u64::from(n).wrapping_mul(GOLDEN))),
    }
}

/// The first occupied seat of a deck, if its time is earlier than the best so far. A deck with few seats costs no more
/// than one with many: the search ends once the time is later.
#[inline]
fn first_before(deck: &Deck, hash: u64, best: (u64, u64)) -> Option<(u64, u16, u16)> {
    let is_earlier = |time: u64| time < best.0 || time == best.0 && hash > best.1;
    let mut time = Time::new(hash);
    let mut total = time.next();
    if !is_earlier(total) {
        return None;
    }
    let back = Order::new(hash).back();
    for rank in 0..DECK_SEATS {
        let seat = back.seat(rank);
        if deck.is_occupied(seat) {
            return Some((total, rank, seat));
        }
        total += time.next();
        if !is_earlier(total) {
            return None;
        }
    }
    None
}

/// The time steps of one flow over one deck.
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
