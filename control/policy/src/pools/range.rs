//! The ranges of a pool as one sequence, and the bands in which addresses are chosen (`docs/kubernetes.md`, section
//! 6).
//!
//! Arithmetic only. An address becomes a number, and a pool's ranges of one family become one [`Span`] of offsets
//! from 0. The span has a static band below an offset and a dynamic band above it, as Kubernetes has for cluster IPs
//! (KEP-3070).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidegate_model::objects::{AddressRange, IpFamily, Pool, number};

/// The addresses of a pool and family as one sequence, without gaps or duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Sorted, disjoint.
    ranges: Vec<AddressRange>,
    size: u128,
}

/// A part of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// Offset of its first address.
    pub start: u128,
    /// The number of addresses.
    pub size: u128,
}

impl Span {
    /// Joins ranges of one family into one sequence. Overlapping parts count once.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = AddressRange>) -> Self {
        let mut sorted: Vec<AddressRange> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<AddressRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if last.contains(range.first()) => *last = last.up_to(range.last()),
                _ => merged.push(range),
            }
        }
        let size = merged.iter().fold(0_u128, |n, r| n.saturating_add(r.size()));
        Self { ranges: merged, size }
    }

    /// The addresses of one family in a pool.
    #[must_use]
    pub fn of(pool: &Pool, family: IpFamily) -> Self {
        Self::new(pool.ranges.iter().filter(|r| r.family() == family).copied())
    }

    /// The number of addresses.
    #[must_use]
    pub fn size(&self) -> u128 {
        self.size
    }

    /// The address at an offset.
    #[must_use]
    pub fn at(&self, mut offset: u128) -> Option<IpAddr> {
        for range in &self.ranges {
            if offset < range.size() {
                return Some(address(range.family(), number(range.first()) + offset));
            }
            offset -= range.size();
        }
        None
    }

    /// Dynamic band, then static band: the order of the search for a free address.
    #[must_use]
    pub fn bands(&self) -> [Band; 2] {
        let offset = static_band_size(self.size);
        [Band { start: offset, size: self.size - offset }, Band { start: 0, size: offset }]
    }
}

/// `min(max(16, size/16), 256)`, and 0 if there are at most 16 addresses.
fn static_band_size(size: u128) -> u128 {
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

pub(super) fn address(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(number).expect("an offset within an IPv4 range")))
        }
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    fn net(s: &str) -> AddressRange {
        s.parse::<IpNet>().expect("tests use valid networks").into()
    }

    #[test]
    fn the_static_band_follows_the_rule_of_cluster_ips() {
        for (size, expected) in
            [(0, 0), (1, 0), (16, 0), (17, 16), (256, 16), (512, 32), (4096, 256), (65536, 256)]
        {
            assert_eq!(static_band_size(size), expected, "of {size}");
        }
    }

    #[test]
    fn ranges_that_overlap_count_once_and_offsets_run_through_all() {
        let span = Span::new([net("192.0.2.8/30"), net("192.0.2.0/31"), net("192.0.2.8/31")]);
        assert_eq!(span.size(), 6);
        let all: Vec<String> = (0..7).filter_map(|i| span.at(i)).map(|a| a.to_string()).collect();
        assert_eq!(all, ["192.0.2.0", "192.0.2.1", "192.0.2.8", "192.0.2.9", "192.0.2.10", "192.0.2.11"]);
    }

    #[test]
    fn a_range_of_two_families_or_backwards_is_none() {
        let ip = |s: &str| s.parse::<IpAddr>().expect("an address");
        assert!(AddressRange::new(ip("192.0.2.9"), ip("192.0.2.1")).is_none());
        assert!(AddressRange::new(ip("192.0.2.9"), ip("2001:db8::1")).is_none());
        assert_eq!(AddressRange::new(ip("192.0.2.1"), ip("192.0.2.9")).map(|r| r.size()), Some(9));
    }

    #[test]
    fn all_of_ipv6_does_not_overflow() {
        let span = Span::new([net("::/0")]);
        assert!(span.at(span.size() - 1).is_some());
        assert_eq!(span.bands()[1].size, 256);
    }
}
