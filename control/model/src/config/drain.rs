//! `drain`: when a gateway that withdraws its addresses counts as drained, and how long a stop waits for that.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::yaml::Fields;

/// The validated `drain` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainConfig {
    /// `quiet`: a draining gateway is drained when no packet has arrived for this time. Default 5 seconds.
    pub quiet: Duration,
    /// `stopTimeout`. Default: see [`DrainConfig::stop_timeout`].
    pub stop_timeout: Option<Duration>,
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self { quiet: Duration::from_secs(5), stop_timeout: None }
    }
}

/// The default of `stopTimeout` if the gateway announces addresses that it can withdraw.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const QUIET: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
const STOP: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);

impl DrainConfig {
    /// How long the gateway waits after SIGTERM until no packets arrive; `None` for no wait. By default it waits only
    /// if the gateway can withdraw its announcements (`is_withdrawable` of the section `announce`). Otherwise routers
    /// send packets until the last moment, and waiting would only delay the stop.
    #[must_use]
    pub fn stop_timeout(&self, is_withdrawable: bool) -> Option<Duration> {
        let default = is_withdrawable.then_some(STOP_TIMEOUT);
        self.stop_timeout.or(default).filter(|timeout| !timeout.is_zero())
    }
}

pub(super) fn decode(parent: &Fields<'_>) -> DrainConfig {
    let mut config = DrainConfig::default();
    parent.section("drain", |fields| {
        fields.set("quiet", &mut config.quiet, |f| f.duration(QUIET));
        config.stop_timeout = fields.read("stopTimeout", |f| f.duration(STOP));
    });
    config
}
