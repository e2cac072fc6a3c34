//! Reads the route attributes of peers and pools.

use std::ops::RangeInclusive;

use crate::objects::{COMMUNITIES_MAX, COMMUNITY_ACCEPTED, PREPENDS_MAX, PoolRoutes, RouteAttributes};
use crate::yaml::{Field, Fields};

use crate::config::section::section;

/// The accepted lengths of IPv4 aggregates.
pub(super) const AGGREGATION_V4: RangeInclusive<i64> = 8..=32;
/// The accepted lengths of IPv6 aggregates.
pub(super) const AGGREGATION_V6: RangeInclusive<i64> = 16..=128;

/// Reads the keys `communities`, `localPref`, `med` and `prepends`.
pub(super) fn decode(fields: &Fields<'_>) -> RouteAttributes {
    let number = |key| {
        fields
            .get(key)
            .and_then(|f: Field<'_>| f.integer(0..=i64::from(u32::MAX)))
            .and_then(|n| u32::try_from(n).ok())
    };
    let list = fields.items("communities");
    if let Some(beyond) = list.get(COMMUNITIES_MAX) {
        beyond.error("there are too many communities", format!("at most {COMMUNITIES_MAX}"));
    }
    let read = |field: &Field<'_>| field.parsed(|text| text.parse().ok(), COMMUNITY_ACCEPTED);
    let prepends = fields.get("prepends").and_then(|f| f.integer(0..=i64::from(PREPENDS_MAX)));
    RouteAttributes {
        communities: list.iter().filter_map(read).collect(),
        local_pref: number("localPref"),
        med: number("med"),
        prepends: prepends.and_then(|n| u8::try_from(n).ok()),
    }
    .sorted()
}

/// Reads the key `bgp` of a pool.
pub(in crate::config) fn of_pool(pool: &Fields<'_>) -> PoolRoutes {
    let read = section(pool, "bgp", |fields| {
        let length =
            |key, range| fields.get(key).and_then(|f| f.integer(range)).and_then(|n| u8::try_from(n).ok());
        Some(PoolRoutes {
            attributes: decode(fields),
            aggregation_v4: length("aggregationLength", AGGREGATION_V4),
            aggregation_v6: length("aggregationLengthV6", AGGREGATION_V6),
        })
    });
    read.unwrap_or_default()
}
