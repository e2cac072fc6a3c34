//! Exports flows: changes, and walks over all flows. The flows may be those of another process (`stored.rs`), whose
//! words may be damaged.
//!
//! Other gateways get a flow once it is established, and again when a side ends it. An adopted flow that has had no
//! packet on this gateway is *untouched*: it is exported only to a gateway that has lost its tables, and other gateways
//! may change it.
//!
//! Invariant: nothing here changes a flow or panics, whatever the words, and each change in the journals is reported
//! once. An entry counts only if it is in a hash bucket of its key and its state exists. A NAT flow counts only if both
//! entries refer to each other and to the same backend.

use std::ops::Range;

use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;
use tidegate_wire::rewrite::Endpoint;

use super::dsr::by_family;
use super::flow_record::{FlowUpdate, LocalFlow, Translation};
use super::flow_state::{IdleTimeout, SideState};
use super::journal::Adopted;
use super::key::{FlowHasher, FlowKey, KEY_MASK, PackedKey, REPLY_BIT, addr_of};
use super::memory::StoredTable;
use super::not_restored::NotRestored;
use super::stream::{splice_at, stream_at};
use super::table::{ADDR, IDLE_MASK, OWNER, SEEN, STATE_MASK, STATE_SHIFT, TAG, Table, VALUE};
use super::tags::Tags;
use super::walk::WalkStep;
use super::{DsrTable, FlowTables, each_table};

impl FlowTables {
    /// Enables or disables the journals of all tables.
    pub fn enable_journal(&mut self, is_on: bool) {
        each_table!(self[&mut], |table| table.watch(is_on));
    }

    /// Whether changes wait for [`Self::take_changes`].
    #[inline]
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let mut changes = 0;
        each_table!(self[&], |table| changes |= table.journal.len());
        changes != 0
    }

    /// Reports and clears all changes in the journals.
    pub fn take_changes(&mut self, now: Now, mut report: impl FnMut(FlowUpdate<FlowKey, BackendId>)) {
        each_table!(self[&mut], |table| {
            let entries = table.entries(&self.tags, now);
            for at in 0..table.journal.len() {
                let key = table.journal.key(at);
                match entries.find(&key) {
                    None => report(FlowUpdate::Gone(unpacked(&key))),
                    Some(at) => entries.shared(at).into_iter().for_each(|flow| report(FlowUpdate::Live(flow))),
                }
            }
            table.journal.clear();
        });
    }

    /// Calls `show` for flows that may be shared in up to `buckets` hash buckets from `cursor` on (0 at first); NAT
    /// flows only with `with_nat`. Returns the next cursor, or `None` at the end.
    pub fn scan_shared(
        &self,
        cursor: u64,
        buckets: u64,
        with_nat: bool,
        now: Now,
        mut show: impl FnMut(LocalFlow),
    ) -> Option<u64> {
        let mut step = WalkStep::new(cursor, buckets);
        each_table!(self[&], |table| {
            if with_nat || !table.is_paired() {
                let entries = table.entries(&self.tags, now);
                let flows = entries.flows(step.part(table));
                flows.filter_map(|at| entries.shared(at)).for_each(&mut show);
            }
        });
        step.next()
    }

    /// The flow with this client's key, if it may be shared.
    #[must_use]
    pub fn shared_flow(&self, key: &FlowKey, is_dsr: bool, now: Now) -> Option<LocalFlow> {
        fn shared<const A: usize, const W: usize, const K: usize, const B: usize>(
            entries: Entries<'_, A, W, K, B>,
            key: &PackedKey<A>,
        ) -> Option<LocalFlow> {
            entries.shared(entries.find(key)?)
        }
        let (dsr, nat, tags) = (&self.dsr, &self.nat, &self.tags);
        if is_dsr {
            by_family!(dsr, key, |table, packed| shared(table.entries(tags, now), &packed))
        } else {
            by_family!(nat, key, |table, packed| shared(table.entries(tags, now), &packed))
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

/// The entries of a table of this process or of an earlier one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries<'t, const A: usize, const W: usize, const K: usize, const B: usize> {
    pub(super) table: StoredTable<'t>,
    pub(super) hasher: &'t FlowHasher,
    /// The current time in milliseconds, by the clock of the process.
    pub(super) now_ms: u32,
    /// The flows of other gateways and the tags of SCTP flows, which only this process has.
    pub(super) live: Option<(&'t Adopted, &'t Tags)>,
}

impl<const A: usize, const W: usize, const K: usize, const B: usize> Table<A, W, K, B> {
    /// The entries of this table. `tags` are those of its SCTP flows.
    fn entries<'t>(&'t self, tags: &'t Tags, now: Now) -> Entries<'t, A, W, K, B> {
        let (table, hasher, now_ms) = (self.arrays(), self.hasher(), now.millis());
        Entries { table, hasher, now_ms, live: Some((&self.adopted, tags)) }
    }
}

impl<'t, const A: usize, const W: usize, const K: usize, const B: usize> Entries<'t, A, W, K, B> {
    /// The number of hash buckets.
    pub(super) fn buckets(&self) -> u32 {
        u32::try_from(self.table.entries.len() / B).unwrap_or(0)
    }

    /// The first words of the flows in these hash buckets. A flow of two entries occurs once, at the client's entry.
    pub(super) fn flows(&self, buckets: Range<u32>) -> impl Iterator<Item = usize> + use<'t, A, W, K, B> {
        let this = *self;
        buckets.flat_map(Self::places).filter(move |&at| {
            let is_flow = |entry: &[u32; W]| {
                entry[TAG] & STATE_MASK != 0 && !(Table::<A, W, K, B>::PAIRED && entry[TAG] & REPLY_BIT != 0)
            };
            this.entry(at).is_some_and(is_flow)
        })
    }

    /// The first word of the entry with this key.
    pub(super) fn find(&self, key: &PackedKey<A>) -> Option<usize> {
        self.homes(key).into_iter().flat_map(Self::places).find(|&at| {
            self.entry(at).is_some_and(|entry| state_of(entry).is_some() && key_of(entry) == *key)
        })
    }

    /// The flow of a client's entry.
    ///
    /// # Errors
    /// [`NotRestored::Damaged`] or [`NotRestored::Expired`].
    pub(super) fn flow(&self, at: usize) -> Result<LocalFlow, NotRestored> {
        let (flow, idle) = self.read(at).ok_or(NotRestored::Damaged)?;
        if flow.idle_ms >= flow.status(idle).timeout_ms { Err(NotRestored::Expired) } else { Ok(flow) }
    }

    /// The flow of a client's entry, if other gateways may get it. A NAT flow that is not established is lost with its
    /// gateway, and the client retries.
    fn shared(&self, at: usize) -> Option<LocalFlow> {
        let flow = self.flow(at).ok()?;
        (flow.translation.is_none() || !flow.is_unestablished()).then_some(flow)
    }

    fn read(&self, at: usize) -> Option<(LocalFlow, IdleTimeout)> {
        let entry = self.entry(at)?;
        let (key, client) = (key_of(entry), state_of(entry)?);
        let idle = IdleTimeout::from_stored(entry[TAG] & IDLE_MASK)?;
        // The number of hash buckets is below 2^32.
        if !self.homes(&key).contains(&((at / B) as u32)) {
            return None;
        }
        let mut flow = LocalFlow {
            name: unpacked(&key),
            backend: BackendId::from_raw(entry[VALUE]),
            client,
            translation: None,
            tags: self.live.and_then(|(_, tags)| tags.confirmed(self.hasher.hash_packed(&key))),
            idle_ms: self.age(entry),
            idle_timeout: Some(idle),
            is_relayed: self.is_untouched(at, entry),
        };
        if Table::<A, W, K, B>::PAIRED {
            let local = Table::<A, W, K, B>::peer_in(entry);
            let at_reply = self.find(&local)?;
            let reply = self.entry(at_reply)?;
            let server = state_of(reply)?;
            let is_whole = Table::<A, W, K, B>::peer_in(reply) == key
                && reply[VALUE] == entry[VALUE]
                && reply[TAG] & IDLE_MASK == entry[TAG] & IDLE_MASK
                && local.tag & (REPLY_BIT | !KEY_MASK) == REPLY_BIT
                && server.has_connection() == client.has_connection();
            if !is_whole {
                return None;
            }
            let is_untouched = self.is_untouched(at_reply, reply);
            flow.translation = Some(Translation {
                local: Endpoint { addr: addr_of(local.addr), port: (local.tag >> 16) as u16 },
                server,
                stream: stream_at(self.table.streams, at / W),
                splice: splice_at(self.table.splices, at / W),
                has_replies: !is_untouched,
            });
            flow.idle_ms = flow.idle_ms.min(self.age(reply));
            flow.is_relayed &= is_untouched;
        }
        Some((flow, idle))
    }

    /// The first words of the positions in a hash bucket.
    fn places(bucket: u32) -> impl Iterator<Item = usize> {
        (0..K).map(move |n| bucket as usize * B + n * W)
    }

    /// The hash buckets of a key.
    fn homes(&self, key: &PackedKey<A>) -> [u32; 2] {
        Table::<A, W, K, B>::homes(self.hasher.hash_packed(key), self.buckets())
    }

    fn entry(&self, at: usize) -> Option<&'t [u32; W]> {
        self.table.entries.get(at..)?.first_chunk()
    }

    /// The time since the last packet of this direction, in milliseconds.
    fn age(&self, entry: &[u32; W]) -> u32 {
        let age = self.now_ms.wrapping_sub(entry[SEEN]);
        // A timestamp in the future (by less than 24 days) counts as age zero.
        if age > u32::MAX / 2 { 0 } else { age }
    }

    /// Whether the entry was received from another gateway and has had no packet on this one.
    fn is_untouched(&self, at: usize, entry: &[u32; W]) -> bool {
        self.live.is_some_and(|(adopted, _)| adopted.is_untouched(at / W, entry[SEEN]))
    }
}

fn key_of<const A: usize, const W: usize>(entry: &[u32; W]) -> PackedKey<A> {
    PackedKey {
        owner: entry[OWNER],
        tag: entry[TAG] & KEY_MASK,
        addr: std::array::from_fn(|n| entry[ADDR + n]),
    }
}

fn unpacked<const A: usize>(key: &PackedKey<A>) -> FlowKey {
    FlowKey { owner: key.owner, tag: key.tag, addr: addr_of(key.addr) }
}

fn state_of<const W: usize>(entry: &[u32; W]) -> Option<SideState> {
    SideState::from_bits((entry[TAG] & STATE_MASK) >> STATE_SHIFT)
}
