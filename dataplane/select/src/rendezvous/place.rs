//! The position of a seat.

use tidegate_spec::ids::BackendId;

/// The number of seats in a deck.
pub const DECK_SEATS: u16 = 8192;

/// The first occupied seat in the order of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the deck, from 0.
    pub deck: u16,
    /// Number of the seat in the deck.
    pub seat: u16,
    /// The position of the seat in the flow's order of the deck, from 0.
    pub rank: u16,
    /// The backend that owns the seat.
    pub owner: BackendId,
}
