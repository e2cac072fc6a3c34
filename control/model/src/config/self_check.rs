//! `selfCheck`: how often the gateway compares its incremental results with results computed from scratch.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::section::section;
use crate::yaml::Fields;

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
const CHANGES: RangeInclusive<i64> = 1..=1_000_000;

pub(super) fn decode(parent: &Fields<'_>) -> SelfCheckConfig {
    let mut config = SelfCheckConfig::default();
    section(parent, "selfCheck", |fields| {
        config.enabled = fields.get("enabled").and_then(|f| f.boolean()).unwrap_or(config.enabled);
        config.interval =
            fields.get("interval").and_then(|f| f.duration(INTERVAL)).unwrap_or(config.interval);
        let changes = fields.get("changes").and_then(|f| f.integer(CHANGES));
        config.changes = changes.and_then(|n| u64::try_from(n).ok()).unwrap_or(config.changes);
        Some(())
    });
    config
}
