//! Look-ups for plain packets of established flows, which are nearly all packets, and the creation of simple flows. The
//! fast path of the pipeline uses both.
//!
//! Invariant: look-ups find the same entries as [`DsrTable`](super::DsrTable) and [`NatTable`](super::NatTable), and
//! update them in the same way.

use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::now::Now;

use super::first_lookup::First;
use super::insert_error::InsertError;
use super::key::{FlowHash, PackedKey, REPLY_BIT};
use super::new_flow::NewFlow;
use super::{FlowTables, dsr, nat};

/// The key of a flow whose addresses have `A` words.
#[derive(Debug, Clone, Copy)]
pub struct SteadyKey<const A: usize>(pub(super) PackedKey<A>);

impl<const A: usize> SteadyKey<A> {
    /// The key of a client's flow. The address has the form of [`Usual`](tidegate_wire::usual::Usual).
    #[inline(always)]
    pub fn flow(service: ServiceId, client: [u32; A], client_port: u16) -> Self {
        Self(PackedKey { owner: service.raw(), tag: u32::from(client_port) << 16, addr: client })
    }

    /// The key of the replies of an endpoint to this address and port.
    #[inline(always)]
    pub fn reply(endpoint: EndpointId, to: [u32; A], to_port: u16) -> Self {
        Self(PackedKey { owner: endpoint.raw(), tag: u32::from(to_port) << 16 | REPLY_BIT, addr: to })
    }
}

/// One of the two hash buckets of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bucket {
    /// The first hash bucket.
    First,
    /// The second hash bucket.
    Second,
}

/// The entry of one side of an established NAT flow.
#[derive(Debug, Clone, Copy)]
pub struct SteadyHit<const A: usize> {
    /// The backend of the flow.
    pub backend: BackendId,
    /// The endpoint in the client's entry, the service in the entry of replies.
    pub owner: u32,
    /// The address of the other side's key: the source towards the backend, or the client.
    pub addr: [u32; A],
    /// Its port, in host order.
    pub port: u16,
}

impl FlowTables {
    /// The hash of a key, as a number.
    #[inline(always)]
    pub fn steady_hash<const A: usize>(&self, key: &SteadyKey<A>) -> u64 {
        self.hasher.hash_packed(&key.0).bits()
    }
}

/// The tables for addresses of `A` words.
pub trait SteadyTables<const A: usize> {
    /// Whether the service of a key has any entry in the table of DSR flows.
    fn has_dsr_flows_of(&self, key: &SteadyKey<A>) -> bool;

    /// Whether a key has a DSR entry in this hash bucket, in any state.
    fn has_dsr_entry(&self, key: &SteadyKey<A>, hash: u64, bucket: Bucket) -> bool;

    /// Whether a key has a NAT entry in this hash bucket, in any state.
    fn has_nat_entry(&self, key: &SteadyKey<A>, hash: u64, bucket: Bucket) -> bool;

    /// Creates a DSR flow. A look-up has found its key in neither hash bucket.
    ///
    /// # Errors
    /// As [`DsrTable::insert_new`](super::DsrTable::insert_new).
    fn create_dsr(&mut self, flow: &NewFlow<SteadyKey<A>>) -> Result<(), InsertError>;

    /// Prefetches a hash bucket of DSR flows.
    fn prefetch_dsr(&self, hash: u64, bucket: Bucket);

    /// Prefetches a hash bucket of NAT flows.
    fn prefetch_nat(&self, hash: u64, bucket: Bucket);

    /// Creates a NAT flow whose replies have the key `reply`. A look-up has found the client's key in neither hash
    /// bucket. Returns false, and changes no flow, if another flow has the reply key or would have to be evicted.
    fn create_nat(&mut self, flow: &NewFlow<SteadyKey<A>>, reply: &SteadyKey<A>, reply_hash: u64) -> bool;

    /// The backend of an established flow with recent packets, if its entry is in this hash bucket. Records a plain
    /// packet; `tcp` is true if it is a TCP segment.
    fn steady_dsr(
        &mut self,
        key: &SteadyKey<A>,
        hash: u64,
        bucket: Bucket,
        tcp: bool,
        now: Now,
    ) -> First<BackendId>;

    /// The entry of an established NAT flow, under the conditions of [`Self::steady_dsr`].
    fn steady_nat(
        &mut self,
        key: &SteadyKey<A>,
        hash: u64,
        bucket: Bucket,
        tcp: bool,
        now: Now,
    ) -> First<SteadyHit<A>>;
}

/// The index of a key's hash bucket in a table.
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

            #[inline(always)]
            fn has_dsr_entry(&self, key: &SteadyKey<$words>, hash: u64, bucket: Bucket) -> bool {
                self.dsr.$table.find_in(bucket!(self.dsr.$table, hash, bucket), &key.0).is_some()
            }

            #[inline(always)]
            fn has_nat_entry(&self, key: &SteadyKey<$words>, hash: u64, bucket: Bucket) -> bool {
                self.nat.$table.find_in(bucket!(self.nat.$table, hash, bucket), &key.0).is_some()
            }

            #[inline(always)]
            fn create_dsr(&mut self, flow: &NewFlow<SteadyKey<$words>>) -> Result<(), InsertError> {
                debug_assert_eq!(flow.hash.0, self.steady_hash(&flow.key), "the hash belongs to the key");
                self.dsr.$table.create(&flow.with_key(flow.key.0))
            }

            #[inline(always)]
            fn create_nat(
                &mut self,
                flow: &NewFlow<SteadyKey<$words>>,
                reply: &SteadyKey<$words>,
                reply_hash: u64,
            ) -> bool {
                debug_assert_eq!(flow.hash.0, self.steady_hash(&flow.key), "the hash belongs to the key");
                self.nat.$table.create_pair(&flow.with_key(flow.key.0), &reply.0, FlowHash(reply_hash))
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
            ) -> First<BackendId> {
                let bucket = bucket!(self.dsr.$table, hash, bucket);
                let found = self.dsr.$table.steady(bucket, &key.0, tcp, now);
                found.map(|entry| BackendId::from_raw(dsr::$kind::value_in(entry)))
            }

            #[inline(always)]
            fn steady_nat(
                &mut self,
                key: &SteadyKey<$words>,
                hash: u64,
                bucket: Bucket,
                tcp: bool,
                now: Now,
            ) -> First<SteadyHit<$words>> {
                let bucket = bucket!(self.nat.$table, hash, bucket);
                self.nat.$table.steady(bucket, &key.0, tcp, now).map(|entry| {
                    let peer = nat::$kind::peer_in(entry);
                    SteadyHit {
                        backend: BackendId::from_raw(nat::$kind::value_in(entry)),
                        owner: peer.owner,
                        addr: peer.addr,
                        port: (peer.tag >> 16) as u16,
                    }
                })
            }
        }
    };
}

tables!(1, v4, V4);
tables!(4, v6, V6);
