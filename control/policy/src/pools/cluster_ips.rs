//! Removes the networks of cluster IPs from a pool.
//!
//! An API server assigns cluster IPs from its ServiceCIDRs, and every node handles packets to them. So a pool never
//! assigns addresses that are also in a ServiceCIDR. Pure.

use std::net::IpAddr;

use tidegate_model::objects::{AddressRange, IpFamily, Pool, number};

use super::range::address;

/// Removes the addresses of `networks` from a pool. Returns the ranges that were removed.
pub fn without_cluster_ips(pool: &mut Pool, networks: &[AddressRange]) -> Vec<AddressRange> {
    let mut removed = Vec::new();
    for network in networks {
        let ranges = std::mem::take(&mut pool.ranges);
        for range in ranges {
            if !range.overlaps(network) {
                pool.ranges.push(range);
                continue;
            }
            let first = range.first().max(network.first());
            let last = range.last().min(network.last());
            removed.extend(AddressRange::new(first, last));
            if first > range.first() {
                pool.ranges.extend(AddressRange::new(range.first(), neighbor(first, -1)));
            }
            if last < range.last() {
                pool.ranges.extend(AddressRange::new(neighbor(last, 1), range.last()));
            }
        }
    }
    removed
}

/// The address before (-1) or after (1) `ip`, within the same range.
fn neighbor(ip: IpAddr, step: i128) -> IpAddr {
    address(IpFamily::of(ip), number(ip).checked_add_signed(step).expect("the range continues there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> AddressRange {
        text.parse::<ipnet::IpNet>().expect("a network").into()
    }

    fn shown(ranges: &[AddressRange]) -> String {
        ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_pool_loses_the_addresses_of_each_network_and_keeps_all_others() {
        let cases = [
            (&["203.0.113.0/28"][..], &["10.96.0.0/16"][..], "203.0.113.0-203.0.113.15", ""),
            (&["10.96.0.0/24"], &["10.96.0.0/16"], "", "10.96.0.0-10.96.0.255"),
            (&["10.0.0.0/8"], &["10.0.0.0/9"], "10.128.0.0-10.255.255.255", "10.0.0.0-10.127.255.255"),
            (
                &["10.0.0.0/8"],
                &["10.96.0.0/16", "10.200.0.0/16"],
                "10.0.0.0-10.95.255.255 10.97.0.0-10.199.255.255 10.201.0.0-10.255.255.255",
                "10.96.0.0-10.96.255.255 10.200.0.0-10.200.255.255",
            ),
            (
                &["0.0.0.0/0"],
                &["255.255.255.0/24"],
                "0.0.0.0-255.255.254.255",
                "255.255.255.0-255.255.255.255",
            ),
            (
                &["203.0.113.0/28", "fd00::/64"],
                &["fd00::/112"],
                "203.0.113.0-203.0.113.15 fd00::1:0-fd00::ffff:ffff:ffff:ffff",
                "fd00::-fd00::ffff",
            ),
            (&["::/0"], &["::/0"], "", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ];
        for (ranges, networks, left, removed) in cases {
            let all = |texts: &[&str]| texts.iter().map(|text| range(text)).collect::<Vec<_>>();
            let mut pool = Pool::new("public", all(ranges));
            let gone = without_cluster_ips(&mut pool, &all(networks));
            assert_eq!((shown(&pool.ranges).as_str(), shown(&gone).as_str()), (left, removed), "{ranges:?}");
        }
    }
}
