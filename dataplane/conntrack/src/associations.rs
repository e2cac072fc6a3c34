//! The SCTP associations of all workers of a gateway, so that every path of an association finds its backend.
//!
//! A multihomed endpoint sends packets of one association from several addresses and to several addresses (RFC 9260
//! section 6.4). All of them have the same pair of ports and the same verification tag, which is a random number that
//! the receiver has chosen. So the ports and the tag identify the association on a path that has no flow yet. The first
//! packet of such a path is looked up here and creates a flow, which later packets find. Packets of a path may arrive
//! at any worker, so the workers share this table (`shared_table.rs`).
//!
//! An unconfirmed association never displaces a confirmed one that was used within a day. So a flood of INITs displaces
//! only entries of other handshakes. No flow depends on those: they serve handshakes whose packets take several paths.

use arrayvec::ArrayVec;
use tidegate_spec::ids::{BackendId, ServiceId, WorkerIndex};
use tidegate_spec::limits::{ASSOCIATION_PATHS_MAX, SHARED_ASSOCIATIONS_MAX};
use tidegate_spec::now::Now;
use tidegate_structures::hash::words;
use tidegate_wire::Addr;

use crate::shared_table::{self, SharedTable, age, units, units_of_seconds};
use crate::{AssociationKey, FlowKey, TagPair};

/// An unconfirmed entry expires after this time: 60 s, like the flow of an unanswered handshake.
const HANDSHAKE: u64 = units_of_seconds(60);

/// Any new entry can evict a confirmed one that was not used for this time (a day). The paths of the evicted
/// association still have their own flows.
const OLD: u64 = units_of_seconds(86_400);

/// A new path can evict a path that was recorded longer ago than this (an hour). The end of the association then
/// doesn't end the evicted path's flow, which lasts until its idle timeout.
const OLD_PATH: u64 = units_of_seconds(3_600);

/// The stored state of an association.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Association {
    /// The backend of the association.
    pub backend: BackendId,
    /// The verification tags of its packets; 0 for an unknown tag.
    pub tags: TagPair,
    /// Whether the client's COOKIE ECHO has confirmed it, which shows that the client has seen the INIT ACK.
    pub confirmed: bool,
    /// The client's port.
    pub client_port: u16,
    /// The client's address and port as the backend sees them, in modes that translate. In `nat` only the port is used:
    /// each path has the client's own address.
    pub local: (Addr, u16),
    /// The worker that owns its flow in `fullnat`.
    pub worker: WorkerIndex,
}

/// One path of an association: the flow of one address of the client to one VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The service port of the VIP.
    pub service: ServiceId,
    /// The client's address.
    pub client: Addr,
    /// The worker that owns the flow.
    pub worker: WorkerIndex,
}

/// A worker's report to another one that an association has ended, for the flow of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedPath {
    /// The worker that owns the flow.
    pub worker: WorkerIndex,
    /// The key of the flow.
    pub key: FlowKey,
    /// Whether the client has shut down gracefully.
    pub is_shutdown: bool,
}

/// Ended paths to be reported. Paths beyond the capacity are not reported: their flows last until their idle timeout.
pub type EndedPaths = ArrayVec<EndedPath, 32>;

type Record = shared_table::Record<6>;

const CONFIRMED: u64 = 1 << 24;

impl Association {
    fn record(&self) -> Record {
        let (high, low) = words(&self.local.0);
        let flags = if self.confirmed { CONFIRMED } else { 0 };
        let ports = u64::from(self.client_port) << 32 | u64::from(self.local.1);
        let tags = u64::from(self.tags.client) << 32 | u64::from(self.tags.server);
        [u64::from(self.backend.raw()) << 32, tags, ports, high, low, flags | u64::from(self.worker)]
    }

    fn read(record: &Record) -> Self {
        let [backend, tags, ports, high, low, rest] = *record;
        Self {
            backend: BackendId::from_raw((backend >> 32) as u32),
            tags: TagPair { client: (tags >> 32) as u32, server: tags as u32 },
            confirmed: rest & CONFIRMED != 0,
            client_port: (ports >> 32) as u16,
            local: (addr(high, low), ports as u16),
            worker: rest as u8,
        }
    }
}

impl Path {
    fn record(&self) -> Record {
        let (high, low) = words(&self.client);
        [u64::from(self.service.raw()) << 32, 0, 0, high, low, CONFIRMED | u64::from(self.worker)]
    }

    fn read(record: &Record) -> Self {
        let [service, _, _, high, low, rest] = *record;
        let service = ServiceId::from_raw((service >> 32) as u32);
        Self { service, client: addr(high, low), worker: rest as u8 }
    }
}

/// The order of eviction: empty or expired entries, unconfirmed ones, confirmed ones; within each group, the longest
/// idle first.
fn eviction_order(record: &Record, now: Now) -> (u8, u64) {
    let age = age(record, now);
    let class = match (record[0] == 0, record[5] & CONFIRMED != 0) {
        (true, _) => 0,
        (false, false) if age >= HANDSHAKE => 0,
        (false, true) if age > OLD => 0,
        (false, false) => 1,
        (false, true) => 2,
    };
    (class, u64::MAX - age)
}

/// See [the module](self).
#[derive(Debug)]
pub struct Associations(SharedTable<6, 4>);

impl Associations {
    /// A table for this many associations, at most [`SHARED_ASSOCIATIONS_MAX`]. It takes no memory before
    /// [`Self::prepare`]. `seed` should be secret.
    #[must_use]
    pub fn new(associations: usize, seed: u64) -> Self {
        let entries = associations.clamp(1, SHARED_ASSOCIATIONS_MAX).saturating_mul(4);
        Self(SharedTable::new(entries, seed ^ 0x5c79))
    }

    /// Allocates the table. Called before workers get the first SCTP Service; before that, nothing is remembered.
    pub fn prepare(&self) {
        self.0.prepare();
    }

    /// Whether [`Self::prepare`] was called.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.0.is_prepared()
    }

    /// The association with this key. Updates its time of use.
    #[must_use]
    pub fn find(&self, key: &AssociationKey, now: Now) -> Option<Association> {
        let record = self.0.find(&key.0)?;
        let association = Association::read(&record);
        if !association.confirmed {
            return (age(&record, now) < HANDSHAKE).then_some(association);
        }
        // At most once in 64 units of time, so that the line is seldom written.
        if age(&record, now) >= 64 {
            self.store(key, &record, now);
        }
        Some(association)
    }

    /// Records an association under this key. An unconfirmed one doesn't replace a confirmed one: a late duplicate of a
    /// handshake packet has the same key.
    pub fn remember(&self, key: &AssociationKey, association: &Association, now: Now) {
        self.store(key, &association.record(), now);
    }

    /// Marks an association as unconfirmed, because it is ending.
    pub fn unconfirm(&self, key: &AssociationKey, now: Now) {
        if let Some(record) = self.0.take(&key.0) {
            let unconfirmed = Association { confirmed: false, ..Association::read(&record) };
            self.store(key, &unconfirmed.record(), now);
        }
    }

    /// Removes the entry of this key.
    pub fn forget(&self, key: &AssociationKey) {
        self.0.take(&key.0);
    }

    /// Records a path of a confirmed association. Returns false if the association already has
    /// [`ASSOCIATION_PATHS_MAX`] paths that began within an hour.
    pub fn add_path(&self, ports: (u16, u16), server_tag: u32, path: &Path, now: Now) -> bool {
        let (mut free, mut old) = (None, None);
        for n in 0..ASSOCIATION_PATHS_MAX {
            let key = AssociationKey::path(ports, server_tag, n);
            match self.0.find(&key.0) {
                Some(record) => {
                    let known = Path::read(&record);
                    if (known.service, known.client) == (path.service, path.client) {
                        if known.worker != path.worker {
                            self.store(&key, &path.record(), now);
                        }
                        return true;
                    }
                    let age = age(&record, now);
                    if age > OLD_PATH && old.is_none_or(|(than, _)| age > than) {
                        old = Some((age, key));
                    }
                }
                None => free = free.or(Some(key)),
            }
        }
        free.or(old.map(|(_, key)| key)).is_some_and(|key| {
            self.store(&key, &path.record(), now);
            true
        })
    }

    /// Removes and returns the paths of an association.
    pub fn take_paths(&self, ports: (u16, u16), server_tag: u32) -> impl Iterator<Item = Path> {
        (0..ASSOCIATION_PATHS_MAX).filter_map(move |n| {
            let key = AssociationKey::path(ports, server_tag, n);
            Some(Path::read(&self.0.take(&key.0)?))
        })
    }

    /// Stores a record with the current time. An unconfirmed one displaces no confirmed one that is in use.
    fn store(&self, key: &AssociationKey, record: &Record, now: Now) {
        let may_displace = |other: &Record| record[5] & CONFIRMED != 0 || eviction_order(other, now).0 < 2;
        if self.0.find(&key.0).is_some_and(|known| !may_displace(&known)) {
            return;
        }
        let mut record = *record;
        record[0] = record[0] & (u64::MAX << 32) | units(now);
        self.0.store(&key.0, &record, |other| eviction_order(other, now), may_displace);
    }
}

fn addr(high: u64, low: u64) -> Addr {
    Addr::v6((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now(5_000_000_000_000);
    const PORTS: (u16, u16) = (40_000, 3868);

    fn association(n: u32, confirmed: bool) -> Association {
        Association {
            backend: BackendId::new(n as usize % 1000, 3),
            tags: TagPair { client: n, server: !n },
            confirmed,
            client_port: 40_000,
            local: (Addr::v4([10, 0, 0, 253]), 2048),
            worker: 1,
        }
    }

    fn key(n: u32) -> AssociationKey {
        AssociationKey::to_server(PORTS, n)
    }

    fn prepared(associations: usize) -> Associations {
        let table = Associations::new(associations, 0x5eed);
        table.prepare();
        table
    }

    fn after(seconds: u64) -> Now {
        Now(NOW.0 + seconds * 1_000_000_000)
    }

    #[test]
    fn an_association_is_found_by_its_own_key_only() {
        let table = prepared(64);
        table.remember(&key(7), &association(7, true), NOW);
        assert_eq!(table.find(&key(7), NOW), Some(association(7, true)));
        let others = [
            key(8),
            AssociationKey::to_server((40_001, 3868), 7),
            AssociationKey::init(PORTS, 7),
            AssociationKey::path(PORTS, 7, 0),
        ];
        assert!(others.iter().all(|key| table.find(key, NOW).is_none()));
        table.forget(&key(7));
        assert_eq!(table.find(&key(7), NOW), None);
    }

    #[test]
    fn a_handshake_expires_after_a_minute_and_an_association_does_not() {
        let table = prepared(64);
        table.remember(&key(1), &association(1, false), NOW);
        table.remember(&key(2), &association(2, true), NOW);
        assert!(table.find(&key(1), after(59)).is_some());
        assert!(table.find(&key(1), after(62)).is_none());
        assert!(table.find(&key(2), after(90 * 86_400)).is_some());
    }

    #[test]
    fn a_late_packet_of_a_handshake_does_not_undo_the_confirmation() {
        let table = prepared(64);
        table.remember(&key(1), &association(1, true), NOW);
        table.remember(&key(1), &association(2, false), after(1));
        assert_eq!(table.find(&key(1), after(1)), Some(association(1, true)));
        // The next association with the same tag replaces it.
        table.remember(&key(1), &association(3, true), after(2));
        assert_eq!(table.find(&key(1), after(2)), Some(association(3, true)));
    }

    #[test]
    fn a_flood_of_handshakes_displaces_no_association() {
        let table = prepared(256);
        for n in 0..128 {
            table.remember(&key(n), &association(n, true), NOW);
        }
        for n in 0..200_000 {
            table.remember(&AssociationKey::init(PORTS, n), &association(n, false), after(1));
        }
        assert!((0..128).all(|n| table.find(&key(n), after(1)) == Some(association(n, true))));
        // A handshake during the flood still gets an entry.
        table.remember(&key(500), &association(500, false), after(1));
        assert!(table.find(&key(500), after(1)).is_some());
    }

    #[test]
    fn handshakes_evict_associations_unused_for_a_day() {
        let table = prepared(1);
        for n in 0..100 {
            table.remember(&key(n), &association(n, true), NOW);
        }
        table.remember(&key(1000), &association(1000, false), after(10));
        assert!(table.find(&key(1000), after(10)).is_none(), "its hash bucket is full of associations");
        table.remember(&key(1000), &association(1000, false), after(86_500));
        assert!(table.find(&key(1000), after(86_500)).is_some());
    }

    #[test]
    fn the_paths_of_an_association_are_limited_and_each_is_listed_once() {
        let table = prepared(1024);
        let path =
            |n: u8| Path { service: ServiceId::new(3, 0), client: Addr::v4([192, 0, 2, n]), worker: n };
        for n in 0..ASSOCIATION_PATHS_MAX {
            assert!(table.add_path(PORTS, 9, &path(n), NOW) && table.add_path(PORTS, 9, &path(n), NOW));
        }
        assert!(!table.add_path(PORTS, 9, &path(ASSOCIATION_PATHS_MAX), NOW), "one too many");
        assert!(table.add_path(PORTS, 9, &path(0), NOW), "a known one");
        assert!(!table.add_path(PORTS, 9, &path(100), after(3_500)), "none is old");
        let paths: Vec<Path> = table.take_paths(PORTS, 9).collect();
        assert_eq!(paths, (0..ASSOCIATION_PATHS_MAX).map(path).collect::<Vec<_>>());
        assert_eq!(table.take_paths(PORTS, 9).count(), 0);

        for n in 0..ASSOCIATION_PATHS_MAX {
            assert!(table.add_path(PORTS, 9, &path(n), after(u64::from(n) * 60)));
        }
        assert!(table.add_path(PORTS, 9, &path(100), after(3_630)), "the first one is old");
        assert!(!table.add_path(PORTS, 9, &path(0), after(3_630)), "the second one is not");
        let paths: Vec<Path> = table.take_paths(PORTS, 9).collect();
        assert_eq!(paths, [100].into_iter().chain(1..ASSOCIATION_PATHS_MAX).map(path).collect::<Vec<_>>());
    }

    #[test]
    fn an_association_that_ends_is_known_for_a_minute() {
        let table = prepared(64);
        table.remember(&key(1), &association(1, true), NOW);
        table.unconfirm(&key(1), after(5));
        assert_eq!(table.find(&key(1), after(60)), Some(association(1, false)));
        assert_eq!(table.find(&key(1), after(67)), None);
        table.unconfirm(&key(2), NOW);
        assert_eq!(table.find(&key(2), NOW), None, "an unknown one");
    }

    #[test]
    fn an_unprepared_table_takes_no_memory_and_knows_nothing() {
        let table = Associations::new(1 << 20, 1);
        table.remember(&key(1), &association(1, true), NOW);
        assert!(!table.is_prepared() && table.find(&key(1), NOW).is_none());
        let path = Path { service: ServiceId::new(3, 0), client: Addr::v4([192, 0, 2, 1]), worker: 0 };
        assert!(table.add_path(PORTS, 9, &path, NOW), "an unprepared table refuses no path");
    }

    #[test]
    fn concurrent_writers_never_mix_two_associations() {
        let table = prepared(1);
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let table = &table;
                scope.spawn(move || {
                    for n in 0..50_000_u32 {
                        let of = (n * 7 + thread) % 40;
                        table.remember(&key(of), &association(of, true), NOW);
                        let other = (n * 11 + thread) % 40;
                        let found = table.find(&key(other), NOW);
                        assert!(found.is_none_or(|one| one == association(other, true)), "{found:?}");
                    }
                });
            }
        });
    }
}
