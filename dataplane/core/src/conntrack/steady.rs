//! Look-ups for plain packets of established IPv4 flows, which are nearly all packets: the fast path of the pipeline calls
//! them. A flow that is not found here may exist: it may be opening, idle or ending, or in its second bucket.
//!
//! Invariant: an entry that is found here is one that the look-ups of [`DsrTable`] and
//! [`NatTable`] find for the same packet, and both leave it alike.

use super::dsr::{self, DsrTable};
use super::key::{FlowHash, PackedKey, TWIN};
use super::nat::{self, NatTable};
use crate::ids::{BackendId, EndpointId, ServiceId};
use crate::now::Now;

/// The key of an IPv4 flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteadyKey(pub(super) PackedKey<1>);

impl SteadyKey {
    /// The key of a client's flow. The address has the form of [`Usual`](crate::wire::usual::Usual).
    #[inline(always)]
    pub(crate) fn flow(service: ServiceId, client: u32, client_port: u16) -> Self {
        Self(PackedKey { owner: service.raw(), tag: u32::from(client_port) << 16, addr: [client] })
    }

    /// The key of the replies of an endpoint to this address and port.
    #[inline(always)]
    pub(crate) fn reply(endpoint: EndpointId, to: u32, to_port: u16) -> Self {
        Self(PackedKey { owner: endpoint.raw(), tag: u32::from(to_port) << 16 | TWIN, addr: [to] })
    }
}

/// The entry of one side of an established NAT flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteadyHit {
    pub(crate) backend: BackendId,
    /// In the entry of the client, the endpoint; in the entry of replies, the service.
    pub(crate) owner: u32,
    /// The address of the other side's key: the source towards the backend, or the client.
    pub(crate) addr: u32,
    /// Its port, in host order.
    pub(crate) port: u16,
}

impl DsrTable {
    /// Whether the service of a key has any entry.
    #[inline(always)]
    pub(crate) fn has_steady_flows_of(&self, key: &SteadyKey) -> bool {
        self.v4.has_flows_of(key.0.owner)
    }

    /// Whether a key has an entry, in any state.
    pub(crate) fn has_steady_entry(&self, key: &SteadyKey, hash: u64) -> bool {
        self.v4.find(&key.0, FlowHash(hash)).is_some()
    }

    /// Prefetches the first bucket of a key.
    #[inline(always)]
    pub(crate) fn prefetch_steady(&self, hash: u64) {
        self.v4.prefetch(FlowHash(hash));
    }

    /// The backend of an established flow that is in use, if its entry is in the first bucket of its key. Records a plain
    /// packet; `tcp` is whether it is one of TCP.
    #[inline(always)]
    pub(crate) fn steady(&mut self, key: &SteadyKey, hash: u64, tcp: bool, now: Now) -> Option<BackendId> {
        let bucket = self.v4.primary(FlowHash(hash));
        let entry = self.v4.steady(bucket, &key.0, tcp, now)?;
        Some(BackendId::from_raw(dsr::V4::value_in(entry)))
    }

    /// Prefetches the second bucket of a key.
    #[inline(always)]
    pub(crate) fn prefetch_steady_second(&self, hash: u64) {
        self.v4.prefetch_bucket(self.v4.secondary(FlowHash(hash)));
    }

    /// [`Self::steady`] in the second bucket.
    pub(crate) fn steady_second(
        &mut self,
        key: &SteadyKey,
        hash: u64,
        tcp: bool,
        now: Now,
    ) -> Option<BackendId> {
        let bucket = self.v4.secondary(FlowHash(hash));
        let entry = self.v4.steady(bucket, &key.0, tcp, now)?;
        Some(BackendId::from_raw(dsr::V4::value_in(entry)))
    }
}

impl NatTable {
    /// Prefetches the first bucket of a key.
    #[inline(always)]
    pub(crate) fn prefetch_steady(&self, hash: u64) {
        self.v4.prefetch(FlowHash(hash));
    }

    /// Prefetches the second bucket of a key.
    #[inline(always)]
    pub(crate) fn prefetch_steady_second(&self, hash: u64) {
        self.v4.prefetch_bucket(self.v4.secondary(FlowHash(hash)));
    }

    /// The entry of an established flow that is in use, if it is in the first bucket of its key. Records a plain packet;
    /// `tcp` is whether it is one of TCP.
    #[inline(always)]
    pub(crate) fn steady(&mut self, key: &SteadyKey, hash: u64, tcp: bool, now: Now) -> Option<SteadyHit> {
        let bucket = self.v4.primary(FlowHash(hash));
        self.steady_in(bucket, key, tcp, now)
    }

    /// [`Self::steady`] in the second bucket.
    pub(crate) fn steady_second(
        &mut self,
        key: &SteadyKey,
        hash: u64,
        tcp: bool,
        now: Now,
    ) -> Option<SteadyHit> {
        let bucket = self.v4.secondary(FlowHash(hash));
        self.steady_in(bucket, key, tcp, now)
    }

    #[inline(always)]
    fn steady_in(&mut self, bucket: u32, key: &SteadyKey, tcp: bool, now: Now) -> Option<SteadyHit> {
        let entry = self.v4.steady(bucket, &key.0, tcp, now)?;
        let peer = nat::V4::peer_in(entry);
        Some(SteadyHit {
            backend: BackendId::from_raw(nat::V4::value_in(entry)),
            owner: peer.owner,
            addr: peer.addr[0],
            port: (peer.tag >> 16) as u16,
        })
    }
}
