//! `selfCheck`: how often the gateway compares its incremental results with results computed from scratch.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::yaml::{Field, Fields};

/// The validated `selfCheck` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelfCheckConfig {
    /// `enabled`: whether to compare at all. Default true.
    pub enabled: bool,
    /// `interval`: the time between two comparisons. Default 5 minutes.
    pub interval: Duration,
    /// `changes`: a comparison starts earlier after this number of rounds that computed anything. Default 1000.
    pub changes: u64,
}

impl Default for SelfCheckConfig {
    fn default() -> Self {
        Self { enabled: true, interval: Duration::from_secs(300), changes: 1000 }
    }
}

const INTERVAL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
const CHANGES: RangeInclusive<u64> = 1..=1_000_000;

pub(super) fn decode(parent: &Fields<'_>) -> SelfCheckConfig {
    let mut config = SelfCheckConfig::default();
    parent.section("selfCheck", |fields| {
        fields.set("enabled", &mut config.enabled, Field::boolean);
        fields.set("interval", &mut config.interval, |f| f.duration(INTERVAL));
        fields.set("changes", &mut config.changes, |f| f.integer(CHANGES));
    });
    config
}
