//! `SourceRanges`: the clients that a service admits, a set of prefixes that is checked once for each new flow.
//!
//! Packets only need to know whether any prefix contains the client. So the prefixes are merged into disjoint
//! intervals, whose ends form a static B-tree (`ranks`): a client is inside if the number of ends up to its address is
//! odd. With 10,000 IPv4 prefixes a look-up reads four cache lines, the first of which stays in the cache; 16 ends take
//! one line. Snapshot compilation builds one tree for all services with equal prefixes, and keeps it from snapshot to
//! snapshot. [`SourceRanges::longest`] returns the prefix, for display.
//!
//! Invariant: immutable, and `admits` returns the result of a scan of all prefixes (a property test).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_structures::ranks::Ranks;
use tidegate_wire::Addr;

/// The admitted clients of a service.
///
/// ```
/// use tidegate_snapshot::source_ranges::SourceRanges;
/// use tidegate_wire::Addr;
///
/// let ranges = SourceRanges::new(&["198.51.100.0/24".parse()?, "198.51.100.7/32".parse()?]);
/// assert!(ranges.admits(&Addr::v4([198, 51, 100, 9])));
/// assert!(!ranges.admits(&Addr::v4([203, 0, 113, 9])));
/// assert_eq!(ranges.longest(&Addr::v4([198, 51, 100, 7])), Some("198.51.100.7/32".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SourceRanges {
    v4: Ranks<u32, 16>,
    v6: Ranks<u128, 8>,
    nets: Arc<[IpNet]>,
}

impl SourceRanges {
    /// The set of these prefixes, of either family and in any order. Host bits are ignored. If there is no prefix of a
    /// family, no client of that family is admitted.
    #[must_use]
    pub fn new(nets: &[IpNet]) -> Self {
        Self::of(normalised(nets))
    }

    fn of(nets: Arc<[IpNet]>) -> Self {
        let v4 = nets.iter().filter_map(|net| match net {
            IpNet::V4(net) => Some((u32::from(net.network()), u32::from(net.broadcast()).checked_add(1))),
            IpNet::V6(_) => None,
        });
        let v6 = nets.iter().filter_map(|net| match net {
            IpNet::V6(net) => Some((u128::from(net.network()), u128::from(net.broadcast()).checked_add(1))),
            IpNet::V4(_) => None,
        });
        Self { v4: Ranks::build(&ends(v4.collect())), v6: Ranks::build(&ends(v6.collect())), nets }
    }

    /// Whether this client is admitted.
    #[inline]
    #[must_use]
    pub fn admits(&self, client: &Addr) -> bool {
        if client.is_v4() {
            is_inside(self.v4.last_up_to(u32::from_be_bytes(client.v4_bytes())))
        } else {
            is_inside(self.v6.last_up_to(u128::from_be_bytes(*client.bytes())))
        }
    }

    /// The longest prefix that contains this client. Reads all prefixes: for display.
    #[must_use]
    pub fn longest(&self, client: &Addr) -> Option<IpNet> {
        let client: IpAddr = client.ip();
        self.nets.iter().filter(|net| net.contains(&client)).max_by_key(|net| net.prefix_len()).copied()
    }

    /// The prefixes, sorted and without duplicates.
    #[must_use]
    pub fn nets(&self) -> &[IpNet] {
        &self.nets
    }
}

impl PartialEq for SourceRanges {
    fn eq(&self, other: &Self) -> bool {
        self.nets == other.nets
    }
}

/// The prefixes, sorted, without duplicates and without host bits.
fn normalised(nets: &[IpNet]) -> Arc<[IpNet]> {
    let mut nets: Vec<IpNet> = nets.iter().map(IpNet::trunc).collect();
    nets.sort_unstable();
    nets.dedup();
    nets.into()
}

/// The sets of one snapshot, each built once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sets {
    index_by_nets: HashMap<Arc<[IpNet]>, u32>,
    sets: Vec<Arc<SourceRanges>>,
}

impl Sets {
    /// The position of the set of these prefixes: an existing set, one of `previous`, or a new one.
    pub(crate) fn intern(&mut self, nets: &[IpNet], previous: Option<&Self>) -> u32 {
        let nets = normalised(nets);
        if let Some(&at) = self.index_by_nets.get(&nets) {
            return at;
        }
        let kept = previous.and_then(|sets| Some(Arc::clone(sets.get(*sets.index_by_nets.get(&nets)?))));
        let set = kept.unwrap_or_else(|| Arc::new(SourceRanges::of(Arc::clone(&nets))));
        let at = u32::try_from(self.sets.len()).expect("no more sets than services");
        self.sets.push(set);
        self.index_by_nets.insert(nets, at);
        at
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> &Arc<SourceRanges> {
        &self.sets[at as usize]
    }
}

/// The ends of disjoint intervals, in the order start, end, start, ...: an end is the first value outside. The last
/// interval has no end if it reaches the largest value.
fn ends<T: Ord + Copy>(mut intervals: Vec<(T, Option<T>)>) -> Vec<T> {
    intervals.sort_unstable_by_key(|&(start, _)| start);
    let mut ends: Vec<T> = Vec::with_capacity(intervals.len() * 2);
    for (start, end) in intervals {
        match (ends.len() % 2, ends.last().copied()) {
            // The previous interval has no end.
            (1, _) => break,
            // The intervals touch or overlap, so they are merged.
            (_, Some(before)) if start <= before => {
                if end.is_none_or(|end| end > before) {
                    ends.pop();
                    ends.extend(end);
                }
            }
            _ => {
                ends.push(start);
                ends.extend(end);
            }
        }
    }
    ends
}

/// Whether the last end up to a value is the start of an interval.
#[inline]
fn is_inside(end: Option<usize>) -> bool {
    end.is_some_and(|at| at.is_multiple_of(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn set(nets: &[&str]) -> SourceRanges {
        SourceRanges::new(&nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>())
    }

    fn admits(set: &SourceRanges, client: &str) -> bool {
        set.admits(&client.parse::<IpAddr>().unwrap().into())
    }

    #[test]
    fn prefixes_admit_only_their_own_addresses_and_family() {
        let set = set(&["198.51.100.0/25", "198.51.100.128/25", "10.0.0.7/32"]);
        for (client, inside) in [
            ("198.51.99.255", false),
            ("198.51.100.0", true),
            ("198.51.100.127", true),
            ("198.51.100.128", true),
            ("198.51.100.255", true),
            ("198.51.101.0", false),
            ("10.0.0.6", false),
            ("10.0.0.7", true),
            ("10.0.0.8", false),
            ("2001:db8::1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(admits(&set, client), inside, "{client}");
        }
    }

    #[test]
    fn a_prefix_of_length_zero_admits_everyone_of_its_family() {
        let v4 = set(&["0.0.0.0/0", "10.0.0.0/8"]);
        assert!(admits(&v4, "0.0.0.0") && admits(&v4, "255.255.255.255") && !admits(&v4, "::"));
        let v6 = set(&["::/0"]);
        assert!(admits(&v6, "::") && admits(&v6, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert!(!admits(&v6, "10.0.0.1"));
        assert!(!admits(&set(&[]), "10.0.0.1"), "an empty set admits nobody");
    }

    #[test]
    fn ten_thousand_prefixes_are_four_nodes_deep() {
        let nets: Vec<IpNet> = (0..10_000_u32)
            .map(|n| IpNet::new(Ipv4Addr::from(0x0a00_0000 | n << 9).into(), 24).unwrap())
            .collect();
        let set = SourceRanges::new(&nets);
        assert_eq!(set.v4.depth(), 4);
        for n in 0..10_000_u32 {
            assert!(set.admits(&Addr::v4((0x0a00_00ff | n << 9).to_be_bytes())));
            assert!(!set.admits(&Addr::v4((0x0a00_0100 | n << 9).to_be_bytes())));
        }
    }

    #[test]
    fn equal_prefixes_share_one_set_within_and_between_snapshots() {
        let nets = |text: &[&str]| text.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
        let mut first = Sets::default();
        let a = first.intern(&nets(&["10.0.0.0/8", "192.0.2.0/24"]), None);
        let b = first.intern(&nets(&["192.0.2.9/24", "10.0.0.0/8", "10.0.0.0/8"]), None);
        assert_eq!((a, b, first.sets.len()), (0, 0, 1));
        let mut second = Sets::default();
        second.intern(&nets(&["10.0.0.0/16"]), Some(&first));
        let kept = second.intern(&nets(&["10.0.0.0/8", "192.0.2.0/24"]), Some(&first));
        assert!(Arc::ptr_eq(second.get(kept), first.get(a)));
    }

    /// Nested and adjacent prefixes, prefixes at both ends of the address space, and none at all.
    fn any_nets() -> impl Strategy<Value = Vec<IpNet>> {
        let v4 = (prop_oneof![0_u32..64, u32::MAX - 64..=u32::MAX, any::<u32>()], 0_u8..=32)
            .prop_map(|(net, len)| IpNet::new(Ipv4Addr::from(net).into(), len).unwrap());
        let v6 = (prop_oneof![0_u128..64, u128::MAX - 64..=u128::MAX, any::<u128>()], 0_u8..=128)
            .prop_map(|(net, len)| IpNet::new(Ipv6Addr::from(net).into(), len).unwrap());
        // Short prefixes are rare, because they would cover all others.
        let long = prop_oneof![9 => 24_u8..=32, 1 => 0_u8..=32];
        let v4 = (v4, long).prop_map(|(net, len)| IpNet::new(net.addr(), len).unwrap());
        let long = prop_oneof![9 => 120_u8..=128, 1 => 0_u8..=128];
        let v6 = (v6, long).prop_map(|(net, len)| IpNet::new(net.addr(), len).unwrap());
        proptest::collection::vec(prop_oneof![v4, v6], 0..300)
    }

    proptest! {
        #[test]
        fn admits_whom_a_scan_of_all_prefixes_admits(nets in any_nets(), v4 in proptest::collection::vec(any::<u32>(), 20), v6 in proptest::collection::vec(any::<u128>(), 20)) {
            let set = SourceRanges::new(&nets);
            // Test the addresses around every end of every prefix, and random ones.
            let ends = nets.iter().flat_map(|net| match net {
                IpNet::V4(net) => {
                    let (a, b) = (u32::from(net.network()), u32::from(net.broadcast()));
                    [a, a.wrapping_sub(1), b, b.wrapping_add(1)].map(|n| IpAddr::from(Ipv4Addr::from(n)))
                }
                IpNet::V6(net) => {
                    let (a, b) = (u128::from(net.network()), u128::from(net.broadcast()));
                    [a, a.wrapping_sub(1), b, b.wrapping_add(1)].map(|n| IpAddr::from(Ipv6Addr::from(n)))
                }
            });
            let v4 = v4.iter().map(|&n| IpAddr::from(Ipv4Addr::from(n)));
            let v6 = v6.iter().map(|&n| IpAddr::from(Ipv6Addr::from(n)));
            for client in ends.chain(v4).chain(v6) {
                // An IPv6 packet never has an IPv4-mapped address.
                if matches!(client, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
                    continue;
                }
                let expected = nets.iter().any(|net| net.contains(&client));
                prop_assert_eq!(set.admits(&client.into()), expected, "{}", client);
                let longest = nets.iter().filter(|net| net.contains(&client)).map(IpNet::prefix_len).max();
                prop_assert_eq!(set.longest(&client.into()).map(|net| net.prefix_len()), longest);
            }
        }
    }
}
