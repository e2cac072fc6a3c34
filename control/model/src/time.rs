//! Formats points in time for people and for the Kubernetes API.

use jiff::Timestamp;

/// In whole seconds, rounded towards zero.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
