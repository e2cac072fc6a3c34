//! The two entries of a NAT flow in the table of its family: how they are inserted, read, and updated by a packet.
//!
//! Invariant: both entries are created together or not at all, and each contains the key of the other.

use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::limits::SYN_REPEATED_MS;
use tidegate_spec::now::Now;

use super::hits::{NatHit, ReplyHit};
use crate::flow_copies::COPIED_IDLE_MIN_MS;
use crate::flow_state::{EvictionClass, Packet, Phase, SideState};
use crate::insert_error::InsertError;
use crate::key::{FlowHash, PackedKey, addr_of};
use crate::new_flow::NewFlow;
use crate::table::{Entry, Position, Table};

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// See [`NatTable::to_copy`](super::NatTable::to_copy); `client` is the position of the client's entry.
    pub(super) fn may_be_copied(
        &self,
        position: Position,
        client: Position,
        packet: Packet,
        now: Now,
    ) -> bool {
        let Some(flow) = self.flow_age(position, now) else { return false };
        flow.status.eviction_class == EvictionClass::Established
            && !flow.expired()
            && flow.status.timeout_ms >= COPIED_IDLE_MIN_MS
            && packet.is_plain()
            && self.is_steady(position, packet)
            && self.stream(client).is_none()
            && self.splice(client).is_none()
    }

    #[inline]
    pub(super) fn nat_hit(&self, position: Position, reopened: bool) -> NatHit {
        let to = self.peer_key(position);
        NatHit {
            backend: BackendId::from_raw(self.value(position)),
            source: addr_of(to.addr),
            source_port: (to.tag >> 16) as u16,
            phase: self.phase(position),
            reopened,
            repeated: false,
            adopted: false,
        }
    }

    #[inline]
    pub(super) fn reply_hit(&self, position: Position) -> ReplyHit {
        let flow = self.peer_key(position);
        ReplyHit {
            service: ServiceId::from_raw(flow.owner),
            client: addr_of(flow.addr),
            client_port: (flow.tag >> 16) as u16,
            backend: BackendId::from_raw(self.value(position)),
            phase: self.phase(position),
        }
    }

    #[inline]
    pub(super) fn record_nat(&mut self, position: Position, packet: Packet, now: Now) -> Option<NatHit> {
        let position = self.alive(position, now)?;
        // Only a SYN on a known flow, which is rare, needs the state of the server's side.
        let peer = if packet.is_opening() { self.peer(position) } else { None };
        let mut repeated = false;
        let adopted = peer.is_some_and(|peer| self.is_untouched(position) && self.is_untouched(peer));
        let reopened = match peer {
            // A SYN begins a new connection if the server or both sides have ended the old one.
            Some(peer) => {
                repeated = self.awaits_answer(position, peer)
                    && self.flow_age(position, now).is_some_and(|flow| flow.idle_ms >= SYN_REPEATED_MS);
                let ended = self
                    .state(peer)
                    .is_some_and(|server| matches!(server.phase(), Phase::Closing | Phase::Closed));
                ended || self.flow_age(position, now)?.status.is_over()
            }
            None => false,
        };
        if let (true, Some(peer)) = (reopened, peer) {
            self.touch(peer, SideState::silent(packet), now);
            self.touch(position, SideState::first(packet), now);
        } else {
            let state = self.state(position)?.next(packet);
            self.touch(position, state, now);
            self.set_both(position, packet, now);
        }
        Some(NatHit { repeated, adopted, ..self.nat_hit(position, reopened) })
    }

    /// Whether the client has sent only SYNs, and the server nothing.
    #[inline]
    pub(super) fn awaits_answer(&self, position: Position, peer: Position) -> bool {
        [position, peer].iter().all(|&side| self.state(side) == Some(SideState::TcpOpening))
    }

    /// Updates the other side as well, after an SCTP packet that determines the state of both.
    #[inline]
    pub(super) fn set_both(&mut self, position: Position, packet: Packet, now: Now) {
        if let Some(state) = packet.state_of_both()
            && let Some(peer) = self.peer(position)
        {
            self.touch(peer, state, now);
        }
    }

    /// See [`NatTable::insert_pair`](super::NatTable::insert_pair). Without `is_known`, neither key is in the
    /// table.
    pub(super) fn insert_pair(
        &mut self,
        flow: &NewFlow<PackedKey<A>>,
        reply: &PackedKey<A>,
        reply_hash: FlowHash,
        is_known: bool,
    ) -> Result<(), InsertError> {
        let &NewFlow { key, hash, now, .. } = flow;
        debug_assert!(
            is_known || self.find(&key, hash).is_none() && self.find(reply, reply_hash).is_none(),
            "no key is in the table twice"
        );
        if is_known
            && let Some(position) = self.find_alive(reply, reply_hash, now)
            && self.peer_key(position) != key
        {
            return Err(InsertError::Conflict);
        }
        if is_known && let Some(position) = self.find(&key, hash) {
            self.replace(position, now);
        }
        let [flow, reply] = entries(flow, reply);
        let position = self.admit(&key, hash, now)?;
        self.write(position, &flow);
        self.forget_streams(position);
        let Some(position) = self.allocate(&key, reply_hash, now) else {
            self.clear_moved(&key, hash);
            return Err(InsertError::Full);
        };
        self.write(position, &reply);
        Ok(())
    }

    /// Creates a flow that a look-up has not found. Returns false, and changes no flow, if another flow has its reply
    /// key or a flow that has not expired would have to be evicted.
    #[inline(always)]
    pub(crate) fn create_pair(
        &mut self,
        flow: &NewFlow<PackedKey<A>>,
        reply: &PackedKey<A>,
        reply_hash: FlowHash,
    ) -> bool {
        debug_assert!(self.find(&flow.key, flow.hash).is_none(), "no key is in the table twice");
        if self.live + 1 >= self.bound || self.find(reply, reply_hash).is_some() {
            return false;
        }
        let &NewFlow { key, hash, now, .. } = flow;
        let Some(position) = self.free_position(hash, now) else { return false };
        let [flow, reply] = entries(flow, reply);
        self.write(position, &flow);
        self.forget_streams(position);
        let Some(reply_position) = self.free_position(reply_hash, now) else {
            self.clear_moved(&key, hash);
            return false;
        };
        self.write(reply_position, &reply);
        true
    }
}

/// The two entries of a new flow.
#[inline(always)]
fn entries<const A: usize>(flow: &NewFlow<PackedKey<A>>, reply: &PackedKey<A>) -> [Entry<A>; 2] {
    let client = Entry::first(flow, Some(*reply));
    [client, Entry { key: *reply, state: SideState::silent(flow.packet), peer: Some(flow.key), ..client }]
}
