//! Flows that pass the gateway in both directions: `nat` and `fullnat`.
//!
//! Two entries each, client -> VIP and endpoint -> gateway, of 32 bytes for IPv4 (two to a cache line: 96
//! bytes of table per flow at the bound) and 64 bytes for IPv6 (two to a pair of lines: 192 bytes). Each holds
//! the other's key, so that a packet of either direction touches its own line only; ageing, eviction and a
//! SYN on a known flow look at both. NAT does not cross families.
//!
//! Invariant: the two entries of a flow come and go together, and each names the other.

use super::dsr::by_family;
use super::key::{FlowHash, FlowHasher, FlowKey, PackedKey, addr_of};
use super::table::{Entry, Place, Table};
use super::tcp_state::{IdleTimeout, Packet, Phase, State};
use super::view::{FlowKind, FlowView};
use super::{EvictionReason, First, FlowCounters, PairError};
use crate::ids::{BackendId, EndpointId, ServiceId};
use crate::now::Now;
use crate::wire::Addr;

pub(super) type V4 = Table<1, 8, 2, 16>;
pub(super) type V6 = Table<4, 16, 2, 32>;

/// Flows with both directions, for both families.
#[derive(Debug)]
pub struct NatTable {
    pub(super) v4: V4,
    pub(super) v6: V6,
}

/// A known flow, seen from its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatHit {
    /// Where its packets go.
    pub backend: BackendId,
    /// Source address to send with: of the gateway (`fullnat`), or the client's own (`nat`).
    pub source: Addr,
    /// Source port to send with.
    pub source_port: u16,
    /// How far along the client's side is, this packet included.
    pub phase: Phase,
    /// The packet is a SYN and the flow was over, on either side (RFC 9293 section 3.6.1, RFC 6191). Both
    /// entries count as opening; the caller may insert another pair over this one.
    pub reopened: bool,
}

/// A known flow, seen from its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHit {
    /// Whose VIP and port to send with.
    pub service: ServiceId,
    /// Where replies go.
    pub client: Addr,
    /// Port there.
    pub client_port: u16,
    /// Which backend it is.
    pub backend: BackendId,
    /// How far along the server's side is, this packet included.
    pub phase: Phase,
}

impl NatTable {
    pub(super) fn new(flows: usize, hasher: &FlowHasher) -> Self {
        let entries = flows.saturating_mul(2);
        Self { v4: Table::new(entries, hasher.clone()), v6: Table::new(entries, hasher.clone()) }
    }

    /// Asks for the first of the key's two buckets: where most flows are. For the whole burst, first.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey, hash: FlowHash) {
        if key.addr().is_v4() { self.v4.prefetch(hash) } else { self.v6.prefetch(hash) }
    }

    /// Finds the flow of a packet from a client ([`FlowKey::flow`]) and notes the packet in it.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<NatHit> {
        by_family!(mut self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            note(table, place, packet, now)
        })
    }

    /// Looks into the first of the key's buckets alone, where most flows are, and asks for the second where the flow
    /// is not there. A plain packet of an established flow is noted. For the whole burst, some work after
    /// [`Self::prefetch`]; [`Self::lookup`] what it leaves.
    #[inline]
    pub fn lookup_first(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> First<NatHit> {
        by_family!(mut self, key, |table, packed| {
            table.see_first(&packed, hash, packet, now).map(|(place, _)| hit(table, place, false))
        })
    }

    /// Finds the flow of a packet from an endpoint ([`FlowKey::reply`]) and notes the packet in it.
    #[inline]
    pub fn lookup_reply(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> Option<ReplyHit> {
        by_family!(mut self, key, |table, packed| {
            let place = table.find_alive(&packed, hash, now)?;
            let state = table.state(place)?.next(packet);
            table.touch(place, state, now);
            Some(reply_hit(table, place))
        })
    }

    /// [`Self::lookup_first`] for a packet from an endpoint; [`Self::lookup_reply`] what it leaves.
    #[inline]
    pub fn lookup_reply_first(
        &mut self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        now: Now,
    ) -> First<ReplyHit> {
        by_family!(mut self, key, |table, packed| {
            table.see_first(&packed, hash, packet, now).map(|(place, _)| reply_hit(table, place))
        })
    }

    /// Finds a flow by its client's side and changes nothing.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<NatHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash).filter(|&place| !table.is_expired(place, now))?;
            Some(hit(table, place, false))
        })
    }

    /// Finds a flow by its endpoint's side and changes nothing: for ICMP errors from backends.
    #[must_use]
    pub fn peek_reply(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<ReplyHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash).filter(|&place| !table.is_expired(place, now))?;
            Some(reply_hit(table, place))
        })
    }

    /// Whether a pair with this reply key could be inserted: nobody has it, or whose flow is over.
    #[inline]
    #[must_use]
    pub fn reply_is_free(&self, key: &FlowKey, hash: FlowHash, now: Now) -> bool {
        by_family!(self, key, |table, packed| {
            table.find(&packed, hash).is_none_or(|place| table.is_expired(place, now))
        })
    }

    /// Remembers a flow that begins with `packet` from the client. `flow` and `reply` are keys with their
    /// hashes; what was known of `flow` is forgotten first, and so is what is over and has the `reply` key.
    ///
    /// # Errors
    /// [`PairError::Conflict`] when another flow has the `reply` key, and nothing has changed.
    /// [`PairError::Full`], counted, when every flow that would have to make way is established; then nothing
    /// is known of `flow`.
    ///
    /// # Panics
    /// If the keys are of two families.
    #[inline]
    pub fn insert_pair(
        &mut self,
        flow: (&FlowKey, FlowHash),
        reply: (&FlowKey, FlowHash),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<(), PairError> {
        let (key, reply_key) = (flow.0, reply.0);
        assert_eq!(key.addr().is_v4(), reply_key.addr().is_v4(), "NAT stays within a family");
        by_family!(mut self, key, |table, packed| {
            let entry = Entry {
                key: packed,
                state: State::first(packet),
                idle,
                seen: now.millis(),
                value: backend.raw(),
                peer: Some(PackedKey::from(reply_key)),
            };
            insert_pair(table, &entry, flow.1, reply.1, State::silent(packet), now)
        })
    }

    /// Forgets the flow of a key of either side, both entries; whether it was known.
    pub fn remove(&mut self, key: &FlowKey, hash: FlowHash) -> bool {
        by_family!(mut self, key, |table, packed| {
            let place = table.find(&packed, hash);
            place.inspect(|&place| table.remove(place, EvictionReason::Removed)).is_some()
        })
    }

    /// Flows that are kept, the expired among them until they are aged out. Each has two entries.
    #[inline]
    #[must_use]
    pub fn live(&self) -> usize {
        (self.v4.live + self.v6.live) / 2
    }

    pub(super) fn counters(&self) -> FlowCounters {
        self.v4.counters.plus(&self.v6.counters)
    }
}

#[inline]
fn hit<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    reopened: bool,
) -> NatHit {
    let to = table.peer_key(place);
    NatHit {
        backend: BackendId::from_raw(table.value(place)),
        source: addr_of(to.addr),
        source_port: (to.tag >> 16) as u16,
        phase: table.phase(place),
        reopened,
    }
}

#[inline]
fn reply_hit<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
) -> ReplyHit {
    let flow = table.peer_key(place);
    ReplyHit {
        service: ServiceId::from_raw(flow.owner),
        client: addr_of(flow.addr),
        client_port: (flow.tag >> 16) as u16,
        backend: BackendId::from_raw(table.value(place)),
        phase: table.phase(place),
    }
}

#[inline]
fn note<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    packet: Packet,
    now: Now,
) -> Option<NatHit> {
    let place = table.alive(place, now)?;
    // Only a SYN asks what the server's side has shown: most come on keys that are not known.
    let reopened = packet.is_opening()
        && matches!(table.vitality(place, now)?.state.phase(), Phase::Closing | Phase::Closed);
    if reopened {
        if let Some(peer) = table.peer(place) {
            table.touch(peer, State::silent(packet), now);
        }
        table.touch(place, State::first(packet), now);
    } else {
        let state = table.state(place)?.next(packet);
        table.touch(place, state, now);
    }
    Some(hit(table, place, reopened))
}

fn insert_pair<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    flow: &Entry<A>,
    flow_hash: FlowHash,
    reply_hash: FlowHash,
    reply_state: State,
    now: Now,
) -> Result<(), PairError> {
    let reply_key = flow.peer.expect("a flow of a pair names its reply");
    if let Some(place) = table.find_alive(&reply_key, reply_hash, now)
        && table.peer_key(place) != flow.key
    {
        return Err(PairError::Conflict);
    }
    if let Some(place) = table.find(&flow.key, flow_hash) {
        table.replace(place, now);
    }
    let place = table.make_room(flow_hash, None, now).ok_or(PairError::Full)?;
    table.write(place, flow);
    let Some(place) = table.make_room(reply_hash, Some(&flow.key), now) else {
        // The first entry may have been moved meanwhile.
        let place = table.find(&flow.key, flow_hash).expect("the entry just written is not evicted");
        table.clear(place);
        return Err(PairError::Full);
    };
    let reply = Entry { key: reply_key, state: reply_state, peer: Some(flow.key), ..*flow };
    table.write(place, &reply);
    Ok(())
}

/// What a flow of the table looks like from outside; `place` is the client's side.
pub(super) fn view<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    now: Now,
) -> Option<FlowView> {
    let reply = table.peer_key(place);
    let kind = FlowKind::Nat {
        endpoint: EndpointId::from_raw(reply.owner),
        source: addr_of(reply.addr),
        source_port: (reply.tag >> 16) as u16,
    };
    super::dsr::view(table, place, now).map(|flow| FlowView { kind, ..flow })
}
