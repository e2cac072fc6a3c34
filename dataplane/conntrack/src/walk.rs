//! A walk over the hash buckets of several tables, one table after the other, in steps.

use std::ops::Range;

use super::table::Table;

/// A step of a walk.
#[derive(Debug)]
pub(super) struct WalkStep {
    cursor: u64,
    end: u64,
    /// The number of hash buckets before the next table.
    base: u64,
}

impl WalkStep {
    /// The step of `buckets` hash buckets from `cursor` on (0 at first).
    pub(super) fn new(cursor: u64, buckets: u64) -> Self {
        Self { cursor, end: cursor.saturating_add(buckets), base: 0 }
    }

    /// The hash buckets of the next table that belong to this step.
    pub(super) fn part<const A: usize, const W: usize, const K: usize, const B: usize>(
        &mut self,
        table: &Table<A, W, K, B>,
    ) -> Range<u32> {
        // A table without flows is skipped at no cost.
        let first = if table.live == 0 { table.buckets } else { 0 };
        let part = self.part_of(table.buckets as usize);
        // The number of hash buckets is below 2^32.
        (part.start as u32).max(first)..part.end as u32
    }

    /// The indices that belong to this step, of the next `count` ones.
    pub(super) fn part_of(&mut self, count: usize) -> Range<usize> {
        let all = count as u64;
        let index = |at: u64| at.saturating_sub(self.base).min(all) as usize;
        let part = index(self.cursor)..index(self.end);
        self.base += all;
        part
    }

    /// The cursor of the next step; `None` at the end.
    pub(super) fn next(&self) -> Option<u64> {
        (self.end < self.base).then_some(self.end)
    }
}
