//! The SYN cookie state of a worker between bursts: the secret, the services under flood, and counts.
//!
//! `cookies` sends and accepts the cookies.

use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_snapshot::counters::Tallies;
use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::{BURST, COOKIES_FROM, COOKIES_MIN_MS, COOKIES_SERVICES_MAX, COOKIES_TABLE_SHARE};
use tidegate_spec::now::Now;
use tidegate_structures::selection_key::SelectionKey;

/// How long after the last cookie was sent a client may return one: two cookie periods.
const RETURNED_WITHIN: Duration = Duration::from_secs(128);

/// Counts of cookie events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CookieCounts {
    /// SYNs answered with a cookie.
    pub sent: u64,
    /// Connections created by a returned cookie.
    pub accepted: u64,
    /// Segments of unknown connections without a valid cookie, while one could be returned.
    pub refused: u64,
}

#[derive(Debug)]
pub(super) struct Cookies {
    pub(super) key: SelectionKey,
    /// The number of opening entries at which a service is under flood.
    pub(super) from: u32,
    /// The services under flood, each with the start of the flood.
    pub(super) flooded: ArrayVec<(ServiceId, Now), COOKIES_SERVICES_MAX>,
    /// The services that are reported as under flood in the tallies.
    reported: ArrayVec<ServiceId, COOKIES_SERVICES_MAX>,
    pub(super) last_sent: Option<Now>,
    pub(super) counts: CookieCounts,
}

impl Cookies {
    /// `secret` is shared by all workers of the gateway, and `entries` is the size of a flow table.
    pub(super) fn new(secret: u64, entries: usize) -> Self {
        // A flow has two entries. `COOKIES_FROM` fits a `u32`.
        let from = (2 * entries / COOKIES_TABLE_SHARE).clamp(2, COOKIES_FROM) as u32;
        let (flooded, reported) = (ArrayVec::new(), ArrayVec::new());
        let key = SelectionKey::of_worker(secret);
        Self { key, from, flooded, reported, last_sent: None, counts: CookieCounts::default() }
    }

    /// Whether a service with this number of opening entries is under flood now. A flood starts at the limit and ends
    /// below half of it.
    pub(super) fn is_under_flood(&mut self, service: ServiceId, opening: u32, now: Now) -> bool {
        let Some(at) = self.flooded.iter().position(|(id, _)| *id == service) else {
            return opening >= self.from && self.flooded.try_push((service, now)).is_ok();
        };
        let expired = now.since(self.flooded[at].1) >= Duration::from_millis(u64::from(COOKIES_MIN_MS));
        let over = expired && opening < self.from / 2;
        if over {
            self.flooded.swap_remove(at);
        }
        !over
    }

    /// Whether a service with this number of opening entries is under flood, or may be before the end of a burst.
    #[inline]
    pub(super) fn is_near_flood(&self, service: ServiceId, opening: u32) -> bool {
        // A flow has two entries.
        let end_of_burst = opening.saturating_add(2 * BURST as u32);
        end_of_burst >= self.from || self.flooded.iter().any(|(id, _)| *id == service)
    }

    /// Reports the services under flood.
    pub(super) fn report(&mut self, tallies: &Tallies) {
        let Self { flooded, reported, .. } = self;
        for &id in &*reported {
            if flooded.iter().all(|(one, _)| *one != id) {
                tallies.publish_flood(id, false);
            }
        }
        *reported = flooded.iter().map(|(id, _)| *id).collect();
        for &id in &*reported {
            tallies.publish_flood(id, true);
        }
    }

    pub(super) fn may_return(&self, now: Now) -> bool {
        self.last_sent.is_some_and(|sent| now.since(sent) <= RETURNED_WITHIN)
    }
}
