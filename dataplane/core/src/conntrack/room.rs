//! Where a new entry goes, and what has to make way for it.
//!
//! In this order: a free slot of the first bucket, then of the second; the slot of a flow that is over; a
//! slot whose entry can move to its other bucket, two moves deep; the slot of the least flow that is not
//! established (reset, then half-open, then closing; among those the one idle for longest); none. Once the
//! table holds more than its bound, flows that are not established make way before free slots are used: a
//! flood then turns over its own entries.
//!
//! Why moves: without them, tables that are two thirds full and in use lose 10 % (three entries a bucket) to
//! 21 % (two) of new flows to full buckets; with them less than 0.2 %, for 0.2 to 0.7 looks at other buckets
//! per new flow, and none below half the bound. First bucket first, not the emptier: more flows are found in
//! the bucket that was prefetched (70 % at the bound, nearly all at half of it).
//!
//! Invariant: an established flow is moved, but never evicted; only its idle timeout, a reset, or its owner ends it.

use super::EvictionReason;
use super::key::{FlowHash, PackedKey};
use super::table::{Place, Table};
use super::tcp_state::Phase;
use crate::now::Now;

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// An empty slot for a key with this hash, or `None`, counted, when every flow there is established.
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
        let place = self.places(bucket).into_iter().find(|&place| self.looks_expired(place, now))?;
        self.remove(place, EvictionReason::Expired);
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
        let mut least: Option<(Phase, u32, Place)> = None;
        for place in homes.map(|bucket| self.places(bucket)).into_iter().flatten() {
            let Some(v) = self.vitality(place, now) else { continue };
            let phase = v.state.phase();
            if phase == Phase::Established || keep.is_some_and(|keep| *keep == self.key(place)) {
                continue;
            }
            if least
                .is_none_or(|(worth, idle_ms, _)| phase < worth || (phase == worth && v.idle_ms > idle_ms))
            {
                least = Some((phase, v.idle_ms, place));
            }
        }
        let (_, _, place) = least?;
        self.remove(place, why);
        Some(place)
    }
}
