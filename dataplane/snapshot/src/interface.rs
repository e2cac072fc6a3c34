//! A port of the gateway as the packet path sees it.
//!
//! Snapshot compilation builds it from an [`InterfaceSpec`](tidegate_spec::InterfaceSpec). Its position in the snapshot
//! is the interface index used everywhere else.

use std::net::IpAddr;

use ipnet::IpNet;
use tidegate_spec::InterfaceSpec;
use tidegate_wire::{Addr, Family, MacAddr, VlanId};

/// A port of the gateway.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Source address of all frames sent.
    pub mac: MacAddr,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// The 802.1Q tag of every frame on this interface.
    pub vlan: Option<VlanId>,
    /// The gateway's own address in ARP requests and ICMP errors here: its first IPv4 address.
    pub source_v4: Option<Addr>,
    /// The gateway's own IPv6 address here: the first that is not link-local, otherwise the first.
    pub source_v6: Option<Addr>,
    /// Its own addresses with their on-link prefixes.
    pub addresses: Box<[IpNet]>,
    /// The name in the configuration.
    pub name: String,
}

impl Interface {
    /// `None` if the tag is outside 1 to 4094.
    pub(super) fn new(spec: &InterfaceSpec) -> Option<Self> {
        let vlan = match spec.vlan {
            None => None,
            Some(id) => Some(VlanId::new(id)?),
        };
        let v6 = || {
            spec.addresses
                .iter()
                .filter_map(|net| if let IpNet::V6(net) = net { Some(net.addr()) } else { None })
        };
        Some(Self {
            mac: spec.mac,
            mtu: spec.mtu,
            vlan,
            source_v4: spec.addresses.iter().map(IpNet::addr).find(IpAddr::is_ipv4).map(Addr::from),
            source_v6: v6()
                .find(|addr| !addr.is_unicast_link_local())
                .or_else(|| v6().next())
                .map(Addr::from),
            addresses: spec.addresses.clone().into(),
            name: spec.name.clone(),
        })
    }

    /// The gateway's own address that neighbours of this family see.
    #[inline]
    #[must_use]
    pub fn source(&self, family: Family) -> Option<Addr> {
        match family {
            Family::V4 => self.source_v4,
            Family::V6 => self.source_v6,
        }
    }
}
