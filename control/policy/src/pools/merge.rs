//! Merges the pools of the configuration, which come first, with the `AddressPool` objects, ordered by name.
//!
//! Duplicate names and overlapping ranges are reported but don't cause a failure: the first pool with a name is used,
//! and an address in several pools belongs to the first of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::objects::{AddressPool, AddressRange, Pool};
use tidegate_model::shared_map::SharedMap;

/// A conflict of an `AddressPool` with other pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolFault {
    /// The configuration has a pool with this name, so the object is not used.
    NameTaken,
    /// It has addresses in common with another pool.
    Overlaps {
        /// The other pool.
        other: String,
        /// Its own range.
        range: AddressRange,
        /// The other pool's range.
        other_range: AddressRange,
    },
}

/// Returns all pools, and the faults of `AddressPool` objects by name. At most one overlap is reported for each object.
#[must_use]
pub fn merge(
    configured: &[Pool],
    objects: &SharedMap<String, Arc<AddressPool>>,
) -> (Vec<Pool>, BTreeMap<String, Vec<PoolFault>>) {
    let mut pools = configured.to_vec();
    let mut faults: BTreeMap<String, Vec<PoolFault>> = BTreeMap::new();
    if objects.is_empty() {
        return (pools, faults);
    }
    let taken: BTreeSet<&str> = configured.iter().map(|p| p.name.as_str()).collect();
    for (name, object) in objects {
        if taken.contains(name.as_str()) {
            faults.entry(name.clone()).or_default().push(PoolFault::NameTaken);
        } else {
            // A pool that is being deleted assigns no more addresses. It disappears when no Service uses one of its
            // addresses.
            let disabled = object.pool.disabled || object.meta.deletion_time.is_some();
            pools.push(Pool { disabled, ..object.pool.clone() });
        }
    }
    for (at, fault) in overlaps(&pools) {
        if at >= configured.len() {
            faults.entry(pools[at].name.clone()).or_default().push(fault);
        }
    }
    (pools, faults)
}

/// Finds one overlap for each pool that has any, in a sweep over all ranges ordered by their first address.
fn overlaps(pools: &[Pool]) -> BTreeMap<usize, PoolFault> {
    let mut all: Vec<(AddressRange, usize)> =
        pools.iter().enumerate().flat_map(|(at, p)| p.ranges.iter().map(move |r| (*r, at))).collect();
    all.sort_unstable();
    let mut found = BTreeMap::new();
    // The range so far with the highest last address, and the range with the highest last address among all other
    // pools.
    let mut furthest: Vec<(AddressRange, usize)> = Vec::with_capacity(2);
    for (range, at) in all {
        if let Some((other_range, other)) = furthest.iter().find(|(r, p)| *p != at && r.overlaps(&range)) {
            let fault = |of: usize, range: AddressRange, other_range: AddressRange| PoolFault::Overlaps {
                other: pools[of].name.clone(),
                range,
                other_range,
            };
            found.entry(at).or_insert_with(|| fault(*other, range, *other_range));
            found.entry(*other).or_insert_with(|| fault(at, *other_range, range));
        }
        furthest.push((range, at));
        furthest.sort_by_key(|(r, _)| std::cmp::Reverse(r.last()));
        let first = furthest[0].1;
        let second = furthest.iter().skip(1).find(|(_, p)| *p != first).copied();
        furthest.truncate(1);
        furthest.extend(second);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::objects::{AddressPoolStatus, Metadata, ObjectKey};

    fn pool(name: &str, networks: &[&str]) -> Pool {
        Pool::new(
            name,
            networks.iter().map(|n| n.parse::<ipnet::IpNet>().expect("tests use networks").into()).collect(),
        )
    }

    fn objects(pools: impl IntoIterator<Item = Pool>) -> SharedMap<String, Arc<AddressPool>> {
        let object = |pool: Pool| {
            let meta = Metadata::new(ObjectKey::new("", pool.name.clone()));
            let status = AddressPoolStatus::default();
            let name = pool.name.clone();
            let (faults, generation, is_finalized_by_us) = (vec![], 1, false);
            (name, Arc::new(AddressPool { meta, pool, faults, generation, is_finalized_by_us, status }))
        };
        pools.into_iter().map(object).collect()
    }

    #[test]
    fn pools_of_the_configuration_come_first_and_keep_their_names() {
        let (pools, faults) = merge(
            &[pool("zulu", &["203.0.113.0/28"])],
            &objects([
                pool("zulu", &["198.51.100.0/28"]),
                pool("beta", &["192.0.2.0/28"]),
                pool("alpha", &["192.0.2.16/28"]),
            ]),
        );
        let names: Vec<&str> = pools.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["zulu", "alpha", "beta"]);
        assert_eq!(pools[0].ranges[0].to_string(), "203.0.113.0-203.0.113.15");
        assert_eq!(faults, BTreeMap::from([("zulu".to_owned(), vec![PoolFault::NameTaken])]));
    }

    #[test]
    fn overlapping_pools_are_reported_once_for_each_object() {
        let (pools, faults) = merge(
            &[pool("config", &["203.0.113.0/24"])],
            &objects([
                pool("a", &["203.0.113.64/28", "203.0.113.80/28", "198.51.100.0/28"]),
                pool("b", &["198.51.100.8/29"]),
                pool("c", &["2001:db8::/64"]),
            ]),
        );
        assert_eq!(pools.len(), 4, "an overlap leaves every pool in use");
        let with = |name: &str| match faults.get(name).map(Vec::as_slice) {
            Some([PoolFault::Overlaps { other, .. }]) => other.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!((with("a").as_str(), with("b").as_str()), ("b", "a"));
        assert!(!faults.contains_key("c") && !faults.contains_key("config"));
    }
}
