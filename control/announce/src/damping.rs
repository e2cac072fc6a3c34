//! Delays the announcement of flapping VIPs. Each change costs routers work, and they may suppress a prefix that
//! changes often (RFC 2439) for much longer than this module does.
//!
//! The first withdrawal causes no delay. Each further one within [`STABLE`] doubles the time until the VIP may be
//! announced again. Withdrawals are never delayed.
//!
//! Invariant: nothing here reads a clock; `now` is an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// After this time without a change, the flaps of a VIP are forgotten.
pub const STABLE: Duration = Duration::from_secs(300);
/// The delay after the second withdrawal.
pub const DELAY_MIN: Duration = Duration::from_secs(1);
/// The longest delay.
pub const DELAY_MAX: Duration = Duration::from_secs(64);

#[derive(Debug, Clone, Copy)]
struct Flaps {
    count: u32,
    /// When the VIP was last announced or withdrawn.
    changed: Instant,
    /// When the VIP may be announced again.
    until: Instant,
}

/// The VIPs that were withdrawn recently.
#[derive(Debug, Default)]
pub struct Damping(BTreeMap<IpAddr, Flaps>);

impl Damping {
    /// Records that a VIP was announced.
    pub fn announced(&mut self, vip: IpAddr, now: Instant) {
        if let Some(flaps) = self.0.get_mut(&vip) {
            flaps.changed = now;
        }
    }

    /// Records that an announced VIP was withdrawn.
    pub fn withdrawn(&mut self, vip: IpAddr, now: Instant) {
        let flaps = self.0.entry(vip).or_insert(Flaps { count: 0, changed: now, until: now });
        if now.saturating_duration_since(flaps.changed) >= STABLE {
            flaps.count = 0;
        }
        flaps.count = flaps.count.saturating_add(1);
        flaps.changed = now;
        flaps.until = now + delay(flaps.count);
    }

    /// Until when the VIP must not be announced.
    #[must_use]
    pub fn until(&self, vip: IpAddr, now: Instant) -> Option<Instant> {
        self.0.get(&vip).map(|flaps| flaps.until).filter(|&until| until > now)
    }

    /// Removes the VIPs that have been stable, announced or not.
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, flaps| now.saturating_duration_since(flaps.changed.max(flaps.until)) < STABLE);
    }
}

/// The delay after this many withdrawals.
fn delay(count: u32) -> Duration {
    match count {
        0 | 1 => Duration::ZERO,
        n => DELAY_MIN.saturating_mul(1 << (n - 2).min(16)).min(DELAY_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_that_flaps_waits_longer_each_time_and_a_stable_one_does_not_wait() {
        let (vip, start) = ("203.0.113.1".parse().unwrap(), Instant::now());
        let mut damping = Damping::default();
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..10 {
            damping.withdrawn(vip, now);
            let until = damping.until(vip, now).unwrap_or(now);
            waits.push((until - now).as_secs());
            now = until;
            assert_eq!(damping.until(vip, now), None);
            damping.announced(vip, now);
            now += Duration::from_secs(1);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
        now += STABLE;
        damping.withdrawn(vip, now);
        assert_eq!(damping.until(vip, now), None, "it was stable");
        damping.forget(now + STABLE);
        assert!(damping.0.is_empty());
    }
}
