//! Flows of the tables for other gateways: which have changed, and which there are.
//!
//! A flow is shared once it is established, and again when a side ends it. A flow that was adopted and has had no
//! packet on this gateway is *untouched*: this gateway passes it on only to a gateway that has lost its tables, and
//! lets the other one change it.
//!
//! Promises: nothing of a flow changes here; each change in the journals is passed on once.

use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;

use super::dsr::by_family;
use super::flow_state::{EvictionClass, State};
use super::key::{FlowHasher, FlowKey, PackedKey, addr_of};
use super::shared_flow::{SharedChange, SharedFlow, SharedReply, SideState};
use super::table::{Place, Table};
use super::tags::{TagPair, Tags};
use super::{DsrTable, FlowTables};

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
    pub fn take_changes(&mut self, now: Now, mut report: impl FnMut(SharedChange, FlowTags<'_>)) {
        let Self { dsr, nat, tags, hasher, .. } = self;
        let tags = FlowTags { tags, hasher };
        let mut report = |change| report(change, tags);
        take_changes(&mut dsr.v4, now, &mut report);
        take_changes(&mut dsr.v6, now, &mut report);
        take_changes(&mut nat.v4, now, &mut report);
        take_changes(&mut nat.v6, now, &mut report);
    }

    /// Shows the flows that may be shared of up to `buckets` buckets from `cursor` on (0 at first): those of `nat`
    /// tables only if `with_nat`. Returns the next cursor, or `None` after the last bucket.
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
}

fn take_changes<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &mut Table<A, W, K, B>,
    now: Now,
    report: &mut impl FnMut(SharedChange),
) {
    for at in 0..table.journal.len() {
        let key = table.journal.key(at);
        match table.find(&key, table.hash_of(&key)) {
            None => {
                let key = FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) };
                report(SharedChange::Gone(key));
            }
            Some(place) => {
                if let Some(flow) = shared(table, place, now) {
                    report(SharedChange::Is(flow));
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
    let flow = table.flow_age(place, now)?;
    let is_opening =
        matches!(flow.status.eviction_class, EvictionClass::Unanswered | EvictionClass::Answered);
    // A NAT flow that is not established dies with its gateway, and the client begins it again.
    if flow.expired() || is_opening && Table::<A, W, K, B>::PAIRED {
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
        idle_ms: flow.idle_ms,
        is_opening: is_opening && state != State::TcpStray,
        is_untouched: table.is_untouched(place) && peer_is_untouched,
    })
}
