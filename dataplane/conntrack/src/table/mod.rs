//! The hash table of flows: the layout of its entries, and how they are read. `search.rs` finds entries, `changes.rs`
//! writes them, `expiry.rs` ages them, `counting.rs` counts them, and `eviction.rs` allocates positions for new ones.
//! The DSR and NAT tables are this table with different sizes.
//!
//! An entry is `W` words: owner, port and state, last packet, value, address (`A` words); in tables of pairs also the
//! key of the other entry. A hash bucket is `B` words: one cache line (two for IPv6 pairs) with `K` entries, and each
//! key has two hash buckets. The memory is an array of plain words, which the system zeroes lazily; a type aligned to
//! the cache line would be written in full at the start. The first hash bucket starts at the first aligned word.
//!
//! The memory may outlive the process (`memory.rs`), so an entry with a state is always complete (`changes.rs`).
//!
//! Invariant: an entry is in one of the two hash buckets of its key, and no key is in the table twice. The entries of a
//! pair refer to each other by key, not by position, so either can be moved without touching the other.

mod changes;
mod counting;
mod expiry;
mod search;

pub(super) use expiry::FlowAge;

use tidegate_spec::limits::FLOW_SHARE_PERCENT;
use tidegate_structures::prefetch;

use super::accounts::Accounts;
use super::backend_loads::BackendLoads;
use super::counts::Counts;
use super::eviction_reason::FlowCounters;
use super::flow_state::{IdleTimeout, Phase, SideState};
use super::journal::{Adopted, Journal};
use super::key::{AFFINITY_BIT, FlowHash, FlowHasher, KEY_MASK, PackedKey, REPLY_BIT};
use super::memory::{Part, StoredTable, TableKind, TableMemory, Words};
use super::new_flow::NewFlow;
use super::splice::Splice;
use super::stream::{Stream, Streams};

/// A table with `A` words per address, `W` per entry, `K` entries per hash bucket and `B` words per hash bucket.
#[derive(Debug)]
pub(super) struct Table<const A: usize, const W: usize, const K: usize, const B: usize> {
    words: Words,
    /// The first word of the first hash bucket.
    first: usize,
    pub(super) buckets: u32,
    /// The number of entries above which flows are evicted even if positions are free.
    pub(super) bound: usize,
    pub(super) live: usize,
    counts: Counts,
    loads: BackendLoads,
    /// State changes of entries below this word are counted, added to the journal or logged: 0 unless loads are
    /// compared, or flows are shared or logged.
    watched: usize,
    /// The flows whose state has changed, if flows are shared.
    pub(super) journal: Journal<A>,
    pub(super) adopted: Adopted,
    /// The packets and bytes of logged flows.
    pub(super) accounts: Accounts<A>,
    /// Flows that one service may have once the table exceeds its bound.
    share: usize,
    /// The hash bucket that ageing examines next.
    cursor: u32,
    hasher: FlowHasher,
    pub(super) counters: FlowCounters,
    /// The streams of flows, at the client's entry. In tables of pairs only.
    streams: Streams,
}

/// The position of an entry. Valid until the next insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position(usize);

// The next process reads these words: a change of their meaning requires a new `STORED_FORM` (`stored.rs`).
pub(super) const OWNER: usize = 0;
/// Port (16 bits), reply or affinity (1), state (3), idle timeout (12).
pub(super) const TAG: usize = 1;
pub(super) const SEEN: usize = 2;
pub(super) const VALUE: usize = 3;
pub(super) const ADDR: usize = 4;

pub(super) const STATE_SHIFT: u32 = 12;
pub(super) const STATE_MASK: u32 = 7 << STATE_SHIFT;
pub(super) const IDLE_MASK: u32 = 0xfff;

/// A new entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<const A: usize> {
    pub(super) key: PackedKey<A>,
    pub(super) state: SideState,
    pub(super) idle: IdleTimeout,
    pub(super) seen: u32,
    pub(super) value: u32,
    /// The key of the other entry, in tables of pairs.
    pub(super) peer: Option<PackedKey<A>>,
}

impl<const A: usize> Entry<A> {
    /// The client's entry of a new flow.
    #[inline(always)]
    pub(super) fn first(flow: &NewFlow<PackedKey<A>>, peer: Option<PackedKey<A>>) -> Self {
        let &NewFlow { key, backend, packet, idle, now, .. } = flow;
        Self { key, state: SideState::first(packet), idle, seen: now.millis(), value: backend.raw(), peer }
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Whether entries come in pairs: an entry then has words for a second key.
    pub(super) const PAIRED: bool = W >= ADDR + A + 2 + A;
    const PEER_OWNER: usize = ADDR + A;
    const PEER_TAG: usize = ADDR + A + 1;
    const PEER_ADDR: usize = ADDR + A + 2;

    /// A table for `bound` entries, which are two thirds of its capacity.
    pub(super) fn new(
        bound: usize,
        hasher: FlowHasher,
        kind: TableKind,
        memory: &mut dyn TableMemory,
    ) -> Self {
        const { assert!(W * K <= B && W >= ADDR + A && B.is_power_of_two()) };
        let bound = bound.max(1);
        let buckets = Self::buckets_for(bound);
        let len = buckets as usize * B;
        let words = Words::new(memory.provide(kind, Part::Entries, len), len, B - 1);
        // The allocation never moves while the table exists.
        let misaligned = words.as_ptr().addr() / size_of::<u32>() % B;
        let first = (B - misaligned) % B;
        let (counts, counters) = (Counts::new(hasher.network_secret()), FlowCounters::default());
        let positions = if Self::PAIRED { buckets as usize * (B / W) } else { 0 };
        let streams = Streams::new(positions, |part, len| {
            let provided = if len > 0 { memory.provide(kind, part, len) } else { None };
            Words::new(provided, len, 0)
        });
        let loads = BackendLoads::new();
        let (journal, adopted) = (Journal::new(), Adopted::new((buckets as usize * B).div_ceil(W)));
        let mut table = Self {
            words,
            first,
            buckets,
            bound,
            live: 0,
            counts,
            loads,
            watched: 0,
            journal,
            adopted,
            accounts: Accounts::new(),
            share: 0,
            cursor: 0,
            hasher,
            counters,
            streams,
        };
        table.set_share(FLOW_SHARE_PERCENT);
        table
    }

    /// The number of hash buckets of a table for `bound` entries.
    pub(super) fn buckets_for(bound: usize) -> u32 {
        let buckets = (bound.max(1).saturating_mul(3).div_ceil(2 * K)).max(4);
        u32::try_from(buckets).expect("a flow table of less than 2^32 cache lines")
    }

    /// The arrays of the table.
    pub(super) fn arrays(&self) -> StoredTable<'_> {
        let [streams, splices] = self.streams.words();
        StoredTable { entries: self.words(), streams, splices }
    }

    pub(super) fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// Whether entries come in pairs.
    pub(super) fn is_paired(&self) -> bool {
        Self::PAIRED
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words[self.first..self.first + self.buckets as usize * B]
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline]
    pub(super) fn primary(&self, hash: FlowHash) -> u32 {
        Self::homes(hash, self.buckets)[0]
    }

    #[inline]
    pub(super) fn secondary(&self, hash: FlowHash) -> u32 {
        Self::homes(hash, self.buckets)[1]
    }

    /// The two hash buckets of a key, in a table of this many.
    #[inline(always)]
    pub(super) fn homes(hash: FlowHash, buckets: u32) -> [u32; 2] {
        // Multiply-shift instead of a remainder (Lemire 2019), so that any number of hash buckets works.
        let share = |half: u64| ((half * u64::from(buckets)) >> 32) as u32;
        let (primary, secondary) = (share(u64::from(hash.0 as u32)), share(hash.0 >> 32));
        if secondary != primary {
            [primary, secondary]
        } else {
            [primary, if secondary + 1 == buckets { 0 } else { secondary + 1 }]
        }
    }

    #[inline]
    fn start(&self, bucket: u32) -> usize {
        self.first + bucket as usize * B
    }

    #[inline]
    pub(super) fn positions(&self, bucket: u32) -> [Position; K] {
        let start = self.start(bucket);
        std::array::from_fn(|n| Position(start + n * W))
    }

    pub(super) fn bucket_of(&self, position: Position) -> u32 {
        ((position.0 - self.first) / B) as u32
    }

    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: u32) {
        let start = self.start(bucket);
        prefetch::read(&self.words[start]);
        if B > 16 {
            prefetch::read(&self.words[start + 16]);
        }
    }

    /// Prefetches the first hash bucket of a key.
    #[inline]
    pub(super) fn prefetch(&self, hash: FlowHash) {
        self.prefetch_bucket(self.primary(hash));
    }

    #[inline]
    fn entry(&self, position: Position) -> &[u32; W] {
        self.words[position.0..].first_chunk().expect("positions are within the table")
    }

    #[inline]
    fn entry_mut(&mut self, position: Position) -> &mut [u32; W] {
        self.words[position.0..].first_chunk_mut().expect("positions are within the table")
    }

    /// The index of an entry.
    #[inline]
    pub(super) fn entry_index(&self, position: Position) -> usize {
        (position.0 - self.first) / W
    }

    /// Whether any flow has had a stream or a splice.
    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        self.streams.used()
    }

    /// The stream of a flow, at the client's entry.
    pub(super) fn stream(&self, position: Position) -> Option<Stream> {
        self.streams.get(self.entry_index(position))
    }

    pub(super) fn set_stream(&mut self, position: Position, stream: Stream) {
        self.streams.set(self.entry_index(position), stream);
    }

    /// Removes the stream of this entry, because its flow begins again.
    pub(super) fn forget_stream(&mut self, position: Position) {
        self.streams.forget_stream(self.entry_index(position));
    }

    /// Removes the stream and the splice of this entry, because a new flow begins.
    #[inline]
    pub(super) fn forget_streams(&mut self, position: Position) {
        self.streams.forget(self.entry_index(position));
    }

    /// The splice of a flow, at the client's entry.
    pub(super) fn splice(&self, position: Position) -> Option<Splice> {
        self.streams.splice(self.entry_index(position))
    }

    pub(super) fn set_splice(&mut self, position: Position, splice: Splice) {
        self.streams.set_splice(self.entry_index(position), splice);
    }

    /// The state of the entry; `None` for a free position.
    #[inline]
    pub(super) fn state(&self, position: Position) -> Option<SideState> {
        SideState::from_bits((self.entry(position)[TAG] & STATE_MASK) >> STATE_SHIFT)
    }

    #[inline]
    pub(super) fn is_empty(&self, position: Position) -> bool {
        self.entry(position)[TAG] & STATE_MASK == 0
    }

    #[inline]
    pub(super) fn value(&self, position: Position) -> u32 {
        self.entry(position)[VALUE]
    }

    /// The key of the entry.
    #[inline]
    pub(super) fn key(&self, position: Position) -> PackedKey<A> {
        let entry = self.entry(position);
        PackedKey {
            owner: entry[OWNER],
            tag: entry[TAG] & KEY_MASK,
            addr: std::array::from_fn(|n| entry[ADDR + n]),
        }
    }

    /// The key of the other entry of the pair.
    #[inline]
    pub(super) fn peer_key(&self, position: Position) -> PackedKey<A> {
        let entry = self.entry(position);
        PackedKey {
            owner: entry[Self::PEER_OWNER],
            tag: entry[Self::PEER_TAG],
            addr: std::array::from_fn(|n| entry[Self::PEER_ADDR + n]),
        }
    }

    #[inline]
    pub(super) fn hash_of(&self, key: &PackedKey<A>) -> FlowHash {
        self.hasher.hash_packed(key)
    }

    /// The other entry of the pair, if the table has pairs.
    pub(super) fn peer(&self, position: Position) -> Option<Position> {
        if !Self::PAIRED {
            return None;
        }
        let key = self.peer_key(position);
        self.find(&key, self.hash_of(&key))
    }

    /// The idle timeout of the service at the time when the flow began.
    #[inline]
    fn idle_timeout(&self, position: Position) -> IdleTimeout {
        IdleTimeout::from_bits(self.entry(position)[TAG] & IDLE_MASK)
    }

    /// The time of the direction's last packet, in milliseconds.
    pub(super) fn seen(&self, position: Position) -> u32 {
        self.entry(position)[SEEN]
    }

    /// Whether the entry is the reply of a pair.
    #[inline]
    pub(super) fn is_reply(&self, position: Position) -> bool {
        Self::PAIRED && self.entry(position)[TAG] & REPLY_BIT != 0
    }

    /// Whether the entry is session affinity.
    #[inline]
    pub(super) fn is_affinity(&self, position: Position) -> bool {
        !Self::PAIRED && self.entry(position)[TAG] & AFFINITY_BIT != 0
    }

    /// The phase of a flow as shown by this entry.
    #[inline]
    pub(super) fn phase(&self, position: Position) -> Phase {
        self.state(position).map_or(Phase::Closed, SideState::phase)
    }
}
