//! Address ranges of pools: as other load balancers write them, and without the addresses that they leave out.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use tidegate_model::objects::AddressRange;
use tidegate_model::yaml::{Field, text};

/// What MetalLB and kube-vip accept.
pub(crate) const RANGE: &str = "a CIDR such as 192.0.2.0/24, or a range such as 192.0.2.10-192.0.2.20";
/// What Cilium accepts in `cidr`.
pub(crate) const CIDR: &str = "a CIDR such as 192.0.2.0/24 or 2001:db8::/64";

/// Reads a CIDR or a range. Host bits of a CIDR are ignored, as the other load balancers do.
pub(crate) fn range(field: &Field<'_>) -> Option<AddressRange> {
    field.parsed(parse, RANGE)
}

/// A CIDR or a range as text.
pub(crate) fn parse(written: &str) -> Option<AddressRange> {
    let written = written.trim();
    match text::ip_range(written) {
        Some((first, last)) => AddressRange::new(first, last),
        None => text::cidr(written).map(|net| AddressRange::from(net.trunc())),
    }
}

/// The text of a range in a pool: a CIDR if it is one, otherwise an address or `a-b`.
pub(crate) fn written(range: &AddressRange) -> String {
    let (first, last) = (range.first(), range.last());
    let longest = if first.is_ipv4() { 32 } else { 128 };
    let is_range = |net: &IpNet| net.network() == first && net.broadcast() == last;
    let net = (0..=longest).filter_map(|length| IpNet::new(first, length).ok()).find(is_range);
    match net {
        Some(_) if first == last => first.to_string(),
        Some(net) => net.to_string(),
        None => range.to_string(),
    }
}

/// A range without its first and its last address. One of two addresses or fewer stays as it is.
pub(crate) fn without_ends(range: AddressRange) -> AddressRange {
    if range.size() <= 2 {
        return range;
    }
    let moved = |ip: IpAddr, up: bool| match ip {
        IpAddr::V4(ip) => {
            let number = u32::from(ip);
            IpAddr::V4((if up { number + 1 } else { number - 1 }).into())
        }
        IpAddr::V6(ip) => {
            let number = u128::from(ip);
            IpAddr::V6((if up { number + 1 } else { number - 1 }).into())
        }
    };
    AddressRange::new(moved(range.first(), true), moved(range.last(), false))
        .expect("three addresses or more")
}

/// The most parts into which [`without_0_and_255`] divides a range.
const PARTS_MAX: u32 = 1024;

/// The parts of an IPv4 range without the addresses that end in .0 and .255, which may be none; `None` if there are too
/// many parts. An IPv6 range is returned unchanged.
pub(crate) fn without_0_and_255(range: AddressRange) -> Option<Vec<AddressRange>> {
    let (IpAddr::V4(first), IpAddr::V4(last)) = (range.first(), range.last()) else {
        return Some(vec![range]);
    };
    let (first, last) = (u32::from(first), u32::from(last));
    let (from, to) = (first >> 8, last >> 8);
    let part = |block: u32| {
        let [low, high] = [first.max(block << 8 | 1), last.min(block << 8 | 254)].map(Ipv4Addr::from);
        AddressRange::new(low.into(), high.into())
    };
    (to - from < PARTS_MAX).then(|| (from..=to).filter_map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        parse(text).expect("a range")
    }

    #[test]
    fn a_range_is_written_as_a_cidr_if_it_is_one() {
        for (read, expected) in [
            ("198.51.100.10/24", "198.51.100.0/24"),
            ("198.51.100.0 - 198.51.100.255", "198.51.100.0/24"),
            ("198.51.100.1-198.51.100.9", "198.51.100.1-198.51.100.9"),
            ("198.51.100.7/32", "198.51.100.7"),
            ("2001:db8::/124", "2001:db8::/124"),
            ("::1-::3", "::1-::3"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(written(&range(read)), expected);
        }
        for wrong in ["198.51.100.7", "198.51.100.9-198.51.100.1", "198.51.100.1-2001:db8::1", "", "x/24"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_first_and_the_last_address_are_left_out_if_others_remain() {
        assert_eq!(written(&without_ends(range("192.0.2.0/24"))), "192.0.2.1-192.0.2.254");
        assert_eq!(written(&without_ends(range("2001:db8::/126"))), "2001:db8::1-2001:db8::2");
        assert_eq!(written(&without_ends(range("192.0.2.0/31"))), "192.0.2.0/31");
        assert_eq!(written(&without_ends(range("192.0.2.0/32"))), "192.0.2.0");
    }

    #[test]
    fn addresses_that_end_in_0_or_255_are_left_out() {
        let parts =
            |text: &str| without_0_and_255(range(text)).map(|parts| parts.iter().map(written).collect());
        let none: Vec<String> = Vec::new();
        assert_eq!(parts("10.0.0.255-10.0.1.0"), Some(none));
        assert_eq!(parts("10.0.0.250-10.0.2.3"), {
            let parts = ["10.0.0.250-10.0.0.254", "10.0.1.1-10.0.1.254", "10.0.2.1-10.0.2.3"];
            Some(parts.map(str::to_owned).into())
        });
        assert_eq!(parts("2001:db8::/120"), Some(vec!["2001:db8::/120".to_owned()]));
        assert_eq!(parts("10.0.0.0/8"), None);
    }
}
