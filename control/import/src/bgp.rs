//! What all load balancers have in common in BGP: defaults, timers, and why some settings are not converted.

use std::time::Duration;

use tidegate_model::yaml::Field;

use crate::note::{NoteKind, Notes};

/// The default port.
pub(crate) const PORT: i64 = 179;
/// The default interval of BFD packets.
pub(crate) const BFD_INTERVAL: Duration = Duration::from_millis(300);
/// The default number of missing BFD packets.
pub(crate) const BFD_MULTIPLIER: u32 = 3;
/// The default hold time.
const HOLD_TIME: Duration = Duration::from_secs(90);

/// Why selectors of nodes for a peer are not converted.
pub(crate) const PEER_NODES: &str =
    "each gateway has its own configuration: keep the peer only where it is needed";
/// Why router IDs are not converted.
pub(crate) const ROUTER_ID: &str = "each gateway needs a router ID of its own, also while both load balancers run; the \
    default is its first IPv4 address (announce.bgp.routerId)";
/// Why source addresses are not converted.
pub(crate) const SOURCE_ADDRESS: &str = "sessions use the addresses of dataplane.interfaces";
/// Why connect timers are not converted.
pub(crate) const CONNECT_TIME: &str = "not configurable";

/// The hold time of a session; `None` also if it is 0, which Tidegate does not have.
pub(crate) fn hold_time(notes: &Notes, field: &Field<'_>) -> Option<Duration> {
    if field.node.text().is_some_and(|text| text.trim_end_matches('s') == "0") {
        notes.add(
            NoteKind::NoCounterpart,
            field,
            "a session without a hold time; the default of 90s is used",
        );
        return None;
    }
    field.duration(Duration::from_secs(3)..=Duration::from_secs(65_535))
}

/// A time in seconds, at least `shortest`.
pub(crate) fn seconds(field: &Field<'_>, shortest: i64) -> Option<Duration> {
    field.integer(shortest..=65_535).and_then(|n| u64::try_from(n).ok()).map(Duration::from_secs)
}

/// Why a length of aggregates is not converted.
pub(crate) fn short_aggregate(shortest: i64) -> String {
    format!("an aggregate has at least /{shortest}; the addresses are announced one by one")
}

/// Why keepalive times are not converted.
pub(crate) const KEEPALIVE: &str = "a keepalive is sent every third of the hold time";

/// Whether a keepalive time is not the third of the hold time that the gateway uses.
pub(crate) fn differs(hold_time: Option<Duration>, keepalive: Duration) -> bool {
    keepalive.as_secs() != (hold_time.unwrap_or(HOLD_TIME) / 3).as_secs()
}
