//! The tables of an ended process, in memory that has outlived it.
//!
//! [`StoredTables::scan`] exports their flows (`export.rs`), and [`FlowTables::import`](super::FlowTables::import)
//! inserts a flow into the tables of this process, as if its packets had passed here. So nothing depends on the ids,
//! the secret or the size of the stored tables: the caller maps services and backends to the current snapshot.
//!
//! Invariant: nothing here panics, whatever the words: the process may have ended in the middle of a change, and the
//! files may be damaged.

#[cfg(any(test, feature = "testing"))]
use tidegate_spec::now::Now;

use super::export::Entries;
use super::flow_record::LocalFlow;
use super::key::FlowHasher;
use super::memory::StoredTable;
use super::not_restored::NotRestored;
use super::{dsr, nat};

/// The format of the stored words. A change of the sizes of entries or of the meaning of their words requires a new
/// form.
pub const STORED_FORM: &str = "1: dsr-v4 5/3/16, dsr-v6 8/2/16, nat-v4 8/2/16, nat-v6 16/2/32";

/// The stored tables of one worker, in the order of [`TableKind::ALL`](super::TableKind::ALL).
#[derive(Debug, Clone, Copy)]
pub struct StoredTables<'a> {
    /// The four tables.
    pub tables: [StoredTable<'a>; 4],
    /// The number of flows that they were created for, which determines their number of hash buckets.
    pub entries_per_core: usize,
    /// The secret of their hash.
    pub seed: u64,
    /// The current time in milliseconds, by the clock of the other process.
    pub then_ms: u32,
}

impl StoredTables<'_> {
    /// The number of words of each of the four tables' entries for this number of flows.
    #[must_use]
    pub fn words(entries_per_core: usize) -> [usize; 4] {
        let pairs = entries_per_core.saturating_mul(2);
        [
            dsr::V4::buckets_for(entries_per_core) as usize * 16,
            dsr::V6::buckets_for(entries_per_core) as usize * 16,
            nat::V4::buckets_for(pairs) as usize * 16,
            nat::V6::buckets_for(pairs) as usize * 32,
        ]
    }

    /// Reads all flows.
    pub fn scan(&self, mut each: impl FnMut(Result<LocalFlow, NotRestored>)) {
        let hasher = FlowHasher::new(self.seed);
        let [dsr_v4, dsr_v6, nat_v4, nat_v6] = self.tables;
        self.scan_table::<1, 5, 3, 16>(dsr_v4, &hasher, &mut each);
        self.scan_table::<4, 8, 2, 16>(dsr_v6, &hasher, &mut each);
        self.scan_table::<1, 8, 2, 16>(nat_v4, &hasher, &mut each);
        self.scan_table::<4, 16, 2, 32>(nat_v6, &hasher, &mut each);
    }

    fn scan_table<const A: usize, const W: usize, const K: usize, const B: usize>(
        &self,
        table: StoredTable<'_>,
        hasher: &FlowHasher,
        each: &mut impl FnMut(Result<LocalFlow, NotRestored>),
    ) {
        let entries = Entries::<A, W, K, B> { table, hasher, now_ms: self.then_ms, live: None };
        entries.flows(0..entries.buckets()).map(|at| entries.flow(at)).for_each(each);
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::FlowTables {
    /// These tables as the next process reads them.
    pub fn as_stored(&self, entries_per_core: usize, seed: u64, now: Now) -> StoredTables<'_> {
        let (dsr, nat) = (&self.dsr, &self.nat);
        let tables = [dsr.v4.arrays(), dsr.v6.arrays(), nat.v4.arrays(), nat.v6.arrays()];
        StoredTables { tables, entries_per_core, seed, then_ms: now.millis() }
    }
}
