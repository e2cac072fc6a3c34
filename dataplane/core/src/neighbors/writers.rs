//! What only writers of the neighbour table know: who holds which slot, and how many there are of each kind.

use std::collections::VecDeque;

/// The usage of the table, by kind of holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Next hops of backends, routes and fixed neighbours.
    pub next_hops: usize,
    /// The maximum of them.
    pub next_hops_max: usize,
    /// Next hops that only packets ask for.
    pub on_demand: usize,
    /// The maximum of them.
    pub on_demand_max: usize,
}

impl Usage {
    /// Whether a further next hop of either kind would find no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.next_hops >= self.next_hops_max || self.on_demand >= self.on_demand_max
    }
}

/// What only writers know.
#[derive(Debug)]
pub(super) struct Writers {
    pub(super) holders: Vec<Holders>,
    /// Slots that never belonged to anyone begin here.
    pub(super) fresh: u32,
    /// Slots to be given again, the one freed longest ago first.
    pub(super) freed: VecDeque<u32>,
    pub(super) usage: Usage,
}

/// Who holds one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// How often snapshots do.
    pub(super) snapshots: u32,
    pub(super) resolver: bool,
}

/// The kinds of holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Snapshot,
    Resolver,
}

impl Writers {
    pub(super) fn new(next_hops_max: usize, on_demand_max: usize) -> Self {
        Self {
            holders: vec![Holders::default(); next_hops_max + on_demand_max],
            fresh: 0,
            freed: VecDeque::new(),
            usage: Usage { next_hops_max, on_demand_max, ..Usage::default() },
        }
    }

    /// Counts the slot for who holds it now, having been held by `before`.
    pub(super) fn account(&mut self, before: Holders, after: Holders) {
        let kind = |holders: Holders| match holders {
            Holders { snapshots: 1.., .. } => (1, 0),
            Holders { resolver: true, .. } => (0, 1),
            Holders { .. } => (0, 0),
        };
        let (next_hops, on_demand) = kind(before);
        self.usage.next_hops -= next_hops;
        self.usage.on_demand -= on_demand;
        let (next_hops, on_demand) = kind(after);
        self.usage.next_hops += next_hops;
        self.usage.on_demand += on_demand;
    }

    /// Whether one more of this kind has room.
    pub(super) fn has_room(&self, holder: Holder) -> bool {
        match holder {
            Holder::Snapshot => self.usage.next_hops < self.usage.next_hops_max,
            Holder::Resolver => self.usage.on_demand < self.usage.on_demand_max,
        }
    }
}
