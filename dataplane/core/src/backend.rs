//! Backends as packets meet them, and endpoints, by which replies are told.
//!
//! A [`Backend`] is one cache line at the index of its [`BackendId`]. An endpoint is (address, port, protocol)
//! whatever services it is behind; only those of `nat` and `fullnat` services can be looked up, for theirs are
//! the replies that come back through the gateway. Built by the compile of a snapshot.
//!
//! Invariant: an id of a backend that is gone finds nothing, also after its index went to another.

use crate::hash::key_hash;
use crate::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use crate::key_index::KeyIndex;
use crate::neighbors::NeighborSlot;
use crate::prefetch;
use crate::service::vacant_raw;
use crate::snapshot::{BackendState, ForwardingMode, Protocol};
use crate::wire::{Addr, Family};

/// What the packet path needs of a backend: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Backend {
    /// Its address.
    pub address: Addr,
    /// Its id.
    pub id: BackendId,
    /// The service port that it is behind.
    pub service: ServiceId,
    /// (address, port, protocol), shared with the same endpoint behind other service ports.
    pub endpoint: EndpointId,
    /// Next hop on the way to it: itself where it is on-link, else a router.
    pub neighbor: NeighborSlot,
    /// Its port, in host order.
    pub port: u16,
    /// Egress interface.
    pub interface: InterfaceIndex,
    /// Family of its address.
    pub family: Family,
    /// What it may be given.
    pub state: BackendState,
    /// How packets reach it: its service's mode.
    pub mode: ForwardingMode,
    /// Transport protocol: its service's.
    pub protocol: Protocol,
}

const _: () = assert!(size_of::<Backend>() == 64);

/// All backends of a snapshot.
#[derive(Debug)]
pub(crate) struct Backends {
    /// By id; a vacant index holds no record that any id matches.
    records: Box<[Option<Backend>]>,
}

const _: () = assert!(size_of::<Option<Backend>>() == 64, "the vacant mark hides in an enum of the record");

impl Backends {
    pub(crate) fn build(indices: usize, backends: impl Iterator<Item = Backend>) -> Self {
        let mut records = vec![None; indices];
        for backend in backends {
            records[backend.id.index()] = Some(backend);
        }
        Self { records: records.into() }
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

/// All endpoints of a snapshot.
#[derive(Debug)]
pub(crate) struct Endpoints {
    index: KeyIndex,
    /// By index of the id.
    records: Box<[(EndpointKey, EndpointId)]>,
    /// In the order of their keys.
    by_key: Box<[(EndpointKey, EndpointId)]>,
}

impl Endpoints {
    /// A table with `indices` places, of endpoints in the order of their keys; those with true can be found.
    pub(crate) fn build(indices: usize, endpoints: &[(EndpointKey, EndpointId, bool)]) -> Self {
        let nowhere = EndpointKey { address: Addr::UNSPECIFIED, port: 0, protocol: Protocol::Tcp };
        let mut records: Vec<_> =
            (0..indices).map(|index| (nowhere, EndpointId::from_raw(vacant_raw(index)))).collect();
        for &(key, id, _) in endpoints {
            records[id.index()] = (key, id);
        }
        let found: Vec<_> = endpoints.iter().filter(|(.., found)| *found).collect();
        let entries = found
            .iter()
            .map(|(key, id, _)| (key_hash(&key.address, key.protocol.number(), key.port), id.index()));
        Self {
            index: KeyIndex::build(entries),
            records: records.into(),
            by_key: endpoints.iter().map(|&(key, id, _)| (key, id)).collect(),
        }
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
        self.records.get(id.index()).filter(|(_, holder)| *holder == id).map(|&(key, _)| key)
    }

    pub(crate) fn by_key(&self) -> &[(EndpointKey, EndpointId)] {
        &self.by_key
    }
}
