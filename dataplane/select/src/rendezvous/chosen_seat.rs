//! The seat that a flow chooses, and the size of a seat map.

use tidegate_spec::ids::BackendId;

/// The number of seats in a seat map.
pub const SEATS_PER_MAP: u16 = 8192;

/// The first occupied seat in the order of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenSeat {
    /// Number of the seat map, from 0.
    pub seat_map: u16,
    /// Number of the seat in its map.
    pub seat: u16,
    /// The position of the seat in the flow's order of the map, from 0.
    pub rank: u16,
    /// The backend that owns the seat.
    pub owner: BackendId,
}
