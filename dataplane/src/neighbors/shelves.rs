//! The neighbours that only packets need, in bounded shares, and which of them is evicted for another.
//!
//! Each interface has a share for each family, so that a flood on one of them does not affect the others. Each share
//! has four shelves with separate room: addresses that wait for their first request, requested addresses that have not
//! answered, stations that requested our address and to which nothing was sent yet, and neighbours that are in use or were
//! used recently. A flood of packets to unused addresses fills the first, and no faster than requests are sent the
//! second, so that a request is not forgotten before its answer arrives. A flood of forged requests fills the third. None
//! of them affects the last, and an entry that packets used within [`IN_USE`] is never evicted from it.
//!
//! Invariant: every operation takes time in the logarithm of the entries; none examines all of them.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_spec::limits::NEIGHBORS_ON_DEMAND_MAX;
use tidegate_spec::now::Now;

use super::key::Key;

/// A neighbour that a packet was sent to within this time is not evicted.
pub(super) const IN_USE: Duration = Duration::from_secs(60);

/// The shelf of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shelf {
    /// A packet needs it, and no request was sent yet.
    Wanted,
    /// Requested, without an answer so far.
    Asked,
    /// The neighbour sent its link address in a request for ours, and has not been used yet.
    Heard,
    /// Packets were sent to it, or it has answered.
    Kept,
}

/// The share of one interface and family.
#[derive(Debug, Default)]
struct Share {
    /// Ordered by the time at which they were added.
    wanted: BTreeSet<(Now, Key)>,
    /// Ordered by the time of the first request.
    asked: BTreeSet<(Now, Key)>,
    /// Ordered by the time at which they were added.
    heard: BTreeSet<(Now, Key)>,
    /// Ordered by the time of the last known use.
    kept: BTreeSet<(Now, Key)>,
}

/// The shares of all interfaces.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    shares: Vec<Share>,
    /// The maximum number of entries of one share.
    share_max: usize,
}

/// The index of the share of a neighbour.
pub(super) fn share_of((interface, address): &Key) -> usize {
    usize::from(*interface) * 2 + usize::from(address.is_ipv6())
}

impl Shelves {
    /// Sets the number of interfaces. Existing entries stay.
    pub(super) fn resize(&mut self, interfaces: usize) {
        self.shares.resize_with(interfaces * 2, Share::default);
        self.share_max = NEIGHBORS_ON_DEMAND_MAX / (interfaces * 2).max(1);
    }

    /// The capacity of a shelf of one share: half of the share for entries in use, a quarter for stations that requested
    /// our address, and a quarter for addresses whose link address is not known, before and after the first request.
    pub(super) fn room(&self, shelf: Shelf) -> usize {
        match shelf {
            Shelf::Wanted | Shelf::Asked => self.share_max / 8,
            Shelf::Heard => self.share_max / 4,
            Shelf::Kept => self.share_max / 2,
        }
    }

    /// Whether the shelf of this neighbour has room for one more entry.
    pub(super) fn has_room(&mut self, key: &Key, shelf: Shelf) -> bool {
        let room = self.room(shelf);
        self.set(key, shelf).is_some_and(|set| set.len() < room)
    }

    /// Whether more than half of the places of the shelf of this neighbour are taken.
    pub(super) fn is_crowded(&mut self, key: &Key, shelf: Shelf) -> bool {
        let room = self.room(shelf);
        self.set(key, shelf).is_some_and(|set| set.len() * 2 > room)
    }

    /// The entry that would be evicted first, with its time.
    pub(super) fn oldest(&mut self, key: &Key, shelf: Shelf) -> Option<(Now, Key)> {
        self.set(key, shelf)?.first().copied()
    }

    pub(super) fn put(&mut self, key: Key, shelf: Shelf, since: Now) {
        if let Some(set) = self.set(&key, shelf) {
            set.insert((since, key));
        }
    }

    pub(super) fn take(&mut self, key: Key, shelf: Shelf, since: Now) {
        if let Some(set) = self.set(&key, shelf) {
            set.remove(&(since, key));
        }
    }

    fn set(&mut self, key: &Key, shelf: Shelf) -> Option<&mut BTreeSet<(Now, Key)>> {
        let share = self.shares.get_mut(share_of(key))?;
        Some(match shelf {
            Shelf::Wanted => &mut share.wanted,
            Shelf::Asked => &mut share.asked,
            Shelf::Heard => &mut share.heard,
            Shelf::Kept => &mut share.kept,
        })
    }
}
