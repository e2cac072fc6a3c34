//! Where a new entry goes, and what has to make way for it.
//!
//! In this order: a free slot of the first bucket, then of the second; the slot of a flow that is over; a
//! slot whose entry can move to its other bucket, two moves deep; the slot of the least flow that is not
//! established ([`Worth`]; among equals the one idle for longest); the slot of the established flow that is idle for
//! longest, if that is long enough; none. Once the table holds more than its bound, flows that are not established
//! make way before free slots are used: a flood then turns over its own entries. From there on a service that has its
//! share of the table takes the place of its own flows, or of those that are not established, or none ([`Table::admit`]).
//!
//! Why moves: without them, tables that are two thirds full and in use lose 10 % (three entries a bucket) to
//! 21 % (two) of new flows to full buckets; with them less than 0.2 %, for 0.2 to 0.7 looks at other buckets
//! per new flow, and none below half the bound. First bucket first, not the emptier: more flows are found in
//! the bucket that was prefetched (70 % at the bound, nearly all at half of it).
//!
//! Invariant: an established flow that is in use is moved, but never evicted: one gives way only when it has been idle
//! for [`ESTABLISHED_IDLE_MIN_MS`], and nothing else near the new flow can.

use super::EvictionReason;
use super::key::{FlowHash, PackedKey};
use super::table::{Place, Table};
use super::tcp_state::Worth;
use crate::limits::{DOUBTFUL_IDLE_MIN_MS, ESTABLISHED_IDLE_MIN_MS};
use crate::now::Now;

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Every flow that would have to make way is established and in use.
    Full,
    /// The service has its share of a full table, and none of its flows that would have to make way can.
    Share,
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// An empty slot for a new flow, counted where there is none. A service that has its share of a full table takes
    /// the place of a flow of its own, or of one that is not established, whose ever it is: where there is none in its
    /// two buckets, one of a sample goes, and the new flow takes any slot. So a flood that fills the table with flows
    /// that are not established does not turn the share against a service that has many established ones.
    pub(super) fn admit(&mut self, key: &PackedKey<A>, hash: FlowHash, now: Now) -> Result<Place, NoRoom> {
        if !self.is_over_share(key.owner) {
            return self.make_room(hash, None, now).ok_or(NoRoom::Full);
        }
        let homes = [self.primary(hash), self.secondary(hash)];
        let is_own = |table: &Self, place| table.service_of(place) == key.owner;
        let unsettled = |(worth, _, place)| (worth < Worth::Doubtful).then_some(place);
        let own = self.least_in(homes, now, is_own);
        let near =
            own.and_then(unsettled).or_else(|| self.least_in(homes, now, |_, _| true).and_then(unsettled));
        if let Some(place) = near {
            self.remove(place, EvictionReason::ServiceShare);
            return Ok(place);
        }
        // Elsewhere: sixteen buckets from one that the hash names.
        let first = self.primary(FlowHash(hash.0.rotate_left(16)));
        let sample = (0..8).map(|n| (u64::from(first) + 2 * n) % u64::from(self.buckets));
        // Below the number of buckets, which fits.
        let mut sample = sample.map(|bucket| [bucket as u32, (bucket as u32 + 1) % self.buckets]);
        let far = sample.find_map(|two| self.least_in(two, now, |_, _| true).and_then(unsettled));
        if let Some(place) = far {
            self.remove(place, EvictionReason::ServiceShare);
            return self.make_room(hash, None, now).ok_or(NoRoom::Full);
        }
        let Some((_, _, place)) = own else {
            self.counters.refused += 1;
            return Err(NoRoom::Share);
        };
        self.remove(place, EvictionReason::ServiceShare);
        Ok(place)
    }

    /// An empty slot for a key with this hash, or `None`, counted, when every flow there is established and in use.
    /// `keep` is not evicted: the first entry of a pair whose second is being placed.
    pub(super) fn make_room(
        &mut self,
        hash: FlowHash,
        keep: Option<&PackedKey<A>>,
        now: Now,
    ) -> Option<Place> {
        let homes = [self.primary(hash), self.secondary(hash)];
        let within_bound = self.live < self.bound;
        if within_bound && let Some(place) = self.free_in_either(homes) {
            return Some(place);
        }
        let room = self.expired_in(homes[0], now).or_else(|| self.expired_in(homes[1], now));
        let room = room.or_else(|| if within_bound { self.room_by_moving(homes, now) } else { None });
        let why = if within_bound { EvictionReason::BucketFull } else { EvictionReason::TableFull };
        let room = room.or_else(|| self.evict(homes, keep, why, now));
        let room = room.or_else(|| {
            if within_bound {
                return None;
            }
            self.free_in_either(homes).or_else(|| self.room_by_moving(homes, now))
        });
        let room = room.or_else(|| self.evict_longest_idle(homes, now));
        if room.is_none() {
            self.counters.refused += 1;
        }
        room
    }

    fn free_in(&self, bucket: u32) -> Option<Place> {
        self.places(bucket).into_iter().find(|&place| self.is_empty(place))
    }

    fn free_in_either(&self, homes: [u32; 2]) -> Option<Place> {
        self.free_in(homes[0]).or_else(|| self.free_in(homes[1]))
    }

    /// A slot of a flow that was over, now empty.
    fn expired_in(&mut self, bucket: u32, now: Now) -> Option<Place> {
        let hurry = self.hurry();
        let over = |place| self.looks_expired(place, now, hurry).map(|why| (place, why));
        let (place, why) = self.places(bucket).into_iter().find_map(over)?;
        self.remove(place, why);
        Some(place)
    }

    fn free_or_expired_in(&mut self, bucket: u32, now: Now) -> Option<Place> {
        self.free_in(bucket).or_else(|| self.expired_in(bucket, now))
    }

    /// The bucket of an entry in which it is not.
    fn other_bucket(&self, place: Place) -> u32 {
        let hash = self.hash_of(&self.key(place));
        let (here, primary) = (self.bucket_of(place), self.primary(hash));
        if here == primary { self.secondary(hash) } else { primary }
    }

    /// Empties a slot of either bucket by moving its entry to its other bucket, there perhaps after moving
    /// another. At most 2K + 2K² buckets are looked at.
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

    /// Moves an entry away and returns its slot. The slot may have become empty by itself: what expired
    /// elsewhere was its peer.
    fn vacate(&mut self, place: Place, to: Place) -> Place {
        if !self.is_empty(place) {
            self.relocate(place, to);
        }
        place
    }

    /// Evicts the flow of least worth among those that are not established.
    fn evict(
        &mut self,
        homes: [u32; 2],
        keep: Option<&PackedKey<A>>,
        why: EvictionReason,
        now: Now,
    ) -> Option<Place> {
        let least =
            self.least_in(homes, now, |table, place| keep.is_none_or(|keep| *keep != table.key(place)));
        let (_, _, place) = least.filter(|(worth, ..)| *worth != Worth::Established)?;
        self.remove(place, why);
        Some(place)
    }

    /// The flow of least worth in two buckets, and among equals the one idle for longest, of those that may make way
    /// at all.
    fn least_in(
        &self,
        homes: [u32; 2],
        now: Now,
        may: impl Fn(&Self, Place) -> bool,
    ) -> Option<(Worth, u32, Place)> {
        let mut least: Option<(Worth, u32, Place)> = None;
        for place in homes.map(|bucket| self.places(bucket)).into_iter().flatten() {
            let Some(v) = self.vitality(place, now) else { continue };
            if v.idle_ms < idle_min_ms(v.standing.worth) || !may(self, place) {
                continue;
            }
            let worth = v.standing.worth;
            if least
                .is_none_or(|(least, idle_ms, _)| worth < least || (worth == least && v.idle_ms > idle_ms))
            {
                least = Some((worth, v.idle_ms, place));
            }
        }
        least
    }

    /// Evicts the established flow that is idle for longest among those whose slot the new entry can have, by moving
    /// up to two others: at most 2 + 2K + 2K² buckets are looked at.
    fn evict_longest_idle(&mut self, homes: [u32; 2], now: Now) -> Option<Place> {
        // The slots of a chain: each but the last holds an entry that can move to the next.
        let mut longest: Option<(u32, [Place; 3])> = None;
        let look = |table: &Self, longest: &mut Option<(u32, [Place; 3])>, chain: [Place; 3]| {
            let least = longest.map_or(ESTABLISHED_IDLE_MIN_MS, |(idle_ms, _)| idle_ms + 1);
            // No flow is idle for longer than either of its entries.
            if !table.is_empty(chain[2]) && table.own_idle_ms(chain[2], now) >= least {
                let idle_ms = table.vitality(chain[2], now).map_or(0, |v| v.idle_ms);
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

/// For how long a flow must have been idle to make way.
fn idle_min_ms(worth: Worth) -> u32 {
    match worth {
        Worth::Closed | Worth::Unassured | Worth::Closing => 0,
        Worth::Doubtful => DOUBTFUL_IDLE_MIN_MS,
        Worth::Established => ESTABLISHED_IDLE_MIN_MS,
    }
}
