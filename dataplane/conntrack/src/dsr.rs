//! DSR flows, of which the gateway sees only the client's side, and session affinity.
//!
//! A flow has one entry: 20 bytes for IPv4, three in a cache line; 32 bytes for IPv6, two in a line. In a table at its
//! bound, a flow takes 32 or 48 bytes. The pipeline passes a key, its hash, and the kind of packet.
//!
//! Losing an entry breaks nothing by itself: the hash selects the same backend, unless the backends have changed since.

use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;

use super::eviction_reason::{EvictionReason, FlowCounters};
use super::first_lookup::First;
use super::flow_state::{Packet, Phase, SideState};
use super::insert_error::InsertError;
use super::key::{FlowHash, FlowHasher, FlowKey, PackedKey};
use super::memory::{TableKind, TableMemory};
use super::new_flow::NewFlow;
use super::table::{Entry, Position, Table};

pub(super) type V4 = Table<1, 5, 3, 16>;
pub(super) type V6 = Table<4, 8, 2, 16>;

/// The backend of each client's flow, for both families.
#[derive(Debug)]
pub struct DsrTable {
    pub(super) v4: V4,
    pub(super) v6: V6,
}

/// A known flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DsrHit {
    /// The backend that its packets go to.
    pub backend: BackendId,
    /// The phase of the flow, including this packet.
    pub phase: Phase,
    /// The packet is a SYN and the flow was over: a new connection with the same ports (RFC 9293 section 3.6.1, RFC
    /// 6191). The entry counts as opening; the caller may replace its backend.
    pub reopened: bool,
}

/// Evaluates an expression on the table of the key's family.
macro_rules! by_family {
    ($self:ident, $key:ident, |$table:ident, $packed:ident| $body:expr) => {
        if $key.addr().is_v4() {
            let ($table, $packed) = (&$self.v4, PackedKey::<1>::from($key));
            $body
        } else {
            let ($table, $packed) = (&$self.v6, PackedKey::<4>::from($key));
            $body
        }
    };
    (mut $self:ident, $key:ident, |$table:ident, $packed:ident| $body:expr) => {
        if $key.addr().is_v4() {
            let ($table, $packed) = (&mut $self.v4, PackedKey::<1>::from($key));
            $body
        } else {
            let ($table, $packed) = (&mut $self.v6, PackedKey::<4>::from($key));
            $body
        }
    };
}
pub(super) use by_family;

impl DsrTable {
    pub(super) fn new(flows: usize, hasher: &FlowHasher, memory: &mut dyn TableMemory) -> Self {
        let v4 = Table::new(flows, hasher.clone(), TableKind::DsrV4, memory);
        Self { v4, v6: Table::new(flows, hasher.clone(), TableKind::DsrV6, memory) }
    }

    /// Prefetches the first of the key's two hash buckets, where most flows are. Call it first, for the whole burst.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey, hash: FlowHash) {
        if key.addr().is_v4() { self.v4.prefetch(hash) } else { self.v6.prefetch(hash) }
    }

    /// Whether the service of this key has any entry in the table of the key's family.
    #[inline]
    #[must_use]
    pub fn has_flows_of(&self, key: &FlowKey) -> bool {
        if key.addr().is_v4() { self.v4.has_flows_of(key.owner) } else { self.v6.has_flows_of(key.owner) }
    }

    /// Finds a flow and records the packet in it.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<DsrHit> {
        by_family!(mut self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            table.record_dsr(position, packet, now)
        })
    }

    /// Searches only the first of the key's hash buckets, where most flows are, and prefetches the second if the flow
    /// is not in it. A plain packet of an established flow is recorded and goes to the returned backend. Call it for
    /// the whole burst, some time after [`Self::prefetch`]; then call [`Self::lookup`] for the packets that it didn't
    /// record.
    #[inline(always)]
    pub fn lookup_first(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> First<BackendId> {
        by_family!(mut self, key, |table, packed| {
            table.record_first(&packed, hash, packet, now).map(|(_, value)| BackendId::from_raw(value))
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
    ) -> Option<DsrHit> {
        by_family!(mut self, key, |table, packed| {
            let position = table.find_second(&packed, hash)?;
            table.record_dsr(position, packet, now)
        })
    }

    /// Finds a flow and changes nothing.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<DsrHit> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash).filter(|&position| !table.is_expired(position, now))?;
            let backend = BackendId::from_raw(table.value(position));
            Some(DsrHit { backend, phase: table.phase(position), reopened: false })
        })
    }

    /// Inserts a flow, and replaces an earlier entry of the key.
    ///
    /// # Errors
    /// [`InsertError::Full`] or [`InsertError::Share`], counted. The packet can still go to the backend that its hash
    /// selects.
    #[inline]
    pub fn insert(&mut self, flow: &NewFlow) -> Result<(), InsertError> {
        let key = &flow.key;
        by_family!(mut self, key, |table, packed| {
            let Some(position) = table.find(&packed, flow.hash) else {
                return table.create(&flow.with_key(packed));
            };
            table.replace(position, flow.now);
            table.write(position, &Entry::first(&flow.with_key(packed), None));
            Ok(())
        })
    }

    /// [`Self::insert`] for a key that a look-up has not found, which saves another search.
    ///
    /// # Errors
    /// As [`Self::insert`].
    #[inline]
    pub fn insert_new(&mut self, flow: &NewFlow) -> Result<(), InsertError> {
        let key = &flow.key;
        by_family!(mut self, key, |table, packed| table.create(&flow.with_key(packed)))
    }

    /// Removes a flow. Returns whether it was known.
    pub fn remove(&mut self, key: &FlowKey, hash: FlowHash) -> bool {
        by_family!(mut self, key, |table, packed| {
            let position = table.find(&packed, hash);
            position.inspect(|&position| table.remove(position, EvictionReason::Removed)).is_some()
        })
    }

    /// The number of entries, including expired ones that have not been aged out yet.
    #[inline]
    #[must_use]
    pub fn live(&self) -> usize {
        self.v4.live + self.v6.live
    }

    pub(super) fn counters(&self) -> FlowCounters {
        self.v4.counters.plus(&self.v6.counters)
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// [`DsrTable::insert_new`] in the table of one family.
    #[inline(always)]
    pub(super) fn create(&mut self, flow: &NewFlow<PackedKey<A>>) -> Result<(), InsertError> {
        debug_assert!(self.find(&flow.key, flow.hash).is_none(), "no key is in the table twice");
        let position = self.admit(&flow.key, flow.hash, flow.now)?;
        self.write(position, &Entry::first(flow, None));
        Ok(())
    }

    #[inline]
    fn record_dsr(&mut self, position: Position, packet: Packet, now: Now) -> Option<DsrHit> {
        let position = self.alive(position, now)?;
        let before = self.state(position)?;
        let backend = BackendId::from_raw(self.value(position));
        let reopened = matches!(before.phase(), Phase::Closing | Phase::Closed) && packet.is_opening();
        let state = if reopened { SideState::first(packet) } else { before.next(packet) };
        self.touch(position, state, now);
        Some(DsrHit { backend, phase: state.phase(), reopened })
    }
}
