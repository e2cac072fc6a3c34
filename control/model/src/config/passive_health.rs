//! `health.passive`: the reaction to new connections that backends refuse or ignore, in `nat` and `fullnat`.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_spec::PassiveHealth;
use tidegate_spec::limits::RETRIES_MAX;

use super::section::section;
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
    section(health, "passive", |fields| {
        let number = |key, range: RangeInclusive<u8>| {
            let number = fields.get(key)?.integer(i64::from(*range.start())..=i64::from(*range.end()))?;
            u8::try_from(number).ok()
        };
        rules.failures = number("failures", 0..=100).unwrap_or(rules.failures);
        rules.retries = number("retries", 0..=RETRIES_MAX).unwrap_or(rules.retries);
        rules.share_max = number("maxShare", 1..=100).unwrap_or(rules.share_max);
        let aside = fields.get("setAside").and_then(|field| field.duration(SET_ASIDE));
        rules.set_aside = aside.unwrap_or(rules.set_aside);
        Some(())
    });
    rules
}
