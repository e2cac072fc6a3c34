//! Imports flows of other gateways and of earlier processes into the tables, and removes flows of other gateways that
//! have had no packet on this one.
//!
//! Invariant: a flow of another gateway evicts no other flow. It replaces a flow that has had a packet on this gateway
//! only if that is an earlier connection of the same client port. A flow of an earlier process is admitted like a new
//! flow, and replaces none with one of its keys.

use tidegate_spec::ids::EndpointId;
use tidegate_spec::limits::{ADOPTED_FILL_PERCENT, ADOPTED_OPENING_FILL_PERCENT};
use tidegate_spec::now::Now;

use super::FlowTables;
use super::dsr::by_family;
use super::eviction_reason::EvictionReason;
use super::flow_record::LocalFlow;
use super::flow_state::{EvictionClass, IdleTimeout, SideState};
use super::key::{FlowHash, FlowKey, PackedKey};
use super::table::{Entry, Position, Table};

/// Of two connections of the same client port, one is newer if its last packet is this much later. This is longer than
/// the delay of a message.
const NEWER_BY_MS: u32 = 1_000;

/// Who exported a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An earlier process of this gateway.
    EarlierProcess,
    /// Another gateway.
    Peer,
}

/// The result of importing a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// The flow was added to the table.
    New,
    /// The flow was already in the table, or another flow has its key if it comes from an earlier process.
    Known,
    /// Its key belongs to another flow, which has had packets on this gateway.
    Conflict,
    /// Its key belongs to a newer connection of the same client port, which has had packets on this gateway. The
    /// connection of the other gateway is over.
    Outdated,
    /// The table, or the share of its service, is too full.
    Full,
}

/// The entries of a flow to import.
struct Import<const A: usize> {
    client: Entry<A>,
    hash: FlowHash,
    /// The entry for replies of a NAT flow, and the hash of its key.
    reply: Option<(Entry<A>, FlowHash)>,
    idle_ms: u32,
    from: Origin,
    now: Now,
}

impl FlowTables {
    /// Imports a flow with the ids of this process. If the flow comes from another gateway and is already in the table,
    /// imports its state. `endpoint` sends the replies of a NAT flow.
    ///
    /// # Panics
    /// If the keys of both sides have different families.
    pub fn import(
        &mut self,
        flow: &LocalFlow,
        endpoint: EndpointId,
        idle: IdleTimeout,
        from: Origin,
        now: Now,
    ) -> Imported {
        let (key, hash) = (&flow.name, self.hash(&flow.name));
        let (idle_ms, seen) = (flow.idle_ms, now.millis().wrapping_sub(flow.idle_ms));
        let (state, value) = (flow.client, flow.backend.raw());
        let Some(translation) = &flow.translation else {
            let this = &mut self.dsr;
            return by_family!(mut this, key, |table, packed| {
                let client = Entry { key: packed, state, idle, seen, value, peer: None };
                table.import(&Import { client, hash, reply: None, idle_ms, from, now })
            });
        };
        let local = FlowKey::reply(endpoint, translation.local.addr, translation.local.port);
        assert_eq!(key.addr().is_v4(), local.addr().is_v4(), "NAT stays within a family");
        let local_hash = self.hash(&local);
        let this = &mut self.nat;
        let (imported, is_untouched) = by_family!(mut this, key, |table, packed| {
            let peer = PackedKey::from(&local);
            let client = Entry { key: packed, state, idle, seen, value, peer: Some(peer) };
            let reply = Entry { key: peer, state: translation.server, peer: Some(packed), ..client };
            let reply = Some((reply, local_hash));
            let imported = table.import(&Import { client, hash, reply, idle_ms, from, now });
            let position = table.find(&packed, hash);
            (imported, position.is_some_and(|position| table.is_untouched(position)))
        });
        // A flow that has had packets on this gateway has newer sequence numbers.
        let may_replace = imported == Imported::Known && from == Origin::Peer && is_untouched;
        if imported == Imported::New || may_replace {
            let streams = translation.stream.into_iter();
            streams.for_each(|stream| self.nat.set_stream(key.service(), key, hash, stream));
            let splices = translation.splice.into_iter();
            splices.for_each(|splice| self.nat.set_splice(key.service(), key, hash, splice));
        }
        imported
    }

    /// Removes the flow with this client's key if it has had no packet on this gateway, because the gateway that sent
    /// it has removed it. Returns whether the flow was removed.
    pub fn remove_adopted(&mut self, key: &FlowKey, is_dsr: bool) -> bool {
        let hash = self.hash(key);
        let (dsr, nat) = (&mut self.dsr, &mut self.nat);
        if is_dsr {
            by_family!(mut dsr, key, |table, packed| table.give_up(&packed, hash))
        } else {
            by_family!(mut nat, key, |table, packed| table.give_up(&packed, hash))
        }
    }
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    fn import(&mut self, new: &Import<A>) -> Imported {
        self.try_import(new).map_or_else(|refused| refused, |()| Imported::New)
    }

    /// # Errors
    /// The result, unless it is [`Imported::New`].
    fn try_import(&mut self, new: &Import<A>) -> Result<(), Imported> {
        let &Import { client, hash, reply, from, now, .. } = new;
        let known = self.find(&client.key, hash);
        let known_reply = reply.and_then(|(reply, hash)| self.find(&reply.key, hash));
        if from == Origin::EarlierProcess && known.or(known_reply).is_some() {
            return Err(Imported::Known);
        }
        if let Some(position) = known {
            let is_same_pair = client.peer.is_none_or(|peer| self.peer_key(position) == peer);
            if is_same_pair && self.value(position) == client.value {
                self.merge(position, &client, now);
                if let (Some((reply, _)), Some(peer)) = (reply, self.peer(position)) {
                    self.merge(peer, &reply, now);
                }
                return Err(Imported::Known);
            }
            self.remove_replaceable(position, new)
                .or_else(|refused| self.resolve_conflict(position, new, refused))?;
        }
        if let Some((reply, hash)) = &reply
            && let Some(position) = self.find(&reply.key, *hash)
        {
            self.remove_replaceable(position, new)?;
        }
        let position = match from {
            Origin::EarlierProcess => self.admit(&client.key, hash, now).ok(),
            Origin::Peer if self.is_too_full_for(&client) => None,
            Origin::Peer => self.free_position(hash, now),
        };
        let position = position.ok_or(Imported::Full)?;
        self.write(position, &client);
        let mut entries = [Some(position), None];
        if let Some((reply, reply_hash)) = &reply {
            self.forget_streams(position);
            let free = match from {
                Origin::EarlierProcess => self.allocate(&client.key, *reply_hash, now),
                Origin::Peer => self.free_position(*reply_hash, now),
            };
            // The search may have moved the first entry. It may also have removed it: without the other one, an entry
            // that has ended expires sooner.
            let position = self.find(&client.key, hash);
            let (Some(_), Some(free)) = (position, free) else {
                position.into_iter().for_each(|position| self.clear(position, EvictionReason::Removed));
                return Err(Imported::Full);
            };
            self.write(free, reply);
            entries = [position, Some(free)];
        }
        if from == Origin::Peer {
            entries.into_iter().flatten().for_each(|position| self.mark_adopted(position));
        }
        Ok(())
    }

    /// Whether the table, or the share of its service, is too full for a flow of another gateway.
    fn is_too_full_for(&self, client: &Entry<A>) -> bool {
        let percent =
            if client.state.is_opening() { ADOPTED_OPENING_FILL_PERCENT } else { ADOPTED_FILL_PERCENT };
        self.live * 100 >= self.bound * percent || self.is_over_share(client.key.owner)
    }

    /// Merges the state that another gateway has for this side of a flow. If the entry has had packets on this gateway,
    /// only these changes are merged: a later last packet, becoming established, and being ended by this side.
    fn merge(&mut self, position: Position, new: &Entry<A>, now: Now) {
        let Some(own) = self.state(position) else { return };
        let (state, idle_ms) = (new.state, now.millis().wrapping_sub(new.seen));
        let is_newer = idle_ms < self.own_idle_ms(position, now);
        if self.is_untouched(position) {
            if is_newer || state != own {
                self.adopt(position, state, if is_newer { new.seen } else { self.seen(position) });
            }
        } else if is_newer {
            let state = if own.is_opening() || state.is_ended() { state } else { own };
            self.touch_at(position, state, new.seen);
        } else if own == SideState::TcpStray && state == SideState::TcpEstablished {
            // The other gateway has seen how the connection began.
            self.touch_at(position, state, self.seen(position));
        }
    }

    /// Removes a flow that a flow of another gateway may replace: one that is over, or an adopted one that has had no
    /// packet on this gateway and whose last packet is not later than that of the new flow.
    fn remove_replaceable(&mut self, position: Position, new: &Import<A>) -> Result<(), Imported> {
        let own = self.flow_age(position, new.now);
        let is_over = own.is_none_or(|own| own.expired() || own.status.is_over());
        let is_older = own.is_none_or(|own| own.idle_ms >= new.idle_ms);
        if is_over || self.is_flow_untouched(position) && is_older {
            self.remove(position, EvictionReason::Removed);
            Ok(())
        } else {
            Err(Imported::Conflict)
        }
    }

    /// Decides between two connections of the same client port with different backends. The one at `position` has had
    /// packets on this gateway. The one with the later last packet is current, if it is established.
    fn resolve_conflict(
        &mut self,
        position: Position,
        new: &Import<A>,
        refused: Imported,
    ) -> Result<(), Imported> {
        let Some(own) = self.flow_age(position, new.now) else { return Err(refused) };
        if new.client.state.is_established() && own.idle_ms >= new.idle_ms.saturating_add(NEWER_BY_MS) {
            self.remove(position, EvictionReason::Removed);
            return Ok(());
        }
        let is_newer = own.status.eviction_class == EvictionClass::Established
            && new.idle_ms >= own.idle_ms.saturating_add(NEWER_BY_MS);
        Err(if is_newer { Imported::Outdated } else { refused })
    }

    fn give_up(&mut self, key: &PackedKey<A>, hash: FlowHash) -> bool {
        let position = self.find(key, hash).filter(|&position| self.is_flow_untouched(position));
        position.inspect(|&position| self.remove(position, EvictionReason::Removed)).is_some()
    }

    /// Whether the flow was received from another gateway and neither side has had a packet on this one.
    fn is_flow_untouched(&self, position: Position) -> bool {
        self.is_untouched(position) && self.peer(position).is_none_or(|peer| self.is_untouched(peer))
    }
}
