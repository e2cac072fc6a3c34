//! Maglev tables: which backend owns which slot of the hash space (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Each backend has its own permutation of the slots. The backends pick one after the other, and each pick takes the
//! backend's next free slot. The permutation depends only on the backend's stable identity (address, and number among
//! equal addresses), so tables don't depend on the order of backends and are equal on every gateway. The number of
//! picks follows the weight. Snapshot compilation builds tables for services with `scheduler: maglev`; workers only
//! read slots. The size is configured: if it followed the number of backends, each step would redistribute the whole
//! table.
//!
//! Bounds (tested): with n backends of weights w and their sum W, a table of M slots gives a backend `M * w / W`
//! slots, with a deviation of at most `1 + n * w / W`. With equal weights, all are within one of each other.
//!
//! Invariant: equal (size, identities, weights up to a common factor) give equal tables that share one allocation.

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
/// If `size` is not a prime, or there are 65,536 members or more. Snapshot compilation checks both.
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
struct TableInputs {
    size: u32,
    members: Box<[Member]>,
}

/// The tables of a chain of snapshots, each built once. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tables(Arc<Mutex<BuiltTables>>);

#[derive(Debug, Default)]
struct BuiltTables {
    tables: HashMap<TableInputs, Arc<[u16]>, BuildHasherDefault<FoldHasher>>,
    /// The number of tables built since unused ones were last dropped.
    since: usize,
}

impl Tables {
    /// The table of these members: an existing one, or a new one.
    pub fn table(&self, mut members: Vec<Member>, size: u32) -> Arc<[u16]> {
        let divisor = members.iter().fold(0, |divisor, member| gcd(divisor, member.weight)).max(1);
        members.iter_mut().for_each(|member| member.weight /= divisor);
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let BuiltTables { tables, since } = &mut *built;
        let vacant = match tables.entry(TableInputs { size, members: members.into() }) {
            Entry::Occupied(built) => return Arc::clone(built.get()),
            Entry::Vacant(vacant) => vacant,
        };
        *since += 1;
        let table = build(&vacant.key().members, size);
        Arc::clone(vacant.insert(table))
    }

    /// Drops unused tables, if there may be many. Call it when a snapshot is built. Tables of earlier snapshots are
    /// kept until then, for backends that leave and return.
    pub fn tidy(&self) {
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if built.since > UNUSED_MAX.max(built.tables.len() / 16) {
            built.tables.retain(|_, table| Arc::strong_count(table) > 1);
            built.since = 0;
        }
    }
}

/// The number of unused tables that may be kept, in addition to a sixteenth of those in use.
const UNUSED_MAX: usize = 64;

/// The greatest common divisor.
pub(crate) fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
