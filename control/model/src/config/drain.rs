//! `drain`: how a gateway that withdraws its addresses decides that nothing comes any more, and how long a stop waits
//! for that.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::section::section;
use crate::yaml::Fields;

/// The validated `drain` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainConfig {
    /// `quiet`: a draining gateway is drained when no packet has come for this time. Default 5 seconds.
    pub quiet: Duration,
    /// `stopTimeout`: how long SIGTERM waits for that. Default: see [`DrainConfig::stop_timeout`].
    pub stop_timeout: Option<Duration>,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self { quiet: Duration::from_secs(5), stop_timeout: None }
    }
}

/// The default of `stopTimeout` if the gateway announces addresses that it can withdraw.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// The accepted range of `quiet`.
const QUIET: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// The accepted range of `stopTimeout`.
const STOP: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);

impl DrainConfig {
    /// How long SIGTERM waits until nothing comes any more; `None` if it does not wait. Without the key it waits only if
    /// the gateway has something to withdraw (`is_withdrawable` of the section `announce`): otherwise routers send their packets until the last moment, and waiting
    /// would only delay the stop.
    #[must_use]
    pub fn stop_timeout(&self, is_withdrawable: bool) -> Option<Duration> {
        let default = is_withdrawable.then_some(STOP_TIMEOUT);
        self.stop_timeout.or(default).filter(|timeout| !timeout.is_zero())
    }
}

pub(super) fn decode(parent: &Fields<'_>) -> DrainConfig {
    let mut config = DrainConfig::default();
    section(parent, "drain", |fields| {
        config.quiet = fields.get("quiet").and_then(|f| f.duration(QUIET)).unwrap_or(config.quiet);
        config.stop_timeout = fields.get("stopTimeout").and_then(|f| f.duration(STOP));
        Some(())
    });
    config
}
