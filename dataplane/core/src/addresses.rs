//! The addresses that the gateway answers for, and how.
//!
//! The dataplane owns VIPs, SNAT addresses and outer sources of tunnels: it answers ARP, neighbour solicitations and
//! pings for them. The kernel owns the interfaces' own addresses: packets to them are punted. Only requests for their
//! link address are answered by the dataplane, so that no flood can prevent a neighbour from resolving them. The
//! table is read for packets that match no service and no flow. The compile of a snapshot builds it. If
//! `tunnelSource` is a prefix, its addresses are not listed here:
//! [`Snapshot::address`](crate::snapshot::Snapshot::address) checks them last.
//!
//! Invariant: an address has one kind. If several apply, the interface's own comes first (otherwise ssh and BGP to a
//! gateway that serves nodePorts would end), then the VIP.
//!
//! The table also contains addresses that the gateway does not answer for, but that no client can have: the network
//! and broadcast addresses of connected networks, and the default routers ([`SourceFault`]). So one look-up of a
//! source checks all of them.

use std::sync::Arc;

use ipnet::IpNet;

use crate::hash::key_hash;
use crate::ids::InterfaceIndex;
use crate::key_index::KeyIndex;
use crate::wire::Addr;

/// What an address of the gateway is.
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
    /// Not one host's: unspecified, loopback, multicast, or IPv4 0/8, 240/4 and broadcast.
    NotOneHost,
    /// A VIP, or an address of the gateway itself: its packets do not come in from the wire.
    Ours,
    /// The network or broadcast address of a connected IPv4 network, or the subnet-router anycast address of a
    /// connected IPv6 network (RFC 4291 2.6.1). An answer to it would reach many hosts, or a different host.
    NotOneHostOfNetwork,
    /// A next hop of a default route. It may ping and speak to the kernel, but it is no client of a service.
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

/// All addresses with a meaning. A copy shares the memory.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    index: KeyIndex,
    records: Arc<[(Addr, Meaning)]>,
}

impl Addresses {
    /// If an address is listed more than once, the first entry counts.
    pub(crate) fn build(listed: impl Iterator<Item = (Addr, Meaning)>) -> Self {
        let mut records: Vec<_> = listed.collect();
        // The sort is stable: the first of equal entries stays first.
        records.sort_by_key(|&(addr, _)| addr);
        records.dedup_by_key(|&mut (addr, _)| addr);
        let entries = records.iter().enumerate().map(|(at, (addr, _))| (key_hash(addr, 0, 0), at));
        Self { index: KeyIndex::build(entries), records: records.into() }
    }

    #[inline]
    fn meaning(&self, addr: &Addr) -> Option<Meaning> {
        let at = self.index.find(key_hash(addr, 0, 0), |at| self.records[at].0 == *addr)?;
        Some(self.records[at].1)
    }

    #[inline]
    pub(crate) fn find(&self, addr: &Addr) -> Option<AddressKind> {
        match self.meaning(addr)? {
            Meaning::Kind(kind) => Some(kind),
            Meaning::NoClient(_) => None,
        }
    }

    /// Why this address cannot be a client's, as far as the address alone shows.
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
        self.records.iter().filter_map(|&(addr, meaning)| match meaning {
            Meaning::Kind(kind) => Some((addr, kind)),
            Meaning::NoClient(_) => None,
        })
    }
}

/// The addresses of a connected network that are not one host's. Networks of two addresses or one have none
/// (RFC 3021, RFC 6164); IPv6 has no broadcast.
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
    use super::*;

    #[test]
    fn the_first_kind_of_an_address_counts() {
        let addr = |n| Addr::v4([192, 0, 2, n]);
        let kind = |n, kind| (addr(n), Meaning::Kind(kind));
        let router = (addr(4), Meaning::NoClient(SourceFault::Router));
        let listed = [
            kind(1, AddressKind::Own(3)),
            kind(2, AddressKind::Vip),
            kind(1, AddressKind::Vip),
            router,
            (addr(2), router.1),
        ];
        let addresses = Addresses::build(listed.into_iter());
        assert_eq!(addresses.find(&addr(1)), Some(AddressKind::Own(3)));
        assert_eq!(addresses.find(&addr(2)), Some(AddressKind::Vip));
        assert_eq!(addresses.find(&addr(3)), None);
        assert_eq!(addresses.find(&addr(4)), None, "a router's address is not answered for");
        assert_eq!(addresses.iter().count(), 2);
        let faults = [1, 2, 3, 4].map(|n| addresses.source_fault(&addr(n)));
        let ours = Some(SourceFault::Ours);
        assert_eq!(faults, [ours, ours, None, Some(SourceFault::Router)]);
    }

    #[test]
    fn only_networks_with_room_for_three_have_ends_that_are_no_hosts() {
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
