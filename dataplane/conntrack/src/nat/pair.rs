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

/// See [`NatTable::to_copy`]; `client` is the position of the client's entry.
pub(super) fn may_be_copied<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    position: Position,
    client: Position,
    packet: Packet,
    now: Now,
) -> bool {
    let Some(flow) = table.flow_age(position, now) else { return false };
    flow.status.eviction_class == EvictionClass::Established
        && !flow.expired()
        && flow.status.timeout_ms >= COPIED_IDLE_MIN_MS
        && packet.is_plain()
        && table.is_steady(position, packet)
        && table.stream(client).is_none()
        && table.splice(client).is_none()
}

#[inline]
pub(super) fn hit<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    position: Position,
    reopened: bool,
) -> NatHit {
    let to = table.peer_key(position);
    NatHit {
        backend: BackendId::from_raw(table.value(position)),
        source: addr_of(to.addr),
        source_port: (to.tag >> 16) as u16,
        phase: table.phase(position),
        reopened,
        repeated: false,
        adopted: false,
    }
}

#[inline]
pub(super) fn reply_hit<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    position: Position,
) -> ReplyHit {
    let flow = table.peer_key(position);
    ReplyHit {
        service: ServiceId::from_raw(flow.owner),
        client: addr_of(flow.addr),
        client_port: (flow.tag >> 16) as u16,
        backend: BackendId::from_raw(table.value(position)),
        phase: table.phase(position),
    }
}

#[inline]
pub(super) fn record_packet<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    position: Position,
    packet: Packet,
    now: Now,
) -> Option<NatHit> {
    let position = table.alive(position, now)?;
    // Only a SYN on a known flow, which is rare, needs the state of the server's side.
    let peer = if packet.is_opening() { table.peer(position) } else { None };
    let mut repeated = false;
    let adopted = peer.is_some_and(|peer| table.is_untouched(position) && table.is_untouched(peer));
    let reopened = match peer {
        // A SYN begins a new connection if the server or both sides have ended the old one.
        Some(peer) => {
            repeated = awaits_answer(table, position, peer)
                && table.flow_age(position, now).is_some_and(|flow| flow.idle_ms >= SYN_REPEATED_MS);
            let ended = table
                .state(peer)
                .is_some_and(|server| matches!(server.phase(), Phase::Closing | Phase::Closed));
            ended || table.flow_age(position, now)?.status.is_over()
        }
        None => false,
    };
    if let (true, Some(peer)) = (reopened, peer) {
        table.touch(peer, SideState::silent(packet), now);
        table.touch(position, SideState::first(packet), now);
    } else {
        let state = table.state(position)?.next(packet);
        table.touch(position, state, now);
        set_both(table, position, packet, now);
    }
    Some(NatHit { repeated, adopted, ..hit(table, position, reopened) })
}

/// Whether the client has sent only SYNs, and the server nothing.
#[inline]
pub(super) fn awaits_answer<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    position: Position,
    peer: Position,
) -> bool {
    [position, peer].iter().all(|&side| table.state(side) == Some(SideState::TcpOpening))
}

/// Updates the other side as well, after an SCTP packet that determines the state of both.
#[inline]
pub(super) fn set_both<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    position: Position,
    packet: Packet,
    now: Now,
) {
    if let Some(state) = packet.state_of_both()
        && let Some(peer) = table.peer(position)
    {
        table.touch(peer, state, now);
    }
}

/// See [`NatTable::insert_pair`](super::NatTable::insert_pair). Without `is_known`, neither key is in the table.
pub(super) fn insert_pair<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    flow: &NewFlow<PackedKey<A>>,
    reply: &PackedKey<A>,
    reply_hash: FlowHash,
    is_known: bool,
) -> Result<(), InsertError> {
    let &NewFlow { key, hash, now, .. } = flow;
    debug_assert!(
        is_known || table.find(&key, hash).is_none() && table.find(reply, reply_hash).is_none(),
        "no key is in the table twice"
    );
    if is_known
        && let Some(position) = table.find_alive(reply, reply_hash, now)
        && table.peer_key(position) != key
    {
        return Err(InsertError::Conflict);
    }
    if is_known && let Some(position) = table.find(&key, hash) {
        table.replace(position, now);
    }
    let [flow, reply] = entries(flow, reply);
    let position = table.admit(&key, hash, now)?;
    table.write(position, &flow);
    table.forget_streams(position);
    let Some(position) = table.allocate(&key, reply_hash, now) else {
        // The second insertion may have moved the first entry.
        let position = table.find(&key, hash).expect("the entry just written is not evicted");
        table.clear(position);
        return Err(InsertError::Full);
    };
    table.write(position, &reply);
    Ok(())
}

/// Creates a flow that a look-up has not found. Returns false, and changes nothing, if another flow has its reply key
/// or a flow would have to be evicted.
#[inline(always)]
pub(crate) fn create<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    flow: &NewFlow<PackedKey<A>>,
    reply: &PackedKey<A>,
    reply_hash: FlowHash,
) -> bool {
    debug_assert!(table.find(&flow.key, flow.hash).is_none(), "no key is in the table twice");
    if table.find(reply, reply_hash).is_some() {
        return false;
    }
    let Some([position, reply_position]) = table.free_for_pair(flow.hash, reply_hash) else { return false };
    let [flow, reply] = entries(flow, reply);
    table.write(position, &flow);
    table.forget_streams(position);
    table.write(reply_position, &reply);
    true
}

/// The two entries of a new flow.
#[inline(always)]
fn entries<const A: usize>(flow: &NewFlow<PackedKey<A>>, reply: &PackedKey<A>) -> [Entry<A>; 2] {
    let client = Entry::first(flow, Some(*reply));
    [client, Entry { key: *reply, state: SideState::silent(flow.packet), peer: Some(flow.key), ..client }]
}
