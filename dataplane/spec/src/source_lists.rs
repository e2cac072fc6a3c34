//! The sources that the whole gateway refuses or always admits: `protection.deny` and `protection.allow`.
//!
//! The longest prefix that contains a source decides; of two equal prefixes, the one that admits. So the prefixes are
//! converted to disjoint intervals of addresses, each with the list and the length of its longest prefix. The starts of
//! the intervals form a static B-tree (`ranks`). A million IPv4 prefixes that don't touch have two million starts, six
//! levels and 13 MB; the upper four levels, 35 kB, stay in the cache. The tree is built when the configuration is read,
//! not by workers, and snapshots share it.
//!
//! Only packets that begin a flow or belong to none are looked up. When the lists change, known flows of sources that
//! are no longer admitted end, as with source ranges.
//!
//! Invariant: immutable, and `find` returns the result of a scan of all prefixes (a property test).

use std::hash::Hasher;
use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_structures::hash::FoldHasher;
use tidegate_structures::ranks::{Number, Ranks};
use tidegate_wire::Addr;

/// The list of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceList {
    /// `protection.deny`.
    Deny,
    /// `protection.allow`.
    Allow,
}

/// The longest prefix of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its list.
    pub list: SourceList,
    /// The prefix.
    pub prefix: IpNet,
}

/// Both lists.
///
/// ```
/// use tidegate_spec::source_lists::{SourceList, SourceLists};
/// use tidegate_wire::Addr;
///
/// let lists = SourceLists::new(&["198.51.100.0/24".parse()?], &["198.51.100.7/32".parse()?]);
/// let list = |last| lists.find(&Addr::v4([198, 51, 100, last])).map(|found| found.list);
/// assert_eq!((list(7), list(8)), (Some(SourceList::Allow), Some(SourceList::Deny)));
/// assert_eq!(lists.find(&Addr::v4([203, 0, 113, 7])), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct SourceLists {
    v4: Intervals<u32, 16>,
    v6: Intervals<u128, 8>,
    counts: [usize; 2],
    /// A hash of the content, for display.
    digest: u64,
}

impl SourceLists {
    /// The lists of these prefixes, of either family and in any order. Host bits are ignored.
    #[must_use]
    pub fn new(deny: &[IpNet], allow: &[IpNet]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (nets, list) in [(deny, SourceList::Deny), (allow, SourceList::Allow)] {
            for net in nets {
                match net {
                    IpNet::V4(net) => v4.push(Prefix {
                        first: u32::from(net.network()),
                        last: u32::from(net.broadcast()),
                        len: net.prefix_len(),
                        list,
                    }),
                    IpNet::V6(net) => v6.push(Prefix {
                        first: u128::from(net.network()),
                        last: u128::from(net.broadcast()),
                        len: net.prefix_len(),
                        list,
                    }),
                }
            }
        }
        let (v4, v6) = (Intervals::new(v4), Intervals::new(v6));
        let mut hasher = FoldHasher::default();
        v4.starts.keys().for_each(|start| hasher.write_u32(start));
        v6.starts.keys().for_each(|start| hasher.write_u128(start));
        v4.found.iter().chain(&v6.found).for_each(|found| hasher.write_u16(*found));
        Self { v4, v6, counts: [deny.len(), allow.len()], digest: hasher.finish() }
    }

    /// The longest prefix that contains a source, and its list.
    #[inline]
    #[must_use]
    pub fn find(&self, source: &Addr) -> Option<Listed> {
        let (list, len) = self.list_and_len(source)?;
        let ip: IpAddr = source.ip();
        Some(Listed { list, prefix: IpNet::new(ip, len).ok()?.trunc() })
    }

    /// Whether packets of a source are refused.
    #[inline]
    #[must_use]
    pub fn denies(&self, source: &Addr) -> bool {
        self.list_of(source) == Some(SourceList::Deny)
    }

    /// The list of a source, without its prefix.
    #[inline]
    #[must_use]
    pub fn list_of(&self, source: &Addr) -> Option<SourceList> {
        self.list_and_len(source).map(|(list, _)| list)
    }

    /// The list and the length of the longest prefix that contains a source.
    #[inline]
    fn list_and_len(&self, source: &Addr) -> Option<(SourceList, u8)> {
        if source.is_v4() {
            self.v4.find(u32::from_be_bytes(source.v4_bytes()))
        } else {
            self.v6.find(u128::from_be_bytes(*source.bytes()))
        }
    }

    /// The number of prefixes that were given for `deny` and for `allow`.
    #[must_use]
    pub fn counts(&self) -> [usize; 2] {
        self.counts
    }

    /// Whether neither list has a prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0; 2]
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.v4.memory_bytes() + self.v6.memory_bytes()
    }
}

impl std::fmt::Debug for SourceLists {
    /// The number of prefixes, and a hash of them: there may be a million.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [deny, allow] = self.counts;
        write!(f, "SourceLists({deny} deny, {allow} allow, {:016x})", self.digest)
    }
}

impl PartialEq for SourceLists {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
            && self.counts == other.counts
            && self.v4 == other.v4
            && self.v6 == other.v6
    }
}

impl Eq for SourceLists {}

/// A prefix as numbers, both ends included.
#[derive(Debug, Clone, Copy)]
struct Prefix<T> {
    first: T,
    last: T,
    len: u8,
    list: SourceList,
}

/// Disjoint intervals of addresses of one family.
#[derive(Debug)]
struct Intervals<T, const N: usize> {
    starts: Ranks<T, N>,
    /// The result for each interval: 0 for no prefix, else the list (two bits) and the length.
    found: Box<[u16]>,
}

impl<T, const N: usize> Default for Intervals<T, N> {
    fn default() -> Self {
        Self { starts: Ranks::default(), found: Box::default() }
    }
}

impl<T: Number, const N: usize> PartialEq for Intervals<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.found == other.found && self.starts.keys().eq(other.starts.keys())
    }
}

const LIST_SHIFT: u32 = 8;

fn pack(list: SourceList, len: u8) -> u16 {
    let list = match list {
        SourceList::Deny => 1,
        SourceList::Allow => 2,
    };
    list << LIST_SHIFT | u16::from(len)
}

impl<T: Number, const N: usize> Intervals<T, N> {
    fn new(mut prefixes: Vec<Prefix<T>>) -> Self {
        // A prefix is sorted after those that contain it. Of equal ones, the last counts.
        prefixes.sort_unstable_by_key(|prefix| (prefix.first, prefix.len, prefix.list));
        let (mut starts, mut found) = (Vec::new(), Vec::new());
        let mut begin = |start: T, what: u16| {
            if starts.last() == Some(&start) {
                // The previous interval is empty.
                starts.pop();
                found.pop();
            }
            if found.last().copied().unwrap_or(0) != what {
                starts.push(start);
                found.push(what);
            }
        };
        // The prefixes that contain the current address, the longest last.
        let mut open: Vec<Prefix<T>> = Vec::new();
        let close = |open: &mut Vec<Prefix<T>>, begin: &mut dyn FnMut(T, u16)| {
            let Some(closed) = open.pop() else { return };
            if let Some(next) = closed.last.successor() {
                begin(next, open.last().map_or(0, |prefix| pack(prefix.list, prefix.len)));
            }
        };
        for prefix in prefixes {
            while open.last().is_some_and(|before| before.last < prefix.first) {
                close(&mut open, &mut begin);
            }
            begin(prefix.first, pack(prefix.list, prefix.len));
            open.push(prefix);
        }
        while !open.is_empty() {
            close(&mut open, &mut begin);
        }
        Self { starts: Ranks::build(&starts), found: found.into() }
    }

    #[inline]
    fn find(&self, source: T) -> Option<(SourceList, u8)> {
        let found = self.found[self.starts.last_up_to(source)?];
        let list = match found >> LIST_SHIFT {
            1 => SourceList::Deny,
            2 => SourceList::Allow,
            _ => return None,
        };
        // The low byte.
        Some((list, found as u8))
    }

    fn memory_bytes(&self) -> usize {
        self.starts.memory_bytes() + size_of_val(&*self.found)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn show(lists: &SourceLists, source: &str) -> String {
        let found = lists.find(&source.parse::<IpAddr>().unwrap().into());
        found.map_or("none".into(), |found| format!("{:?} {}", found.list, found.prefix))
    }

    #[test]
    fn the_longest_prefix_decides_and_of_equal_ones_the_one_that_admits() {
        let lists = SourceLists::new(
            &nets(&[
                "0.0.0.0/0",
                "10.0.0.0/8",
                "10.1.2.0/24",
                "192.0.2.0/25",
                "2001:db8::/32",
                "255.0.0.0/8",
            ]),
            &nets(&["10.1.0.0/16", "10.1.2.128/25", "192.0.2.7/25", "2001:db8:7::/48", "255.255.255.255/32"]),
        );
        for (source, expected) in [
            ("9.255.255.255", "Deny 0.0.0.0/0"),
            ("10.0.0.0", "Deny 10.0.0.0/8"),
            ("10.1.0.0", "Allow 10.1.0.0/16"),
            ("10.1.2.127", "Deny 10.1.2.0/24"),
            ("10.1.2.128", "Allow 10.1.2.128/25"),
            ("10.1.3.0", "Allow 10.1.0.0/16"),
            ("10.2.0.0", "Deny 10.0.0.0/8"),
            ("192.0.2.5", "Allow 192.0.2.0/25"),
            ("255.255.255.254", "Deny 255.0.0.0/8"),
            ("255.255.255.255", "Allow 255.255.255.255/32"),
            ("2001:db8:7::1", "Allow 2001:db8:7::/48"),
            ("2001:db8:8::1", "Deny 2001:db8::/32"),
            ("2001:db9::1", "none"),
            ("::", "none"),
        ] {
            assert_eq!(show(&lists, source), expected, "{source}");
        }
        assert_eq!((lists.counts(), lists.is_empty()), ([6, 5], false));
        assert!(SourceLists::default().is_empty() && show(&SourceLists::default(), "10.0.0.1") == "none");
    }

    #[test]
    fn a_million_prefixes_take_the_memory_that_the_documents_state() {
        // No prefixes touch, so each has its own start and end.
        let v4 = |n: u32| IpNet::new(Ipv4Addr::from(n << 9).into(), 24).unwrap();
        let v6 = |n: u32| IpNet::new(Ipv6Addr::from(u128::from(n) << 65 | 0x2001 << 112).into(), 64).unwrap();
        let deny: Vec<IpNet> = (1..=1_000_000).map(v4).collect();
        let lists = SourceLists::new(&deny, &[]);
        assert!(lists.memory_bytes() < 13_000_000, "{}", lists.memory_bytes());
        assert_eq!(lists.v4.starts.depth(), 6);
        assert!((1..=1_000_000).all(|n: u32| lists.denies(&Addr::v4((n << 9 | 7).to_be_bytes()))));
        assert!((1..=1_000_000).all(|n: u32| !lists.denies(&Addr::v4((n << 9 | 256).to_be_bytes()))));
        let deny: Vec<IpNet> = (1..=1_000_000).map(v6).collect();
        let lists = SourceLists::new(&deny, &[]);
        assert!(lists.memory_bytes() < 42_000_000, "{}", lists.memory_bytes());
        assert_eq!(lists.v6.starts.depth(), 7);
    }

    fn any_nets() -> impl Strategy<Value = Vec<IpNet>> {
        let v4 = (
            prop_oneof![0_u32..64, u32::MAX - 64..=u32::MAX, any::<u32>()],
            prop_oneof![9 => 24_u8..=32, 1 => 0_u8..=32],
        )
            .prop_map(|(net, len)| IpNet::new(Ipv4Addr::from(net).into(), len).unwrap());
        let v6 = (
            prop_oneof![0_u128..64, u128::MAX - 64..=u128::MAX],
            prop_oneof![9 => 120_u8..=128, 1 => 0_u8..=128],
        )
            .prop_map(|(net, len)| IpNet::new(Ipv6Addr::from(net).into(), len).unwrap());
        proptest::collection::vec(prop_oneof![v4, v6], 0..60)
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_of_all_prefixes_finds(deny in any_nets(), allow in any_nets()) {
            let lists = SourceLists::new(&deny, &allow);
            let ends = deny.iter().chain(&allow).flat_map(|net| match net {
                IpNet::V4(net) => {
                    let (a, b) = (u32::from(net.network()), u32::from(net.broadcast()));
                    [a, a.wrapping_sub(1), b, b.wrapping_add(1)].map(|n| IpAddr::from(Ipv4Addr::from(n)))
                }
                IpNet::V6(net) => {
                    let (a, b) = (u128::from(net.network()), u128::from(net.broadcast()));
                    [a, a.wrapping_sub(1), b, b.wrapping_add(1)].map(|n| IpAddr::from(Ipv6Addr::from(n)))
                }
            });
            for source in ends {
                // An IPv6 packet never has an IPv4-mapped address.
                if matches!(source, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
                    continue;
                }
                let of = |nets: &[IpNet], list| {
                    nets.iter().filter(|net| net.contains(&source)).map(|net| (net.prefix_len(), list)).max()
                };
                let expected = of(&deny, SourceList::Deny).max(of(&allow, SourceList::Allow));
                let found = lists.find(&source.into());
                prop_assert_eq!(found.map(|found| (found.prefix.prefix_len(), found.list)), expected, "{}", source);
                prop_assert!(found.is_none_or(|found| found.prefix.contains(&source)));
            }
        }
    }
}
