//! What a table is made from, and what its slots hold.

use crate::wire::Addr;

/// The slot has no owner.
pub const NO_BACKEND: u16 = u16::MAX;

/// A backend as its table sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The identity, together with the number of equal addresses before it.
    pub address: Addr,
    /// Share of the slots relative to the others; 0 owns none, but has its position.
    pub weight: u16,
}
