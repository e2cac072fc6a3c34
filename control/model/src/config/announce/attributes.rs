//! Reads the route attributes of peers and pools.

use std::ops::RangeInclusive;

use crate::objects::{COMMUNITIES_MAX, COMMUNITY_ACCEPTED, PREPENDS_MAX, PoolRoutes, RouteAttributes};
use crate::yaml::{Field, Fields};

/// The accepted lengths of IPv4 aggregates.
pub(super) const AGGREGATION_V4: RangeInclusive<u8> = 8..=32;
/// The accepted lengths of IPv6 aggregates.
pub(super) const AGGREGATION_V6: RangeInclusive<u8> = 16..=128;

/// Reads the keys `communities`, `localPref`, `med` and `prepends`.
pub(super) fn decode(fields: &Fields<'_>) -> RouteAttributes {
    let number = |key| fields.read(key, |f| f.integer(0..=u32::MAX));
    let list = fields.items("communities");
    if let Some(beyond) = list.get(COMMUNITIES_MAX) {
        beyond.error("there are too many communities", format!("at most {COMMUNITIES_MAX}"));
    }
    let read = |field: &Field<'_>| field.parsed(|text| text.parse().ok(), COMMUNITY_ACCEPTED);
    RouteAttributes {
        communities: list.iter().filter_map(read).collect(),
        prepends: fields.read("prepends", |f| f.integer(0..=PREPENDS_MAX)),
        local_pref: number("localPref"),
        med: number("med"),
    }
    .sorted()
}

/// Reads the key `bgp` of a pool.
pub(in crate::config) fn of_pool(pool: &Fields<'_>) -> PoolRoutes {
    let read = pool.section("bgp", |fields| PoolRoutes {
        attributes: decode(fields),
        aggregation_v4: fields.read("aggregationLength", |f| f.integer(AGGREGATION_V4)),
        aggregation_v6: fields.read("aggregationLengthV6", |f| f.integer(AGGREGATION_V6)),
    });
    read.unwrap_or_default()
}
