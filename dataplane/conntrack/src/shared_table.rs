//! A table that all workers of a gateway share, with relaxed loads and stores and without locks.
//!
//! An entry is a record, and a secret hash of its key combined with the record. A reader that sees words of two writers
//! matches neither, unless both wrote the same record (Hyatt, "A lock-less transposition table"). Two concurrent writers
//! of one entry may lose both records. The lower half of a record's first word is not part of the check, so readers find
//! an entry even while its time changes.
//!
//! The table has a fixed size, with `ENTRIES` entries in a hash bucket. It takes no memory before
//! [`SharedTable::prepare`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_spec::now::Now;
use tidegate_structures::hash::mix;

use super::key::{FlowHasher, FlowKey};

/// 2^27 ns, 134 ms: the unit of time. 31 bits of it are more than eight years.
const TIME_SHIFT: u32 = 27;
const TIME_MASK: u64 = (1 << 31) - 1;

/// The content of an entry. The first word has the time in its lowest 31 bits, which are never 0.
pub(super) type Record<const WORDS: usize> = [u64; WORDS];

#[derive(Debug)]
struct Entry<const WORDS: usize> {
    /// The hash of the key combined with the record.
    check: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket<const WORDS: usize, const ENTRIES: usize>([Entry<WORDS>; ENTRIES]);

/// See [the module](self).
#[derive(Debug)]
pub(super) struct SharedTable<const WORDS: usize, const ENTRIES: usize> {
    /// Two secret hashes of a key: one for its hash bucket, one for the comparison. Together they are 128 bits, so
    /// keys don't collide.
    hashers: [FlowHasher; 2],
    entries: usize,
    buckets: OnceLock<Box<[Bucket<WORDS, ENTRIES>]>>,
}

impl<const WORDS: usize, const ENTRIES: usize> SharedTable<WORDS, ENTRIES> {
    /// A table of this many entries. `seed` should be secret.
    pub(super) fn new(entries: usize, seed: u64) -> Self {
        let hashers = [mix(seed), mix(!seed)].map(FlowHasher::new);
        Self { hashers, entries, buckets: OnceLock::new() }
    }

    /// Allocates the table. Before that, nothing is stored.
    pub(super) fn prepare(&self) {
        let buckets = self.entries.div_ceil(ENTRIES).next_power_of_two();
        let empty = || Bucket(std::array::from_fn(|_| Entry::empty()));
        self.buckets.get_or_init(|| std::iter::repeat_with(empty).take(buckets).collect());
    }

    /// Whether [`Self::prepare`] was called.
    pub(super) fn is_prepared(&self) -> bool {
        self.buckets.get().is_some()
    }

    /// The record of this key.
    pub(super) fn find(&self, key: &FlowKey) -> Option<Record<WORDS>> {
        let (bucket, check) = self.bucket_and_check(key)?;
        bucket.0.iter().find_map(|entry| entry.record_of(check))
    }

    /// Stores a record under this key, in place of its current one. Otherwise, it replaces the record of the hash
    /// bucket that comes first in `order` (a record of zeros is an empty entry), if `may_replace` allows that.
    pub(super) fn store<O: Ord>(
        &self,
        key: &FlowKey,
        record: &Record<WORDS>,
        order: impl Fn(&Record<WORDS>) -> O,
        may_replace: impl FnOnce(&Record<WORDS>) -> bool,
    ) {
        let Some((bucket, check)) = self.bucket_and_check(key) else { return };
        let known = bucket.0.iter().find(|entry| entry.record_of(check).is_some());
        let entry = known.or_else(|| {
            let first = bucket.0.iter().min_by_key(|entry| order(&entry.load()))?;
            may_replace(&first.load()).then_some(first)
        });
        if let Some(entry) = entry {
            entry.store(check ^ digest(record), record);
        }
    }

    /// Removes and returns the record of this key.
    pub(super) fn take(&self, key: &FlowKey) -> Option<Record<WORDS>> {
        let (bucket, check) = self.bucket_and_check(key)?;
        let (entry, record) = bucket.0.iter().find_map(|entry| Some((entry, entry.record_of(check)?)))?;
        entry.store(0, &[0; WORDS]);
        Some(record)
    }

    fn bucket_and_check(&self, key: &FlowKey) -> Option<(&Bucket<WORDS, ENTRIES>, u64)> {
        let buckets = self.buckets.get()?;
        let [index, check] = self.hashers.each_ref().map(|hasher| hasher.hash(key).bits());
        // The number of buckets is a power of two.
        Some((buckets.get(index as usize & (buckets.len() - 1))?, check))
    }
}

impl<const WORDS: usize> Entry<WORDS> {
    fn empty() -> Self {
        Self { check: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn load(&self) -> Record<WORDS> {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// The record, if it belongs to the key with this hash.
    fn record_of(&self, check: u64) -> Option<Record<WORDS>> {
        let record = self.load();
        (self.check.load(Ordering::Relaxed) == check ^ digest(&record) && record[0] != 0).then_some(record)
    }

    fn store(&self, check: u64, record: &Record<WORDS>) {
        for (word, new) in self.words.iter().zip(record) {
            word.store(*new, Ordering::Relaxed);
        }
        self.check.store(check, Ordering::Relaxed);
    }
}

/// A digest of a record except the lower half of the first word. It is combined with a secret hash, so it needn't be
/// unpredictable itself.
fn digest<const WORDS: usize>(record: &Record<WORDS>) -> u64 {
    record[1..].iter().fold(mix(record[0] >> 32), |sum, word| mix(sum ^ word))
}

/// A time in the units of records, never 0.
pub(super) fn units(now: Now) -> u64 {
    ((now.0 >> TIME_SHIFT) + 1) & TIME_MASK
}

/// A time span in these units, rounded down.
pub(super) const fn units_of_seconds(seconds: u64) -> u64 {
    (seconds * 1_000_000_000) >> TIME_SHIFT
}

/// The units of time since that of the record. Another worker may be ahead by one.
pub(super) fn age<const WORDS: usize>(record: &Record<WORDS>, now: Now) -> u64 {
    units(now).saturating_sub(record[0] & TIME_MASK)
}
