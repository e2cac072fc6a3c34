//! The two entries of one NAT flow in the table of its family: how they are inserted, how a packet changes them, and
//! what they say.
//!
//! Invariant: both entries are created together or not at all, and each names the other.

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits::SYN_REPEATED_MS;
use tidegate_spec::now::Now;

use super::hits::{NatHit, ReplyHit};
use crate::eviction::AdmitError;
use crate::flow_state::{EvictionClass, IdleTimeout, Packet, Phase, State};
use crate::insert_error::PairError;
use crate::key::{FlowHash, PackedKey, addr_of};
use crate::table::{Entry, Place, Table};
use crate::view::{FlowKind, FlowView};

/// See [`NatTable::to_copy`]; `client` is the place of the client's side.
pub(super) fn may_be_copied<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    client: Place,
    packet: Packet,
    idle_min_ms: u32,
    now: Now,
) -> bool {
    let Some(flow) = table.flow_age(place, now) else { return false };
    flow.status.eviction_class == EvictionClass::Established
        && !flow.expired()
        && flow.status.timeout_ms >= idle_min_ms
        && packet.is_plain()
        && table.is_steady(place, packet)
        && table.stream(client).is_none()
        && table.splice(client).is_none()
}

#[inline]
pub(super) fn hit<const A: usize, const W: usize, const K: usize, const B: usize>(
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
        repeated: false,
        adopted: false,
    }
}

#[inline]
pub(super) fn reply_hit<const A: usize, const W: usize, const K: usize, const B: usize>(
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
pub(super) fn note<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    packet: Packet,
    now: Now,
) -> Option<NatHit> {
    let place = table.alive(place, now)?;
    // Only a SYN needs the state of the server's side, and most SYNs have a key that is not known.
    let peer = if packet.is_opening() { table.peer(place) } else { None };
    let mut repeated = false;
    let adopted = peer.is_some_and(|peer| table.is_untouched(place) && table.is_untouched(peer));
    let reopened = match peer {
        // The server has ended the connection and the client's SYN confirms that, or both sides had ended it.
        Some(peer) => {
            repeated = awaits_answer(table, place, peer)
                && table.flow_age(place, now).is_some_and(|flow| flow.idle_ms >= SYN_REPEATED_MS);
            let ended = table
                .state(peer)
                .is_some_and(|server| matches!(server.phase(), Phase::Closing | Phase::Closed));
            ended || table.flow_age(place, now)?.status.is_over()
        }
        None => false,
    };
    if let (true, Some(peer)) = (reopened, peer) {
        table.touch(peer, State::silent(packet), now);
        table.touch(place, State::first(packet), now);
    } else {
        let state = table.state(place)?.next(packet);
        table.touch(place, state, now);
        set_both(table, place, packet, now);
    }
    Some(NatHit { repeated, adopted, ..hit(table, place, reopened) })
}

/// Whether the client has sent only SYNs, and the server nothing.
#[inline]
pub(super) fn awaits_answer<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    peer: Place,
) -> bool {
    [place, peer].iter().all(|&side| table.state(side) == Some(State::TcpOpening))
}

/// Gives the other side its state too, after a packet of SCTP that decides for both.
#[inline]
pub(super) fn set_both<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    packet: Packet,
    now: Now,
) {
    if let Some(state) = packet.state_of_both()
        && let Some(peer) = table.peer(place)
    {
        table.touch(peer, state, now);
    }
}

pub(super) fn insert_pair<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    flow: &Entry<A>,
    (flow_hash, is_known): (FlowHash, bool),
    reply_hash: FlowHash,
    reply_state: State,
    now: Now,
) -> Result<(), PairError> {
    let reply_key = flow.peer.expect("a flow of a pair names its reply");
    debug_assert!(
        is_known
            || table.find(&flow.key, flow_hash).is_none() && table.find(&reply_key, reply_hash).is_none(),
        "no key is in the table twice"
    );
    if is_known
        && let Some(place) = table.find_alive(&reply_key, reply_hash, now)
        && table.peer_key(place) != flow.key
    {
        return Err(PairError::Conflict);
    }
    if is_known && let Some(place) = table.find(&flow.key, flow_hash) {
        table.replace(place, now);
    }
    let place = table.admit(&flow.key, flow_hash, now).map_err(|error| match error {
        AdmitError::Full => PairError::Full,
        AdmitError::Share => PairError::Share,
    })?;
    table.write(place, flow);
    table.forget_streams(place);
    let Some(place) = table.allocate(&flow.key, reply_hash, now) else {
        // The first entry may have been moved by the second insertion.
        let place = table.find(&flow.key, flow_hash).expect("the entry just written is not evicted");
        table.clear(place);
        return Err(PairError::Full);
    };
    let reply = Entry { key: reply_key, state: reply_state, peer: Some(flow.key), ..*flow };
    table.write(place, &reply);
    Ok(())
}

/// Creates a flow whose first packet is `packet` and that a look-up has not found, if no other flow has its reply key
/// and nothing has to be evicted for it. Returns false, and changes nothing, if not.
#[inline(always)]
pub(crate) fn create<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    (key, hash): (PackedKey<A>, FlowHash),
    (reply_key, reply_hash): (PackedKey<A>, FlowHash),
    (backend, packet): (BackendId, Packet),
    idle: IdleTimeout,
    now: Now,
) -> bool {
    debug_assert!(table.find(&key, hash).is_none(), "no key is in the table twice");
    if table.find(&reply_key, reply_hash).is_some() {
        return false;
    }
    let Some([place, reply_place]) = table.free_for_pair(hash, reply_hash) else { return false };
    let flow = Entry::first(key, Some(reply_key), backend, packet, idle, now);
    table.write(place, &flow);
    table.forget_streams(place);
    let reply = Entry { key: reply_key, state: State::silent(packet), peer: Some(key), ..flow };
    table.write(reply_place, &reply);
    true
}

/// The public view of a flow of the table. `place` is the client's side.
pub(crate) fn view<const A: usize, const W: usize, const K: usize, const B: usize>(
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
    crate::dsr::view(table, place, now).map(|flow| FlowView { kind, ..flow })
}
