//! The gateway as the resolver sees it: its interfaces, the neighbours that it needs, and its own addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::ownership::OwnerKey;
use tidegate_wire::{MacAddr, SmallFrame, VlanId, arp, ndp};

/// The properties of the gateway that the resolver needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolverContext {
    /// The interfaces, by index.
    pub interfaces: Vec<Link>,
    /// Neighbours whose link address is configured and never requested.
    pub fixed: Vec<(IpAddr, MacAddr)>,
    /// Next hops of routes, and backends. Those on a link are resolved before the first packet needs them.
    pub next_hops: BTreeSet<IpAddr>,
    /// SNAT addresses, and VIPs that the gateway currently answers for. New ones are announced.
    pub owned: BTreeSet<IpAddr>,
    /// The SNAT addresses in `owned`. The driver removes them from `owned` while the gateway has released them.
    pub snat: BTreeSet<IpAddr>,
    /// VIPs that backends also have (DSR). While they are in `owned`, the gateway checks that no backend answers for
    /// them.
    pub probed: BTreeSet<IpAddr>,
    /// VIPs that the gateway answers for while it owns their key. The driver adds them to `owned`.
    pub shared: BTreeMap<IpAddr, OwnerKey>,
}

/// The properties of one interface that the resolver needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Our link address on it.
    pub mac: MacAddr,
    /// The 802.1Q tag of transmitted frames.
    pub vlan: Option<VlanId>,
    /// Its own addresses with their on-link prefixes.
    pub addresses: Vec<IpNet>,
}

impl ResolverContext {
    /// The interface whose link contains an address: the one with the longest matching prefix.
    pub(super) fn interface_of(&self, address: IpAddr) -> Option<InterfaceIndex> {
        let on_link = self.interfaces.iter().enumerate().flat_map(|(n, link)| {
            link.addresses
                .iter()
                .filter(move |net| net.contains(&address))
                .map(move |net| (net.prefix_len(), n))
        });
        let (_, n) = on_link.max_by_key(|&(len, n)| (len, std::cmp::Reverse(n)))?;
        InterfaceIndex::try_from(n).ok()
    }

    /// A request for the link address of a neighbour. With `known`, it is a unicast request to confirm that address.
    pub(super) fn request(
        &self,
        (interface, address): (InterfaceIndex, IpAddr),
        known: Option<MacAddr>,
    ) -> Option<SmallFrame> {
        let link = self.interfaces.get(usize::from(interface))?;
        Some(match address {
            IpAddr::V4(target) => arp::request(link.mac, link.source_v4(target), target, link.vlan, known),
            IpAddr::V6(target) => {
                ndp::solicitation(link.mac, link.source_v6(target), target, link.vlan, known)
            }
        })
    }

    /// A probe for other stations with one of our addresses (RFC 5227 section 2.1.1, RFC 4862 section 5.4.2). It has no
    /// sender address, so that it changes no cache.
    pub(super) fn probe(&self, interface: InterfaceIndex, address: IpAddr) -> Option<SmallFrame> {
        let link = self.interfaces.get(usize::from(interface))?;
        Some(match address {
            IpAddr::V4(target) => arp::request(link.mac, Ipv4Addr::UNSPECIFIED, target, link.vlan, None),
            IpAddr::V6(target) => ndp::solicitation(link.mac, Ipv6Addr::UNSPECIFIED, target, link.vlan, None),
        })
    }

    /// An announcement of one of our addresses on this link.
    pub(super) fn announcement(&self, interface: InterfaceIndex, address: IpAddr) -> Option<SmallFrame> {
        let link = self.interfaces.get(usize::from(interface))?;
        Some(match address {
            IpAddr::V4(address) => arp::announcement(link.mac, address, link.vlan),
            IpAddr::V6(address) => ndp::announcement(link.mac, address, link.vlan),
        })
    }

    /// The links on which one of our addresses is announced: its own link, or all links if it is on none and routed to
    /// us. Stations that have cached the address update their entry.
    pub(super) fn announced_on(&self, address: IpAddr) -> Vec<InterfaceIndex> {
        match self.interface_of(address) {
            Some(interface) => vec![interface],
            None => (0..self.interfaces.len()).filter_map(|n| InterfaceIndex::try_from(n).ok()).collect(),
        }
    }
}

impl Link {
    /// Our address in the target's prefix, or any of our addresses on this link. Without any, the request becomes an
    /// ARP probe (RFC 5227 2.1.1).
    fn source_v4(&self, target: Ipv4Addr) -> Ipv4Addr {
        self.source(IpAddr::V4(target))
            .and_then(|source| if let IpAddr::V4(source) = source { Some(source) } else { None })
            .unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// Like [`Self::source_v4`]. For link-local targets, or without another address, it is the link-local address
    /// derived from the MAC (RFC 4291 appendix A), which the kernel's side of the tap also has.
    fn source_v6(&self, target: Ipv6Addr) -> Ipv6Addr {
        let link_local = || link_local(self.mac);
        if target.is_unicast_link_local() {
            return link_local();
        }
        self.source(IpAddr::V6(target))
            .and_then(|source| if let IpAddr::V6(source) = source { Some(source) } else { None })
            .unwrap_or_else(link_local)
    }

    fn source(&self, target: IpAddr) -> Option<IpAddr> {
        let same_family = || self.addresses.iter().filter(|net| net.addr().is_ipv4() == target.is_ipv4());
        same_family().find(|net| net.contains(&target)).or_else(|| same_family().next()).map(IpNet::addr)
    }
}

fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
