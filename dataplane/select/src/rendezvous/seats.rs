//! Assigns seats to backends: the part of the definition that the control plane computes.
//!
//! Each backend has as many tokens as its weight. A token tries seats in its own order, four in each map; a seat goes
//! to the highest token that tries it. All seats prefer tokens in the same order. So placing the tokens from the
//! highest down, each on its first free seat, gives the one stable assignment, whatever the order of the members.
//!
//! Invariant: a new backend takes a seat from another only if it tries an occupied one. Then the lower token moves to
//! its next try, and nothing else moves.

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{RENDEZVOUS_SEAT_MAPS_MAX, RENDEZVOUS_SEATS_MAX};
use tidegate_structures::hash::mix;

use super::chosen_seat::SEATS_PER_MAP;
use super::member::Member;

/// 2^64 divided by the golden ratio.
pub(super) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Seats that a token tries in each map.
const TRIES_PER_MAP: usize = 4;

/// The occupied seats of a map by number, each with its owner.
pub(super) type Seated = Vec<(u16, BackendId)>;

/// The divisor of weights that keeps the number of seats within the limit: 1 unless their sum exceeds the limit. A
/// weight above 0 stays above 0.
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

/// The seat maps that the members need, each sorted by seat.
pub(super) fn assign(members: &[Member], divisor: u32) -> Vec<Seated> {
    let mut tokens = tokens(members, divisor);
    tokens.sort_unstable_by(|(a, of_a), (b, of_b)| {
        let identity = |&member: &u32| members[member as usize].identity;
        b.cmp(a).then_with(|| identity(of_a).cmp(&identity(of_b)))
    });
    let mut seat_maps: Vec<Draft> = Vec::new();
    for &(token, member) in &tokens {
        let owner = members[member as usize].owner;
        let mut tries = (0..TRIES_PER_MAP * RENDEZVOUS_SEAT_MAPS_MAX).map(|n| (n / TRIES_PER_MAP, token, n));
        // The sum of weights is limited so that every token finds a seat.
        let _ = tries.find(|&(seat_map, token, n)| {
            if seat_map == seat_maps.len() {
                seat_maps.push(Draft::default());
            }
            seat_maps[seat_map].take(seat_of(token, n as u64), owner)
        });
    }
    let seats = |mut draft: Draft| {
        draft.seats.sort_unstable_by_key(|&(seat, _)| seat);
        draft.seats
    };
    seat_maps.into_iter().map(seats).filter(|seats| !seats.is_empty()).collect()
}

/// The seat of try `n` of a token.
fn seat_of(token: u64, n: u64) -> u16 {
    // The upper 13 bits.
    (mix(token.wrapping_add(n)) >> (64 - SEATS_PER_MAP.ilog2())) as u16
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

/// A seat map during the build.
struct Draft {
    taken: [u64; SEATS_PER_MAP as usize / 64],
    seats: Seated,
}

impl Default for Draft {
    fn default() -> Self {
        Self { taken: [0; SEATS_PER_MAP as usize / 64], seats: Vec::new() }
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
