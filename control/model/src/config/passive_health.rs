//! `health.passive`: the reaction to new connections that backends refuse or ignore, in `nat` and `fullnat`.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_spec::PassiveHealth;
use tidegate_spec::limits::RETRIES_MAX;

use crate::yaml::Fields;

const SET_ASIDE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// The values of the annotation that [`passive_health`] accepts.
pub const PASSIVE_HEALTH_ACCEPTED: &str = "on, off";

/// Reads whether a Service has passive health.
pub fn passive_health(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

pub(super) fn decode(health: &Fields<'_>) -> PassiveHealth {
    let mut rules = PassiveHealth::default();
    health.section("passive", |fields| {
        fields.set("failures", &mut rules.failures, |f| f.integer(0..=100));
        fields.set("retries", &mut rules.retries, |f| f.integer(0..=RETRIES_MAX));
        fields.set("maxShare", &mut rules.share_max, |f| f.integer(1..=100));
        fields.set("setAside", &mut rules.set_aside, |f| f.duration(SET_ASIDE));
    });
    rules
}
