//! Formats points in time for display and for the Kubernetes API.

use jiff::Timestamp;

/// The time in whole seconds, rounded towards zero.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
