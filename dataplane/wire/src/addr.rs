//! `Addr`: an IPv4 or IPv6 address in 16 bytes, compared and hashed without a branch on the family.
//!
//! IPv4 is stored IPv4-mapped (`::ffff:a.b.c.d`). The header checks refuse mapped addresses in IPv6 packets, so the
//! mapping is one to one. The whole packet path uses `Addr`; std's address types are used at its edges.
//!
//! Invariant: an `Addr` from an IPv6 header is never IPv4-mapped.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP address of either family in its 16-byte form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr([u8; 16]);

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Addr {
    /// `::`, the unspecified IPv6 address.
    pub const UNSPECIFIED: Addr = Addr([0; 16]);

    /// The IPv4 address of these 4 bytes in network order.
    #[inline]
    pub const fn v4(b: [u8; 4]) -> Addr {
        // Written as one number so that it is stored in two words: narrow stores would stall the wide loads that
        // follow.
        Addr(((0xffff << 32) | u32::from_be_bytes(b) as u128).to_be_bytes())
    }

    /// The IPv6 address of these 16 bytes in network order.
    #[inline]
    pub const fn v6(b: [u8; 16]) -> Addr {
        Addr(b)
    }

    /// True for an IPv4 address.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.0[..12] == MAPPED
    }

    /// The last 4 bytes: the IPv4 address, if it is one.
    #[inline]
    pub const fn v4_bytes(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// The 16 bytes; IPv4 in its mapped form.
    #[inline]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The address as the standard library's type.
    pub fn ip(&self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.v4_bytes()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }

    /// Multicast of either family (224.0.0.0/4, ff00::/8).
    #[inline]
    pub fn is_multicast(&self) -> bool {
        if self.is_v4() { self.0[12] & 0xf0 == 0xe0 } else { self.0[0] == 0xff }
    }

    /// Whether this can be the address of a single host, so that a packet with this source may be answered (RFC 1812
    /// 4.3.2.7, RFC 4443 2.4). False for unspecified, loopback, multicast, and IPv4 0/8, 240/4 or broadcast addresses.
    /// Directed broadcast and anycast addresses can't be recognized by the address alone.
    pub fn is_single_host(&self) -> bool {
        if self.is_v4() {
            !matches!(self.0[12], 0 | 127 | 224..=255)
        } else {
            let low = self.0[..15] == [0; 15] && self.0[15] <= 1;
            !low && self.0[0] != 0xff
        }
    }

    /// Valid on one link only: IPv4 169.254/16 (RFC 3927), IPv6 fe80::/10 (RFC 4291).
    pub fn is_link_local(&self) -> bool {
        if self.is_v4() {
            self.0[12..14] == [169, 254]
        } else {
            self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
        }
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(a: Ipv4Addr) -> Addr {
        Addr::v4(a.octets())
    }
}

impl From<Ipv6Addr> for Addr {
    fn from(a: Ipv6Addr) -> Addr {
        Addr::v6(a.octets())
    }
}

impl From<IpAddr> for Addr {
    fn from(a: IpAddr) -> Addr {
        match a {
            IpAddr::V4(a) => a.into(),
            IpAddr::V6(a) => a.into(),
        }
    }
}

impl From<Addr> for IpAddr {
    fn from(a: Addr) -> IpAddr {
        a.ip()
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}
