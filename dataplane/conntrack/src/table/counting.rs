//! Maintains the counts of a table: flows, affinities and opening entries of each service, opening entries of each
//! network, entries of each backend. Also maintains the journal of changed flows.
//!
//! One service cannot fill a table alone: above its share it replaces only its own flows.
//!
//! Invariant: each entry is counted exactly once while it exists. Entries of backends are counted below `loads.end`,
//! which [`Table::count_loads`] moves through the table.

use tidegate_spec::ids::BackendId;

use super::{OWNER, Position, TAG, Table};
use crate::counts::Load;
use crate::eviction_reason::EvictionReason;
use crate::flow_state::SideState;
use crate::key::{AFFINITY_BIT, PackedKey, REPLY_BIT};

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Sets the share of the bound that one service may have once the table exceeds the bound.
    pub(crate) fn set_share(&mut self, percent: u8) {
        let flows = if Self::PAIRED { self.bound / 2 } else { self.bound };
        self.share = if percent < 100 { (flows * usize::from(percent) / 100).max(1) } else { usize::MAX };
    }

    /// Whether a new flow of this service has to replace another flow of the service.
    pub(crate) fn is_over_share(&self, owner: u32) -> bool {
        self.live >= self.bound && self.counts.flows(owner) as usize >= self.share
    }

    /// The service of a flow, from either of its entries.
    pub(crate) fn service_of(&self, position: Position) -> u32 {
        let entry = self.entry(position);
        if self.is_reply(position) { entry[Self::PEER_OWNER] } else { entry[OWNER] }
    }

    /// Whether an entry with this key counts as a flow: all do except the replies of pairs.
    pub(super) fn is_counted(key: &PackedKey<A>) -> bool {
        !Self::PAIRED || key.tag & REPLY_BIT == 0
    }

    /// Whether an entry with this key is session affinity.
    #[inline]
    pub(super) fn is_affinity_key(key: &PackedKey<A>) -> bool {
        !Self::PAIRED && key.tag & AFFINITY_BIT != 0
    }

    /// Whether a service has any entry.
    #[inline]
    pub(crate) fn has_flows_of(&self, owner: u32) -> bool {
        self.counts.flows(owner) > 0
    }

    /// The number of flows of a service, without affinity entries.
    pub(crate) fn connections(&self, owner: u32) -> u32 {
        self.counts.connections(owner)
    }

    /// The opening entries of a service.
    pub(crate) fn opening_of(&self, owner: u32) -> u32 {
        self.counts.opening_of(owner)
    }

    /// The load of the service and network of a flow, from either of its entries.
    pub(crate) fn load_of(&self, position: Position) -> Load {
        let flow = self.flow_key(position);
        self.load(&flow)
    }

    /// The load of the service and network of a flow with this key.
    pub(crate) fn load(&self, flow: &PackedKey<A>) -> Load {
        self.counts.load(flow.owner, &flow.addr)
    }

    /// The key of the client's side of a flow, from either of its entries.
    #[inline]
    fn flow_key(&self, position: Position) -> PackedKey<A> {
        if self.is_reply(position) { self.peer_key(position) } else { self.key(position) }
    }

    /// Updates the count of opening entries for an entry whose state changes.
    #[inline]
    pub(super) fn count_opening(&mut self, flow: &PackedKey<A>, was: bool, is: bool) {
        // An affinity entry never counts as an opening flow.
        if was == is || Self::is_affinity_key(flow) {
            return;
        }
        if is {
            self.counts.add_opening(flow.owner, &flow.addr);
        } else {
            self.counts.remove_opening(flow.owner, &flow.addr);
        }
    }

    /// Counts a flow that is no longer opening, or is opening again. Out of line, because few packets cause that.
    #[cold]
    #[inline(never)]
    pub(super) fn recount_opening(&mut self, position: Position, was: bool) {
        let flow = self.flow_key(position);
        self.count_opening(&flow, was, !was);
    }

    /// Enables or disables the journal.
    pub(crate) fn watch(&mut self, is_on: bool) {
        self.journal.is_on = is_on;
        self.watched = if is_on || self.accounts.is_on() { usize::MAX } else { self.loads.end };
    }

    /// Records that an entry is removed: in the counts, the journal and the log.
    #[cold]
    #[inline(never)]
    pub(super) fn entry_ends(&mut self, position: Position, why: EvictionReason) {
        self.state_changes(position, None);
        self.end_account(position, Some(why));
    }

    /// Records the change or end of an entry's state in the counts and the journal.
    #[cold]
    #[inline(never)]
    pub(super) fn state_changes(&mut self, position: Position, after: Option<SideState>) {
        if position.0 < self.loads.end {
            self.recount_load(position, after);
        }
        if !self.journal.is_on || Self::is_affinity_key(&self.key(position)) {
            return;
        }
        let ended =
            |state: Option<SideState>| state.filter(|state| !state.is_opening()).map(SideState::is_ended);
        if ended(self.state(position)) != ended(after) {
            let flow = self.flow_key(position);
            self.journal.note(flow);
        }
    }

    /// Counts the change or end of an entry's state.
    #[cold]
    #[inline(never)]
    pub(super) fn recount_load(&mut self, position: Position, after: Option<SideState>) {
        let (tag, value) = (self.entry(position)[TAG], self.value(position));
        self.load_changes(tag, value, self.state(position), after);
    }

    /// Counts an entry that was not counted before.
    pub(super) fn count_load(&mut self, position: Position) {
        let (tag, value) = (self.entry(position)[TAG], self.value(position));
        self.load_changes(tag, value, None, self.state(position));
    }

    /// Counts an entry with this tag and backend whose state changes; `None` means no entry.
    #[cold]
    #[inline(never)]
    pub(super) fn load_changes(
        &mut self,
        tag: u32,
        backend: u32,
        before: Option<SideState>,
        after: Option<SideState>,
    ) {
        let (before, after) = (before.map(SideState::is_ended), after.map(SideState::is_ended));
        // An affinity entry is not a flow.
        if before == after || !Self::PAIRED && tag & AFFINITY_BIT != 0 {
            return;
        }
        if let Some(ended) = before {
            self.loads.remove(backend, ended);
        }
        if let Some(ended) = after {
            self.loads.add(backend, ended);
        }
    }

    /// The counted entries of a backend.
    #[inline]
    pub(crate) fn load_of_backend(&self, backend: BackendId) -> tidegate_select::loads::Load {
        self.loads.of(backend)
    }

    /// Counts the entries of backends in up to `buckets` more hash buckets. Returns whether all are counted. `exists`
    /// returns whether the snapshot in use has this id.
    pub(crate) fn count_loads(&mut self, buckets: usize, exists: impl Fn(BackendId) -> bool) -> bool {
        let all = self.start(self.buckets);
        if self.live == 0 {
            self.loads.end = all;
        }
        for _ in 0..buckets {
            if self.loads.end >= all {
                break;
            }
            let start = self.loads.end.max(self.first);
            for position in self.positions(self.bucket_of(Position(start))) {
                if !self.is_empty(position) && exists(BackendId::from_raw(self.value(position))) {
                    self.count_load(position);
                }
            }
            self.loads.end = start + B;
        }
        self.watch(self.journal.is_on);
        self.loads.end >= all
    }
}
