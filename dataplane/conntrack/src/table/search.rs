//! Finds the entry of a key, or a free position for a new one, and records plain packets of established flows.
//!
//! A look-up reads the first hash bucket of the key, which has been prefetched, and seldom the second. Within a hash
//! bucket, all entries are compared without branches.
//!
//! Invariant: a found entry has exactly this key and a state. A search changes nothing, except that
//! [`Table::find_alive`] and [`Table::alive`] remove an expired flow, and the steady look-ups record the packet's time.

use tidegate_spec::now::Now;

use super::{ADDR, OWNER, Position, SEEN, STATE_MASK, STATE_SHIFT, TAG, Table, VALUE};
use crate::eviction_reason::EvictionReason;
use crate::first_lookup::First;
use crate::flow_state::{IDLE_MIN_MS, Packet, STEADY_MASK, SideState};
use crate::key::{FlowHash, KEY_MASK, PackedKey};

/// Two adjacent words as one.
#[inline(always)]
const fn two(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// Searches only the first hash bucket, which has been prefetched, and prefetches the second one if the key is not
    /// in the first.
    #[inline(always)]
    pub(crate) fn find_first(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Position> {
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
    pub(crate) fn record_first(
        &mut self,
        key: &PackedKey<A>,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> First<(Position, u32)> {
        match self.find_first(key, hash) {
            None => First::Absent,
            Some(position) => match self.record_steady(position, packet, now) {
                Some(value) => First::Steady((position, value)),
                None => First::Present,
            },
        }
    }

    #[inline]
    pub(crate) fn find(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Position> {
        if self.live == 0 {
            // This also leaves the memory of an unused table untouched.
            return None;
        }
        // Not `or_else`: the compiler wouldn't inline its closure.
        match self.find_in(self.primary(hash), key) {
            Some(position) => Some(position),
            None => self.find_in(self.secondary(hash), key),
        }
    }

    /// [`Self::find`] for a key that [`Self::record_first`] has not found.
    #[inline]
    pub(crate) fn find_second(&self, key: &PackedKey<A>, hash: FlowHash) -> Option<Position> {
        if self.live == 0 { None } else { self.find_in(self.secondary(hash), key) }
    }

    /// The entry of a key in one of its hash buckets.
    #[inline(always)]
    pub(crate) fn find_in(&self, bucket: u32, key: &PackedKey<A>) -> Option<Position> {
        let start = self.start(bucket);
        let words: &[u32; B] = self.words[start..].first_chunk().expect("hash buckets are within the table");
        // All entries are compared, even after a match: a branch per entry would be mispredicted for every other
        // packet.
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
        (hits != 0).then(|| Position(start + hits.trailing_zeros() as usize * W))
    }

    /// The first free position of a hash bucket.
    #[inline(always)]
    pub(crate) fn free_in(&self, bucket: u32) -> Option<Position> {
        let start = self.start(bucket);
        let words: &[u32; B] = self.words[start..].first_chunk().expect("hash buckets are within the table");
        // All positions are examined without branches, because which one is free is hard to predict.
        let mut free = 0_u32;
        for n in 0..K {
            free |= u32::from(words[n * W + TAG] & STATE_MASK == 0) << n;
        }
        (free != 0).then(|| Position(start + free.trailing_zeros() as usize * W))
    }

    /// Finds the entry of a flow that has not expired. Removes an expired one.
    #[inline]
    pub(crate) fn find_alive(&mut self, key: &PackedKey<A>, hash: FlowHash, now: Now) -> Option<Position> {
        let position = self.find(key, hash)?;
        self.alive(position, now)
    }

    /// The entry, if its flow has not expired. Removes an expired one.
    #[inline]
    pub(crate) fn alive(&mut self, position: Position, now: Now) -> Option<Position> {
        if self.is_expired(position, now) {
            self.remove(position, EvictionReason::Expired);
            return None;
        }
        Some(position)
    }

    /// Records the time of a plain packet and returns the entry's value, if this direction shows that the flow is
    /// established and in use. Most packets need nothing else. Otherwise returns `None` and changes nothing.
    #[inline(always)]
    pub(crate) fn record_steady(&mut self, position: Position, packet: Packet, now: Now) -> Option<u32> {
        let (now, entry) = (now.millis(), self.entry_mut(position));
        // No state has a shorter timeout, so a flow in use costs one comparison.
        let in_use = now.wrapping_sub(entry[SEEN]) < IDLE_MIN_MS;
        // One branch serves TCP and datagrams: separate branches would be mispredicted when traffic is mixed.
        let steady = entry[TAG] & (STEADY_MASK << STATE_SHIFT) == SideState::steady(packet) << STATE_SHIFT;
        (in_use & steady & packet.is_plain()).then(|| {
            entry[SEEN] = now;
            entry[VALUE]
        })
    }

    /// Searches one hash bucket of a key. If this direction shows that the flow is established and had recent packets,
    /// records the time of a plain packet and returns the entry's words; otherwise changes nothing. `tcp` is whether
    /// the packet is a TCP segment. [`Self::record_first`] handles any packet, in more steps.
    #[inline(always)]
    pub(crate) fn steady(
        &mut self,
        bucket: u32,
        key: &PackedKey<A>,
        tcp: bool,
        now: Now,
    ) -> First<&[u32; W]> {
        let start = self.start(bucket);
        let words: &mut [u32; B] =
            self.words[start..].first_chunk_mut().expect("hash buckets are within the table");
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
            .expect("entries are within their hash bucket");
        let now = now.millis();
        let steady = if tcp { SideState::TcpEstablished as u32 } else { SideState::DatagramStream as u32 };
        let is_steady = entry[TAG] & (STEADY_MASK << STATE_SHIFT) == steady << STATE_SHIFT;
        if !is_steady | (now.wrapping_sub(entry[SEEN]) >= IDLE_MIN_MS) {
            // A free position has the state 0, and matches a key of zeros.
            return if entry[TAG] & STATE_MASK == 0 { First::Absent } else { First::Present };
        }
        entry[SEEN] = now;
        First::Steady(&*entry)
    }

    /// The key of the other entry of the pair, in the words of an entry.
    #[inline(always)]
    pub(crate) fn peer_in(entry: &[u32; W]) -> PackedKey<A> {
        PackedKey {
            owner: entry[Self::PEER_OWNER],
            tag: entry[Self::PEER_TAG],
            addr: std::array::from_fn(|n| entry[Self::PEER_ADDR + n]),
        }
    }

    /// The backend in the words of an entry.
    #[inline(always)]
    pub(crate) fn value_in(entry: &[u32; W]) -> u32 {
        entry[VALUE]
    }

    /// Whether a plain packet of this kind leaves the state of the entry unchanged.
    pub(crate) fn is_steady(&self, position: Position, packet: Packet) -> bool {
        self.entry(position)[TAG] & (STEADY_MASK << STATE_SHIFT) == SideState::steady(packet) << STATE_SHIFT
    }
}
