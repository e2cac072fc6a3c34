//! `NeighborTable`: the link address of each next hop, shared by all snapshots and workers.
//!
//! Control interns next hops when it compiles a snapshot, the resolver learns and forgets their addresses,
//! workers read. Nothing here sends or ages: when to ask, and whom, is the resolver's.
//!
//! A slot is given to one (interface, address) and never to another while the table lives, so its number can
//! stand in backends, routes and other people's notes. The price: next hops are never freed;
//! `limits::NEXT_HOPS_MAX` distinct ones are a lifetime's worth, and a full table is an error that says so.
//!
//! Orderings. A key is stored before its slot number is put in the index by a `Release` store; whoever finds
//! the number there by an `Acquire` load sees the key. State and link address are one 64-bit word, so a reader
//! sees a whole address or none; nothing else hangs on it, so `Relaxed` is enough. Writers of keys hold a lock
//! that readers never touch.
//!
//! Invariant: readers never wait, and never see an address that was not learnt for that very slot.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use crate::hash::key_hash;
use crate::ids::InterfaceIndex;
use crate::limits::NEXT_HOPS_MAX;
use crate::path_mtu::PathMtus;
use crate::prefetch;
use crate::wire::{Addr, MacAddr};

/// Number of a next hop in the table; stays its own for the life of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NeighborSlot(u32);

impl NeighborSlot {
    /// Position, below the table's capacity.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// No slot is left for another next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the neighbour table is full; accepted: {NEXT_HOPS_MAX} next hops over the life of the process")]
pub struct TableFull;

/// What is known of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborState {
    /// Nothing, or not any more.
    Unresolved,
    /// Learnt from an answer.
    Resolved(MacAddr),
    /// Learnt, not confirmed of late; still used (RFC 4861 7.3.2).
    Stale(MacAddr),
    /// Given by configuration; answers do not change it.
    Static(MacAddr),
}

const MAC_MASK: u64 = (1 << 48) - 1;
const RESOLVED: u64 = 1 << 48;
const STALE: u64 = 1 << 49;
const STATIC: u64 = 1 << 50;

#[derive(Debug, Default)]
struct Key {
    high: AtomicU64,
    low: AtomicU64,
    interface: AtomicU8,
}

/// See the module.
#[derive(Debug)]
pub struct NeighborTable {
    /// Open addressing at most half full; slot number + 1, or 0.
    index: Box<[AtomicU32]>,
    keys: Box<[Key]>,
    /// State and link address, dense so that busy next hops share cache lines.
    links: Box<[AtomicU64]>,
    count: AtomicU32,
    writers: Mutex<()>,
    /// Here because it is shared by the same: all snapshots, workers and reports.
    path_mtus: PathMtus,
}

impl Default for NeighborTable {
    fn default() -> Self {
        Self::new()
    }
}

impl NeighborTable {
    /// An empty table for [`NEXT_HOPS_MAX`] next hops.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(NEXT_HOPS_MAX)
    }

    /// An empty table for that many next hops, at most [`NEXT_HOPS_MAX`].
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.min(NEXT_HOPS_MAX);
        let slots = (capacity * 2).next_power_of_two();
        Self {
            index: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            keys: (0..capacity).map(|_| Key::default()).collect(),
            links: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU32::new(0),
            writers: Mutex::new(()),
            path_mtus: PathMtus::default(),
        }
    }

    /// The path MTUs of tunnels that routers have told us of.
    #[inline]
    #[must_use]
    pub fn path_mtus(&self) -> &PathMtus {
        &self.path_mtus
    }

    /// Asks the cache for what [`Self::mac`] reads.
    #[inline]
    pub fn prefetch(&self, slot: NeighborSlot) {
        if let Some(link) = self.links.get(slot.index()) {
            prefetch::read(link);
        }
    }

    /// The link address to send to, if one is known. One load.
    #[inline]
    #[must_use]
    pub fn mac(&self, slot: NeighborSlot) -> Option<MacAddr> {
        let word = self.links.get(slot.index())?.load(Relaxed);
        (word & !MAC_MASK != 0).then(|| mac_of(word))
    }

    /// The slot of a next hop, if it has one. Lock-free.
    #[inline]
    #[must_use]
    pub fn lookup(&self, interface: InterfaceIndex, addr: &Addr) -> Option<NeighborSlot> {
        self.probe(interface, addr).ok()
    }

    /// The slot of a next hop, a new one if it has none. Takes the writers' lock if so: not for workers.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn intern(&self, interface: InterfaceIndex, addr: Addr) -> Result<NeighborSlot, TableFull> {
        if let Some(slot) = self.lookup(interface, &addr) {
            return Ok(slot);
        }
        let _only_writer = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match self.probe(interface, &addr) {
            Ok(slot) => return Ok(slot),
            Err(place) => place,
        };
        let slot = self.count.load(Relaxed);
        let key = self.keys.get(slot as usize).ok_or(TableFull)?;
        let (high, low) = words(&addr);
        key.high.store(high, Relaxed);
        key.low.store(low, Relaxed);
        key.interface.store(interface, Relaxed);
        self.count.store(slot + 1, Release);
        self.index[place].store(slot + 1, Release);
        Ok(NeighborSlot(slot))
    }

    /// An answer gave this link address. Returns false, and changes nothing, where configuration gives one.
    pub fn learn(&self, slot: NeighborSlot, mac: MacAddr) -> bool {
        self.update(slot, |_| RESOLVED | word_of(mac))
    }

    /// The address has not been confirmed for a while. It stays in use.
    pub fn mark_stale(&self, slot: NeighborSlot) {
        self.update(slot, |word| if word & RESOLVED == 0 { word } else { word & MAC_MASK | STALE });
    }

    /// The next hop does not answer any more. Static ones stay.
    pub fn forget(&self, slot: NeighborSlot) {
        self.update(slot, |_| 0);
    }

    /// Configuration gives the link address.
    pub fn set_static(&self, slot: NeighborSlot, mac: MacAddr) {
        if let Some(link) = self.links.get(slot.index()) {
            link.store(STATIC | word_of(mac), Relaxed);
        }
    }

    /// Configuration gives it no longer: to be resolved like the others.
    pub fn clear_static(&self, slot: NeighborSlot) {
        if let Some(link) = self.links.get(slot.index()) {
            let _ = link.fetch_update(Relaxed, Relaxed, |word| (word & STATIC != 0).then_some(0));
        }
    }

    /// What is known of a next hop.
    #[must_use]
    pub fn state(&self, slot: NeighborSlot) -> NeighborState {
        let word = self.links.get(slot.index()).map_or(0, |link| link.load(Relaxed));
        match word & !MAC_MASK {
            STATIC => NeighborState::Static(mac_of(word)),
            STALE => NeighborState::Stale(mac_of(word)),
            RESOLVED => NeighborState::Resolved(mac_of(word)),
            _ => NeighborState::Unresolved,
        }
    }

    /// Whose slot it is.
    #[must_use]
    pub fn key(&self, slot: NeighborSlot) -> Option<(InterfaceIndex, Addr)> {
        if slot.index() >= self.len() {
            return None;
        }
        let key = &self.keys[slot.index()];
        let whole = u128::from(key.high.load(Relaxed)) << 64 | u128::from(key.low.load(Relaxed));
        Some((key.interface.load(Relaxed), Addr::v6(whole.to_be_bytes())))
    }

    /// Next hops that have a slot.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// Whether no next hop has a slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Next hops that can have one.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.keys.len()
    }

    /// All slots given so far, in the order they were given.
    pub fn slots(&self) -> impl Iterator<Item = NeighborSlot> {
        (0..self.count.load(Acquire)).map(NeighborSlot)
    }

    /// The slot, or the place in the index where it would go.
    #[inline]
    fn probe(&self, interface: InterfaceIndex, addr: &Addr) -> Result<NeighborSlot, usize> {
        let (high, low) = words(addr);
        let mask = self.index.len() - 1;
        let mut at = key_hash(addr, interface, 0) as usize & mask;
        loop {
            let Some(slot) = self.index[at].load(Acquire).checked_sub(1) else {
                return Err(at);
            };
            let key = &self.keys[slot as usize];
            if key.low.load(Relaxed) == low
                && key.high.load(Relaxed) == high
                && key.interface.load(Relaxed) == interface
            {
                return Ok(NeighborSlot(slot));
            }
            at = (at + 1) & mask;
        }
    }

    /// Changes what is not static; false if it is.
    fn update(&self, slot: NeighborSlot, change: impl Fn(u64) -> u64) -> bool {
        self.links.get(slot.index()).is_some_and(|link| {
            link.fetch_update(Relaxed, Relaxed, |word| (word & STATIC == 0).then(|| change(word))).is_ok()
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    fn addr(n: u32) -> Addr {
        Addr::v4(n.to_be_bytes())
    }

    fn mac(n: u64) -> MacAddr {
        mac_of(n)
    }

    #[test]
    fn an_address_is_learnt_goes_stale_and_is_forgotten() {
        let table = NeighborTable::with_capacity(4);
        let slot = table.intern(0, addr(1)).unwrap();
        assert_eq!((table.mac(slot), table.state(slot)), (None, NeighborState::Unresolved));
        assert!(table.learn(slot, mac(0x0200_0000_0001)));
        assert_eq!(table.state(slot), NeighborState::Resolved(mac(0x0200_0000_0001)));
        table.mark_stale(slot);
        assert_eq!(table.state(slot), NeighborState::Stale(mac(0x0200_0000_0001)));
        assert_eq!(table.mac(slot), Some(mac(0x0200_0000_0001)));
        table.forget(slot);
        assert_eq!(table.mac(slot), None);
        table.mark_stale(slot);
        assert_eq!(table.state(slot), NeighborState::Unresolved);
    }

    #[test]
    fn a_static_address_outlasts_answers_until_configuration_takes_it_back() {
        let table = NeighborTable::with_capacity(4);
        let slot = table.intern(0, addr(1)).unwrap();
        table.learn(slot, mac(1));
        table.set_static(slot, mac(2));
        assert!(!table.learn(slot, mac(3)));
        table.forget(slot);
        table.mark_stale(slot);
        assert_eq!(table.state(slot), NeighborState::Static(mac(2)));
        table.clear_static(slot);
        assert_eq!(table.state(slot), NeighborState::Unresolved);
        table.learn(slot, mac(4));
        table.clear_static(slot);
        assert_eq!(table.mac(slot), Some(mac(4)));
    }

    #[test]
    fn the_all_zero_link_address_is_told_from_none() {
        let table = NeighborTable::with_capacity(1);
        let slot = table.intern(0, addr(1)).unwrap();
        table.set_static(slot, MacAddr::ZERO);
        assert_eq!(table.mac(slot), Some(MacAddr::ZERO));
    }

    #[test]
    fn a_full_table_refuses_the_next_and_keeps_the_others() {
        let table = NeighborTable::with_capacity(3);
        let slots: Vec<_> = (0..3).map(|n| table.intern(0, addr(n)).unwrap()).collect();
        assert_eq!(table.intern(0, addr(3)), Err(TableFull));
        assert_eq!(table.lookup(0, &addr(3)), None);
        assert_eq!(table.intern(0, addr(1)), Ok(slots[1]));
        assert_eq!(table.slots().collect::<Vec<_>>(), slots);
        assert_eq!((table.len(), table.capacity()), (3, 3));
    }

    #[test]
    fn a_slot_of_another_table_reads_as_unknown() {
        let (small, large) = (NeighborTable::with_capacity(1), NeighborTable::with_capacity(9));
        let slot = (0..5).map(|n| large.intern(0, addr(n)).unwrap()).last().unwrap();
        assert_eq!((small.mac(slot), small.key(slot)), (None, None));
        assert!(!small.learn(slot, mac(1)));
        small.prefetch(slot);
    }

    proptest! {
        #[test]
        fn finds_what_a_hash_map_finds(keys in proptest::collection::vec((0_u8..3, 0_u32..200), 0..200)) {
            let table = NeighborTable::with_capacity(256);
            let mut oracle = HashMap::new();
            for &(interface, n) in &keys {
                let slot = table.intern(interface, addr(n)).unwrap();
                let next = oracle.len();
                prop_assert_eq!(slot.index(), *oracle.entry((interface, n)).or_insert(next));
                prop_assert_eq!(table.key(slot), Some((interface, addr(n))));
            }
            for interface in 0..3 {
                for n in 0..200 {
                    let found = table.lookup(interface, &addr(n)).map(NeighborSlot::index);
                    prop_assert_eq!(found, oracle.get(&(interface, n)).copied());
                }
            }
        }
    }

    #[test]
    fn a_reader_beside_a_writer_sees_whole_keys_and_whole_addresses() {
        // Each link address is the host number three times over: a torn one would not be.
        let link = |n: u32, flip: u64| mac((u64::from(n) << 24 | u64::from(n)) << 4 | flip);
        let (table, done) = (NeighborTable::with_capacity(4_000), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..4_000 {
                    let slot = table.intern(1, addr(n)).unwrap();
                    for flip in 0..8 {
                        table.learn(slot, link(n, flip));
                    }
                    if n % 3 == 0 {
                        table.forget(slot);
                    }
                }
                done.store(true, Release);
            });
            scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Acquire) || seen == 0 {
                    for n in 0..4_000 {
                        let Some(slot) = table.lookup(1, &addr(n)) else { continue };
                        assert_eq!(table.key(slot), Some((1, addr(n))));
                        if let Some(found) = table.mac(slot) {
                            assert!((0..8).any(|flip| found == link(n, flip)), "{found} for host {n}");
                            seen += 1;
                        }
                    }
                }
            });
        });
        for n in 0..4_000 {
            let slot = table.lookup(1, &addr(n)).unwrap();
            assert_eq!(table.mac(slot), (n % 3 != 0).then(|| link(n, 7)));
        }
    }
}
