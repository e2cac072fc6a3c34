//! Copies of established NAT flows owned by other workers, so that a worker forwards their plain packets itself.
//!
//! Each NAT flow is owned by one worker (`pipeline::owners`), but the packets of its two directions arrive at the
//! workers that the NIC selects. Without copies, every packet that arrives at another worker is handed over to the
//! owner. With copies, only the first packets are handed over: the owner answers a hand-over with a [`FlowCopy`], and
//! the worker that received the packet forwards the next ones itself. Once per second and direction it reports that the
//! copy is in use ([`FlowUse`]). The owner records the use in the flow, and confirms or withdraws the copy. Packets
//! that begin or end a connection (SYN, FIN, RST) are always handed over, and the worker that hands them over removes
//! its copy. So the owner makes all decisions about a flow.
//!
//! A copy is valid for as long as the flow cannot be removed, change its backend, or lose its SNAT port. So it is used
//! for at most [`COPY_MAX_MS`] without a confirmation, and only flows with a longer idle timeout
//! ([`COPIED_IDLE_MIN_MS`]) are copied. When an operator removes a flow (a drain, changed source ranges), packets may
//! use its copy until the next report, a second later.
//!
//! The table belongs to one worker. It is a cache: a missing or displaced copy costs hand-overs.
//!
//! Invariant: a copy is used only for packets that neither begin nor end a connection.

use tidegate_spec::ids::{BackendId, ServiceId, WorkerIndex};
use tidegate_spec::now::Now;
use tidegate_structures::prefetch;
use tidegate_wire::rewrite::Endpoint;

use crate::{FlowHash, FlowKey, Packet};

/// How long a copy is used after its last confirmation, in milliseconds.
pub const COPY_MAX_MS: u32 = 4_000;
/// The use of a copy is reported when its last confirmation is older than this, in milliseconds.
pub const USE_REPORTED_MS: u32 = 1_000;
/// An unanswered report is repeated after this time, in milliseconds: either message may have been lost in a full ring.
pub const USE_REPEATED_MS: u32 = 250;
/// Flows with a shorter idle timeout, in milliseconds, are not copied: they could end while a copy is in use.
pub const COPIED_IDLE_MIN_MS: u32 = 2 * COPY_MAX_MS;

/// The part of a flow that one direction needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// Packets of the client go to this backend, from `local` if their source changes.
    Request {
        /// The backend.
        backend: BackendId,
        /// The source to send with, if it is not the client's own.
        local: Option<Endpoint>,
    },
    /// Packets of the backend go to this client, with the VIP of the service as their source.
    Reply {
        /// The service port.
        service: ServiceId,
        /// The backend that sends them.
        backend: BackendId,
        /// The client.
        client: Endpoint,
    },
}

/// A message from the owner of a flow to a worker that receives packets of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCopy {
    /// The key of the direction.
    pub key: FlowKey,
    /// The current flow; `None` withdraws the copy.
    pub copied: Option<Copied>,
}

/// A message from a worker that uses a copy to the owner of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowUse {
    /// The worker that has the copy.
    pub user: WorkerIndex,
    /// The key of the direction.
    pub key: FlowKey,
    /// The last packet, which neither began nor ended the connection.
    pub packet: Packet,
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The flow.
    pub copied: Copied,
    /// Whether the use must now be reported to the owner of the flow.
    pub must_report: bool,
}

/// An entry of the table: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Entry {
    key: FlowKey,
    copied: Copied,
    /// When the owner last confirmed the copy.
    confirmed_ms: u32,
    /// When its use was last reported.
    reported_ms: u32,
}

/// Entries of a set.
const ENTRIES_PER_SET: usize = 2;

type Set = [Option<Entry>; ENTRIES_PER_SET];

fn sets_for(copies: usize) -> usize {
    if copies == 0 { 0 } else { copies.div_ceil(ENTRIES_PER_SET).next_power_of_two() }
}

/// The copies that one worker has.
#[derive(Debug)]
pub struct FlowCopies {
    sets: Box<[Set]>,
    /// The set that is aged next.
    aged: usize,
}

impl FlowCopies {
    /// An empty table for about this many copies; 0 for a single worker, which owns all flows.
    #[must_use]
    pub fn new(copies: usize) -> Self {
        Self { sets: vec![[None; ENTRIES_PER_SET]; sets_for(copies)].into_boxed_slice(), aged: 0 }
    }

    /// Bytes of a table for about this many copies.
    #[must_use]
    pub fn bytes_for(copies: usize) -> usize {
        sets_for(copies) * size_of::<Set>()
    }

    /// Bytes of the table.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    /// Prefetches the set of a key.
    #[inline]
    pub fn prefetch(&self, hash: FlowHash) {
        if let Some(set) = self.sets.get(self.index(hash)) {
            set.iter().for_each(prefetch::read);
        }
    }

    /// The copy for a packet of this direction. A packet that begins or ends a connection gets no copy, and removes an
    /// existing one.
    #[inline]
    pub fn find(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<Use> {
        let index = self.index(hash);
        let set = self.sets.get_mut(index)?;
        let entry = set.iter_mut().find(|entry| entry.as_ref().is_some_and(|copy| copy.key == *key))?;
        let now = now.millis();
        let copy = entry
            .as_mut()
            .filter(|copy| packet.is_plain() && now.wrapping_sub(copy.confirmed_ms) < COPY_MAX_MS);
        let Some(copy) = copy else {
            *entry = None;
            return None;
        };
        let must_report = now.wrapping_sub(copy.confirmed_ms) >= USE_REPORTED_MS
            && now.wrapping_sub(copy.reported_ms) >= USE_REPEATED_MS;
        if must_report {
            copy.reported_ms = now;
        }
        Some(Use { copied: copy.copied, must_report })
    }

    /// The copy for a plain packet of this direction, if its use need not be reported. Changes nothing.
    #[inline]
    #[must_use]
    pub fn peek(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<&Copied> {
        let set = self.sets.get(self.index(hash))?;
        let copy = set.iter().flatten().find(|copy| copy.key == *key)?;
        (now.millis().wrapping_sub(copy.confirmed_ms) < USE_REPORTED_MS).then_some(&copy.copied)
    }

    /// Stores a copy from the owner of its flow, or removes one that is withdrawn. A full set loses the copy that was
    /// confirmed least recently.
    pub fn update(&mut self, copy: &FlowCopy, hash: FlowHash, now: Now) {
        let index = self.index(hash);
        let Some(set) = self.sets.get_mut(index) else { return };
        let now = now.millis();
        let known = set.iter().position(|entry| entry.as_ref().is_some_and(|known| known.key == copy.key));
        let Some(copied) = copy.copied else {
            if let Some(known) = known {
                set[known] = None;
            }
            return;
        };
        let age = |entry: &Option<Entry>| {
            entry.as_ref().map_or(u32::MAX, |copy| now.wrapping_sub(copy.confirmed_ms))
        };
        let at = known.unwrap_or_else(|| if age(&set[0]) >= age(&set[1]) { 0 } else { 1 });
        set[at] = Some(Entry { key: copy.key, copied, confirmed_ms: now, reported_ms: now });
    }

    /// Removes the expired copies of one more set. Times wrap after 49 days, so every set must be visited sooner. Call
    /// it once per loop iteration of the worker.
    #[inline]
    pub fn age(&mut self, now: Now) {
        let Some(set) = self.sets.get_mut(self.aged) else {
            self.aged = 0;
            return;
        };
        for entry in set {
            if entry.as_ref().is_some_and(|copy| now.millis().wrapping_sub(copy.confirmed_ms) >= COPY_MAX_MS)
            {
                *entry = None;
            }
        }
        self.aged += 1;
    }

    #[inline]
    fn index(&self, hash: FlowHash) -> usize {
        // The number of sets is 0 or a power of two.
        hash.bits() as usize & self.sets.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowTables;
    use tidegate_spec::ids::EndpointId;
    use tidegate_wire::Addr;
    use tidegate_wire::tcp::flags::{ACK, FIN, RST, SYN};

    const PLAIN: Packet = Packet::Tcp(ACK);

    fn at(ms: u64) -> Now {
        Now(ms * 1_000_000)
    }

    fn key(n: u16) -> (FlowKey, FlowHash) {
        let key = FlowKey::reply(EndpointId::new(1, 0), Addr::v4([198, 51, 100, 7]), n);
        (key, FlowTables::new(64, 7).hash(&key))
    }

    fn copied(port: u16) -> Copied {
        let client = Endpoint { addr: Addr::v4([198, 51, 100, 7]), port };
        Copied::Reply { service: ServiceId::new(1, 0), backend: BackendId::new(2, 0), client }
    }

    #[test]
    fn an_entry_is_one_cache_line() {
        assert_eq!((size_of::<Option<Entry>>(), size_of::<Set>()), (64, 128));
    }

    #[test]
    fn a_copy_is_used_for_plain_packets_until_one_ends_the_connection() {
        for last in [SYN, SYN | ACK, FIN | ACK, RST] {
            let (mut copies, (key, hash)) = (FlowCopies::new(64), key(1));
            assert_eq!(copies.find(&key, hash, PLAIN, at(5)), None);
            copies.update(&FlowCopy { key, copied: Some(copied(1)) }, hash, at(5));
            let found = Some(Use { copied: copied(1), must_report: false });
            assert_eq!(copies.find(&key, hash, PLAIN, at(5)), found);
            assert_eq!(copies.find(&key, hash, Packet::Tcp(last), at(6)), None);
            assert_eq!(copies.find(&key, hash, PLAIN, at(6)), None, "later packets must be handed over");
        }
    }

    #[test]
    fn a_use_is_reported_every_second_and_without_an_answer_the_copy_ends() {
        let (mut copies, (key, hash)) = (FlowCopies::new(64), key(1));
        copies.update(&FlowCopy { key, copied: Some(copied(1)) }, hash, at(0));
        let peeked = [0, 999, 1_000, 4_000].map(|ms| copies.peek(&key, hash, at(ms)).is_some());
        assert_eq!(peeked, [true, true, false, false], "a use that must be reported is left to `find`");
        let mut reported = |ms| copies.find(&key, hash, PLAIN, at(ms)).map(|found| found.must_report);
        assert_eq!(
            [999, 1_000, 1_001, 1_249, 1_250].map(&mut reported),
            [false, true, false, false, true].map(Some)
        );
        assert_eq!([3_999, 4_000, 3_999].map(reported), [Some(true), None, None]);
        copies.update(&FlowCopy { key, copied: Some(copied(2)) }, hash, at(4_000));
        assert_eq!(copies.find(&key, hash, PLAIN, at(4_900)).map(|found| found.copied), Some(copied(2)));
        copies.update(&FlowCopy { key, copied: None }, hash, at(4_900));
        assert_eq!(copies.find(&key, hash, PLAIN, at(4_900)), None);
    }

    #[test]
    fn a_full_set_loses_its_oldest_copy_and_no_table_is_needed_for_one_worker() {
        let mut copies = FlowCopies::new(2);
        let keys = [1, 2, 3].map(key);
        for (n, (key, hash)) in keys.iter().enumerate() {
            copies.update(&FlowCopy { key: *key, copied: Some(copied(1)) }, *hash, at(n as u64));
        }
        let found = keys.map(|(key, hash)| copies.find(&key, hash, PLAIN, at(9)).is_some());
        assert_eq!(found, [false, true, true]);
        let (mut none, (key, hash)) = (FlowCopies::new(0), keys[0]);
        none.prefetch(hash);
        none.update(&FlowCopy { key, copied: Some(copied(1)) }, hash, at(0));
        assert_eq!(none.find(&key, hash, PLAIN, at(0)), None);
    }
}
