//! Exports flows to other gateways: changes, and walks over all flows.
//!
//! A flow is exported once it is established, and again when a side ends it. An adopted flow that has had no packet on
//! this gateway is *untouched*: it is exported only to a gateway that has lost its tables, and other gateways may
//! change it.
//!
//! Invariant: flows don't change here, and each change in the journals is reported once.

use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;

use super::dsr::by_family;
use super::flow_state::{EvictionClass, State};
use super::key::{FlowHasher, FlowKey, PackedKey, addr_of};
use super::shared_flow::{SharedChange, SharedFlow, SharedReply, SideState};
use super::table::{Position, Table};
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

    /// Enables or disables the journals of all tables.
    pub fn enable_journal(&mut self, is_on: bool) {
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

    /// Reports and clears all changes in the journals. `report` also gets the tags of all flows.
    pub fn take_changes(&mut self, now: Now, mut report: impl FnMut(SharedChange, FlowTags<'_>)) {
        let Self { dsr, nat, tags, hasher, .. } = self;
        let tags = FlowTags { tags, hasher };
        let mut report = |change| report(change, tags);
        take_changes(&mut dsr.v4, now, &mut report);
        take_changes(&mut dsr.v6, now, &mut report);
        take_changes(&mut nat.v4, now, &mut report);
        take_changes(&mut nat.v6, now, &mut report);
    }

    /// Calls `show` for flows that may be shared in up to `buckets` hash buckets from `cursor` on (0 at first); NAT
    /// flows only with `with_nat`. Returns the next cursor, or `None` at the end.
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

    /// The flow with this client's key, if it may be shared.
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
    /// Adds a new flow to the journal, if it is enabled.
    #[cold]
    pub fn journal_new_flow(&mut self, key: &FlowKey) {
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
            Some(position) => {
                if let Some(flow) = shared(table, position, now) {
                    report(SharedChange::Live(flow));
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
        let bucket = u32::try_from(bucket).expect("below the number of hash buckets");
        let flows = table.positions(bucket).into_iter().filter(|&position| table.is_flow(position));
        flows.filter_map(|position| shared(table, position, now)).for_each(&mut *show);
    }
    *base += count;
}

/// The flow of a client's entry, if it is established and has not expired.
fn shared<const A: usize, const W: usize, const K: usize, const B: usize>(
    table: &Table<A, W, K, B>,
    position: Position,
    now: Now,
) -> Option<SharedFlow> {
    let key = table.key(position);
    let flow = table.flow_age(position, now)?;
    let is_opening =
        matches!(flow.status.eviction_class, EvictionClass::Unanswered | EvictionClass::Answered);
    // A NAT flow that is not established is lost with its gateway, and the client retries.
    if flow.expired() || is_opening && Table::<A, W, K, B>::PAIRED {
        return None;
    }
    let reply = match table.peer(position) {
        None => None,
        Some(peer) => {
            let key = table.peer_key(position);
            Some(SharedReply {
                key: FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) },
                state: SideState(table.state(peer)?),
                stream: table.stream(position),
                splice: table.splice(position),
                has_replies: !table.is_untouched(peer),
            })
        }
    };
    let state = table.state(position)?;
    let peer_is_untouched = table.peer(position).is_none_or(|peer| table.is_untouched(peer));
    Some(SharedFlow {
        key: FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) },
        backend: BackendId::from_raw(table.value(position)),
        client: SideState(state),
        reply,
        idle_ms: flow.idle_ms,
        is_opening: is_opening && state != State::TcpStray,
        is_untouched: table.is_untouched(position) && peer_is_untouched,
    })
}
