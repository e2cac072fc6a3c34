//! Backends as the packet path reads them, and endpoints, which identify replies.
//!
//! A [`Backend`] is one cache line at the index of its [`BackendId`]. An endpoint is (address, port, protocol); all
//! services that use it share it. Only endpoints of `nat` and `fullnat` services can be looked up, because only their
//! replies return through the gateway. Snapshot compilation builds both.
//!
//! Invariant: the id of a removed backend finds nothing, even after its index is reused.

use tidegate_spec::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use tidegate_spec::{BackendState, ForwardingMode, Protocol};
use tidegate_structures::hash::key_hash;
use tidegate_structures::key_index::KeyIndex;
use tidegate_structures::prefetch;
use tidegate_structures::sorted_chunks::SortedChunks;
use tidegate_structures::table::{Table, table_len};
use tidegate_wire::encapsulation::Encapsulation;
use tidegate_wire::{Addr, Family};

use crate::neighbors::NeighborId;
use crate::service::vacant_raw;

/// The data of a backend that the packet path needs: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Backend {
    /// Its address.
    pub address: Addr,
    /// Its id.
    pub id: BackendId,
    /// The service port that it belongs to.
    pub service: ServiceId,
    /// The id of its (address, port, protocol), shared by all service ports.
    pub endpoint: EndpointId,
    /// Next hop towards it: the backend itself if it is on-link, otherwise a router.
    pub neighbor: NeighborId,
    /// Its port, in host order.
    pub port: u16,
    /// Egress interface.
    pub interface: InterfaceIndex,
    /// Family of its address.
    pub family: Family,
    /// Which packets it may receive.
    pub state: BackendState,
    /// How packets reach it: its service's mode.
    pub mode: ForwardingMode,
    /// Transport protocol: its service's.
    pub protocol: Protocol,
    /// The headers behind the outer IP header, if the mode is a tunnel.
    pub encapsulation: Option<Encapsulation>,
    /// How the last stage handles its packets.
    pub last_stage: LastStage,
}

/// How the last stage of the pipeline handles packets to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastStage {
    /// Mode `dsr-l2` without further options.
    Link,
    /// Mode `dsr-ipip` without further options.
    IpInIp,
    /// Any other mode without translation, or a service that limits its packets.
    Checks,
    /// Mode `nat` or `fullnat`.
    Translation,
}

const _: () = assert!(size_of::<Backend>() == 64);

/// All backends of a snapshot.
#[derive(Debug)]
pub(crate) struct Backends {
    /// Indexed by id. The record of a vacant index matches no id.
    records: Table<Option<Backend>>,
}

const _: () = assert!(size_of::<Option<Backend>>() == 64, "`None` fits into a niche of the record");

impl Backends {
    /// Bytes of the records of this many backends.
    pub(crate) fn bytes_for(backends: usize) -> usize {
        table_len(backends) * size_of::<Option<Backend>>()
    }

    /// Bytes of the records.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.records)
    }

    pub(crate) fn build(indices: usize, backends: impl Iterator<Item = Backend>) -> Self {
        let mut records = vec![None; table_len(indices)];
        for backend in backends {
            records[backend.id.index()] = Some(backend);
        }
        Self { records: records.into() }
    }

    /// A copy for `indices` indices, without the backends in `gone` and with those in `new`.
    pub(crate) fn revised(&self, indices: usize, gone: &[BackendId], new: &[Backend]) -> Self {
        let more = table_len(indices).saturating_sub(self.records.len());
        if more == 0 && gone.is_empty() && new.is_empty() {
            return Self { records: self.records.clone() };
        }
        let records = self.records.revised(std::iter::repeat_n(None, more), |records| {
            gone.iter().for_each(|id| records.set(id.index(), None));
            new.iter().for_each(|backend| records.set(backend.id.index(), Some(*backend)));
        });
        Self { records }
    }

    /// All backends, in the order of their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Backend> {
        self.records.iter().flatten()
    }

    #[inline]
    pub(crate) fn prefetch(&self, id: BackendId) {
        if let Some(record) = self.records.get(id.index()) {
            prefetch::read(record);
        }
    }

    #[inline]
    pub(crate) fn by_id(&self, id: BackendId) -> Option<&Backend> {
        self.records.get(id.index())?.as_ref().filter(|backend| backend.id == id)
    }
}

/// (address, port, protocol) of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// Its address.
    pub address: Addr,
    /// Its port, in host order.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

impl EndpointKey {
    fn hash(&self) -> u64 {
        key_hash(&self.address, self.protocol.number(), self.port)
    }
}

/// The value at an index without an endpoint.
fn vacant_endpoint(index: usize) -> (EndpointKey, EndpointId) {
    let nowhere = EndpointKey { address: Addr::UNSPECIFIED, port: 0, protocol: Protocol::Tcp };
    (nowhere, EndpointId::from_raw(vacant_raw(index)))
}

/// The number of endpoints of one address that [`Endpoints::has_direct`] examines: a node may have thousands.
const ENDPOINTS_CHECKED: usize = 64;

/// All endpoints of a snapshot. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Endpoints {
    index: KeyIndex,
    /// Indexed by the index of the id.
    records: Table<(EndpointKey, EndpointId)>,
    by_key: SortedChunks<EndpointKey, EndpointId>,
    /// Indexed by the index of the id. The next compile needs it.
    uses: Table<Uses>,
}

/// How many backends refer to an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Backends of all services.
    pub(crate) all: u32,
    /// Backends of services whose replies return through the gateway. Above 0, the endpoint can be looked up.
    pub(crate) replies: u32,
}

/// An endpoint that differs in the next snapshot: its key, its id, and its uses before and after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Revision {
    pub(crate) key: EndpointKey,
    pub(crate) id: EndpointId,
    pub(crate) before: Uses,
    pub(crate) after: Uses,
}

impl Endpoints {
    /// Bytes of the records and of the index of this many endpoints, whose replies return through the gateway.
    pub(crate) fn bytes_for(endpoints: usize) -> usize {
        let record = size_of::<(EndpointKey, EndpointId)>() + size_of::<Uses>();
        table_len(endpoints) * record + KeyIndex::bytes_for(endpoints)
    }

    /// Bytes of the records and of the index.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.records) + size_of_val(&*self.uses) + self.index.memory_bytes()
    }

    /// A table for `indices` indices, of endpoints in the order of their keys.
    pub(crate) fn build(indices: usize, endpoints: &[(EndpointKey, EndpointId, Uses)]) -> Self {
        let mut records: Vec<_> = (0..table_len(indices)).map(vacant_endpoint).collect();
        let mut uses = vec![Uses::default(); records.len()];
        for &(key, id, used) in endpoints {
            records[id.index()] = (key, id);
            uses[id.index()] = used;
        }
        let found: Vec<_> = endpoints.iter().filter(|(.., uses)| uses.replies > 0).collect();
        let entries = found.iter().map(|(key, id, _)| (key.hash(), id.index()));
        Self {
            index: KeyIndex::build(entries),
            records: records.into(),
            by_key: endpoints.iter().map(|&(key, id, _)| (key, id)).collect(),
            uses: uses.into(),
        }
    }

    /// A copy for `indices` indices and with these revisions, which are sorted by key.
    pub(crate) fn revised(&self, indices: usize, revisions: &[Revision]) -> Self {
        if revisions.is_empty() {
            return self.clone();
        }
        let is_new = |r: &Revision| r.before.all == 0;
        let is_removed = |r: &Revision| r.after.all == 0;
        let found = |pick: fn(&Revision) -> bool| {
            let entries = revisions.iter().filter(|r| pick(r));
            entries.map(|r| (r.key.hash(), r.id.index())).collect::<Vec<_>>()
        };
        let lost = found(|r| r.before.replies > 0 && r.after.replies == 0);
        let new = found(|r| r.before.replies == 0 && r.after.replies > 0);
        let index = if lost.is_empty() && new.is_empty() {
            Some(self.index.clone())
        } else {
            self.index.edited(&lost, &new, |at| self.records[at].0.hash())
        };
        let more = self.records.len()..table_len(indices);
        let records = if more.is_empty() && !revisions.iter().any(|r| is_new(r) || is_removed(r)) {
            self.records.clone()
        } else {
            self.records.revised(more.clone().map(vacant_endpoint), |records| {
                // A new endpoint may have the index of a removed one.
                for at in revisions.iter().filter(|r| is_removed(r)).map(|r| r.id.index()) {
                    records.set(at, vacant_endpoint(at));
                }
                revisions.iter().filter(|r| is_new(r)).for_each(|r| records.set(r.id.index(), (r.key, r.id)));
            })
        };
        let uses = self.uses.revised(more.map(|_| Uses::default()), |counts| {
            revisions.iter().filter(|r| is_removed(r)).for_each(|r| counts.set(r.id.index(), r.after));
            revisions.iter().filter(|r| !is_removed(r)).for_each(|r| counts.set(r.id.index(), r.after));
        });
        let moves = revisions.iter().filter(|r| is_new(r) != is_removed(r));
        let by_key = self.by_key.revised(moves.map(|r| (r.key, is_new(r).then_some(r.id))));
        let index = index.unwrap_or_else(|| {
            let found = by_key.iter().filter(|(_, id)| uses[id.index()].replies > 0);
            let entries: Vec<_> = found.map(|(key, id)| (key.hash(), id.index())).collect();
            KeyIndex::build(entries.into_iter())
        });
        Self { index, records, by_key, uses }
    }

    /// Everything but the index.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> impl PartialEq + std::fmt::Debug + '_ {
        (&self.records, self.by_key.iter().collect::<Vec<_>>(), &self.uses)
    }

    /// All endpoints, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(EndpointKey, EndpointId)> {
        self.by_key.iter()
    }

    /// The id of a key, and how many backends refer to it.
    pub(crate) fn known(&self, key: &EndpointKey) -> Option<(EndpointId, Uses)> {
        let id = self.by_key.get(key)?;
        Some((id, self.uses[id.index()]))
    }

    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, address: &Addr, port: u16, proto: u8) -> Option<EndpointId> {
        let at = self.index.find(hash, |at| {
            let (key, _) = &self.records[at];
            key.address == *address && key.port == port && key.protocol.number() == proto
        })?;
        Some(self.records[at].1)
    }

    pub(crate) fn by_id(&self, id: EndpointId) -> Option<EndpointKey> {
        self.records.get(id.index()).filter(|(_, owner)| *owner == id).map(|&(key, _)| key)
    }

    /// Whether a backend at this address answers clients itself. Costs a binary search.
    pub(crate) fn has_direct(&self, address: &Addr) -> bool {
        let first = self.by_key.from(|key| key.address < *address);
        let here = first.take_while(|(key, _)| key.address == *address);
        here.take(ENDPOINTS_CHECKED).any(|&(_, id)| self.is_direct(id))
    }

    /// Whether an endpoint has this address.
    pub(crate) fn has_address(&self, address: &Addr) -> bool {
        self.by_key.from(|key| key.address < *address).next().is_some_and(|(key, _)| key.address == *address)
    }

    /// Whether (address, port, protocol) is a backend that answers clients itself.
    pub(crate) fn is_direct_at(&self, key: &EndpointKey) -> bool {
        self.known(key).is_some_and(|(id, _)| self.is_direct(id))
    }

    fn is_direct(&self, id: EndpointId) -> bool {
        let uses = self.uses[id.index()];
        uses.all > uses.replies
    }
}
