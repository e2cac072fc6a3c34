//! Writes, updates, moves and removes entries.
//!
//! The memory may outlive the process, which can be killed at any instruction. So the state of an entry is written last
//! and cleared first: an entry with a state is complete.
//!
//! Invariant: each change is counted (`counting.rs`), and streams and marks of adoption move with their entry.

use std::sync::atomic::{Ordering, compiler_fence};

use tidegate_spec::now::Now;

use super::{ADDR, Entry, OWNER, Position, SEEN, STATE_MASK, STATE_SHIFT, TAG, Table, VALUE};
use crate::eviction_reason::EvictionReason;
use crate::flow_state::SideState;
use crate::key::{FlowHash, PackedKey, REPLY_BIT};

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    #[inline(always)]
    pub(crate) fn write(&mut self, position: Position, new: &Entry<A>) {
        debug_assert!(self.is_empty(position), "an entry is written to a free position");
        self.live += 1;
        if Self::is_counted(&new.key) {
            self.counts.add_flow(new.key.owner);
        }
        if Self::is_affinity_key(&new.key) {
            self.counts.change_affinities(new.key.owner, true);
        }
        let flow = new.peer.as_ref().filter(|_| new.key.tag & REPLY_BIT != 0).unwrap_or(&new.key);
        self.count_opening(flow, false, new.state.is_opening());
        if position.0 < self.loads.end {
            self.load_changes(new.key.tag, new.value, None, Some(new.state));
        }
        let entry = self.entry_mut(position);
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
    pub(crate) fn touch(&mut self, position: Position, state: SideState, now: Now) {
        let was = self.state(position).is_some_and(SideState::is_opening);
        if was != state.is_opening() {
            self.recount_opening(position, was);
        }
        if position.0 < self.watched {
            self.state_changes(position, Some(state));
        }
        let entry = self.entry_mut(position);
        entry[SEEN] = now.millis();
        entry[TAG] = entry[TAG] & !STATE_MASK | (state as u32) << STATE_SHIFT;
    }

    /// Gives an entry the state and time of its last packet at another gateway.
    pub(crate) fn adopt(&mut self, position: Position, state: SideState, seen: u32) {
        self.touch_at(position, state, seen);
        self.mark_adopted(position);
    }

    /// Records a packet that another gateway saw. The journal omits it, because that gateway reports it itself.
    pub(crate) fn touch_at(&mut self, position: Position, state: SideState, seen: u32) {
        let is_on = std::mem::replace(&mut self.journal.is_on, false);
        self.touch(position, state, Now(u64::from(seen) * 1_000_000));
        self.journal.is_on = is_on;
    }

    /// Marks an entry as received from another gateway.
    pub(crate) fn mark_adopted(&mut self, position: Position) {
        self.adopted.mark(self.entry_index(position), self.seen(position));
    }

    /// Whether the entry was received from another gateway and has had no packet on this one.
    pub(crate) fn is_untouched(&self, position: Position) -> bool {
        self.adopted.is_untouched(self.entry_index(position), self.entry(position)[SEEN])
    }

    /// Moves an entry to a free position of its other hash bucket.
    pub(crate) fn relocate(&mut self, from: Position, to: Position) {
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
        // Until the next step there are two equal entries, which is harmless.
        compiler_fence(Ordering::Release);
        self.erase(from);
        self.streams.relocate(self.entry_index(from), self.entry_index(to));
        self.adopted.relocate(self.entry_index(from), self.entry_index(to));
        self.accounts.relocate(self.entry_index(from), self.entry_index(to));
    }

    /// Removes an entry and, in tables of pairs, its peer.
    pub(crate) fn remove(&mut self, position: Position, why: EvictionReason) {
        let peer = self.peer(position);
        self.clear(position, why);
        if let Some(peer) = peer {
            self.clear(peer, why);
        }
        self.counters.count(why);
    }

    /// Removes an earlier entry of a key that is about to be written again.
    pub(crate) fn replace(&mut self, position: Position, now: Now) {
        let over = self.is_expired(position, now);
        self.remove(position, if over { EvictionReason::Expired } else { EvictionReason::Removed });
    }

    /// Removes only this entry, without counting an eviction.
    pub(crate) fn clear(&mut self, position: Position, why: EvictionReason) {
        debug_assert!(!self.is_empty(position));
        if self.state(position).is_some_and(SideState::is_opening) {
            self.recount_opening(position, true);
        }
        if position.0 < self.watched {
            self.entry_ends(position, why);
        }
        self.adopted.clear(self.entry_index(position));
        let key = self.key(position);
        self.erase(position);
        self.live -= 1;
        if Self::is_counted(&key) {
            self.counts.remove_flow(key.owner);
        }
        if Self::is_affinity_key(&key) {
            self.counts.change_affinities(key.owner, false);
        }
    }

    /// Removes the entry of a flow without its peer, which the search for a position of the peer may have moved.
    #[cold]
    #[inline(never)]
    pub(crate) fn clear_moved(&mut self, key: &PackedKey<A>, hash: FlowHash) {
        let position = self.find(key, hash).expect("an entry that was just written is not evicted");
        self.clear(position, EvictionReason::Removed);
    }

    /// Zeroes an entry, its state first.
    #[inline(always)]
    fn erase(&mut self, position: Position) {
        let entry = self.entry_mut(position);
        entry[TAG] = 0;
        compiler_fence(Ordering::Release);
        *entry = [0; W];
    }
}
