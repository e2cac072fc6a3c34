//! [`Reconciler`]: [`reconcile`](super::reconcile) that remembers what each Service came to, and does again only those
//! whose inputs changed.
//!
//! What changed is found by comparing with the inputs of the last call: [`SharedMap::diff`] passes over what both
//! states of the objects share. A change of settings, nodes, Pods, namespaces or drained targets, and a memory that is
//! not the one it left, do everything anew. What all Services share (sorted specs, targets, findings) is kept up by
//! taking out what a Service gave before and putting in what it gives now.
//!
//! Invariant: equal inputs give an equal [`Outcome`], whatever was asked before (tested over random histories).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::snapshot::{RouteSpec, ServiceKey, SharedService};

use super::drain::Drains;
use super::finding::Finding;
use super::frontends::{self, Contested};
use super::options::Options;
use super::pod_routes::pod_routes;
use super::programme::Context;
use super::view::ServiceView;
use super::{
    DrainTarget, HealthCheckNodePort, Input, Memory, Outcome, Plan, Served, Settings, allocate, gateway,
    one_owner_each, one_service, plan, pools_of::pools_of, reserved, vips,
};
use crate::health::{Targets, Verdicts};
use crate::model::{EndpointIndex, ObjectKey, Objects, PodIndex, Service, ServiceEndpoints, SliceIndex};
use crate::pools::{Allocations, Granted, PoolUsage};
use crate::shared_map::SharedMap;

/// See the module.
///
/// ```
/// use std::{collections::BTreeSet, time::Duration};
/// use tidegate::{health::Verdicts, model::Objects, reconcile::{Input, Memory, Reconciler, Settings, reconcile}};
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

/// The inputs of the last call, and what came of them.
#[derive(Debug)]
struct Last {
    settings: Settings,
    objects: Objects,
    verdicts: Verdicts,
    drained: BTreeSet<DrainTarget>,
    memory: Memory,
    slices: SliceIndex,
    plans: BTreeMap<ObjectKey, Planned>,
    addresses: Option<Addresses>,
    served: BTreeMap<ObjectKey, Entry>,
    sums: Sums,
}

/// Step 1 of a Service that concerns us.
#[derive(Debug)]
struct Planned {
    service: Arc<Service>,
    options: Options,
    wants_load_balancer: bool,
    findings: Vec<Finding>,
}

impl Planned {
    fn plan(&self) -> Plan<'_> {
        let Self { service, options, wants_load_balancer, .. } = self;
        Plan { service, options, wants_load_balancer: *wants_load_balancer }
    }
}

/// Step 2, and what it followed from beside the plans.
#[derive(Debug)]
struct Addresses {
    /// The allocations that it was given.
    previous: Arc<Allocations>,
    allocations: Arc<Allocations>,
    granted: BTreeMap<ObjectKey, Granted>,
    usage: Vec<PoolUsage>,
    vips: BTreeSet<IpAddr>,
    contested: Contested,
    pod_routes: Vec<RouteSpec>,
    claimed: Arc<BTreeSet<ObjectKey>>,
    /// About pools and nodes.
    findings: Vec<Finding>,
}

/// Steps 3 and 4 of a Service.
#[derive(Debug)]
struct Entry {
    service: Arc<Service>,
    served: Served,
    /// Those of its options and of [`Served`].
    findings: Vec<Finding>,
    /// Addresses that it would come out otherwise for if they were VIPs or failed; sorted.
    addresses: Box<[IpAddr]>,
    deadline: Option<Duration>,
}

/// What all Services come to together.
#[derive(Debug, Default)]
struct Sums {
    specs: SharedMap<ServiceKey, SharedService>,
    views: SharedMap<ObjectKey, Arc<ServiceView>>,
    targets: Targets,
    drains: Drains,
    deadlines: BTreeSet<(Duration, ObjectKey)>,
    listeners: BTreeMap<ObjectKey, HealthCheckNodePort>,
    findings: BTreeMap<Finding, u32>,
    /// Of the listeners together.
    listener_findings: Vec<Finding>,
    listed_findings: Listed<Finding>,
    listed_listeners: Listed<HealthCheckNodePort>,
}

/// A list that is made anew where what it is made of has changed.
type Listed<T> = Option<Arc<[T]>>;

impl Reconciler {
    /// What [`reconcile`](super::reconcile) gives.
    #[must_use]
    pub fn reconcile(&mut self, input: &Input<'_>) -> Outcome {
        // Taken out, so that a panic half-way leaves nothing half-done to go on from.
        let (mut last, mut again) = match self.last.take().filter(|last| last.goes_on(input)) {
            Some(mut last) => {
                let again = last.changed(input);
                (last, again)
            }
            None => (Last::new(input), input.objects.services.keys().cloned().collect()),
        };
        let replanned = last.plan(input, &again.services);
        again.services.extend(last.allocate(input, replanned || again.allocate));
        last.serve(input, &again.services);
        let outcome = last.outcome(input);
        self.last = Some(last);
        outcome
    }
}

/// What is to be done again.
#[derive(Debug, Default)]
struct Again {
    services: BTreeSet<ObjectKey>,
    allocate: bool,
}

impl FromIterator<ObjectKey> for Again {
    fn from_iter<I: IntoIterator<Item = ObjectKey>>(services: I) -> Self {
        Self { services: services.into_iter().collect(), allocate: true }
    }
}

impl Last {
    /// With nothing done yet.
    fn new(input: &Input<'_>) -> Self {
        Self {
            settings: input.settings.clone(),
            objects: input.objects.clone(),
            verdicts: input.verdicts.clone(),
            drained: input.drained.clone(),
            memory: input.memory.clone(),
            slices: SliceIndex::new(input.objects),
            plans: BTreeMap::new(),
            addresses: None,
            served: BTreeMap::new(),
            sums: Sums::default(),
        }
    }

    /// Whether only Services, slices, Endpoints, verdicts and the time may have changed.
    fn goes_on(&self, input: &Input<'_>) -> bool {
        let (old, new) = (&self.objects, input.objects);
        self.settings == *input.settings
            && self.drained == *input.drained
            && old.nodes == new.nodes
            && old.pods == new.pods
            && old.namespaces == new.namespaces
            && old.api_servers == new.api_servers
            && self.memory.drains.is_same(&input.memory.drains)
            && Arc::ptr_eq(&self.memory.allocations, &input.memory.allocations)
    }

    /// The Services whose inputs changed; takes the new inputs over.
    fn changed(&mut self, input: &Input<'_>) -> Again {
        let mut again = Again::default();
        let (old, new) = (&self.objects, input.objects);
        again.services.extend(old.services.diff(&new.services).map(|d| d.key.clone()));
        // Also of a Service that is none of ours: its finalizer may hold an address.
        again.allocate = !again.services.is_empty() || old.address_pools != new.address_pools;
        again.services.extend(old.endpoints.diff(&new.endpoints).map(|d| d.key.clone()));
        for change in old.endpoint_slices.diff(&new.endpoint_slices) {
            again.services.extend(self.slices.replace(change.before, change.after));
        }
        // Nobody may have the addresses of the API servers.
        again.allocate |= again.services.contains(&reserved::api_server());
        let turned = self.verdicts.differing(input.verdicts);
        let turned = turned.iter().map(|target| target.address.ip()).collect();
        again.services.extend(self.with_addresses(&turned));
        let due = self.sums.deadlines.iter().take_while(|(deadline, _)| *deadline <= input.now);
        again.services.extend(due.map(|(_, key)| key.clone()));
        self.objects = new.clone();
        self.verdicts = input.verdicts.clone();
        again
    }

    /// The Services that would come out otherwise if something else were true of one of these addresses.
    fn with_addresses(&self, addresses: &BTreeSet<IpAddr>) -> Vec<ObjectKey> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let any = |entry: &Entry| addresses.iter().any(|ip| entry.addresses.binary_search(ip).is_ok());
        self.served.iter().filter(|(_, entry)| any(entry)).map(|(key, _)| key.clone()).collect()
    }

    /// Step 1 again for these; whether any plan has changed.
    fn plan(&mut self, input: &Input<'_>, services: &BTreeSet<ObjectKey>) -> bool {
        let mut changed = false;
        for key in services {
            let service = input.objects.services.get(key);
            if let (Some(service), Some(planned)) = (service, self.plans.get(key))
                && Arc::ptr_eq(service, &planned.service)
            {
                continue;
            }
            let mut findings = Vec::new();
            let planned = service.and_then(|service| {
                let (options, wants_load_balancer) = plan(service, input.settings, &mut findings)?;
                Some(Planned { service: Arc::clone(service), options, wants_load_balancer, findings })
            });
            changed |= match planned {
                Some(planned) => {
                    self.plans.insert(key.clone(), planned);
                    true
                }
                None => self.plans.remove(key).is_some(),
            };
        }
        changed
    }

    /// Step 2 again, where its inputs changed; the Services to which its result matters.
    fn allocate(&mut self, input: &Input<'_>, replanned: bool) -> Vec<ObjectKey> {
        let previous = &input.memory.allocations;
        if !replanned && self.addresses.as_ref().is_some_and(|last| Arc::ptr_eq(&last.previous, previous)) {
            return Vec::new();
        }
        let plans: Vec<Plan<'_>> = self.plans.values().map(Planned::plan).collect();
        let mut findings = Vec::new();
        let pools = pools_of(input, &mut findings);
        let allocated = allocate(input, &self.slices, &pools, &plans, previous);
        let pod_routes = pod_routes(input.settings, &input.objects.nodes, &mut findings);
        let claimed = plans.iter().filter(|p| p.wants_load_balancer).map(|p| p.service.meta.key.clone());
        // The same memory where it says the same, so that the next call finds its input unchanged. Where it does not,
        // the next call has another input: what that gives is found out now, when Services changed anyway, rather than
        // with the next endpoint.
        let (previous, allocations) = if allocated.allocations == **previous {
            (Arc::clone(previous), Arc::clone(previous))
        } else {
            let settled = allocate(input, &self.slices, &pools, &plans, &allocated.allocations) == allocated;
            let allocations = Arc::new(allocated.allocations);
            (if settled { Arc::clone(&allocations) } else { Arc::clone(previous) }, allocations)
        };
        let addresses = Addresses {
            previous,
            allocations,
            vips: vips(input.settings, &plans, &allocated.granted),
            contested: frontends::contested(input.settings, &plans, &allocated.granted),
            pod_routes,
            granted: allocated.granted,
            usage: allocated.usage,
            claimed: Arc::new(claimed.collect()),
            findings,
        };
        if self.addresses.as_ref().is_none_or(|last| last.findings != addresses.findings) {
            self.sums.listed_findings = None;
        }
        let mut again = Vec::new();
        if let Some(last) = &self.addresses {
            let differs = |(key, granted): &(&ObjectKey, &Granted)| last.granted.get(*key) != Some(*granted);
            again.extend(addresses.granted.iter().filter(differs).map(|(key, _)| key.clone()));
            let contested = last.contested.keys().chain(addresses.contested.keys());
            let differs = |key: &&ObjectKey| last.contested.get(*key) != addresses.contested.get(*key);
            again.extend(contested.filter(differs).cloned());
            let turned = last.vips.symmetric_difference(&addresses.vips).copied().collect();
            again.extend(self.with_addresses(&turned));
        }
        self.addresses = Some(addresses);
        again
    }

    /// Steps 3 and 4 again for these.
    fn serve(&mut self, input: &Input<'_>, services: &BTreeSet<ObjectKey>) {
        let addresses = self.addresses.as_ref().expect("step 2 comes before");
        let own_addresses = input.settings.own_addresses();
        let context = Context {
            input,
            vips: &addresses.vips,
            own_addresses: &own_addresses,
            contested: &addresses.contested,
        };
        let pods = PodIndex::default();
        let index = EndpointIndex::over(input.objects, &self.slices, &pods);
        for key in services {
            let new = self.plans.get(key).map(|planned| {
                let endpoints = index.resolve(&planned.service);
                let served = one_service(&context, &planned.plan(), &addresses.granted[key], &endpoints);
                Entry::new(planned, served, &endpoints)
            });
            self.sums.replace(key, self.served.get(key), new.as_ref());
            match new {
                Some(new) => self.served.insert(key.clone(), new),
                None => self.served.remove(key),
            };
        }
    }

    fn outcome(&mut self, input: &Input<'_>) -> Outcome {
        let addresses = self.addresses.as_ref().expect("step 2 comes before");
        let sums = &mut self.sums;
        let health_check_node_ports = sums.health_check_node_ports(&self.plans);
        let mut spec = gateway(input, &addresses.pod_routes);
        spec.services = sums.specs.values().cloned().collect();
        self.memory = Memory { allocations: Arc::clone(&addresses.allocations), drains: sums.drains.clone() };
        Outcome {
            spec,
            findings: sums.findings(&addresses.findings),
            services: sums.views.values().cloned().collect(),
            targets: sums.targets.clone(),
            health_check_node_ports,
            pools: addresses.usage.clone(),
            claimed: Arc::clone(&addresses.claimed),
            memory: self.memory.clone(),
            reconcile_at: sums.deadlines.first().map(|(deadline, _)| *deadline),
        }
    }
}

impl Entry {
    fn new(planned: &Planned, served: Served, endpoints: &ServiceEndpoints) -> Self {
        let resolved = endpoints.ports.iter().flat_map(|port| &port.endpoints).map(|e| e.ip);
        let checked = served.targets.iter().map(|target| target.address.ip());
        let forwarded = served.specs.iter().flat_map(|spec| &spec.backends).map(|backend| backend.address);
        let left = served.drains.addresses();
        let addresses: BTreeSet<IpAddr> = resolved.chain(checked).chain(forwarded).chain(left).collect();
        Self {
            service: Arc::clone(&planned.service),
            findings: planned.findings.iter().chain(&served.findings).cloned().collect(),
            addresses: addresses.into_iter().collect(),
            deadline: served.drains.next_deadline(),
            served,
        }
    }
}

impl Sums {
    /// Counts a Service as `new` that was counted as `old` before.
    fn replace(&mut self, key: &ObjectKey, old: Option<&Entry>, new: Option<&Entry>) {
        let (was, is) = (old.map(|entry| &entry.served), new.map(|entry| &entry.served));
        self.replace_specs(was, is);
        match is {
            Some(is) => self.views.insert(key.clone(), Arc::clone(&is.view)),
            None => self.views.remove(key),
        };
        self.replace_targets(was, is);
        let none = Drains::default();
        self.drains.replace(was.map_or(&none, |was| &was.drains), is.map_or(&none, |is| &is.drains));
        let deadline = |entry: Option<&Entry>| Some((entry?.deadline?, key.clone()));
        deadline(old).map(|deadline| self.deadlines.remove(&deadline));
        self.deadlines.extend(deadline(new));
        self.replace_listener(key, old, new);
        self.replace_findings(old, new);
    }

    fn replace_specs(&mut self, was: Option<&Served>, is: Option<&Served>) {
        for spec in is.into_iter().flat_map(|is| &is.specs) {
            self.specs.insert(spec.key, spec.clone());
        }
        for spec in was.into_iter().flat_map(|was| &was.specs) {
            // Not where it was overwritten just now, perhaps by another Service.
            if self.specs.get(&spec.key).is_some_and(|known| known.is_same(spec)) {
                self.specs.remove(&spec.key);
            }
        }
    }

    fn replace_targets(&mut self, was: Option<&Served>, is: Option<&Served>) {
        let none = BTreeSet::new();
        let (was, is) = (was.map_or(&none, |was| &was.targets), is.map_or(&none, |is| &is.targets));
        is.difference(was).for_each(|target| self.targets.want(target.clone()));
        was.difference(is).for_each(|target| self.targets.release(target));
    }

    fn replace_listener(&mut self, key: &ObjectKey, old: Option<&Entry>, new: Option<&Entry>) {
        let listener = |entry: Option<&Entry>| entry?.served.listener.clone();
        let (was, is) = (listener(old), listener(new));
        if was.is_none() && is.is_none() {
            return;
        }
        // Who is first goes by what the Service says of itself.
        let same_service = old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(&old.service, &new.service));
        if was != is || !same_service {
            self.listed_listeners = None;
        }
        match is {
            Some(is) => self.listeners.insert(key.clone(), is),
            None => self.listeners.remove(key),
        };
    }

    fn replace_findings(&mut self, old: Option<&Entry>, new: Option<&Entry>) {
        let was = old.map_or(&[][..], |entry| &entry.findings);
        let is = new.map_or(&[][..], |entry| &entry.findings);
        if was == is {
            return;
        }
        self.listed_findings = None;
        for finding in is {
            if let Some(count) = self.findings.get_mut(finding) {
                *count += 1;
            } else {
                self.findings.insert(finding.clone(), 1);
            }
        }
        for finding in was {
            match self.findings.get_mut(finding) {
                Some(count @ 2..) => *count -= 1,
                _ => {
                    self.findings.remove(finding);
                }
            }
        }
    }

    /// Step 5.
    fn health_check_node_ports(
        &mut self,
        plans: &BTreeMap<ObjectKey, Planned>,
    ) -> Arc<[HealthCheckNodePort]> {
        if let Some(listed) = &self.listed_listeners {
            return Arc::clone(listed);
        }
        let mut findings = Vec::new();
        let listeners =
            self.listeners.iter().map(|(key, listener)| (&*plans[key].service, listener)).collect();
        let listed: Arc<[_]> = one_owner_each(listeners, &mut findings).into();
        if findings != self.listener_findings {
            (self.listener_findings, self.listed_findings) = (findings, None);
        }
        self.listed_listeners = Some(Arc::clone(&listed));
        listed
    }

    /// All findings, with these others, sorted, each once.
    fn findings(&mut self, others: &[Finding]) -> Arc<[Finding]> {
        let Self { findings, listener_findings, listed_findings, .. } = self;
        let listed = listed_findings.get_or_insert_with(|| {
            let mut all: Vec<Finding> =
                findings.keys().chain(&*listener_findings).chain(others).cloned().collect();
            all.sort_unstable();
            all.dedup();
            all.into()
        });
        Arc::clone(listed)
    }
}
