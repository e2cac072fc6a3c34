//! The parts of a snapshot that the next compile reuses.

use std::sync::Arc;

use tidegate_select::maglev::Tables;

use super::holds::Holds;
use super::indices::Generations;
use super::lineage::Lineage;
use crate::neighbors::NeighborSlot;

/// Not read by workers.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) generations: Generations,
    pub(super) tables: Tables,
    pub(super) static_neighbors: Arc<[NeighborSlot]>,
    /// Keep the slots of next hops while the snapshot can be read.
    pub(super) holds: Holds,
    pub(super) lineage: Lineage,
}
