//! The fill of one Maglev table: turns by weight, walks by identity.
//!
//! The walk adds its step and subtracts the size, without remainders. The paper's loop needs about
//! `M * ln M` probes, most of them for the last free slots, each in the cache line of another slot: probes
//! read a bitmap, which stays in the first-level cache. Called by [`super::build`] alone.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Member, NO_BACKEND};
use crate::hash::{identity_hashes, scale};

/// One backend on its way through its permutation.
struct Walk {
    position: u16,
    at: u32,
    step: u32,
}

/// The backends of one weight, which have their turns together: their next turn is at `(2 * turns + 1) /
/// (2 * weight)` on a common time scale, so that rounding is to nearest and a common factor of all weights
/// changes nothing.
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
    /// Reversed: the heap's greatest has the next turn.
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

/// Owners of all `size` slots, or nothing where nobody takes part.
pub(super) fn fill(members: &[Member], size: u32) -> Vec<u16> {
    let mut classes = classes(members, size);
    if classes.is_empty() {
        return Vec::new();
    }
    let mut owners = vec![NO_BACKEND; size as usize];
    let mut taken = vec![0_u64; (size as usize).div_ceil(64)];
    let mut free = size;
    while let Some(mut class) = classes.pop() {
        for walk in &mut class.walks {
            let slot = walk.next_free(&taken, size);
            taken[slot as usize / 64] |= 1 << (slot % 64);
            owners[slot as usize] = walk.position;
            free -= 1;
            if free == 0 {
                return owners;
            }
        }
        class.turns += 1;
        classes.push(class);
    }
    unreachable!("classes are put back until no slot is free")
}

impl Walk {
    #[inline]
    fn next_free(&mut self, taken: &[u64], size: u32) -> u32 {
        loop {
            let slot = self.at;
            let next = slot + self.step;
            self.at = if next >= size { next - size } else { next };
            if taken[slot as usize / 64] >> (slot % 64) & 1 == 0 {
                return slot;
            }
        }
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
        });
    }
    by_weight.into_iter().map(|(weight, walks)| Class { weight, turns: 0, walks }).collect()
}
