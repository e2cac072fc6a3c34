//! Routes: the interface and next hop for a destination, by longest prefix.
//!
//! Routes are the connected prefixes (those of the interfaces' addresses) and the configured routes; a connected prefix
//! takes precedence over a route of the same length. Nested prefixes are cut into intervals with one next hop each,
//! found by a static B-tree (`ranks`): one node for a handful of routes, three for a thousand (one per node of a
//! cluster), whatever their lengths. Snapshot compilation builds it; it is read for each packet that leaves towards a
//! client.
//!
//! Invariant: `via` of every next hop is on-link at its interface, and has its entry in the neighbour table.

use std::cmp::Reverse;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_structures::ranks::{Number, Ranks};
use tidegate_wire::Addr;

use crate::neighbors::NeighborId;

/// The egress interface of a packet, and the station on that link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Egress interface.
    pub interface: InterfaceIndex,
    /// The router; `None` if the destination itself is on-link.
    pub via: Option<Addr>,
    /// The router's id in the neighbour table; `None` if the destination itself must be looked up.
    pub neighbor: Option<NeighborId>,
}

/// A prefix and its next hop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    to: IpNet,
    pub(crate) hop: NextHop,
}

impl Route {
    pub(crate) fn new(to: &IpNet, hop: NextHop) -> Self {
        Self { to: to.trunc(), hop }
    }

    pub(crate) fn same_prefix(&self, other: &Self) -> bool {
        self.to == other.to
    }
}

/// The routes of one snapshot. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    v4: Intervals<u32, 16>,
    v6: Intervals<u128, 8>,
}

impl Routes {
    /// The table of these routes. If several have the same prefix, the first one counts.
    pub(crate) fn build(routes: &[Route]) -> Self {
        let v4 = routes.iter().filter_map(|route| match route.to {
            IpNet::V4(to) => {
                Some(Span { first: to.network().into(), last: to.broadcast().into(), hop: route.hop })
            }
            IpNet::V6(_) => None,
        });
        let v6 = routes.iter().filter_map(|route| match route.to {
            IpNet::V6(to) => {
                Some(Span { first: to.network().into(), last: to.broadcast().into(), hop: route.hop })
            }
            IpNet::V4(_) => None,
        });
        Self { v4: Intervals::build(v4.collect()), v6: Intervals::build(v6.collect()) }
    }

    /// The next hop of the longest prefix that contains `dst`.
    #[inline]
    #[must_use]
    pub fn find(&self, dst: &Addr) -> Option<NextHop> {
        if dst.is_v4() {
            self.v4.find(u32::from_be_bytes(dst.v4_bytes()))
        } else {
            self.v6.find(u128::from_be_bytes(*dst.bytes()))
        }
    }

    /// The next hop of an IPv4 destination, and the range of addresses around it with the same next hop.
    #[inline]
    pub fn find_v4(&self, dst: u32) -> Option<(NextHop, (u32, u32))> {
        self.v4.find_interval(dst)
    }

    /// [`Self::find_v4`] for IPv6.
    #[inline]
    pub fn find_v6(&self, dst: u128) -> Option<(NextHop, (u128, u128))> {
        self.v6.find_interval(dst)
    }
}

/// A prefix as numbers, both ends included.
#[derive(Clone, Copy)]
struct Span<T> {
    first: T,
    last: T,
    hop: NextHop,
}

/// The address space of a family, cut where the next hop changes. Clones share the memory.
#[derive(Debug, Clone)]
struct Intervals<T, const N: usize> {
    /// The first address of each interval.
    firsts: Ranks<T, N>,
    /// The next hop of each interval.
    hops: Arc<[Option<NextHop>]>,
}

impl<T, const N: usize> Default for Intervals<T, N> {
    fn default() -> Self {
        Self { firsts: Ranks::default(), hops: Arc::default() }
    }
}

impl<T: Number, const N: usize> Intervals<T, N> {
    fn build(mut spans: Vec<Span<T>>) -> Self {
        // A shorter prefix comes before the longer ones within it. The sort is stable, so the first of equal prefixes
        // stays first.
        spans.sort_by_key(|span| (span.first, Reverse(span.last)));
        spans.dedup_by(|later, first| (later.first, later.last) == (first.first, first.last));
        let mut cuts: Vec<(T, Option<NextHop>)> = Vec::new();
        // The prefixes that contain the current position, each within the previous one.
        let mut around: Vec<Span<T>> = Vec::new();
        let mut cut = |first: T, hop: Option<NextHop>| match cuts.last_mut() {
            // A longer prefix starts at the same address as a shorter one.
            Some((begun, before)) if *begun == first => *before = hop,
            Some((_, before)) if *before == hop => {}
            _ => cuts.push((first, hop)),
        };
        for span in spans {
            while let Some(over) = around.pop_if(|over| over.last < span.first) {
                let next = over.last.successor().expect("a prefix follows");
                cut(next, around.last().map(|over| over.hop));
            }
            cut(span.first, Some(span.hop));
            around.push(span);
        }
        while let Some(over) = around.pop() {
            // No interval follows a prefix that reaches the end of the address space.
            let Some(next) = over.last.successor() else { continue };
            cut(next, around.last().map(|over| over.hop));
        }
        let (firsts, hops): (Vec<T>, Vec<Option<NextHop>>) = cuts.into_iter().unzip();
        Self { firsts: Ranks::build(&firsts), hops: hops.into() }
    }

    #[inline]
    fn find(&self, addr: T) -> Option<NextHop> {
        self.hops[self.firsts.last_up_to(addr)?]
    }

    /// The next hop, and both ends of the interval.
    #[inline]
    fn find_interval(&self, addr: T) -> Option<(NextHop, (T, T))> {
        let at = self.firsts.last_up_to(addr)?;
        let first = self.firsts.key(at)?;
        let last = self.firsts.key(at + 1).map_or(T::MAX, T::predecessor);
        Some((self.hops[at]?, (first, last)))
    }
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

    #[test]
    fn a_route_for_each_of_a_thousand_nodes_is_three_nodes_deep_and_found() {
        let nodes = |n: u32| Ipv4Addr::from(0x0af4_0000 | n << 8);
        let mut list = vec![route("0.0.0.0/0", 9), route("10.244.0.0/14", 8), route("192.0.2.0/24", 7)];
        list.extend(
            (0..1000).map(|n| Route::new(&IpNet::new(nodes(n).into(), 24).unwrap(), hop((n % 6) as u8))),
        );
        let routes = Routes::build(&list);
        assert_eq!(routes.v4.firsts.depth(), 3);
        for n in 0..1000 {
            let pod = Ipv4Addr::from(u32::from(nodes(n)) | 77);
            assert_eq!(routes.find(&pod.into()).map(|hop| u32::from(hop.interface)), Some(n % 6));
        }
        assert_eq!(find(&routes, "10.247.255.255"), Some(8), "of no node");
        assert_eq!(find(&routes, "192.0.2.1"), Some(7));
        assert_eq!(find(&routes, "255.255.255.255"), Some(9));
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        // Few distinct high bits, so that prefixes nest and touch.
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
                // Both ends of its interval agree with a search for each.
                match dst {
                    IpAddr::V4(dst) => {
                        let found = routes.find_v4(dst.into());
                        prop_assert_eq!(found.map(|(hop, _)| hop), routes.find(&IpAddr::from(dst).into()));
                        if let Some((hop, (first, last))) = found {
                            prop_assert!((first..=last).contains(&dst.into()));
                            for end in [first, last] {
                                prop_assert_eq!(routes.find(&IpAddr::from(Ipv4Addr::from(end)).into()), Some(hop));
                            }
                        }
                    }
                    IpAddr::V6(dst) => {
                        let found = routes.find_v6(dst.into());
                        prop_assert_eq!(found.map(|(hop, _)| hop), routes.find(&IpAddr::from(dst).into()));
                        if let Some((hop, (first, last))) = found {
                            prop_assert!((first..=last).contains(&dst.into()));
                            for end in [first, last] {
                                // `Routes::find` would treat an IPv4-mapped end (::/80 ends with one) as IPv4. No
                                // packet has such an address.
                                prop_assert_eq!(routes.v6.find(end), Some(hop));
                            }
                        }
                    }
                }
            }
        }
    }
}
