//! A range of addresses of one family. Pools consist of such ranges.
//!
//! Arithmetic only; `pools` decides which Service gets which address.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::IpFamily;

/// A range from the first to the last address, both included, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// The range from `first` to `last`, or `None` if the families differ or `last` is before `first`.
    #[must_use]
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        (IpFamily::of(first) == IpFamily::of(last) && first <= last).then_some(Self { first, last })
    }

    /// The first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// The range extended to a later last address, which must have the same family.
    #[must_use]
    pub fn up_to(self, last: IpAddr) -> Self {
        debug_assert_eq!(IpFamily::of(last), self.family(), "a range is of one family");
        Self { last: self.last.max(last), ..self }
    }

    /// The family of both ends.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.first)
    }

    /// Whether the range contains the address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        IpFamily::of(ip) == self.family() && self.first <= ip && ip <= self.last
    }

    /// Whether the two ranges overlap.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The first address of this range that none of the others contains, and the number of such addresses.
    #[must_use]
    pub fn outside<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Option<(IpAddr, u128)> {
        let mut others: Vec<&Self> = others.into_iter().filter(|other| other.overlaps(self)).collect();
        others.sort_unstable();
        let (mut first, mut count) = (None, 0_u128);
        let mut next = Some(self.first);
        for other in others {
            let Some(from) = next else { break };
            if other.first > from {
                first.get_or_insert(from);
                count += number(other.first) - number(from);
            }
            if other.last >= from {
                next = (other.last < self.last).then(|| successor(other.last));
            }
        }
        if let Some(from) = next {
            first.get_or_insert(from);
            count = count.saturating_add(number(self.last) - number(from)).saturating_add(1);
        }
        Some((first?, count))
    }

    /// The number of addresses. The whole of IPv6 counts one less, to fit in a `u128`.
    #[must_use]
    pub fn size(&self) -> u128 {
        (number(self.last) - number(self.first)).saturating_add(1)
    }
}

/// The next address. `ip` must not be the last of its family.
fn successor(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4).wrapping_add(1)).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6).wrapping_add(1)).into()),
    }
}

/// An address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl From<IpNet> for AddressRange {
    /// Every address of the CIDR, network and broadcast included.
    fn from(net: IpNet) -> Self {
        Self { first: net.network(), last: net.broadcast() }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_adjoin_cover_what_none_of_them_covers_alone() {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').expect("a range");
            AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).expect("in order")
        };
        let pools = [range("10.0.0.8-10.0.0.15"), range("10.0.0.0-10.0.0.7"), range("::-::f")];
        let outside = |text: &str| range(text).outside(&pools).map(|(ip, count)| format!("{ip} {count}"));
        assert_eq!(outside("10.0.0.0-10.0.0.15"), None);
        assert_eq!(outside("10.0.0.4-10.0.0.9"), None);
        assert_eq!(outside("10.0.0.4-10.0.0.16").as_deref(), Some("10.0.0.16 1"));
        assert_eq!(outside("9.255.255.255-10.0.0.1").as_deref(), Some("9.255.255.255 1"));
        assert_eq!(outside("0.0.0.0-255.255.255.255").as_deref(), Some("0.0.0.0 4294967280"));
        assert_eq!(outside("192.0.2.0-192.0.2.1").as_deref(), Some("192.0.2.0 2"));
        assert_eq!(outside("::-::f"), None);
        let gaps = [range("10.0.0.2-10.0.0.3"), range("10.0.0.2-10.0.0.2"), range("10.0.0.6-10.0.0.9")];
        let found = range("10.0.0.0-10.0.0.7").outside(&gaps);
        assert_eq!(found, Some(("10.0.0.0".parse().unwrap(), 4)));
        assert_eq!(
            range("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff").outside(&pools[2..]),
            Some(("::10".parse().unwrap(), u128::MAX - 15))
        );
    }
}
