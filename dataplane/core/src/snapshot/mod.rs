//! `Snapshot`: the forwarding state of one moment, immutable, read by all workers at once.
//!
//! The control plane compiles one from a [`SnapshotSpec`] and publishes it; workers take it once per burst. Look-ups
//! have several steps, so that a stage can prefetch what the next one reads: hash, prefetch, find;
//! [`Service::prefetch_choice`], [`Service::select`], prefetch, [`Snapshot::backend`]. Nothing here allocates, except
//! the functions for people at the end. Link addresses are not here, because they change independently: they are in
//! the [`NeighborTable`](crate::neighbors::NeighborTable) that all snapshots share.
//!
//! Invariant: a snapshot names no backend that it does not contain; an id from an older one finds the same thing or
//! nothing. Equal specs compile to snapshots that make the same decisions, whatever the order in which they list
//! things.

mod compare;
mod compile;
mod indices;
mod interface;
mod problem;
mod spec;
mod tunnel_prefix;

pub use interface::Interface;
pub use problem::{BackendProblem, CompileError, Problem};
pub use spec::*;
pub use tunnel_prefix::TunnelPrefix;

use std::sync::Arc;

use crate::addresses::{AddressKind, Addresses, SourceFault};
use crate::backend::{Backend, Backends, EndpointKey, Endpoints};
use crate::hash::key_hash;
use crate::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use crate::maglev::Tables;
use crate::neighbors::NeighborSlot;
use crate::prefetch;
use crate::routes::{NextHop, Routes};
use crate::selector::Selector;
use crate::service::{Service, ServiceInfo, Services};
use crate::source_ranges::Sets;
use crate::wire::{Addr, Family};
use compile::{Holds, Lineage};
use indices::Generations;

/// See the module.
///
/// ```
/// use tidegate_core::neighbors::NeighborTable;
/// use tidegate_core::snapshot::{Snapshot, SnapshotSpec};
/// let (snapshot, problems) = Snapshot::compile(&SnapshotSpec::default(), None, &NeighborTable::new())?;
/// assert!(problems.is_empty() && snapshot.services().len() == 0);
/// # Ok::<(), tidegate_core::snapshot::CompileError>(())
/// ```
#[derive(Debug)]
pub struct Snapshot {
    generation: u64,
    services: Services,
    backends: Backends,
    endpoints: Endpoints,
    addresses: Addresses,
    routes: Routes,
    interfaces: Arc<[Interface]>,
    snat_v4: Arc<[Addr]>,
    snat_v6: Arc<[Addr]>,
    tunnel_source_v4: Option<TunnelPrefix>,
    tunnel_source_v6: Option<TunnelPrefix>,
    policy: Policy,
    default_routers: Arc<[NeighborSlot]>,
    /// What the next compile carries on: not read by workers.
    generations: Generations,
    tables: Tables,
    source_ranges: Sets,
    /// The generation in which a service's source ranges last changed.
    admission: u64,
    routers: Arc<[NeighborSlot]>,
    static_neighbors: Arc<[NeighborSlot]>,
    /// Keep the slots of next hops while this snapshot can be read.
    holds: Holds,
    lineage: Lineage,
}

/// Ids that no snapshot before had.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fresh {
    /// Of service ports.
    pub services: Box<[ServiceId]>,
    /// Of backends.
    pub backends: Box<[BackendId]>,
}

/// Look-ups of the packet path.
impl Snapshot {
    /// The hash of a packet's destination, for [`Self::prefetch_service`] and [`Self::service`]. `proto` is the
    /// IANA number, `port` in host order.
    #[inline]
    #[must_use]
    pub fn hash_service(dst: &Addr, proto: u8, port: u16) -> u64 {
        key_hash(dst, proto, port)
    }

    /// Asks the cache for the line where the look-up of a service begins.
    #[inline]
    pub fn prefetch_service(&self, hash: u64) {
        self.services.prefetch(hash);
    }

    /// The service port that a packet is to, `hash` being [`Self::hash_service`] of the same key.
    #[inline]
    #[must_use]
    pub fn service(&self, hash: u64, dst: &Addr, proto: u8, port: u16) -> Option<&Service> {
        self.services.find(hash, dst, proto, port)
    }

    /// The service port of an id, unless it is gone.
    #[inline]
    #[must_use]
    pub fn service_by_id(&self, id: ServiceId) -> Option<&Service> {
        self.services.by_id(id)
    }

    /// Whether a client may begin a flow with a service: one comparison where the service has no source ranges, else
    /// some cache lines ([`source_ranges`](crate::source_ranges)).
    #[inline]
    #[must_use]
    pub fn admits(&self, service: &Service, client: &Addr) -> bool {
        match service.source_ranges.checked_sub(1) {
            None => true,
            Some(at) => self.source_ranges.get(at).admits(client),
        }
    }

    /// The generation in which the source ranges of a service with flows last changed. A worker that has called
    /// [`Self::admits`] for all its flows since then need not do so again.
    #[inline]
    #[must_use]
    pub fn admission(&self) -> u64 {
        self.admission
    }

    /// Asks the cache for a backend.
    #[inline]
    pub fn prefetch_backend(&self, id: BackendId) {
        self.backends.prefetch(id);
    }

    /// The backend of an id, unless it is gone.
    #[inline]
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Backend> {
        self.backends.by_id(id)
    }

    /// The hash of an endpoint, for [`Self::prefetch_endpoint`] and [`Self::endpoint`]. For the same address,
    /// protocol and port it is that of [`Self::hash_service`].
    #[inline]
    #[must_use]
    pub fn hash_endpoint(addr: &Addr, proto: u8, port: u16) -> u64 {
        key_hash(addr, proto, port)
    }

    /// Asks the cache for the line where the look-up of an endpoint begins.
    #[inline]
    pub fn prefetch_endpoint(&self, hash: u64) {
        self.endpoints.prefetch(hash);
    }

    /// The endpoint of a `nat` or `fullnat` service that a packet is from, `hash` being
    /// [`Self::hash_endpoint`] of the same key.
    #[inline]
    #[must_use]
    pub fn endpoint(&self, hash: u64, addr: &Addr, proto: u8, port: u16) -> Option<EndpointId> {
        self.endpoints.find(hash, addr, port, proto)
    }

    /// What an address of ours is; `None` if it is not ours.
    #[inline]
    #[must_use]
    pub fn address(&self, dst: &Addr) -> Option<AddressKind> {
        let tunnel = || self.is_tunnel_source(dst).then_some(AddressKind::Tunnel);
        self.addresses.find(dst).or_else(tunnel)
    }

    /// Why an address cannot be the source of a packet from the wire, judged by the address alone. Routers are
    /// included; they may send everything except packets to services.
    #[inline]
    #[must_use]
    pub fn source_fault(&self, src: &Addr) -> Option<SourceFault> {
        let tunnel = || self.is_tunnel_source(src).then_some(SourceFault::Ours);
        self.addresses.source_fault(src).or_else(tunnel)
    }

    /// Whether answers to a link-local client stay on its link: a backend sends them with DSR, the gateway otherwise,
    /// which has to have the client's network connected.
    #[must_use]
    pub fn answers_on_link(&self, client: &Addr, mode: ForwardingMode) -> bool {
        mode.is_dsr() || self.route(client).is_some_and(|hop| hop.via.is_none())
    }

    /// The next hops of default routes.
    #[must_use]
    pub fn default_routers(&self) -> &[NeighborSlot] {
        &self.default_routers
    }

    /// How packets are met that a gateway may well refuse.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Where a packet to `dst` leaves: longest prefix of connected networks and routes.
    #[inline]
    #[must_use]
    pub fn route(&self, dst: &Addr) -> Option<NextHop> {
        self.routes.find(dst)
    }

    /// All that [`Self::route`] goes by.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// An interface.
    #[inline]
    #[must_use]
    pub fn interface(&self, index: InterfaceIndex) -> Option<&Interface> {
        self.interfaces.get(usize::from(index))
    }

    /// All interfaces; the position is the interface index.
    #[inline]
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The source addresses of `fullnat`, sorted.
    #[inline]
    #[must_use]
    pub fn snat_addresses(&self, family: Family) -> &[Addr] {
        match family {
            Family::V4 => &self.snat_v4,
            Family::V6 => &self.snat_v6,
        }
    }

    /// The outer sources of tunnels whose outer header is of this family.
    #[inline]
    #[must_use]
    pub fn tunnel_source(&self, family: Family) -> Option<&TunnelPrefix> {
        match family {
            Family::V4 => self.tunnel_source_v4.as_ref(),
            Family::V6 => self.tunnel_source_v6.as_ref(),
        }
    }

    /// Whether tunnel packets have this outer source.
    #[must_use]
    pub fn is_tunnel_source(&self, addr: &Addr) -> bool {
        let sources = [&self.tunnel_source_v4, &self.tunnel_source_v6];
        sources.into_iter().flatten().any(|source| source.contains(addr))
    }

    /// Whether a backend at this address answers clients itself: what a tunnel may lead to.
    #[must_use]
    pub fn has_direct_backend(&self, address: &Addr) -> bool {
        self.endpoints.has_direct(address)
    }

    /// The same for one (address, port, protocol).
    #[must_use]
    pub fn is_direct_backend(&self, key: &EndpointKey) -> bool {
        self.endpoints.is_direct_at(key)
    }

    /// Asks the cache for the first lines of what every packet reads.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::read(self);
    }
}

/// For reports, `services`, `explain`, the resolver: not per packet.
impl Snapshot {
    /// The generation of the spec.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All service ports in the order of (VIP, protocol, port); their backends are in the info.
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&Service, &ServiceInfo)> {
        self.services.iter()
    }

    /// A service port for people, unless it is gone.
    #[must_use]
    pub fn service_info(&self, id: ServiceId) -> Option<&ServiceInfo> {
        self.services.info(id)
    }

    /// Seats or Maglev slots of each backend of a service, in the order of [`ServiceInfo::backends`].
    #[must_use]
    pub fn shares(&self, service: &Service) -> Vec<u32> {
        let shares = service.selector().shares();
        let backends = self.services.info(service.id).map_or(&[][..], |info| &info.backends);
        backends.iter().map(|backend| shares.get(&backend.id).copied().unwrap_or(0)).collect()
    }

    /// The endpoint of an id, unless it is gone.
    #[must_use]
    pub fn endpoint_key(&self, id: EndpointId) -> Option<EndpointKey> {
        self.endpoints.by_id(id)
    }

    /// All addresses of ours with their kinds, sorted, but those that are only sources of tunnels.
    pub fn addresses(&self) -> impl Iterator<Item = (Addr, AddressKind)> {
        self.addresses.iter()
    }

    /// The next hops that routes and backends need resolved, sorted.
    #[must_use]
    pub fn next_hops(&self) -> Vec<NeighborSlot> {
        let of_backends = self.backends.iter().map(|backend| backend.neighbor);
        let mut all: Vec<_> = self.routers.iter().copied().chain(of_backends).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether the spec names the same next hops, and the same addresses to be announced, as that of the snapshot
    /// before. False where that was not looked into.
    #[must_use]
    pub fn same_outside(&self) -> bool {
        self.lineage.same_outside
    }

    /// The ids that the previous snapshot did not have: counters by id start at 0 for these.
    #[must_use]
    pub fn fresh(&self) -> &Fresh {
        &self.lineage.fresh
    }

    /// How long tables indexed by [`ServiceId::index`] have to be (counters).
    #[must_use]
    pub fn service_indices(&self) -> usize {
        self.generations.services.len()
    }

    /// How long tables indexed by [`BackendId::index`] have to be.
    #[must_use]
    pub fn backend_indices(&self) -> usize {
        self.generations.backends.len()
    }

    /// Distinct Maglev tables.
    #[must_use]
    pub fn tables(&self) -> usize {
        let table = |service: &Service| match service.selector() {
            Selector::Maglev(slots) => Some(slots.table().as_ptr()),
            Selector::Rendezvous(_) => None,
        };
        let tables = self.services().filter_map(|(service, _)| table(service));
        tables.collect::<std::collections::HashSet<_>>().len()
    }
}

#[cfg(test)]
mod tests;
