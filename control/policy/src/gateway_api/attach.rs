//! Everything about one Gateway: its listeners, its ListenerSets, and the routes that attach to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::gateway_api::{Gateway, ListenerSet, ParentRef, Route};
use tidegate_model::objects::{Metadata, ObjectKey, Objects, Routed, Service};

use super::backends::{self, Resolved};
use super::condition::{accepted, not_accepted, reason};
use super::listeners::{Site, admits, of_listeners, sites};
use super::members::{Members, Parent, RouteId, kind_of, parent_of};
use super::served::{address_fault, served};
use super::state::{ConditionState, GatewayState, ListenerSetState, ListenerState, ParentState};
use crate::reconcile::{Finding, ObjectKind, Reason};

/// The result for one Gateway.
#[derive(Debug, PartialEq)]
pub(super) struct Attached {
    pub(super) state: Arc<GatewayState>,
    pub(super) sets: Vec<(ObjectKey, Arc<ListenerSetState>)>,
    /// For each route, its states at this Gateway and its ListenerSets, with the index of the parent in the route.
    pub(super) routes: BTreeMap<RouteId, RouteStates>,
    /// The Service as which the Gateway is served.
    pub(super) service: Arc<Service>,
    /// What was refused, at the place where it was written.
    pub(super) findings: Vec<Finding>,
}

/// The states of a route, each with the index of its parent in the route.
type RouteStates = Vec<(usize, ParentState)>;

/// Attaches the routes to the listeners. `class` is the condition `Accepted` of the GatewayClass.
pub(super) fn attach(class: &ConditionState, members: Members<'_>, objects: &Objects) -> Attached {
    let Members { gateway, sets, routes } = members;
    let own = &gateway.meta.key.namespace;
    let is_allowed =
        |set: &ListenerSet| admits(&gateway.allowed_listeners, own, &set.meta.key.namespace, objects);
    let (allowed, refused): (Vec<_>, Vec<_>) = sets.into_iter().partition(|set| is_allowed(set));
    let sites = sites(gateway, &allowed);
    let mut attaching = Attaching {
        gateway,
        parents: parents(gateway, &allowed, &refused),
        // The first route of a listener, in the order of precedence, has its flows.
        winners: vec![None; sites.len()],
        findings: listener_findings(gateway, &sites),
        sites,
        objects,
    };
    let mut of_routes = BTreeMap::new();
    for route in routes {
        let states = attaching.route(route);
        if !states.is_empty() {
            of_routes.insert((route.protocol, route.meta.key.clone()), states);
        }
    }
    let Attaching { sites, parents, winners, mut findings, .. } = attaching;
    let accepted = gateway_accepted(class, gateway, &sites);
    findings.extend(refusal(ObjectKind::Gateway, &gateway.meta, "spec", &accepted));
    findings.extend(misplaced_annotations(gateway));
    let service = served(gateway, accepted.is_true, &sites, winners);
    for set in &refused {
        findings.extend(refusal(ObjectKind::ListenerSet, &set.meta, "spec.parentRef", &not_allowed()));
    }
    let sets = set_states(gateway, &accepted, &sites, &parents);
    let attached_listener_sets = sets.iter().filter(|(_, set)| set.accepted.is_true).count();
    let own = sites.iter().filter(|site| site.set.is_none());
    let listeners = own.map(|site| site.state.clone()).collect();
    let state = Arc::new(GatewayState { accepted, listeners, attached_listener_sets });
    Attached { state, sets, routes: of_routes, service, findings }
}

/// The Gateway and its ListenerSets, each with its listeners as a range of all [`sites`], or the ListenerSet if the
/// Gateway does not allow it. Owners of other namespaces decide how many ListenerSets and routes there are, so nothing
/// is done for each pair of them.
type Parents<'a> = BTreeMap<Parent, Result<Range<usize>, &'a ListenerSet>>;

fn parents<'a>(
    gateway: &Gateway,
    allowed: &[&'a Arc<ListenerSet>],
    refused: &[&'a Arc<ListenerSet>],
) -> Parents<'a> {
    let own = gateway.listeners.len();
    let mut parents = Parents::from([(Parent::Gateway(gateway.meta.key.clone()), Ok(0..own))]);
    let mut start = own;
    for set in allowed {
        let end = start + set.listeners.len();
        parents.insert(Parent::ListenerSet(set.meta.key.clone()), Ok(start..end));
        start = end;
    }
    for &set in refused {
        parents.insert(Parent::ListenerSet(set.meta.key.clone()), Err(set));
    }
    parents
}

/// The listeners of a Gateway while routes attach to them.
struct Attaching<'a> {
    gateway: &'a Gateway,
    sites: Vec<Site<'a>>,
    parents: Parents<'a>,
    /// The route that has the flows of each listener.
    winners: Vec<Option<Arc<Routed>>>,
    findings: Vec<Finding>,
    objects: &'a Objects,
}

impl Attaching<'_> {
    /// Attaches one route. Returns its states at the parents that are this Gateway or one of its ListenerSets.
    fn route(&mut self, route: &Route) -> RouteStates {
        let Resolved { backends, condition: resolved, faults } = backends::resolve(route, self.objects);
        let mut attaches = BTreeSet::new();
        let mut states = Vec::new();
        let kind = kind_of(route.protocol);
        for (index, parent) in route.parents.iter().enumerate() {
            let named = parent_of(parent, &route.meta.key.namespace);
            let Some(of_parent) = named.and_then(|named| self.parents.get(&named)) else { continue };
            let attached = match of_parent {
                Ok(of_parent) => may_attach(parent, route, &self.sites, of_parent.clone(), self.objects),
                Err(refused) => Err((reason::NO_MATCHING_PARENT, set_not_allowed(refused, self.gateway))),
            };
            let accepted = match attached {
                Ok(attached) => {
                    let message = self.without_flows(&attached);
                    attaches.extend(attached);
                    ConditionState { message, ..accepted() }
                }
                Err((reason, message)) => not_accepted(reason, message),
            };
            self.findings.extend(refusal(kind, &route.meta, &format!("spec.parentRefs[{index}]"), &accepted));
            let conditions = vec![accepted, resolved.clone()];
            states.push((index, ParentState { parent: parent.clone(), conditions }));
        }
        let routed = Arc::new(Routed { route: Some(format!("{kind} {}", route.meta.key)), backends });
        for at in attaches {
            self.sites[at].state.attached_routes += 1;
            self.winners[at].get_or_insert_with(|| Arc::clone(&routed));
        }
        for (at, fault) in faults.iter().filter(|_| !states.is_empty()) {
            let field = format!("spec.rules[0].backendRefs[{at}]");
            self.findings.extend(refusal(kind, &route.meta, &field, fault));
        }
        states
    }

    /// Why a route gets no flows from the listeners that it attaches to; empty if it gets some. By the specification, it
    /// is accepted nevertheless.
    fn without_flows(&self, attached: &[usize]) -> String {
        let is_served = |at: &usize| self.sites[*at].state.served.is_some();
        let [first, more @ ..] = attached else { return String::new() };
        if attached.iter().any(|at| is_served(at) && self.winners[*at].is_none()) {
            return String::new();
        }
        let why = if is_served(first) { "an older route has them" } else { "it is not accepted" };
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        format!("no flows from listener {}{more}: {why}", self.sites[*first].listener.name)
    }
}

fn listener_findings(gateway: &Gateway, sites: &[Site<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for site in sites {
        let (kind, meta) = match site.set {
            None => (ObjectKind::Gateway, &gateway.meta),
            Some(set) => (ObjectKind::ListenerSet, &set.meta),
        };
        let field = format!("spec.listeners[{}]", site.index);
        findings.extend(site.refusals().filter_map(|refused| refusal(kind, meta, &field, refused)));
    }
    findings
}

/// Annotations that have an effect only in `spec.infrastructure`.
fn misplaced_annotations(gateway: &Gateway) -> impl Iterator<Item = Finding> {
    let ours = gateway.meta.annotations.keys().filter(|key| key.starts_with("tidegate.dev/"));
    ours.map(|key| {
        let field = format!("metadata.annotations[{key}]");
        let what = format!("Gateway {}: {field} has no effect", gateway.meta.key);
        let diagnostic =
            Diagnostic::warning(what).accepting("the same key in spec.infrastructure.annotations");
        Finding::of(ObjectKind::Gateway, &gateway.meta, &field, Reason::InvalidValue, diagnostic)
    })
}

/// The states of the ListenerSets.
fn set_states(
    gateway: &Gateway,
    accepted: &ConditionState,
    sites: &[Site<'_>],
    parents: &Parents<'_>,
) -> Vec<(ObjectKey, Arc<ListenerSetState>)> {
    let state = |listeners: &Result<Range<usize>, &ListenerSet>| {
        let Ok(own) = listeners else { return (not_allowed(), Vec::new()) };
        let listeners: Vec<ListenerState> =
            sites[own.clone()].iter().map(|site| site.state.clone()).collect();
        let valid = match accepted.is_true || accepted.reason == reason::LISTENERS_NOT_VALID {
            true => of_listeners(listeners.iter()),
            false => not_accepted(reason::PARENT_NOT_ACCEPTED, "the Gateway is not accepted"),
        };
        (valid, listeners)
    };
    let sets = parents.iter().filter_map(|(parent, listeners)| {
        let Parent::ListenerSet(key) = parent else { return None };
        let (accepted, listeners) = state(listeners);
        let state = ListenerSetState { gateway: gateway.meta.key.clone(), accepted, listeners };
        Some((key.clone(), Arc::new(state)))
    });
    sets.collect()
}

fn not_allowed() -> ConditionState {
    let message = "spec.allowedListeners of the Gateway does not allow ListenerSets of this namespace";
    not_accepted(reason::NOT_ALLOWED, message)
}

/// Why a route cannot attach to a ListenerSet that the Gateway does not allow.
fn set_not_allowed(set: &ListenerSet, gateway: &Gateway) -> String {
    format!(
        "spec.allowedListeners of Gateway {} does not allow ListenerSet {}",
        gateway.meta.key, set.meta.key
    )
}

/// The listeners that a route attaches to, or why there are none.
fn may_attach(
    parent: &ParentRef,
    route: &Route,
    sites: &[Site<'_>],
    of_parent: Range<usize>,
    objects: &Objects,
) -> Result<Vec<usize>, (&'static str, String)> {
    let is_named = |at: &usize| {
        let listener = sites[*at].listener;
        parent.section_name.as_ref().is_none_or(|name| *name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    };
    let candidates: Vec<usize> = of_parent.filter(is_named).collect();
    if candidates.is_empty() {
        let message =
            format!("{} {} has no listener with this sectionName or port", parent.kind, parent.name);
        return Err((reason::NO_MATCHING_PARENT, message));
    }
    let namespace = &route.meta.key.namespace;
    let admits = |at: &usize| {
        let site = &sites[*at];
        site.supports(route.kind())
            && admits(&site.listener.allowed_namespaces, site.namespace, namespace, objects)
    };
    let allowed: Vec<usize> = candidates.into_iter().filter(admits).collect();
    if allowed.is_empty() {
        let kind = route.kind();
        let message =
            format!("no listener allows a {kind} of namespace {namespace} (protocol, allowedRoutes)");
        return Err((reason::NOT_ALLOWED_BY_LISTENERS, message));
    }
    Ok(allowed)
}

/// The finding about a refusal.
fn refusal(kind: ObjectKind, meta: &Metadata, field: &str, refused: &ConditionState) -> Option<Finding> {
    if refused.reason == reason::ACCEPTED {
        return None;
    }
    let reason = Reason::ALL.into_iter().find(|reason| reason.as_str() == refused.reason)?;
    let what = format!("{kind} {}: {}", meta.key, refused.message);
    let diagnostic = if refused.is_true { Diagnostic::warning(what) } else { Diagnostic::error(what) };
    Some(Finding::of(kind, meta, field, reason, diagnostic))
}

/// The condition `Accepted` of a Gateway.
fn gateway_accepted(class: &ConditionState, gateway: &Gateway, sites: &[Site<'_>]) -> ConditionState {
    if !class.is_true {
        return not_accepted(class.reason, format!("GatewayClass {}: {}", gateway.class, class.message));
    }
    if gateway.has_parameters {
        let message =
            "spec.infrastructure.parametersRef is not supported; accepted: infrastructure.annotations";
        return not_accepted(reason::INVALID_PARAMETERS, message);
    }
    if let Some(message) = address_fault(gateway) {
        return not_accepted(reason::UNSUPPORTED_ADDRESS, message);
    }
    let own = of_listeners(sites.iter().filter(|site| site.set.is_none()).map(|site| &site.state));
    // Listeners of ListenerSets are served even if the Gateway has no valid one of its own.
    let is_served = sites.iter().any(|site| site.state.served.is_some());
    ConditionState { is_true: own.is_true || is_served, ..own }
}
