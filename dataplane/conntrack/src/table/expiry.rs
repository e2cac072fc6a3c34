//! When a flow has expired, and the walk that removes expired flows.
//!
//! The idle timeout depends on the state of the flow: of the pair, in tables of pairs. In a table under memory
//! pressure, opening flows have shorter timeouts ([`Table::pressure_divisor`]).
//!
//! Promises: [`Table::is_expired`] is exact; [`Table::looks_expired`] is exact for one of the entries of a pair. Only
//! [`Table::age`] removes anything.

use tidegate_spec::limits::FLOW_PRESSURE;
use tidegate_spec::now::Now;

use super::{Place, SEEN, Table};
use crate::eviction_reason::EvictionReason;
use crate::flow_state::{CLOSED_MS, FlowStatus, IDLE_MIN_MS, Phase, State};

/// The status of a flow, and how long it has been idle. In tables of pairs, of both entries together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowAge {
    pub(crate) status: FlowStatus,
    pub(crate) idle_ms: u32,
}

impl FlowAge {
    pub(crate) fn expired(&self) -> bool {
        self.idle_ms >= self.status.timeout_ms
    }

    /// Whether the flow has expired in a table under memory pressure, where opening flows have shorter timeouts.
    fn expired_under_pressure(&self, divisor: u32) -> bool {
        let timeout_ms = self.status.timeout_ms;
        self.idle_ms
            >= if self.status.is_opening() { timeout_under_pressure(timeout_ms, divisor) } else { timeout_ms }
    }
}

/// The timeout of an opening flow in a table under memory pressure.
fn timeout_under_pressure(timeout_ms: u32, divisor: u32) -> u32 {
    (timeout_ms / divisor).max(IDLE_MIN_MS)
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// The divisor for the timeouts of opening flows at the current fill level.
    pub(crate) fn pressure_divisor(&self) -> u32 {
        let pressed = FLOW_PRESSURE.iter().find(|(percent, _)| self.live * 100 >= self.bound * percent);
        pressed.map_or(1, |(_, divisor)| *divisor)
    }

    /// How long ago this direction sent, in milliseconds.
    #[inline]
    pub(crate) fn own_idle_ms(&self, place: Place, now: Now) -> u32 {
        let age = now.millis().wrapping_sub(self.entry(place)[SEEN]);
        // A timestamp ahead of now (by less than 24 days) counts as age zero.
        if age > u32::MAX / 2 { 0 } else { age }
    }

    /// The status and the idle time of the flow: of the pair, in tables of pairs.
    pub(crate) fn flow_age(&self, place: Place, now: Now) -> Option<FlowAge> {
        let (own, idle) = (self.state(place)?, self.idle_timeout(place));
        let own_idle_ms = self.own_idle_ms(place, now);
        let Some((peer, state)) = self.peer(place).and_then(|peer| Some((peer, self.state(peer)?))) else {
            return Some(FlowAge { status: own.alone(idle), idle_ms: own_idle_ms });
        };
        let (client, server) = if self.is_reply(place) { (state, own) } else { (own, state) };
        let idle_ms = own_idle_ms.min(self.own_idle_ms(peer, now));
        Some(FlowAge { status: State::of_both(client, server, idle), idle_ms })
    }

    /// Whether the flow has expired. Exact. Does not read the peer of a flow that is in use.
    #[inline]
    pub(crate) fn is_expired(&self, place: Place, now: Now) -> bool {
        // No state has a shorter timeout, so a flow in use costs one comparison.
        if now.millis().wrapping_sub(self.entry(place)[SEEN]) < IDLE_MIN_MS {
            return false;
        }
        let Some(state) = self.state(place) else { return false };
        let (idle, own_idle_ms) = (self.idle_timeout(place), self.own_idle_ms(place, now));
        if !Self::PAIRED {
            return own_idle_ms >= state.alone(idle).timeout_ms;
        }
        // The shortest timeout that any state of the pair can have.
        own_idle_ms >= CLOSED_MS.min(idle.millis()) && self.flow_age(place, now).is_some_and(|v| v.expired())
    }

    /// Why the flow has expired, if it has. Unlike [`Self::is_expired`], it applies shorter timeouts to opening flows
    /// when the table is under memory pressure ([`Self::pressure_divisor`]), and reads the peer only if the entry has
    /// expired by its own state. A pair that has expired by the state of its other entry is found from that entry. For
    /// walks over many entries.
    #[inline]
    pub(crate) fn looks_expired(&self, place: Place, now: Now, divisor: u32) -> Option<EvictionReason> {
        let state = self.state(place)?;
        let mut shortest_ms = state.shortest_ms(self.idle_timeout(place), Self::PAIRED);
        // An affinity entry is not a flow: it lasts for the affinity timeout of its service.
        let divisor = if self.is_affinity(place) { 1 } else { divisor };
        if divisor > 1 && state.phase() == Phase::Opening {
            shortest_ms = timeout_under_pressure(shortest_ms, divisor);
        }
        if self.own_idle_ms(place, now) < shortest_ms {
            return None;
        }
        let age = self.flow_age(place, now)?;
        if age.expired() {
            Some(EvictionReason::Expired)
        } else {
            age.expired_under_pressure(divisor).then_some(EvictionReason::Pressure)
        }
    }

    /// Removes the expired flows of the next `buckets` buckets. Returns how many.
    pub(crate) fn age(&mut self, now: Now, buckets: usize) -> usize {
        let mut removed = 0;
        let divisor = self.pressure_divisor();
        for _ in 0..buckets.min(self.buckets as usize) {
            if self.live == 0 {
                break;
            }
            for place in self.places(self.cursor) {
                if let Some(why) = self.looks_expired(place, now, divisor) {
                    self.remove(place, why);
                    removed += 1;
                }
            }
            self.cursor = if self.cursor + 1 == self.buckets { 0 } else { self.cursor + 1 };
        }
        removed
    }

    /// Prefetches the buckets that the next [`Self::age`] examines.
    #[inline]
    pub(crate) fn prefetch_age(&self, buckets: usize) {
        for bucket in (self.cursor..self.buckets).take(buckets) {
            self.prefetch_bucket(bucket);
        }
    }
}
