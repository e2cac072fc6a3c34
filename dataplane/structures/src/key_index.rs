//! `KeyIndex`: finds the position of the record with a key, in a hash table with open addressing.
//!
//! An entry is one 4-byte word (occupied bit, 9 bits of the hash, 22 bits of position), 16 entries are a cache line,
//! and the table is at most half full. So 1,000 services take 8 KiB, and nearly every look-up reads one line here and
//! one of the records. Keys stay in the records, which the caller compares in full. Built once, then only read.
//!
//! Invariant: at least half of the entries are empty, so every probe ends.

use crate::prefetch;
use crate::table::{Edit, Table};

const ENTRIES_PER_LINE: usize = 16;
const POSITION_BITS: u32 = 22;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;
const OCCUPIED: u32 = 1 << 31;

#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
struct Line([u32; ENTRIES_PER_LINE]);

/// An index from keys to positions. Clones share the entries.
#[derive(Debug, Clone)]
pub struct KeyIndex {
    lines: Table<Line>,
    /// The number of entries, which is a power of two, minus one.
    mask: usize,
    /// The number of occupied entries.
    len: usize,
}

impl KeyIndex {
    /// An index of `(hash, position)` pairs with distinct keys.
    ///
    /// # Panics
    /// If a position is not below 2^22. The limits of a snapshot are checked first.
    pub fn build(entries: impl ExactSizeIterator<Item = (u64, usize)>) -> Self {
        let len = entries.len();
        let mut lines = vec![Line([0; ENTRIES_PER_LINE]); lines_for(len)];
        let mask = lines.len() * ENTRIES_PER_LINE - 1;
        for (hash, position) in entries {
            let at = free_entry(&lines, mask, hash);
            lines[at / ENTRIES_PER_LINE].0[at % ENTRIES_PER_LINE] = entry(hash, position);
        }
        Self { mask, lines: lines.into(), len }
    }

    /// Bytes of an index of this many keys.
    #[must_use]
    pub fn bytes_for(len: usize) -> usize {
        lines_for(len) * size_of::<Line>()
    }

    /// Bytes of the entries.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// A copy without the keys in `gone` and with those in `new`. `hash_of` returns the hash of a position in this
    /// index. `None` if the result would be more than half full: then the index must be rebuilt.
    ///
    /// # Panics
    /// If a key to be removed does not exist.
    pub fn edited(
        &self,
        gone: &[(u64, usize)],
        new: &[(u64, usize)],
        hash_of: impl Fn(usize) -> u64,
    ) -> Option<Self> {
        let len = self.len - gone.len() + new.len();
        if len * 2 > self.mask + 1 {
            return None;
        }
        let mask = self.mask;
        let lines = self.lines.revised([], |lines| {
            let mut table = Entries { lines, mask };
            gone.iter().for_each(|&(hash, position)| table.take(hash, position, &hash_of));
            new.iter().for_each(|&(hash, position)| table.put(hash, position));
        });
        Some(Self { lines, mask, len })
    }

    /// Prefetches the line at which the probe starts.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.start(hash) / ENTRIES_PER_LINE) {
            prefetch::read(line);
        }
    }

    /// The first position with this hash for which `matches` is true. `matches` compares the whole key.
    #[inline(always)]
    pub fn find(&self, hash: u64, mut matches: impl FnMut(usize) -> bool) -> Option<usize> {
        let (tag, lines) = (tag(hash), &self.lines[..]);
        let mut at = self.start(hash);
        loop {
            let entry = lines[at / ENTRIES_PER_LINE].0[at % ENTRIES_PER_LINE];
            // An empty entry never matches: the tag includes the occupied bit.
            if (entry ^ tag) & !POSITION_MASK == 0 {
                let position = (entry & POSITION_MASK) as usize;
                if matches(position) {
                    return Some(position);
                }
            }
            if entry == 0 {
                return None;
            }
            at = (at + 1) & self.mask;
        }
    }

    #[inline]
    fn start(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }
}

/// The entries during an edit.
struct Entries<'a, 'b> {
    lines: &'a mut Edit<'b, Line>,
    /// As [`KeyIndex::mask`].
    mask: usize,
}

impl Entries<'_, '_> {
    fn put(&mut self, hash: u64, position: usize) {
        let at = free_entry(self.lines, self.mask, hash);
        self.set(at, entry(hash, position));
    }

    /// Removes an entry, and moves the entries behind it that a probe would no longer reach.
    fn take(&mut self, hash: u64, position: usize, hash_of: &impl Fn(usize) -> u64) {
        let (mask, mut hole) = (self.mask, hash as usize & self.mask);
        let of = |entry: u32| (entry & POSITION_MASK) as usize;
        while of(self.get(hole)) != position || self.get(hole) == 0 {
            assert!(self.get(hole) != 0, "an entry that is removed is in the table");
            hole = (hole + 1) & mask;
        }
        let mut at = (hole + 1) & mask;
        while self.get(at) != 0 {
            let entry = self.get(at);
            let home = hash_of(of(entry)) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.set(hole, entry);
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.set(hole, 0);
    }

    fn get(&self, at: usize) -> u32 {
        self.lines[at / ENTRIES_PER_LINE].0[at % ENTRIES_PER_LINE]
    }

    fn set(&mut self, at: usize, entry: u32) {
        self.lines.get_mut(at / ENTRIES_PER_LINE).0[at % ENTRIES_PER_LINE] = entry;
    }
}

/// The first empty entry of a probe.
fn free_entry(lines: &[Line], mask: usize, hash: u64) -> usize {
    let mut at = hash as usize & mask;
    while lines[at / ENTRIES_PER_LINE].0[at % ENTRIES_PER_LINE] != 0 {
        at = (at + 1) & mask;
    }
    at
}

/// The number of lines for this many keys: at most half of the entries are occupied.
fn lines_for(len: usize) -> usize {
    (len * 2).next_power_of_two().div_ceil(ENTRIES_PER_LINE).max(1)
}

/// The word of an entry.
fn entry(hash: u64, position: usize) -> u32 {
    let position = u32::try_from(position).ok().filter(|&p| p <= POSITION_MASK);
    tag(hash) | position.expect("positions are within the limits of a snapshot")
}

/// The occupied bit, and 9 bits of the hash that don't determine where the probe starts.
#[inline]
fn tag(hash: u64) -> u32 {
    OCCUPIED | ((hash >> 55) as u32) << POSITION_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn finds_what_a_hash_map_finds(keys in proptest::collection::hash_set(0_u32..5_000, 0..800), squeeze in 0_u32..60) {
            // With fewer distinct hashes than keys, all kinds of collisions occur.
            let hash = |key: u32| u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> squeeze;
            let records: Vec<u32> = keys.into_iter().collect();
            let index = KeyIndex::build(records.iter().enumerate().map(|(at, &key)| (hash(key), at)));
            let oracle: HashMap<u32, usize> = records.iter().enumerate().map(|(at, &key)| (key, at)).collect();
            for key in 0..5_000 {
                prop_assert_eq!(index.find(hash(key), |at| records[at] == key), oracle.get(&key).copied());
            }
        }
    }

    proptest! {
        #[test]
        fn an_edited_index_finds_what_a_new_one_finds(
            before in proptest::collection::btree_set(0_u32..400, 0..120),
            after in proptest::collection::btree_set(0_u32..400, 0..60),
            squeeze in 0_u32..62,
        ) {
            let hash = |key: u32| u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> squeeze;
            // A key's position is the key itself.
            let entry = |key: u32| (hash(key), key as usize);
            let index = KeyIndex::build(before.iter().map(|&key| entry(key)).collect::<Vec<_>>().into_iter());
            let gone: Vec<_> = before.difference(&after).map(|&key| entry(key)).collect();
            let new: Vec<_> = after.difference(&before).map(|&key| entry(key)).collect();
            let Some(edited) = index.edited(&gone, &new, |at| hash(at as u32)) else {
                prop_assert!(after.len() > before.len());
                return Ok(());
            };
            for key in 0..400 {
                let found = edited.find(hash(key), |at| at == key as usize);
                prop_assert_eq!(found.is_some(), after.contains(&key), "{}", key);
            }
        }
    }

    #[test]
    fn a_thousand_keys_take_eight_kibibytes() {
        let index = KeyIndex::build((0..1_000_usize).map(|n| (n as u64 * 0x1234_5677, n)));
        assert_eq!(index.lines.len() * 64, 8 * 1024);
    }

    #[test]
    fn an_empty_index_finds_nothing() {
        let index = KeyIndex::build(std::iter::empty());
        index.prefetch(u64::MAX);
        assert_eq!(index.find(u64::MAX, |_| true), None);
    }
}
