//! The parts of a snapshot that the next compile reuses.

use std::sync::Arc;

use tidegate_select::maglev::Tables;

use super::indices::Generations;
use super::lineage::Lineage;
use super::neighbor_references::NeighborReferences;
use crate::neighbors::NeighborId;

/// The input of the next compile. Workers don't read it.
#[derive(Debug)]
pub(super) struct ReusableParts {
    pub(super) generations: Generations,
    pub(super) tables: Tables,
    pub(super) static_neighbors: Arc<[NeighborId]>,
    /// Keeps the entries of next hops while the snapshot exists.
    pub(super) neighbor_references: NeighborReferences,
    pub(super) lineage: Lineage,
}
