//! Stores the decision for the first fragment of a datagram for its later fragments, which have no ports.
//!
//! The key consists of source, destination and identification, and in IPv4 also of the protocol (RFC 791 section 3.2).
//! In IPv6 the fragments of one datagram may name different next headers (RFC 8200 section 4.5), so the protocol isn't
//! part of the key.
//!
//! The table is set-associative: a hash with the worker's secret selects a set of [`FRAGMENTS_PER_SET`] positions. A
//! new datagram gets a free or expired position. If there is none, it evicts the oldest datagram without a later
//! fragment or, failing that, the oldest datagram. So spoofed first fragments evict each other rather than a datagram
//! whose later fragments arrive. A datagram that still waits for its second fragment is evicted by 4,096 spoofed ones
//! in 2 of 10^14 cases, and by 20,000 in 5 of 100,000. Decisions expire after [`LIFETIME`]: few hosts wait longer for
//! the rest of a datagram, and identifications are reused.
//!
//! Invariant: at most [`FRAGMENTS_MAX`] entries. Memory is reserved at the start and touched on first use.

use std::time::Duration;

use tidegate_spec::ids::{BackendId, ServiceId, WorkerIndex};
use tidegate_spec::limits::{FRAGMENTS_MAX, FRAGMENTS_PER_SET};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Verdict;
use tidegate_structures::hash::{fold, mix, words};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, Family, Fragment, Headers};

/// How long a decision is valid.
pub const LIFETIME: Duration = Duration::from_secs(15);

/// The decision for a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Sent to a backend. If the mode is `fullnat`, `local` is the source.
    ToBackend {
        /// Service port.
        service: ServiceId,
        /// Backend.
        backend: BackendId,
        /// SNAT address and port.
        local: Option<Endpoint>,
        /// The client's port.
        client_port: u16,
    },
    /// Sent from a backend to its client, with the VIP as its source.
    ToClient {
        /// Service port.
        service: ServiceId,
        /// The backend that sent it.
        backend: BackendId,
        /// Client.
        client: Endpoint,
    },
    /// Sent back to the sender as a fragment of an echo reply.
    Echo,
    /// Forwarded by a route: it comes from the network of a backend.
    Routed,
    /// Forwarded by a route, with this source.
    Masqueraded {
        /// SNAT address and port.
        local: Endpoint,
    },
    /// An answer to a masqueraded packet.
    Unmasqueraded {
        /// The backend's own address and port.
        source: Endpoint,
    },
    /// Handed over to the worker that owns the flow and has seen the first fragment.
    OtherWorker(WorkerIndex),
    /// Dropped, or handed to the kernel. The later fragments get the same verdict.
    Ended(Verdict),
}

/// The fields that all fragments of one datagram share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentKey {
    src: Addr,
    dst: Addr,
    id: u32,
    /// 0 in IPv6.
    proto: u8,
}

impl FragmentKey {
    /// The key of a fragment; `None` for a whole packet.
    #[must_use]
    pub fn of(h: &Headers) -> Option<Self> {
        let id = match h.fragment {
            Fragment::First { id } | Fragment::Later { id, .. } => id,
            Fragment::None => return None,
        };
        let proto = match h.family {
            Family::V4 => h.proto,
            Family::V6 => 0,
        };
        Some(Self { src: h.src, dst: h.dst, id, proto })
    }

    /// A hash with a secret.
    #[must_use]
    pub fn hash(&self, secret: u64) -> u64 {
        let rest = u64::from(self.id) << 8 | u64::from(self.proto);
        let [(s0, s1), (d0, d1)] = [words(&self.src), words(&self.dst)];
        [s0, s1, d0, d1, rest].into_iter().fold(secret, |hash, word| mix(hash ^ word))
    }

    /// A hash of the source with a secret. Of an IPv6 address only the /64 counts, since one host
    /// may use all of its addresses.
    #[must_use]
    pub fn source_hash(&self, secret: u64) -> u64 {
        let (high, low) = words(&self.src);
        mix(mix(secret ^ high) ^ if self.src.is_v4() { low } else { 0 })
    }
}

/// A datagram whose first fragment was seen.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: FragmentKey,
    decision: Decision,
    since: Now,
    /// Whether a later fragment has used the decision.
    followed: bool,
}

const SETS: usize = FRAGMENTS_MAX / FRAGMENTS_PER_SET;
const _: () = assert!(SETS.is_power_of_two() && SETS * FRAGMENTS_PER_SET == FRAGMENTS_MAX);

/// The decisions for fragmented datagrams.
#[derive(Debug)]
pub struct Fragments {
    secret: [u64; 5],
    /// The positions, set by set. The low half of a word is the index of an entry plus one, the high half is a part of
    /// the hash. 0 is a free position.
    tagged_indices: Vec<u64>,
    /// The list grows to its capacity; then entries are reused.
    entries: Vec<Entry>,
}

impl Fragments {
    /// An empty table with a hash derived from `seed`, which should be secret.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        // SplitMix64 (Steele, Lea, Flood 2014). The increment differs from the one for the flow tables' hash, so that
        // one secret doesn't reveal the other.
        let secret = std::array::from_fn(|_| {
            state = state.wrapping_add(0xa076_1d64_78bd_642f);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { secret, tagged_indices: vec![0; FRAGMENTS_MAX], entries: Vec::with_capacity(FRAGMENTS_MAX) }
    }

    /// The worker that collects the fragments of a datagram when they arrive at different workers.
    /// All workers share the seed, so they agree on it.
    #[must_use]
    pub fn gatherer(&self, key: &FragmentKey, workers: u8) -> WorkerIndex {
        // The remainder is below `workers`.
        ((self.hash(key) >> 16 & 0xffff) % u64::from(workers.max(1))) as WorkerIndex
    }

    /// Stores the decision for the first fragment of a datagram.
    #[cold]
    pub fn insert(&mut self, key: FragmentKey, decision: Decision, now: Now) {
        let hash = self.hash(&key);
        let entry = Entry { key, decision, since: now, followed: false };
        if let Some(known) = self.find(&key, hash) {
            // The first fragment was sent again, or its identification was reused: the next
            // fragments belong to this one.
            self.entries[known] = entry;
            return;
        }
        let set = set_of(hash);
        let victim = set
            .clone()
            .min_by_key(|&position| self.eviction_class(position, now))
            .expect("a set isn't empty");
        let index = match entry_of(self.tagged_indices[victim]) {
            Some(index) => index,
            None => {
                // There are no more entries than positions, so this doesn't allocate.
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.entries[index] = entry;
        self.tagged_indices[victim] = tag_of(hash) | (index as u64 + 1);
    }

    /// The decision for the first fragment of a datagram, for one of its later fragments.
    #[cold]
    #[must_use]
    pub fn lookup(&mut self, key: &FragmentKey, now: Now) -> Option<Decision> {
        let index = self.find(key, self.hash(key))?;
        let entry = &mut self.entries[index];
        if now.since(entry.since) > LIFETIME {
            return None;
        }
        entry.followed = true;
        Some(entry.decision)
    }

    /// The lowest class is evicted first: no entry, then expired, then without a later fragment. Within a class, the
    /// oldest is.
    fn eviction_class(&self, position: usize, now: Now) -> (u8, Now) {
        match entry_of(self.tagged_indices[position]).map(|index| &self.entries[index]) {
            None => (0, Now(0)),
            Some(entry) if now.since(entry.since) > LIFETIME => (0, Now(1)),
            Some(entry) => (1 + u8::from(entry.followed), entry.since),
        }
    }

    fn find(&self, key: &FragmentKey, hash: u64) -> Option<usize> {
        let of_key = |&position: &usize| {
            let tagged = self.tagged_indices[position];
            let index = entry_of(tagged)?;
            (tagged & TAG == tag_of(hash) && self.entries[index].key == *key).then_some(index)
        };
        set_of(hash).find_map(|position| of_key(&position))
    }

    fn hash(&self, key: &FragmentKey) -> u64 {
        let ((s0, s1), (d0, d1)) = (words(&key.src), words(&key.dst));
        let rest = u64::from(key.id) << 8 | u64::from(key.proto);
        let [k0, k1, k2, k3, k4] = self.secret;
        let ends = fold(s0 ^ k0, s1 ^ k1).rotate_left(32) ^ fold(d0 ^ k2, d1 ^ k3);
        fold(fold(ends, rest ^ k4), k1 | 1)
    }
}

/// The bits of a position's word that are a part of the hash.
const TAG: u64 = 0xffff_ffff_0000_0000;

fn tag_of(hash: u64) -> u64 {
    hash & TAG
}

/// The positions of the set that the low bits of a hash select; the tag is its high bits.
fn set_of(hash: u64) -> std::ops::Range<usize> {
    let first = (hash as usize & (SETS - 1)) * FRAGMENTS_PER_SET;
    first..first + FRAGMENTS_PER_SET
}

fn entry_of(tagged: u64) -> Option<usize> {
    (tagged & !TAG).checked_sub(1).map(|index| index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_spec::verdict::Refusal;

    fn key(host: u32, id: u32) -> FragmentKey {
        let (src, dst) = (Addr::v4(host.to_be_bytes()), Addr::v4([203, 0, 113, 5]));
        FragmentKey { src, dst, id, proto: 17 }
    }

    fn decision(n: u8) -> Decision {
        Decision::OtherWorker(n)
    }

    #[test]
    fn a_datagram_survives_the_first_fragments_of_20_000_others() {
        for seed in 0..20 {
            let mut table = Fragments::new(seed);
            table.insert(key(7, 7), decision(1), Now(1));
            for host in 0..20_000 {
                table.insert(key(1000 + host, 7), decision(2), Now(2));
            }
            assert_eq!(table.lookup(&key(7, 7), Now(3)), Some(decision(1)), "seed {seed}");
        }
    }

    #[test]
    fn first_fragments_never_evict_a_datagram_with_a_later_fragment() {
        let mut table = Fragments::new(3);
        table.insert(key(7, 7), decision(1), Now(1));
        assert_eq!(table.lookup(&key(7, 7), Now(1)), Some(decision(1)));
        for host in 0..4 * FRAGMENTS_MAX as u32 {
            table.insert(key(1000 + host, 7), decision(2), Now(2));
        }
        assert_eq!(table.lookup(&key(7, 7), Now(3)), Some(decision(1)));
        assert_eq!(table.entries.len(), FRAGMENTS_MAX, "every position is in use");
        assert_eq!(table.entries.capacity(), FRAGMENTS_MAX);
    }

    #[test]
    fn a_full_table_accepts_a_new_datagram_and_replaces_a_repeated_one() {
        let mut table = Fragments::new(3);
        for host in 0..4 * FRAGMENTS_MAX as u32 {
            table.insert(key(host, 1), decision(2), Now(2));
        }
        for n in 0..3 {
            let ended = Decision::Ended(Refusal::NoService.into());
            table.insert(key(7, 7), decision(n), Now(3));
            assert_eq!(table.lookup(&key(7, 7), Now(3)), Some(decision(n)));
            table.insert(key(7, 7), ended, Now(3));
            assert_eq!(table.lookup(&key(7, 7), Now(3)), Some(ended));
        }
    }

    #[test]
    fn a_decision_expires_and_applies_to_its_key_only() {
        let mut table = Fragments::new(3);
        table.insert(key(7, 7), decision(1), Now(0));
        let end = Now(0).plus(LIFETIME);
        assert_eq!(table.lookup(&key(7, 7), end), Some(decision(1)));
        assert_eq!(table.lookup(&key(7, 7), Now(end.0 + 1)), None);
        for other in [key(8, 7), key(7, 8), FragmentKey { proto: 6, ..key(7, 7) }] {
            assert_eq!(table.lookup(&other, Now(0)), None);
        }
    }

    #[test]
    fn the_seed_determines_the_set_of_a_datagram() {
        let (one, other) = (Fragments::new(1), Fragments::new(2));
        let same = (0..1000).filter(|&host| {
            let key = key(host, 7);
            set_of(one.hash(&key)) == set_of(other.hash(&key))
        });
        assert!(same.count() < 10);
    }
}
