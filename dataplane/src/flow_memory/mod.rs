//! Maps the memory of the workers' flow tables, and allocates its pages before packets need them.
//!
//! The tables of a worker are mapped when it starts, near its NUMA node and locked against swapping. They take memory
//! only when the first Service needs them: [`FlowMemory::prepare`] allocates all pages of a table before workers get
//! the snapshot with that Service, so that no packet waits for the kernel to zero a page.
//!
//! With a [`Store`], the tables are files in memory that the next process reads ([`Restoration`]).
//!
//! Invariant: nothing here runs on the packet path. [`FlowMemory::prepare`] runs on the publisher's thread.

mod boot_clock;
mod identities;
mod record_log;
mod restoration;
mod seats;
mod store;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk::{Region, region};
use tidegate_conntrack::{Part, TableKind, TableMemory};
use tidegate_snapshot::Snapshot;
use tidegate_spec::EarlierPort;
use tidegate_wire::Family;

use crate::gateway::threads::OnFailure;

pub use restoration::{FlowPersistence, Restoration, Restored};
pub use store::{Shape, Store, StoreError};

tidegate_wire::named! {
    /// The page size of a table.
    pub enum Pages {
        /// Huge pages reserved by the administrator (`vm.nr_hugepages`).
        Huge => "huge pages",
        /// Transparent huge pages, where the kernel provides them.
        Transparent => "transparent huge pages",
        /// Pages of 4 KiB.
        Small => "4 KiB pages",
    }
}

/// The memory of the flow tables of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableMemoryStats {
    /// The pages of the tables.
    pub pages: Pages,
    /// Allocated bytes. Tables that no Service has needed yet are not included.
    pub bytes: usize,
}

/// An array of a worker's table.
#[derive(Debug)]
struct TableArray {
    worker: u8,
    table: TableKind,
    part: Part,
    region: Region,
    pages: Pages,
    /// The file that backs the array.
    file: Option<File>,
    is_prepared: bool,
}

/// The memory of the flow tables of all workers.
#[derive(Debug)]
pub struct FlowMemory {
    /// Whether the reserved huge pages suffice for the tables of all workers.
    has_huge_pages: bool,
    store: Option<Store>,
    /// Whether a table is on the heap because its memory could not be mapped.
    is_on_heap: AtomicBool,
    arrays: Mutex<Vec<TableArray>>,
}

/// Provides the memory of one worker's tables.
#[derive(Debug)]
pub struct Provider<'a> {
    memory: &'a FlowMemory,
    worker: u8,
    node: Option<u16>,
}

impl FlowMemory {
    /// Memory for the tables of this many workers, each for `entries` flows. With `huge`, uses reserved huge pages if
    /// there are enough for all tables. With a store, the tables are its files instead.
    #[must_use]
    pub fn new(workers: usize, entries: usize, huge: bool, store: Option<Store>) -> Self {
        let wanted = workers.saturating_mul(entries).saturating_mul(ENTRY_BYTES);
        let has_huge_pages = huge && free_huge_bytes() >= wanted;
        Self { has_huge_pages, store, is_on_heap: AtomicBool::new(false), arrays: Mutex::default() }
    }

    /// The memory of a worker on a NUMA node.
    #[must_use]
    pub fn provider(&self, worker: u8, node: Option<u16>) -> Provider<'_> {
        Provider { memory: self, worker, node }
    }

    /// Allocates all pages of the tables that the Services of a snapshot need, and records the names of its ids and the
    /// weights of its backends. Call it before workers get the snapshot.
    pub fn prepare(&self, snapshot: &Snapshot) {
        if let Some(store) = &self.store {
            store.follow(snapshot);
        }
        let mut arrays = self.arrays();
        if arrays.iter().all(|one| one.is_prepared) {
            return;
        }
        let needed = kinds(snapshot);
        let unprepared = arrays.iter_mut().filter(|one| !one.is_prepared && needed.contains(&one.table));
        unprepared.for_each(TableArray::prepare);
    }

    /// The memory of a worker's tables.
    #[must_use]
    pub fn of_worker(&self, worker: u8) -> TableMemoryStats {
        let arrays = self.arrays();
        let entries = arrays.iter().filter(|one| one.worker == worker && one.part == Part::Entries);
        let pages = entries.clone().map(|one| one.pages).next_back().unwrap_or(Pages::Small);
        let bytes = entries.filter(|one| one.is_prepared).map(|one| one.region.bytes()).sum();
        TableMemoryStats { pages, bytes }
    }

    fn arrays(&self) -> MutexGuard<'_, Vec<TableArray>> {
        self.arrays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self, worker: u8, table: TableKind, part: Part, words: usize) -> io::Result<Mapped> {
        if let Some(store) = &self.store
            && let Some(file) = store.file(worker, table, part, words)
        {
            let file = file?;
            let (words, region) = Region::of_file(&file, words)?;
            let pages = if store.has_huge_pages() { Pages::Transparent } else { Pages::Small };
            return Ok((words, region, pages, Some(file)));
        }
        if self.has_huge_pages {
            // Another program may have taken the pages in the meantime.
            if let Ok((words, region)) = Region::anonymous(words, true) {
                return Ok((words, region, Pages::Huge, None));
            }
        }
        let pages = if has_transparent_huge_pages() { Pages::Transparent } else { Pages::Small };
        Region::anonymous(words, false).map(|(words, region)| (words, region, pages, None))
    }

    /// Two words in which a worker keeps its clock for the next process.
    pub(crate) fn clock(&self, worker: u8) -> Option<&'static mut [u32]> {
        let clock = self.store.as_ref()?.clock(worker)?;
        clock
            .inspect_err(|error| {
                tracing::warn!(
                    worker, %error,
                    "cannot store the clock of a worker: after a restart, the ages of flows will be inexact"
                );
            })
            .ok()
    }

    /// Whether a table that should outlive the process doesn't, because its file didn't fit the directory.
    #[must_use]
    pub fn lacks_space(&self) -> bool {
        let is_elsewhere = |one: &TableArray| one.is_prepared && one.file.is_none();
        let is_on_heap = self.is_on_heap.load(Ordering::Relaxed);
        self.store.is_some() && (is_on_heap || self.arrays().iter().any(is_elsewhere))
    }

    /// Whether some Services and backends could not be recorded for the next process.
    #[must_use]
    pub fn lacks_records(&self) -> bool {
        self.store.as_ref().is_some_and(|store| !store.is_recorded())
    }

    /// Why this process has no directory for its tables although the gateway has one.
    #[must_use]
    pub fn error(&self) -> Option<&StoreError> {
        self.store.as_ref().and_then(Store::error)
    }

    /// The service ports of earlier processes with their backends. Call it before [`Self::restoration`].
    pub(crate) fn earlier_ports(&self) -> Vec<EarlierPort> {
        self.store.as_ref().map_or_else(Vec::new, Store::earlier_ports)
    }

    /// Starts restoring the flows of earlier processes. `on_failure` is called if that fails.
    pub(crate) fn restoration(
        &mut self,
        shape: Shape,
        on_failure: Option<OnFailure>,
    ) -> Option<Arc<Restoration>> {
        let store = self.store.as_mut()?;
        let new = Restoration::new(std::mem::take(&mut store.earlier), store.refused, shape, on_failure);
        new.inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot start the thread that restores flows: the flows of earlier processes are lost"
            );
        })
        .ok()
    }
}

/// The words of an array, and how they are mapped.
type Mapped = (&'static mut [u32], Region, Pages, Option<File>);

impl TableArray {
    /// Allocates the pages.
    fn prepare(&mut self) {
        self.is_prepared = true;
        let Self { worker, table, part, region, pages, file, .. } = self;
        let (worker, table, part) = (*worker, table.as_str(), part.as_str());
        if let Some(backed) = file
            && let Err(error) = region::reserve(backed, region.bytes() as u64)
        {
            tracing::warn!(
                worker, table, part, %error,
                "no space for the file of a flow table: its flows will be lost on a restart"
            );
            // Without free space for its pages, the file would crash the process at the first flow.
            match region.detach_file(backed) {
                Ok(()) => (*file, *pages) = (None, Pages::Small),
                Err(error) => {
                    tracing::error!(
                        worker, table, part, %error,
                        "cannot move the flow table from its file to other memory: the gateway may crash at a new flow"
                    );
                }
            }
        }
        match region.populate() {
            Ok(()) => tracing::info!(
                worker,
                table,
                part,
                mib = region.bytes() >> 20,
                pages = pages.as_str(),
                outlives_process = file.is_some(),
                "flow table allocated"
            ),
            Err(error) => tracing::warn!(
                worker, table, part, %error,
                "cannot preallocate the whole flow table: pages are allocated on first use"
            ),
        }
    }
}

impl TableMemory for Provider<'_> {
    fn provide(&mut self, table: TableKind, part: Part, words: usize) -> Option<&'static mut [u32]> {
        // Few flows have streams and splices, so their arrays may be on the heap.
        if part != Part::Entries && self.memory.store.is_none() {
            return None;
        }
        let worker = self.worker;
        let (memory, region, pages, file) = match self.memory.map(worker, table, part, words) {
            Ok(mapped) => mapped,
            Err(error) => {
                tracing::warn!(
                    worker, table = table.as_str(), %error,
                    "cannot map memory for a flow table: allocating the table on the heap instead"
                );
                self.memory.is_on_heap.store(true, Ordering::Relaxed);
                return None;
            }
        };
        if let Some(node) = self.node
            && let Err(error) = region.prefer_node(node)
        {
            tracing::debug!(worker, node, %error, "flow table may be on another NUMA node");
        }
        if let Err(error) = region.lock() {
            tracing::debug!(worker, table = table.as_str(), %error, "flow table may be swapped out");
        }
        let is_prepared = false;
        self.memory.arrays().push(TableArray { worker, table, part, region, pages, file, is_prepared });
        Some(memory)
    }
}

/// Bytes per flow that the entries of all four tables take ([`FlowTables::new`](tidegate_conntrack::FlowTables::new)).
const ENTRY_BYTES: usize = 32 + 48 + 96 + 192;

/// The tables that the Services of a snapshot need.
fn kinds(snapshot: &Snapshot) -> Vec<TableKind> {
    let mut found = Vec::new();
    for (service, _) in snapshot.services() {
        let affinity = service.affinity_ms != 0;
        let (dsr, nat) = match service.vip.family() {
            Family::V4 => (TableKind::DsrV4, TableKind::NatV4),
            Family::V6 => (TableKind::DsrV6, TableKind::NatV6),
        };
        // Session affinity is in the table of DSR flows.
        for (kind, is_needed) in [(dsr, service.mode.is_dsr() || affinity), (nat, !service.mode.is_dsr())] {
            if is_needed && !found.contains(&kind) {
                found.push(kind);
            }
        }
        if found.len() == TableKind::ALL.len() {
            break;
        }
    }
    found
}

/// Bytes of the free huge pages of 2 MiB.
fn free_huge_bytes() -> usize {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: usize = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    free.saturating_mul(dpdk::region::HUGE_PAGE)
}

fn has_transparent_huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| !text.contains("[never]"))
}

#[cfg(test)]
mod tests {
    use tidegate_conntrack::FlowTables;
    use tidegate_pipeline::testing::lab;
    use tidegate_snapshot::neighbors::NeighborTable;
    use tidegate_spec::{ForwardingMode, Protocol, SnapshotSpec};

    use super::*;

    #[test]
    fn a_table_gets_its_pages_when_the_first_service_needs_it() {
        let memory = FlowMemory::new(1, 4096, true, None);
        let tables = FlowTables::in_memory(4096, 7, &mut memory.provider(0, None));
        let of_kind = |kind| tables.regions()[kind as usize].len() * 4;
        assert_eq!(memory.of_worker(0).bytes, 0, "nothing is allocated before it is needed");
        let published = |mode, vip| {
            let service = lab::service(mode, Protocol::Tcp, vip, &[]);
            let spec = SnapshotSpec { services: vec![service.into()], ..lab::spec() };
            let (snapshot, _) = Snapshot::compile(&spec, None, &NeighborTable::new()).expect("it compiles");
            memory.prepare(&snapshot);
            memory.of_worker(0).bytes
        };
        let rounded = |bytes: usize| bytes..bytes + dpdk::region::HUGE_PAGE;
        let dsr = published(ForwardingMode::DsrL2, "203.0.113.1:80");
        assert!(rounded(of_kind(TableKind::DsrV4)).contains(&dsr));
        assert_eq!(published(ForwardingMode::DsrGue, "203.0.113.1:80"), dsr, "the same table");
        let both = published(ForwardingMode::Nat, "[2001:db8:f::1]:80");
        assert!(rounded(of_kind(TableKind::NatV6)).contains(&(both - dsr)));
    }
}
