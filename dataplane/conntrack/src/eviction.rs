//! Finds the place of a new entry, and decides which entry is evicted for it.
//!
//! In this order: a free slot of the first bucket, then of the second; the slot of a flow that has ended; a slot
//! whose entry can move to its other bucket, two moves deep; the slot of the least valuable flow that is not
//! established ([`Rank`]); the slot of the established flow that has been idle longest, if that is long enough; none.
//! Once the table holds more than its bound, flows that are not established are evicted before free slots are used: a
//! flood then replaces its own entries. Above the bound, a service that has reached its share of the table replaces its
//! own flows, or flows that are not established, or none ([`Table::admit`]).
//!
//! A flood must not end the handshakes of others, which are opening flows like its own. So the opening flows of the
//! network and of the service that have the most of them are evicted first ([`EvictionPriority`]); among these, unanswered flows;
//! and among these, the oldest. If the two buckets of a new flow have no flow that clearly belongs to a flood, some
//! other buckets are examined, and the least valuable flow of all is evicted. A new flow of a flood does not evict a
//! flow of a service or network that has far fewer: it uses a free slot, or is refused.
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

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Every flow that could be evicted is established and in use.
    Full,
    /// The service has reached its share of a full table, and none of its flows can be evicted.
    Share,
}

/// The properties of a new flow that decide which flows it may evict.
#[derive(Debug, Clone, Copy)]
struct Newcomer {
    load: Load,
    /// How long an opening flow must have been idle to be evicted although there may be a free slot.
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
    fn makes_way_at_once(&self, new: Newcomer) -> bool {
        let Reverse(priority) = self.priority;
        let of_the_same_flood = new.load.floods
            && priority == new.load.priority
            && (self.eviction_class == EvictionClass::Unanswered || priority.is_of_network())
            && self.idle_ms.0 >= new.fresh_ms;
        match self.tier {
            Tier::Over => true,
            Tier::Opening => priority > new.load.priority || of_the_same_flood,
            Tier::Doubtful | Tier::Established => false,
        }
    }

    /// Whether the flow is evicted for the new one although there may be a free slot: it is not established, its
    /// service or network does not have far fewer flows, and its handshake has not just begun.
    fn makes_way_before_free_slots(&self, new: Newcomer) -> bool {
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

    /// Whether the flow is evicted for the new one if there is no free slot. If its service or network has far fewer
    /// flows, it is evicted only if its handshake is not in progress.
    fn makes_way(&self, new: Newcomer) -> bool {
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
    /// Returns an empty slot for a new flow, and counts a failure. A service that has reached its share of a full table
    /// replaces a flow of its own, or a flow of any service that is not established. If its two buckets hold none, one
    /// flow of a sample is evicted, and the new flow uses any slot. It is refused if all flows of the service in the buckets
    /// and in a larger sample are established and in use. So a flood that fills the table with flows that are
    /// not established does not turn the share against a service that has many established flows.
    #[inline(always)]
    pub(super) fn admit(&mut self, flow: &PackedKey<A>, hash: FlowHash, now: Now) -> Result<Place, NoRoom> {
        if !self.is_over_share(flow.owner) {
            return self.make_room(flow, hash, now).ok_or(NoRoom::Full);
        }
        self.admit_above_share(flow, hash, now)
    }

    /// [`Self::admit`] for a service that has reached its share of a full table.
    #[cold]
    #[inline(never)]
    fn admit_above_share(&mut self, flow: &PackedKey<A>, hash: FlowHash, now: Now) -> Result<Place, NoRoom> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.newcomer(flow));
        let own = self.least_in(homes, now, |table, place| table.service_of(place) == flow.owner);
        let at_once = |(rank, _): &(Rank, Place)| rank.makes_way_at_once(new);
        let home = self.least_in(homes, now, |_, _| true);
        if let Some((_, place)) = own.filter(at_once).or_else(|| home.filter(at_once)) {
            self.remove(place, EvictionReason::ServiceShare);
            return Ok(place);
        }
        // The age does not matter here: the alternative is to refuse this flow.
        let any_age = Newcomer { fresh_ms: 0, ..new };
        if let Some((place, is_home)) = self.least_of_more(home, flow, hash, any_age, now) {
            self.remove(place, EvictionReason::ServiceShare);
            return if is_home { Ok(place) } else { self.make_room(flow, hash, now).ok_or(NoRoom::Full) };
        }
        if let Some((_, place)) = own {
            self.remove(place, EvictionReason::ServiceShare);
            return Ok(place);
        }
        // The two buckets have no flow of the service that can be evicted, but others do, as it has much of the table.
        let is_own = |table: &Self, place| table.service_of(place) == flow.owner && *flow != table.key(place);
        let Some((_, place)) = self.least_in(self.sample(hash, SHARE_SAMPLE), now, is_own) else {
            self.counters.refused += 1;
            return Err(NoRoom::Share);
        };
        self.remove(place, EvictionReason::ServiceShare);
        self.make_room(flow, hash, now).ok_or(NoRoom::Full)
    }

    /// Returns an empty slot for an entry with this hash of a new flow, or `None`, counted, if no flow there can be
    /// evicted. `flow` is the key of the client's side. If it is already in the table, this call places the entry of
    /// its reply, and does not evict it.
    #[inline(always)]
    pub(super) fn make_room(&mut self, flow: &PackedKey<A>, hash: FlowHash, now: Now) -> Option<Place> {
        let within_bound = self.live < self.bound;
        if within_bound && let Some(place) = self.free_in_either(Self::homes(hash, self.buckets), None) {
            return Some(place);
        }
        self.make_room_by_force(flow, hash, within_bound, now)
    }

    /// [`Self::make_room`] where no slot is free, or the free slots are reserved.
    #[inline(never)]
    fn make_room_by_force(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Place> {
        let homes = Self::homes(hash, self.buckets);
        let room = self.expired_in(homes[0], now).or_else(|| self.expired_in(homes[1], now));
        let room = room.or_else(|| self.room_of_others(flow, hash, within_bound, now));
        let room = room.or_else(|| self.evict_longest_idle(homes, now));
        if room.is_none() {
            self.counters.refused += 1;
        }
        room
    }

    /// Two empty slots, for the entries with these hashes of a new flow, if nothing has to give way to it: the table holds less
    /// than its bound, and each entry has a free slot in one of its buckets. They are those that [`Self::make_room`] returns.
    pub(super) fn free_for_pair(&self, hash: FlowHash, reply_hash: FlowHash) -> Option<[Place; 2]> {
        if self.live + 1 >= self.bound {
            return None;
        }
        let place = self.free_in_either(Self::homes(hash, self.buckets), None)?;
        Some([place, self.free_in_either(Self::homes(reply_hash, self.buckets), Some(place))?])
    }

    /// Returns an empty slot for an entry with this hash without evicting a flow that has not expired.
    pub(super) fn free_place(&mut self, hash: FlowHash, now: Now) -> Option<Place> {
        let homes = [self.primary(hash), self.secondary(hash)];
        let room = self.free_in_either(homes, None).or_else(|| self.expired_in(homes[0], now));
        let room = room.or_else(|| self.expired_in(homes[1], now));
        room.or_else(|| self.room_by_moving(homes, now))
    }

    /// Returns the slot of a flow that is not established, or a free slot where that is fairer. Within the bound, the
    /// two buckets have no free slot when this is called.
    fn room_of_others(
        &mut self,
        flow: &PackedKey<A>,
        hash: FlowHash,
        within_bound: bool,
        now: Now,
    ) -> Option<Place> {
        let (homes, new) = ([self.primary(hash), self.secondary(hash)], self.newcomer(flow));
        if !within_bound {
            let home = self.least_in(homes, now, |table, place| *flow != table.key(place));
            if let Some((_, place)) = home.filter(|(rank, _)| rank.makes_way_at_once(new)) {
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
        if let Some(place) = self.room_by_moving(homes, now) {
            return Some(place);
        }
        let home = self.least_in(homes, now, |table, place| *flow != table.key(place));
        let (_, place) = home.filter(|(rank, _)| rank.makes_way(new))?;
        let why = if within_bound { EvictionReason::BucketFull } else { EvictionReason::TableFull };
        self.remove(place, why);
        Some(place)
    }

    fn newcomer(&self, flow: &PackedKey<A>) -> Newcomer {
        // Free slots above this limit are reserved for flows that will be established.
        let has_spare = self.live < self.bound + self.bound / 4;
        Newcomer { load: self.load(flow), fresh_ms: if has_spare { OPENING_FRESH_MS } else { 0 } }
    }

    /// The flow of least rank among a sample of the table and `home`, which is the least flow of the new flow's own
    /// buckets, if it can be evicted; and whether it is `home`.
    fn least_of_more(
        &self,
        home: Option<(Rank, Place)>,
        flow: &PackedKey<A>,
        hash: FlowHash,
        new: Newcomer,
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
        rank.makes_way_before_free_slots(new).then_some((place, is_home))
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

    /// Empties the slot of a flow that has expired, and returns it.
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

    /// Empties a slot of either bucket by moving its entry to its other bucket, where another entry may have to be
    /// moved first. Examines at most 2K + 2K² buckets.
    fn room_by_moving(&mut self, homes: [u32; 2], now: Now) -> Option<Place> {
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

    /// Moves an entry away and returns its slot. The slot may already be empty, if the peer of its entry expired
    /// elsewhere.
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

    /// Evicts the established flow that is idle for longest among those whose slot the new entry can use after up to
    /// two moves. Examines at most 2 + 2K + 2K² buckets.
    fn evict_longest_idle(&mut self, homes: [u32; 2], now: Now) -> Option<Place> {
        // A chain of slots: each but the last holds an entry that can move to the next.
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
