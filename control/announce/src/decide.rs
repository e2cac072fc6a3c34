//! Decides which VIPs the gateway announces: a pure function of a round's outcome and the gateway's state.
//!
//! A VIP is announced if this gateway serves it, the workers have applied its Service, and one of its service ports has
//! a reachable endpoint. The gateway announces nothing while it cannot forward, while it is draining, and while it
//! stops. Every VIP that is not announced has a reason ([`Withheld`]).
//!
//! Invariant: nothing here reads a clock. [`super::damping`] handles delays.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{ObjectKey, RouteAttributes};
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::view::{BackendView, BackendViewState, BackendWhy, PortView, ServiceView};

tidegate_model::named! {
    /// Why a VIP is not announced.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Withheld {
        /// The gateway is stopping.
        Leaving => "leaving",
        /// The operator is draining the gateway.
        Draining => "draining",
        /// The gateway cannot forward: a worker or a link is down, or no snapshot is applied.
        NotForwarding => "not-forwarding",
        /// The gateway has started or was interrupted, and has not yet received the flows of its peers (`flowSharing`).
        CatchingUp => "catching-up",
        /// Another gateway serves it.
        NotServed => "not-served",
        /// None of its service ports is programmed.
        NotProgrammed => "not-programmed",
        /// The workers have not applied its Service yet.
        NotApplied => "not-applied",
        /// None of its service ports has a reachable endpoint.
        NoEndpoints => "no-endpoints",
        /// It was withdrawn several times within a short time.
        Flapping => "flapping",
    }
}

/// The state of the gateway as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gateway {
    /// Every worker runs, every link is up, and a snapshot is applied.
    pub forwarding: bool,
    /// The operator is draining it.
    pub draining: bool,
    /// It has started or was interrupted, and has not yet received the flows of its peers.
    pub catching_up: bool,
    /// It is stopping.
    pub leaving: bool,
}

impl Gateway {
    /// Why the gateway announces nothing at all.
    #[must_use]
    pub fn withheld(self) -> Option<Withheld> {
        match self {
            Self { leaving: true, .. } => Some(Withheld::Leaving),
            Self { draining: true, .. } => Some(Withheld::Draining),
            Self { forwarding: false, .. } => Some(Withheld::NotForwarding),
            Self { catching_up: true, .. } => Some(Withheld::CatchingUp),
            Self { .. } => None,
        }
    }
}

/// The inputs of a decision.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The Services of the last round.
    pub services: &'a [Arc<ServiceView>],
    /// The Services whose latest state the workers have not applied yet.
    pub unapplied: &'a BTreeSet<ObjectKey>,
    /// Whether this gateway serves an address.
    pub serves: &'a dyn Fn(IpAddr) -> bool,
    /// The gateway.
    pub gateway: Gateway,
    /// Whether a VIP is announced now. It stays announced while its Service changes, until the workers have applied the
    /// change.
    pub announced: &'a dyn Fn(IpAddr) -> bool,
    /// The pools.
    pub pools: &'a [PoolUsage],
}

/// The decision about one VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vip {
    /// Why it is withheld; `None` if it is announced.
    pub withheld: Option<Withheld>,
    /// Its pool; empty if unknown.
    pub pool: String,
    /// The attributes of its route, from its Services and its pool.
    pub attributes: RouteAttributes,
}

/// Decides about every VIP that a Service has from a pool.
#[must_use]
pub fn decide(input: &Input<'_>) -> BTreeMap<IpAddr, Vip> {
    let mut vips: BTreeMap<IpAddr, Vip> = BTreeMap::new();
    let gateway = input.gateway.withheld();
    let pools: BTreeMap<&str, &RouteAttributes> =
        input.pools.iter().map(|usage| (usage.pool.as_str(), &usage.routes.attributes)).collect();
    let shared = shared_between_namespaces(input.services);
    for service in input.services {
        for vip in service.vips.iter().filter(|vip| vip.is_of_pool()) {
            let withheld = gateway.or_else(|| withheld(input, service, vip.address));
            // A Service must not change the route of another namespace's Service.
            let own = match shared.contains(&vip.address) {
                true => RouteAttributes::default(),
                false => service.bgp.clone(),
            };
            let attributes = pools.get(vip.pool.as_str()).map_or_else(|| own.clone(), |pool| own.or(pool));
            let one = Vip { withheld, pool: vip.pool.clone(), attributes };
            match vips.get_mut(&vip.address) {
                None => {
                    vips.insert(vip.address, one);
                }
                Some(shared) => shared.join(&one),
            }
        }
    }
    vips
}

/// The VIPs that Services of several namespaces share.
fn shared_between_namespaces(services: &[Arc<ServiceView>]) -> BTreeSet<IpAddr> {
    let mut namespaces: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for service in services {
        for vip in service.vips.iter().filter(|vip| vip.is_of_pool()) {
            if *namespaces.entry(vip.address).or_insert(&service.namespace) != service.namespace {
                shared.insert(vip.address);
            }
        }
    }
    shared
}

impl Vip {
    /// Merges the decision of another Service with the same VIP. One reason to announce it is enough.
    fn join(&mut self, other: &Self) {
        self.attributes = self.attributes.with(&other.attributes);
        self.withheld = match (self.withheld, other.withheld) {
            (Some(one), Some(two)) => Some(one.max(two)),
            _ => None,
        };
    }
}

/// Why a VIP of this Service is withheld although the gateway forwards.
fn withheld(input: &Input<'_>, service: &ServiceView, vip: IpAddr) -> Option<Withheld> {
    if !(input.serves)(vip) {
        return Some(Withheld::NotServed);
    }
    let mut programmed =
        service.ports.iter().filter(|port| port.vip == vip && port.refused.is_none()).peekable();
    if service.refused.is_some() || programmed.peek().is_none() {
        return Some(Withheld::NotProgrammed);
    }
    if !programmed.any(has_endpoint) {
        return Some(Withheld::NoEndpoints);
    }
    let key = || ObjectKey::new(service.namespace.as_str(), service.name.as_str());
    if !input.unapplied.is_empty() && input.unapplied.contains(&key()) && !(input.announced)(vip) {
        return Some(Withheld::NotApplied);
    }
    None
}

fn has_endpoint(port: &PortView) -> bool {
    port.backends.iter().any(can_be_reached)
}

/// Whether clients can reach a backend: it accepts new flows, or it still exists and keeps its flows.
fn can_be_reached(backend: &BackendView) -> bool {
    match backend.state {
        BackendViewState::Active => backend.why != BackendWhy::NoNextHop,
        BackendViewState::Draining => !matches!(backend.why, BackendWhy::Removed | BackendWhy::NoNextHop),
        BackendViewState::Down => false,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_policy::reconcile::view::{HealthView, VipKind, VipView};

    use super::*;

    const VIP: &str = "203.0.113.1";

    fn backend(state: BackendViewState, why: BackendWhy) -> BackendView {
        BackendView {
            address: "10.0.0.1".parse().unwrap(),
            port: 80,
            weight: 1,
            state,
            why,
            warm_up_percent: None,
            node: None,
            zone: None,
            pod: None,
            health: HealthView::default(),
        }
    }

    fn service(name: &str, kind: VipKind, backends: Vec<BackendView>) -> ServiceView {
        let port = serde_json::json!({
            "vip": VIP, "name": "http", "port": 80, "protocol": "TCP", "mode": "nat", "backends": [],
        });
        let port: PortView = serde_json::from_value(port).expect("a port");
        ServiceView {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            service_type: None,
            vips: vec![VipView {
                address: VIP.parse().unwrap(),
                kind,
                pool: "public".to_owned(),
                edge: Default::default(),
            }],
            pending: None,
            refused: None,
            unapplied: None,
            warnings: Vec::new(),
            ports: vec![PortView { backends, ..port }],
            mode: None,
            bgp: RouteAttributes::default(),
            created: None,
            since: None,
        }
    }

    const ACTIVE: (BackendViewState, BackendWhy) = (BackendViewState::Active, BackendWhy::Ready);
    const FORWARDS: Gateway =
        Gateway { forwarding: true, draining: false, catching_up: false, leaving: false };

    fn decided(
        services: Vec<ServiceView>,
        gateway: Gateway,
        serves: bool,
        is_applied: bool,
        was: bool,
    ) -> Option<Option<Withheld>> {
        let services: Vec<_> = services.into_iter().map(Arc::new).collect();
        let unapplied =
            if is_applied { BTreeSet::new() } else { BTreeSet::from([ObjectKey::new("shop", "web")]) };
        let vips = decide(&Input {
            services: &services,
            unapplied: &unapplied,
            serves: &|_| serves,
            gateway,
            announced: &|_| was,
            pools: &[],
        });
        vips.get(&VIP.parse().unwrap()).map(|vip| vip.withheld)
    }

    fn web(backends: &[(BackendViewState, BackendWhy)]) -> ServiceView {
        let backends = backends.iter().map(|&(state, why)| backend(state, why)).collect();
        service("web", VipKind::LoadBalancer, backends)
    }

    #[test]
    fn a_vip_is_announced_while_an_endpoint_answers_and_the_gateway_forwards() {
        use BackendViewState::{Down, Draining};
        let one = |backends: &[_]| decided(vec![web(backends)], FORWARDS, true, true, false).unwrap();
        assert_eq!(one(&[ACTIVE]), None);
        assert_eq!(one(&[(Draining, BackendWhy::Terminating)]), None, "it keeps its connections");
        assert_eq!(one(&[(Draining, BackendWhy::Drained), (Down, BackendWhy::Unhealthy)]), None);
        let none = Some(Withheld::NoEndpoints);
        assert_eq!(one(&[]), none);
        for gone in
            [(Draining, BackendWhy::Removed), (Down, BackendWhy::NotReady), (Down, BackendWhy::Unhealthy)]
        {
            assert_eq!(one(&[gone]), none, "{gone:?}");
        }
    }

    #[test]
    fn every_reason_to_withhold_a_vip_is_reported() {
        let with = |gateway| decided(vec![web(&[ACTIVE])], gateway, true, true, true).unwrap();
        assert_eq!(with(Gateway { forwarding: false, ..FORWARDS }), Some(Withheld::NotForwarding));
        assert_eq!(with(Gateway { draining: true, ..FORWARDS }), Some(Withheld::Draining));
        assert_eq!(with(Gateway { catching_up: true, ..FORWARDS }), Some(Withheld::CatchingUp));
        assert_eq!(
            with(Gateway { leaving: true, forwarding: false, draining: true, catching_up: true }),
            Some(Withheld::Leaving)
        );
        let other =
            |serves, applied, was| decided(vec![web(&[ACTIVE])], FORWARDS, serves, applied, was).unwrap();
        assert_eq!(other(false, true, true), Some(Withheld::NotServed));
        assert_eq!(other(true, false, false), Some(Withheld::NotApplied));
        assert_eq!(other(true, false, true), None, "it stays while its Service changes");
        let refused = ServiceView { refused: Some("too large".to_owned()), ..web(&[ACTIVE]) };
        assert_eq!(decided(vec![refused], FORWARDS, true, true, true), Some(Some(Withheld::NotProgrammed)));
        let own = service("web", VipKind::NodePort, vec![backend(ACTIVE.0, ACTIVE.1)]);
        assert_eq!(
            decided(vec![own], FORWARDS, true, true, true),
            None,
            "a gateway's own address is not a VIP"
        );
    }

    #[test]
    fn a_route_has_the_attributes_of_services_only_within_one_namespace() {
        let saying = |namespace: &str, communities: &str| {
            let bgp = RouteAttributes {
                communities: tidegate_model::objects::communities(communities).unwrap(),
                ..RouteAttributes::default()
            };
            let web = web(&[ACTIVE]);
            Arc::new(ServiceView { namespace: namespace.to_owned(), bgp, ..web })
        };
        let pool = tidegate_model::objects::PoolRoutes {
            attributes: saying("", "64512:1").bgp.clone(),
            ..Default::default()
        };
        let pools = [PoolUsage { pool: "public".to_owned(), routes: pool, ..PoolUsage::default() }];
        let carried = |services: &[Arc<ServiceView>]| {
            let vips = decide(&Input {
                services,
                unapplied: &BTreeSet::new(),
                serves: &|_| true,
                gateway: FORWARDS,
                announced: &|_| false,
                pools: &pools,
            });
            let all = &vips[&VIP.parse::<IpAddr>().unwrap()].attributes.communities;
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (shop, more) = (saying("shop", "64512:2"), saying("shop", "64512:3"));
        assert_eq!(carried(&[shop.clone(), more.clone()]), ["64512:1", "64512:2", "64512:3"]);
        let other = saying("other", "no-advertise");
        assert_eq!(carried(&[shop, other, more]), ["64512:1"], "only that of the pool");
    }

    #[test]
    fn one_service_of_a_shared_vip_with_endpoints_is_enough() {
        let other = service("other", VipKind::ExternalIp, Vec::new());
        assert_eq!(decided(vec![other.clone(), web(&[ACTIVE])], FORWARDS, true, true, true), Some(None));
        assert_eq!(
            decided(vec![web(&[]), other], FORWARDS, true, true, true),
            Some(Some(Withheld::NoEndpoints))
        );
    }
}
