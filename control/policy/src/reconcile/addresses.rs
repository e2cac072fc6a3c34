//! Step 2, incrementally: the addresses of Services, and the parts of the result that depend on all Services or on
//! the nodes: VIPs, conflicting ports, routes to Pods.
//!
//! `incremental` passes the changes and receives the Services that the result affects.
//!
//! Invariant: a new instance with the same plans, memory and inputs has the same state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{Labels, ObjectKey, Pool, SliceIndex};
use tidegate_model::shared_map::SharedMap;
use tidegate_spec::RouteSpec;

use super::all_pools::all_pools;
use super::finding::{Finding, ObjectKind};
use super::input::Input;
use super::own_frontends::{Claims, Contested};
use super::plan::Planned;
use super::pod_routes::pod_routes;
use super::reserved_addresses::reserved;
use super::settings::Settings;
use super::vip_announcement;
use super::vips::Vips;
use crate::pools::{Allocations, Allocator, Applicant, Granted, Holdings, adopted};

#[derive(Debug)]
pub(super) struct Addresses {
    allocator: Allocator,
    pub(super) vips: Vips,
    pub(super) contested: Contested,
    pub(super) pod_routes: Vec<RouteSpec>,
    pub(super) claimed: SharedMap<ObjectKey, ()>,
    of_pools: Vec<Finding>,
    of_routes: Vec<Finding>,
    /// Findings about unusable parts of Nodes.
    of_nodes: Vec<Finding>,
}

/// Which shared inputs have changed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Changed {
    pub(super) pools: bool,
    /// The addresses of nodes or of the API servers.
    pub(super) reserved: bool,
    pub(super) pod_routes: bool,
    pub(super) node_faults: bool,
}

/// The effects of a call of [`Addresses::update`].
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Services with different addresses, or with ports whose owner has changed.
    pub(super) services: BTreeSet<ObjectKey>,
    /// Addresses that have become VIPs or are no longer VIPs.
    pub(super) vips: Vec<IpAddr>,
    /// Whether findings about pools and nodes have changed.
    pub(super) findings: bool,
}

impl Addresses {
    /// The state without Services, for the shared inputs in `input`.
    pub(super) fn new(input: &Input<'_>, slices: &SliceIndex) -> Self {
        let (mut of_pools, mut of_routes) = (Vec::new(), Vec::new());
        Self {
            allocator: allocator(input, slices, &input.memory.allocations, &mut of_pools),
            vips: Vips::default(),
            contested: Contested::default(),
            pod_routes: pod_routes(input.settings, &input.objects.nodes, &mut of_routes),
            claimed: SharedMap::new(),
            of_pools,
            of_routes,
            of_nodes: faults_of_nodes(input),
        }
    }

    /// Applies the `plans`, of which those in `replanned` have changed. `applicants` are the Services whose requests
    /// for addresses may have changed, including all in `replanned`.
    pub(super) fn update(
        &mut self,
        input: &Input<'_>,
        plans: &BTreeMap<ObjectKey, Planned>,
        slices: &SliceIndex,
        replanned: &BTreeSet<ObjectKey>,
        mut applicants: BTreeSet<ObjectKey>,
        changed: Changed,
    ) -> Effects {
        let mut effects = Effects::default();
        if changed.pod_routes {
            let mut findings = Vec::new();
            self.pod_routes = pod_routes(input.settings, &input.objects.nodes, &mut findings);
            effects.findings |= findings != self.of_routes;
            self.of_routes = findings;
        }
        if changed.node_faults {
            self.of_nodes = faults_of_nodes(input);
            effects.findings = true;
        }
        let authority_changed = self.allocator.set_authority(&input.settings.authority);
        let mut reannounced = BTreeSet::new();
        let mut regranted: BTreeMap<ObjectKey, Option<Granted>> = BTreeMap::new();
        if changed.pools || authority_changed.is_none() {
            let mut findings = Vec::new();
            let allocations = Arc::clone(self.allocator.allocations());
            let fresh = allocator(input, slices, &allocations, &mut findings);
            let before = std::mem::replace(&mut self.allocator, fresh);
            reannounced = reannounced_pools(before.pools(), self.allocator.pools());
            effects.findings |= findings != self.of_pools;
            self.of_pools = findings;
            applicants.extend(plans.keys().chain(before.granted().keys()).cloned());
            regranted
                .extend(before.granted().iter().map(|(key, granted)| (key.clone(), Some(granted.clone()))));
        } else if changed.reserved {
            applicants.extend(self.allocator.reserve(reserved(input.settings, input.objects, slices)));
        }
        applicants.extend(authority_changed.into_iter().flatten());
        let applicant =
            |key: &ObjectKey, remembered: Option<&Holdings>| applicant(input, plans, key, remembered);
        let affected = self.allocator.update(applicants, applicant);
        self.allocator.stabilize(applicant);
        let granted = self.allocator.granted();
        effects.services.extend(affected.into_iter().filter(|key| match regranted.get(key) {
            Some(before) => before.as_ref() != granted.get(key),
            None => true,
        }));

        if !reannounced.is_empty() {
            let uses = |granted: &Granted| {
                let external = granted.external.iter().map(|(assigned, _)| assigned);
                granted
                    .load_balancer
                    .iter()
                    .chain(external)
                    .any(|assigned| reannounced.contains(&assigned.pool))
            };
            effects.services.extend(granted.iter().filter(|(_, g)| uses(g)).map(|(key, _)| key.clone()));
        }

        for key in replanned {
            if plans.get(key).is_some_and(Planned::wants_load_balancer) {
                self.claimed.insert(key.clone(), ());
            } else {
                self.claimed.remove(key);
            }
        }
        let others: BTreeSet<&ObjectKey> = replanned.iter().chain(&effects.services).collect();
        let of = |key: &ObjectKey| plans.get(key).zip(granted.get(key));
        let vips = others.iter().map(|key| (*key, of(key).map(|(p, g)| vips_of(input.settings, p, g))));
        effects.vips = self.vips.update(vips);
        let claims = others.iter().map(|key| {
            let claims = of(key).and_then(|(p, g)| Claims::new(input.settings, p.service(), g));
            (ObjectKey::clone(key), claims)
        });
        let contested = self.contested.update(claims);
        effects.services.extend(contested);
        effects
    }

    /// The result of a Service that has a plan.
    pub(super) fn granted(&self, service: &ObjectKey) -> &Granted {
        &self.allocator.granted()[service]
    }

    pub(super) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.of_pools.iter().chain(&self.of_routes).chain(&self.of_nodes)
    }
}

/// The pools for which the announcing gateways or the announcement methods have changed.
fn reannounced_pools(before: &[Pool], now: &[Pool]) -> BTreeSet<String> {
    let find = |pools: &'_ [Pool], name: &str| pools.iter().position(|pool| pool.name == name);
    let names: BTreeSet<&str> = before.iter().chain(now).map(|pool| pool.name.as_str()).collect();
    let differs = |name: &&str| match (find(before, name), find(now, name)) {
        (Some(was), Some(is)) => !vip_announcement::is_same(&before[was], &now[is]),
        _ => true,
    };
    names.into_iter().filter(differs).map(str::to_owned).collect()
}

fn faults_of_nodes(input: &Input<'_>) -> Vec<Finding> {
    let nodes = input.objects.nodes.values();
    nodes.flat_map(|node| Finding::of_faults(ObjectKind::Node, &node.meta)).collect()
}

fn allocator(
    input: &Input<'_>,
    slices: &SliceIndex,
    allocations: &Arc<Allocations>,
    findings: &mut Vec<Finding>,
) -> Allocator {
    let reserved = reserved(input.settings, input.objects, slices);
    let pools = all_pools(input, findings);
    Allocator::new(pools, reserved, input.settings.authority.clone()).resuming(allocations)
}

/// The applicant for a Service. A Service that is no longer served but still has our finalizer keeps its addresses
/// reserved until it is deleted.
fn applicant<'a>(
    input: &Input<'a>,
    plans: &'a BTreeMap<ObjectKey, Planned>,
    key: &ObjectKey,
    remembered: Option<&Holdings>,
) -> Option<Applicant<'a>> {
    let authority = &input.settings.authority;
    if let Some(planned) = plans.get(key) {
        let plan = planned.plan();
        let previous = adopted(plan.service, remembered, authority);
        let request = &plan.options.addresses;
        let mut requested = request.addresses.clone();
        if request.no_allocation.is_some() {
            // The request is invalid: the Service keeps its addresses, but gets no new addresses.
            let has_any = previous.status_is_ours || !previous.confirmed.is_empty();
            let kept = previous.load_balancer().filter(|_| has_any);
            requested = kept.map(|ip| (ip, "status.loadBalancer.ingress".to_owned())).collect();
        }
        let is_requesting = request.no_allocation.is_none() || !requested.is_empty();
        return Some(Applicant {
            service: plan.service,
            namespace_labels: input.objects.namespace_labels(&key.namespace),
            wants_load_balancer: plan.wants_load_balancer && is_requesting,
            releasing: !plan.wants_load_balancer && plan.service.stored.is_finalized_by_us(),
            requested,
            pool: request.pool.clone(),
            sharing_key: request.sharing_key.clone(),
            previous,
        });
    }
    let service = input.objects.services.get(key).filter(|service| service.stored.is_finalized_by_us())?;
    Some(Applicant {
        service,
        namespace_labels: Labels::new(),
        wants_load_balancer: false,
        releasing: true,
        requested: Vec::new(),
        pool: None,
        sharing_key: None,
        previous: adopted(service, remembered, authority),
    })
}

/// The addresses of a Service, none of which can be an endpoint.
fn vips_of(settings: &Settings, planned: &Planned, granted: &Granted) -> Box<[IpAddr]> {
    let external = granted.external.iter().map(|(a, _)| a.address);
    let own = if settings.services.own_cluster_ips { &planned.service().cluster_ips[..] } else { &[] };
    granted.load_balancer.iter().map(|a| a.address).chain(external).chain(own.iter().copied()).collect()
}
