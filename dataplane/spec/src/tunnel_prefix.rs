//! `TunnelPrefix`: the outer source addresses of tunnels of one family, one or many.
//!
//! IP-in-IP has no ports, so a receiver that distributes packets by the outer addresses puts all packets of one gateway
//! on one queue. If `tunnelSource` is a prefix, the hash of the inner flow chooses one of its addresses. Then the flows
//! of a backend arrive on many queues, and each flow on one.
//!
//! An IPv4 prefix of four addresses or more omits the first and the last, which may be the network and the broadcast
//! address of a link. An IPv6 prefix omits the first, the Subnet-Router anycast address (RFC 4291 section 2.6.1). If
//! there are more than 2^32 addresses, only the first 2^32 are used.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use tidegate_structures::hash::scale;
use tidegate_wire::Addr;

/// The outer source addresses of tunnels of one family.
///
/// ```
/// use tidegate_spec::TunnelPrefix;
/// let prefix: TunnelPrefix = "192.0.2.64/28".parse()?;
/// assert_eq!(prefix.addresses().count(), 14);
/// let one: TunnelPrefix = "192.0.2.2".parse()?;
/// assert_eq!(one.pick(u64::MAX).to_string(), "192.0.2.2");
/// # Ok::<(), ipnet::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelPrefix {
    first: Addr,
    count: u32,
    net: IpNet,
}

impl TunnelPrefix {
    /// The addresses of a prefix. Its host bits are ignored.
    #[must_use]
    pub fn new(net: IpNet) -> Self {
        let net = net.trunc();
        let host_bits = net.max_prefix_len() - net.prefix_len();
        let all = 1_u64 << host_bits.min(32);
        let (skipped, count) = match net {
            _ if host_bits < 2 => (0, all),
            IpNet::V4(_) => (1, all - 2),
            IpNet::V6(_) => (1, all - 1),
        };
        let network = Addr::from(net.network());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { first: after(&network, skipped), count, net }
    }

    /// Whether there is more than one address.
    #[inline]
    #[must_use]
    pub fn is_many(&self) -> bool {
        self.count > 1
    }

    /// The address for a flow with this hash, of which the upper half is used.
    #[inline]
    #[must_use]
    pub fn pick(&self, hash: u64) -> Addr {
        if self.is_many() { after(&self.first, scale(hash, self.count)) } else { self.first }
    }

    /// Whether packets may have this address.
    #[must_use]
    pub fn contains(&self, addr: &Addr) -> bool {
        let offset = number(addr).checked_sub(number(&self.first));
        offset.is_some_and(|offset| offset < u128::from(self.count))
    }

    /// [`Self::contains`] for an IPv4 address, read as a little-endian number, in a prefix of IPv4.
    #[inline(always)]
    pub fn contains_v4(&self, addr: u32) -> bool {
        u32::from_be(addr).wrapping_sub(u32::from_be_bytes(self.first.v4_bytes())) < self.count
    }

    /// The prefix as it was given.
    #[must_use]
    pub fn net(&self) -> IpNet {
        self.net
    }

    /// The number of addresses that packets may have.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The addresses that packets may have.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        (0..self.count).map(|n| after(&self.first, n).ip())
    }
}

fn number(addr: &Addr) -> u128 {
    u128::from_be_bytes(*addr.bytes())
}

fn after(addr: &Addr, n: u32) -> Addr {
    // The sum stays within the prefix, so an IPv4 address stays an IPv4 address.
    Addr::v6(number(addr).wrapping_add(u128::from(n)).to_be_bytes())
}

impl From<IpAddr> for TunnelPrefix {
    fn from(addr: IpAddr) -> Self {
        Self::new(addr.into())
    }
}

impl From<Ipv4Addr> for TunnelPrefix {
    fn from(addr: Ipv4Addr) -> Self {
        IpAddr::V4(addr).into()
    }
}

impl From<Ipv6Addr> for TunnelPrefix {
    fn from(addr: Ipv6Addr) -> Self {
        IpAddr::V6(addr).into()
    }
}

impl FromStr for TunnelPrefix {
    type Err = ipnet::AddrParseError;

    /// Parses an address, or a prefix such as `192.0.2.64/28`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<IpAddr>() {
            Ok(addr) => Ok(addr.into()),
            Err(_) => text.parse().map(Self::new),
        }
    }
}

impl fmt::Display for TunnelPrefix {
    /// Writes the single address, or the prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.net.prefix_len() == self.net.max_prefix_len() { self.first.fmt(f) } else { self.net.fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn prefix(text: &str) -> TunnelPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn network_broadcast_and_anycast_addresses_are_omitted() {
        for (text, first, last, count) in [
            ("192.0.2.2", "192.0.2.2", "192.0.2.2", 1),
            ("192.0.2.2/31", "192.0.2.2", "192.0.2.3", 2),
            ("192.0.2.64/28", "192.0.2.65", "192.0.2.78", 14),
            ("2001:db8::2", "2001:db8::2", "2001:db8::2", 1),
            ("2001:db8::2/127", "2001:db8::2", "2001:db8::3", 2),
            ("2001:db8::/126", "2001:db8::1", "2001:db8::3", 3),
            ("2001:db8::/64", "2001:db8::1", "2001:db8::ffff:ffff", u32::MAX),
        ] {
            let prefix = prefix(text);
            assert_eq!(prefix.count(), count, "{text}");
            assert_eq!(prefix.pick(0).to_string(), first);
            assert_eq!(prefix.pick(u64::MAX).to_string(), last);
            assert!(prefix.contains(&prefix.pick(0)) && prefix.contains(&prefix.pick(u64::MAX)));
            assert_eq!(prefix.to_string(), text);
        }
        for outside in ["192.0.2.63", "192.0.2.64", "192.0.2.79", "192.0.2.80", "2001:db8::1"] {
            assert!(!prefix("192.0.2.64/28").contains(&outside.parse::<IpAddr>().unwrap().into()));
        }
    }

    #[test]
    fn every_address_of_a_prefix_is_picked() {
        let prefix = prefix("192.0.2.64/28");
        let picked: BTreeSet<IpAddr> = (0..1000_u64).map(|n| prefix.pick(n << 54).ip()).collect();
        assert_eq!(picked, prefix.addresses().collect());
    }
}
