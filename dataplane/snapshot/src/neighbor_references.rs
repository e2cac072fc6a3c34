//! A snapshot's references to the neighbour table: to its backends, routers and fixed neighbours.
//!
//! A snapshot that is compiled from scratch has one set of references. A revised one shares the sets of the previous
//! snapshot and adds a set for the changes, so that a change of one endpoint doesn't walk over all of them. After
//! [`CHAIN_MAX`] revisions it gets one set for all neighbours that it names; other entries become free when the older
//! snapshots are dropped.
//!
//! Invariant: every neighbour that the snapshot names is in one of its sets.

use std::sync::Arc;

use crate::neighbors::{NeighborId, References};

/// The maximum number of sets of one snapshot.
const CHAIN_MAX: usize = 32;

/// The references of one snapshot.
#[derive(Debug, Clone)]
pub(super) struct NeighborReferences(Vec<Arc<References>>);

impl NeighborReferences {
    pub(super) fn of(references: References) -> Self {
        Self(vec![Arc::new(references)])
    }

    /// The sets of this snapshot and one more.
    pub(super) fn and(&self, references: References) -> Self {
        let mut all = self.0.clone();
        if !references.is_empty() {
            all.push(Arc::new(references));
        }
        Self(all)
    }

    pub(super) fn is_long(&self) -> bool {
        self.0.len() > CHAIN_MAX
    }

    /// One set of references to these neighbours, and to no others.
    pub(super) fn only(&self, ids: impl Iterator<Item = NeighborId>) -> Self {
        let Some(first) = self.0.first() else { return self.clone() };
        let mut references = first.table().references();
        ids.for_each(|id| references.share(id));
        Self::of(references)
    }
}
