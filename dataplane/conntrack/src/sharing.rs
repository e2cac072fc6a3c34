//! Flows that gateways tell each other about, with the ids of this process: what another gateway needs of a flow, and how
//! a flow of another gateway enters the tables. The pipeline translates ids to names that all gateways share
//! ([`flow_record`](crate::flow_record)).
//!
//! A flow is shared once it is established, and again when a side ends it. A flow that was adopted and has had no packet
//! here is *untouched*: this gateway passes it on only to a gateway that has lost its tables, and lets the other one
//! change it.
//!
//! Invariant: an adopted flow evicts no flow, and takes the place of none that has had a packet here, except that of an
//! earlier connection of the same client port.

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{ADOPTED_FILL_PERCENT, ADOPTED_OPENING_FILL_PERCENT};
use tidegate_spec::now::Now;

use super::dsr::by_family;
use super::eviction_reason::EvictionReason;
use super::flow_state::{IdleTimeout, State, Worth};
use super::key::{FlowHash, FlowHasher, FlowKey, PackedKey, addr_of};
use super::splice::Splice;
use super::stream::Stream;
use super::table::{Entry, Place, Table};
use super::tags::{TagPair, Tags};
use super::{DsrTable, FlowTables, NatTable};

/// A connection of a client port is newer than another one if its last packet is later by this. Messages are under way for
/// less.
const NEWER_BY_MS: u32 = 1_000;

/// The state of one side of a flow, as gateways tell it each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideState(State);

impl SideState {
    /// The number of a state: 1 to 7.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0 as u8
    }

    /// The state with a number; `None` if there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        State::from_bits(u32::from(number)).map(Self)
    }

    /// Whether the side has shown that the flow is established.
    #[must_use]
    pub fn is_established(self) -> bool {
        matches!(self.0, State::TcpEstablished | State::DatagramStream)
    }

    /// Whether it is a state of a protocol with connections.
    #[must_use]
    pub fn has_connection(self) -> bool {
        self.0.is_tcp()
    }
}

/// A flow for other gateways, or from another one. Or, without another side, the backend that a client has by session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedFlow {
    /// The key of the client's side.
    pub key: FlowKey,
    /// Its backend.
    pub backend: BackendId,
    /// The state of the client's side.
    pub client: SideState,
    /// The other side of a NAT flow; `None` for a DSR flow.
    pub reply: Option<SharedReply>,
    /// Time since the last packet of either side, in milliseconds.
    pub idle_ms: u32,
    /// Its beginning was seen, and nothing shows yet that it is established. Only DSR flows are shown before. A flow whose
    /// beginning was not seen is not opening: it came from another gateway, which may have had it for hours.
    pub is_opening: bool,
    /// It came from another gateway and has had no packet here.
    pub is_untouched: bool,
}

/// The backend's side of a NAT flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedReply {
    /// The key of replies.
    pub key: FlowKey,
    /// The state of the backend's side.
    pub state: SideState,
    /// The header of the PROXY protocol in front of the flow.
    pub stream: Option<Stream>,
    /// The translation of sequence numbers after a SYN cookie.
    pub splice: Option<Splice>,
    /// Whether a reply has come here since the flow was adopted, if it was.
    pub has_replies: bool,
}

/// What became of the flow of another gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adoption {
    /// It is in the table now.
    New,
    /// It was in the table.
    Known,
    /// Another flow that has had packets here has its key.
    Conflict,
    /// A connection of the same client port that has had packets here since has its key: the other gateway has one that is
    /// over.
    Outdated,
    /// The table, or the share of its service, is too full for flows of others.
    Full,
}

/// A change of a flow of this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedChange {
    /// The flow is established, or a side has ended it.
    Is(SharedFlow),
    /// The flow with this key of its client has left the table.
    Gone(FlowKey),
}

/// The verification tags of SCTP flows, by the key of the client's side.
#[derive(Debug, Clone, Copy)]
pub struct FlowTags<'t> {
    tags: &'t Tags,
    hasher: &'t FlowHasher,
}

impl FlowTags<'_> {
    /// The tags of the flow's association, if the client's COOKIE ECHO has confirmed them.
    #[must_use]
    pub fn confirmed(&self, key: &FlowKey) -> Option<TagPair> {
        self.tags.confirmed(self.hasher.hash(key))
    }
}

impl FlowTables {
    /// The tags of the flows of these tables.
    #[must_use]
    pub fn flow_tags(&self) -> FlowTags<'_> {
        FlowTags { tags: &self.tags, hasher: &self.hasher }
    }

    /// Notes the changes of flows from now on, or no longer. DSR flows are noted too.
    pub fn note_changes(&mut self, is_on: bool) {
        self.dsr.v4.watch(is_on);
        self.dsr.v6.watch(is_on);
        self.nat.v4.watch(is_on);
        self.nat.v6.watch(is_on);
    }

    /// Whether changes wait for [`Self::take_changes`].
    #[inline]
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.dsr.v4.journal.len()
            | self.dsr.v6.journal.len()
            | self.nat.v4.journal.len()
            | self.nat.v6.journal.len()
            != 0
    }

    /// Passes all noted changes on, each with the tags of all flows, and forgets them.
    pub fn take_changes(&mut self, now: Now, mut tell: impl FnMut(SharedChange, FlowTags<'_>)) {
        let Self { dsr, nat, tags, hasher, .. } = self;
        let tags = FlowTags { tags, hasher };
        let mut tell = |change| tell(change, tags);
        take_changes(&mut dsr.v4, now, &mut tell);
        take_changes(&mut dsr.v6, now, &mut tell);
        take_changes(&mut nat.v4, now, &mut tell);
        take_changes(&mut nat.v6, now, &mut tell);
    }

    /// Shows the flows that may be shared of up to `buckets` buckets from `cursor` on (0 at first): those of `nat` tables
    /// only if `with_nat`. Returns the next cursor, or `None` after the last bucket.
    pub fn scan_shared(
        &self,
        cursor: u64,
        buckets: u64,
        with_nat: bool,
        now: Now,
        mut show: impl FnMut(SharedFlow),
    ) -> Option<u64> {
        let end = cursor.saturating_add(buckets);
        let mut base = 0;
        scan_table(&self.dsr.v4, cursor, end, &mut base, now, &mut show);
        scan_table(&self.dsr.v6, cursor, end, &mut base, now, &mut show);
        if with_nat {
            scan_table(&self.nat.v4, cursor, end, &mut base, now, &mut show);
            scan_table(&self.nat.v6, cursor, end, &mut base, now, &mut show);
        }
        (end < base).then_some(end)
    }

    /// Stores a flow of another gateway, or what it says about a flow that is known here.
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

    /// The flow with this key of its client, if it may be shared.
    #[must_use]
    pub fn shared_flow(&self, key: &FlowKey, is_dsr: bool, now: Now) -> Option<SharedFlow> {
        let hash = self.hash(key);
        if is_dsr {
            let this = &self.dsr;
            by_family!(this, key, |table, packed| shared(table, table.find(&packed, hash)?, now))
        } else {
            let this = &self.nat;
            by_family!(this, key, |table, packed| shared(table, table.find(&packed, hash)?, now))
        }
    }

    /// Removes the flow with this key of its client, which has left the table of another gateway, if it has had no packet
    /// here. Returns whether it did.
    pub fn give_up_adopted(&mut self, key: &FlowKey, is_dsr: bool) -> bool {
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
    /// Notes a flow that has just begun, if changes are noted.
    #[cold]
    pub fn note_beginning(&mut self, key: &FlowKey) {
        by_family!(mut self, key, |table, packed| {
            if table.journal.is_on {
                table.journal.note(packed);
            }
        });
    }

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
        // The numbers of a flow that has had packets here are newer.
        let untouched = by_family!(self, key, |table, packed| {
            table.find(&packed, hash).is_some_and(|place| table.is_untouched(place))
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

fn take_changes<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    now: Now,
    tell: &mut impl FnMut(SharedChange),
) {
    for at in 0..table.journal.len() {
        let key = table.journal.key(at);
        match table.find(&key, table.hash_of(&key)) {
            None => {
                let key = FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) };
                tell(SharedChange::Gone(key));
            }
            Some(place) => {
                if let Some(flow) = shared(table, place, now) {
                    tell(SharedChange::Is(flow));
                }
            }
        }
    }
    table.journal.clear();
}

fn scan_table<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    cursor: u64,
    end: u64,
    base: &mut u64,
    now: Now,
    show: &mut impl FnMut(SharedFlow),
) {
    let count = u64::from(table.buckets);
    // A table without flows is skipped at no cost.
    let first = if table.live == 0 { count } else { cursor.saturating_sub(*base) };
    for bucket in first..count.min(end.saturating_sub(*base)) {
        let bucket = u32::try_from(bucket).expect("below the number of buckets");
        let flows = table.places(bucket).into_iter().filter(|&place| table.is_flow(place));
        flows.filter_map(|place| shared(table, place, now)).for_each(&mut *show);
    }
    *base += count;
}

/// The flow of the client's entry at a place, if it has been established and has not expired.
fn shared<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    place: Place,
    now: Now,
) -> Option<SharedFlow> {
    let key = table.key(place);
    let vitality = table.vitality(place, now)?;
    let is_opening = matches!(vitality.standing.worth, Worth::Unanswered | Worth::Answered);
    // A NAT flow that is not established dies with its gateway, and the client begins it again.
    if vitality.expired() || is_opening && Table::<A, W, K, B>::PAIRED {
        return None;
    }
    let reply = match table.peer(place) {
        None => None,
        Some(peer) => {
            let key = table.peer_key(place);
            Some(SharedReply {
                key: FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) },
                state: SideState(table.state(peer)?),
                stream: table.stream(place),
                splice: table.splice(place),
                has_replies: !table.is_untouched(peer),
            })
        }
    };
    let state = table.state(place)?;
    let peer_is_untouched = table.peer(place).is_none_or(|peer| table.is_untouched(peer));
    Some(SharedFlow {
        key: FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) },
        backend: BackendId::from_raw(table.value(place)),
        client: SideState(state),
        reply,
        idle_ms: vitality.idle_ms,
        is_opening: is_opening && state != State::TcpStray,
        is_untouched: table.is_untouched(place) && peer_is_untouched,
    })
}

/// The key, hash and state of the other side of a pair.
type OtherSide<const A: usize> = Option<(PackedKey<A>, FlowHash, State)>;

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
    if let Some(place) = table.find(&key, hash) {
        let same_peer = other.is_none_or(|(reply, ..)| table.peer_key(place) == reply);
        if same_peer && table.value(place) == flow.backend.raw() {
            merge(table, place, flow.client.0, seen, now);
            if let (Some((.., state)), Some(peer)) = (other, table.peer(place)) {
                merge(table, peer, state, seen, now);
            }
            return Ok(Adoption::Known);
        }
        make_way(table, place, flow, now).or_else(|refused| succeed(table, place, flow, refused, now))?;
    }
    if let Some((reply, reply_hash, _)) = other
        && let Some(place) = table.find(&reply, reply_hash)
    {
        make_way(table, place, flow, now)?;
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
    let place = table.free_place(hash, now).ok_or(Adoption::Full)?;
    table.write(place, &entry);
    if Table::<A, W, K, B>::PAIRED {
        table.forget_streams(place);
    }
    if let Some((reply, reply_hash, state)) = other {
        let Some(place) = table.free_place(reply_hash, now) else {
            // The first entry may have been moved by the search for a place.
            let place = table.find(&key, hash).expect("the entry just written is not evicted");
            table.clear(place);
            return Err(Adoption::Full);
        };
        table.write(place, &Entry { key: reply, state, peer: Some(key), ..entry });
        table.mark_adopted(place);
    }
    let place = table.find(&key, hash).expect("the entry just written is not evicted");
    table.mark_adopted(place);
    Ok(Adoption::New)
}

/// Gives an entry what another gateway says of its side. An entry that has had packets here only learns that the flow is in
/// use, that it is established, and that the side has ended it.
fn merge<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    state: State,
    seen: u32,
    now: Now,
) {
    let Some(own) = table.state(place) else { return };
    let idle_ms = now.millis().wrapping_sub(seen);
    let is_news = idle_ms < table.own_idle_ms(place, now);
    if table.is_untouched(place) {
        if is_news || state != own {
            table.adopt(place, state, if is_news { seen } else { table.seen(place) });
        }
    } else if is_news {
        let state = if own.is_opening() || state.is_ended() { state } else { own };
        table.touch_at(place, state, seen);
    } else if own == State::TcpStray && state == State::TcpEstablished {
        // The other gateway has seen its beginning.
        table.touch_at(place, state, table.seen(place));
    }
}

/// Removes the flow at a place if a flow of another gateway may have its key: it is over, or it was adopted before and has
/// had no packet since that the other gateway told of.
fn make_way<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    flow: &SharedFlow,
    now: Now,
) -> Result<(), Adoption> {
    let vitality = table.vitality(place, now);
    let is_over = vitality.is_none_or(|flow| flow.expired() || flow.standing.is_over());
    let untouched =
        table.is_untouched(place) && table.peer(place).is_none_or(|peer| table.is_untouched(peer));
    let is_older = vitality.is_none_or(|own| own.idle_ms >= flow.idle_ms);
    if is_over || untouched && is_older {
        table.remove(place, EvictionReason::Removed);
        Ok(())
    } else {
        Err(Adoption::Conflict)
    }
}

/// Decides between two connections of the same client port with different backends, of which `place` has had packets here:
/// the one whose last packet is later is the one that exists, if it is established.
fn succeed<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    place: Place,
    flow: &SharedFlow,
    refused: Adoption,
    now: Now,
) -> Result<(), Adoption> {
    let Some(own) = table.vitality(place, now) else { return Err(refused) };
    if flow.client.is_established() && own.idle_ms >= flow.idle_ms.saturating_add(NEWER_BY_MS) {
        table.remove(place, EvictionReason::Removed);
        return Ok(());
    }
    let is_newer =
        own.standing.worth == Worth::Established && flow.idle_ms >= own.idle_ms.saturating_add(NEWER_BY_MS);
    Err(if is_newer { Adoption::Outdated } else { refused })
}

fn give_up<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    key: &PackedKey<A>,
    hash: FlowHash,
) -> bool {
    let Some(place) = table.find(key, hash) else { return false };
    let peer = table.peer(place);
    let untouched = table.is_untouched(place) && peer.is_none_or(|peer| table.is_untouched(peer));
    if untouched {
        table.remove(place, EvictionReason::Removed);
    }
    untouched
}
