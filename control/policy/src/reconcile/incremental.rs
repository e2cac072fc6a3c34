//! [`Reconciler`]: [`reconcile`](super::reconcile) with a cached result for each Service. It recomputes only the
//! Services whose inputs changed.
//!
//! Changes are found by comparing the inputs with the inputs of the last call:
//! [`differences`] skips everything that both states of the objects share. A change of a Service, of its slices or of its addresses affects that Service. A change of a node, a Pod, a
//! verdict or a drain affects the Services whose results depend on it (`affected`). A change of a namespace's labels
//! affects its Services, if a pool's selector distinguishes them. Everything is recomputed only if the settings change
//! (except which gateway decides on addresses), or if the memory is not what the last call returned. The state that
//! Services share (`sums`, `addresses`) is updated.
//!
//! Invariant: equal inputs give an equal [`Outcome`], whatever the previous calls were (tested over random
//! histories).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::config::PodRoutes;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{EndpointIndex, Node, ObjectKey, Objects, Pod, PodIndex, Service, SliceIndex};
use tidegate_model::shared_map::{Difference, differences};
use tidegate_spec::{RouteSpec, SnapshotSpec};

use super::addresses::{Addresses, Changed, Effects};
use super::aggregate::Sums;
use super::checkable_networks::Checkable;
use super::context::Context;
use super::dependencies::Changes;
use super::drain::DrainTarget;
use super::input::{Input, Memory};
use super::outcome::Outcome;
use super::plan::{Planned, plan};
use super::reserved_addresses;
use super::serve::{Entry, serve};
use super::service_addresses::ServiceAddresses;
use super::settings::Settings;
use super::table_shares::{self, Shares};
use crate::pools::Granted;

/// A cache of the results of [`reconcile`](super::reconcile).
///
/// ```
/// use std::{collections::BTreeSet, time::Duration};
/// use tidegate_policy::reconcile::{Input, Memory, Reconciler, Settings, reconcile};
/// use tidegate_model::{health::Verdicts, objects::Objects};
/// let (settings, objects) = (Settings::default(), Objects::default());
/// let (verdicts, drained, memory) = (Verdicts::default(), BTreeSet::new(), Memory::default());
/// let input = Input {
///     settings: &settings,
///     objects: &objects,
///     verdicts: &verdicts,
///     drained: &drained,
///     memory: &memory,
///     generation: 1,
///     now: Duration::ZERO,
/// };
/// let mut reconciler = Reconciler::default();
/// assert_eq!(reconciler.reconcile(&input), reconcile(&input));
/// ```
#[derive(Debug, Default)]
pub struct Reconciler {
    last: Option<Last>,
}

/// The inputs of the last call, and its results.
#[derive(Debug)]
struct Last {
    settings: Settings,
    objects: Objects,
    verdicts: Verdicts,
    drained: BTreeSet<DrainTarget>,
    memory: Memory,
    slices: SliceIndex,
    plans: BTreeMap<ObjectKey, Planned>,
    /// For each Service, the Gateways whose routes name it.
    referrers: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    addresses: Addresses,
    served: BTreeMap<ObjectKey, Entry>,
    shares: Shares,
    sums: Sums,
    recomputed: usize,
}

impl Reconciler {
    /// Computes the desired state: the same result as [`reconcile`](super::reconcile).
    #[must_use]
    pub fn reconcile(&mut self, input: &Input<'_>) -> Outcome {
        // The state is taken out, so that a panic leaves no inconsistent state behind.
        let (mut last, mut dirty) = match self.last.take().filter(|last| last.can_update(input)) {
            Some(mut last) => {
                let dirty = last.changed(input);
                (last, dirty)
            }
            None => (Last::new(input), Dirty::everything(input)),
        };
        let replanned = last.plan(input, &dirty.services);
        let effects = last.allocate(input, &replanned, &mut dirty);
        dirty.services.extend(effects);
        last.serve(input, &dirty.services);
        last.recomputed = dirty.services.len();
        let outcome = last.outcome(input);
        self.last = Some(last);
        outcome
    }

    /// The results of the address allocation in the last call.
    pub(super) fn granted(&self) -> Arc<BTreeMap<ObjectKey, Granted>> {
        self.last.as_ref().map_or_else(Arc::default, |last| Arc::clone(last.addresses.allocator().granted()))
    }

    /// The number of Services that the last call computed: only those that the changes could affect.
    #[must_use]
    pub fn recomputed(&self) -> usize {
        self.last.as_ref().map_or(0, |last| last.recomputed)
    }
}

/// Injects the effects of a missed dependency, for the tests of the comparison.
#[cfg(test)]
impl Reconciler {
    /// Replaces the objects with `objects` without computing anything.
    pub(super) fn miss(&mut self, objects: &Objects) {
        self.last.as_mut().expect("there was a call before").objects = objects.clone();
    }
}

#[derive(Debug, Default)]
struct Dirty {
    services: BTreeSet<ObjectKey>,
    applicants: BTreeSet<ObjectKey>,
    shared_inputs: Changed,
}

impl Dirty {
    fn everything(input: &Input<'_>) -> Self {
        let services: BTreeSet<ObjectKey> = input.objects.services.keys().cloned().collect();
        let remembered = input.memory.allocations.by_service.keys().cloned();
        let applicants = services.iter().cloned().chain(remembered).collect();
        Self { services, applicants, shared_inputs: Changed::default() }
    }
}

impl Last {
    fn new(input: &Input<'_>) -> Self {
        let slices = SliceIndex::new(input.objects);
        Self {
            settings: input.settings.clone(),
            objects: input.objects.clone(),
            verdicts: input.verdicts.clone(),
            drained: input.drained.clone(),
            memory: input.memory.clone(),
            plans: BTreeMap::new(),
            referrers: BTreeMap::new(),
            addresses: Addresses::new(input, &slices),
            slices,
            served: BTreeMap::new(),
            shares: Shares::default(),
            sums: Sums::default(),
            recomputed: 0,
        }
    }

    /// Whether the last state can be updated, because [`Self::changed`] covers all changes of the inputs.
    fn can_update(&self, input: &Input<'_>) -> bool {
        self.settings.equals_except_authority(input.settings)
            && self.memory.drains.is_same(&input.memory.drains)
            && self.memory.removed_ports.is_same(&input.memory.removed_ports)
            && Arc::ptr_eq(&self.memory.allocations, &input.memory.allocations)
    }

    /// What must be recomputed because the inputs changed. Stores the new inputs.
    fn changed(&mut self, input: &Input<'_>) -> Dirty {
        let mut dirty = Dirty::default();
        let (old, new) = (&self.objects, input.objects);
        for change in differences(&old.services, &new.services) {
            let given = |service: Option<&Arc<Service>>| {
                service
                    .map_or_else(Vec::new, |s| reserved_addresses::of_other_load_balancer(input.settings, s))
            };
            dirty.shared_inputs.reserved |= given(change.before) != given(change.after);
            dirty.services.insert(change.key.clone());
        }
        // Services that are not ours are included, because their finalizer may reserve an address.
        dirty.applicants.extend(dirty.services.iter().cloned());
        dirty.services.extend(differences(&old.endpoints, &new.endpoints).map(|d| d.key.clone()));
        for change in differences(&old.endpoint_slices, &new.endpoint_slices) {
            dirty.services.extend(self.slices.replace(change.before, change.after));
        }
        dirty.shared_inputs.reserved |=
            dirty.services.contains(&reserved_addresses::api_server()) || old.api_servers != new.api_servers;
        dirty.shared_inputs.pools =
            old.address_pools != new.address_pools || old.service_cidrs != new.service_cidrs;
        self.namespaces(input, &mut dirty);

        let mut changes = Changes::default();
        for change in differences(&old.nodes, &new.nodes) {
            changes.node(&change);
            dirty.shared_inputs.reserved |= differs(&change, |node| (&node.internal_ips, &node.external_ips));
            dirty.shared_inputs.node_faults |= differs(&change, |node| &node.meta.faults);
            dirty.shared_inputs.pod_routes |= input.settings.services.pod_routes == PodRoutes::Node
                && differs(&change, |node| (&node.internal_ips, &node.pod_cidrs));
        }
        for change in differences(&old.pods, &new.pods) {
            changes.pod(&change);
            dirty.services.extend(self.with_endpoints_from(&change));
        }
        // A Gateway has the endpoints of the Services that its routes name.
        let gateways = dirty.services.iter().filter_map(|service| self.referrers.get(service));
        let gateways: Vec<ObjectKey> = gateways.flatten().cloned().collect();
        dirty.services.extend(gateways);
        let changed = self.verdicts.differing(input.verdicts);
        changed.iter().for_each(|target| changes.address(target.address.ip()));
        let drained = self.drained.symmetric_difference(input.drained);
        drained.for_each(|target| changes.drain(target));
        dirty.services.extend(self.affected(changes));
        let due = self.sums.deadlines.iter().take_while(|(deadline, _)| *deadline <= input.now);
        dirty.services.extend(due.map(|(_, key)| key.clone()));

        self.objects = new.clone();
        self.verdicts = input.verdicts.clone();
        if self.drained != *input.drained {
            self.drained = input.drained.clone();
        }
        if self.settings.authority != input.settings.authority {
            self.settings.authority = input.settings.authority.clone();
        }
        dirty
    }

    /// Finds the Services that may get other addresses, because a pool's selector gives a different result for the
    /// labels of their namespace.
    fn namespaces(&self, input: &Input<'_>, dirty: &mut Dirty) {
        let (old, new) = (&self.objects, input.objects);
        for change in differences(&old.namespaces, &new.namespaces) {
            let [was, is] = [old, new].map(|objects| objects.namespace_labels(change.key));
            let mut selectors =
                self.addresses.allocator().pools().iter().map(|pool| &pool.namespace_selector);
            if selectors.any(|selector| selector.matches(&was) != selector.matches(&is)) {
                let of_namespace = self.plans.range(ObjectKey::new(change.key.as_str(), "")..);
                let of_namespace =
                    of_namespace.map(|(key, _)| key).take_while(|k| k.namespace == *change.key);
                dirty.applicants.extend(of_namespace.cloned());
            }
        }
    }

    /// The Services without slices whose endpoints may include this Pod.
    fn with_endpoints_from<'a>(
        &'a self,
        change: &Difference<'a, ObjectKey, Arc<Pod>>,
    ) -> impl Iterator<Item = ObjectKey> + 'a {
        let Difference { key, before, after } = *change;
        let namespace = key.namespace.as_str();
        let first = ObjectKey::new(namespace, "");
        let is_here = move |key: &&ObjectKey| key.namespace == namespace;
        let served = self.served.range(first.clone()..).map(|(key, _)| key).take_while(is_here);
        let routed = self.referrers.range(first..).map(|(key, _)| key).take_while(is_here);
        let services = served.chain(routed).filter_map(|key| Some((key, self.objects.services.get(key)?)));
        let selects = move |service: &Service| {
            let labels = [before, after].into_iter().flatten().map(|pod| &pod.meta.labels);
            let mut selected = labels.map(|l| service.selector.iter().all(|(k, v)| l.get(k) == Some(v)));
            !service.selector.is_empty() && selected.any(|selected| selected)
        };
        services.filter(move |(_, service)| selects(service)).map(|(key, _)| key.clone())
    }

    fn affected(&self, changes: Changes) -> Vec<ObjectKey> {
        changes
            .affected(self.served.iter().map(|(key, entry)| (key, &entry.dependencies)))
            .into_iter()
            .cloned()
            .collect()
    }

    /// Repeats step 1 for these Services. Returns the Services whose plan has changed.
    fn plan(&mut self, input: &Input<'_>, services: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        let mut replanned = BTreeSet::new();
        for key in services {
            let service = input.objects.services.get(key);
            if let (Some(service), Some(planned)) = (service, self.plans.get(key))
                && Arc::ptr_eq(service, &planned.service)
            {
                continue;
            }
            let planned = service.and_then(|service| plan(service, input.settings));
            self.refer(key, planned.as_ref());
            let changed = match planned {
                Some(planned) => {
                    self.plans.insert(key.clone(), planned);
                    true
                }
                None => self.plans.remove(key).is_some(),
            };
            if changed {
                replanned.insert(key.clone());
            }
        }
        replanned
    }

    /// Records which Services the routes of a Gateway name.
    fn refer(&mut self, key: &ObjectKey, after: Option<&Planned>) {
        if key.gateway_name().is_none() {
            return;
        }
        let named = |planned: &Planned| {
            let backends = planned
                .service()
                .ports
                .iter()
                .flat_map(|port| port.routed.iter().flat_map(|routed| &routed.backends));
            backends.filter_map(|backend| Some(backend.service.as_ref()?.0.clone())).collect::<BTreeSet<_>>()
        };
        let before = self.plans.get(key).map(named).unwrap_or_default();
        let after = after.map(named).unwrap_or_default();
        for service in before.difference(&after) {
            if let Some(gateways) = self.referrers.get_mut(service) {
                gateways.remove(key);
                if gateways.is_empty() {
                    self.referrers.remove(service);
                }
            }
        }
        for service in after.difference(&before) {
            self.referrers.entry(service.clone()).or_default().insert(key.clone());
        }
    }

    /// Repeats step 2 if its inputs changed. Returns the Services that the result affects.
    fn allocate(
        &mut self,
        input: &Input<'_>,
        replanned: &BTreeSet<ObjectKey>,
        dirty: &mut Dirty,
    ) -> Vec<ObjectKey> {
        let mut applicants = std::mem::take(&mut dirty.applicants);
        applicants.extend(replanned.iter().cloned());
        let (plans, slices) = (&self.plans, &self.slices);
        let effects = self.addresses.update(input, plans, slices, replanned, applicants, dirty.shared_inputs);
        let Effects { services, vips, findings } = effects;
        if findings {
            self.sums.listed_findings = None;
        }
        let mut changes = Changes::default();
        vips.into_iter().for_each(|ip| changes.address(ip));
        let affected = self.affected(changes);
        services.into_iter().chain(affected).collect()
    }

    /// Repeats steps 3 and 4 for these Services, and for those that now fit into the tables or no longer do.
    fn serve(&mut self, input: &Input<'_>, services: &BTreeSet<ObjectKey>) {
        let network = &input.settings.network;
        let (own_addresses, hostless) = (&network.own_addresses(), &network.hostless_addresses());
        let Self { addresses, slices, plans, served, sums, shares, .. } = self;
        let Addresses { vips, contested, .. } = &*addresses;
        let checkable = &Checkable::new(input.settings);
        let pools = addresses.allocator().pools();
        let context = Context { input, vips, slices, own_addresses, hostless, contested, pools, checkable };
        let pods = PodIndex::default();
        let index = EndpointIndex::over(input.objects, slices, &pods);
        let limits = &input.settings.limits;
        let sized = |planned: &Planned, granted: &Granted| {
            let endpoints = index.resolve(&planned.service);
            let frontends = ServiceAddresses::new(input.settings, planned.plan(), granted, contested, pools);
            let nodes = input.objects.nodes.len();
            let size = table_shares::demand(input.settings, planned.plan(), &frontends, &endpoints, nodes);
            (endpoints, size)
        };
        let mut put = |key: &ObjectKey, mut entry: Option<Entry>| {
            let old = served.get(key);
            entry.iter_mut().zip(old).for_each(|(new, old)| new.served.share(&old.served));
            sums.replace(key, old, entry.as_ref());
            match entry {
                Some(entry) => served.insert(key.clone(), entry),
                None => served.remove(key),
            };
        };
        // Services that are built only once it is known whether they fit.
        let mut waiting = BTreeSet::new();
        for key in services {
            let Some(planned) = plans.get(key) else {
                shares.remove(key);
                put(key, None);
                continue;
            };
            let granted = addresses.granted(key);
            let (endpoints, size) = sized(planned, granted);
            shares.set(&planned.service.meta, size.as_ref().copied().unwrap_or_default());
            if shares.is_over(limits) {
                waiting.insert(key.clone());
                continue;
            }
            let too_large = size.err().or_else(|| shares.refusal(key, limits));
            put(key, Some(serve(&context, planned, granted, &endpoints, too_large.as_ref())));
        }
        waiting.append(&mut shares.refuse_surplus(limits));
        for key in &waiting {
            let Some(planned) = plans.get(key) else { continue };
            let granted = addresses.granted(key);
            let (endpoints, size) = sized(planned, granted);
            let too_large = size.err().or_else(|| shares.refusal(key, limits));
            put(key, Some(serve(&context, planned, granted, &endpoints, too_large.as_ref())));
        }
    }

    fn outcome(&mut self, input: &Input<'_>) -> Outcome {
        let (sums, addresses) = (&mut self.sums, &self.addresses);
        let health_check_node_ports = sums.health_check_node_ports(&self.plans);
        let mut spec = gateway(input, &addresses.pod_routes);
        let limits = &input.settings.limits;
        spec.services = sums.fitting_specs(limits.backends_of_tables());
        let is_here = |service: &ObjectKey| self.plans.contains_key(service);
        let before = input.memory;
        let removed_ports =
            before.removed_ports.step(&sums.specs, &before.drains, is_here, limits, input.now);
        removed_ports.add_to(&mut spec.services);
        let deadline = sums.deadlines.first().map(|(deadline, _)| *deadline);
        let reconcile_at = deadline.into_iter().chain(removed_ports.next_deadline()).min();
        let allocations = Arc::clone(addresses.allocator().allocations());
        self.memory = Memory { allocations, drains: sums.drains.clone(), removed_ports };
        Outcome {
            spec,
            findings: sums.findings(addresses.findings()),
            services: sums.views.values().cloned().collect(),
            targets: sums.targets.clone(),
            health_check_node_ports,
            pools: addresses.allocator().usage(),
            claimed: addresses.claimed.clone(),
            memory: self.memory.clone(),
            reconcile_at,
        }
    }
}

/// Whether an aspect of a node appeared, disappeared or changed.
fn differs<'a, T: PartialEq>(
    change: &Difference<'a, String, Arc<Node>>,
    part: impl Fn(&'a Node) -> T,
) -> bool {
    change.before.map(|node| part(node)) != change.after.map(|node| part(node))
}

/// The part of the spec that does not depend on Services.
fn gateway(input: &Input<'_>, pod_routes: &[RouteSpec]) -> SnapshotSpec {
    let mut network = input.settings.network.clone();
    if !pod_routes.is_empty() {
        network.routes.extend_from_slice(pod_routes);
    }
    SnapshotSpec { generation: input.generation, network, services: Vec::new() }
}
