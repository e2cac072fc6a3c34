//! Fills one Maglev table: turns by weight, walks by identity.
//!
//! The paper's loop needs about `M * ln M` probes. Here a probe is an addition, a subtraction and one bit of a map
//! that stays in the first-level cache. Half of all probes would search for the last `sqrt M` free slots. For those,
//! each walk computes its distance to every free slot (a multiplication by the inverse of its step modulo M) and
//! jumps to the nearest, which is the slot that it would have reached. Only [`build`](super::build) calls it.
//!
//! Invariant: the table is that of the paper's loop, slot by slot; only the time differs.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::member::{Member, NO_BACKEND};
use crate::hash::{identity_hashes, scale};

/// The position of a backend in its permutation.
struct Walk {
    position: u16,
    at: u32,
    step: u32,
    /// The inverse of the step modulo the size; 0 until it is needed.
    inverse: u32,
}

/// The backends of one weight, which take their turns together. Their next turn is at `(2 * turns + 1) / (2 * weight)`
/// on a common time scale, so that shares are rounded to nearest and a common factor of all weights changes nothing.
struct Class {
    weight: u16,
    turns: u32,
    walks: Vec<Walk>,
}

impl Class {
    fn next_turn(&self, other: &Self) -> Ordering {
        let time =
            |class: &Self, scaled_by: &Self| (2 * u64::from(class.turns) + 1) * u64::from(scaled_by.weight);
        time(self, other).cmp(&time(other, self)).then(other.weight.cmp(&self.weight))
    }
}

impl Ord for Class {
    /// The order is reversed: the heap returns its greatest element, which must be the class with the next turn.
    fn cmp(&self, other: &Self) -> Ordering {
        self.next_turn(other).reverse()
    }
}

impl PartialOrd for Class {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Class {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Class {}

/// The owners of all `size` slots; empty if there are no members.
pub(super) fn fill(members: &[Member], size: u32) -> Vec<u16> {
    let mut classes = classes(members, size);
    if classes.is_empty() {
        return Vec::new();
    }
    let mut slots = Slots::new(size);
    let mut owners = vec![NO_BACKEND; size as usize];
    let mut left = size;
    while let Some(mut class) = classes.pop() {
        for walk in &mut class.walks {
            let slot = slots.take_next(walk);
            owners[slot as usize] = walk.position;
            left -= 1;
            if left == 0 {
                return owners;
            }
        }
        class.turns += 1;
        classes.push(class);
    }
    unreachable!("classes are put back until no slot is free")
}

/// The free slots.
struct Slots {
    size: Modulus,
    taken: Vec<u64>,
    /// How many more slots are taken before the free ones are listed.
    until_listed: u32,
    /// All free slots, once there are few.
    listed: Vec<u32>,
}

impl Slots {
    fn new(size: u32) -> Self {
        let taken = vec![0; (size as usize).div_ceil(64)];
        Self { size: Modulus::new(size), taken, until_listed: size - size.isqrt(), listed: Vec::new() }
    }

    #[inline]
    fn take_next(&mut self, walk: &mut Walk) -> u32 {
        if self.until_listed == 0 {
            return self.jump(walk);
        }
        let slot = self.probe(walk);
        self.taken[slot as usize / 64] |= 1 << (slot % 64);
        self.until_listed -= 1;
        if self.until_listed == 0 {
            let free = |slot: &u32| self.taken[*slot as usize / 64] >> (slot % 64) & 1 == 0;
            self.listed = (0..self.size.size).filter(free).collect();
        }
        slot
    }

    /// One step at a time. Four at once, to avoid mispredicted branches, was measured and is slower.
    #[inline]
    fn probe(&self, walk: &mut Walk) -> u32 {
        loop {
            let slot = walk.at;
            walk.at = self.size.add(slot, walk.step);
            if self.taken[slot as usize / 64] >> (slot % 64) & 1 == 0 {
                return slot;
            }
        }
    }

    /// The listed slot that the walk reaches in the fewest steps.
    fn jump(&mut self, walk: &mut Walk) -> u32 {
        if walk.inverse == 0 {
            walk.inverse = self.size.inverse(walk.step);
        }
        let behind = self.size.size - walk.at;
        let steps = |&slot: &u32| self.size.multiply(self.size.add(slot, behind), walk.inverse);
        let nearest = (0..self.listed.len()).min_by_key(|&at| steps(&self.listed[at]));
        let slot = self.listed.swap_remove(nearest.expect("asked only while a slot is free"));
        walk.at = self.size.add(slot, walk.step);
        slot
    }
}

/// Arithmetic modulo the prime size of a table.
#[derive(Clone, Copy)]
struct Modulus {
    size: u32,
    /// 2^64 / size, rounded down.
    reciprocal: u64,
}

impl Modulus {
    fn new(size: u32) -> Self {
        Self { size, reciprocal: u64::MAX / u64::from(size) }
    }

    /// The sum, given that it is below twice the size.
    #[inline]
    fn add(self, a: u32, b: u32) -> u32 {
        let sum = a + b;
        if sum >= self.size { sum - self.size } else { sum }
    }

    /// The product of two values that are at most the size, by Barrett's reduction. The quotient is at most one too
    /// small, since the product is far below 2^64.
    #[inline]
    fn multiply(self, a: u32, b: u32) -> u32 {
        let product = u64::from(a) * u64::from(b);
        let quotient = ((u128::from(product) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = (product - quotient * u64::from(self.size)) as u32;
        if rest >= self.size { rest - self.size } else { rest }
    }

    /// `a^(size - 2)`, which is the inverse modulo a prime (Fermat).
    fn inverse(self, a: u32) -> u32 {
        let (mut power, mut result, mut exponent) = (a, 1, self.size - 2);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = self.multiply(result, power);
            }
            power = self.multiply(power, power);
            exponent >>= 1;
        }
        result
    }
}

fn classes(members: &[Member], size: u32) -> BinaryHeap<Class> {
    let mut by_weight = std::collections::BTreeMap::<u16, Vec<Walk>>::new();
    let mut occurrence = 0;
    for (position, member) in members.iter().enumerate() {
        let repeated = position > 0 && members[position - 1].address == member.address;
        occurrence = if repeated { occurrence + 1 } else { 0 };
        if member.weight == 0 {
            continue;
        }
        let (at, step) = identity_hashes(&member.address, occurrence);
        by_weight.entry(member.weight).or_default().push(Walk {
            position: u16::try_from(position).expect("positions are below the value that means none"),
            at: scale(at, size),
            step: 1 + scale(step, size - 1),
            inverse: 0,
        });
    }
    by_weight.into_iter().map(|(weight, walks)| Class { weight, turns: 0, walks }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_inverses_are_those_of_plain_arithmetic() {
        for size in [1_009, 65_537, 524_287, crate::limits::MAGLEV_SLOTS_MAX, 2, 3, 5] {
            let modulus = Modulus::new(size);
            for a in (1..size).step_by(size as usize / 50 + 1).chain([size - 1]) {
                for b in [0, 1, a, size / 2, size - 1] {
                    let plain = u64::from(a) * u64::from(b) % u64::from(size);
                    assert_eq!(u64::from(modulus.multiply(a, b)), plain, "{a} * {b} mod {size}");
                }
                assert_eq!(modulus.multiply(a, modulus.inverse(a)), 1, "1 / {a} mod {size}");
            }
        }
    }
}
