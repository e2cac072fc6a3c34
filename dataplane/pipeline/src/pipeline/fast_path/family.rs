//! Differences between the address families in the fast path, other than the length of an address.

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::routes::NextHop;
use tidegate_wire::Family as AddressFamily;
use tidegate_wire::usual::addr;

/// A next hop, and the first and last address that is reached through it.
pub(super) type HopOf<N> = (NextHop, (N, N));

/// The family whose addresses have `A` words.
#[inline(always)]
pub(super) const fn family_of<const A: usize>() -> AddressFamily {
    if A == 1 { AddressFamily::V4 } else { AddressFamily::V6 }
}

/// Implements [`Family`] for both address families.
pub(super) struct Families;

/// The family whose addresses have `A` words.
pub(super) trait Family<const A: usize> {
    /// An address as a number, by which routes are ordered.
    type Number: Copy + PartialOrd + Default;

    fn number(words: [u32; A]) -> Self::Number;

    /// The next hop to an address, with the range of addresses around it that share it.
    fn route(snapshot: &Snapshot, to: Self::Number) -> Option<HopOf<Self::Number>>;

    /// Whether an address may be a client of any service. False for link-local addresses, which may be clients of some
    /// services.
    fn is_client_of_any(snapshot: &Snapshot, src: [u32; A]) -> bool;
}

impl Family<1> for Families {
    type Number = u32;

    #[inline(always)]
    fn number([word]: [u32; 1]) -> u32 {
        u32::from_be(word)
    }

    #[inline(always)]
    fn route(snapshot: &Snapshot, to: u32) -> Option<HopOf<u32>> {
        snapshot.routes().find_v4(to)
    }

    #[inline(always)]
    fn is_client_of_any(snapshot: &Snapshot, [word]: [u32; 1]) -> bool {
        snapshot.is_client_of_any(word)
    }
}

impl Family<4> for Families {
    type Number = u128;

    #[inline(always)]
    fn number(words: [u32; 4]) -> u128 {
        u128::from_be_bytes(*addr(words).bytes())
    }

    #[inline(always)]
    fn route(snapshot: &Snapshot, to: u128) -> Option<HopOf<u128>> {
        snapshot.routes().find_v6(to)
    }

    #[inline(always)]
    fn is_client_of_any(snapshot: &Snapshot, src: [u32; 4]) -> bool {
        let src = addr(src);
        snapshot.source_fault(&src).is_none() && !src.is_link_local()
    }
}
