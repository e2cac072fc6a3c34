//! The order in which gateways own a group of VIPs: by rendezvous, so that a gateway that leaves moves only its own groups.
//!
//! Pure. Each gateway computes the same order from the same live gateways. The hash is a protocol between gateways.

use tidegate_model::fnv::{START, fnv1a};

/// The gateways in the order of preference for this group.
pub(super) fn ranked<'a>(group: &str, gateways: impl Iterator<Item = &'a str>) -> Vec<String> {
    let hash = |gateway: &str| mix(fnv1a(fnv1a(fnv1a(START, gateway.bytes()), [0]), group.bytes()));
    let mut ranked: Vec<(u64, &str)> = gateways.map(|gateway| (hash(gateway), gateway)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().rev().map(|(_, gateway)| gateway.to_owned()).collect()
}

/// The finalizer of MurmurHash3: the order of FNV hashes of similar names would be the same for every group.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firsts(gateways: &[&str]) -> Vec<String> {
        let group = |bucket: u8| format!("tidegate-l2-all-{bucket:02}");
        (0..16).map(|bucket| ranked(&group(bucket), gateways.iter().copied())[0].clone()).collect()
    }

    #[test]
    fn groups_are_spread_over_gateways_and_one_that_leaves_moves_only_its_own() {
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
}
