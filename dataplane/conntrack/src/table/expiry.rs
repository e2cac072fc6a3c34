//! Expiry of flows, and the walk that removes expired ones.
//!
//! The idle timeout depends on the state of the flow; in tables of pairs, on the states of both entries. In a table
//! under memory pressure, opening flows have shorter timeouts ([`Table::pressure_divisor`]).
//!
//! Invariant: [`Table::is_expired`] is exact; [`Table::expiry_reason`] is exact for at least one entry of a pair. Only
//! [`Table::age`] removes flows.

use tidegate_spec::limits::FLOW_PRESSURE;
use tidegate_spec::now::Now;

use super::{Position, SEEN, Table};
use crate::eviction_reason::EvictionReason;
use crate::flow_state::{CLOSED_MS, FlowStatus, IDLE_MIN_MS, Phase, SideState};

/// The status and the idle time of a flow. In tables of pairs, both entries count.
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

    /// The idle time of this direction, in milliseconds.
    #[inline]
    pub(crate) fn own_idle_ms(&self, position: Position, now: Now) -> u32 {
        let age = now.millis().wrapping_sub(self.entry(position)[SEEN]);
        // A timestamp in the future (by less than 24 days) counts as age zero.
        if age > u32::MAX / 2 { 0 } else { age }
    }

    /// The status and the idle time of the flow. In tables of pairs, both entries count.
    pub(crate) fn flow_age(&self, position: Position, now: Now) -> Option<FlowAge> {
        let (own, idle) = (self.state(position)?, self.idle_timeout(position));
        let own_idle_ms = self.own_idle_ms(position, now);
        let Some((peer, state)) = self.peer(position).and_then(|peer| Some((peer, self.state(peer)?))) else {
            return Some(FlowAge { status: own.alone(idle), idle_ms: own_idle_ms });
        };
        let (client, server) = if self.is_reply(position) { (state, own) } else { (own, state) };
        let idle_ms = own_idle_ms.min(self.own_idle_ms(peer, now));
        Some(FlowAge { status: SideState::of_both(client, server, idle), idle_ms })
    }

    /// Whether the flow has expired. Exact. Doesn't read the peer of a flow in use.
    #[inline]
    pub(crate) fn is_expired(&self, position: Position, now: Now) -> bool {
        // No state has a shorter timeout, so a flow in use costs one comparison.
        if now.millis().wrapping_sub(self.entry(position)[SEEN]) < IDLE_MIN_MS {
            return false;
        }
        let Some(state) = self.state(position) else { return false };
        let (idle, own_idle_ms) = (self.idle_timeout(position), self.own_idle_ms(position, now));
        if !Self::PAIRED {
            return own_idle_ms >= state.alone(idle).timeout_ms;
        }
        // The shortest timeout that any state of the pair can have.
        own_idle_ms >= CLOSED_MS.min(idle.millis())
            && self.flow_age(position, now).is_some_and(|v| v.expired())
    }

    /// Why the flow has expired, if it has. For walks over many entries: it applies shorter timeouts to opening flows
    /// under memory pressure ([`Self::pressure_divisor`]), and reads the peer only if the entry has expired by its own
    /// state. A pair that has expired by the state of its other entry is found at that entry.
    #[inline]
    pub(crate) fn expiry_reason(&self, position: Position, now: Now, divisor: u32) -> Option<EvictionReason> {
        let state = self.state(position)?;
        let mut shortest_ms = state.shortest_ms(self.idle_timeout(position), Self::PAIRED);
        // An affinity entry is not a flow: it lasts for the affinity timeout of its service.
        let divisor = if self.is_affinity(position) { 1 } else { divisor };
        if divisor > 1 && state.phase() == Phase::Opening {
            shortest_ms = timeout_under_pressure(shortest_ms, divisor);
        }
        if self.own_idle_ms(position, now) < shortest_ms {
            return None;
        }
        let age = self.flow_age(position, now)?;
        if age.expired() {
            Some(EvictionReason::Expired)
        } else {
            age.expired_under_pressure(divisor).then_some(EvictionReason::Pressure)
        }
    }

    /// Removes the expired flows of the next `buckets` hash buckets. Returns how many.
    pub(crate) fn age(&mut self, now: Now, buckets: usize) -> usize {
        let mut removed = 0;
        let divisor = self.pressure_divisor();
        for _ in 0..buckets.min(self.buckets as usize) {
            if self.live == 0 {
                break;
            }
            for position in self.positions(self.cursor) {
                if let Some(why) = self.expiry_reason(position, now, divisor) {
                    self.remove(position, why);
                    removed += 1;
                }
            }
            self.cursor = if self.cursor + 1 == self.buckets { 0 } else { self.cursor + 1 };
        }
        removed
    }

    /// Prefetches the hash buckets that the next [`Self::age`] examines.
    #[inline]
    pub(crate) fn prefetch_age(&self, buckets: usize) {
        for bucket in (self.cursor..self.buckets).take(buckets) {
            self.prefetch_bucket(bucket);
        }
    }
}
