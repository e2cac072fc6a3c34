//! Routes: from a destination to the interface and next hop that lead there, by longest prefix.
//!
//! Connected prefixes (those of the interfaces' addresses) and configured routes; a connected prefix beats a
//! route of the same length. One sorted list a prefix length, longest first, binary search in each: a handful
//! of comparisons for a handful of routes. Built by the compile of a snapshot, read for each packet that
//! leaves towards a client.
//!
//! Invariant: `via` of every next hop is on-link at its interface, and has its slot in the neighbour table.

use std::sync::Arc;

use ipnet::IpNet;

use crate::ids::InterfaceIndex;
use crate::neighbors::NeighborSlot;
use crate::wire::Addr;
use crate::wire::Family;

/// Where a packet leaves, and to whom on that link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Egress interface.
    pub interface: InterfaceIndex,
    /// The router; `None`: the destination itself is on-link.
    pub via: Option<Addr>,
    /// The router's slot in the neighbour table; `None`: look the destination up.
    pub neighbor: Option<NeighborSlot>,
}

/// A prefix and what leads there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) family: Family,
    /// Length within 128 bits: an IPv4 prefix has 96 more.
    len: u8,
    net: u128,
    pub(crate) hop: NextHop,
}

impl Route {
    pub(crate) fn new(to: &IpNet, hop: NextHop) -> Self {
        let family = if to.network().is_ipv4() { Family::V4 } else { Family::V6 };
        let len = to.prefix_len() + if family == Family::V4 { 96 } else { 0 };
        Self { family, len, net: bits(&to.network().into()) & mask(len), hop }
    }

    pub(crate) fn same_prefix(&self, other: &Self) -> bool {
        (self.family, self.len, self.net) == (other.family, other.len, other.net)
    }
}

/// The routes of one snapshot. A copy shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    v4: Arc<[Length]>,
    v6: Arc<[Length]>,
}

/// All prefixes of one length, sorted by network.
#[derive(Debug)]
struct Length {
    mask: u128,
    nets: Box<[u128]>,
    hops: Box<[NextHop]>,
}

impl Routes {
    /// The table of these routes; of several to the same prefix the first one counts.
    pub(crate) fn build(routes: &[Route]) -> Self {
        let lengths = |family| {
            let mut of_family: Vec<&Route> = routes.iter().filter(|route| route.family == family).collect();
            // A stable sort keeps the first of equals first.
            of_family.sort_by_key(|route| (u8::MAX - route.len, route.net));
            of_family.dedup_by(|later, first| later.same_prefix(first));
            of_family
                .chunk_by(|a, b| a.len == b.len)
                .map(|group| Length {
                    mask: mask(group[0].len),
                    nets: group.iter().map(|route| route.net).collect(),
                    hops: group.iter().map(|route| route.hop).collect(),
                })
                .collect()
        };
        Self { v4: lengths(Family::V4), v6: lengths(Family::V6) }
    }

    /// The next hop of the longest prefix that holds `dst`.
    #[inline]
    pub(crate) fn find(&self, dst: &Addr) -> Option<NextHop> {
        let lengths = if dst.is_v4() { &self.v4 } else { &self.v6 };
        let dst = bits(dst);
        lengths.iter().find_map(|length| {
            let at = length.nets.binary_search(&(dst & length.mask)).ok()?;
            Some(length.hops[at])
        })
    }
}

#[inline]
fn bits(addr: &Addr) -> u128 {
    u128::from_be_bytes(*addr.bytes())
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(u32::from(128 - len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn hop(interface: u8) -> NextHop {
        NextHop { interface, via: None, neighbor: None }
    }

    fn route(to: &str, interface: u8) -> Route {
        Route::new(&to.parse().unwrap(), hop(interface))
    }

    fn find(routes: &Routes, dst: &str) -> Option<u8> {
        routes.find(&dst.parse::<IpAddr>().unwrap().into()).map(|hop| hop.interface)
    }

    #[test]
    fn the_longest_prefix_wins_and_families_stay_apart() {
        let routes = Routes::build(&[
            route("::/0", 6),
            route("10.0.0.0/8", 1),
            route("10.1.0.0/16", 2),
            route("10.1.2.3/32", 3),
            route("2001:db8::/32", 4),
        ]);
        assert_eq!(find(&routes, "10.9.9.9"), Some(1));
        assert_eq!(find(&routes, "10.1.9.9"), Some(2));
        assert_eq!(find(&routes, "10.1.2.3"), Some(3));
        assert_eq!(find(&routes, "2001:db8::1"), Some(4));
        assert_eq!(find(&routes, "2001:db9::1"), Some(6));
        assert_eq!(find(&routes, "192.0.2.1"), None, "an IPv6 default route is none for IPv4");
    }

    #[test]
    fn host_bits_of_a_prefix_do_not_count_and_the_first_of_equals_wins() {
        let routes =
            Routes::build(&[route("192.0.2.77/24", 1), route("192.0.2.0/24", 2), route("0.0.0.0/0", 3)]);
        assert_eq!(find(&routes, "192.0.2.1"), Some(1));
        assert_eq!(find(&routes, "198.51.100.1"), Some(3));
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        // Few distinct high bits, so that prefixes nest and meet.
        prop_oneof![
            (0_u32..4, 0_u32..4, 0_u8..=32).prop_map(|(high, low, len)| {
                IpNet::new(Ipv4Addr::from(high << 30 | low).into(), len).unwrap()
            }),
            (0_u128..4, 0_u128..4, 0_u8..=128).prop_map(|(high, low, len)| {
                IpNet::new(Ipv6Addr::from(high << 126 | low).into(), len).unwrap()
            }),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_scan_of_all_prefixes(nets in proptest::collection::vec(any_net(), 0..40), v4 in (0_u32..4, 0_u32..4), v6 in (0_u128..4, 0_u128..4)) {
            let list: Vec<Route> = nets.iter().zip(0..).map(|(net, n)| Route::new(net, hop(n))).collect();
            let routes = Routes::build(&list);
            let dsts: [IpAddr; 2] =
                [Ipv4Addr::from(v4.0 << 30 | v4.1).into(), Ipv6Addr::from(v6.0 << 126 | v6.1).into()];
            for dst in dsts {
                let longest = nets.iter().filter(|net| net.contains(&dst)).map(IpNet::prefix_len).max();
                let expected = nets.iter().position(|net| net.contains(&dst) && Some(net.prefix_len()) == longest);
                prop_assert_eq!(routes.find(&dst.into()).map(|hop| usize::from(hop.interface)), expected);
            }
        }
    }
}
