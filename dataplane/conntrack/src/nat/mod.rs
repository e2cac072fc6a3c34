//! NAT flows, which pass through the gateway in both directions: `nat` and `fullnat`.
//!
//! A flow has two entries, client -> VIP and endpoint -> gateway, of 32 bytes for IPv4 (two in a cache line: 96 bytes
//! of table per flow at the bound) or 64 bytes for IPv6 (two in a pair of lines: 192 bytes). Each entry contains the
//! key of the other, so a packet of either direction touches only its own line. Ageing, eviction and a SYN on a known
//! flow read both. NAT doesn't cross families.
//!
//! Invariant: the two entries of a flow are created and removed together, and each contains the key of the other.

mod hits;
mod pair;
mod streams;

pub use hits::{NatHit, ReplyHit, ReplyKey};

use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::SERVICES_MAX;
use tidegate_spec::now::Now;
use tidegate_wire::Family;

use super::dsr::by_family;
use super::eviction_reason::{EvictionReason, FlowCounters};
use super::first_lookup::First;
use super::flow_state::Packet;
use super::insert_error::InsertError;
use super::key::{FlowHash, FlowHasher, FlowKey, PackedKey};
use super::memory::{TableKind, TableMemory};
use super::new_flow::NewFlow;
use super::table::Table;

pub(super) type V4 = Table<1, 8, 2, 16>;
pub(super) type V6 = Table<4, 16, 2, 32>;

/// The NAT flows of both families.
#[derive(Debug)]
pub struct NatTable {
    pub(super) v4: V4,
    pub(super) v6: V6,
    /// One bit per service index: whether its flows may have streams.
    streaming: Box<[u64]>,
}

impl NatTable {
    pub(super) fn new(flows: usize, hasher: &FlowHasher, memory: &mut dyn TableMemory) -> Self {
        let entries = flows.saturating_mul(2);
        Self {
            v4: Table::new(entries, hasher.clone(), TableKind::NatV4, memory),
            v6: Table::new(entries, hasher.clone(), TableKind::NatV6, memory),
            streaming: vec![0; SERVICES_MAX.div_ceil(64)].into_boxed_slice(),
        }
    }

    /// Prefetches the first of the key's two hash buckets, where most flows are. Call it first, for the whole burst.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey, hash: FlowHash) {
        if key.addr().is_v4() { self.v4.prefetch(hash) } else { self.v6.prefetch(hash) }
    }

    /// Finds the flow of a packet from a client ([`FlowKey::flow`]) and records the packet in it.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<NatHit> {
        by_family!(mut self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            table.record_nat(position, packet, now)
        })
    }

    /// Searches only the first of the key's hash buckets, where most flows are, and prefetches the second if the flow
    /// is not in it. A plain packet of an established flow is recorded. Call it for the whole burst, some time after
    /// [`Self::prefetch`]; then call [`Self::lookup`] for the packets that it didn't record.
    #[inline]
    pub fn lookup_first(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> First<NatHit> {
        by_family!(mut self, key, |table, packed| {
            table.record_first(&packed, hash, packet, now).map(|(position, _)| table.nat_hit(position, false))
        })
    }

    /// [`Self::lookup`] for a key that [`Self::lookup_first`] has not found.
    #[inline]
    pub fn lookup_second(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> Option<NatHit> {
        by_family!(mut self, key, |table, packed| {
            let position = table.find_second(&packed, hash)?;
            table.record_nat(position, packet, now)
        })
    }

    /// Finds the flow of a packet from an endpoint ([`FlowKey::reply`]) and records the packet in it.
    #[inline]
    pub fn lookup_reply(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> Option<ReplyHit> {
        by_family!(mut self, key, |table, packed| {
            let position = table.find_alive(&packed, hash, now)?;
            let state = table.state(position)?.next(packet);
            table.touch(position, state, now);
            table.set_both(position, packet, now);
            Some(table.reply_hit(position))
        })
    }

    /// [`Self::lookup_first`] for a packet from an endpoint. Call [`Self::lookup_reply`] for the packets that it
    /// doesn't record.
    #[inline]
    pub fn lookup_reply_first(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> First<ReplyHit> {
        by_family!(mut self, key, |table, packed| {
            table.record_first(&packed, hash, packet, now).map(|(position, _)| table.reply_hit(position))
        })
    }

    /// Finds a flow by the client's side and changes nothing.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<NatHit> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash).filter(|&position| !table.is_expired(position, now))?;
            Some(table.nat_hit(position, false))
        })
    }

    /// Finds a flow by the endpoint's side and changes nothing: for ICMP errors from backends.
    #[must_use]
    pub fn peek_reply(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<ReplyHit> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash).filter(|&position| !table.is_expired(position, now))?;
            Some(table.reply_hit(position))
        })
    }

    /// The flow with this client's key, if another worker may have a copy of it for plain packets: it is established,
    /// no bytes are added or removed, and its idle timeout is at least
    /// [`COPIED_IDLE_MIN_MS`](crate::flow_copies::COPIED_IDLE_MIN_MS).
    #[must_use]
    pub fn to_copy(&self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<NatHit> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            table.may_be_copied(position, position, packet, now).then(|| table.nat_hit(position, false))
        })
    }

    /// [`Self::to_copy`] for the key of replies.
    #[must_use]
    pub fn reply_to_copy(&self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<ReplyHit> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            let client = table.peer(position)?;
            table.may_be_copied(position, client, packet, now).then(|| table.reply_hit(position))
        })
    }

    /// Whether the client of this flow has sent only SYNs or INITs, and the server nothing. `key` may be the key of
    /// either side.
    #[must_use]
    pub fn awaits_answer(&self, key: &FlowKey, hash: FlowHash, now: Now) -> bool {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash).filter(|&position| !table.is_expired(position, now));
            let sides = position.and_then(|position| Some((position, table.peer(position)?)));
            sides.is_some_and(|(position, peer)| table.awaits_answer(position, peer))
        })
    }

    /// The state of this reply key, which the new flow `of` needs. An earlier entry of the new flow itself is ignored,
    /// because it will be replaced.
    #[must_use]
    pub fn reply_key(&self, key: &FlowKey, hash: FlowHash, of: &FlowKey, now: Now) -> ReplyKey {
        by_family!(self, key, |table, packed| {
            let position =
                table.find(&packed, hash).filter(|&position| table.peer_key(position) != PackedKey::from(of));
            let age = position.and_then(|position| table.flow_age(position, now));
            age.map_or(ReplyKey::Free, |age| ReplyKey::of(age.status, age.idle_ms))
        })
    }

    /// Removes both entries of the flow that has this reply key, counted as [`EvictionReason::PortReused`].
    pub fn take_reply_key(&mut self, key: &FlowKey, hash: FlowHash) {
        by_family!(mut self, key, |table, packed| {
            if let Some(position) = table.find(&packed, hash) {
                table.remove(position, EvictionReason::PortReused);
            }
        });
    }

    /// Inserts a flow whose replies have the key `reply`. An earlier entry of the flow's key, and an expired flow with
    /// the `reply` key, are removed first.
    ///
    /// # Errors
    /// [`InsertError::Conflict`] if another flow has the `reply` key; then nothing has changed. [`InsertError::Full`]
    /// or [`InsertError::Share`], counted; then the flow's key is not in the table.
    ///
    /// # Panics
    /// If the two keys have different families.
    #[inline]
    pub fn insert_pair(
        &mut self,
        flow: &NewFlow,
        reply: &FlowKey,
        reply_hash: FlowHash,
    ) -> Result<(), InsertError> {
        self.put_pair(flow, reply, reply_hash, true)
    }

    /// [`Self::insert_pair`] for two keys that look-ups have not found, which saves another search for each.
    ///
    /// # Errors
    /// As [`Self::insert_pair`].
    ///
    /// # Panics
    /// If the two keys have different families.
    #[inline]
    pub fn insert_new_pair(
        &mut self,
        flow: &NewFlow,
        reply: &FlowKey,
        reply_hash: FlowHash,
    ) -> Result<(), InsertError> {
        self.put_pair(flow, reply, reply_hash, false)
    }

    #[inline(always)]
    fn put_pair(
        &mut self,
        flow: &NewFlow,
        reply: &FlowKey,
        reply_hash: FlowHash,
        is_known: bool,
    ) -> Result<(), InsertError> {
        let key = &flow.key;
        assert_eq!(key.addr().is_v4(), reply.addr().is_v4(), "NAT stays within a family");
        by_family!(mut self, key, |table, packed| {
            table.insert_pair(&flow.with_key(packed), &PackedKey::from(reply), reply_hash, is_known)
        })
    }

    /// The opening entries of this service in the table of a family: two for each flow whose backend has not answered,
    /// one for each whose client has not acknowledged the answer.
    #[must_use]
    pub fn opening_of(&self, service: ServiceId, clients: Family) -> u32 {
        match clients {
            Family::V4 => self.v4.opening_of(service.raw()),
            Family::V6 => self.v6.opening_of(service.raw()),
        }
    }

    /// Removes both entries of a flow, given the key of either side. Returns whether it was known.
    pub fn remove(&mut self, key: &FlowKey, hash: FlowHash) -> bool {
        by_family!(mut self, key, |table, packed| {
            let position = table.find(&packed, hash);
            position.inspect(|&position| table.remove(position, EvictionReason::Removed)).is_some()
        })
    }

    /// The number of flows, including expired ones that have not been aged out yet. Each has two entries.
    #[inline]
    #[must_use]
    pub fn live(&self) -> usize {
        (self.v4.live + self.v6.live) / 2
    }

    pub(super) fn counters(&self) -> FlowCounters {
        self.v4.counters.plus(&self.v6.counters)
    }
}
