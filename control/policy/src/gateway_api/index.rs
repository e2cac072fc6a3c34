//! Finds the Gateways that a change of objects concerns, and the objects that concern a Gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::objects::gateway_api::{FromNamespaces, Gateway, ListenerSet, Route};
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_model::shared_map::{Difference, differences};

use super::backends;
use super::members::{Members, Parent, RouteId, gateway_of_set, parent_of, route};

/// The references between the objects of one state.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The ListenerSets of a Gateway.
    sets: Links<ObjectKey, ObjectKey>,
    /// The routes of a Gateway or ListenerSet.
    routes: Links<Parent, RouteId>,
    /// The routes that name a Service.
    backends: Links<ObjectKey, RouteId>,
}

/// For each object, those that refer to it.
#[derive(Debug)]
struct Links<To, From>(BTreeMap<To, BTreeSet<From>>);

impl<To, From> Default for Links<To, From> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<To: Ord + Clone, From: Ord + Clone> Links<To, From> {
    fn remove(&mut self, to: &To, from: &From) {
        if let Some(all) = self.0.get_mut(to) {
            all.remove(from);
            if all.is_empty() {
                self.0.remove(to);
            }
        }
    }

    fn insert(&mut self, to: To, from: From) {
        self.0.entry(to).or_default().insert(from);
    }

    fn to(&self, to: &To) -> impl Iterator<Item = &From> {
        self.0.get(to).into_iter().flatten()
    }
}

impl Index {
    /// Updates the references. Returns the Gateways whose result may have changed.
    pub(super) fn update(&mut self, old: &Objects, new: &Objects) -> BTreeSet<ObjectKey> {
        let mut dirty: BTreeSet<ObjectKey> = BTreeSet::new();
        for change in differences(&old.listener_sets, &new.listener_sets) {
            for (set, is_new) in sides(&change) {
                let Some(gateway) = gateway_of_set(set) else { continue };
                dirty.insert(gateway.clone());
                match is_new {
                    true => self.sets.insert(gateway, change.key.clone()),
                    false => self.sets.remove(&gateway, change.key),
                }
            }
        }
        self.update_routes(differences(&old.tcp_routes, &new.tcp_routes), [old, new], &mut dirty);
        self.update_routes(differences(&old.udp_routes, &new.udp_routes), [old, new], &mut dirty);
        dirty.extend(differences(&old.gateways, &new.gateways).map(|change| change.key.clone()));
        for change in differences(&old.services, &new.services) {
            let was = change.before.map(|service| backends::relevant(service));
            if was != change.after.map(|service| backends::relevant(service)) {
                dirty.extend(self.of_routes(self.backends.to(change.key), new));
            }
        }
        if old.gateway_classes != new.gateway_classes {
            dirty.extend(new.gateways.keys().cloned());
        }
        if old.reference_grants != new.reference_grants {
            let leaves = |id: &RouteId| route(id, new).is_some_and(|route| backends::leaves_namespace(route));
            let leaving: Vec<&RouteId> = self.routes.0.values().flatten().filter(|id| leaves(id)).collect();
            dirty.extend(self.of_routes(leaving.into_iter(), new));
        }
        let mut namespaces = differences(&old.namespaces, &new.namespaces);
        if namespaces
            .any(|change| change.before.map(|n| &n.meta.labels) != change.after.map(|n| &n.meta.labels))
        {
            let selecting = new.gateways.iter().filter(|(_, gateway)| self.selects(gateway, new));
            dirty.extend(selecting.map(|(key, _)| key.clone()));
        }
        dirty
    }

    fn update_routes<'a>(
        &mut self,
        changes: impl Iterator<Item = Difference<'a, ObjectKey, Arc<Route>>>,
        [old, new]: [&Objects; 2],
        dirty: &mut BTreeSet<ObjectKey>,
    ) {
        for change in changes {
            for (route, is_new) in sides(&change) {
                let id = (route.protocol, change.key.clone());
                for parent in
                    route.parents.iter().filter_map(|parent| parent_of(parent, &route.meta.key.namespace))
                {
                    dirty.extend(gateway_of(&parent, if is_new { new } else { old }));
                    match is_new {
                        true => self.routes.insert(parent, id.clone()),
                        false => self.routes.remove(&parent, &id),
                    }
                }
                for service in backends::services(route) {
                    match is_new {
                        true => self.backends.insert(service, id.clone()),
                        false => self.backends.remove(&service, &id),
                    }
                }
            }
        }
    }

    /// The Gateways of these routes.
    fn of_routes<'a>(&self, ids: impl Iterator<Item = &'a RouteId>, objects: &Objects) -> Vec<ObjectKey> {
        let routes = ids.filter_map(|id| route(id, objects));
        let parents = routes.flat_map(|route| {
            route.parents.iter().filter_map(|parent| parent_of(parent, &route.meta.key.namespace))
        });
        parents.filter_map(|parent| gateway_of(&parent, objects)).collect()
    }

    /// Whether the result of a Gateway depends on the labels of namespaces.
    fn selects(&self, gateway: &Gateway, objects: &Objects) -> bool {
        let is_selector = |from: &FromNamespaces| matches!(from, FromNamespaces::Selector(_));
        let sets = self.sets.to(&gateway.meta.key).filter_map(|set| objects.listener_sets.get(set));
        let mut listeners = gateway.listeners.iter().chain(sets.flat_map(|set| &set.listeners));
        is_selector(&gateway.allowed_listeners) || listeners.any(|one| is_selector(&one.allowed_namespaces))
    }

    /// The objects that concern a Gateway.
    pub(super) fn members<'a>(&self, gateway: &'a Gateway, objects: &'a Objects) -> Members<'a> {
        let key = &gateway.meta.key;
        let sets: Vec<&Arc<ListenerSet>> =
            self.sets.to(key).filter_map(|set| objects.listener_sets.get(set)).collect();
        let of_sets = sets.iter().map(|set| Parent::ListenerSet(set.meta.key.clone()));
        let parents = of_sets.chain([Parent::Gateway(key.clone())]);
        let ids: BTreeSet<&RouteId> =
            parents.flat_map(|parent| self.routes.to(&parent).collect::<Vec<_>>()).collect();
        let routes = ids.into_iter().filter_map(|id| route(id, objects)).collect();
        Members::new(gateway, sets, routes)
    }
}

/// Whether any object that can have a finding of its own may differ.
pub(super) fn differ(old: &Objects, new: &Objects) -> bool {
    !old.gateways.ptr_eq(&new.gateways)
        || !old.listener_sets.ptr_eq(&new.listener_sets)
        || !old.tcp_routes.ptr_eq(&new.tcp_routes)
        || !old.udp_routes.ptr_eq(&new.udp_routes)
        || !old.gateway_classes.ptr_eq(&new.gateway_classes)
}

/// The old and the new value of a change, and whether it is the new one.
fn sides<'a, K, V>(change: &Difference<'a, K, V>) -> impl Iterator<Item = (&'a V, bool)> + use<'a, K, V> {
    [(change.before, false), (change.after, true)]
        .into_iter()
        .filter_map(|(side, is_new)| Some((side?, is_new)))
}

fn gateway_of(parent: &Parent, objects: &Objects) -> Option<ObjectKey> {
    match parent {
        Parent::Gateway(key) => Some(key.clone()),
        Parent::ListenerSet(key) => gateway_of_set(objects.listener_sets.get(key)?),
    }
}
