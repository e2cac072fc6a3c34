//! The flow tables of a worker: the backend of each connection, and how to translate it.
//!
//! Each worker has its own [`FlowTables`], without sharing or locks. A packet costs one prefetched cache line:
//! [`FlowTables::hash`] and `prefetch` for the burst, other work, `lookup_first`, then `lookup` and `insert` for
//! packets that still have no flow. A DSR flow ([`DsrTable`]) has one entry, a NAT flow ([`NatTable`]) two.
//!
//! Guarantees for full tables: a flow that is established and in use is never evicted. A flood of SYNs, unanswered
//! datagrams or packets with new 5-tuples evicts only entries that are not established, and their timeouts shrink as
//! the table fills. The flood evicts its own entries, which are identified by their service and by the network of their
//! clients, not the handshakes of others (`eviction.rs`). If no other entry can be evicted, the established flow that
//! has been idle longest near the new one is evicted, if it has been idle for ten seconds or more. A service that has
//! reached its share of a full table replaces only its own flows, and flows that are not established.
//!
//! Not guaranteed: a flood against many services that completes handshakes fills a table with flows in use, and then
//! new flows are refused. A flood from random sources that the backends answer evicts handshakes with the same service
//! if they last longer than the flood needs to replace all opening entries of the table.
//!
//! Invariant: nothing here reads a clock or allocates after construction. Results depend only on the arguments,
//! including the secret of the hash.
//!
//! May depend on: `tidegate-select`, `tidegate-spec`, `tidegate-structures`, `tidegate-wire`.
#![deny(unsafe_code)]

mod accounts;
pub mod affinities;
pub mod associations;
mod backend_loads;
mod counts;
mod dsr;
mod eviction;
mod eviction_reason;
mod export;
mod first_lookup;
pub mod flow_copies;
pub mod flow_log;
pub mod flow_record;
mod flow_state;
mod flow_traffic;
mod import;
mod insert_error;
mod journal;
mod key;
mod logging;
mod masquerade;
mod memory;
mod nat;
mod new_flow;
mod not_restored;
mod shared_table;
mod splice;
mod steady;
mod stored;
mod stored_syns;
mod stream;
mod table;
mod tags;
#[cfg(test)]
mod tests;
mod view;
mod walk;

pub use dsr::{DsrHit, DsrTable};
pub use eviction_reason::{EvictionReason, FlowCounters};
pub use first_lookup::First;
pub use flow_state::{IdleTimeout, Packet, Phase, SideState};
pub use flow_traffic::FlowTraffic;
pub use import::{Imported, Origin};
pub use insert_error::InsertError;
pub use key::{AssociationKey, FlowHash, FlowHasher, FlowKey};
pub use masquerade::{Masquerade, Masquerades};
pub use memory::{HeapMemory, Part, StoredTable, TableKind, TableMemory};
pub use nat::{NatHit, NatTable, ReplyHit, ReplyKey};
pub use new_flow::NewFlow;
pub use not_restored::NotRestored;
pub use splice::Splice;
pub use steady::{Bucket, SteadyHit, SteadyKey, SteadyTables};
pub use stored::{STORED_FORM, StoredTables};
pub use stored_syns::{StoredSyn, StoredSyns, Tried};
pub use stream::{Placement, Stream};
pub use tags::{PacketTags, Side, TagPair, Tags};
pub use view::{FlowKind, FlowView};

use tidegate_select::loads::Load;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::now::Now;
use tidegate_wire::Family;
use walk::WalkStep;

/// All flows of one worker.
///
/// ```
/// use tidegate_conntrack::{FlowKey, FlowTables, IdleTimeout, NewFlow, Packet, Phase};
/// use tidegate_spec::{ids::{BackendId, ServiceId}, now::Now};
/// use tidegate_wire::{Addr, tcp::flags};
/// use std::time::Duration;
///
/// let mut tables = FlowTables::new(1000, 0x5eed);
/// let key = FlowKey::flow(ServiceId::new(3, 0), Addr::v4([198, 51, 100, 7]), 40_000);
/// let hash = tables.hash(&key);
/// let (syn, ack) = (Packet::Tcp(flags::SYN), Packet::Tcp(flags::ACK));
/// let idle = IdleTimeout::new(Duration::from_secs(7_440));
/// assert!(tables.dsr.lookup(&key, hash, syn, Now(0)).is_none());
/// let flow = NewFlow { key, hash, backend: BackendId::new(9, 0), packet: syn, idle, now: Now(0) };
/// tables.dsr.insert(&flow).expect("an empty table refuses nothing");
/// let hit = tables.dsr.lookup(&key, hash, ack, Now(1_000_000)).expect("the flow is known");
/// assert_eq!((hit.backend, hit.phase), (BackendId::new(9, 0), Phase::Established));
/// ```
#[derive(Debug)]
pub struct FlowTables {
    /// Flows of DSR services, and the affinity entries of all services.
    pub dsr: DsrTable,
    /// Flows of `nat` and `fullnat` services.
    pub nat: NatTable,
    /// The verification tags of SCTP flows of both tables.
    pub tags: Tags,
    /// Flows that backends originate and that are masqueraded.
    pub masquerades: Masquerades,
    hasher: FlowHasher,
    /// The table that was aged last.
    aged_table: usize,
}

/// Runs the same expression on each of the four tables.
macro_rules! each_table {
    ($self:ident [$($borrow:tt)+], |$table:ident| $body:expr) => {{
        {
            let $table = $($borrow)+ $self.dsr.v4;
            $body;
        }
        {
            let $table = $($borrow)+ $self.dsr.v6;
            $body;
        }
        {
            let $table = $($borrow)+ $self.nat.v4;
            $body;
        }
        {
            let $table = $($borrow)+ $self.nat.v6;
            $body;
        }
    }};
}
use each_table;

impl FlowTables {
    /// Creates tables for `entries_per_core` flows of each of the four kinds (DSR and NAT, IPv4 and IPv6). Each kind
    /// has the full capacity, so the mix doesn't matter. A flow takes 32, 48, 96 or 192 bytes of address space, and 32
    /// more with SCTP. Pages take memory only once flows are stored there, so unused kinds cost next to nothing. There
    /// is capacity for an eighth as many masqueraded flows, of at most 128 bytes. `seed` should be secret.
    ///
    /// # Panics
    /// If there is not enough memory, or one table would have more than 2^32 cache lines.
    #[must_use]
    pub fn new(entries_per_core: usize, seed: u64) -> Self {
        Self::in_memory(entries_per_core, seed, &mut HeapMemory)
    }

    /// Like [`Self::new`], with entries in memory that the caller provides.
    ///
    /// # Panics
    /// As [`Self::new`], and if the provided memory is not as [`TableMemory::provide`] requires.
    #[must_use]
    pub fn in_memory(entries_per_core: usize, seed: u64, memory: &mut dyn TableMemory) -> Self {
        let hasher = FlowHasher::new(seed);
        Self {
            dsr: DsrTable::new(entries_per_core, &hasher, memory),
            nat: NatTable::new(entries_per_core, &hasher, memory),
            tags: Tags::new(entries_per_core),
            masquerades: Masquerades::new(entries_per_core, &hasher),
            hasher,
            aged_table: 0,
        }
    }

    /// Sets the share of a full table that one service may have, in percent of the bound; with 100 there is no
    /// limit.
    pub fn set_service_share(&mut self, percent: u8) {
        each_table!(self[&mut], |table| table.set_share(percent));
    }

    /// The hash of a key, for any of the tables. Pure.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> FlowHash {
        self.hasher.hash(key)
    }

    /// Removes expired flows from the next `buckets` hash buckets, and returns how many. Call it with each burst and
    /// also when idle: timestamps wrap, so every hash bucket must be visited within 24 days.
    #[inline]
    pub fn age(&mut self, now: Now, buckets: usize) -> usize {
        for _ in 0..4 {
            self.aged_table = (self.aged_table + 1) % 4;
            let removed = match self.aged_table {
                0 => age(&mut self.dsr.v4, now, buckets),
                1 => age(&mut self.dsr.v6, now, buckets),
                2 => age(&mut self.nat.v4, now, buckets),
                _ => age(&mut self.nat.v6, now, buckets),
            };
            if let Some(removed) = removed {
                return removed;
            }
        }
        0
    }

    /// Removes expired flows from the next `buckets` hash buckets of each table, each at most once.
    pub fn age_each(&mut self, now: Now, buckets: usize) {
        each_table!(self[&mut], |table| table.age(now, buckets));
        self.masquerades.age(now, buckets);
    }

    /// Removes expired masqueraded flows among the next `entries` entries. Call it like [`Self::age`].
    #[inline]
    pub fn age_masquerades(&mut self, now: Now, entries: usize) {
        if !self.masquerades.is_empty() {
            self.masquerades.age(now, entries);
        }
    }

    /// Counts the entries of backends in up to `buckets` more hash buckets of each table. Returns whether all are
    /// counted; after that, counts are kept up to date. `exists` returns whether the snapshot in use has this id.
    pub fn count_loads(&mut self, buckets: usize, exists: impl Fn(BackendId) -> bool) -> bool {
        let mut are_all_counted = true;
        each_table!(self[&mut], |table| are_all_counted &= table.count_loads(buckets, &exists));
        are_all_counted
    }

    /// The counted entries of a backend, in the table of its mode and of this client family. A DSR flow has one entry,
    /// a NAT flow two.
    #[inline]
    #[must_use]
    pub fn load(&self, is_dsr: bool, clients: Family, backend: BackendId) -> Load {
        match (is_dsr, clients) {
            (true, Family::V4) => self.dsr.v4.load_of_backend(backend),
            (true, Family::V6) => self.dsr.v6.load_of_backend(backend),
            (false, Family::V4) => self.nat.v4.load_of_backend(backend),
            (false, Family::V6) => self.nat.v6.load_of_backend(backend),
        }
    }

    /// The number of flows. An affinity entry counts as one, and a NAT flow counts once.
    #[inline]
    #[must_use]
    pub fn live(&self) -> usize {
        self.dsr.live() + self.nat.live() + self.masquerades.live()
    }

    /// The number of a service's flows from clients of this family, without affinity entries. `is_dsr` selects the
    /// table.
    #[must_use]
    pub fn of_service(&self, service: ServiceId, is_dsr: bool, clients: Family) -> u32 {
        let owner = service.raw();
        match (is_dsr, clients) {
            (true, Family::V4) => self.dsr.v4.connections(owner),
            (true, Family::V6) => self.dsr.v6.connections(owner),
            (false, Family::V4) => self.nat.v4.connections(owner),
            (false, Family::V6) => self.nat.v6.connections(owner),
        }
    }

    /// The numbers of removed flows by reason, and of refused flows, since the start.
    #[must_use]
    pub fn counters(&self) -> FlowCounters {
        self.dsr.counters().plus(&self.nat.counters())
    }

    /// Bytes of address space of all tables. Memory is used only where flows have been stored.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let mut bytes = self.tags.memory_bytes() + self.masquerades.memory_bytes();
        each_table!(self[&], |table| bytes += table.memory_bytes());
        bytes
    }

    /// The memory of the tables, for advice to the kernel (huge pages, NUMA node).
    #[must_use]
    pub fn regions(&self) -> [&[u32]; 4] {
        [self.dsr.v4.words(), self.dsr.v6.words(), self.nat.v4.words(), self.nat.v6.words()]
    }

    /// Removes the flows for which `keep` returns false, counted as removed. Walks all tables, so it is for drains and
    /// tests, not for use under load.
    pub fn retain(&mut self, now: Now, keep: impl FnMut(&FlowView) -> bool) {
        let _whole = self.sweep(0, u64::MAX, now, keep);
    }

    /// Like [`Self::retain`], for up to `buckets` hash buckets from `cursor` on (0 at first). Returns the next cursor,
    /// or `None` at the end. Flows that are moved during the sweep may be missed.
    pub fn sweep(
        &mut self,
        cursor: u64,
        buckets: u64,
        now: Now,
        mut keep: impl FnMut(&FlowView) -> bool,
    ) -> Option<u64> {
        let mut step = WalkStep::new(cursor, buckets);
        each_table!(self[&mut], |table| {
            for bucket in step.part(table) {
                for position in table.positions(bucket) {
                    if table.view(position, now).is_some_and(|flow| !keep(&flow)) {
                        table.remove(position, EvictionReason::Removed);
                    }
                }
            }
        });
        step.next()
    }

    /// Calls `show` for the flows, including masqueraded ones, of up to `buckets` hash buckets from `cursor` on (0 at
    /// first). Returns the next cursor, or `None` at the end. Flows that are added, removed or moved during the scan
    /// may be missed or shown twice.
    pub fn scan(&self, cursor: u64, buckets: u64, now: Now, mut show: impl FnMut(FlowView)) -> Option<u64> {
        let mut step = WalkStep::new(cursor, buckets);
        each_table!(self[&], |table| {
            let positions = step.part(table).flat_map(|bucket| table.positions(bucket));
            positions.filter_map(|position| table.view(position, now)).for_each(&mut show);
        });
        // Each entry of a masqueraded flow counts as a hash bucket.
        let entries = step.part_of(self.masquerades.entry_count());
        entries.filter_map(|index| self.masquerades.view(index, now)).for_each(&mut show);
        step.next()
    }
}

#[inline]
fn age<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut table::Table<A, W, K, B>,
    now: Now,
    buckets: usize,
) -> Option<usize> {
    (table.live > 0).then(|| {
        let removed = table.age(now, buckets);
        table.prefetch_age(buckets);
        removed
    })
}
