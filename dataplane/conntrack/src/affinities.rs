//! The backends of clients with `sessionAffinity: ClientIP`, which all workers of a gateway share.
//!
//! The connections of a client arrive at several workers. Each worker has its own entries in its flow table, and looks
//! up here which backend the client got at another worker. Only packets that begin a flow of such a Service read or
//! write this table, with relaxed loads and stores and without locks. A gateway with one worker has no such table.
//!
//! An entry is two words: the content, and a secret hash of the key xored with the backend of the content. A reader
//! that sees words of two clients matches neither, unless both have the same backend (Hyatt, "A lock-less transposition
//! table"). A new connection to the same backend changes only the time, so readers find the entry even during the
//! change. Two concurrent writers of one entry may lose both clients.
//!
//! The table has a fixed size, with eight entries in a hash bucket. If all are occupied, a client that has connected
//! once is evicted first, so a flood of sources evicts only clients that have not connected again. A client whose entry
//! was lost gets the backend that its worker remembers or that its hash selects.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SHARED_AFFINITIES_MAX;
use tidegate_spec::now::Now;
use tidegate_structures::hash::mix;

use crate::{FlowHasher, FlowKey};

/// Entries in a hash bucket of two cache lines.
const ENTRIES_PER_BUCKET: usize = 8;

/// The content of an entry, from the highest bit: the backend (32 bits), whether the client has connected again (1),
/// and the time of the last connection in units of [`TIME_SHIFT`] (31 bits, more than eight years).
const BACKEND_MASK: u64 = u64::MAX << 32;
const AGAIN: u64 = 1 << 31;
const TIME_MASK: u64 = AGAIN - 1;

/// 2^27 ns, 134 ms.
const TIME_SHIFT: u32 = 27;

/// No affinity lasts longer than this: the longest timeout of Kubernetes is a day.
const OVER: u64 = ((86_400 * 1_000_000_000_u64) >> TIME_SHIFT) + 2;

#[derive(Debug, Default)]
struct Entry {
    /// The hash of the key xored with the backend in the content.
    check: AtomicU64,
    content: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([Entry; ENTRIES_PER_BUCKET]);

/// See [the module](self).
#[derive(Debug)]
pub struct Affinities {
    /// Two secret hashes of a key: one for its hash bucket, one for the comparison. Together they are 128 bits, so
    /// clients don't collide.
    hashers: [FlowHasher; 2],
    clients: usize,
    buckets: OnceLock<Box<[Bucket]>>,
}

impl Affinities {
    /// A table for this many clients, at most [`SHARED_AFFINITIES_MAX`]. It takes no memory before [`Self::prepare`].
    /// `seed` should be secret.
    #[must_use]
    pub fn new(clients: usize, seed: u64) -> Self {
        let hashers = [mix(seed), mix(!seed)].map(FlowHasher::new);
        Self { hashers, clients: clients.clamp(1, SHARED_AFFINITIES_MAX), buckets: OnceLock::new() }
    }

    /// Allocates the table, for twice the number of clients so that few hash buckets are full. The publisher calls it
    /// before workers get a Service with affinity; before that, nothing is remembered.
    pub fn prepare(&self) {
        let buckets = (2 * self.clients).div_ceil(ENTRIES_PER_BUCKET).next_power_of_two();
        self.buckets.get_or_init(|| std::iter::repeat_with(Bucket::default).take(buckets).collect());
    }

    /// Whether [`Self::prepare`] was called.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.buckets.get().is_some()
    }

    /// The backend of a client ([`FlowKey::affinity`]) that last connected at most `timeout_ms` ago, at any worker.
    #[must_use]
    pub fn find(&self, client: &FlowKey, timeout_ms: u32, now: Now) -> Option<BackendId> {
        let (bucket, check) = self.bucket_and_check(client)?;
        let content = bucket.0.iter().find_map(|entry| entry.content_of(check))?;
        // Both times are rounded down, so an entry ends up to two units late, but never early.
        let timeout = ((u64::from(timeout_ms) * 1_000_000) >> TIME_SHIFT) + 2;
        (idle(content, now) < timeout).then(|| BackendId::from_raw((content >> 32) as u32))
    }

    /// Records that a client connects to this backend now.
    pub fn remember(&self, client: &FlowKey, backend: BackendId, now: Now) {
        let Some((bucket, check)) = self.bucket_and_check(client) else { return };
        let known = bucket.0.iter().find(|entry| entry.content_of(check).is_some());
        let entry = known.or_else(|| bucket.0.iter().min_by_key(|entry| entry.eviction_order(now)));
        let Some(entry) = entry else { return };
        let again = if known.is_some() { AGAIN } else { 0 };
        let content = u64::from(backend.raw()) << 32 | again | units(now);
        entry.content.store(content, Ordering::Relaxed);
        entry.check.store(content & BACKEND_MASK ^ check, Ordering::Relaxed);
    }

    fn bucket_and_check(&self, client: &FlowKey) -> Option<(&Bucket, u64)> {
        let buckets = self.buckets.get()?;
        let [index, check] = self.hashers.each_ref().map(|hasher| hasher.hash(client).bits());
        // The number of buckets is a power of two.
        Some((buckets.get(index as usize & (buckets.len() - 1))?, check))
    }
}

impl Entry {
    /// The content, if it belongs to the key with this hash.
    fn content_of(&self, check: u64) -> Option<u64> {
        let content = self.content.load(Ordering::Relaxed);
        (self.check.load(Ordering::Relaxed) ^ content & BACKEND_MASK == check).then_some(content)
    }

    /// The order of eviction: expired entries, clients that connected once, the others; within each group, the longest
    /// idle first.
    fn eviction_order(&self, now: Now) -> (bool, bool, u64) {
        let content = self.content.load(Ordering::Relaxed);
        let idle = idle(content, now);
        let is_over = content == 0 || idle > OVER;
        (!is_over, content & AGAIN != 0, u64::MAX - idle)
    }
}

/// A time in units, never 0, so that no entry looks empty.
fn units(now: Now) -> u64 {
    ((now.0 >> TIME_SHIFT) + 1) & TIME_MASK
}

/// The units of time since the last connection. Another worker may be ahead by one.
fn idle(content: u64, now: Now) -> u64 {
    units(now).saturating_sub(content & TIME_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_spec::ids::ServiceId;
    use tidegate_wire::Addr;

    const START: Now = Now(5_000_000_000_000);

    fn client(n: u32) -> FlowKey {
        FlowKey::affinity(ServiceId::new(3, 0), Addr::v4(n.to_be_bytes()))
    }

    fn seconds(n: u64) -> Now {
        Now(START.0 + n * 1_000_000_000)
    }

    fn prepared(clients: usize) -> Affinities {
        let affinities = Affinities::new(clients, 0x5eed);
        affinities.prepare();
        affinities
    }

    #[test]
    fn a_client_is_known_until_its_timeout_after_its_last_connection() {
        let affinities = prepared(100);
        let (a, b) = (BackendId::new(1, 0), BackendId::new(2, 7));
        affinities.remember(&client(1), a, START);
        assert_eq!(affinities.find(&client(1), 10_000, seconds(10)), Some(a));
        assert_eq!(affinities.find(&client(1), 10_000, seconds(11)), None);
        assert_eq!(affinities.find(&client(2), 10_000, START), None);
        affinities.remember(&client(1), b, seconds(9));
        assert_eq!(affinities.find(&client(1), 10_000, seconds(19)), Some(b));
        let other_service = FlowKey::affinity(ServiceId::new(4, 0), client(1).addr());
        assert_eq!(affinities.find(&other_service, 10_000, seconds(9)), None);
    }

    #[test]
    fn an_entry_at_time_0_with_the_first_backend_is_not_empty() {
        let affinities = prepared(1);
        let first = BackendId::new(0, 0);
        (0..8).for_each(|n| affinities.remember(&client(n), first, Now(0)));
        let found = (0..8).filter(|&n| affinities.find(&client(n), 1_000, Now(0)) == Some(first)).count();
        assert_eq!(found, 8);
    }

    #[test]
    fn an_unprepared_table_takes_no_memory_and_knows_no_client() {
        let affinities = Affinities::new(1 << 20, 1);
        affinities.remember(&client(1), BackendId::new(1, 0), START);
        assert!(!affinities.is_prepared());
        assert_eq!(affinities.find(&client(1), 10_000, START), None);
    }

    #[test]
    fn a_flood_of_sources_evicts_only_clients_that_have_connected_once() {
        let affinities = prepared(1 << 10);
        // Clients that connect again, few enough that they don't fill a hash bucket.
        let known: Vec<FlowKey> = (0..64).map(client).collect();
        for (n, key) in known.iter().enumerate() {
            affinities.remember(key, BackendId::new(n, 0), START);
            affinities.remember(key, BackendId::new(n, 0), START);
        }
        for n in 0..100_000 {
            affinities.remember(&client(1 << 20 | n), BackendId::new(99, 0), seconds(100));
        }
        for (n, key) in known.iter().enumerate() {
            assert_eq!(affinities.find(key, 10_800_000, seconds(100)), Some(BackendId::new(n, 0)), "{n}");
        }
        // A new client gets an entry although the flood occupies all of them.
        affinities.remember(&client(7_000), BackendId::new(5, 0), seconds(101));
        assert!(affinities.find(&client(7_000), 10_800_000, seconds(101)).is_some());
    }

    #[test]
    fn a_half_full_table_loses_less_than_one_client_in_a_thousand() {
        let affinities = prepared(1 << 12);
        let clients: Vec<FlowKey> = (0..1 << 11).map(client).collect();
        clients.iter().for_each(|key| affinities.remember(key, BackendId::new(1, 0), START));
        let lost = clients.iter().filter(|key| affinities.find(key, 1_000, START).is_none()).count();
        assert!(lost <= 2, "{lost}");
    }

    #[test]
    fn concurrent_writers_never_give_a_client_the_backend_of_another() {
        let affinities = prepared(1);
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let affinities = &affinities;
                scope.spawn(move || {
                    for n in 0..50_000_u32 {
                        // More clients than entries. The backend is a function of the client.
                        let of = (n * 7 + thread) % 40;
                        affinities.remember(&client(of), BackendId::new(of as usize, 0), START);
                        let other = (n * 11 + thread) % 40;
                        let found = affinities.find(&client(other), 1_000, START);
                        assert!(found.is_none_or(|id| id.index() == other as usize), "{other}: {found:?}");
                    }
                });
            }
        });
    }
}
