//! The tables of a snapshot, and the look-ups in them.

use std::sync::Arc;

use imbl::Vector;
use tidegate_select::selector::Selector;
use tidegate_spec::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use tidegate_spec::ownership::Layer2;
use tidegate_spec::source_lists::{SourceList, SourceLists};
use tidegate_spec::{ForwardingMode, Policy, Protocol, SharedService, SourceRate, TunnelPrefix, limits};
use tidegate_structures::hash::{key_hash, rejection_hash, scale};
use tidegate_structures::prefetch;
use tidegate_structures::selection_key::{client_selection_hash, flow_selection_hash};
use tidegate_wire::{Addr, Family};

use super::interface::Interface;
use super::lineage::Fresh;
use super::network::{Network, Transit};
use super::reusable_parts::ReusableParts;
use crate::addresses::{AddressKind, SourceFault};
use crate::backend::{Backend, Backends, EndpointKey, Endpoints};
use crate::neighbors::NeighborId;
use crate::routes::{NextHop, Routes};
use crate::service::{ChoiceBasis, FurtherVips, Service, ServiceInfo, Services};
use crate::service_limits::{LimitedService, LimitedServices};
use crate::source_ranges::Sets;
use crate::source_rates::SourceRates;

/// An immutable forwarding state. See [the crate](crate).
///
/// ```
/// use tidegate_snapshot::Snapshot;
/// use tidegate_snapshot::neighbors::NeighborTable;
/// use tidegate_spec::SnapshotSpec;
/// let (snapshot, problems) = Snapshot::compile(&SnapshotSpec::default(), None, &NeighborTable::new())?;
/// assert!(problems.is_empty() && snapshot.services().len() == 0);
/// # Ok::<(), tidegate_spec::CompileError>(())
/// ```
#[derive(Debug)]
pub struct Snapshot {
    pub(super) generation: u64,
    pub(super) services: Services,
    pub(super) backends: Backends,
    pub(super) endpoints: Endpoints,
    pub(super) network: Network,
    pub(super) policy: Policy,
    pub(super) source_ranges: Sets,
    pub(super) limited: LimitedServices,
    /// The lists of sources, if they aren't empty.
    pub(super) sources: Option<Arc<SourceLists>>,
    pub(super) source_rates: Option<Arc<SourceRates>>,
    /// The generation in which a service's source ranges, or the lists of sources, last changed.
    pub(super) admission: u64,
    /// The service ports whose schedulers compare loads, in the order of their keys.
    pub(super) compared: Arc<[ServiceId]>,
    /// The further VIPs of SCTP services.
    pub(super) further_vips: FurtherVips,
    pub(super) reusable: ReusableParts,
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

    /// Prefetches the line at which the look-up of a service starts.
    #[inline]
    pub fn prefetch_service(&self, hash: u64) {
        self.services.prefetch(hash);
    }

    /// The service port of a packet. `hash` is the result of [`Self::hash_service`] for the same key.
    #[inline]
    #[must_use]
    pub fn service(&self, hash: u64, dst: &Addr, proto: u8, port: u16) -> Option<&Service> {
        self.services.find(hash, dst, proto, port)
    }

    /// The service port of an id, if it still exists.
    #[inline]
    #[must_use]
    pub fn service_by_id(&self, id: ServiceId) -> Option<&Service> {
        self.services.by_id(id)
    }

    /// Whether the gateway's lists and the source ranges of a service admit a client. Costs two comparisons if there
    /// are neither lists nor ranges, otherwise some cache lines ([`source_lists`](tidegate_spec::source_lists),
    /// [`source_ranges`](crate::source_ranges)).
    #[inline]
    #[must_use]
    pub fn admits(&self, service: &Service, client: &Addr) -> bool {
        !self.denies(client) && self.is_in_range(service, client)
    }

    /// Whether the gateway's own lists refuse a source.
    #[inline]
    #[must_use]
    pub fn denies(&self, source: &Addr) -> bool {
        self.sources.as_ref().is_some_and(|lists| lists.denies(source))
    }

    /// The gateway's own lists of sources, if they aren't empty.
    #[must_use]
    pub fn source_lists(&self) -> Option<&SourceLists> {
        self.sources.as_deref()
    }

    /// The rate of new flows of each source prefix, if there is a limit.
    #[must_use]
    pub fn source_rate(&self) -> Option<SourceRate> {
        self.source_rates.as_ref().map(|rates| rates.rate)
    }

    /// The rates of new flows of source prefixes, if the source is limited: sources in `protection.allow` are not.
    #[inline]
    pub fn source_rates(&self, source: &Addr) -> Option<&SourceRates> {
        let rates = self.source_rates.as_deref()?;
        let list = self.sources.as_ref().and_then(|lists| lists.list_of(source));
        (list != Some(SourceList::Allow)).then_some(rates)
    }

    /// Whether source prefixes have a limit for new flows.
    #[inline]
    pub fn limits_sources(&self) -> bool {
        self.source_rates.is_some()
    }

    /// Whether the source ranges of a service admit a client.
    #[inline]
    #[must_use]
    pub fn is_in_range(&self, service: &Service, client: &Addr) -> bool {
        match service.source_ranges.checked_sub(1) {
            None => true,
            Some(at) => self.source_ranges.get(at).admits(client),
        }
    }

    /// The limits of a service port, with their shared state.
    #[inline]
    #[must_use]
    pub fn limited_service(&self, service: &Service) -> Option<&LimitedService> {
        self.limited.of_port(service.id)
    }

    /// The generation in which the admission of clients last changed. A worker that has checked [`Self::admits`] for
    /// all its flows since then need not check them again.
    #[inline]
    #[must_use]
    pub fn admission(&self) -> u64 {
        self.admission
    }

    /// The service ports whose schedulers compare loads: `lc`, `sed` and `nq`.
    #[inline]
    #[must_use]
    pub fn compared(&self) -> &[ServiceId] {
        &self.compared
    }

    /// Whether a service has `sessionAffinity: ClientIP`. Walks all services.
    #[must_use]
    pub fn has_affinity(&self) -> bool {
        self.services.iter().any(|(service, _)| service.affinity_ms != 0)
    }

    /// Whether a service has the protocol SCTP. Walks all services.
    #[must_use]
    pub fn has_sctp(&self) -> bool {
        self.services.iter().any(|(service, _)| service.protocol == Protocol::Sctp)
    }

    /// The other VIPs of an SCTP service that translates, at which clients reach the same associations. They have the
    /// family of its VIP.
    #[must_use]
    pub fn further_vips(&self, service: ServiceId) -> &[Addr] {
        let found = self.further_vips.binary_search_by_key(&service.raw(), |(id, _)| id.raw());
        found.ok().and_then(|at| self.further_vips.get(at)).map_or(&[], |(_, vips)| vips)
    }

    /// The hash by which a flow of a service chooses its backend ([`Service::select`]). Ports are in host order.
    #[inline(always)]
    #[must_use]
    pub fn choice_hash(&self, service: &Service, src: (&Addr, u16), dst: (&Addr, u16), proto: u8) -> u64 {
        let key = self.policy.selection_key.as_ref();
        match service.basis {
            ChoiceBasis::Flow => flow_selection_hash(key, src.0, src.1, dst.0, dst.1, proto),
            ChoiceBasis::Client => client_selection_hash(key, src.0),
            ChoiceBasis::Vip => client_selection_hash(key, dst.0),
        }
    }

    /// Whether a service rejects a new flow. The 5-tuple decides, alike on every gateway, and independently of the
    /// choice of a backend. A larger share also rejects every flow that a smaller one rejects.
    #[cold]
    #[must_use]
    pub fn rejects(&self, service: &Service, src: (&Addr, u16), dst: (&Addr, u16), proto: u8) -> bool {
        let ppm = self.service_info(service.id).map_or(0, |info| info.rejected_ppm);
        let key = self.policy.selection_key.as_ref();
        let hash = rejection_hash(flow_selection_hash(key, src.0, src.1, dst.0, dst.1, proto));
        scale(hash, limits::REJECTED_PPM_MAX) < ppm
    }

    /// Prefetches a backend.
    #[inline]
    pub fn prefetch_backend(&self, id: BackendId) {
        self.backends.prefetch(id);
    }

    /// The backend of an id, if it still exists.
    #[inline]
    #[must_use]
    pub fn backend(&self, id: BackendId) -> Option<&Backend> {
        self.backends.by_id(id)
    }

    /// The hash of an endpoint, for [`Self::prefetch_endpoint`] and [`Self::endpoint`]. It equals
    /// [`Self::hash_service`] for the same address, protocol and port.
    #[inline]
    #[must_use]
    pub fn hash_endpoint(addr: &Addr, proto: u8, port: u16) -> u64 {
        key_hash(addr, proto, port)
    }

    /// Prefetches the line at which the look-up of an endpoint starts.
    #[inline]
    pub fn prefetch_endpoint(&self, hash: u64) {
        self.endpoints.prefetch(hash);
    }

    /// The endpoint of a `nat` or `fullnat` service that sent a packet. `hash` is the result of [`Self::hash_endpoint`]
    /// for the same key.
    #[inline]
    #[must_use]
    pub fn endpoint(&self, hash: u64, addr: &Addr, proto: u8, port: u16) -> Option<EndpointId> {
        self.endpoints.find(hash, addr, port, proto)
    }

    /// The kind of an address of the gateway; `None` if it is not one.
    #[inline]
    #[must_use]
    pub fn address(&self, dst: &Addr) -> Option<AddressKind> {
        let tunnel = || self.is_tunnel_source(dst).then_some(AddressKind::Tunnel);
        self.network.addresses.find(dst).or_else(tunnel)
    }

    /// How requests for the link address of an address of the gateway are answered.
    #[must_use]
    pub fn layer2(&self, address: &Addr) -> Layer2 {
        let listed = &self.network.layer2;
        listed.binary_search_by_key(address, |(vip, _)| *vip).map_or(Layer2::Always, |at| listed[at].1)
    }

    /// Whether a route has this next hop. Then the address belongs to another host, and the gateway doesn't answer
    /// requests for its link address, even if it is also a VIP, SNAT address or tunnel source.
    #[must_use]
    pub fn is_next_hop(&self, address: &Addr) -> bool {
        self.network.router_addresses.binary_search(address).is_ok()
    }

    /// Why an address cannot be the source of a packet from the wire, judged by the address alone. Routers are
    /// included, although they may send anything except packets to services.
    #[inline]
    #[must_use]
    pub fn source_fault(&self, src: &Addr) -> Option<SourceFault> {
        let tunnel = || self.is_tunnel_source(src).then_some(SourceFault::Ours);
        self.network.addresses.source_fault(src).or_else(tunnel)
    }

    /// Whether an IPv4 address, read as a little-endian number, can be a client of any service. Also false for
    /// link-local addresses, which can be clients of some services.
    #[inline(always)]
    pub fn is_client_of_any(&self, src: u32) -> bool {
        let [a, b, ..] = src.to_le_bytes();
        let is_one_host = !(matches!(a, 0 | 127 | 224..) || (a, b) == (169, 254));
        let tunnel = self.network.tunnel_source_v4.as_ref();
        is_one_host
            && !self.network.addresses.has_meaning_v4(src)
            && !tunnel.is_some_and(|tunnel| tunnel.contains_v4(src))
    }

    /// False if an address is certainly neither a VIP nor another address of the gateway. The argument has the form of
    /// [`Usual`](tidegate_wire::usual::Usual).
    #[inline(always)]
    pub fn may_be_ours<const A: usize>(&self, addr: &[u32; A]) -> bool {
        self.network.addresses.may_have_meaning(addr)
    }

    /// Whether answers to a link-local client stay on its link. With DSR a backend sends them. Otherwise the gateway
    /// sends them, and must be connected to the client's network.
    #[must_use]
    pub fn answers_on_link(&self, client: &Addr, mode: ForwardingMode) -> bool {
        mode.is_dsr() || self.route(client).is_some_and(|hop| hop.via.is_none())
    }

    /// The next hops of default routes.
    #[must_use]
    pub fn default_routers(&self) -> &[NeighborId] {
        &self.network.default_routers
    }

    /// How the gateway treats packets that it may refuse.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The next hop of a packet to `dst`: the longest prefix of connected networks and routes.
    #[inline]
    #[must_use]
    pub fn route(&self, dst: &Addr) -> Option<NextHop> {
        self.network.routes.find(dst)
    }

    /// The addresses of the gateways whose tunnel packets are decapsulated, sorted.
    #[must_use]
    pub fn tunnel_peers(&self) -> &[Addr] {
        &self.network.tunnel_peers
    }

    /// The networks of backends whose own traffic is forwarded or refused.
    #[must_use]
    pub fn transit(&self) -> Option<&Transit> {
        self.network.transit.as_deref()
    }

    /// Whether traffic that `src` originates to `dst` is masqueraded.
    #[must_use]
    pub fn masquerades(&self, src: &Addr, dst: &Addr) -> bool {
        self.transit().is_some_and(|transit| transit.masquerades(src, dst))
    }

    /// The table that [`Self::route`] uses.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.network.routes
    }

    /// An interface.
    #[inline]
    #[must_use]
    pub fn interface(&self, index: InterfaceIndex) -> Option<&Interface> {
        self.network.interfaces.get(usize::from(index))
    }

    /// All interfaces; the position is the interface index.
    #[inline]
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.network.interfaces
    }

    /// The source addresses of `fullnat`, sorted.
    #[inline]
    #[must_use]
    pub fn snat_addresses(&self, family: Family) -> &[Addr] {
        match family {
            Family::V4 => &self.network.snat_v4,
            Family::V6 => &self.network.snat_v6,
        }
    }

    /// Whether an address is a source address of `fullnat`.
    #[must_use]
    pub fn is_snat_address(&self, address: &Addr) -> bool {
        self.snat_addresses(address.family()).binary_search(address).is_ok()
    }

    /// The outer sources of tunnels whose outer header is of this family.
    #[inline]
    #[must_use]
    pub fn tunnel_source(&self, family: Family) -> Option<&TunnelPrefix> {
        match family {
            Family::V4 => self.network.tunnel_source_v4.as_ref(),
            Family::V6 => self.network.tunnel_source_v6.as_ref(),
        }
    }

    /// Whether this is an outer source of tunnels.
    #[must_use]
    pub fn is_tunnel_source(&self, addr: &Addr) -> bool {
        let sources = [&self.network.tunnel_source_v4, &self.network.tunnel_source_v6];
        sources.into_iter().flatten().any(|source| source.contains(addr))
    }

    /// Whether a backend at this address answers clients directly, so that a tunnel may lead to it.
    #[must_use]
    pub fn has_direct_backend(&self, address: &Addr) -> bool {
        self.endpoints.has_direct(address)
    }

    /// Like [`Self::has_direct_backend`], for one (address, port, protocol).
    #[must_use]
    pub fn is_direct_backend(&self, key: &EndpointKey) -> bool {
        self.endpoints.is_direct_at(key)
    }

    /// Prefetches the first lines of the data that every packet reads.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::read(self);
    }
}

/// Functions for reports, `services`, `explain` and the resolver, not for packets.
impl Snapshot {
    /// The generation of the spec.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All service ports in the order of (VIP, protocol, port). Their backends are in the [`ServiceInfo`].
    pub fn services(&self) -> impl ExactSizeIterator<Item = (&Service, &ServiceInfo)> {
        self.services.iter()
    }

    /// The service ports of the spec, in its order.
    #[must_use]
    pub fn specs(&self) -> &Vector<SharedService> {
        &self.reusable.lineage.services
    }

    /// A service port for display, if it still exists.
    #[must_use]
    pub fn service_info(&self, id: ServiceId) -> Option<&ServiceInfo> {
        self.services.info(id)
    }

    /// The number of seats, slots or ring positions, or the weight, of each backend of a service, in the order of
    /// [`ServiceInfo::backends`].
    #[must_use]
    pub fn shares(&self, service: &Service) -> Vec<u32> {
        let shares = service.selector().shares();
        let backends = self.services.info(service.id).map_or(&[][..], |info| &info.backends);
        backends.iter().map(|backend| shares.get(&backend.id).copied().unwrap_or(0)).collect()
    }

    /// The Services with limits, in the order of namespace and name.
    #[must_use]
    pub fn limited_services(&self) -> &[LimitedService] {
        self.limited.all()
    }

    /// The endpoint of an id, if it still exists.
    #[must_use]
    pub fn endpoint_key(&self, id: EndpointId) -> Option<EndpointKey> {
        self.endpoints.by_id(id)
    }

    /// All addresses of the gateway with their kinds, sorted, except pure tunnel sources.
    pub fn addresses(&self) -> impl Iterator<Item = (Addr, AddressKind)> {
        self.network.addresses.iter()
    }

    /// The next hops that routes and backends need resolved, sorted.
    #[must_use]
    pub fn next_hops(&self) -> Vec<NeighborId> {
        let of_backends = self.backends.iter().map(|backend| backend.neighbor);
        let mut all: Vec<_> = self.network.routers.iter().copied().chain(of_backends).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether next hops and announced addresses are unchanged since the previous snapshot. False if unknown.
    #[must_use]
    pub fn same_outside(&self) -> bool {
        self.reusable.lineage.same_outside
    }

    /// The ids that the previous snapshot didn't have. Their counters start at 0.
    #[must_use]
    pub fn fresh(&self) -> &Fresh {
        &self.reusable.lineage.fresh
    }

    /// The required length of tables indexed by [`ServiceId::index`], such as counters.
    #[must_use]
    pub fn service_indices(&self) -> usize {
        self.reusable.generations.services.len()
    }

    /// The required length of tables indexed by [`BackendId::index`].
    #[must_use]
    pub fn backend_indices(&self) -> usize {
        self.reusable.generations.backends.len()
    }

    /// The number of distinct Maglev tables.
    #[must_use]
    pub fn tables(&self) -> usize {
        let table = |service: &Service| match service.selector() {
            Selector::Maglev(slots) => Some(slots.table().as_ptr()),
            // Tables of a warm-up are not counted.
            Selector::WarmUp(_)
            | Selector::Rendezvous(_)
            | Selector::InFlux(_)
            | Selector::RoundRobin(_)
            | Selector::Loads(_) => None,
        };
        let tables = self.services().filter_map(|(service, _)| table(service));
        tables.collect::<std::collections::HashSet<_>>().len()
    }
}
