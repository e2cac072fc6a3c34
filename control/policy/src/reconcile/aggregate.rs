//! The combined result of all Services, updated by removing the old contribution of a Service and adding the new one.
//!
//! `incremental` calls it for each Service that was recomputed. Lists that callers keep (findings, listeners) are
//! rebuilt only if their contents have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::{HealthCheckNodePort, Targets};
use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;
use tidegate_spec::{ServiceKey, ServiceSpec, SharedService};

use super::drain::Drains;
use super::finding::Finding;
use super::health_check_node_ports::one_owner_each;
use super::plan::Planned;
use super::serve::{Entry, Served};
use super::view::ServiceView;
use crate::largest_first::LargestFirst;

#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) specs: SharedMap<ServiceKey, SharedService>,
    backends: usize,
    pub(super) views: SharedMap<ObjectKey, Arc<ServiceView>>,
    pub(super) targets: Targets,
    pub(super) drains: Drains,
    pub(super) deadlines: BTreeSet<(Duration, ObjectKey)>,
    listeners: BTreeMap<ObjectKey, HealthCheckNodePort>,
    findings: BTreeMap<Finding, u32>,
    /// The findings about health-check node ports with more than one Service.
    listener_findings: Vec<Finding>,
    /// All findings as a list; `None` if any of them have changed.
    pub(super) listed_findings: Listed<Finding>,
    listed_listeners: Listed<HealthCheckNodePort>,
}

/// A cached list; `None` if its contents have changed.
type Listed<T> = Option<Arc<[T]>>;

impl Sums {
    /// Replaces the contribution `old` of a Service with `new`.
    pub(super) fn replace(&mut self, key: &ObjectKey, old: Option<&Entry>, new: Option<&Entry>) {
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
        for spec in was.into_iter().flat_map(|was| &was.specs) {
            // The key may already belong to another Service.
            if self.specs.get(&spec.key).is_some_and(|known| known.is_same(spec)) {
                self.specs.remove(&spec.key);
                self.backends -= spec.backends.len();
            }
        }
        for spec in is.into_iter().flat_map(|is| &is.specs) {
            self.backends += spec.backends.len();
            let before = self.specs.insert(spec.key, spec.clone());
            self.backends -= before.map_or(0, |before| before.backends.len());
        }
    }

    /// The service ports for the dataplane. If backends that only drain would exceed the size of the tables, some are
    /// left out: repeatedly all those of one service port, from the namespace with the most. Their flows end early, and
    /// everything else is forwarded.
    pub(super) fn fitting_specs(&self, backends_max: usize) -> Vec<SharedService> {
        let mut surplus = self.backends.saturating_sub(backends_max);
        if surplus == 0 {
            return self.specs.values().cloned().collect();
        }
        let mut specs = self.specs.clone();
        let left = self.drains.least_removed().into_iter().filter_map(|(left, key)| {
            let spec = self.specs.get(&key)?;
            Some((spec.namespace.as_str(), left, (key, spec)))
        });
        let mut largest = LargestFirst::new(left);
        while surplus > 0
            && let Some((key, spec)) = largest.next()
        {
            let mut trimmed = ServiceSpec::clone(spec);
            trimmed.backends.retain(|b| !self.drains.is_removed(&key, SocketAddr::new(b.address, b.port)));
            surplus = surplus.saturating_sub(spec.backends.len() - trimmed.backends.len());
            specs.insert(key, trimmed.into());
        }
        specs.values().cloned().collect()
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
        // The order of listeners depends on fields of the Service.
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

    pub(super) fn health_check_node_ports(
        &mut self,
        plans: &BTreeMap<ObjectKey, Planned>,
    ) -> Arc<[HealthCheckNodePort]> {
        if let Some(listed) = &self.listed_listeners {
            return Arc::clone(listed);
        }
        let mut findings = Vec::new();
        let listeners =
            self.listeners.iter().map(|(key, listener)| (plans[key].service(), listener)).collect();
        let listed: Arc<[_]> = one_owner_each(listeners, &mut findings).into();
        if findings != self.listener_findings {
            (self.listener_findings, self.listed_findings) = (findings, None);
        }
        self.listed_listeners = Some(Arc::clone(&listed));
        listed
    }

    /// All findings together with `others`, sorted and without duplicates.
    pub(super) fn findings<'a>(&mut self, others: impl Iterator<Item = &'a Finding>) -> Arc<[Finding]> {
        let Self { findings, listener_findings, listed_findings, .. } = self;
        let listed = listed_findings.get_or_insert_with(|| {
            let mut all: Vec<Finding> =
                findings.keys().chain(&*listener_findings).cloned().chain(others.cloned()).collect();
            all.sort_unstable();
            all.dedup();
            all.into()
        });
        Arc::clone(listed)
    }
}
