//! Maglev tables: which backend owns which slot of the hash space (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Each backend walks its own permutation of the slots and takes the next free one when it has its turn. The
//! permutation depends only on the backend's stable identity (address, and number among equal addresses), so tables
//! do not depend on the order of backends and are equal on every gateway. The number of turns follows the weight. The
//! compile of a snapshot builds tables for services with `scheduler: maglev`; workers only read slots. The size is
//! configured: a size that followed the number of backends would redistribute the whole table at each step.
//!
//! Bounds (tested): with n backends of weights w and their sum W, a table of M slots gives a backend `M * w / W`
//! slots, with a deviation of at most `1 + n * w / W`. With equal weights, all are within one of each other.
//!
//! Invariant: equal (size, identities, weights up to a common factor) give equal tables, and one allocation.

mod fill;
mod member;
mod order;

pub use member::Member;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_structures::hash::FoldHasher;

use member::NO_BACKEND;

/// Whether a size is prime, as required: otherwise some step widths would not visit every slot.
#[must_use]
pub fn is_prime(size: u32) -> bool {
    size >= 2 && (2..).take_while(|d| d * d <= u64::from(size)).all(|d| u64::from(size) % d != 0)
}

/// Builds one table: the position in `members` that owns each slot.
///
/// `members` are sorted by address. If no weight is above 0, the table is empty.
///
/// # Panics
/// If `size` is not a prime, or there are 65,536 members or more. The compile of a snapshot checks both.
#[must_use]
pub fn build(members: &[Member], size: u32) -> Arc<[u16]> {
    assert!(is_prime(size), "the size of a Maglev table is prime");
    assert!(members.len() <= NO_BACKEND.into(), "positions are below the value that means none");
    fill::fill(members, size).into()
}

/// The number of slots that each position owns.
#[must_use]
pub fn shares(table: &[u16], members: usize) -> Vec<u32> {
    let mut counts = vec![0; members];
    for &position in table {
        if let Some(count) = counts.get_mut(usize::from(position)) {
            *count += 1;
        }
    }
    counts
}

/// The inputs of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Recipe {
    size: u32,
    members: Box<[Member]>,
}

/// The tables of a chain of snapshots, each built once. A copy is the same set.
#[derive(Debug, Clone, Default)]
pub struct Tables(Arc<Mutex<Made>>);

#[derive(Debug, Default)]
struct Made {
    tables: HashMap<Recipe, Arc<[u16]>, BuildHasherDefault<FoldHasher>>,
    /// Tables built since unused ones were last dropped.
    since: usize,
}

impl Tables {
    /// The table of these members: an existing one, or a new one.
    pub fn table(&self, mut members: Vec<Member>, size: u32) -> Arc<[u16]> {
        let divisor = members.iter().fold(0, |divisor, member| gcd(divisor, member.weight)).max(1);
        members.iter_mut().for_each(|member| member.weight /= divisor);
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Made { tables, since } = &mut *made;
        let place = match tables.entry(Recipe { size, members: members.into() }) {
            Entry::Occupied(made) => return Arc::clone(made.get()),
            Entry::Vacant(place) => place,
        };
        *since += 1;
        let table = build(&place.key().members, size);
        Arc::clone(place.insert(table))
    }

    /// Drops the tables that no snapshot uses, if there may be some. Call it when a snapshot is built. Until then,
    /// tables of earlier snapshots are kept, for backends that leave and return.
    pub fn tidy(&self) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if made.since > UNUSED_MAX.max(made.tables.len() / 16) {
            made.tables.retain(|_, table| Arc::strong_count(table) > 1);
            made.since = 0;
        }
    }
}

/// The number of unused tables that may be kept, in addition to a sixteenth of those in use.
const UNUSED_MAX: usize = 64;

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
