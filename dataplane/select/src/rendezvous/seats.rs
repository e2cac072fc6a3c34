//! Assigns seats to backends: the part of the definition that the control plane computes.
//!
//! Each backend has as many tokens as its weight. A token tries seats in its own order, four in each deck; a seat goes
//! to the highest token that tries it. All seats prefer tokens in the same order, so placing the tokens from the
//! highest down, each on its first free seat, gives the one stable assignment. It does not depend on the order of the
//! members.
//!
//! Invariant: a new backend takes no seat from another, unless it tries one that is taken: then the lower token moves
//! to its next try, and nothing else moves.

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{RENDEZVOUS_DECKS_MAX, RENDEZVOUS_SEATS_MAX};
use tidegate_structures::hash::mix;

use super::member::Member;
use super::place::DECK_SEATS;

/// 2^64 divided by the golden ratio.
pub(super) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Seats that a token tries in each deck.
const TRIES_PER_DECK: usize = 4;

/// The occupied seats of a deck by number, each with its owner.
pub(super) type Seated = Vec<(u16, BackendId)>;

/// The divisor of weights that keeps the number of seats within the limit: 1 unless the sum is above it. A weight
/// above 0 stays above 0.
pub(super) fn divisor(weights: impl Iterator<Item = u16>) -> u32 {
    let (mut sum, mut members) = (0_u64, 0_u64);
    weights.filter(|&weight| weight > 0).for_each(|weight| {
        sum += u64::from(weight);
        members += 1;
    });
    let max = RENDEZVOUS_SEATS_MAX as u64;
    if sum <= max {
        return 1;
    }
    // Rounding up costs each member less than one seat.
    let spare = max.saturating_sub(members).max(1);
    u32::try_from(sum.div_ceil(spare)).unwrap_or(u32::MAX)
}

/// The decks that the members need, each sorted by seat.
pub(super) fn seat(members: &[Member], divisor: u32) -> Vec<Seated> {
    let mut tokens = tokens(members, divisor);
    tokens.sort_unstable_by(|(a, of_a), (b, of_b)| {
        let identity = |&member: &u32| members[member as usize].identity;
        b.cmp(a).then_with(|| identity(of_a).cmp(&identity(of_b)))
    });
    let mut decks: Vec<Draft> = Vec::new();
    for &(token, member) in &tokens {
        let owner = members[member as usize].owner;
        let mut tries = (0..TRIES_PER_DECK * RENDEZVOUS_DECKS_MAX).map(|n| (n / TRIES_PER_DECK, token, n));
        // The sum of weights is limited so that every token finds a seat. One without a seat would cost its backend one
        // seat.
        let _ = tries.find(|&(deck, token, n)| {
            if deck == decks.len() {
                decks.push(Draft::default());
            }
            decks[deck].take(seat_of(token, n as u64), owner)
        });
    }
    let seats = |mut draft: Draft| {
        draft.seats.sort_unstable_by_key(|&(seat, _)| seat);
        draft.seats
    };
    decks.into_iter().map(seats).filter(|seats| !seats.is_empty()).collect()
}

/// The seat of try `n` of a token.
fn seat_of(token: u64, n: u64) -> u16 {
    // The upper 13 bits.
    (mix(token.wrapping_add(n)) >> (64 - DECK_SEATS.ilog2())) as u16
}

/// All tokens, each with the position of its member.
fn tokens(members: &[Member], divisor: u32) -> Vec<(u64, u32)> {
    let weight = |member: &Member| u32::from(member.weight).div_ceil(divisor);
    let mut tokens = Vec::with_capacity(members.iter().map(|member| weight(member) as usize).sum());
    for (n, member) in (0_u32..).zip(members) {
        let identity = member.identity.hash();
        tokens.extend(
            (0..weight(member)).map(|k| (mix(identity.wrapping_add(u64::from(k).wrapping_mul(GOLDEN))), n)),
        );
    }
    tokens
}

/// A deck during the build.
struct Draft {
    taken: [u64; DECK_SEATS as usize / 64],
    seats: Seated,
}

impl Default for Draft {
    fn default() -> Self {
        Self { taken: [0; DECK_SEATS as usize / 64], seats: Vec::new() }
    }
}

impl Draft {
    /// Takes a seat if it is free. Returns whether it was.
    fn take(&mut self, seat: u16, owner: BackendId) -> bool {
        let (word, bit) = (&mut self.taken[usize::from(seat / 64)], 1 << (seat % 64));
        let free = *word & bit == 0;
        if free {
            *word |= bit;
            self.seats.push((seat, owner));
        }
        free
    }
}
