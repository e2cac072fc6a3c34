//! Keeps on-demand neighbours (needed only by packets) in bounded shares, and decides which of them is evicted for
//! another.
//!
//! Each interface has one share per family, so a flood on one doesn't affect the others. Each share has four LRU lists,
//! each with its own capacity: addresses waiting for their first request; requested addresses that have not answered;
//! stations that requested our address and have not been used; and neighbours in use. A flood of packets to unused
//! addresses fills the first list. It fills the second only as fast as requests are sent, so a request isn't forgotten
//! before its answer arrives. A flood of forged requests fills the third. No flood affects the last list, from which an
//! entry used within [`IN_USE`] is never evicted.
//!
//! Invariant: every operation takes logarithmic time; none examines all entries.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_spec::limits::NEIGHBORS_ON_DEMAND_MAX;
use tidegate_spec::now::Now;

use super::key::Key;

/// A neighbour used within this time is not evicted.
pub(super) const IN_USE: Duration = Duration::from_secs(60);

/// The LRU list of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LruList {
    /// A packet needs it, and no request was sent yet.
    Pending,
    /// Requested, no answer so far.
    Requested,
    /// It sent its link address in a request for one of our addresses, and has not been used yet.
    Unused,
    /// Packets were sent to it, or it has answered.
    Used,
}

/// The share of one interface and family: its lists, indexed by [`LruList`]. Each is ordered by the time since when the
/// entry has been there; entries in use by their last known use.
type Share = [BTreeSet<(Now, Key)>; 4];

/// The shares of all interfaces.
#[derive(Debug, Default)]
pub(super) struct LruLists {
    shares: Vec<Share>,
    /// Maximum number of entries per share.
    share_max: usize,
}

/// The index of the share of a neighbour.
pub(super) fn share_of((interface, address): &Key) -> usize {
    usize::from(*interface) * 2 + usize::from(address.is_ipv6())
}

impl LruLists {
    /// Sets the number of interfaces. Existing entries stay.
    pub(super) fn resize(&mut self, interfaces: usize) {
        self.shares.resize_with(interfaces * 2, Share::default);
        self.share_max = NEIGHBORS_ON_DEMAND_MAX / (interfaces * 2).max(1);
    }

    /// The capacity of a list in one share: half of the share for entries in use, a quarter for stations that requested
    /// our address, and a quarter for addresses without a known link address, before and after the first request.
    pub(super) fn capacity(&self, list: LruList) -> usize {
        match list {
            LruList::Pending | LruList::Requested => self.share_max / 8,
            LruList::Unused => self.share_max / 4,
            LruList::Used => self.share_max / 2,
        }
    }

    /// Whether the list of this neighbour's share has space for another entry.
    pub(super) fn has_capacity(&mut self, key: &Key, list: LruList) -> bool {
        let capacity = self.capacity(list);
        self.set(key, list).is_some_and(|set| set.len() < capacity)
    }

    /// Whether the list of this neighbour's share is more than half full.
    pub(super) fn is_crowded(&mut self, key: &Key, list: LruList) -> bool {
        let capacity = self.capacity(list);
        self.set(key, list).is_some_and(|set| set.len() * 2 > capacity)
    }

    /// The entry that would be evicted first, with its time.
    pub(super) fn oldest(&mut self, key: &Key, list: LruList) -> Option<(Now, Key)> {
        self.set(key, list)?.first().copied()
    }

    pub(super) fn put(&mut self, key: Key, list: LruList, since: Now) {
        if let Some(set) = self.set(&key, list) {
            set.insert((since, key));
        }
    }

    pub(super) fn take(&mut self, key: Key, list: LruList, since: Now) {
        if let Some(set) = self.set(&key, list) {
            set.remove(&(since, key));
        }
    }

    fn set(&mut self, key: &Key, list: LruList) -> Option<&mut BTreeSet<(Now, Key)>> {
        self.shares.get_mut(share_of(key)).map(|share| &mut share[list as usize])
    }
}
