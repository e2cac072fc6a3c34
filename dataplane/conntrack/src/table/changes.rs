//! Writes, updates, moves and removes entries.
//!
//! The memory may outlive the process, which can be killed between any two instructions. So an entry gets its state
//! after its other words, and loses it before them: an entry with a state is complete.
//!
//! Promises: each change is counted (`counting.rs`), and streams and marks of adoption follow an entry that moves.

use std::sync::atomic::{Ordering, compiler_fence};

use tidegate_spec::now::Now;

use super::{ADDR, Entry, OWNER, Place, SEEN, STATE_MASK, STATE_SHIFT, TAG, Table, VALUE};
use crate::eviction_reason::EvictionReason;
use crate::flow_state::State;
use crate::key::REPLY_BIT;

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    #[inline]
    pub(crate) fn write(&mut self, place: Place, new: &Entry<A>) {
        debug_assert!(self.is_empty(place), "an entry is written to a free place");
        self.live += 1;
        if Self::is_counted(&new.key) {
            self.counts.add_flow(new.key.owner);
        }
        if Self::is_affinity_key(&new.key) {
            self.counts.change_affinities(new.key.owner, true);
        }
        let flow = new.peer.as_ref().filter(|_| new.key.tag & REPLY_BIT != 0).unwrap_or(&new.key);
        self.count_opening(flow, false, new.state.is_opening());
        if place.0 < self.loads.end {
            self.load_changes(new.key.tag, new.value, None, Some(new.state));
        }
        let entry = self.entry_mut(place);
        entry[OWNER] = new.key.owner;
        entry[SEEN] = new.seen;
        entry[VALUE] = new.value;
        entry[ADDR..ADDR + A].copy_from_slice(&new.key.addr);
        if let Some(peer) = new.peer {
            entry[Self::PEER_OWNER] = peer.owner;
            entry[Self::PEER_TAG] = peer.tag;
            entry[Self::PEER_ADDR..Self::PEER_ADDR + A].copy_from_slice(&peer.addr);
        }
        // The state makes the entry valid.
        compiler_fence(Ordering::Release);
        entry[TAG] = new.key.tag | (new.state as u32) << STATE_SHIFT | new.idle.bits();
    }

    /// Records a packet: its time and the resulting state.
    #[inline(always)]
    pub(crate) fn touch(&mut self, place: Place, state: State, now: Now) {
        let was = self.state(place).is_some_and(State::is_opening);
        if was != state.is_opening() {
            self.recount_opening(place, was);
        }
        if place.0 < self.watched {
            self.state_changes(place, Some(state));
        }
        let entry = self.entry_mut(place);
        entry[SEEN] = now.millis();
        entry[TAG] = entry[TAG] & !STATE_MASK | (state as u32) << STATE_SHIFT;
    }

    /// Gives an entry the state and time of its last packet at another gateway.
    pub(crate) fn adopt(&mut self, place: Place, state: State, seen: u32) {
        self.touch_at(place, state, seen);
        self.mark_adopted(place);
    }

    /// Records a packet that another gateway saw, and which that gateway reports to the others itself.
    pub(crate) fn touch_at(&mut self, place: Place, state: State, seen: u32) {
        let is_on = std::mem::replace(&mut self.journal.is_on, false);
        self.touch(place, state, Now(u64::from(seen) * 1_000_000));
        self.journal.is_on = is_on;
    }

    /// Marks an entry as received from another gateway.
    pub(crate) fn mark_adopted(&mut self, place: Place) {
        self.adopted.mark(self.number(place), self.seen(place));
    }

    /// Whether the entry was received from another gateway and has had no packet on this one.
    pub(crate) fn is_untouched(&self, place: Place) -> bool {
        self.adopted.is_untouched(self.number(place), self.entry(place)[SEEN])
    }

    /// Moves an entry to a free place of its other bucket.
    pub(crate) fn relocate(&mut self, from: Place, to: Place) {
        debug_assert!(!self.is_empty(from) && self.is_empty(to));
        match (from.0 < self.loads.end, to.0 < self.loads.end) {
            (true, false) => self.recount_load(from, None),
            (false, true) => self.count_load(from),
            (true, true) | (false, false) => {}
        }
        let moved = *self.entry(from);
        let entry = self.entry_mut(to);
        *entry = moved;
        entry[TAG] = 0;
        compiler_fence(Ordering::Release);
        entry[TAG] = moved[TAG];
        // Until the next step the entry is in both places, which is harmless: they are equal.
        compiler_fence(Ordering::Release);
        self.erase(from);
        self.streams.relocate(self.number(from), self.number(to));
        self.adopted.relocate(self.number(from), self.number(to));
    }

    /// Removes an entry and, in tables of pairs, its peer.
    pub(crate) fn remove(&mut self, place: Place, why: EvictionReason) {
        let peer = self.peer(place);
        self.clear(place);
        if let Some(peer) = peer {
            self.clear(peer);
        }
        self.counters.count(why);
    }

    /// Removes an earlier entry of a key that is about to be written again.
    pub(crate) fn replace(&mut self, place: Place, now: Now) {
        let over = self.is_expired(place, now);
        self.remove(place, if over { EvictionReason::Expired } else { EvictionReason::Removed });
    }

    /// Removes only this entry, and does not count it.
    pub(crate) fn clear(&mut self, place: Place) {
        debug_assert!(!self.is_empty(place));
        if self.state(place).is_some_and(State::is_opening) {
            self.recount_opening(place, true);
        }
        if place.0 < self.watched {
            self.state_changes(place, None);
        }
        self.adopted.clear(self.number(place));
        let key = self.key(place);
        self.erase(place);
        self.live -= 1;
        if Self::is_counted(&key) {
            self.counts.remove_flow(key.owner);
        }
        if Self::is_affinity_key(&key) {
            self.counts.change_affinities(key.owner, false);
        }
    }

    /// Zeroes an entry, its state first.
    #[inline(always)]
    fn erase(&mut self, place: Place) {
        let entry = self.entry_mut(place);
        entry[TAG] = 0;
        compiler_fence(Ordering::Release);
        *entry = [0; W];
    }
}
