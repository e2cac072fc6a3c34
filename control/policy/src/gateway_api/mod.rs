//! Computes what the objects of the Gateway API request (gateway-api.sigs.k8s.io, v1): which listeners and routes are
//! accepted, which routes attach to which listeners, and the Service as which each Gateway is served.
//!
//! [`GatewayApi::derive`] computes from [`Objects`] the same objects with one additional Service for each Gateway
//! ([`ObjectKey::of_gateway`]), the [`GatewayStates`], and the findings. Everything after it (pools, `reconcile`, the
//! writer) handles a Gateway as it handles a Service. The result for one Gateway is computed by [`attach`]; it depends
//! on its GatewayClass, its ListenerSets and their routes, on ReferenceGrants, on the labels of namespaces, and on
//! whether the Services exist that the routes name. Only Gateways whose inputs changed are computed again.
//!
//! Invariant: equal objects give an equal result, whatever the previous calls were (tested over random histories).

mod attach;
mod backends;
mod condition;
mod features;
mod index;
mod listeners;
mod members;
mod served;
mod state;

#[cfg(test)]
mod tests;

pub use features::SUPPORTED_FEATURES;
pub use state::{ConditionState, GatewayState, GatewayStates, ListenerSetState, ListenerState, ParentState};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::gateway_api::{CONTROLLER, Gateway, GatewayClass};
use tidegate_model::objects::{ObjectKey, Objects, Protocol, Service};
use tidegate_model::shared_map::{SharedMap, differences};

use attach::{Attached, attach};
use condition::{accepted, not_accepted, reason};
use index::Index;
use members::{Parent, RouteId, gateway_of_set, kind_of, parent_of};

use crate::reconcile::{Finding, ObjectKind, Reason};

/// A cache of the results for all Gateways.
#[derive(Debug, Default)]
pub struct GatewayApi {
    /// The objects of the last call.
    seen: Arc<Objects>,
    /// The objects that the last call returned.
    derived: Arc<Objects>,
    states: Arc<GatewayStates>,
    index: Index,
    attached: BTreeMap<ObjectKey, Attached>,
    /// What was refused, sorted.
    findings: Arc<[Finding]>,
    /// For each route, its states by the index of the parent in the route.
    parents: BTreeMap<RouteId, BTreeMap<usize, ParentState>>,
}

impl GatewayApi {
    /// The objects with a Service for each Gateway.
    pub fn derive(&mut self, objects: &Arc<Objects>) -> Arc<Objects> {
        let before = std::mem::replace(&mut self.seen, Arc::clone(objects));
        let dirty = self.index.update(&before, objects);
        let mut services = self.derived.services.clone();
        for change in differences(&before.services, &objects.services) {
            match change.after {
                Some(service) => services.insert(change.key.clone(), Arc::clone(service)),
                None => services.remove(change.key),
            };
        }
        if !dirty.is_empty() || index::differ(&before, objects) {
            self.attach(&dirty, &mut services);
            self.find(objects);
        }
        self.derived = match objects.gateways.is_empty() {
            true => Arc::clone(objects),
            false => Arc::new(Objects { services, ..Objects::clone(objects) }),
        };
        Arc::clone(&self.derived)
    }

    /// What was refused, sorted. The slice is shared as long as nothing changes.
    pub fn findings(&self) -> &Arc<[Finding]> {
        &self.findings
    }

    /// The states of the last call.
    pub fn states(&self) -> &Arc<GatewayStates> {
        &self.states
    }

    /// Collects the findings.
    fn find(&mut self, objects: &Objects) {
        let of_gateways = self.attached.values().flat_map(|attached| &attached.findings).cloned();
        let others = without_gateway(objects).chain(sets_without_gateway(objects));
        let others = others.chain(without_class(objects)).chain(faults(objects));
        let findings = of_gateways.chain(others);
        let findings: BTreeSet<Finding> = findings.collect();
        if !self.findings.iter().eq(&findings) {
            self.findings = findings.into_iter().collect();
        }
    }

    /// Computes these Gateways again.
    fn attach(&mut self, gateways: &BTreeSet<ObjectKey>, services: &mut SharedMap<ObjectKey, Arc<Service>>) {
        let mut routes = BTreeSet::new();
        let mut sets = BTreeSet::new();
        for key in gateways {
            let Some(old) = self.attached.remove(key) else { continue };
            for (id, states) in old.routes {
                let parents = self.parents.entry(id.clone()).or_default();
                states.iter().for_each(|(at, _)| drop(parents.remove(at)));
                routes.insert(id);
            }
            sets.extend(old.sets.into_iter().map(|(set, _)| set));
        }
        let objects = Arc::clone(&self.seen);
        let mut states = GatewayStates::clone(&self.states);
        states.classes = classes(&objects);
        sets.iter().for_each(|set| drop(states.listener_sets.remove(set)));
        for key in gateways {
            let gateway = objects.gateways.get(key);
            let attached = gateway.and_then(|gateway| {
                let class = class(gateway, &objects)?;
                Some(attach(&class, self.index.members(gateway, &objects), &objects))
            });
            let served = ObjectKey::of_gateway(&key.namespace, &key.name);
            let service = match (&attached, gateway) {
                (Some(attached), _) => Some(Arc::clone(&attached.service)),
                // The Gateway has another class now, and waits until its addresses are released.
                (None, Some(gateway)) if gateway.is_finalized_by_us() => {
                    Some(Arc::new(served::released(gateway)))
                }
                (None, _) => None,
            };
            match service {
                Some(service) if services.get(&served).is_some_and(|known| **known == *service) => None,
                Some(service) => services.insert(served, service),
                None => services.remove(&served),
            };
            let Some(attached) = attached else {
                states.gateways.remove(key);
                continue;
            };
            put(&mut states.gateways, key, &attached.state);
            for (set, state) in &attached.sets {
                put(&mut states.listener_sets, set, state);
            }
            for (id, of_route) in &attached.routes {
                self.parents.entry(id.clone()).or_default().extend(of_route.iter().cloned());
                routes.insert(id.clone());
            }
            self.attached.insert(key.clone(), attached);
        }
        for id in routes {
            let parents: Arc<[ParentState]> =
                self.parents.get(&id).map(|parents| parents.values().cloned().collect()).unwrap_or_default();
            let (protocol, key) = &id;
            let of_kind = match protocol {
                Protocol::Udp => &mut states.udp_routes,
                Protocol::Tcp | Protocol::Sctp => &mut states.tcp_routes,
            };
            if parents.is_empty() {
                self.parents.remove(&id);
                of_kind.remove(key);
            } else if of_kind.get(key).is_none_or(|known| *known != parents) {
                of_kind.insert(key.clone(), parents);
            }
        }
        if states != *self.states {
            self.states = Arc::new(states);
        }
    }
}

/// Stores a state, unless an equal one is stored already.
fn put<T: PartialEq>(map: &mut SharedMap<ObjectKey, Arc<T>>, key: &ObjectKey, state: &Arc<T>) {
    if map.get(key).is_none_or(|known| *known != *state) {
        map.insert(key.clone(), Arc::clone(state));
    }
}

/// The condition `Accepted` of the class of a Gateway, if it is a class of this controller. A class that was deleted
/// counts as accepted for a Gateway that has our finalizer: deleting a class must not end the connections of Gateways.
fn class(gateway: &Gateway, objects: &Objects) -> Option<ConditionState> {
    match objects.gateway_classes.get(&gateway.class) {
        Some(class) => (class.controller == CONTROLLER).then(|| of_class(class)),
        None => gateway.is_finalized_by_us().then(accepted),
    }
}

/// The condition `Accepted` of a class of this controller.
fn of_class(class: &GatewayClass) -> ConditionState {
    match class.has_parameters {
        true => not_accepted(reason::INVALID_PARAMETERS, "spec.parametersRef is not supported"),
        false => accepted(),
    }
}

fn classes(objects: &Objects) -> SharedMap<String, Arc<ConditionState>> {
    let ours = objects.gateway_classes.iter().filter(|(_, class)| class.controller == CONTROLLER);
    ours.map(|(name, class)| (name.clone(), Arc::new(of_class(class)))).collect()
}

/// The parts of routes and ListenerSets that cannot be used. Those of a Gateway are findings about its Service.
fn faults(objects: &Objects) -> impl Iterator<Item = Finding> {
    let routes = objects.tcp_routes.values().chain(objects.udp_routes.values());
    let of_routes = routes.flat_map(|route| Finding::of_faults(kind_of(route.protocol), &route.meta));
    let sets = objects.listener_sets.values();
    of_routes.chain(sets.flat_map(|set| Finding::of_faults(ObjectKind::ListenerSet, &set.meta)))
}

/// Findings about Gateways whose class does not exist.
fn without_class(objects: &Objects) -> impl Iterator<Item = Finding> {
    let missing = objects.gateways.values().filter(|one| !objects.gateway_classes.contains_key(&one.class));
    missing.map(|gateway| {
        let (key, class) = (&gateway.meta.key, &gateway.class);
        let what = format!("Gateway {key}: GatewayClass {class} does not exist");
        let diagnostic = Diagnostic::warning(what).accepting("the name of a GatewayClass");
        let field = "spec.gatewayClassName";
        Finding::of(ObjectKind::Gateway, &gateway.meta, field, Reason::InvalidValue, diagnostic)
    })
}

/// Findings about ListenerSets whose Gateway does not exist.
fn sets_without_gateway(objects: &Objects) -> impl Iterator<Item = Finding> {
    let named = objects.listener_sets.values().filter_map(|set| Some((set, gateway_of_set(set)?)));
    let missing = named.filter(|(_, gateway)| !objects.gateways.contains_key(gateway));
    missing.map(|(set, gateway)| {
        let what = format!("ListenerSet {}: Gateway {gateway} does not exist", set.meta.key);
        let diagnostic = Diagnostic::warning(what).accepting("the name of a Gateway");
        let reason = Reason::NoMatchingParent;
        Finding::of(ObjectKind::ListenerSet, &set.meta, "spec.parentRef", reason, diagnostic)
    })
}

/// Findings about routes whose parent does not exist.
fn without_gateway(objects: &Objects) -> impl Iterator<Item = Finding> {
    let routes = objects.tcp_routes.values().chain(objects.udp_routes.values());
    routes.flat_map(|route| {
        let missing = route.parents.iter().enumerate().filter(|(_, parent)| {
            match parent_of(parent, &route.meta.key.namespace) {
                Some(Parent::Gateway(key)) => !objects.gateways.contains_key(&key),
                Some(Parent::ListenerSet(key)) => !objects.listener_sets.contains_key(&key),
                None => false,
            }
        });
        missing.map(|(at, parent)| {
            let (kind, key) = (&parent.kind, parent.key(&route.meta.key.namespace));
            let what = format!("{} {}: {kind} {key} does not exist", route.kind(), route.meta.key);
            let diagnostic = Diagnostic::warning(what).accepting(format!("the name of a {kind}"));
            let field = format!("spec.parentRefs[{at}]");
            Finding::of(kind_of(route.protocol), &route.meta, &field, Reason::NoMatchingParent, diagnostic)
        })
    })
}
