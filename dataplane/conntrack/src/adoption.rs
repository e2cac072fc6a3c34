//! Imports the flows of other gateways into the tables, and removes those that have had no packet on this gateway.
//!
//! Invariant: adopting a flow evicts no other flow. It replaces a flow that has had a packet on this gateway only if
//! that is an earlier connection of the same client port.

use tidegate_spec::limits::{ADOPTED_FILL_PERCENT, ADOPTED_OPENING_FILL_PERCENT};
use tidegate_spec::now::Now;

use super::dsr::by_family;
use super::eviction_reason::EvictionReason;
use super::flow_state::{EvictionClass, IdleTimeout, State};
use super::key::{FlowHash, FlowKey, PackedKey};
use super::shared_flow::{SharedFlow, SharedReply};
use super::table::{Entry, Position, Table};
use super::{DsrTable, FlowTables, NatTable};

/// Of two connections of the same client port, one is newer if its last packet is this much later. This is longer than
/// the delay of a message.
const NEWER_BY_MS: u32 = 1_000;

/// The key, hash and state of the other side of a pair.
type OtherSide<const A: usize> = Option<(PackedKey<A>, FlowHash, State)>;

/// The result of importing a flow of another gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// The flow was added to the table.
    New,
    /// The flow was already in the table.
    Known,
    /// Its key belongs to another flow, which has had packets on this gateway.
    Conflict,
    /// Its key belongs to a newer connection of the same client port, which has had packets on this gateway. The
    /// connection of the other gateway is over.
    Outdated,
    /// The table, or the share of its service, is too full for flows of others.
    Full,
}

impl FlowTables {
    /// Imports a flow of another gateway, or its state if the table already contains the flow.
    ///
    /// # Panics
    /// If the keys of both sides have different families.
    pub fn adopt(&mut self, flow: &SharedFlow, idle: IdleTimeout, now: Now) -> Adoption {
        let hash = self.hash(&flow.key);
        match &flow.reply {
            None => self.dsr.adopt(flow, hash, idle, now),
            Some(reply) => {
                let reply_hash = self.hash(&reply.key);
                self.nat.adopt(flow, hash, reply, reply_hash, idle, now)
            }
        }
    }

    /// Removes the flow with this client's key if it has had no packet on this gateway, because the gateway that sent
    /// it has removed it. Returns whether the flow was removed.
    pub fn remove_adopted(&mut self, key: &FlowKey, is_dsr: bool) -> bool {
        let hash = self.hash(key);
        if is_dsr {
            let this = &mut self.dsr;
            by_family!(mut this, key, |table, packed| give_up(table, &packed, hash))
        } else {
            let this = &mut self.nat;
            by_family!(mut this, key, |table, packed| give_up(table, &packed, hash))
        }
    }
}

impl DsrTable {
    fn adopt(&mut self, flow: &SharedFlow, hash: FlowHash, idle: IdleTimeout, now: Now) -> Adoption {
        let key = &flow.key;
        by_family!(mut self, key, |table, packed| {
            adopt(table, packed, hash, None, flow, idle, now).unwrap_or_else(|adoption| adoption)
        })
    }
}

impl NatTable {
    fn adopt(
        &mut self,
        flow: &SharedFlow,
        hash: FlowHash,
        reply: &SharedReply,
        reply_hash: FlowHash,
        idle: IdleTimeout,
        now: Now,
    ) -> Adoption {
        let key = &flow.key;
        assert_eq!(key.addr().is_v4(), reply.key.addr().is_v4(), "NAT stays within a family");
        let adoption = by_family!(mut self, key, |table, packed| {
            let other = Some((PackedKey::from(&reply.key), reply_hash, reply.state.0));
            adopt(table, packed, hash, other, flow, idle, now)
        });
        let adoption = match adoption {
            Ok(adoption) => adoption,
            Err(refused) => return refused,
        };
        // A flow that has had packets on this gateway has newer sequence numbers.
        let untouched = by_family!(self, key, |table, packed| {
            table.find(&packed, hash).is_some_and(|position| table.is_untouched(position))
        });
        if let Some(stream) = reply.stream.filter(|_| untouched) {
            self.set_stream(key.service(), key, hash, stream);
        }
        if let Some(splice) = reply.splice.filter(|_| untouched) {
            self.set_splice(key.service(), key, hash, splice);
        }
        adoption
    }
}

fn adopt<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    key: PackedKey<A>,
    hash: FlowHash,
    other: OtherSide<A>,
    flow: &SharedFlow,
    idle: IdleTimeout,
    now: Now,
) -> Result<Adoption, Adoption> {
    let seen = now.millis().wrapping_sub(flow.idle_ms);
    if let Some(position) = table.find(&key, hash) {
        let same_peer = other.is_none_or(|(reply, ..)| table.peer_key(position) == reply);
        if same_peer && table.value(position) == flow.backend.raw() {
            merge(table, position, flow.client.0, seen, now);
            if let (Some((.., state)), Some(peer)) = (other, table.peer(position)) {
                merge(table, peer, state, seen, now);
            }
            return Ok(Adoption::Known);
        }
        remove_replaceable(table, position, flow, now)
            .or_else(|refused| resolve_conflict(table, position, flow, refused, now))?;
    }
    if let Some((reply, reply_hash, _)) = other
        && let Some(position) = table.find(&reply, reply_hash)
    {
        remove_replaceable(table, position, flow, now)?;
    }
    let percent =
        if flow.client.0.is_opening() { ADOPTED_OPENING_FILL_PERCENT } else { ADOPTED_FILL_PERCENT };
    if table.live * 100 >= table.bound * percent || table.is_over_share(key.owner) {
        return Err(Adoption::Full);
    }
    let entry = Entry {
        key,
        state: flow.client.0,
        idle,
        seen,
        value: flow.backend.raw(),
        peer: other.map(|(reply, ..)| reply),
    };
    let position = table.free_position(hash, now).ok_or(Adoption::Full)?;
    table.write(position, &entry);
    if Table::<A, W, K, B>::PAIRED {
        table.forget_streams(position);
    }
    if let Some((reply, reply_hash, state)) = other {
        let Some(position) = table.free_position(reply_hash, now) else {
            // The search may have moved the first entry.
            let position = table.find(&key, hash).expect("the entry just written is not evicted");
            table.clear(position);
            return Err(Adoption::Full);
        };
        table.write(position, &Entry { key: reply, state, peer: Some(key), ..entry });
        table.mark_adopted(position);
    }
    let position = table.find(&key, hash).expect("the entry just written is not evicted");
    table.mark_adopted(position);
    Ok(Adoption::New)
}

/// Merges the state that another gateway has for this side of a flow. If the entry has had packets on this gateway,
/// only these changes are merged: a later last packet, becoming established, and being ended by this side.
fn merge<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    position: Position,
    state: State,
    seen: u32,
    now: Now,
) {
    let Some(own) = table.state(position) else { return };
    let idle_ms = now.millis().wrapping_sub(seen);
    let is_newer = idle_ms < table.own_idle_ms(position, now);
    if table.is_untouched(position) {
        if is_newer || state != own {
            table.adopt(position, state, if is_newer { seen } else { table.seen(position) });
        }
    } else if is_newer {
        let state = if own.is_opening() || state.is_ended() { state } else { own };
        table.touch_at(position, state, seen);
    } else if own == State::TcpStray && state == State::TcpEstablished {
        // The other gateway has seen how the connection began.
        table.touch_at(position, state, table.seen(position));
    }
}

/// Removes a flow that `flow` of another gateway may replace: one that is over, or an adopted one that has had no
/// packet on this gateway and whose last packet is not later than the last packet of `flow`.
fn remove_replaceable<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    position: Position,
    flow: &SharedFlow,
    now: Now,
) -> Result<(), Adoption> {
    let own = table.flow_age(position, now);
    let is_over = own.is_none_or(|own| own.expired() || own.status.is_over());
    let untouched =
        table.is_untouched(position) && table.peer(position).is_none_or(|peer| table.is_untouched(peer));
    let is_older = own.is_none_or(|own| own.idle_ms >= flow.idle_ms);
    if is_over || untouched && is_older {
        table.remove(position, EvictionReason::Removed);
        Ok(())
    } else {
        Err(Adoption::Conflict)
    }
}

/// Decides between two connections of the same client port with different backends. The one at `position` has had
/// packets on this gateway. The one with the later last packet is current, if it is established.
fn resolve_conflict<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    position: Position,
    flow: &SharedFlow,
    refused: Adoption,
    now: Now,
) -> Result<(), Adoption> {
    let Some(own) = table.flow_age(position, now) else { return Err(refused) };
    if flow.client.is_established() && own.idle_ms >= flow.idle_ms.saturating_add(NEWER_BY_MS) {
        table.remove(position, EvictionReason::Removed);
        return Ok(());
    }
    let is_newer = own.status.eviction_class == EvictionClass::Established
        && flow.idle_ms >= own.idle_ms.saturating_add(NEWER_BY_MS);
    Err(if is_newer { Adoption::Outdated } else { refused })
}

fn give_up<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    key: &PackedKey<A>,
    hash: FlowHash,
) -> bool {
    let Some(position) = table.find(key, hash) else { return false };
    let peer = table.peer(position);
    let untouched = table.is_untouched(position) && peer.is_none_or(|peer| table.is_untouched(peer));
    if untouched {
        table.remove(position, EvictionReason::Removed);
    }
    untouched
}
