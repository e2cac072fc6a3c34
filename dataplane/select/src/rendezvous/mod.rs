//! Seat rendezvous: chooses the backend of a new flow from the set of backends and the flow's hash alone.
//!
//! A seat map has 8,192 numbered seats. A backend of weight `w` occupies `w` of them, which follow from its identity
//! ([`seats`]). A flow's hash orders the seats ([`rank`]), and the flow goes to the backend on the first occupied seat
//! in that order. If there are few seats, all are ranked ([`scan`]); if there are many, the order is followed until a
//! seat is occupied ([`walk`]). Both give the same result. If one seat map is not enough, there are more
//! ([`seat_maps`]). `docs/selection.md` has the definition for a second implementation. Snapshot compilation builds the
//! maps; workers look up seats in them.
//!
//! Invariant: the result is a function of the set of (identity, weight) and the hash. It doesn't depend on history or
//! order, so every gateway gives the same result.

mod chosen_seat;
mod exponential;
mod history;
mod member;
mod rank;
mod scan;
mod seat_maps;
mod seats;
#[cfg(test)]
mod tests;
mod walk;

pub use chosen_seat::{ChosenSeat, SEATS_PER_MAP};
pub use history::WeightHistory;
pub use member::{Identity, Member};

use std::sync::Arc;

use rank::Order;
use scan::{LANES, Scan};
use seat_maps::SeatMaps;
use tidegate_spec::ids::BackendId;
use tidegate_structures::prefetch;
use walk::SeatMap;

/// Version of the definition: the hash of identities, the seat map, the tries, the ranks and the table of exponentials.
/// Gateways of different versions disagree, so a change of any of these needs a new number and a way to upgrade.
pub const VERSION: u32 = 1;

/// Services with at most this many seats rank all of them; with more, the walk is faster.
const SCAN_SEATS_MAX: usize = 8 * LANES;

/// The seats of one service port. A copy shares them.
#[derive(Debug, Clone, Default)]
pub struct Rendezvous(Kind);

/// The number of seats determines the variant: chunks of [`LANES`] seats to scan, one seat map to walk, or several.
#[derive(Debug, Clone, Default)]
enum Kind {
    #[default]
    Empty,
    Scan1(Arc<Scan<1>>),
    Scan2(Arc<Scan<2>>),
    Scan3(Arc<Scan<3>>),
    Scan4(Arc<Scan<4>>),
    Scan6(Arc<Scan<6>>),
    Scan8(Arc<Scan<8>>),
    Walk(Arc<SeatMap>),
    SeatMaps(Arc<SeatMaps>),
}

/// The result of a build.
#[derive(Debug)]
pub struct Built {
    /// The seats.
    pub rendezvous: Rendezvous,
    /// The divisor of the weights. It is above 1 if their sum is above
    /// [`RENDEZVOUS_SEATS_MAX`](tidegate_spec::limits::RENDEZVOUS_SEATS_MAX).
    pub divisor: u32,
}

impl Rendezvous {
    /// Assigns seats to the members, which may be in any order.
    ///
    /// ```
    /// use tidegate_spec::ids::BackendId;
    /// use tidegate_select::rendezvous::{Identity, Member, Rendezvous};
    /// use tidegate_wire::Addr;
    /// let member = |n| Member {
    ///     identity: Identity::of_port(Addr::v4([10, 0, 0, n]), 80, 6),
    ///     weight: 1,
    ///     owner: BackendId::new(n.into(), 0),
    /// };
    /// let built = Rendezvous::build(&[member(1), member(2)]).rendezvous;
    /// assert_eq!(built.owner(7), Rendezvous::build(&[member(2), member(1)]).rendezvous.owner(7));
    /// assert_eq!(Rendezvous::default().owner(7), None);
    /// ```
    #[must_use]
    pub fn build(members: &[Member]) -> Built {
        let divisor = seats::divisor(members.iter().map(|member| member.weight));
        let seat_maps = seats::assign(members, divisor);
        let kind = match &seat_maps[..] {
            [] => Kind::Empty,
            [seat_map] => match seat_map.len().div_ceil(LANES) {
                1 => Kind::Scan1(Arc::new(Scan::new(seat_map))),
                2 => Kind::Scan2(Arc::new(Scan::new(seat_map))),
                3 => Kind::Scan3(Arc::new(Scan::new(seat_map))),
                4 => Kind::Scan4(Arc::new(Scan::new(seat_map))),
                5..=6 => Kind::Scan6(Arc::new(Scan::new(seat_map))),
                chunks if chunks * LANES <= SCAN_SEATS_MAX => Kind::Scan8(Arc::new(Scan::new(seat_map))),
                _ => Kind::Walk(Arc::new(SeatMap::new(seat_map))),
            },
            seat_maps => Kind::SeatMaps(Arc::new(SeatMaps::new(seat_maps))),
        };
        Built { rendezvous: Self(kind), divisor }
    }

    /// The backend of a flow with this selection hash; `None` if there are no seats.
    #[inline]
    #[must_use]
    pub fn owner(&self, hash: u64) -> Option<BackendId> {
        // Built where it is used, so that it stays in registers.
        let order = || Order::new(hash);
        match &self.0 {
            Kind::Empty => None,
            Kind::Scan1(scan) => Some(scan.owner(&order())),
            Kind::Scan2(scan) => Some(scan.owner(&order())),
            Kind::Scan3(scan) => Some(scan.owner(&order())),
            Kind::Scan4(scan) => Some(scan.owner(&order())),
            Kind::Scan6(scan) => Some(scan.owner(&order())),
            Kind::Scan8(scan) => Some(scan.owner(&order())),
            Kind::Walk(seat_map) => seat_map.first(&order()).map(|(_, seat)| seat_map.owner(seat)),
            Kind::SeatMaps(seat_maps) => seat_maps.first(hash).map(|chosen_seat| chosen_seat.owner),
        }
    }

    /// The backend of a flow among those that are `wanted`; `None` if no seat belongs to one of them. Slower than
    /// [`Self::owner`], and much slower if there are many seats.
    #[must_use]
    pub fn owner_where(&self, hash: u64, wanted: impl Fn(BackendId) -> bool) -> Option<BackendId> {
        let order = Order::new(hash);
        match &self.0 {
            Kind::Empty => None,
            Kind::Scan1(scan) => scan.owner_where(&order, wanted),
            Kind::Scan2(scan) => scan.owner_where(&order, wanted),
            Kind::Scan3(scan) => scan.owner_where(&order, wanted),
            Kind::Scan4(scan) => scan.owner_where(&order, wanted),
            Kind::Scan6(scan) => scan.owner_where(&order, wanted),
            Kind::Scan8(scan) => scan.owner_where(&order, wanted),
            Kind::Walk(seat_map) => seat_map.first_where(&order, wanted).map(|(_, owner)| owner),
            Kind::SeatMaps(seat_maps) => seat_maps::owner_where(seat_maps, hash, wanted),
        }
    }

    /// Prefetches the data that [`Self::owner`] reads first.
    #[inline]
    pub fn prefetch(&self) {
        match &self.0 {
            Kind::Empty => {}
            Kind::Scan1(scan) => scan.prefetch(),
            Kind::Scan2(scan) => scan.prefetch(),
            Kind::Scan3(scan) => scan.prefetch(),
            Kind::Scan4(scan) => scan.prefetch(),
            Kind::Scan6(scan) => scan.prefetch(),
            Kind::Scan8(scan) => scan.prefetch(),
            Kind::Walk(seat_map) => prefetch::read(&**seat_map),
            Kind::SeatMaps(seat_maps) => prefetch::read(&**seat_maps),
        }
    }

    /// The seat of a flow: the result of [`Self::owner`] with all details, for display.
    #[must_use]
    pub fn chosen_seat(&self, hash: u64) -> Option<ChosenSeat> {
        let order = Order::new(hash);
        if let Kind::SeatMaps(seat_maps) = &self.0 {
            return seat_maps.first(hash);
        }
        let chosen_seat = |(seat, owner)| ChosenSeat { seat_map: 0, seat, rank: order.rank(seat), owner };
        self.seats()
            .map(|(_, seat, owner)| chosen_seat((seat, owner)))
            .min_by_key(|chosen_seat| chosen_seat.rank)
    }

    /// All occupied seats: seat map, seat, owner. For display.
    pub fn seats(&self) -> impl Iterator<Item = (u16, u16, BackendId)> + '_ {
        let scanned: Vec<(u16, BackendId)> = match &self.0 {
            Kind::Scan1(scan) => scan.seats(),
            Kind::Scan2(scan) => scan.seats(),
            Kind::Scan3(scan) => scan.seats(),
            Kind::Scan4(scan) => scan.seats(),
            Kind::Scan6(scan) => scan.seats(),
            Kind::Scan8(scan) => scan.seats(),
            Kind::Empty | Kind::Walk(_) | Kind::SeatMaps(_) => Vec::new(),
        };
        let walked: &[SeatMap] = match &self.0 {
            Kind::Walk(seat_map) => std::slice::from_ref(&**seat_map),
            Kind::SeatMaps(seat_maps) => seat_maps.all(),
            _ => &[],
        };
        let walked =
            (0_u16..).zip(walked).flat_map(|(n, seat_map)| seat_map.seats().map(move |(s, o)| (n, s, o)));
        scanned.into_iter().map(|(seat, owner)| (0, seat, owner)).chain(walked)
    }

    /// Whether no seat is occupied.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Kind::Empty)
    }

    /// The number of seat maps in use.
    #[must_use]
    pub fn seat_maps(&self) -> usize {
        match &self.0 {
            Kind::Empty => 0,
            Kind::SeatMaps(seat_maps) => seat_maps.all().len(),
            _ => 1,
        }
    }

    /// The number of bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let scan = |chunks: usize| chunks * size_of::<Scan<1>>() + 16;
        match &self.0 {
            Kind::Empty => 0,
            Kind::Scan1(_) => scan(1),
            Kind::Scan2(_) => scan(2),
            Kind::Scan3(_) => scan(3),
            Kind::Scan4(_) => scan(4),
            Kind::Scan6(_) => scan(6),
            Kind::Scan8(_) => scan(8),
            Kind::Walk(seat_map) => seat_map.bytes() + 16,
            Kind::SeatMaps(seat_maps) => seat_maps.all().iter().map(SeatMap::bytes).sum::<usize>() + 32,
        }
    }
}
