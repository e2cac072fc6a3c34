//! The input of a table, and the value of a slot without an owner.

use tidegate_wire::Addr;

/// The value of a slot without an owner.
pub(super) const NO_BACKEND: u16 = u16::MAX;

/// A backend as the input of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The address. The identity is the address and the number of equal addresses before it.
    pub address: Addr,
    /// The share of the slots relative to the other members. A member with 0 owns no slot, but keeps its position.
    pub weight: u16,
}
