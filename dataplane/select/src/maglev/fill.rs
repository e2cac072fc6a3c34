//! Fills one Maglev table: weights determine the order of picks ([`order`](super::order)), identities the permutations.
//!
//! The paper's loop needs about `M * ln M` probes. Here a probe is an addition, a subtraction and one bit of a map that
//! stays in the first-level cache. Half of all probes would search for the last few free slots. For those, each walk
//! computes its distance to every free slot and jumps to the nearest, the one that probing would reach. Only
//! [`build`](super::build) calls it.
//!
//! Invariant: slot by slot, the table equals the result of the paper's loop; only the build time differs.

use std::cmp::Reverse;

use tidegate_structures::hash::{identity_hashes, scale};

use super::member::{Member, NO_BACKEND};
use super::order::{Class, Order};

/// The position of a backend in its permutation.
struct Walk {
    position: u16,
    at: u32,
    step: u32,
    /// The fraction of a full cycle that one slot takes; 0 until it is needed. See [`Slots::jump`].
    steps_a_slot: u64,
}

/// The owners of all `size` slots; empty if there are no members.
pub(super) fn fill(members: &[Member], size: u32) -> Vec<u16> {
    let (classes, mut walks) = classes(members, size);
    if classes.is_empty() {
        return Vec::new();
    }
    let mut of_class = Vec::with_capacity(classes.len());
    let mut rest = &mut walks[..];
    for class in &classes {
        let (walks, others) = rest.split_at_mut(class.members as usize);
        of_class.push(walks);
        rest = others;
    }
    let mut slots = Slots::new(size);
    let mut owners = vec![NO_BACKEND; size as usize];
    let mut left = size;
    for class in Order::new(&classes, size).classes() {
        for walk in &mut *of_class[class] {
            let slot = slots.take_next(walk);
            owners[slot as usize] = walk.position;
            left -= 1;
            if left == 0 {
                return owners;
            }
        }
    }
    unreachable!("there are picks for all slots")
}

/// The free slots.
struct Slots {
    size: u32,
    taken: Vec<u64>,
    /// How many more slots to take before listing the free ones.
    until_listed: u32,
    /// All free slots, once there are few.
    listed: Vec<u32>,
}

impl Slots {
    /// The list serves the last `sqrt(2.5 * size)` slots: for these, scanning it costs less than probing.
    fn new(size: u32) -> Self {
        let taken = vec![0; (size as usize).div_ceil(64)];
        let listed = (size + size * 3 / 2).isqrt().min(size);
        let mut slots = Self { size, taken, until_listed: size - listed, listed: Vec::new() };
        if slots.until_listed == 0 {
            slots.list();
        }
        slots
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
            self.list();
        }
        slot
    }

    fn list(&mut self) {
        let is_free = |slot: &u32| self.taken[*slot as usize / 64] >> (slot % 64) & 1 == 0;
        self.listed = (0..self.size).filter(is_free).collect();
    }

    /// Takes one step at a time. Taking two or four at once, to avoid mispredicted branches, was slower.
    #[inline]
    fn probe(&self, walk: &mut Walk) -> u32 {
        loop {
            let slot = walk.at;
            walk.at = self.add(slot, walk.step);
            if self.taken[slot as usize / 64] >> (slot % 64) & 1 == 0 {
                return slot;
            }
        }
    }

    /// The listed slot that the walk reaches in the fewest steps.
    ///
    /// The distance from `at` to a slot is `(slot - at) / step` steps, modulo the size. As a fraction of 2^64 that is
    /// one multiplication, which wraps as the steps do. The error is at most `size`. A step is 2^64 divided by the
    /// size, more than twice the error, so the order is exact.
    fn jump(&mut self, walk: &mut Walk) -> u32 {
        if walk.steps_a_slot == 0 {
            walk.steps_a_slot = fraction(inverse(walk.step, self.size), self.size);
        }
        let at = u64::from(walk.at);
        let (mut nearest, mut fewest) = (0, u64::MAX);
        for (index, &slot) in self.listed.iter().enumerate() {
            let steps = u64::from(slot).wrapping_sub(at).wrapping_mul(walk.steps_a_slot);
            if steps < fewest {
                (nearest, fewest) = (index, steps);
            }
        }
        let slot = self.listed.swap_remove(nearest);
        walk.at = self.add(slot, walk.step);
        slot
    }

    /// The sum modulo the size, given that it is below twice the size.
    #[inline]
    fn add(&self, a: u32, b: u32) -> u32 {
        let sum = a + b;
        if sum >= self.size { sum - self.size } else { sum }
    }
}

/// `part / size` as a fraction of 2^64, at most one too large.
fn fraction(part: u32, size: u32) -> u64 {
    // The part is below the size.
    ((u128::from(part) << 64) / u128::from(size)) as u64 + 1
}

/// The inverse modulo a prime, by Euclid's algorithm. `0 < a < size`.
fn inverse(a: u32, size: u32) -> u32 {
    let (mut rest, mut next) = (size, a);
    let (mut factor, mut of_next) = (0_i64, 1_i64);
    while next != 0 {
        let quotient = rest / next;
        (rest, next) = (next, rest % next);
        (factor, of_next) = (of_next, factor - i64::from(quotient) * of_next);
    }
    // Its absolute value is below the size.
    (if factor < 0 { factor + i64::from(size) } else { factor }) as u32
}

/// The distinct weights in descending order, with the walks of their members.
fn classes(members: &[Member], size: u32) -> (Vec<Class>, Vec<Walk>) {
    let mut occurrence = 0;
    let mut walks = Vec::with_capacity(members.len());
    for (position, member) in members.iter().enumerate() {
        let repeated = position > 0 && members[position - 1].address == member.address;
        occurrence = if repeated { occurrence + 1 } else { 0 };
        if member.weight == 0 {
            continue;
        }
        let (at, step) = identity_hashes(&member.address, occurrence);
        let walk = Walk {
            position: u16::try_from(position).expect("positions are below the value that means none"),
            at: scale(at, size),
            step: 1 + scale(step, size - 1),
            steps_a_slot: 0,
        };
        walks.push((member.weight, walk));
    }
    // The sort is stable: members of one weight stay in the order of positions.
    walks.sort_by_key(|&(weight, _)| Reverse(weight));
    let class = |same: &[(u16, Walk)]| Class {
        weight: same[0].0,
        members: u32::try_from(same.len()).expect("there are fewer members than positions"),
    };
    let classes = walks.chunk_by(|a, b| a.0 == b.0).map(class).collect();
    (classes, walks.into_iter().map(|(_, walk)| walk).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u32; 7] = [1_009, 65_537, 524_287, tidegate_spec::limits::MAGLEV_SLOTS_MAX, 2, 3, 5];

    #[test]
    fn inverses_are_those_of_plain_arithmetic() {
        for size in SIZES {
            for a in (1..size).step_by(size as usize / 50 + 1).chain([size - 1]) {
                let product = u64::from(a) * u64::from(inverse(a, size));
                assert_eq!(product % u64::from(size), 1, "1 / {a} mod {size}");
            }
        }
    }

    #[test]
    fn fractions_of_distances_are_in_the_order_of_the_steps() {
        for size in SIZES {
            for step in (1..size).step_by(size as usize / 20 + 1).chain([size - 1]) {
                let a_slot = fraction(inverse(step, size), size);
                for at in [0, 1, size / 2, size - 1] {
                    let (mut slot, mut before) = (at, None);
                    for _ in 0..size.min(3_000) {
                        let steps = u64::from(slot).wrapping_sub(at.into()).wrapping_mul(a_slot);
                        assert!(before.is_none_or(|before| steps > before), "{at} + {step} mod {size}");
                        before = Some(steps);
                        slot = (slot + step) % size;
                    }
                }
            }
        }
    }
}
