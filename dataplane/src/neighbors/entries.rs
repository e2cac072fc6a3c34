//! Neighbours, each with its timer and its position in an LRU list.
//!
//! Invariant: an entry, its timer and its list position change together ([`Entries::put`], [`Entries::take`]).

use std::collections::{BTreeMap, BTreeSet};

use tidegate_spec::now::Now;
use tidegate_spec::token_bucket::{Rate, TokenBucket};
use tidegate_wire::MacAddr;

use super::key::Key;
use super::lru_lists::{LruList, LruLists, share_of};

/// Frames a second and burst for next hops of routes and backends.
const PINNED_RATE: Rate = Rate { per_second: 20_000, burst: 256 };
/// Frames a second and burst for neighbours in use.
const USED_RATE: Rate = Rate { per_second: 5_000, burst: 256 };
/// Frames a second and burst for addresses that have not answered, per interface and family.
const REQUESTED_RATE: Rate = Rate { per_second: 1_000, burst: 128 };

/// Timers that share a frame budget.
#[derive(Debug)]
pub(super) struct TimerQueue {
    pub(super) timers: BTreeSet<(Now, Key)>,
    pub(super) budget: TokenBucket,
}

/// The timer queue of next hops of routes and backends.
pub(super) const PINNED: usize = 0;
/// The timer queue of neighbours in use.
pub(super) const USED: usize = 1;
/// The first timer queue of addresses that have not answered; one queue per share.
pub(super) const REQUESTED: usize = 2;

impl TimerQueue {
    fn new(rate: Rate) -> Self {
        Self { timers: BTreeSet::new(), budget: TokenBucket::new(rate) }
    }
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) state: State,
    /// The link address, if known. It is then in the workers' table.
    pub(super) mac: Option<MacAddr>,
    /// Whether the table marks it as confirmed by an answer.
    pub(super) confirmed: bool,
    /// Its LRU list, and the time that determines its order there. `None` for a next hop of a route or backend, which
    /// is never evicted.
    pub(super) lru: Option<(LruList, Now)>,
    pub(super) needed_at: Now,
    pub(super) requested_at: Now,
    /// When the link address last changed.
    pub(super) changed_at: Option<Now>,
    /// When its timer expires; `None` for a fixed neighbour.
    pub(super) due: Option<Now>,
}

/// The states of RFC 4861 section 7.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Fixed,
    /// It has not answered, or no longer answers.
    Incomplete {
        tries: u8,
    },
    Reachable,
    /// Its link address is known, but was not confirmed recently.
    Stale,
    Probing {
        tries: u8,
    },
}

impl Entry {
    pub(super) fn new(now: Now, state: State) -> Self {
        let (mac, confirmed, lru, changed_at, due) = (None, false, None, None, None);
        Self { state, mac, confirmed, lru, needed_at: now, requested_at: now, changed_at, due }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.lru.is_none()
    }

    fn timer_queue(&self, key: &Key) -> usize {
        match self.lru {
            None => PINNED,
            Some((LruList::Unused | LruList::Used, _)) => USED,
            Some((LruList::Pending | LruList::Requested, _)) => REQUESTED + share_of(key),
        }
    }
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct Entries {
    by_key: BTreeMap<Key, Entry>,
    pub(super) lru_lists: LruLists,
    /// Timers by purpose: pinned next hops, neighbours in use, then one queue per share of requested addresses.
    pub(super) timer_queues: Vec<TimerQueue>,
}

impl Default for Entries {
    fn default() -> Self {
        let timer_queues = vec![TimerQueue::new(PINNED_RATE), TimerQueue::new(USED_RATE)];
        Self { by_key: BTreeMap::new(), lru_lists: LruLists::default(), timer_queues }
    }
}

impl Entries {
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        self.by_key.get(key).copied()
    }

    /// Records that a packet needs it. Returns the entry, if any.
    pub(super) fn note_needed(&mut self, key: &Key, now: Now) -> Option<Entry> {
        let entry = self.by_key.get_mut(key)?;
        entry.needed_at = now;
        Some(*entry)
    }

    /// All entries, ordered by interface and address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.by_key.iter()
    }

    /// Sets the number of interfaces.
    pub(super) fn resize(&mut self, interfaces: usize) {
        self.lru_lists.resize(interfaces);
        self.timer_queues.resize_with(REQUESTED + interfaces * 2, || TimerQueue::new(REQUESTED_RATE));
    }

    /// Inserts or replaces an entry with its timer and list position. Only this function and [`Self::take`] change
    /// timers and list positions.
    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        self.take(key);
        if let Some((list, since)) = entry.lru {
            self.lru_lists.put(key, list, since);
        }
        if let (Some(due), Some(queue)) = (entry.due, self.timer_queues.get_mut(entry.timer_queue(&key))) {
            queue.timers.insert((due, key));
        }
        self.by_key.insert(key, entry);
    }

    /// Removes an entry with its timer and list position.
    pub(super) fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.by_key.remove(&key)?;
        if let Some((list, since)) = entry.lru {
            self.lru_lists.take(key, list, since);
        }
        if let (Some(due), Some(queue)) = (entry.due, self.timer_queues.get_mut(entry.timer_queue(&key))) {
            queue.timers.remove(&(due, key));
        }
        Some(entry)
    }
}
