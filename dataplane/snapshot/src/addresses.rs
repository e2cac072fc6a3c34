//! The addresses that the gateway answers for, and how.
//!
//! The dataplane owns VIPs, SNAT addresses and outer sources of tunnels: it answers ARP, neighbour solicitations and
//! pings for them. The kernel owns the interfaces' own addresses: packets to them are punted. The dataplane answers
//! only requests for their link addresses, so that no flood can prevent a neighbour from resolving them. The table is
//! read for packets that match no service and no flow. Snapshot compilation builds it. If `tunnelSource` is a prefix,
//! its addresses are not listed here: [`Snapshot::address`](crate::Snapshot::address) checks them last.
//!
//! Invariant: an address has one kind. If several apply, the interface's own comes first (otherwise ssh and BGP to a
//! gateway that serves nodePorts would end), then the VIP.
//!
//! The table also contains addresses that the gateway does not answer for, but that no client can have: the network
//! and broadcast addresses of connected networks, and the default routers ([`SourceFault`]). So one look-up of a
//! source checks all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_structures::hash::key_hash;
use tidegate_structures::key_index::KeyIndex;
use tidegate_structures::sorted_chunks::SortedChunks;
use tidegate_structures::table::{Table, table_len};
use tidegate_wire::{Addr, Family, usual};

/// The kind of an address of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// The address of an interface: the kernel answers for it. A service may have ports on it too.
    Own(InterfaceIndex),
    /// An address of at least one service.
    Vip,
    /// A source address of `fullnat`.
    Snat,
    /// Only an outer source address of tunnels.
    Tunnel,
}

/// Why an address cannot be the source of a packet from the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceFault {
    /// Not a unicast address: unspecified, loopback, multicast, or IPv4 0/8, 240/4 and broadcast.
    NotOneHost,
    /// A VIP, or an address of the gateway itself, whose packets cannot arrive from the wire.
    Ours,
    /// The network or broadcast address of a connected IPv4 network, or the subnet-router anycast address of a
    /// connected IPv6 network (RFC 4291 2.6.1). An answer to it would reach many hosts, or a different host.
    NotOneHostOfNetwork,
    /// A next hop of a default route. It may ping and reach the kernel, but is no client of a service.
    Router,
    /// Link-local, in a frame that a default router forwarded, or to a service whose answers the gateway would have to
    /// forward to a router (RFC 3927 2.7, RFC 4291 2.5.6).
    LinkLocal,
}

/// The meaning of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The gateway answers for it.
    Kind(AddressKind),
    /// No client can have the address.
    NoClient(SourceFault),
}

/// All addresses with a meaning. Clones share the memory.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    index: KeyIndex,
    /// Records that the index doesn't refer to are unused.
    records: Table<(Addr, Meaning)>,
    /// The record index of each address.
    by_address: SortedChunks<Addr, u32>,
    /// The indices of unused records.
    free: Arc<Vec<u32>>,
    /// The meanings that don't come from services. They stay when a VIP is removed.
    other_meanings: Arc<BTreeMap<Addr, Meaning>>,
    networks: Arc<Networks>,
}

/// A Bloom filter of networks ([`usual::network`]) that have or had an address in [`Addresses`]. It excludes nearly all
/// clients, which then need no look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Networks([u64; 64]);

impl Networks {
    /// Word and bit of a network.
    #[inline(always)]
    fn bit_of(network: u64) -> (usize, u32) {
        // Multiply-shift with 2^64 divided by the golden ratio (Dietzfelbinger et al. 1997), upper 12 bits.
        let bit = network.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        ((bit >> 6) as usize, (bit & 63) as u32)
    }

    #[inline(always)]
    fn may_contain<const A: usize>(&self, addr: &[u32; A]) -> bool {
        let (word, bit) = Self::bit_of(usual::network(addr));
        self.0[word] >> bit & 1 != 0
    }

    fn add(&mut self, addr: &Addr) {
        let network = match addr.family() {
            Family::V4 => usual::network(&usual::words::<1>(addr)),
            Family::V6 => usual::network(&usual::words::<4>(addr)),
        };
        let (word, bit) = Self::bit_of(network);
        self.0[word] |= 1 << bit;
    }
}

impl Addresses {
    /// The table of the VIPs and of the other addresses with their meanings. If one of the other addresses has several
    /// meanings, the first counts.
    pub(crate) fn build(
        vips: impl Iterator<Item = Addr>,
        others: impl Iterator<Item = (Addr, Meaning)>,
    ) -> Self {
        let mut other_meanings = BTreeMap::new();
        for (addr, meaning) in others {
            other_meanings.entry(addr).or_insert(meaning);
        }
        let mut records: Vec<_> = vips.map(|vip| (vip, with_vip(other_meanings.get(&vip)))).collect();
        records.extend(other_meanings.iter().map(|(&addr, &meaning)| (addr, meaning)));
        // The sort is stable: the meaning of a VIP stays first.
        records.sort_by_key(|&(addr, _)| addr);
        records.dedup_by_key(|&mut (addr, _)| addr);
        let mut networks = Networks([0; 64]);
        records.iter().for_each(|(addr, _)| networks.add(addr));
        let count = records.len();
        let by_address: SortedChunks<Addr, u32> =
            records.iter().zip(0..).map(|(&(addr, _), at)| (addr, at)).collect();
        records.resize(table_len(count), VACANT);
        Self {
            index: index_of(&by_address),
            records: records.into(),
            by_address,
            free: Arc::default(),
            other_meanings: other_meanings.into(),
            networks: networks.into(),
        }
    }

    /// A copy after these addresses became VIPs (true) or stopped being VIPs (false).
    pub(crate) fn revised(&self, vips: &[(Addr, bool)]) -> Self {
        let mut free = Vec::clone(&self.free);
        let (mut gone, mut new, mut set, mut moves) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &(addr, is_vip) in vips {
            let other_meanings = self.other_meanings.get(&addr);
            let meaning = if is_vip { Some(with_vip(other_meanings)) } else { other_meanings.copied() };
            match (self.by_address.get(&addr), meaning) {
                (Some(at), Some(meaning)) => set.push((at, (addr, meaning))),
                (Some(at), None) => {
                    gone.push((hash(&addr), at as usize));
                    free.push(at);
                    moves.push((addr, None));
                }
                (None, Some(meaning)) => new.push((addr, meaning)),
                (None, None) => {}
            }
        }
        // Last, because the removed addresses have freed records.
        let mut used = self.by_address.len() + self.free.len();
        let mut entries = Vec::with_capacity(new.len());
        let mut networks = Arc::clone(&self.networks);
        for (addr, meaning) in new {
            let at = free.pop().unwrap_or_else(|| {
                used += 1;
                u32::try_from(used - 1).expect("there are fewer addresses than service ports")
            });
            set.push((at, (addr, meaning)));
            entries.push((hash(&addr), at as usize));
            moves.push((addr, Some(at)));
            Arc::make_mut(&mut networks).add(&addr);
        }
        let by_address = self.by_address.revised(moves);
        let index = self.index.edited(&gone, &entries, |at| hash(&self.records[at].0));
        let more = table_len(used).saturating_sub(self.records.len());
        let records = self.records.revised(std::iter::repeat_n(VACANT, more), |records| {
            set.iter().for_each(|&(at, record)| records.set(at as usize, record));
        });
        let index = index.unwrap_or_else(|| index_of(&by_address));
        let other_meanings = Arc::clone(&self.other_meanings);
        Self { index, records, by_address, free: free.into(), other_meanings, networks }
    }

    #[inline]
    fn meaning(&self, addr: &Addr) -> Option<Meaning> {
        let at = self.index.find(hash(addr), |at| self.records[at].0 == *addr)?;
        Some(self.records[at].1)
    }

    /// False if an address certainly has no meaning. The address has the form of [`usual::Usual`].
    #[inline(always)]
    pub(crate) fn may_have_meaning<const A: usize>(&self, addr: &[u32; A]) -> bool {
        self.networks.may_contain(addr)
    }

    /// Whether an IPv4 address, read as a little-endian number, has a meaning, so that no client has it.
    #[inline(always)]
    pub(crate) fn has_meaning_v4(&self, addr: u32) -> bool {
        self.may_have_meaning(&[addr]) && self.meaning(&Addr::v4(addr.to_le_bytes())).is_some()
    }

    #[inline]
    pub(crate) fn find(&self, addr: &Addr) -> Option<AddressKind> {
        match self.meaning(addr)? {
            Meaning::Kind(kind) => Some(kind),
            Meaning::NoClient(_) => None,
        }
    }

    /// Why no client can have this address, judged by the address alone.
    #[inline]
    pub(crate) fn source_fault(&self, addr: &Addr) -> Option<SourceFault> {
        if !addr.is_single_host() {
            return Some(SourceFault::NotOneHost);
        }
        Some(match self.meaning(addr)? {
            Meaning::Kind(_) => SourceFault::Ours,
            Meaning::NoClient(fault) => fault,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Addr, AddressKind)> {
        self.by_address.iter().filter_map(|&(addr, at)| match self.records[at as usize].1 {
            Meaning::Kind(kind) => Some((addr, kind)),
            Meaning::NoClient(_) => None,
        })
    }
}

/// The value of an unused record.
const VACANT: (Addr, Meaning) = (Addr::UNSPECIFIED, Meaning::NoClient(SourceFault::NotOneHost));

/// The meaning of a VIP that has another meaning as well.
fn with_vip(other_meanings: Option<&Meaning>) -> Meaning {
    match other_meanings {
        Some(own @ Meaning::Kind(AddressKind::Own(_))) => *own,
        _ => Meaning::Kind(AddressKind::Vip),
    }
}

fn hash(addr: &Addr) -> u64 {
    key_hash(addr, 0, 0)
}

fn index_of(by_address: &SortedChunks<Addr, u32>) -> KeyIndex {
    let entries: Vec<_> = by_address.iter().map(|&(addr, at)| (hash(&addr), at as usize)).collect();
    KeyIndex::build(entries.into_iter())
}

/// The addresses of a connected network that are not unicast. Networks of two addresses or one have none (RFC 3021, RFC
/// 6164); IPv6 has no broadcast.
pub(crate) fn not_one_host(net: &IpNet) -> impl Iterator<Item = Addr> {
    let ends = match net {
        IpNet::V4(net) if net.prefix_len() < 31 => [Some(net.network().into()), Some(net.broadcast().into())],
        IpNet::V6(net) if net.prefix_len() < 127 => [Some(net.network().into()), None],
        IpNet::V4(_) | IpNet::V6(_) => [None, None],
    };
    ends.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_kind_of_an_address_counts() {
        let addr = |n| Addr::v4([192, 0, 2, n]);
        let kind = |n, kind| (addr(n), Meaning::Kind(kind));
        let router = (addr(4), Meaning::NoClient(SourceFault::Router));
        let others = [kind(1, AddressKind::Own(3)), kind(1, AddressKind::Snat), router, (addr(2), router.1)];
        let addresses = Addresses::build([addr(2), addr(1)].into_iter(), others.into_iter());
        assert_eq!(addresses.find(&addr(1)), Some(AddressKind::Own(3)));
        assert_eq!(addresses.find(&addr(2)), Some(AddressKind::Vip));
        assert_eq!(addresses.find(&addr(3)), None);
        assert_eq!(addresses.find(&addr(4)), None, "a router's address is not answered for");
        assert_eq!(addresses.iter().count(), 2);
        let faults = [1, 2, 3, 4].map(|n| addresses.source_fault(&addr(n)));
        let ours = Some(SourceFault::Ours);
        assert_eq!(faults, [ours, ours, None, Some(SourceFault::Router)]);
    }

    proptest! {
        #[test]
        fn revised_addresses_are_those_that_are_built(
            steps in proptest::collection::vec(proptest::collection::btree_map(0_u8..60, any::<bool>(), 0..20), 1..12),
        ) {
            let addr = |n| Addr::v4([192, 0, 2, n]);
            let others = || {
                (0..60).step_by(5).map(move |n| {
                    let kinds = [Meaning::Kind(AddressKind::Own(1)), Meaning::Kind(AddressKind::Snat)];
                    let kinds = [kinds[0], kinds[1], Meaning::NoClient(SourceFault::Router)];
                    (addr(n), kinds[usize::from(n) / 5 % 3])
                })
            };
            let mut vips = std::collections::BTreeSet::new();
            let mut revised = Addresses::build(std::iter::empty(), others());
            for step in steps {
                for (&n, &is_vip) in &step {
                    if is_vip { vips.insert(n) } else { vips.remove(&n) };
                }
                let changes: Vec<_> = step.iter().map(|(&n, &is_vip)| (addr(n), is_vip)).collect();
                revised = revised.revised(&changes);
                let built = Addresses::build(vips.iter().map(|&n| addr(n)), others());
                for n in 0..60 {
                    let meaning = built.meaning(&addr(n));
                    prop_assert_eq!(revised.meaning(&addr(n)), meaning);
                    let number = u32::from_le_bytes([192, 0, 2, n]);
                    prop_assert_eq!(revised.has_meaning_v4(number), meaning.is_some());
                    prop_assert_eq!(built.has_meaning_v4(number), meaning.is_some());
                    prop_assert!(!revised.has_meaning_v4(u32::from_le_bytes([198, 51, 100, n])));
                }
                prop_assert!(revised.iter().eq(built.iter()));
                prop_assert_eq!(revised.by_address.len() + revised.free.len(), {
                    let used: std::collections::BTreeSet<u32> =
                        revised.by_address.iter().map(|&(_, at)| at).chain(revised.free.iter().copied()).collect();
                    used.len()
                });
            }
        }
    }

    #[test]
    fn networks_of_one_or_two_addresses_have_no_reserved_ends() {
        let ends = |net: &str| -> Vec<String> {
            not_one_host(&net.parse().expect("a network")).map(|addr| addr.to_string()).collect()
        };
        assert_eq!(ends("192.0.2.77/24"), ["192.0.2.0", "192.0.2.255"]);
        assert_eq!(ends("192.0.2.5/30"), ["192.0.2.4", "192.0.2.7"]);
        assert_eq!(ends("2001:db8::77/64"), ["2001:db8::"]);
        for small in ["192.0.2.4/31", "192.0.2.4/32", "2001:db8::/127", "2001:db8::/128"] {
            assert!(ends(small).is_empty(), "{small}");
        }
    }
}
