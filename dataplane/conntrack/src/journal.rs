//! The flows of one table whose state has changed, which are to be sent to other gateways (`shared_changes.rs`); and
//! which entries were received from other gateways.
//!
//! A [`Journal`] is a short list of keys. It is off unless flows are shared, and a packet that changes no state of its
//! flow never reaches it. [`Adopted`] records the time of the last packet of each entry that was received from another
//! gateway: an entry that still has that time has had no packet on this gateway.
//!
//! Invariant: both are memory that the constructor reserved. A full journal takes no more keys.

use tidegate_spec::limits::FLOW_JOURNAL_MAX;

use super::key::PackedKey;

/// The keys of flows whose state has changed, of the client's side, oldest first. A key can be in it several times.
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

/// The time of the last packet of each entry that was received from another gateway, by the number of its place. The
/// memory is zeroed by the system and stays untouched until the first entry is adopted.
#[derive(Debug)]
pub(super) struct Adopted {
    stamps: Box<[u32]>,
    pub(super) is_used: bool,
}

impl Adopted {
    pub(super) fn new(places: usize) -> Self {
        Self { stamps: vec![0; places].into_boxed_slice(), is_used: false }
    }

    /// Marks the entry at a place, whose last packet elsewhere was at `seen`.
    pub(super) fn mark(&mut self, place: usize, seen: u32) {
        self.is_used = true;
        self.stamps[place] = seen | 1;
    }

    /// Forgets the mark of a place.
    #[inline]
    pub(super) fn clear(&mut self, place: usize) {
        if self.is_used {
            self.stamps[place] = 0;
        }
    }

    /// Moves the mark with its entry.
    pub(super) fn relocate(&mut self, from: usize, to: usize) {
        if self.is_used {
            self.stamps[to] = std::mem::take(&mut self.stamps[from]);
        }
    }

    /// Whether the entry at a place was adopted and has had no packet on this gateway, if its last packet was at
    /// `seen`.
    pub(super) fn is_untouched(&self, place: usize, seen: u32) -> bool {
        self.is_used && self.stamps[place] == seen | 1
    }
}
