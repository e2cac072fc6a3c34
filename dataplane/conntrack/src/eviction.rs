//! Allocates a place for a new entry, and decides which flow is evicted for it.
//!
//! A new entry gets, in this order: a free place in its first hash bucket, then in its second; the place of a flow that
//! has ended; a place whose entry can move to its other bucket, at most two moves deep; the place of the flow that
//! ranks lowest among those that are not established ([`Rank`]); the place of the established flow that has been idle
//! longest, if that is long enough. Otherwise the new flow is refused. Once the table holds more than its bound, flows
//! that are not established are evicted before free places are used, so that a flood replaces its own entries. Above
//! the bound, a service that has reached its share of the table replaces its own flows, or flows that are not
//! established, or none ([`Table::admit`]).
//!
//! A flood must not end the handshakes of others, which are opening flows like its own. So the opening flows of the
//! network and of the service that have the most of them are evicted first ([`EvictionPriority`]); among these, the
//! unanswered flows; and among these, the oldest. If the two buckets of a new flow have no flow that clearly belongs to
//! a flood, some other buckets are examined, and the flow of the lowest rank is evicted. A new flow of a flood doesn't
//! evict a flow of a service or network that has far fewer: it uses a free place, or is refused.
//!
//! Why moves: without them, tables that are two thirds full and in use lose 10 % (three entries a bucket) to 21 %
//! (two) of new flows to full buckets; with them less than 0.2 %, at the cost of reading 0.2 to 0.7 more buckets per
//! new flow, and none below half the bound. Why the first bucket and not the emptier one: more flows are found in the
//! bucket that was prefetched (70 % at the bound, nearly all at half of it).
//!
//! Invariant: an established flow that is in use may be moved, but is never evicted. One is evicted only when it has
//! been idle for [`ESTABLISHED_IDLE_MIN_MS`] and no other entry near the new flow can be.

use std::cmp::Reverse;

use tidegate_spec::limits::{
    DOUBTFUL_IDLE_MIN_MS, ESTABLISHED_IDLE_MIN_MS, EVICTION_SAMPLE, OPENING_FRESH_MS, OPENING_IDLE_MIN_MS,
    SHARE_SAMPLE,
};
use tidegate_spec::now::Now;

use super::counts::{EvictionPriority, Load};
use super::eviction_reason::EvictionReason;
use super::flow_state::{EvictionClass, Phase};
use super::key::{FlowHash, PackedKey};
use super::table::{FlowAge, Place, Table};

/// Why a new flow is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmitError {
    /// Every flow that could be evicted is established and in use.
    Full,
    /// The service has reached its share of a full table, and none of its flows can be evicted.
    Share,
}

/// The properties of a new flow that decide which flows it may evict.
#[derive(Debug, Clone, Copy)]
struct NewFlow {
    load: Load,
    /// How long an opening flow must have been idle to be evicted although there may be a free place.
    fresh_ms: u32,
}

/// The order in which flows are evicted: the smallest rank first.
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
    /// [`EvictionClass::Doubtful`].
    Doubtful,
    /// [`EvictionClass::Established`].
    Established,
}

impl Rank {
    fn new(v: &FlowAge, load: impl FnOnce() -> Load) -> Self {
        let tier = match v.status.eviction_class {
            EvictionClass::Closed | EvictionClass::Closing => Tier::Over,
            EvictionClass::Unanswered | EvictionClass::Answered => Tier::Opening,
            EvictionClass::Doubtful => Tier::Doubtful,
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

    /// Whether the flow is evicted for the new one without a search for a better one: it has ended, or has a larger
    /// priority, or is, like the new one, probably part of a flood.
    fn is_evicted_at_once(&self, new: NewFlow) -> bool {
        let Reverse(priority) = self.priority;
        let is_of_this_flood = new.load.floods
            && priority == new.load.priority
            && (self.eviction_class == EvictionClass::Unanswered || priority.is_of_network())
            && self.idle_ms.0 >= new.fresh_ms;
        match self.tier {
            Tier::Over => true,
            Tier::Opening => priority > new.load.priority || is_of_this_flood,
            Tier::Doubtful | Tier::Established => false,
        }
    }

    /// Whether the flow is evicted for the new one although there may be a free place: it is not established, its
    /// service or network does not have far fewer flows, and its handshake has not just begun.
    fn is_evicted_before_free_places(&self, new: NewFlow) -> bool {
        let Reverse(priority) = self.priority;
        match self.tier {
            Tier::Over => true,
            Tier::Opening => {
                priority > new.load.priority
                    || !priority.is_far_below(new.load.priority) && self.idle_ms.0 >= new.fresh_ms
            }
            Tier::Doubtful | Tier::Established => false,
        }
    }

    /// Whether the flow may be evicted for the new one if there is no free place. If its service or network has far
    /// fewer flows, it is evicted only if its handshake has stalled.
    fn may_be_evicted(&self, new: NewFlow) -> bool {
        match self.tier {
            Tier::Over | Tier::Doubtful => true,
            Tier::Opening => {
                !self.priority.0.is_far_below(new.load.priority) || self.idle_ms.0 >= OPENING_IDLE_MIN_MS
            }
            Tier::Established => false,
        }
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Returns a free place for a new flow, and counts a refusal. A service that has reached its share of a full table
    /// replaces a flow of its own, or a flow of any service that is not established. If its two buckets have none, one
    /// flow of a sample is evicted, and the new flow uses any place. It is refused if all flows of the service in the
    /// buckets and in a larger sample are established and in use. So a flood that fills the table with flows that are
    /// not established doesn't turn the share against a service that has many established flows.
    #[inline(always)]
    pub(super) fn admit(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        now: Now,
    ) -> Result<Place, AdmitError> {
        if !self.is_over_share(flow.owner) {
            return self.allocate(flow, hash, now).ok_or(AdmitError::Full);
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
    ) -> Result<Place, AdmitError> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.new_flow(flow));
        let own = self.least_in(homes, now, |table, place| table.service_of(place) == flow.owner);
        let at_once = |(rank, _): &(Rank, Place)| rank.is_evicted_at_once(new);
        let home = self.least_in(homes, now, |_, _| true);
        if let Some((_, place)) = own.filter(at_once).or_else(|| home.filter(at_once)) {
            self.remove(place, EvictionReason::ServiceShare);
            return Ok(place);
        }
        // The age does not matter here: the alternative is to refuse this flow.
        let any_age = NewFlow { fresh_ms: 0, ..new };
        if let Some((place, is_home)) = self.least_of_more(home, flow, hash, any_age, now) {
            self.remove(place, EvictionReason::ServiceShare);
            return if is_home { Ok(place) } else { self.allocate(flow, hash, now).ok_or(AdmitError::Full) };
        }
        if let Some((_, place)) = own {
            self.remove(place, EvictionReason::ServiceShare);
            return Ok(place);
        }
        // The two buckets have no flow of the service that can be evicted, but others do, as it has much of the table.
        let is_own = |table: &Self, place| table.service_of(place) == flow.owner && *flow != table.key(place);
        let Some((_, place)) = self.least_in(self.sample(hash, SHARE_SAMPLE), now, is_own) else {
            self.counters.refused += 1;
            return Err(AdmitError::Share);
        };
        self.remove(place, EvictionReason::ServiceShare);
        self.allocate(flow, hash, now).ok_or(AdmitError::Full)
    }

    /// Returns a free place for an entry with this hash of a new flow. If no flow there can be evicted, counts a
    /// refusal and returns `None`. `flow` is the key of the client's side. If that key is already in the table, the
    /// place is for the entry of the reply, and the client's entry is not evicted.
    #[inline(always)]
    pub(super) fn allocate(&mut self, flow: &PackedKey<A>, hash: FlowHash, now: Now) -> Option<Place> {
        let within_bound = self.live < self.bound;
        if within_bound && let Some(place) = self.free_in_either(Self::homes(hash, self.buckets), None) {
            return Some(place);
        }
        self.allocate_by_eviction(flow, hash, within_bound, now)
    }

    /// [`Self::allocate`] if no place is free, or the free places are reserved.
    #[inline(never)]
    fn allocate_by_eviction(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Place> {
        let homes = Self::homes(hash, self.buckets);
        let entry = self.expired_in(homes[0], now).or_else(|| self.expired_in(homes[1], now));
        let entry = entry.or_else(|| self.evict_unestablished(flow, hash, within_bound, now));
        let entry = entry.or_else(|| self.evict_longest_idle(homes, now));
        if entry.is_none() {
            self.counters.refused += 1;
        }
        entry
    }

    /// Two free places for the entries with these hashes of a new flow, if nothing has to be evicted for it: the table
    /// is below its bound, and each entry has a free place in one of its buckets. [`Self::allocate`] returns the same
    /// two.
    pub(super) fn free_for_pair(&self, hash: FlowHash, reply_hash: FlowHash) -> Option<[Place; 2]> {
        if self.live + 1 >= self.bound {
            return None;
        }
        let place = self.free_in_either(Self::homes(hash, self.buckets), None)?;
        Some([place, self.free_in_either(Self::homes(reply_hash, self.buckets), Some(place))?])
    }

    /// Returns a free place for an entry with this hash. Evicts only flows that have expired.
    pub(super) fn free_place(&mut self, hash: FlowHash, now: Now) -> Option<Place> {
        let homes = [self.primary(hash), self.secondary(hash)];
        let entry = self.free_in_either(homes, None).or_else(|| self.expired_in(homes[0], now));
        let entry = entry.or_else(|| self.expired_in(homes[1], now));
        entry.or_else(|| self.free_by_moving(homes, now))
    }

    /// Returns the place of a flow that is not established, or a free place where that is fairer. Within the bound, the
    /// two buckets have no free place when this is called.
    fn evict_unestablished(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Place> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.new_flow(flow));
        if !within_bound {
            let home = self.least_in(homes, now, |table, place| *flow != table.key(place));
            if let Some((_, place)) = home.filter(|(rank, _)| rank.is_evicted_at_once(new)) {
                self.remove(place, EvictionReason::TableFull);
                return Some(place);
            }
            if let Some((place, is_home)) = self.least_of_more(home, flow, hash, new, now) {
                self.remove(place, EvictionReason::TableFull);
                if is_home {
                    return Some(place);
                }
            }
            if let Some(place) = self.free_in_either(homes, None) {
                return Some(place);
            }
        }
        if let Some(place) = self.free_by_moving(homes, now) {
            return Some(place);
        }
        let home = self.least_in(homes, now, |table, place| *flow != table.key(place));
        let (_, place) = home.filter(|(rank, _)| rank.may_be_evicted(new))?;
        let why = if within_bound { EvictionReason::BucketFull } else { EvictionReason::TableFull };
        self.remove(place, why);
        Some(place)
    }

    fn new_flow(&self, flow: &PackedKey<A>) -> NewFlow {
        // Free places above this limit are reserved for flows that will be established.
        let has_spare = self.live < self.bound + self.bound / 4;
        NewFlow { load: self.load(flow), fresh_ms: if has_spare { OPENING_FRESH_MS } else { 0 } }
    }

    /// The flow of least rank among a sample of the table and `home`, which is the least flow of the new flow's own
    /// buckets, if it can be evicted; and whether it is `home`.
    fn least_of_more(
        &self,
        home: Option<(Rank, Place)>,
        flow: &PackedKey<A>,
        hash: FlowHash,
        new: NewFlow,
        now: Now,
    ) -> Option<(Place, bool)> {
        let sample = self.sample(hash, EVICTION_SAMPLE);
        sample.clone().for_each(|bucket| self.prefetch_bucket(bucket));
        // If a flow is not established, at least one of its two entries shows that by itself.
        let far = self.least_in(sample, now, |table, place| {
            *flow != table.key(place) && table.phase(place) != Phase::Established
        });
        let is_home = match (&home, &far) {
            (Some(home), Some(far)) => home.0 <= far.0,
            (home, _) => home.is_some(),
        };
        let (rank, place) = if is_home { home? } else { far? };
        rank.is_evicted_before_free_places(new).then_some((place, is_home))
    }

    /// A row of buckets that starts at one chosen by the hash.
    fn sample(&self, hash: FlowHash, count: u32) -> impl Iterator<Item = u32> + Clone + use<A, W, K, B> {
        let (first, buckets) = (self.primary(FlowHash(hash.0.rotate_left(16))), self.buckets);
        (0..count.min(buckets)).map(move |n| {
            let bucket = u64::from(first) + u64::from(n);
            // The remainder is below the number of buckets, which is a `u32`.
            (bucket % u64::from(buckets)) as u32
        })
    }

    #[inline(always)]
    fn free_in_either(&self, homes: [u32; 2], taken: Option<Place>) -> Option<Place> {
        self.free_in(homes[0], taken).or_else(|| self.free_in(homes[1], taken))
    }

    /// Removes a flow that has expired, and returns its place.
    fn expired_in(&mut self, bucket: u32, now: Now) -> Option<Place> {
        let divisor = self.pressure_divisor();
        let over = |place| self.looks_expired(place, now, divisor).map(|why| (place, why));
        let (place, why) = self.places(bucket).into_iter().find_map(over)?;
        self.remove(place, why);
        Some(place)
    }

    fn free_or_expired_in(&mut self, bucket: u32, now: Now) -> Option<Place> {
        self.free_in(bucket, None).or_else(|| self.expired_in(bucket, now))
    }

    /// The other of the two buckets of an entry.
    fn other_bucket(&self, place: Place) -> u32 {
        let hash = self.hash_of(&self.key(place));
        let (here, primary) = (self.bucket_of(place), self.primary(hash));
        if here == primary { self.secondary(hash) } else { primary }
    }

    /// Frees a place in either bucket by moving its entry to its other bucket, where another entry may have to be
    /// moved first. Examines at most 2K + 2K² buckets.
    fn free_by_moving(&mut self, homes: [u32; 2], now: Now) -> Option<Place> {
        for place in homes.map(|bucket| self.places(bucket)).into_iter().flatten() {
            let other = self.other_bucket(place);
            if let Some(to) = self.free_or_expired_in(other, now) {
                return Some(self.vacate(place, to));
            }
        }
        for place in homes.map(|bucket| self.places(bucket)).into_iter().flatten() {
            let other = self.other_bucket(place);
            for between in self.places(other) {
                let beyond = self.other_bucket(between);
                if let Some(to) = self.free_or_expired_in(beyond, now) {
                    let to = self.vacate(between, to);
                    return Some(self.vacate(place, to));
                }
                if self.is_empty(place) {
                    return Some(place);
                }
            }
        }
        None
    }

    /// Moves an entry away and returns its place, which may already be free if the entry's peer expired elsewhere.
    fn vacate(&mut self, place: Place, to: Place) -> Place {
        if !self.is_empty(place) {
            self.relocate(place, to);
        }
        place
    }

    /// The flow of the least rank in some buckets, among those that can be evicted.
    fn least_in(
        &self,
        buckets: impl IntoIterator<Item = u32>,
        now: Now,
        may: impl Fn(&Self, Place) -> bool,
    ) -> Option<(Rank, Place)> {
        let mut least: Option<(Rank, Place)> = None;
        for place in buckets.into_iter().flat_map(|bucket| self.places(bucket)) {
            if self.is_empty(place) || !may(self, place) {
                continue;
            }
            let Some(v) = self.flow_age(place, now) else { continue };
            if v.idle_ms < idle_min_ms(v.status.eviction_class) {
                continue;
            }
            let rank = Rank::new(&v, || self.load_of(place));
            if least.is_none_or(|(least, _)| rank < least) {
                least = Some((rank, place));
            }
        }
        least
    }

    /// Evicts the established flow that has been idle longest among those whose place the new entry can use after up to
    /// two moves. Examines at most 2 + 2K + 2K² buckets.
    fn evict_longest_idle(&mut self, homes: [u32; 2], now: Now) -> Option<Place> {
        // A chain of places: the entry at each but the last can move to the next.
        let mut longest: Option<(u32, [Place; 3])> = None;
        let look = |table: &Self, longest: &mut Option<(u32, [Place; 3])>, chain: [Place; 3]| {
            let least = longest.map_or(ESTABLISHED_IDLE_MIN_MS, |(idle_ms, _)| idle_ms + 1);
            // No flow is idle for longer than either of its entries.
            if !table.is_empty(chain[2]) && table.own_idle_ms(chain[2], now) >= least {
                let idle_ms = table.flow_age(chain[2], now).map_or(0, |v| v.idle_ms);
                if idle_ms >= least {
                    *longest = Some((idle_ms, chain));
                }
            }
        };
        for home in homes.map(|bucket| self.places(bucket)).into_iter().flatten() {
            look(self, &mut longest, [home; 3]);
            if self.is_empty(home) {
                continue;
            }
            for between in self.places(self.other_bucket(home)) {
                look(self, &mut longest, [home, between, between]);
                if self.is_empty(between) {
                    continue;
                }
                for beyond in self.places(self.other_bucket(between)) {
                    look(self, &mut longest, [home, between, beyond]);
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
        EvictionClass::Doubtful => DOUBTFUL_IDLE_MIN_MS,
        EvictionClass::Established => ESTABLISHED_IDLE_MIN_MS,
    }
}
