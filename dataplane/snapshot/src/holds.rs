//! The slots of the neighbour table that a snapshot holds for its backends, routes and fixed neighbours.
//!
//! A snapshot that is compiled from scratch has one hold of all its slots. A revised one shares the holds of the
//! previous snapshot and adds the slots of what changed, so that a change of one endpoint does not walk over all of
//! them. After [`CHAIN_MAX`] revisions it takes one hold of all slots that it names; slots that are no longer named
//! become free when the older snapshots are dropped.
//!
//! Invariant: every slot that the snapshot names is in one of its holds.

use std::sync::Arc;

use crate::neighbors::{Hold, NeighborSlot};

/// The maximum number of holds of one snapshot.
const CHAIN_MAX: usize = 32;

/// The holds of one snapshot.
#[derive(Debug, Clone)]
pub(super) struct Holds(Vec<Arc<Hold>>);

impl Holds {
    pub(super) fn of(hold: Hold) -> Self {
        Self(vec![Arc::new(hold)])
    }

    /// The holds of the previous snapshot and one more.
    pub(super) fn and(&self, hold: Hold) -> Self {
        let mut all = self.0.clone();
        if !hold.is_empty() {
            all.push(Arc::new(hold));
        }
        Self(all)
    }

    pub(super) fn is_long(&self) -> bool {
        self.0.len() > CHAIN_MAX
    }

    /// One hold of these slots, and of no others.
    pub(super) fn only(&self, slots: impl Iterator<Item = NeighborSlot>) -> Self {
        let Some(first) = self.0.first() else { return self.clone() };
        let mut hold = first.table().hold();
        slots.for_each(|slot| hold.keep(slot));
        Self::of(hold)
    }
}
