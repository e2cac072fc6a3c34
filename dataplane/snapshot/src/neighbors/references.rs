//! Allocates and frees the entries of the neighbour table by counting the references of snapshots and the resolver.
//!
//! All functions take the writers' lock, so they are for control threads and the slow path, not for workers. The
//! table's module describes the memory orderings.
//!
//! Invariant: an entry is free exactly when no [`References`] and no [`NeighborTable::intern`] refers to it.

use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::sync::{MutexGuard, PoisonError};

use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::Addr;

use super::writers::{RefCounts, RefKind, Usage, Writers};
use super::{NeighborId, NeighborTable, TableFull, words};

/// The references that one snapshot adds to those of its predecessors. Dropping this value releases them.
#[derive(Debug)]
pub struct References {
    table: NeighborTable,
    ids: Vec<NeighborId>,
    /// The only next hops that it may refer to; `None` for any.
    granted: Option<HashSet<(InterfaceIndex, Addr)>>,
}

impl References {
    /// The table of the entries.
    #[must_use]
    pub fn table(&self) -> &NeighborTable {
        &self.table
    }

    /// Adds a reference to the entry of a next hop, which is allocated if there is none.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn intern(&mut self, interface: InterfaceIndex, addr: Addr) -> Result<NeighborId, TableFull> {
        if self.granted.as_ref().is_some_and(|granted| !granted.contains(&(interface, addr))) {
            return Err(TableFull);
        }
        let id = self.table.acquire(interface, &addr, RefKind::Snapshot)?;
        self.ids.push(id);
        Ok(id)
    }

    /// Restricts further references to these next hops; `None` lifts the restriction.
    pub fn grant(&mut self, granted: Option<HashSet<(InterfaceIndex, Addr)>>) {
        self.granted = granted;
    }

    /// Adds a reference to an entry that another snapshot of the table refers to.
    ///
    /// # Panics
    /// If no snapshot refers to the entry.
    pub fn share(&mut self, id: NeighborId) {
        let mut writers = self.table.writers();
        let before = writers.refs[id.index()];
        assert!(before.snapshots > 0, "shared with a snapshot that refers to it");
        writers.refs[id.index()].snapshots += 1;
        drop(writers);
        self.ids.push(id);
    }

    /// Whether there are no references.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

impl Drop for References {
    fn drop(&mut self) {
        let mut writers = self.table.writers();
        for &id in &self.ids {
            self.table.release_reference(&mut writers, id, RefKind::Snapshot);
        }
    }
}

impl NeighborTable {
    /// An empty set of references for a snapshot.
    #[must_use]
    pub fn references(&self) -> References {
        References { table: self.clone(), ids: Vec::new(), granted: None }
    }

    /// Adds the resolver's reference to the entry of a next hop, which is allocated if there is none. It lasts until
    /// [`Self::release`].
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn intern(&self, interface: InterfaceIndex, addr: Addr) -> Result<NeighborId, TableFull> {
        self.acquire(interface, &addr, RefKind::Resolver)
    }

    /// Releases the resolver's reference to a next hop. The link address is cleared unless configuration gives it, and
    /// the entry becomes free unless a snapshot refers to it.
    pub fn release(&self, interface: InterfaceIndex, addr: &Addr) {
        let mut writers = self.writers();
        if let Some(id) = self.lookup(interface, addr) {
            self.forget(id);
            self.release_reference(&mut writers, id, RefKind::Resolver);
        }
    }

    /// The usage of the table.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.writers().usage
    }

    /// All entries that are in use, by number.
    #[must_use]
    pub fn ids(&self) -> Vec<NeighborId> {
        let writers = self.writers();
        let referenced = writers.refs.iter().zip(0..).filter(|(refs, _)| **refs != RefCounts::default());
        referenced.map(|(_, id)| NeighborId(id)).collect()
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(
        &self,
        interface: InterfaceIndex,
        addr: &Addr,
        kind: RefKind,
    ) -> Result<NeighborId, TableFull> {
        let mut writers = self.writers();
        let hash = self.hash(interface, addr);
        let (id, at) = match self.probe(hash, interface, addr) {
            Ok((id, _)) => (id, None),
            Err(at) if writers.has_capacity(kind) => {
                let capacity = writers.refs.len();
                let fresh = writers.fresh;
                let id = if (fresh as usize) < capacity {
                    writers.fresh += 1;
                    fresh
                } else {
                    writers.freed.pop_front().ok_or(TableFull)?
                };
                (id, Some(at))
            }
            Err(_) => return Err(TableFull),
        };
        let before = writers.refs[id as usize];
        // An entry of the resolver counts towards the snapshots' capacity once a snapshot refers to it.
        if kind == RefKind::Snapshot && before.snapshots == 0 && !writers.has_capacity(kind) {
            return Err(TableFull);
        }
        let refs = &mut writers.refs[id as usize];
        match kind {
            RefKind::Snapshot => refs.snapshots += 1,
            RefKind::Resolver => refs.resolver = true,
        }
        let after = *refs;
        writers.account(before, after);
        if let Some(at) = at {
            self.write_key(id, interface, addr);
            self.index[at].store(id + 1, Release);
        }
        Ok(NeighborId(id))
    }

    fn release_reference(&self, writers: &mut Writers, id: NeighborId, kind: RefKind) {
        let before = writers.refs[id.index()];
        let refs = &mut writers.refs[id.index()];
        match kind {
            RefKind::Snapshot => refs.snapshots -= 1,
            RefKind::Resolver => refs.resolver = false,
        }
        let after = *refs;
        writers.account(before, after);
        if before != after && after == RefCounts::default() {
            self.free(id);
            writers.freed.push_back(id.0);
        }
    }

    /// Call it while the entry's version is odd and its id is not in the index.
    fn write_key(&self, id: u32, interface: InterfaceIndex, addr: &Addr) {
        let key = &self.keys[id as usize];
        let (high, low) = words(addr);
        // A reader that sees one of the stores below also sees, after its fence, the odd version stored before them.
        fence(Release);
        key.high.store(high, Relaxed);
        key.low.store(low, Relaxed);
        key.interface.store(interface, Relaxed);
        key.version.store(key.version.load(Relaxed).wrapping_add(1), Release);
    }

    /// Removes an id from the index. The version of its entry is odd afterwards.
    fn free(&self, id: NeighborId) {
        let Some((interface, addr)) = self.key(id) else { return };
        let mask = self.index.len() - 1;
        let distance = |from: usize, to: usize| to.wrapping_sub(from) & mask;
        let mut hole = self.hash(interface, &addr) & mask;
        while self.index[hole].load(Acquire) != id.0 + 1 {
            hole = (hole + 1) & mask;
        }
        let version = &self.keys[id.index()].version;
        version.store(version.load(Relaxed).wrapping_add(1), Release);
        self.links[id.index()].store(0, Release);
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let element = self.index[at].load(Relaxed);
            let moved = element.checked_sub(1).and_then(|id| self.key(NeighborId(id)));
            let Some((interface, addr)) = moved else { break };
            // An element whose probe starts behind the gap stays where it is.
            if distance(self.hash(interface, &addr) & mask, at) >= distance(hole, at) {
                self.index[hole].store(element, Release);
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
