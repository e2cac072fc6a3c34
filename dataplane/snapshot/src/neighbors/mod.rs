//! `NeighborTable`: the link address of each next hop, shared by all snapshots and workers.
//!
//! An entry belongs to one (interface, address) while it has a reference. References of a snapshot are in
//! [`References`], which are dropped with it; the resolver acquires one with [`NeighborTable::intern`] and releases it
//! with [`NeighborTable::release`]. Backends and routes of a snapshot name their next hops by [`NeighborId`]. An entry
//! without a reference is free for another next hop, so neither a long uptime nor a flood fills the table. Snapshots
//! and the resolver have separate capacities, so next hops that packets request cannot displace backends.
//!
//! Orderings. Readers take no lock. The version of an entry is odd while the entry is free and while its key is
//! written. [`NeighborTable::resolve`] reads the version before the key and again after the link address, so it never
//! returns the address of another neighbour that got the entry meanwhile. Removal closes the gap in the index by moving
//! later elements forward. Each is stored at its new position before its old one changes, and `removals` grows in
//! between, so a reader that missed a moving element detects that and searches again. State and link address are one
//! word.
//!
//! Invariant: readers never wait, and see only link addresses of the next hop that they look up.

mod references;
#[cfg(test)]
mod tests;
mod writers;

pub use references::References;
pub use writers::Usage;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex};

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits::{NEIGHBORS_ON_DEMAND_MAX, NEXT_HOPS_MAX};
use tidegate_spec::ownership::{BootTime, Ownership};
use tidegate_structures::hash::key_hash;
use tidegate_structures::prefetch;
use tidegate_wire::{Addr, MacAddr};
use writers::Writers;

use crate::path_mtu::PathMtus;

/// The id of a next hop in the table. Valid while the next hop has a reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NeighborId(u32);

impl NeighborId {
    /// The position, below the table's capacity.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The table has no free entry for another next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the neighbour table is full; accepted: {NEXT_HOPS_MAX} next hops of backends and routes, and \
     {NEIGHBORS_ON_DEMAND_MAX} other neighbours, added when a packet needs them"
)]
pub struct TableFull;

/// The state of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborState {
    /// No link address is known, or it is no longer valid.
    Unresolved,
    /// Received in an answer.
    Resolved(MacAddr),
    /// Received, and not confirmed recently; still used (RFC 4861 7.3.2).
    Stale(MacAddr),
    /// Given by configuration; answers do not change it.
    Static(MacAddr),
}

const MAC_MASK: u64 = (1 << 48) - 1;
const RESOLVED: u64 = 1 << 48;
const STALE: u64 = 1 << 49;
const STATIC: u64 = 1 << 50;
const STATES: u64 = RESOLVED | STALE | STATIC;
/// Set if a packet has looked up the next hop by its address since the resolver's last check.
const USED: u64 = 1 << 51;

/// The maximum number of searches for an entry that may have been moved. Each repetition requires a concurrent removal.
const FIND_TRIES: usize = 8;

#[derive(Debug)]
struct Key {
    high: AtomicU64,
    low: AtomicU64,
    /// Odd while the entry is free.
    version: AtomicU32,
    interface: AtomicU8,
}

impl Default for Key {
    fn default() -> Self {
        let (high, low) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { high, low, version: AtomicU32::new(1), interface: AtomicU8::new(0) }
    }
}

/// The table of next hops and their link addresses. Clones share it.
#[derive(Debug, Clone)]
pub struct NeighborTable {
    /// Open addressing, at most half full. An element is an id + 1, or 0 if it is free.
    index: Arc<[AtomicU32]>,
    keys: Arc<[Key]>,
    /// State and link address in a dense array, so that busy next hops share cache lines.
    links: Arc<[AtomicU64]>,
    /// The number of entries that were ever moved in the index.
    removals: Arc<AtomicU64>,
    /// The secret of the index's hash, because senders choose addresses.
    seed: u64,
    writers: Arc<Mutex<Writers>>,
    /// Stored here because it has the same users as the table.
    path_mtus: Arc<PathMtus>,
    /// Also stored here because it has the same users.
    ownership: Arc<Ownership>,
}

impl Default for NeighborTable {
    fn default() -> Self {
        Self::new()
    }
}

impl NeighborTable {
    /// An empty table for [`NEXT_HOPS_MAX`] next hops of snapshots and [`NEIGHBORS_ON_DEMAND_MAX`] of the resolver.
    #[must_use]
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// Like [`Self::new`], with a secret, so that a sender cannot choose addresses that collide.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::with(NEXT_HOPS_MAX, NEIGHBORS_ON_DEMAND_MAX, seed)
    }

    /// An empty table for that many next hops of each kind, at most as many as in [`Self::new`].
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self::with(capacity.min(NEXT_HOPS_MAX), capacity.min(NEIGHBORS_ON_DEMAND_MAX), 0)
    }

    fn with(next_hops: usize, on_demand: usize, seed: u64) -> Self {
        let entries = next_hops + on_demand;
        Self {
            index: (0..(entries * 2).next_power_of_two()).map(|_| AtomicU32::new(0)).collect(),
            keys: (0..entries).map(|_| Key::default()).collect(),
            links: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            removals: Arc::default(),
            seed,
            writers: Arc::new(Mutex::new(Writers::new(next_hops, on_demand))),
            path_mtus: Arc::default(),
            ownership: Arc::default(),
        }
    }

    /// Adds an [`Ownership`] in which no key is owned until it is granted.
    #[must_use]
    pub fn with_ownership(self, clock: fn() -> BootTime) -> Self {
        Self { ownership: Arc::new(Ownership::by(clock)), ..self }
    }

    /// The VIPs that this gateway answers for, if several gateways are on one link.
    #[inline]
    #[must_use]
    pub fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    /// The path MTUs of tunnels that routers have reported.
    #[inline]
    #[must_use]
    pub fn path_mtus(&self) -> &PathMtus {
        &self.path_mtus
    }

    /// Prefetches the data that [`Self::mac`] reads.
    #[inline]
    pub fn prefetch(&self, id: NeighborId) {
        if let Some(link) = self.links.get(id.index()) {
            prefetch::read(link);
        }
    }

    /// The link address to send to, if one is known. Costs one load. Call it only for an entry with a reference, for
    /// example from the snapshot in use.
    #[inline]
    #[must_use]
    pub fn mac(&self, id: NeighborId) -> Option<MacAddr> {
        let word = self.links.get(id.index())?.load(Relaxed);
        (word & STATES != 0).then(|| mac_of(word))
    }

    /// The link address of a next hop that no snapshot names, if one is known. Marks it as used. Lock-free.
    #[inline]
    #[must_use]
    pub fn resolve(&self, interface: InterfaceIndex, addr: &Addr) -> Option<MacAddr> {
        let (id, version) = self.find(interface, addr)?;
        let link = &self.links[id as usize];
        let word = link.load(Relaxed);
        if word & STATES == 0 || !self.unchanged(id, version) {
            return None;
        }
        if word & USED == 0 {
            note_use(link);
        }
        Some(mac_of(word))
    }

    /// The current entry of a neighbour: the outer `Option` is `None` without an entry, the inner one without a known
    /// link address. Does not count as use. Lock-free.
    #[must_use]
    pub fn peek(&self, interface: InterfaceIndex, addr: &Addr) -> Option<Option<MacAddr>> {
        let (id, version) = self.find(interface, addr)?;
        let word = self.links[id as usize].load(Relaxed);
        self.unchanged(id, version).then(|| (word & STATES != 0).then(|| mac_of(word)))
    }

    /// The id of a next hop, if it has one. Lock-free. The id belongs to this next hop only while it has a reference.
    #[inline]
    #[must_use]
    pub fn lookup(&self, interface: InterfaceIndex, addr: &Addr) -> Option<NeighborId> {
        self.find(interface, addr).map(|(id, _)| NeighborId(id))
    }

    /// Whether a packet has looked up this next hop by its address since the last call.
    #[must_use]
    pub fn take_use(&self, interface: InterfaceIndex, addr: &Addr) -> bool {
        let id = self.lookup(interface, addr);
        id.is_some_and(|id| self.links[id.index()].fetch_and(!USED, Relaxed) & USED != 0)
    }

    /// Stores a link address from an answer. Returns false, and changes nothing, if configuration gives the address.
    pub fn set_resolved(&self, id: NeighborId, mac: MacAddr) -> bool {
        self.update(id, |_| RESOLVED | word_of(mac))
    }

    /// Marks the address as not confirmed recently. It stays in use.
    pub fn mark_stale(&self, id: NeighborId) {
        self.update(id, |word| if word & RESOLVED == 0 { word } else { word & MAC_MASK | STALE });
    }

    /// Clears the link address, unless configuration gives it.
    fn forget(&self, id: NeighborId) {
        self.update(id, |_| 0);
    }

    /// Stores a link address that configuration gives.
    pub fn set_static(&self, id: NeighborId, mac: MacAddr) {
        if let Some(link) = self.links.get(id.index()) {
            link.store(STATIC | word_of(mac), Release);
        }
    }

    /// Removes the link address that configuration gave. The neighbour is then resolved like the others.
    pub fn clear_static(&self, id: NeighborId) {
        if let Some(link) = self.links.get(id.index()) {
            let _ = link.fetch_update(Release, Relaxed, |word| (word & STATIC != 0).then_some(0));
        }
    }

    /// The state of a next hop.
    #[must_use]
    pub fn state(&self, id: NeighborId) -> NeighborState {
        let word = self.links.get(id.index()).map_or(0, |link| link.load(Relaxed));
        match word & STATES {
            STATIC => NeighborState::Static(mac_of(word)),
            STALE => NeighborState::Stale(mac_of(word)),
            RESOLVED => NeighborState::Resolved(mac_of(word)),
            _ => NeighborState::Unresolved,
        }
    }

    /// The interface and address of an entry; `None` for a free one.
    #[must_use]
    pub fn key(&self, id: NeighborId) -> Option<(InterfaceIndex, Addr)> {
        let key = self.keys.get(id.index())?;
        let version = key.version.load(Acquire);
        let whole = u128::from(key.high.load(Relaxed)) << 64 | u128::from(key.low.load(Relaxed));
        let found = (key.interface.load(Relaxed), Addr::v6(whole.to_be_bytes()));
        (version.is_multiple_of(2) && self.unchanged(id.0, version)).then_some(found)
    }

    /// The number of next hops that have an entry.
    #[must_use]
    pub fn len(&self) -> usize {
        let usage = self.usage();
        usage.next_hops + usage.on_demand
    }

    /// Whether no next hop has an entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id and the version of a next hop's entry, if it has one.
    #[inline]
    fn find(&self, interface: InterfaceIndex, addr: &Addr) -> Option<(u32, u32)> {
        let hash = self.hash(interface, addr);
        match self.probe(hash, interface, addr) {
            Ok(found) => Some(found),
            Err(_) => self.find_again(hash, interface, addr),
        }
    }

    /// Repeats the search. A miss counts only if no entry was moved during the search.
    #[cold]
    fn find_again(&self, hash: usize, interface: InterfaceIndex, addr: &Addr) -> Option<(u32, u32)> {
        for _ in 0..FIND_TRIES {
            let before = self.removals.load(Acquire);
            if let Ok(found) = self.probe(hash, interface, addr) {
                return Some(found);
            }
            if self.removals.load(Acquire) == before {
                return None;
            }
        }
        None
    }

    /// The id and the version of a next hop's entry, or the position in the index where its id would be stored.
    #[inline]
    fn probe(&self, hash: usize, interface: InterfaceIndex, addr: &Addr) -> Result<(u32, u32), usize> {
        let (high, low) = words(addr);
        let mask = self.index.len() - 1;
        let mut at = hash & mask;
        loop {
            let Some(id) = self.index[at].load(Acquire).checked_sub(1) else {
                return Err(at);
            };
            let key = &self.keys[id as usize];
            let version = key.version.load(Acquire);
            if key.low.load(Relaxed) == low
                && key.high.load(Relaxed) == high
                && key.interface.load(Relaxed) == interface
                && version.is_multiple_of(2)
                && self.unchanged(id, version)
            {
                return Ok((id, version));
            }
            at = (at + 1) & mask;
        }
    }

    /// Whether the entry has not changed since its version was read.
    #[inline]
    fn unchanged(&self, id: u32, version: u32) -> bool {
        fence(Acquire);
        self.keys[id as usize].version.load(Relaxed) == version
    }

    #[inline]
    fn hash(&self, interface: InterfaceIndex, addr: &Addr) -> usize {
        let (high, low) = words(addr);
        let whole = u128::from(high ^ self.seed) << 64 | u128::from(low ^ self.seed.rotate_left(29));
        key_hash(&Addr::v6(whole.to_be_bytes()), interface, 0) as usize
    }

    /// Changes an entry unless it is static. Returns false if it is. Keeps [`USED`].
    fn update(&self, id: NeighborId, change: impl Fn(u64) -> u64) -> bool {
        let changed = |word: u64| (word & STATIC == 0).then(|| change(word & !USED) | word & USED);
        self.links.get(id.index()).is_some_and(|link| link.fetch_update(Release, Relaxed, changed).is_ok())
    }
}

/// Marks the link as used. Writes once per period of the resolver, not once per packet.
#[cold]
fn note_use(link: &AtomicU64) {
    link.fetch_or(USED, Relaxed);
}

#[inline]
fn mac_of(word: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

fn word_of(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline]
fn words(addr: &Addr) -> (u64, u64) {
    let whole = u128::from_be_bytes(*addr.bytes());
    ((whole >> 64) as u64, whole as u64)
}
