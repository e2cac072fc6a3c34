//! Points in time as people and the Kubernetes API have them.

use jiff::Timestamp;

/// In whole seconds, rounded towards zero.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
