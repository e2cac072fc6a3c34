//! Allocates a position for a new entry, and decides which flow is evicted for it.
//!
//! A new entry gets the first available of: a free position in its first hash bucket, then in its second; the position
//! of an expired flow; a position whose entry can move to its other hash bucket, after at most two moves; the position
//! of the lowest ranked flow that is not established ([`Rank`]); the position of the established flow that has been
//! idle longest, if long enough. Otherwise the new flow is refused. Once the table contains more entries than its
//! bound, flows that are not established are evicted before free positions are used, so that a flood replaces its own
//! entries. Above the bound, a service that has reached its share of the table replaces only its own flows, or flows
//! that are not established ([`Table::admit`]).
//!
//! A flood must not end the handshakes of others, which are opening flows like its own. So the network and the service
//! with the most opening flows lose theirs first ([`EvictionPriority`]): unanswered flows before answered ones, and the
//! oldest first. If the two hash buckets of a new flow contain no flow that clearly belongs to a flood, a sample of
//! other hash buckets is examined, and the lowest ranked flow is evicted. A new flow of a flood doesn't evict flows of
//! a service or network that has far fewer: it uses a free position, or is refused.
//!
//! Why entries are moved: without moves, tables that are two thirds full lose 10 % (three entries per hash bucket) to
//! 21 % (two) of new flows to full hash buckets. With moves they lose less than 0.2 %, and read 0.2 to 0.7 more hash
//! buckets per new flow, and none below half the bound. Why the first hash bucket is used, not the emptier one: more
//! flows are then found in the one that was prefetched (70 % at the bound, nearly all at half of it).
//!
//! Invariant: an established flow may be moved, but is evicted only if it has been idle for [`ESTABLISHED_IDLE_MIN_MS`]
//! and no other entry near the new flow can be evicted.

use std::cmp::Reverse;

use tidegate_spec::limits::{
    ESTABLISHED_IDLE_MIN_MS, EVICTION_SAMPLE, HALF_CLOSED_IDLE_MIN_MS, OPENING_FRESH_MS, OPENING_IDLE_MIN_MS,
    SHARE_SAMPLE,
};
use tidegate_spec::now::Now;

use super::counts::{EvictionPriority, Load};
use super::eviction_reason::EvictionReason;
use super::flow_state::{EvictionClass, Phase};
use super::insert_error::InsertError;
use super::key::{FlowHash, PackedKey};
use super::table::{FlowAge, Position, Table};

/// The properties of a new flow that determine which flows it may evict.
#[derive(Debug, Clone, Copy)]
struct Evictor {
    load: Load,
    /// How long an opening flow must have been idle to be evicted although a position may be free.
    fresh_ms: u32,
}

/// The order of eviction: the lowest rank first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    tier: Tier,
    /// Zero for flows that are not opening.
    priority: Reverse<EvictionPriority>,
    eviction_class: EvictionClass,
    idle_ms: Reverse<u32>,
}

/// The first part of a [`Rank`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// [`EvictionClass::Closed`] or [`EvictionClass::Closing`]: few packets of the flow are still expected.
    Over,
    /// [`EvictionClass::Unanswered`] or [`EvictionClass::Answered`].
    Opening,
    /// [`EvictionClass::HalfClosed`].
    HalfClosed,
    /// [`EvictionClass::Established`].
    Established,
}

impl Rank {
    fn new(v: &FlowAge, load: impl FnOnce() -> Load) -> Self {
        let tier = match v.status.eviction_class {
            EvictionClass::Closed | EvictionClass::Closing => Tier::Over,
            EvictionClass::Unanswered | EvictionClass::Answered => Tier::Opening,
            EvictionClass::HalfClosed => Tier::HalfClosed,
            EvictionClass::Established => Tier::Established,
        };
        let priority = if tier == Tier::Opening { load().priority } else { EvictionPriority::default() };
        Self {
            tier,
            priority: Reverse(priority),
            eviction_class: v.status.eviction_class,
            idle_ms: Reverse(v.idle_ms),
        }
    }

    /// Whether the flow is evicted without searching for a better candidate: it has ended, has a higher priority, or
    /// is, like the new flow, probably part of a flood.
    fn is_evicted_at_once(&self, new: Evictor) -> bool {
        let Reverse(priority) = self.priority;
        let is_of_this_flood = new.load.floods
            && priority == new.load.priority
            && (self.eviction_class == EvictionClass::Unanswered || priority.is_of_network())
            && self.idle_ms.0 >= new.fresh_ms;
        match self.tier {
            Tier::Over => true,
            Tier::Opening => priority > new.load.priority || is_of_this_flood,
            Tier::HalfClosed | Tier::Established => false,
        }
    }

    /// Whether the flow is evicted although a position may be free: it is not established, its service or network
    /// doesn't have far fewer flows, and its handshake has not just begun.
    fn is_evicted_before_free_positions(&self, new: Evictor) -> bool {
        let Reverse(priority) = self.priority;
        match self.tier {
            Tier::Over => true,
            Tier::Opening => {
                priority > new.load.priority
                    || !priority.is_far_below(new.load.priority) && self.idle_ms.0 >= new.fresh_ms
            }
            Tier::HalfClosed | Tier::Established => false,
        }
    }

    /// Whether the flow may be evicted if no position is free. If its service or network has far fewer flows, its
    /// handshake must have stalled.
    fn may_be_evicted(&self, new: Evictor) -> bool {
        match self.tier {
            Tier::Over | Tier::HalfClosed => true,
            Tier::Opening => {
                !self.priority.0.is_far_below(new.load.priority) || self.idle_ms.0 >= OPENING_IDLE_MIN_MS
            }
            Tier::Established => false,
        }
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Returns a free position for a new flow; a refusal is counted. A service that has reached its share of a full
    /// table replaces one of its own flows, or an unestablished flow of any service. If the two hash buckets contain no
    /// such flow, one in a sample is evicted, and the new flow uses any position. The new flow is refused if all flows
    /// of its service in the hash buckets and in a larger sample are established and in use. So the share doesn't
    /// penalize a service with many established flows when a flood fills the table.
    #[inline(always)]
    pub(super) fn admit(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        now: Now,
    ) -> Result<Position, InsertError> {
        if !self.is_over_share(flow.owner) {
            return self.allocate(flow, hash, now).ok_or(InsertError::Full);
        }
        self.admit_above_share(flow, hash, now)
    }

    /// [`Self::admit`] for a service that has reached its share of a full table.
    #[cold]
    #[inline(never)]
    fn admit_above_share(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        now: Now,
    ) -> Result<Position, InsertError> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.new_flow(flow));
        let own = self.lowest_in(homes, now, |table, position| table.service_of(position) == flow.owner);
        let at_once = |(rank, _): &(Rank, Position)| rank.is_evicted_at_once(new);
        let home = self.lowest_in(homes, now, |_, _| true);
        if let Some((_, position)) = own.filter(at_once).or_else(|| home.filter(at_once)) {
            self.remove(position, EvictionReason::ServiceShare);
            return Ok(position);
        }
        // The age doesn't matter, because the alternative is to refuse this flow.
        let any_age = Evictor { fresh_ms: 0, ..new };
        if let Some((position, is_home)) = self.lowest_in_sample(home, flow, hash, any_age, now) {
            self.remove(position, EvictionReason::ServiceShare);
            return if is_home {
                Ok(position)
            } else {
                self.allocate(flow, hash, now).ok_or(InsertError::Full)
            };
        }
        if let Some((_, position)) = own {
            self.remove(position, EvictionReason::ServiceShare);
            return Ok(position);
        }
        // The service owns much of the table, so other hash buckets contain one of its flows that can be evicted.
        let is_own =
            |table: &Self, position| table.service_of(position) == flow.owner && *flow != table.key(position);
        let Some((_, position)) = self.lowest_in(self.sample(hash, SHARE_SAMPLE), now, is_own) else {
            self.counters.refused += 1;
            return Err(InsertError::Share);
        };
        self.remove(position, EvictionReason::ServiceShare);
        self.allocate(flow, hash, now).ok_or(InsertError::Full)
    }

    /// Returns a free position for an entry with this hash. If no flow can be evicted for it, counts a refusal and
    /// returns `None`. `flow` is the new flow's key of the client's side. If that key is already in the table, the new
    /// entry is for replies, and the client's entry is not evicted.
    #[inline(always)]
    pub(super) fn allocate(&mut self, flow: &PackedKey<A>, hash: FlowHash, now: Now) -> Option<Position> {
        let within_bound = self.live < self.bound;
        if within_bound && let Some(position) = self.free_in_either(Self::homes(hash, self.buckets)) {
            return Some(position);
        }
        self.allocate_by_eviction(flow, hash, within_bound, now)
    }

    /// [`Self::allocate`] if no position is free, or the free ones are reserved.
    #[inline(never)]
    fn allocate_by_eviction(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Position> {
        let homes = Self::homes(hash, self.buckets);
        let entry = self.expired_in(homes[0], now).or_else(|| self.expired_in(homes[1], now));
        let entry = entry.or_else(|| self.evict_unestablished(flow, hash, within_bound, now));
        let entry = entry.or_else(|| self.evict_longest_idle(homes, now));
        if entry.is_none() {
            self.counters.refused += 1;
        }
        entry
    }

    /// Returns a free position for an entry with this hash. Evicts only expired flows. Below the bound,
    /// [`Self::allocate`] would return the same.
    #[inline]
    pub(super) fn free_position(&mut self, hash: FlowHash, now: Now) -> Option<Position> {
        let homes = Self::homes(hash, self.buckets);
        // Not `or_else`: the compiler wouldn't inline its closure.
        match self.free_in_either(homes) {
            Some(position) => Some(position),
            None => self.free_by_expiry(homes, now),
        }
    }

    #[inline(never)]
    fn free_by_expiry(&mut self, homes: [u32; 2], now: Now) -> Option<Position> {
        let entry = self.expired_in(homes[0], now).or_else(|| self.expired_in(homes[1], now));
        entry.or_else(|| self.free_by_moving(homes, now))
    }

    /// Returns the position of an evicted flow that was not established, or a free position if that is fairer. Within
    /// the bound, the two hash buckets have no free position when this is called.
    fn evict_unestablished(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Position> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.new_flow(flow));
        if !within_bound {
            let home = self.lowest_in(homes, now, |table, position| *flow != table.key(position));
            if let Some((_, position)) = home.filter(|(rank, _)| rank.is_evicted_at_once(new)) {
                self.remove(position, EvictionReason::TableFull);
                return Some(position);
            }
            if let Some((position, is_home)) = self.lowest_in_sample(home, flow, hash, new, now) {
                self.remove(position, EvictionReason::TableFull);
                if is_home {
                    return Some(position);
                }
            }
            if let Some(position) = self.free_in_either(homes) {
                return Some(position);
            }
        }
        if let Some(position) = self.free_by_moving(homes, now) {
            return Some(position);
        }
        let home = self.lowest_in(homes, now, |table, position| *flow != table.key(position));
        let (_, position) = home.filter(|(rank, _)| rank.may_be_evicted(new))?;
        let why = if within_bound { EvictionReason::BucketFull } else { EvictionReason::TableFull };
        self.remove(position, why);
        Some(position)
    }

    fn new_flow(&self, flow: &PackedKey<A>) -> Evictor {
        // Free positions above this limit are reserved for flows that will be established.
        let has_spare = self.live < self.bound + self.bound / 4;
        Evictor { load: self.load(flow), fresh_ms: if has_spare { OPENING_FRESH_MS } else { 0 } }
    }

    /// The lowest ranked flow among `home` and a sample of the table, if it can be evicted, and whether it is `home`.
    /// `home` is the lowest ranked flow of the new flow's own hash buckets.
    fn lowest_in_sample(
        &self,
        home: Option<(Rank, Position)>,
        flow: &PackedKey<A>,
        hash: FlowHash,
        new: Evictor,
        now: Now,
    ) -> Option<(Position, bool)> {
        let sample = self.sample(hash, EVICTION_SAMPLE);
        sample.clone().for_each(|bucket| self.prefetch_bucket(bucket));
        // The own state of at least one entry shows that a flow is not established, so peers are not read here.
        let far = self.lowest_in(sample, now, |table, position| {
            *flow != table.key(position) && table.phase(position) != Phase::Established
        });
        let is_home = match (&home, &far) {
            (Some(home), Some(far)) => home.0 <= far.0,
            (home, _) => home.is_some(),
        };
        let (rank, position) = if is_home { home? } else { far? };
        rank.is_evicted_before_free_positions(new).then_some((position, is_home))
    }

    /// Consecutive hash buckets, starting at one that the hash selects.
    fn sample(&self, hash: FlowHash, count: u32) -> impl Iterator<Item = u32> + Clone + use<A, W, K, B> {
        let (first, buckets) = (self.primary(FlowHash(hash.0.rotate_left(16))), self.buckets);
        (0..count.min(buckets)).map(move |n| {
            let bucket = u64::from(first) + u64::from(n);
            // The remainder is below the number of hash buckets, which is a `u32`.
            (bucket % u64::from(buckets)) as u32
        })
    }

    #[inline(always)]
    fn free_in_either(&self, homes: [u32; 2]) -> Option<Position> {
        self.free_in(homes[0]).or_else(|| self.free_in(homes[1]))
    }

    /// Removes an expired flow, and returns its position.
    fn expired_in(&mut self, bucket: u32, now: Now) -> Option<Position> {
        let divisor = self.pressure_divisor();
        let over = |position| self.expiry_reason(position, now, divisor).map(|why| (position, why));
        let (position, why) = self.positions(bucket).into_iter().find_map(over)?;
        self.remove(position, why);
        Some(position)
    }

    fn free_or_expired_in(&mut self, bucket: u32, now: Now) -> Option<Position> {
        self.free_in(bucket).or_else(|| self.expired_in(bucket, now))
    }

    /// The other hash bucket of an entry.
    fn other_bucket(&self, position: Position) -> u32 {
        let hash = self.hash_of(&self.key(position));
        let (own_bucket, primary) = (self.bucket_of(position), self.primary(hash));
        if own_bucket == primary { self.secondary(hash) } else { primary }
    }

    /// Frees a position in either hash bucket by moving its entry to its other hash bucket, where another entry may
    /// have to be moved first. Examines at most 2K + 2K² hash buckets.
    fn free_by_moving(&mut self, homes: [u32; 2], now: Now) -> Option<Position> {
        for position in homes.map(|bucket| self.positions(bucket)).into_iter().flatten() {
            let other = self.other_bucket(position);
            if let Some(to) = self.free_or_expired_in(other, now) {
                return Some(self.vacate(position, to));
            }
        }
        for position in homes.map(|bucket| self.positions(bucket)).into_iter().flatten() {
            let other = self.other_bucket(position);
            for between in self.positions(other) {
                let beyond = self.other_bucket(between);
                if let Some(to) = self.free_or_expired_in(beyond, now) {
                    let to = self.vacate(between, to);
                    return Some(self.vacate(position, to));
                }
                if self.is_empty(position) {
                    return Some(position);
                }
            }
        }
        None
    }

    /// Moves an entry away and returns its position, which may already be free if the entry's peer has just expired.
    fn vacate(&mut self, position: Position, to: Position) -> Position {
        if !self.is_empty(position) {
            self.relocate(position, to);
        }
        position
    }

    /// The lowest ranked flow of some hash buckets, among those that can be evicted.
    fn lowest_in(
        &self,
        buckets: impl IntoIterator<Item = u32>,
        now: Now,
        may: impl Fn(&Self, Position) -> bool,
    ) -> Option<(Rank, Position)> {
        let mut least: Option<(Rank, Position)> = None;
        for position in buckets.into_iter().flat_map(|bucket| self.positions(bucket)) {
            if self.is_empty(position) || !may(self, position) {
                continue;
            }
            let Some(v) = self.flow_age(position, now) else { continue };
            if v.idle_ms < idle_min_ms(v.status.eviction_class) {
                continue;
            }
            let rank = Rank::new(&v, || self.load_of(position));
            if least.is_none_or(|(least, _)| rank < least) {
                least = Some((rank, position));
            }
        }
        least
    }

    /// Evicts the established flow that has been idle longest among those whose position the new entry can use after up
    /// to two moves. Examines at most 2 + 2K + 2K² hash buckets.
    fn evict_longest_idle(&mut self, homes: [u32; 2], now: Now) -> Option<Position> {
        // A chain of positions: each entry except the last can move to the next.
        let mut longest: Option<(u32, [Position; 3])> = None;
        let consider = |table: &Self, longest: &mut Option<(u32, [Position; 3])>, chain: [Position; 3]| {
            let least = longest.map_or(ESTABLISHED_IDLE_MIN_MS, |(idle_ms, _)| idle_ms + 1);
            // A flow is idle no longer than either of its entries.
            if !table.is_empty(chain[2]) && table.own_idle_ms(chain[2], now) >= least {
                let idle_ms = table.flow_age(chain[2], now).map_or(0, |v| v.idle_ms);
                if idle_ms >= least {
                    *longest = Some((idle_ms, chain));
                }
            }
        };
        for home in homes.map(|bucket| self.positions(bucket)).into_iter().flatten() {
            consider(self, &mut longest, [home; 3]);
            if self.is_empty(home) {
                continue;
            }
            for between in self.positions(self.other_bucket(home)) {
                consider(self, &mut longest, [home, between, between]);
                if self.is_empty(between) {
                    continue;
                }
                for beyond in self.positions(self.other_bucket(between)) {
                    consider(self, &mut longest, [home, between, beyond]);
                }
            }
        }
        let (_, [home, between, beyond]) = longest?;
        self.remove(beyond, EvictionReason::LongestIdle);
        if beyond != between {
            self.vacate(between, beyond);
        }
        Some(if between != home { self.vacate(home, between) } else { home })
    }
}

/// How long a flow must have been idle to be evicted.
fn idle_min_ms(eviction_class: EvictionClass) -> u32 {
    match eviction_class {
        EvictionClass::Closed
        | EvictionClass::Unanswered
        | EvictionClass::Answered
        | EvictionClass::Closing => 0,
        EvictionClass::HalfClosed => HALF_CLOSED_IDLE_MIN_MS,
        EvictionClass::Established => ESTABLISHED_IDLE_MIN_MS,
    }
}
