//! The order in which a flow visits the seats of a map: a permutation of 0..8192 keyed by its hash, and its inverse.
//!
//! 13 bits pass through three rounds of a multiplication by an odd number and a shift. The arithmetic is 16-bit, so a
//! vector of 128 bits ranks eight seats at once on any x86-64. Pure.
//!
//! Invariant: [`Order::rank`] and [`InverseOrder::seat`] are inverse to each other for every hash.

use super::chosen_seat::SEATS_PER_MAP;

/// The mask of the 13 bits of a seat or a rank.
const MASK: u16 = SEATS_PER_MAP - 1;

/// The multiplier of the last round: odd, from the golden ratio.
const LAST: u16 = 0x9E37;
const LAST_INVERSE: u16 = inverse(LAST);

/// The order of one flow over one seat map.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    a: u16,
    b: u16,
    c: u16,
    z: u16,
}

impl Order {
    #[inline]
    pub(super) fn new(hash: u64) -> Self {
        Self {
            a: hash as u16 & MASK,
            b: (hash >> 16) as u16 | 1,
            c: (hash >> 32) as u16 | 1,
            z: (hash >> 48) as u16 & MASK,
        }
    }

    /// The position of a seat in the order.
    #[inline(always)]
    pub(super) fn rank(&self, seat: u16) -> u16 {
        let x = seat ^ self.a;
        let x = fold(x.wrapping_mul(self.b) & MASK);
        let x = fold(x.wrapping_mul(self.c) & MASK);
        let x = fold(x.wrapping_mul(LAST) & MASK);
        x.wrapping_add(self.z) & MASK
    }

    /// The inverse of the order.
    #[inline]
    pub(super) fn inverse(&self) -> InverseOrder {
        InverseOrder { a: self.a, b: inverse(self.b), c: inverse(self.c), z: self.z }
    }
}

/// Maps positions in the order to seats.
#[derive(Debug, Clone, Copy)]
pub(super) struct InverseOrder {
    a: u16,
    b: u16,
    c: u16,
    z: u16,
}

impl InverseOrder {
    /// The seat at a position in the order.
    #[inline(always)]
    pub(super) fn seat(&self, rank: u16) -> u16 {
        let x = fold(rank.wrapping_sub(self.z) & MASK);
        let x = fold(x.wrapping_mul(LAST_INVERSE) & MASK);
        let x = fold(x.wrapping_mul(self.c) & MASK);
        x.wrapping_mul(self.b) & MASK ^ self.a
    }
}

/// Mixes upper bits into lower ones. Two calls cancel out, because both shifts together (14 bits) exceed the 13 bits of
/// a rank.
#[inline(always)]
fn fold(x: u16) -> u16 {
    x ^ x >> 7
}

/// The inverse of an odd number modulo 2^16. The first value has five correct bits, and each step of Newton's method
/// doubles their number.
#[inline]
const fn inverse(odd: u16) -> u16 {
    let x = odd.wrapping_mul(3) ^ 2;
    let x = x.wrapping_mul(2_u16.wrapping_sub(odd.wrapping_mul(x)));
    x.wrapping_mul(2_u16.wrapping_sub(odd.wrapping_mul(x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_structures::hash::mix;

    #[test]
    fn every_odd_number_has_its_inverse() {
        for odd in (1..=u16::MAX).step_by(2) {
            assert_eq!(odd.wrapping_mul(inverse(odd)), 1, "{odd}");
        }
    }

    #[test]
    fn ranks_are_a_permutation_that_the_inverse_undoes() {
        for hash in (0..200).map(mix).chain([0, u64::MAX]) {
            let order = Order::new(hash);
            let inverse = order.inverse();
            let mut seen = vec![false; usize::from(SEATS_PER_MAP)];
            for seat in 0..SEATS_PER_MAP {
                let rank = order.rank(seat);
                assert!(!std::mem::replace(&mut seen[usize::from(rank)], true), "{hash:#x}: {rank} twice");
                assert_eq!(inverse.seat(rank), seat, "{hash:#x}");
            }
        }
    }
}
