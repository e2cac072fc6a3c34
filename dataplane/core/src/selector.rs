//! Chooses the backend of a new flow of a service port, with seats or with a Maglev table.
//!
//! The compile of a snapshot builds both, only from the backends that take new flows: backends that drain or are down
//! are local history, and have no influence. Both return the id of the backend, so that no further look-up is needed.
//!
//! Invariant: gateways with the same desired state choose the same backend, whatever their history.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hash::scale;
use crate::ids::BackendId;
use crate::prefetch;
use crate::rendezvous::Rendezvous;

/// See the module. A copy shares everything.
#[derive(Debug, Clone)]
pub enum Selector {
    /// `scheduler: rendezvous`; also where no backend takes new flows.
    Rendezvous(Rendezvous),
    /// `scheduler: maglev`.
    Maglev(Arc<Slots>),
}

/// A Maglev table with the ids of those who own its slots.
#[derive(Debug)]
pub struct Slots {
    /// Positions in `owners`. Services with equal backends share it.
    table: Arc<[u16]>,
    owners: Box<[BackendId]>,
}

impl Default for Selector {
    /// A selector without backends.
    fn default() -> Self {
        Self::Rendezvous(Rendezvous::default())
    }
}

impl Selector {
    /// The backend of a new flow with this selection hash; `None` where no backend takes new flows.
    #[inline]
    #[must_use]
    pub fn owner(&self, hash: u64) -> Option<BackendId> {
        match self {
            Self::Rendezvous(seats) => seats.owner(hash),
            Self::Maglev(slots) => slots.owner(slots.slot_of(hash)),
        }
    }

    /// Asks the cache for what [`Self::owner`] reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        match self {
            Self::Rendezvous(seats) => seats.prefetch(),
            Self::Maglev(slots) => {
                if let Some(place) = slots.table.get(slots.slot_of(hash) as usize) {
                    prefetch::read(place);
                }
            }
        }
    }

    /// Whether no backend takes new flows.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Rendezvous(seats) => seats.is_empty(),
            Self::Maglev(slots) => slots.is_empty(),
        }
    }

    /// Seats or slots of each backend that has any. For people.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<BackendId, u32> {
        let mut shares = BTreeMap::new();
        let mut count = |owner: BackendId| *shares.entry(owner).or_default() += 1;
        match self {
            Self::Rendezvous(seats) => seats.seats().for_each(|(.., owner)| count(owner)),
            Self::Maglev(slots) => {
                slots.table.iter().for_each(|&position| count(slots.owners[usize::from(position)]));
            }
        }
        shares
    }
}

impl Slots {
    /// A table whose positions are those in `owners`.
    pub(crate) fn new(table: Arc<[u16]>, owners: Box<[BackendId]>) -> Self {
        Self { table, owners }
    }

    /// The slot of a flow with this selection hash.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u32 {
        scale(hash, self.len())
    }

    /// The backend that owns a slot.
    #[inline]
    #[must_use]
    pub fn owner(&self, slot: u32) -> Option<BackendId> {
        let position = *self.table.get(slot as usize)?;
        self.owners.get(usize::from(position)).copied()
    }

    /// How many slots there are.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        // At most `limits::MAGLEV_SLOTS_MAX`.
        self.table.len() as u32
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The backends that take new flows, by their position.
    pub(crate) fn owners(&self) -> &[BackendId] {
        &self.owners
    }

    /// The table: positions among the backends that take new flows, by slot.
    #[must_use]
    pub fn table(&self) -> &Arc<[u16]> {
        &self.table
    }
}
