//! The network state of a snapshot: interfaces, routes, addresses and tunnels.

use std::sync::Arc;

use tidegate_spec::TunnelPrefix;
use tidegate_spec::ownership::Layer2;
use tidegate_wire::Addr;

use super::interface::Interface;
use crate::addresses::Addresses;
use crate::neighbors::NeighborId;
use crate::routes::Routes;
use crate::source_ranges::SourceRanges;

/// Everything except services. It determines whether a backend can be reached. Clones share the tables.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) interfaces: Arc<[Interface]>,
    /// Connected networks and routes.
    pub(super) routes: Routes,
    pub(super) addresses: Addresses,
    /// VIPs whose link address is not always answered, sorted.
    pub(super) layer2: Arc<[(Addr, Layer2)]>,
    /// The IPv4 source addresses of `fullnat`, sorted.
    pub(super) snat_v4: Arc<[Addr]>,
    /// The IPv6 source addresses of `fullnat`, sorted.
    pub(super) snat_v6: Arc<[Addr]>,
    pub(super) tunnel_source_v4: Option<TunnelPrefix>,
    pub(super) tunnel_source_v6: Option<TunnelPrefix>,
    /// The next hops of routes.
    pub(super) routers: Arc<[NeighborId]>,
    /// The addresses of `routers`, sorted. Each belongs to another host, whatever else the spec uses it for.
    pub(super) router_addresses: Arc<[Addr]>,
    /// The next hops of default routes.
    pub(super) default_routers: Arc<[NeighborId]>,
    /// The gateways whose tunnel packets are decapsulated, sorted.
    pub(super) tunnel_peers: Arc<[Addr]>,
    /// The networks whose own traffic is forwarded or refused; `None` if there are none.
    pub(super) transit: Option<Arc<Transit>>,
}

/// What happens to traffic that backends originate.
#[derive(Debug)]
pub struct Transit {
    /// The networks of backends.
    pub sources: SourceRanges,
    /// Whether their traffic is forwarded by the routes; otherwise it is refused.
    pub forward: bool,
    /// The sources whose traffic leaves with a SNAT address, if it is forwarded.
    pub masquerade: SourceRanges,
}

impl Transit {
    /// Whether any traffic is masqueraded.
    #[must_use]
    pub fn may_masquerade(&self) -> bool {
        self.forward && !self.masquerade.nets().is_empty()
    }

    /// Whether traffic that `src` originates to `dst` is masqueraded. Traffic between networks of backends is not.
    #[must_use]
    pub fn masquerades(&self, src: &Addr, dst: &Addr) -> bool {
        self.forward && self.masquerade.admits(src) && !self.sources.admits(dst)
    }
}
