//! The flows of one table whose state has changed, to be sent to other gateways (`shared_changes.rs`), and the entries
//! that were received from other gateways.
//!
//! A [`Journal`] is a short list of keys. It is off unless flows are shared, and only packets that change the state of
//! a flow reach it. [`Adopted`] stores the time of the last packet of each entry that was received from another
//! gateway: an entry with an unchanged time has had no packet on this gateway.
//!
//! Invariant: constructors reserve all memory. A full journal drops further keys.

use tidegate_spec::limits::FLOW_JOURNAL_MAX;

use super::key::PackedKey;

/// The client's keys of flows whose state has changed, oldest first. A key may occur several times.
#[derive(Debug)]
pub(super) struct Journal<const A: usize> {
    keys: Vec<PackedKey<A>>,
    pub(super) is_on: bool,
}

impl<const A: usize> Journal<A> {
    /// An empty journal, which is off.
    pub(super) fn new() -> Self {
        Self { keys: Vec::with_capacity(FLOW_JOURNAL_MAX), is_on: false }
    }

    /// Adds a key.
    pub(super) fn note(&mut self, key: PackedKey<A>) {
        if self.keys.last() == Some(&key) {
            return;
        }
        if self.keys.len() < FLOW_JOURNAL_MAX {
            self.keys.push(key);
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key at a position.
    pub(super) fn key(&self, at: usize) -> PackedKey<A> {
        self.keys[at]
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }
}

/// The time of the last packet of each entry that was received from another gateway, by entry index. The memory stays
/// untouched until the first entry is adopted.
#[derive(Debug)]
pub(super) struct Adopted {
    stamps: Box<[u32]>,
    pub(super) is_used: bool,
}

impl Adopted {
    pub(super) fn new(entries: usize) -> Self {
        Self { stamps: vec![0; entries].into_boxed_slice(), is_used: false }
    }

    /// Marks an entry as adopted, with its last packet at `seen`.
    pub(super) fn mark(&mut self, index: usize, seen: u32) {
        self.is_used = true;
        self.stamps[index] = seen | 1;
    }

    /// Clears the mark of an entry.
    #[inline]
    pub(super) fn clear(&mut self, index: usize) {
        if self.is_used {
            self.stamps[index] = 0;
        }
    }

    /// Moves the mark with its entry.
    pub(super) fn relocate(&mut self, from: usize, to: usize) {
        if self.is_used {
            self.stamps[to] = std::mem::take(&mut self.stamps[from]);
        }
    }

    /// Whether an entry was adopted and has had no packet on this gateway, given that its last packet was at `seen`.
    pub(super) fn is_untouched(&self, index: usize, seen: u32) -> bool {
        self.is_used && self.stamps[index] == seen | 1
    }
}
