//! Buckets of entries in one block of memory: storage, search, ageing. `room.rs` makes room for new entries. The DSR
//! and NAT tables define the meaning of an entry; they are this table with different sizes.
//!
//! An entry is `W` words: owner, port and state, last packet, value, address (`A` words); in tables of pairs also the
//! key of the other entry. A bucket is `B` words: one cache line (two for IPv6 pairs) with `K` entries, and each key
//! has two buckets. The memory consists of zeroed words, and the first bucket begins at the first aligned one. Only
//! plain words are zeroed by the system and so remain untouched until they are used; a type aligned to the cache line
//! would be written in full at the start.
//!
//! The memory may outlive the process (`memory.rs`), which can be killed between any two instructions. So an entry gets
//! its state after its other words, and loses it before them: an entry with a state is complete.
//!
//! The flows of each service are counted beside the entries, so that one service cannot use a full table alone: above
//! its share a service replaces only its own flows (see `room.rs`).
//!
//! Invariant: an entry is in one of the two buckets of its key, and no key is in the table twice. The entries of a
//! pair name each other by key, not by place, so either can be moved without touching the other.

use std::sync::atomic::{Ordering, compiler_fence};

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{FLOW_PRESSURE, FLOW_SHARE_PERCENT};
use tidegate_spec::now::Now;
use tidegate_structures::prefetch;

use super::answer::First;
use super::backend_loads::BackendLoads;
use super::counts::{Counts, Load};
use super::eviction::{EvictionReason, FlowCounters};
use super::flow_state::{CLOSED_MS, FlowStatus, IDLE_MIN_MS, IdleTimeout, Packet, Phase, STEADY_MASK, State};
use super::journal::{Adopted, Journal};
use super::key::{FlowHash, FlowHasher, KEY_MASK, PackedKey, TWIN};
use super::memory::{Part, TableKind, TableMemory, Words};
use super::splice::Splice;
use super::stream::{Stream, Streams};

/// A table with `A` words of address, `W` of entry, `K` entries in a bucket and `B` words of bucket.
#[derive(Debug)]
pub(super) struct Table<const A: usize, const W: usize, const K: usize, const B: usize> {
    words: Words,
    /// The word at which the first bucket begins.
    first: usize,
    pub(super) buckets: u32,
    /// The number of entries that the table holds without evicting any.
    pub(super) bound: usize,
    pub(super) live: usize,
    counts: Counts,
    loads: BackendLoads,
    /// The state changes of entries at words below this one are counted or noted: 0 unless loads are compared or flows
    /// are shared.
    watched: usize,
    /// The flows whose state has changed, if flows are shared.
    pub(super) journal: Journal<A>,
    pub(super) adopted: Adopted,
    /// Flows that one service may have once the table holds more than its bound.
    share: usize,
    /// The bucket that ageing examines next.
    cursor: u32,
    hasher: FlowHasher,
    pub(super) counters: FlowCounters,
    /// The streams of the flows that have one, at the client's entry. In tables of pairs only.
    streams: Streams,
}

/// The position of an entry. Valid until the next insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(usize);

/// The state of an entry, or of the pair that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vitality {
    pub(super) standing: FlowStatus,
    pub(super) idle_ms: u32,
}

impl Vitality {
    pub(super) fn expired(&self) -> bool {
        self.idle_ms >= self.standing.timeout_ms
    }

    /// Whether the flow has expired in a table that is short of room, where opening flows have shorter timeouts.
    fn expired_in_a_hurry(&self, hurry: u32) -> bool {
        let timeout_ms = self.standing.timeout_ms;
        self.idle_ms >= if self.standing.is_opening() { hurried(timeout_ms, hurry) } else { timeout_ms }
    }
}

/// The timeout of an opening flow in a table that is short of room.
fn hurried(timeout_ms: u32, hurry: u32) -> u32 {
    (timeout_ms / hurry).max(IDLE_MIN_MS)
}

// The next process reads these words: a change of their meaning is a new `STORED_FORM` (`restore.rs`).
pub(super) const OWNER: usize = 0;
/// Port (16 bits), twin (1), state (3), idle timeout (12).
pub(super) const TAG: usize = 1;
pub(super) const SEEN: usize = 2;
pub(super) const VALUE: usize = 3;
pub(super) const ADDR: usize = 4;

pub(super) const STATE_SHIFT: u32 = 12;
pub(super) const STATE_MASK: u32 = 7 << STATE_SHIFT;
pub(super) const IDLE_MASK: u32 = 0xfff;

/// Two adjacent words, as they are read at once.
#[inline(always)]
const fn two(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// A new entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<const A: usize> {
    pub(super) key: PackedKey<A>,
    pub(super) state: State,
    pub(super) idle: IdleTimeout,
    pub(super) seen: u32,
    pub(super) value: u32,
    /// The key of the other entry, in tables of pairs.
    pub(super) peer: Option<PackedKey<A>>,
}

impl<const A: usize> Entry<A> {
    /// The client's entry of a flow that begins with `packet`.
    #[inline(always)]
    pub(super) fn first(
        key: PackedKey<A>,
        peer: Option<PackedKey<A>>,
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
        now: Now,
    ) -> Self {
        Self { key, state: State::first(packet), idle, seen: now.millis(), value: backend.raw(), peer }
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Whether entries come in pairs: an entry then has room for a second key.
    pub(super) const PAIRED: bool = W >= ADDR + A + 2 + A;
    const PEER_OWNER: usize = ADDR + A;
    const PEER_TAG: usize = ADDR + A + 1;
    const PEER_ADDR: usize = ADDR + A + 2;

    /// A table with room for `bound` entries at two thirds of its capacity.
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
        // The allocation does not move while the table exists.
        let misaligned = words.as_ptr().addr() / size_of::<u32>() % B;
        let first = (B - misaligned) % B;
        let (counts, counters) = (Counts::new(hasher.network_secret()), FlowCounters::default());
        let places = if Self::PAIRED { buckets as usize * (B / W) } else { 0 };
        let streams = Streams::new(places, |part, len| {
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
            share: 0,
            cursor: 0,
            hasher,
            counters,
            streams,
        };
        table.set_share(FLOW_SHARE_PERCENT);
        table
    }

    /// The number of buckets of a table with room for `bound` entries.
    pub(super) fn buckets_for(bound: usize) -> u32 {
        let buckets = (bound.max(1).saturating_mul(3).div_ceil(2 * K)).max(4);
        u32::try_from(buckets).expect("a flow table of less than 2^32 cache lines")
    }

    /// Sets the share of the bound that one service may have once the table holds more than the bound.
    pub(super) fn set_share(&mut self, percent: u8) {
        let flows = if Self::PAIRED { self.bound / 2 } else { self.bound };
        self.share = if percent < 100 { (flows * usize::from(percent) / 100).max(1) } else { usize::MAX };
    }

    /// Whether a new flow of this service has to replace another flow of the service.
    pub(super) fn is_over_share(&self, owner: u32) -> bool {
        self.live >= self.bound && self.counts.flows(owner) as usize >= self.share
    }

    /// The divisor for the timeouts of opening flows at the current fill level.
    pub(super) fn hurry(&self) -> u32 {
        let pressed = FLOW_PRESSURE.iter().find(|(percent, _)| self.live * 100 >= self.bound * percent);
        pressed.map_or(1, |(_, hurry)| *hurry)
    }

    /// The service of a flow, from either of its entries.
    pub(super) fn service_of(&self, place: Place) -> u32 {
        let entry = self.entry(place);
        if Self::PAIRED && self.is_twin(place) { entry[Self::PEER_OWNER] } else { entry[OWNER] }
    }

    /// Whether an entry with this key counts as a flow: all do except the replies of pairs.
    fn is_counted(key: &PackedKey<A>) -> bool {
        !Self::PAIRED || key.tag & TWIN == 0
    }

    /// Whether an entry with this key is session affinity.
    #[inline]
    fn is_affinity(key: &PackedKey<A>) -> bool {
        !Self::PAIRED && key.tag & TWIN != 0
    }

    /// Whether a service has any entry.
    #[inline]
    pub(super) fn has_flows_of(&self, owner: u32) -> bool {
        self.counts.flows(owner) > 0
    }

    /// The number of flows of a service, without affinity entries.
    pub(super) fn connections(&self, owner: u32) -> u32 {
        self.counts.connections(owner)
    }

    /// The load of the service and network of a flow, from either of its entries.
    pub(super) fn load_of(&self, place: Place) -> Load {
        let flow = self.flow_key(place);
        self.load(&flow)
    }

    /// The load of the service and network of a flow with this key.
    pub(super) fn load(&self, flow: &PackedKey<A>) -> Load {
        self.counts.load(flow.owner, &flow.addr)
    }

    /// The key of the client's side of a flow, from either of its entries.
    #[inline]
    fn flow_key(&self, place: Place) -> PackedKey<A> {
        if Self::PAIRED && self.is_twin(place) { self.peer_key(place) } else { self.key(place) }
    }

    /// Updates the count of opening entries for an entry whose state changes.
    #[inline]
    fn count_opening(&mut self, flow: &PackedKey<A>, was: bool, is: bool) {
        // An affinity entry never counts as an opening flow.
        if was == is || !Self::PAIRED && flow.tag & TWIN != 0 {
            return;
        }
        if is {
            self.counts.opens(flow.owner, &flow.addr);
        } else {
            self.counts.settles(flow.owner, &flow.addr);
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn streams(&self) -> &Streams {
        &self.streams
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

    /// The two buckets of a key, in a table of this many.
    #[inline(always)]
    pub(super) fn homes(hash: FlowHash, buckets: u32) -> [u32; 2] {
        // Lemire 2019: a share of the range instead of a remainder, so that any number of buckets works.
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
    pub(super) fn places(&self, bucket: u32) -> [Place; K] {
        let start = self.start(bucket);
        std::array::from_fn(|n| Place(start + n * W))
    }

    pub(super) fn bucket_of(&self, place: Place) -> u32 {
        ((place.0 - self.first) / B) as u32
    }

    #[inline]
    pub(super) fn prefetch_bucket(&self, bucket: u32) {
        let start = self.start(bucket);
        prefetch::read(&self.words[start]);
        if B > 16 {
            prefetch::read(&self.words[start + 16]);
        }
    }

    /// Prefetches the first bucket of a key.
    #[inline]
    pub(super) fn prefetch(&self, hash: FlowHash) {
        self.prefetch_bucket(self.primary(hash));
    }

    /// Searches only the first bucket, which has been prefetched, and prefetches the second one if the key is not in
    /// the first.
    #[inline(always)]
    pub(super) fn find_first(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Place> {
        if self.live == 0 {
            return None;
        }
        let found = self.find_in(self.primary(hash), key);
        if found.is_none() {
            self.prefetch_bucket(self.secondary(hash));
        }
        found
    }

    /// Like [`Self::find_first`], and records a plain packet of an established flow.
    #[inline(always)]
    pub(super) fn see_first(
        &mut self,
        key: &PackedKey<A>,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> First<(Place, u32)> {
        match self.find_first(key, hash) {
            None => First::Absent,
            Some(place) => match self.see_steady(place, packet, now) {
                Some(value) => First::Steady((place, value)),
                None => First::There,
            },
        }
    }

    #[inline]
    pub(super) fn find(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Place> {
        if self.live == 0 {
            // This also keeps the memory of a table that is never used untouched.
            return None;
        }
        self.find_in(self.primary(hash), key).or_else(|| self.find_in(self.secondary(hash), key))
    }

    /// [`Self::find`] for a key that [`Self::see_first`] has not found.
    #[inline]
    pub(super) fn find_second(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Place> {
        if self.live == 0 { None } else { self.find_in(self.secondary(hash), key) }
    }

    /// The entry of a key in one of its buckets.
    #[inline(always)]
    pub(super) fn find_in(&self, bucket: u32, key: &PackedKey<A>) -> Option<Place> {
        let start = self.start(bucket);
        let words: &[u32; B] = self.words[start..].first_chunk().expect("buckets lie within the table");
        // All entries are compared, even after a match: a branch for each would be mispredicted for every other packet.
        let wanted = two(key.owner, key.tag);
        let mut hits = 0_u32;
        for n in 0..K {
            let entry = &words[n * W..(n + 1) * W];
            let mut differs = (two(entry[OWNER], entry[TAG]) ^ wanted) & two(u32::MAX, KEY_MASK);
            for a in 0..A {
                differs |= u64::from(entry[ADDR + a] ^ key.addr[a]);
            }
            let occupied = entry[TAG] & STATE_MASK != 0;
            hits |= u32::from((differs == 0) & occupied) << n;
        }
        (hits != 0).then(|| Place(start + hits.trailing_zeros() as usize * W))
    }

    /// The first empty slot of a bucket, other than `taken`.
    #[inline(always)]
    pub(super) fn free_in(&self, bucket: u32, taken: Option<Place>) -> Option<Place> {
        let start = self.start(bucket);
        let words: &[u32; B] = self.words[start..].first_chunk().expect("buckets lie within the table");
        let taken = taken.map_or(usize::MAX, |place| place.0);
        // All slots are examined: which one is free is hard to predict.
        let mut free = 0_u32;
        for n in 0..K {
            let is_empty = words[n * W + TAG] & STATE_MASK == 0;
            free |= u32::from(is_empty & (start + n * W != taken)) << n;
        }
        (free != 0).then(|| Place(start + free.trailing_zeros() as usize * W))
    }

    #[inline]
    fn entry(&self, place: Place) -> &[u32; W] {
        self.words[place.0..].first_chunk().expect("places lie within the table")
    }

    #[inline]
    fn entry_mut(&mut self, place: Place) -> &mut [u32; W] {
        self.words[place.0..].first_chunk_mut().expect("places lie within the table")
    }

    /// The number of a place among all places.
    #[inline]
    fn number(&self, place: Place) -> usize {
        (place.0 - self.first) / W
    }

    /// Whether any flow has had a stream or a splice.
    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        self.streams.used()
    }

    /// The stream of a flow, at the client's entry.
    pub(super) fn stream(&self, place: Place) -> Option<Stream> {
        self.streams.get(self.number(place))
    }

    pub(super) fn set_stream(&mut self, place: Place, stream: Stream) {
        self.streams.set(self.number(place), stream);
    }

    /// Forgets the stream at this entry: its flow begins again.
    pub(super) fn forget_stream(&mut self, place: Place) {
        self.streams.forget_stream(self.number(place));
    }

    /// Forgets the stream and the splice at this entry: its flow begins.
    #[inline]
    pub(super) fn forget_streams(&mut self, place: Place) {
        self.streams.forget(self.number(place));
    }

    /// The splice of a flow, at the client's entry.
    pub(super) fn splice(&self, place: Place) -> Option<Splice> {
        self.streams.splice(self.number(place))
    }

    pub(super) fn set_splice(&mut self, place: Place, splice: Splice) {
        self.streams.set_splice(self.number(place), splice);
    }

    /// The opening entries of a service.
    pub(super) fn opening_of(&self, owner: u32) -> u32 {
        self.counts.opening_of(owner)
    }

    /// The state of the entry, `None` for an empty slot.
    #[inline]
    pub(super) fn state(&self, place: Place) -> Option<State> {
        State::from_bits((self.entry(place)[TAG] & STATE_MASK) >> STATE_SHIFT)
    }

    #[inline]
    pub(super) fn is_empty(&self, place: Place) -> bool {
        self.entry(place)[TAG] & STATE_MASK == 0
    }

    #[inline]
    pub(super) fn value(&self, place: Place) -> u32 {
        self.entry(place)[VALUE]
    }

    /// The key of the entry.
    #[inline]
    pub(super) fn key(&self, place: Place) -> PackedKey<A> {
        let entry = self.entry(place);
        PackedKey {
            owner: entry[OWNER],
            tag: entry[TAG] & KEY_MASK,
            addr: std::array::from_fn(|n| entry[ADDR + n]),
        }
    }

    /// The key of the other entry of the pair.
    #[inline]
    pub(super) fn peer_key(&self, place: Place) -> PackedKey<A> {
        let entry = self.entry(place);
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
    pub(super) fn peer(&self, place: Place) -> Option<Place> {
        if !Self::PAIRED {
            return None;
        }
        let key = self.peer_key(place);
        self.find(&key, self.hash_of(&key))
    }

    #[inline]
    pub(super) fn write(&mut self, place: Place, new: &Entry<A>) {
        debug_assert!(self.is_empty(place), "room is made before an entry is written");
        self.live += 1;
        if Self::is_counted(&new.key) {
            self.counts.flow_begins(new.key.owner);
        }
        if Self::is_affinity(&new.key) {
            self.counts.affinity(new.key.owner, true);
        }
        let flow = new.peer.as_ref().filter(|_| new.key.tag & TWIN != 0).unwrap_or(&new.key);
        self.count_opening(flow, false, new.state.is_opening());
        if place.0 < self.loads.end {
            self.load_changes(new.key.tag, new.value, None, Some(new.state));
        }
        let entry = self.entry_mut(place);
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
    pub(super) fn touch(&mut self, place: Place, state: State, now: Now) {
        let was = self.state(place).is_some_and(State::is_opening);
        if was != state.is_opening() {
            self.recount_opening(place, was);
        }
        if place.0 < self.watched {
            self.state_changes(place, Some(state));
        }
        let entry = self.entry_mut(place);
        entry[SEEN] = now.millis();
        entry[TAG] = entry[TAG] & !STATE_MASK | (state as u32) << STATE_SHIFT;
    }

    /// Records the time of a plain packet of a flow that this direction shows as established and that is in use, and
    /// returns the entry's value. Most packets need nothing else. Returns `None` and changes nothing in all other
    /// cases.
    #[inline(always)]
    pub(super) fn see_steady(&mut self, place: Place, packet: Packet, now: Now) -> Option<u32> {
        let (now, entry) = (now.millis(), self.entry_mut(place));
        // No state has a shorter timeout, so a flow in use costs one comparison.
        let in_use = now.wrapping_sub(entry[SEEN]) < IDLE_MIN_MS;
        // One branch serves TCP and datagrams: separate branches would be mispredicted when traffic is mixed.
        let steady = entry[TAG] & (STEADY_MASK << STATE_SHIFT) == State::steady(packet) << STATE_SHIFT;
        (in_use & steady & packet.is_plain()).then(|| {
            entry[SEEN] = now;
            entry[VALUE]
        })
    }

    /// Searches one bucket of a key for the entry of a flow that this direction shows as established and that is in use,
    /// records the time of a plain packet in it, and returns the entry's words. `tcp` is whether the packet is one of TCP.
    /// Changes nothing in all other cases. [`Self::see_first`] does the same for any packet, in more steps.
    #[inline(always)]
    pub(super) fn steady(
        &mut self,
        bucket: u32,
        key: &PackedKey<A>,
        tcp: bool,
        now: Now,
    ) -> First<&[u32; W]> {
        let start = self.start(bucket);
        let words: &mut [u32; B] =
            self.words[start..].first_chunk_mut().expect("buckets lie within the table");
        let wanted = two(key.owner, key.tag);
        let mask = two(u32::MAX, KEY_MASK);
        let mut hits = 0_u32;
        for n in 0..K {
            let entry = &words[n * W..(n + 1) * W];
            let mut differs = (two(entry[OWNER], entry[TAG]) ^ wanted) & mask;
            for a in 0..A {
                differs |= u64::from(entry[ADDR + a] ^ key.addr[a]);
            }
            hits |= u32::from(differs == 0) << n;
        }
        if hits == 0 {
            return First::Absent;
        }
        let entry: &mut [u32; W] = words[hits.trailing_zeros() as usize * W..]
            .first_chunk_mut()
            .expect("entries lie within their bucket");
        let now = now.millis();
        let steady = if tcp { State::TcpEstablished as u32 } else { State::DatagramStream as u32 };
        let is_steady = entry[TAG] & (STEADY_MASK << STATE_SHIFT) == steady << STATE_SHIFT;
        if !is_steady | (now.wrapping_sub(entry[SEEN]) >= IDLE_MIN_MS) {
            // An empty slot has the state 0, and equals a key of zeros.
            return if entry[TAG] & STATE_MASK == 0 { First::Absent } else { First::There };
        }
        entry[SEEN] = now;
        First::Steady(&*entry)
    }

    /// The key of the other entry of the pair, in the words of an entry.
    #[inline(always)]
    pub(super) fn peer_in(entry: &[u32; W]) -> PackedKey<A> {
        PackedKey {
            owner: entry[Self::PEER_OWNER],
            tag: entry[Self::PEER_TAG],
            addr: std::array::from_fn(|n| entry[Self::PEER_ADDR + n]),
        }
    }

    /// The backend in the words of an entry.
    #[inline(always)]
    pub(super) fn value_in(entry: &[u32; W]) -> u32 {
        entry[VALUE]
    }

    /// Whether a plain packet of this kind leaves the state of the entry as it is.
    pub(super) fn is_steady(&self, place: Place, packet: Packet) -> bool {
        self.entry(place)[TAG] & (STEADY_MASK << STATE_SHIFT) == State::steady(packet) << STATE_SHIFT
    }

    /// Moves an entry to an empty slot of its other bucket.
    pub(super) fn relocate(&mut self, from: Place, to: Place) {
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
        // Until the next step the entry is in both places, which is harmless: they are equal.
        compiler_fence(Ordering::Release);
        self.erase(from);
        self.streams.relocate(self.number(from), self.number(to));
        self.adopted.relocate(self.number(from), self.number(to));
    }

    /// Removes an entry and, in tables of pairs, its peer.
    pub(super) fn remove(&mut self, place: Place, why: EvictionReason) {
        let peer = self.peer(place);
        self.clear(place);
        if let Some(peer) = peer {
            self.clear(peer);
        }
        self.counters.count(why);
    }

    /// Removes an earlier entry of a key that is about to be written again.
    pub(super) fn replace(&mut self, place: Place, now: Now) {
        let over = self.is_expired(place, now);
        self.remove(place, if over { EvictionReason::Expired } else { EvictionReason::Removed });
    }

    /// Counts a flow that is no longer opening, or is opening again. Out of line, because most packets change nothing
    /// here.
    #[cold]
    #[inline(never)]
    fn recount_opening(&mut self, place: Place, was: bool) {
        let flow = self.flow_key(place);
        self.count_opening(&flow, was, !was);
    }

    /// Turns the journal on or off.
    pub(super) fn watch(&mut self, is_on: bool) {
        self.journal.is_on = is_on;
        self.watched = if is_on { usize::MAX } else { self.loads.end };
    }

    /// Counts and notes the change of an entry's state, or its end.
    #[cold]
    #[inline(never)]
    fn state_changes(&mut self, place: Place, after: Option<State>) {
        if place.0 < self.loads.end {
            self.recount_load(place, after);
        }
        if !self.journal.is_on || Self::is_affinity(&self.key(place)) {
            return;
        }
        let settled = |state: Option<State>| state.filter(|state| !state.is_opening()).map(State::is_ended);
        if settled(self.state(place)) != settled(after) {
            let flow = self.flow_key(place);
            self.journal.note(flow);
        }
    }

    /// Counts the change of an entry's state, or its end.
    #[cold]
    #[inline(never)]
    fn recount_load(&mut self, place: Place, after: Option<State>) {
        let (tag, value) = (self.entry(place)[TAG], self.value(place));
        self.load_changes(tag, value, self.state(place), after);
    }

    /// Counts an entry that was not counted before.
    fn count_load(&mut self, place: Place) {
        let (tag, value) = (self.entry(place)[TAG], self.value(place));
        self.load_changes(tag, value, None, self.state(place));
    }

    /// Counts an entry with this tag and backend whose state changes; `None` is that of an entry that is not there.
    #[cold]
    #[inline(never)]
    fn load_changes(&mut self, tag: u32, backend: u32, before: Option<State>, after: Option<State>) {
        let (before, after) = (before.map(State::is_ended), after.map(State::is_ended));
        // An affinity entry is no flow.
        if before == after || !Self::PAIRED && tag & TWIN != 0 {
            return;
        }
        if let Some(ended) = before {
            self.loads.ends(backend, ended);
        }
        if let Some(ended) = after {
            self.loads.begins(backend, ended);
        }
    }

    /// The counted entries of a backend.
    #[inline]
    pub(super) fn load_of_backend(&self, backend: BackendId) -> tidegate_select::loads::Load {
        self.loads.of(backend)
    }

    /// Counts the entries of backends in up to `buckets` more buckets. Returns whether all are counted. `exists` is
    /// whether an id is one of the snapshot in use.
    pub(super) fn count_loads(&mut self, buckets: usize, exists: impl Fn(BackendId) -> bool) -> bool {
        let all = self.start(self.buckets);
        if self.live == 0 {
            self.loads.end = all;
        }
        for _ in 0..buckets {
            if self.loads.end >= all {
                break;
            }
            let start = self.loads.end.max(self.first);
            for place in self.places(self.bucket_of(Place(start))) {
                if !self.is_empty(place) && exists(BackendId::from_raw(self.value(place))) {
                    self.count_load(place);
                }
            }
            self.loads.end = start + B;
        }
        self.watch(self.journal.is_on);
        self.loads.end >= all
    }

    /// Removes only this entry, and does not count it.
    pub(super) fn clear(&mut self, place: Place) {
        debug_assert!(!self.is_empty(place));
        if self.state(place).is_some_and(State::is_opening) {
            self.recount_opening(place, true);
        }
        if place.0 < self.watched {
            self.state_changes(place, None);
        }
        self.adopted.clear(self.number(place));
        let key = self.key(place);
        self.erase(place);
        self.live -= 1;
        if Self::is_counted(&key) {
            self.counts.flow_ends(key.owner);
        }
        if Self::is_affinity(&key) {
            self.counts.affinity(key.owner, false);
        }
    }

    /// Zeroes an entry, its state first.
    #[inline(always)]
    fn erase(&mut self, place: Place) {
        let entry = self.entry_mut(place);
        entry[TAG] = 0;
        compiler_fence(Ordering::Release);
        *entry = [0; W];
    }

    /// The idle timeout of the flow's service when it began.
    #[inline]
    fn idle_timeout(&self, place: Place) -> IdleTimeout {
        IdleTimeout::from_bits(self.entry(place)[TAG] & IDLE_MASK)
    }

    /// Whether the entry came from another gateway and has had no packet here.
    pub(super) fn is_untouched(&self, place: Place) -> bool {
        self.adopted.is_untouched(self.number(place), self.entry(place)[SEEN])
    }

    /// Gives an entry the state and time of its last packet at another gateway.
    pub(super) fn adopt(&mut self, place: Place, state: State, seen: u32) {
        self.touch_at(place, state, seen);
        self.mark_adopted(place);
    }

    /// Records a packet that another gateway saw. That gateway tells the others itself.
    pub(super) fn touch_at(&mut self, place: Place, state: State, seen: u32) {
        let is_on = std::mem::replace(&mut self.journal.is_on, false);
        self.touch(place, state, Now(u64::from(seen) * 1_000_000));
        self.journal.is_on = is_on;
    }

    /// Marks an entry as one of another gateway, which has had no packet here.
    pub(super) fn mark_adopted(&mut self, place: Place) {
        self.adopted.mark(self.number(place), self.seen(place));
    }

    /// When the direction sent last, in milliseconds.
    pub(super) fn seen(&self, place: Place) -> u32 {
        self.entry(place)[SEEN]
    }

    /// How long ago this direction sent, in milliseconds.
    #[inline]
    pub(super) fn own_idle_ms(&self, place: Place, now: Now) -> u32 {
        let age = now.millis().wrapping_sub(self.entry(place)[SEEN]);
        // A timestamp ahead of now (by less than 24 days) counts as age zero.
        if age > u32::MAX / 2 { 0 } else { age }
    }

    /// The state of the flow: of the pair, in tables of pairs.
    pub(super) fn vitality(&self, place: Place, now: Now) -> Option<Vitality> {
        let (own, idle) = (self.state(place)?, self.idle_timeout(place));
        let own_idle_ms = self.own_idle_ms(place, now);
        let Some((peer, state)) = self.peer(place).and_then(|peer| Some((peer, self.state(peer)?))) else {
            return Some(Vitality { standing: own.alone(idle), idle_ms: own_idle_ms });
        };
        let (client, server) = if self.is_twin(place) { (state, own) } else { (own, state) };
        let idle_ms = own_idle_ms.min(self.own_idle_ms(peer, now));
        Some(Vitality { standing: State::of_both(client, server, idle), idle_ms })
    }

    /// Whether the entry is the reply of a pair, or affinity.
    #[inline]
    pub(super) fn is_twin(&self, place: Place) -> bool {
        self.entry(place)[TAG] & TWIN != 0
    }

    /// Whether the flow has expired. Exact. Does not read the peer of a flow that is in use.
    #[inline]
    pub(super) fn is_expired(&self, place: Place, now: Now) -> bool {
        // No state has a shorter timeout, so a flow in use costs one comparison.
        if now.millis().wrapping_sub(self.entry(place)[SEEN]) < IDLE_MIN_MS {
            return false;
        }
        let Some(state) = self.state(place) else { return false };
        let (idle, own_idle_ms) = (self.idle_timeout(place), self.own_idle_ms(place, now));
        if !Self::PAIRED {
            return own_idle_ms >= state.alone(idle).timeout_ms;
        }
        // The shortest timeout that any state of the pair can have.
        own_idle_ms >= CLOSED_MS.min(idle.millis()) && self.vitality(place, now).is_some_and(|v| v.expired())
    }

    /// Why the flow has expired, if it has. Unlike [`Self::is_expired`], it applies shorter timeouts to opening flows
    /// when the table is short of room ([`Self::hurry`]), and reads the peer only if the entry has expired by its own
    /// state. A pair that has expired by the state of its other entry is found from that entry. For walks over many
    /// entries.
    #[inline]
    pub(super) fn looks_expired(&self, place: Place, now: Now, hurry: u32) -> Option<EvictionReason> {
        let state = self.state(place)?;
        let mut shortest_ms = state.shortest_ms(self.idle_timeout(place), Self::PAIRED);
        // An affinity entry is not a flow: it lasts for the affinity timeout of its service.
        let affinity = !Self::PAIRED && self.is_twin(place);
        let hurry = if affinity { 1 } else { hurry };
        if hurry > 1 && state.phase() == Phase::Opening {
            shortest_ms = hurried(shortest_ms, hurry);
        }
        if self.own_idle_ms(place, now) < shortest_ms {
            return None;
        }
        let vitality = self.vitality(place, now)?;
        if vitality.expired() {
            Some(EvictionReason::Expired)
        } else {
            vitality.expired_in_a_hurry(hurry).then_some(EvictionReason::Pressure)
        }
    }

    /// Finds the entry of a flow that has not expired. Removes an expired one.
    #[inline]
    pub(super) fn find_alive(&mut self, key: &PackedKey<A>, hash: FlowHash, now: Now) -> Option<Place> {
        let place = self.find(key, hash)?;
        self.alive(place, now)
    }

    /// The entry, if its flow has not expired. Removes an expired one.
    #[inline]
    pub(super) fn alive(&mut self, place: Place, now: Now) -> Option<Place> {
        if self.is_expired(place, now) {
            self.remove(place, EvictionReason::Expired);
            return None;
        }
        Some(place)
    }

    /// Removes the expired flows of the next `buckets` buckets. Returns how many.
    pub(super) fn age(&mut self, now: Now, buckets: usize) -> usize {
        let mut removed = 0;
        let hurry = self.hurry();
        for _ in 0..buckets.min(self.buckets as usize) {
            if self.live == 0 {
                break;
            }
            for place in self.places(self.cursor) {
                if let Some(why) = self.looks_expired(place, now, hurry) {
                    self.remove(place, why);
                    removed += 1;
                }
            }
            self.cursor = if self.cursor + 1 == self.buckets { 0 } else { self.cursor + 1 };
        }
        removed
    }

    /// Prefetches the buckets that the next [`Self::age`] examines.
    #[inline]
    pub(super) fn prefetch_age(&self, buckets: usize) {
        for bucket in (self.cursor..self.buckets).take(buckets) {
            self.prefetch_bucket(bucket);
        }
    }

    /// Whether the entry counts as a flow: all do except the replies of pairs.
    pub(super) fn is_flow(&self, place: Place) -> bool {
        !(self.is_empty(place) || Self::PAIRED && self.is_twin(place))
    }

    /// The phase of a flow.
    #[inline]
    pub(super) fn phase(&self, place: Place) -> Phase {
        self.state(place).map_or(Phase::Closed, State::phase)
    }
}
