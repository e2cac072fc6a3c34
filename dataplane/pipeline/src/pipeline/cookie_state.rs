//! What a worker knows of its SYN cookies between bursts: their secret, the services under flood, and counts.
//!
//! `cookies` sends and accepts them.

use std::time::Duration;

use arrayvec::ArrayVec;
use tidegate_snapshot::counters::Tallies;
use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::{COOKIES_FROM, COOKIES_HOLD_MS, COOKIES_SERVICES_MAX, COOKIES_TABLE_SHARE};
use tidegate_spec::now::Now;
use tidegate_structures::selection_key::SelectionKey;

/// How long after the last cookie one may come back: two periods of a cookie.
const RETURNED_WITHIN: Duration = Duration::from_secs(128);

/// How often each of these happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CookieCounts {
    /// SYNs answered with a cookie.
    pub sent: u64,
    /// Connections begun by a returned cookie.
    pub accepted: u64,
    /// Segments of unknown connections without a valid cookie, while one could come back.
    pub refused: u64,
}

/// What a worker knows of its SYN cookies.
#[derive(Debug)]
pub(super) struct Cookies {
    pub(super) key: SelectionKey,
    /// The opening entries of a service from which on it is under flood.
    pub(super) from: u32,
    /// The services under flood, with the moment when that began.
    pub(super) flooded: ArrayVec<(ServiceId, Now), COOKIES_SERVICES_MAX>,
    /// The services that the tallies show as under flood.
    told: ArrayVec<ServiceId, COOKIES_SERVICES_MAX>,
    pub(super) last_sent: Option<Now>,
    pub(super) counts: CookieCounts,
}

impl Cookies {
    /// No cookie has been sent. `secret` is the same for all workers of the gateway, and `entries` is the size of a flow
    /// table.
    pub(super) fn new(secret: u64, entries: usize) -> Self {
        // A flow has two entries. At most `COOKIES_FROM`, which fits.
        let from = (2 * entries / COOKIES_TABLE_SHARE).clamp(2, COOKIES_FROM) as u32;
        let (flooded, told) = (ArrayVec::new(), ArrayVec::new());
        let key = SelectionKey::of_worker(secret);
        Self { key, from, flooded, told, last_sent: None, counts: CookieCounts::default() }
    }

    /// Whether a service with this number of opening entries is under flood now: from the limit on until there are less
    /// than half as many.
    pub(super) fn is_under_flood(&mut self, service: ServiceId, opening: u32, now: Now) -> bool {
        let Some(at) = self.flooded.iter().position(|(id, _)| *id == service) else {
            return opening >= self.from && self.flooded.try_push((service, now)).is_ok();
        };
        let held = now.since(self.flooded[at].1) >= Duration::from_millis(u64::from(COOKIES_HOLD_MS));
        let over = held && opening < self.from / 2;
        if over {
            self.flooded.swap_remove(at);
        }
        !over
    }

    /// Tells which services are under flood.
    pub(super) fn report(&mut self, tallies: &Tallies) {
        let Self { flooded, told, .. } = self;
        for &id in &*told {
            if flooded.iter().all(|(one, _)| *one != id) {
                tallies.tell_flood(id, false);
            }
        }
        *told = flooded.iter().map(|(id, _)| *id).collect();
        for &id in &*told {
            tallies.tell_flood(id, true);
        }
    }

    /// Whether a cookie may come back now.
    pub(super) fn may_return(&self, now: Now) -> bool {
        self.last_sent.is_some_and(|sent| now.since(sent) <= RETURNED_WITHIN)
    }
}
