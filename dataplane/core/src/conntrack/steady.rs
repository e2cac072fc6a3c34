//! Look-ups for plain packets of established flows, which are nearly all packets: the fast path of the pipeline calls them. A
//! flow that is not found here may exist: it may be opening, idle or ending, or in its second bucket.
//!
//! Invariant: an entry that is found here is one that the look-ups of [`DsrTable`](super::DsrTable) and
//! [`NatTable`](super::NatTable) find for the same packet, and both leave it alike.

use super::key::{FlowHash, PackedKey, TWIN};
use super::{FlowTables, dsr, nat};
use crate::ids::{BackendId, EndpointId, ServiceId};
use crate::now::Now;

/// The key of a flow whose addresses have `A` words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteadyKey<const A: usize>(pub(super) PackedKey<A>);

impl<const A: usize> SteadyKey<A> {
    /// The key of a client's flow. The address has the form of [`Usual`](crate::wire::usual::Usual).
    #[inline(always)]
    pub(crate) fn flow(service: ServiceId, client: [u32; A], client_port: u16) -> Self {
        Self(PackedKey { owner: service.raw(), tag: u32::from(client_port) << 16, addr: client })
    }

    /// The key of the replies of an endpoint to this address and port.
    #[inline(always)]
    pub(crate) fn reply(endpoint: EndpointId, to: [u32; A], to_port: u16) -> Self {
        Self(PackedKey { owner: endpoint.raw(), tag: u32::from(to_port) << 16 | TWIN, addr: to })
    }
}

/// One of the two buckets of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bucket {
    First,
    Second,
}

/// The entry of one side of an established NAT flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SteadyHit<const A: usize> {
    pub(crate) backend: BackendId,
    /// In the entry of the client, the endpoint; in the entry of replies, the service.
    pub(crate) owner: u32,
    /// The address of the other side's key: the source towards the backend, or the client.
    pub(crate) addr: [u32; A],
    /// Its port, in host order.
    pub(crate) port: u16,
}

impl FlowTables {
    /// The hash of a key, as a number.
    #[inline(always)]
    pub(crate) fn steady_hash<const A: usize>(&self, key: &SteadyKey<A>) -> u64 {
        self.hasher.hash_packed(&key.0).bits()
    }
}

/// The tables for addresses of `A` words.
pub(crate) trait SteadyTables<const A: usize> {
    /// Whether the service of a key has any entry in the table of DSR flows.
    fn has_dsr_flows_of(&self, key: &SteadyKey<A>) -> bool;

    /// Whether a key has an entry in the table of DSR flows, in any state.
    fn has_dsr_entry(&self, key: &SteadyKey<A>, hash: u64) -> bool;

    /// Prefetches a bucket of DSR flows.
    fn prefetch_dsr(&self, hash: u64, bucket: Bucket);

    /// Prefetches a bucket of NAT flows.
    fn prefetch_nat(&self, hash: u64, bucket: Bucket);

    /// The backend of an established flow that is in use, if its entry is in this bucket of its key. Records a plain packet;
    /// `tcp` is whether it is one of TCP.
    fn steady_dsr(
        &mut self,
        key: &SteadyKey<A>,
        hash: u64,
        bucket: Bucket,
        tcp: bool,
        now: Now,
    ) -> Option<BackendId>;

    /// The entry of an established NAT flow, under the same conditions.
    fn steady_nat(
        &mut self,
        key: &SteadyKey<A>,
        hash: u64,
        bucket: Bucket,
        tcp: bool,
        now: Now,
    ) -> Option<SteadyHit<A>>;
}

/// The number of a bucket of a key in a table.
macro_rules! bucket {
    ($table:expr, $hash:expr, $bucket:expr) => {
        match $bucket {
            Bucket::First => $table.primary(FlowHash($hash)),
            Bucket::Second => $table.secondary(FlowHash($hash)),
        }
    };
}

macro_rules! tables {
    ($words:literal, $table:ident, $kind:ident) => {
        impl SteadyTables<$words> for FlowTables {
            #[inline(always)]
            fn has_dsr_flows_of(&self, key: &SteadyKey<$words>) -> bool {
                self.dsr.$table.has_flows_of(key.0.owner)
            }

            fn has_dsr_entry(&self, key: &SteadyKey<$words>, hash: u64) -> bool {
                self.dsr.$table.find(&key.0, FlowHash(hash)).is_some()
            }

            #[inline(always)]
            fn prefetch_dsr(&self, hash: u64, bucket: Bucket) {
                self.dsr.$table.prefetch_bucket(bucket!(self.dsr.$table, hash, bucket));
            }

            #[inline(always)]
            fn prefetch_nat(&self, hash: u64, bucket: Bucket) {
                self.nat.$table.prefetch_bucket(bucket!(self.nat.$table, hash, bucket));
            }

            #[inline(always)]
            fn steady_dsr(
                &mut self,
                key: &SteadyKey<$words>,
                hash: u64,
                bucket: Bucket,
                tcp: bool,
                now: Now,
            ) -> Option<BackendId> {
                let bucket = bucket!(self.dsr.$table, hash, bucket);
                let entry = self.dsr.$table.steady(bucket, &key.0, tcp, now)?;
                Some(BackendId::from_raw(dsr::$kind::value_in(entry)))
            }

            #[inline(always)]
            fn steady_nat(
                &mut self,
                key: &SteadyKey<$words>,
                hash: u64,
                bucket: Bucket,
                tcp: bool,
                now: Now,
            ) -> Option<SteadyHit<$words>> {
                let bucket = bucket!(self.nat.$table, hash, bucket);
                let entry = self.nat.$table.steady(bucket, &key.0, tcp, now)?;
                let peer = nat::$kind::peer_in(entry);
                Some(SteadyHit {
                    backend: BackendId::from_raw(nat::$kind::value_in(entry)),
                    owner: peer.owner,
                    addr: peer.addr,
                    port: (peer.tag >> 16) as u16,
                })
            }
        }
    };
}

tables!(1, v4, V4);
tables!(4, v6, V6);
