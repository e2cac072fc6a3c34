//! Flows that pass through the gateway in both directions: `nat` and `fullnat`.
//!
//! Each has two entries, client -> VIP and endpoint -> gateway, of 32 bytes for IPv4 (two in a cache line: 96 bytes
//! of table per flow at the bound) and 64 bytes for IPv6 (two in a pair of lines: 192 bytes). Each entry contains the
//! key of the other, so a packet of either direction touches only its own line. Ageing, eviction and a SYN on a known
//! flow read both. NAT does not cross families.
//!
//! Invariant: the two entries of a flow are created and removed together, and each names the other.

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits::{DOUBTFUL_IDLE_MIN_MS, SERVICES_MAX, SYN_REPEATED_MS};
use tidegate_spec::now::Now;
use tidegate_wire::{Addr, Family};

use super::answer::{First, PairError};
use super::dsr::by_family;
use super::eviction::{EvictionReason, FlowCounters};
use super::flow_state::{IdleTimeout, Packet, Phase, State, Worth};
use super::key::{FlowHash, FlowHasher, FlowKey, PackedKey, addr_of};
use super::memory::{TableKind, TableMemory};
use super::room::NoRoom;
use super::splice::Splice;
use super::stream::Stream;
use super::table::{Entry, Place, Table};
use super::view::{FlowKind, FlowView};

pub(super) type V4 = Table<1, 8, 2, 16>;
pub(super) type V6 = Table<4, 16, 2, 32>;

/// The flows of both directions, for both families.
#[derive(Debug)]
pub struct NatTable {
    pub(super) v4: V4,
    pub(super) v6: V6,
    /// One bit for each index of a service: its flows may have streams.
    streaming: Box<[u64]>,
}

/// A known flow, seen from its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatHit {
    /// The backend that its packets go to.
    pub backend: BackendId,
    /// The source address to send with: one of the gateway (`fullnat`), or the client's own (`nat`).
    pub source: Addr,
    /// The source port to send with.
    pub source_port: u16,
    /// The phase of the client's side, including this packet.
    pub phase: Phase,
    /// The packet is a SYN and the flow was over: the server had closed or reset it, or both sides had (RFC 9293
    /// section 3.6.1, RFC 6191). Both entries count as opening; the caller may insert another pair over this one. If
    /// only the client sent a FIN or RST, that packet and the SYN may be forged, and the flow stays with its backend.
    pub reopened: bool,
    /// The packet is a SYN that its client repeats, after [`SYN_REPEATED_MS`] or more, and that nobody has answered.
    pub repeated: bool,
    /// The packet is a SYN, and the first one here of a flow that was adopted from another gateway. The caller may insert
    /// another pair over this one.
    pub adopted: bool,
}

/// The state of a reply key that a new flow needs. The variants are in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyKey {
    /// No flow has it.
    Free,
    /// Its flow has expired.
    Expired,
    /// Its flow is closed by both sides, or reset.
    Over,
    /// Its flow is not established, unanswered, and idle for `idle_ms`.
    Opening {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow is not established, but the backend has answered, and it is idle for `idle_ms`.
    Answered {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow was closed or reset by one side only, and is idle for `idle_ms`.
    Doubtful {
        /// Milliseconds since its last packet.
        idle_ms: u32,
    },
    /// Its flow is established.
    Taken,
}

/// A known flow, seen from its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHit {
    /// The service whose VIP and port to send with.
    pub service: ServiceId,
    /// The destination of replies.
    pub client: Addr,
    /// The destination port of replies.
    pub client_port: u16,
    /// The backend that sent the reply.
    pub backend: BackendId,
    /// The phase of the server's side, including this packet.
    pub phase: Phase,
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

    /// Prefetches the first of the key's two buckets, which holds most flows. Call it first, for the whole burst.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey, hash: FlowHash) {
        if key.addr().is_v4() { self.v4.prefetch(hash) } else { self.v6.prefetch(hash) }
    }

    /// Finds the flow of a packet from a client ([`FlowKey::flow`]) and records the packet in it.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> Option<NatHit> {
        by_family!(mut self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            note(table, place, packet, now)
        })
    }

    /// Searches only the first of the key's buckets, where most flows are, and prefetches the second if the flow is
    /// not there. A plain packet of an established flow is recorded. Call it for the whole burst, some work after
    /// [`Self::prefetch`], and then [`Self::lookup`] for the other packets.
    #[inline]
    pub fn lookup_first(&mut self, key: &FlowKey, hash: FlowHash, packet: Packet, now: Now) -> First<NatHit> {
        by_family!(mut self, key, |table, packed| {
            table.see_first(&packed, hash, packet, now).map(|(place, _)| hit(table, place, false))
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
            let place = table.find_second(&packed, hash)?;
            note(table, place, packet, now)
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
            let place = table.find_alive(&packed, hash, now)?;
            let state = table.state(place)?.next(packet);
            table.touch(place, state, now);
            set_both(table, place, packet, now);
            Some(reply_hit(table, place))
        })
    }

    /// [`Self::lookup_first`] for a packet from an endpoint. Call [`Self::lookup_reply`] for the packets that it
    /// leaves.
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

    /// Finds a flow by the client's side and changes nothing.
    #[must_use]
    pub fn peek(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<NatHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash).filter(|&place| !table.is_expired(place, now))?;
            Some(hit(table, place, false))
        })
    }

    /// Finds a flow by the endpoint's side and changes nothing: for ICMP errors from backends.
    #[must_use]
    pub fn peek_reply(&self, key: &FlowKey, hash: FlowHash, now: Now) -> Option<ReplyHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash).filter(|&place| !table.is_expired(place, now))?;
            Some(reply_hit(table, place))
        })
    }

    /// The flow with this key of its client, if another worker may have a copy of it for plain packets: both sides have
    /// established it, no byte is added to it or removed, and its idle timeout is at least `idle_min_ms`.
    #[must_use]
    pub fn to_copy(
        &self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        idle_min_ms: u32,
        now: Now,
    ) -> Option<NatHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            may_be_copied(table, place, place, packet, idle_min_ms, now).then(|| hit(table, place, false))
        })
    }

    /// [`Self::to_copy`] for the key of replies.
    #[must_use]
    pub fn reply_to_copy(
        &self,
        key: &FlowKey,
        hash: FlowHash,
        packet: Packet,
        idle_min_ms: u32,
        now: Now,
    ) -> Option<ReplyHit> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            let client = table.peer(place)?;
            may_be_copied(table, place, client, packet, idle_min_ms, now).then(|| reply_hit(table, place))
        })
    }

    /// Whether the client of this flow has sent only SYNs, or INITs, and the server nothing. The key may be that of
    /// either side.
    #[must_use]
    pub fn awaits_answer(&self, key: &FlowKey, hash: FlowHash, now: Now) -> bool {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash).filter(|&place| !table.is_expired(place, now));
            let sides = place.and_then(|place| Some((place, table.peer(place)?)));
            sides.is_some_and(|(place, peer)| awaits_answer(table, place, peer))
        })
    }

    /// The state of this reply key, which the new flow `of` needs. An earlier entry of the new flow itself does not
    /// count: it is replaced.
    #[must_use]
    pub fn reply_key(&self, key: &FlowKey, hash: FlowHash, of: &FlowKey, now: Now) -> ReplyKey {
        by_family!(self, key, |table, packed| {
            let place =
                table.find(&packed, hash).filter(|&place| table.peer_key(place) != PackedKey::from(of));
            let Some(v) = place.and_then(|place| table.vitality(place, now)) else { return ReplyKey::Free };
            match v.standing.worth {
                _ if v.expired() => ReplyKey::Expired,
                Worth::Closed | Worth::Closing => ReplyKey::Over,
                Worth::Unanswered => ReplyKey::Opening { idle_ms: v.idle_ms },
                Worth::Answered => ReplyKey::Answered { idle_ms: v.idle_ms },
                Worth::Doubtful if v.idle_ms >= DOUBTFUL_IDLE_MIN_MS => {
                    ReplyKey::Doubtful { idle_ms: v.idle_ms }
                }
                Worth::Doubtful | Worth::Established => ReplyKey::Taken,
            }
        })
    }

    /// Removes both entries of the flow that has this reply key, counted as [`EvictionReason::PortReused`].
    pub fn take_reply_key(&mut self, key: &FlowKey, hash: FlowHash) {
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.remove(place, EvictionReason::PortReused);
            }
        });
    }

    /// Inserts a flow that begins with `packet` from the client. `flow` and `reply` are keys with their hashes. An
    /// earlier entry of `flow` is removed first, as is a flow that is over and has the `reply` key.
    ///
    /// # Errors
    /// [`PairError::Conflict`] if another flow has the `reply` key; nothing has changed then. [`PairError::Full`],
    /// counted, if every flow that could be evicted is established and in use, and [`PairError::Share`], counted, if
    /// the service has reached its share of a full table; `flow` is then not in the table.
    ///
    /// # Panics
    /// If the two keys have different families.
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
        self.put_pair(flow, reply, backend, packet, idle, true, now)
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
        flow: (&FlowKey, FlowHash),
        reply: (&FlowKey, FlowHash),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<(), PairError> {
        self.put_pair(flow, reply, backend, packet, idle, false, now)
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "those of its two callers, and which of them it is")]
    fn put_pair(
        &mut self,
        flow: (&FlowKey, FlowHash),
        reply: (&FlowKey, FlowHash),
        backend: BackendId,
        packet: Packet,
        idle: IdleTimeout,
        is_known: bool,
        now: Now,
    ) -> Result<(), PairError> {
        let (key, reply_key) = (flow.0, reply.0);
        assert_eq!(key.addr().is_v4(), reply_key.addr().is_v4(), "NAT stays within a family");
        by_family!(mut self, key, |table, packed| {
            let peer = Some(PackedKey::from(reply_key));
            let entry = Entry::first(packed, peer, backend, packet, idle, now);
            insert_pair(table, &entry, (flow.1, is_known), reply.1, State::silent(packet), now)
        })
    }

    /// Whether any flow has had a stream or a splice. Without one, no flow has anything to look up.
    #[inline]
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.v4.has_streams() | self.v6.has_streams()
    }

    /// Whether a flow of this service may have a stream or a splice, although the service may no longer ask for one.
    #[inline]
    #[must_use]
    pub fn may_stream(&self, service: ServiceId) -> bool {
        let index = service.index();
        self.streaming.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    /// The stream of the flow with this key of its client.
    #[must_use]
    pub fn stream(&self, key: &FlowKey, hash: FlowHash) -> Option<Stream> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            table.stream(place)
        })
    }

    /// Forgets the stream of the flow with this key of its client: its next connection has none.
    pub fn forget_stream(&mut self, key: &FlowKey, hash: FlowHash) {
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.forget_stream(place);
            }
        });
    }

    /// Records the stream of the flow with this key of its client, if the flow is known.
    pub fn set_stream(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, stream: Stream) {
        self.may_stream_from_now_on(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.set_stream(place, stream);
            }
        });
    }

    fn may_stream_from_now_on(&mut self, service: ServiceId) {
        let index = service.index();
        if let Some(bits) = self.streaming.get_mut(index / 64) {
            *bits |= 1 << (index % 64);
        }
    }

    /// The splice of the flow with this key of its client.
    #[must_use]
    pub fn splice(&self, key: &FlowKey, hash: FlowHash) -> Option<Splice> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            table.splice(place)
        })
    }

    /// Records the splice of the flow with this key of its client, if the flow is known.
    pub fn set_splice(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, splice: Splice) {
        self.may_stream_from_now_on(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.set_splice(place, splice);
            }
        });
    }

    /// The entries of flows of this service, in the table of a family, that do not show yet that the flow is
    /// established: two for each client whose backend has not answered, one for each that has not acknowledged the
    /// answer.
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
            let place = table.find(&packed, hash);
            place.inspect(|&place| table.remove(place, EvictionReason::Removed)).is_some()
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

/// See [`NatTable::to_copy`]; `client` is the place of the client's side.
fn may_be_copied<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    client: Place,
    packet: Packet,
    idle_min_ms: u32,
    now: Now,
) -> bool {
    let Some(flow) = table.vitality(place, now) else { return false };
    flow.standing.worth == Worth::Established
        && !flow.expired()
        && flow.standing.timeout_ms >= idle_min_ms
        && packet.is_plain()
        && table.is_steady(place, packet)
        && table.stream(client).is_none()
        && table.splice(client).is_none()
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
        repeated: false,
        adopted: false,
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
    // Only a SYN needs the state of the server's side, and most SYNs have a key that is not known.
    let peer = if packet.is_opening() { table.peer(place) } else { None };
    let mut repeated = false;
    let adopted = peer.is_some_and(|peer| table.is_untouched(place) && table.is_untouched(peer));
    let reopened = match peer {
        // The server has ended the connection and the client's SYN confirms that, or both sides had ended it.
        Some(peer) => {
            repeated = awaits_answer(table, place, peer)
                && table.vitality(place, now).is_some_and(|flow| flow.idle_ms >= SYN_REPEATED_MS);
            let ended = table
                .state(peer)
                .is_some_and(|server| matches!(server.phase(), Phase::Closing | Phase::Closed));
            ended || table.vitality(place, now)?.standing.is_over()
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
fn awaits_answer<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    peer: Place,
) -> bool {
    [place, peer].iter().all(|&side| table.state(side) == Some(State::TcpOpening))
}

/// Gives the other side its state too, after a packet of SCTP that decides for both.
#[inline]
fn set_both<const A: usize, const W: usize, const K: usize, const B: usize>(
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

fn insert_pair<const A: usize, const W: usize, const K: usize, const B: usize>(
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
    let place = table.admit(&flow.key, flow_hash, now).map_err(|no_room| match no_room {
        NoRoom::Full => PairError::Full,
        NoRoom::Share => PairError::Share,
    })?;
    table.write(place, flow);
    table.forget_streams(place);
    let Some(place) = table.make_room(&flow.key, reply_hash, now) else {
        // The first entry may have been moved by the second insertion.
        let place = table.find(&flow.key, flow_hash).expect("the entry just written is not evicted");
        table.clear(place);
        return Err(PairError::Full);
    };
    let reply = Entry { key: reply_key, state: reply_state, peer: Some(flow.key), ..*flow };
    table.write(place, &reply);
    Ok(())
}

/// Inserts a flow that begins with `packet` and that a look-up has not found, if no other flow has its reply key and nothing has
/// to give way to it. Returns false, and changes nothing, if not.
#[inline(always)]
pub(super) fn begin<const A: usize, const W: usize, const K: usize, const B: usize>(
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
