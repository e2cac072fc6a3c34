//! The order in which gateways own a group of VIPs: those that serve more of its Services come first, then rendezvous
//! hashing decides, so that a gateway that disappears moves only its own groups.
//!
//! Pure. All gateways compute the same order from the same live gateways, so the hash is a protocol between gateways.

use std::cmp::Reverse;

use tidegate_model::fnv::{START, fnv1a};

/// A gateway that may own a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranked {
    pub(super) name: String,
    /// The number of Services of the group that it doesn't serve fully.
    pub(super) lacking: usize,
}

/// The gateways in order of preference for this group, each with the number of Services that it lacks.
pub(super) fn ranked<'a>(group: &str, gateways: impl Iterator<Item = (&'a str, usize)>) -> Vec<Ranked> {
    let hash = |gateway: &str| mix(fnv1a(fnv1a(fnv1a(START, gateway.bytes()), [0]), group.bytes()));
    let mut ranked: Vec<_> =
        gateways.map(|(gateway, lacking)| (lacking, Reverse((hash(gateway), gateway)))).collect();
    ranked.sort_unstable();
    ranked.dedup();
    let order = ranked.into_iter();
    order.map(|(lacking, Reverse((_, name)))| Ranked { name: name.to_owned(), lacking }).collect()
}

/// The finalizer of MurmurHash3. Without it, FNV hashes of similar names would have the same order in every group.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firsts(gateways: &[&str]) -> Vec<String> {
        let group = |n: u8| format!("tidegate-l2-all-{n:02}");
        (0..16).map(|n| ranked(&group(n), gateways.iter().map(|name| (*name, 0)))[0].name.clone()).collect()
    }

    #[test]
    fn groups_spread_over_gateways_and_a_removed_one_moves_only_its_own() {
        let before = firsts(&["edge-1", "edge-2", "edge-3"]);
        for gateway in ["edge-1", "edge-2", "edge-3"] {
            let share = before.iter().filter(|first| *first == gateway).count();
            assert!((2..=9).contains(&share), "{gateway} has {share} of 16");
        }
        let after = firsts(&["edge-3", "edge-1"]);
        for (was, is) in before.iter().zip(&after) {
            assert!(was == is || was == "edge-2", "{was} -> {is}");
        }
    }

    #[test]
    fn a_gateway_that_serves_more_of_a_group_comes_first() {
        for n in 0..16 {
            let group = format!("tidegate-l2-all-{n:02}");
            let all = ranked(&group, [("edge-1", 2), ("edge-2", 0), ("edge-3", 1)].into_iter());
            let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["edge-2", "edge-3", "edge-1"]);
        }
    }
}
