//! State of the neighbour table that only writers use: the holders of each slot, and the number of slots of each kind.

use std::collections::VecDeque;

/// The usage of the table, by kind of holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Next hops of backends, routes and fixed neighbours.
    pub next_hops: usize,
    /// The maximum number of these.
    pub next_hops_max: usize,
    /// Next hops that only packets request.
    pub on_demand: usize,
    /// The maximum number of these.
    pub on_demand_max: usize,
}

impl Usage {
    /// Whether the table is full for next hops of either kind.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.next_hops >= self.next_hops_max || self.on_demand >= self.on_demand_max
    }
}

/// State that only writers use.
#[derive(Debug)]
pub(super) struct Writers {
    pub(super) holders: Vec<Holders>,
    /// The first slot that has never been used.
    pub(super) fresh: u32,
    /// Free slots to be reused, the one freed longest ago first.
    pub(super) freed: VecDeque<u32>,
    pub(super) usage: Usage,
}

/// The holders of one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holders {
    /// The number of snapshots that hold it.
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

    /// Updates the usage for a slot whose holders change from `before` to `after`.
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

    /// Whether there is room for another slot of this kind.
    pub(super) fn has_room(&self, holder: Holder) -> bool {
        match holder {
            Holder::Snapshot => self.usage.next_hops < self.usage.next_hops_max,
            Holder::Resolver => self.usage.on_demand < self.usage.on_demand_max,
        }
    }
}
