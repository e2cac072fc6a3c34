//! The backends of clients with `sessionAffinity: ClientIP`, which all workers of a gateway share.
//!
//! The connections of a client arrive at several workers. Each worker has its own entries in its flow table, and looks
//! up here which backend the client got at another worker. Only packets that begin a flow of such a Service read or
//! write this table (`shared_table.rs`). A gateway with one worker has no such table.
//!
//! If all entries of a hash bucket are occupied, a client that has connected once is evicted first, so a flood of
//! sources evicts only clients that have not connected again. A client whose entry was lost gets the backend that its
//! worker remembers or that its hash selects.

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SHARED_AFFINITIES_MAX;
use tidegate_spec::now::Now;

use crate::FlowKey;
use crate::shared_table::{Record, SharedTable, age, units, units_of_seconds};

/// The bit of a record that is set if the client has connected again. Above it is the backend (32 bits), and below it
/// the time of the last connection.
const AGAIN: u64 = 1 << 31;

/// No affinity lasts longer than this: the longest timeout of Kubernetes is a day.
const OVER: u64 = units_of_seconds(86_400) + 2;

/// See [the module](self).
#[derive(Debug)]
pub struct Affinities(SharedTable<1, 8>);

impl Affinities {
    /// A table for this many clients, at most [`SHARED_AFFINITIES_MAX`]. It takes no memory before [`Self::prepare`].
    /// `seed` should be secret.
    #[must_use]
    pub fn new(clients: usize, seed: u64) -> Self {
        // Twice the number of clients, so that few hash buckets are full.
        Self(SharedTable::new(2 * clients.clamp(1, SHARED_AFFINITIES_MAX), seed))
    }

    /// Allocates the table. The publisher calls it before workers get a Service with affinity; before that, nothing is
    /// remembered.
    pub fn prepare(&self) {
        self.0.prepare();
    }

    /// Whether [`Self::prepare`] was called.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.0.is_prepared()
    }

    /// The backend of a client ([`FlowKey::affinity`]) that last connected at most `timeout_ms` ago, at any worker.
    #[must_use]
    pub fn find(&self, client: &FlowKey, timeout_ms: u32, now: Now) -> Option<BackendId> {
        let record = self.0.find(client)?;
        // Both times are rounded down, so an entry ends up to two units late, but never early.
        let timeout = units(Now(u64::from(timeout_ms) * 1_000_000)) + 1;
        (age(&record, now) < timeout).then(|| BackendId::from_raw((record[0] >> 32) as u32))
    }

    /// Records that a client connects to this backend now.
    pub fn remember(&self, client: &FlowKey, backend: BackendId, now: Now) {
        let again = if self.0.find(client).is_some() { AGAIN } else { 0 };
        let record = [u64::from(backend.raw()) << 32 | again | units(now)];
        self.0.store(client, &record, |record| eviction_order(record, now), |_| true);
    }
}

/// The order of eviction: expired entries, clients that connected once, the others; within each group, the longest idle
/// first.
fn eviction_order(record: &Record<1>, now: Now) -> (bool, bool, u64) {
    let idle = age(record, now);
    let is_over = record[0] == 0 || idle > OVER;
    (!is_over, record[0] & AGAIN != 0, u64::MAX - idle)
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
