//! Allocates and frees the slots of the neighbour table, which snapshots and the resolver hold.
//!
//! Everything here takes the writers' lock, so it is for control threads and the slow path, not for workers. The
//! memory orderings are described in the table's module.
//!
//! Invariant: a slot is free exactly when no [`Hold`] and no [`NeighborTable::intern`] holds it.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::sync::{MutexGuard, PoisonError};

use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::Addr;

use super::writers::{Holder, Holders, Usage, Writers};
use super::{NeighborSlot, NeighborTable, TableFull, words};

/// The slots that one snapshot added to those of the snapshots that it is derived from. Dropping it releases them.
#[derive(Debug)]
pub struct Hold {
    table: NeighborTable,
    slots: Vec<NeighborSlot>,
    /// The only next hops that it may take; `None` for any.
    granted: Option<HashSet<(InterfaceIndex, Addr)>>,
}

impl Hold {
    /// The table that the slots belong to.
    #[must_use]
    pub fn table(&self) -> &NeighborTable {
        &self.table
    }

    /// The slot of a next hop, held from now on.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn intern(&mut self, interface: InterfaceIndex, addr: Addr) -> Result<NeighborSlot, TableFull> {
        if self.granted.as_ref().is_some_and(|granted| !granted.contains(&(interface, addr))) {
            return Err(TableFull);
        }
        let slot = self.table.take(interface, &addr, Holder::Snapshot)?;
        self.slots.push(slot);
        Ok(slot)
    }

    /// Refuses other next hops than these from now on, until it is called with `None`.
    pub fn grant(&mut self, granted: Option<HashSet<(InterfaceIndex, Addr)>>) {
        self.granted = granted;
    }

    /// Holds a slot that another hold of the same table has.
    ///
    /// # Panics
    /// If the slot has no holder.
    pub fn keep(&mut self, slot: NeighborSlot) {
        let mut writers = self.table.writers();
        let before = writers.holders[slot.index()];
        assert!(before.snapshots > 0, "kept from a snapshot that holds it");
        writers.holders[slot.index()].snapshots += 1;
        drop(writers);
        self.slots.push(slot);
    }

    /// Whether it holds no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut writers = self.table.writers();
        for &slot in &self.slots {
            self.table.give_up(&mut writers, slot, Holder::Snapshot);
        }
    }
}

impl NeighborTable {
    /// An empty hold for a snapshot.
    #[must_use]
    pub fn hold(&self) -> Hold {
        Hold { table: self.clone(), slots: Vec::new(), granted: None }
    }

    /// The slot of a next hop, allocated if it has none. The resolver holds it until [`Self::release`].
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn intern(&self, interface: InterfaceIndex, addr: Addr) -> Result<NeighborSlot, TableFull> {
        self.take(interface, &addr, Holder::Resolver)
    }

    /// Releases the resolver's hold on a next hop. The link address is cleared unless configuration gives it, and the
    /// slot becomes free unless a snapshot holds it.
    pub fn release(&self, interface: InterfaceIndex, addr: &Addr) {
        let mut writers = self.writers();
        if let Some(slot) = self.lookup(interface, addr) {
            self.forget(slot);
            self.give_up(&mut writers, slot, Holder::Resolver);
        }
    }

    /// The usage of the table.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.writers().usage
    }

    /// All slots that have a holder, by number.
    #[must_use]
    pub fn slots(&self) -> Vec<NeighborSlot> {
        let writers = self.writers();
        let held = writers.holders.iter().zip(0..).filter(|(holders, _)| **holders != Holders::default());
        held.map(|(_, slot)| NeighborSlot(slot)).collect()
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(
        &self,
        interface: InterfaceIndex,
        addr: &Addr,
        holder: Holder,
    ) -> Result<NeighborSlot, TableFull> {
        let mut writers = self.writers();
        let hash = self.hash(interface, addr);
        let (slot, place) = match self.probe(hash, interface, addr) {
            Ok((slot, _)) => (slot, None),
            Err(place) if writers.has_room(holder) => {
                let capacity = writers.holders.len();
                let fresh = writers.fresh;
                let slot = if (fresh as usize) < capacity {
                    writers.fresh += 1;
                    fresh
                } else {
                    writers.freed.pop_front().ok_or(TableFull)?
                };
                (slot, Some(place))
            }
            Err(_) => return Err(TableFull),
        };
        let before = writers.holders[slot as usize];
        // A slot of the resolver counts as a slot of snapshots once a snapshot holds it.
        if holder == Holder::Snapshot && before.snapshots == 0 && !writers.has_room(holder) {
            return Err(TableFull);
        }
        let held = &mut writers.holders[slot as usize];
        match holder {
            Holder::Snapshot => held.snapshots += 1,
            Holder::Resolver => held.resolver = true,
        }
        let after = *held;
        writers.account(before, after);
        if let Some(place) = place {
            self.write_key(slot, interface, addr);
            self.index[place].store(slot + 1, Release);
        }
        Ok(NeighborSlot(slot))
    }

    fn give_up(&self, writers: &mut Writers, slot: NeighborSlot, holder: Holder) {
        let before = writers.holders[slot.index()];
        let held = &mut writers.holders[slot.index()];
        match holder {
            Holder::Snapshot => held.snapshots -= 1,
            Holder::Resolver => held.resolver = false,
        }
        let after = *held;
        writers.account(before, after);
        if before != after && after == Holders::default() {
            self.free(slot);
            writers.freed.push_back(slot.0);
        }
    }

    /// Call it while the slot's version is odd and the slot is not in the index.
    fn write_key(&self, slot: u32, interface: InterfaceIndex, addr: &Addr) {
        let key = &self.keys[slot as usize];
        let (high, low) = words(addr);
        // A reader that sees one of the stores below, and fences, also sees the odd version stored before them.
        fence(Release);
        key.high.store(high, Relaxed);
        key.low.store(low, Relaxed);
        key.interface.store(interface, Relaxed);
        key.version.store(key.version.load(Relaxed).wrapping_add(1), Release);
    }

    /// Removes a slot from the index. Its version is odd afterwards.
    fn free(&self, slot: NeighborSlot) {
        let Some((interface, addr)) = self.key(slot) else { return };
        let mask = self.index.len() - 1;
        let distance = |from: usize, to: usize| to.wrapping_sub(from) & mask;
        let mut hole = self.hash(interface, &addr) & mask;
        while self.index[hole].load(Acquire) != slot.0 + 1 {
            hole = (hole + 1) & mask;
        }
        let version = &self.keys[slot.index()].version;
        version.store(version.load(Relaxed).wrapping_add(1), Release);
        self.links[slot.index()].store(0, Release);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.index[at].load(Relaxed);
            let moved = entry.checked_sub(1).and_then(|slot| self.key(NeighborSlot(slot)));
            let Some((interface, addr)) = moved else { break };
            // An entry whose look-up begins behind the gap stays where it is.
            if distance(self.hash(interface, &addr) & mask, at) >= distance(hole, at) {
                self.index[hole].store(entry, Release);
                self.count_removal();
                hole = at;
            }
        }
        self.count_removal();
        self.index[hole].store(0, Release);
    }

    fn count_removal(&self) {
        self.removals.store(self.removals.load(Relaxed).wrapping_add(1), Release);
    }
}
