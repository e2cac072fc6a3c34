//! Neighbours, each with its timer and its place on a shelf.
//!
//! Invariant: an entry, its timer and its place change together ([`Entries::put`], [`Entries::take`]).

use std::collections::{BTreeMap, BTreeSet};

use tidegate_spec::now::Now;
use tidegate_wire::MacAddr;

use super::key::Key;
use super::shelves::{Shelf, Shelves, share_of};
use crate::rate::Bucket;

/// Frames a second, and at once, for next hops of routes and backends.
const PINNED_RATE: (u32, u32) = (20_000, 256);
/// Frames a second, and at once, for neighbours that packets are sent to.
const KEPT_RATE: (u32, u32) = (5_000, 256);
/// Frames a second, and at once, for addresses that have not answered, of one interface and family.
const ASKED_RATE: (u32, u32) = (1_000, 128);

/// Timers that share a budget of frames.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) timers: BTreeSet<(Now, Key)>,
    pub(super) budget: Bucket,
}

/// The lane of next hops of routes and backends.
pub(super) const PINNED: usize = 0;
/// The lane of neighbours that packets are sent to.
pub(super) const KEPT: usize = 1;
/// The first lane of addresses that have not answered. There is one for each share.
pub(super) const ASKED: usize = 2;

impl Lane {
    fn new((rate, burst): (u32, u32)) -> Self {
        Self { timers: BTreeSet::new(), budget: Bucket::new(rate, burst) }
    }
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) state: State,
    /// The link address, if it is known. It is then in the workers' table.
    pub(super) mac: Option<MacAddr>,
    /// Whether the table marks it as given by an answer.
    pub(super) confirmed: bool,
    /// Its shelf and its time there. `None` for a next hop of a route or backend, which is never evicted.
    pub(super) shelf: Option<(Shelf, Now)>,
    pub(super) wanted_at: Now,
    pub(super) asked_at: Now,
    /// When the link address last changed.
    pub(super) changed_at: Option<Now>,
    /// When its timer expires; `None` for a fixed neighbour.
    pub(super) due: Option<Now>,
}

/// The states of RFC 4861 section 7.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Fixed,
    /// It has not answered yet, or does not answer any more.
    Incomplete {
        tries: u8,
    },
    Reachable,
    /// Known, and not confirmed recently.
    Stale,
    Probing {
        tries: u8,
    },
}

impl Entry {
    pub(super) fn new(now: Now, state: State) -> Self {
        let (mac, confirmed, shelf, changed_at, due) = (None, false, None, None, None);
        Self { state, mac, confirmed, shelf, wanted_at: now, asked_at: now, changed_at, due }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.shelf.is_none()
    }

    fn lane(&self, key: &Key) -> usize {
        match self.shelf {
            None => PINNED,
            Some((Shelf::Heard | Shelf::Kept, _)) => KEPT,
            Some((Shelf::Wanted | Shelf::Asked, _)) => ASKED + share_of(key),
        }
    }
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct Entries {
    by_key: BTreeMap<Key, Entry>,
    pub(super) shelves: Shelves,
    /// Timers by purpose: pinned next hops, neighbours in use, then one lane for each share of requested ones.
    pub(super) lanes: Vec<Lane>,
}

impl Default for Entries {
    fn default() -> Self {
        let lanes = vec![Lane::new(PINNED_RATE), Lane::new(KEPT_RATE)];
        Self { by_key: BTreeMap::new(), shelves: Shelves::default(), lanes }
    }
}

impl Entries {
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        self.by_key.get(key).copied()
    }

    /// Records that a packet needs it now. Returns the entry, if there is one.
    pub(super) fn note_wanted(&mut self, key: &Key, now: Now) -> Option<Entry> {
        let entry = self.by_key.get_mut(key)?;
        entry.wanted_at = now;
        Some(*entry)
    }

    /// All entries, ordered by interface, then by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.by_key.iter()
    }

    /// Sets the number of interfaces.
    pub(super) fn resize(&mut self, interfaces: usize) {
        self.shelves.resize(interfaces);
        self.lanes.resize_with(ASKED + interfaces * 2, || Lane::new(ASKED_RATE));
    }

    /// Inserts or replaces an entry with its timer and shelf. Only this and [`Self::take`] change them.
    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        self.take(key);
        if let Some((shelf, since)) = entry.shelf {
            self.shelves.put(key, shelf, since);
        }
        if let (Some(due), Some(lane)) = (entry.due, self.lanes.get_mut(entry.lane(&key))) {
            lane.timers.insert((due, key));
        }
        self.by_key.insert(key, entry);
    }

    /// Removes an entry with its timer and shelf.
    pub(super) fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.by_key.remove(&key)?;
        if let Some((shelf, since)) = entry.shelf {
            self.shelves.take(key, shelf, since);
        }
        if let (Some(due), Some(lane)) = (entry.due, self.lanes.get_mut(entry.lane(&key))) {
            lane.timers.remove(&(due, key));
        }
        Some(entry)
    }
}
