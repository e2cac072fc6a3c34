//! State of the neighbour table that only writers use: references to each entry, and entries of each kind.

use std::collections::VecDeque;

/// The usage of the table, by kind of reference.
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
    pub(super) refs: Vec<RefCounts>,
    /// The first entry that has never been used.
    pub(super) fresh: u32,
    /// Free entries for reuse, the longest free one first.
    pub(super) freed: VecDeque<u32>,
    pub(super) usage: Usage,
}

/// The number of references to one entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RefCounts {
    /// The number of snapshots that refer to it.
    pub(super) snapshots: u32,
    pub(super) resolver: bool,
}

/// The kinds of references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefKind {
    Snapshot,
    Resolver,
}

impl Writers {
    pub(super) fn new(next_hops_max: usize, on_demand_max: usize) -> Self {
        Self {
            refs: vec![RefCounts::default(); next_hops_max + on_demand_max],
            fresh: 0,
            freed: VecDeque::new(),
            usage: Usage { next_hops_max, on_demand_max, ..Usage::default() },
        }
    }

    /// Updates the usage for an entry whose references change from `before` to `after`.
    pub(super) fn account(&mut self, before: RefCounts, after: RefCounts) {
        let usage = |refs: RefCounts| match refs {
            RefCounts { snapshots: 1.., .. } => (1, 0),
            RefCounts { resolver: true, .. } => (0, 1),
            RefCounts { .. } => (0, 0),
        };
        let (next_hops, on_demand) = usage(before);
        self.usage.next_hops -= next_hops;
        self.usage.on_demand -= on_demand;
        let (next_hops, on_demand) = usage(after);
        self.usage.next_hops += next_hops;
        self.usage.on_demand += on_demand;
    }

    /// Whether the table can take another entry of this kind.
    pub(super) fn has_capacity(&self, kind: RefKind) -> bool {
        match kind {
            RefKind::Snapshot => self.usage.next_hops < self.usage.next_hops_max,
            RefKind::Resolver => self.usage.on_demand < self.usage.on_demand_max,
        }
    }
}
