//! Decides which EndpointSlices are kept. Those of a Service with too many endpoints are left out; namespaces share the
//! memory for the others.
//!
//! Users who can create EndpointSlices in a namespace control their size. A [`SliceBudget`] counts them, by namespace
//! and Service, and decides whose endpoints are not kept:
//!
//! 1. those of a Service whose slices list more than [`ENDPOINTS_MAX`] endpoints, because it is refused anyway;
//! 2. if the others together are larger than `bytes_max`: each namespace may keep slices up to a level, which is the
//!    same for all namespaces and as high as possible. A namespace below the level loses nothing. In a namespace above
//!    it, the newest Services (by their oldest slice) lose theirs, until the rest fits.
//!
//! A Service loses all of its slices or none. For a slice that is left out, the gateway records only that it exists and
//! how much it lists ([`EndpointSlice::left_out`]), so that the decision can be repeated.
//!
//! Both sources use it. Invariant: the result of [`SliceBudget::decide`] depends only on the current slices, not on the
//! order in which they arrived.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::fair_share::fair_share;
use tidegate_model::objects::{ENDPOINTS_MAX, EndpointSlice, NotKept, ObjectKey, Objects};

/// The maximum number of Services that a message names.
const NAMED_MAX: usize = 3;

/// The sizes of all slices, and the last decision.
#[derive(Debug, Clone)]
pub(crate) struct SliceBudget {
    bytes_max: usize,
    namespaces: BTreeMap<String, OfNamespace>,
    /// The Service of each slice; an empty name if it has none.
    services: HashMap<ObjectKey, String>,
    /// The namespaces that changed since the last decision.
    changed: BTreeSet<String>,
    /// The bytes that a namespace may keep, according to the last decision.
    level: usize,
}

#[derive(Debug, Clone, Default)]
struct OfNamespace {
    /// The bytes of the Services that don't list too many endpoints.
    bytes: usize,
    services: BTreeMap<String, OfService>,
    /// The Services that lose their slices, according to the last decision.
    not_kept: BTreeMap<String, NotKept>,
}

#[derive(Debug, Clone, Default)]
struct OfService {
    bytes: usize,
    endpoints: usize,
    slices: BTreeMap<String, Charge>,
}

/// The budget of a source, which lists and watches at the same time.
pub(crate) type SharedBudget = Arc<Mutex<SliceBudget>>;

/// Locks the budget. Poisoning is ignored, because no code panics while the budget is locked.
pub(crate) fn locked(budget: &SharedBudget) -> MutexGuard<'_, SliceBudget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of one slice.
#[derive(Debug, Clone, Copy)]
struct Charge {
    bytes: usize,
    endpoints: usize,
    created: Option<Timestamp>,
}

impl OfService {
    fn is_too_large(&self) -> bool {
        self.endpoints > ENDPOINTS_MAX
    }

    /// The bytes that count for its namespace.
    fn counted(&self) -> usize {
        if self.is_too_large() { 0 } else { self.bytes }
    }

    /// The age of its oldest slice, for sorting. A Service whose slices have no creation time counts as the newest.
    fn seniority(&self) -> (bool, Option<Timestamp>) {
        let oldest = self.slices.values().filter_map(|charge| charge.created).min();
        (oldest.is_none(), oldest)
    }
}

impl OfNamespace {
    /// The Services that lose their slices if the namespace may keep up to `level` bytes.
    fn services_over(&self, level: usize) -> BTreeMap<String, NotKept> {
        let (large, others): (Vec<_>, Vec<_>) =
            self.services.iter().partition(|(_, service)| service.is_too_large());
        let mut not_kept: BTreeMap<String, NotKept> =
            large.into_iter().map(|(name, _)| (name.clone(), NotKept::TooManyEndpoints)).collect();
        if self.bytes <= level {
            return not_kept;
        }
        let mut others: Vec<_> = others.into_iter().map(|(name, of)| (of.seniority(), name, of)).collect();
        others.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let mut bytes = self.bytes;
        while bytes > level
            && let Some((_, name, service)) = others.pop()
        {
            bytes -= service.counted();
            not_kept.insert(name.clone(), NotKept::NamespaceShare);
        }
        not_kept
    }
}

impl SliceBudget {
    /// An empty budget. `mib` is `endpointSlicesMiB`.
    pub(crate) fn new(mib: u32) -> Self {
        let bytes_max = usize::try_from(mib).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        Self {
            bytes_max,
            namespaces: BTreeMap::new(),
            services: HashMap::new(),
            changed: BTreeSet::new(),
            level: usize::MAX,
        }
    }

    /// The budget of these objects, after the decision.
    pub(crate) fn of(mib: u32, objects: &Objects) -> Self {
        let mut budget = Self::new(mib);
        objects.endpoint_slices.iter().for_each(|(key, slice)| budget.set(key, Some(slice)));
        budget.decide();
        budget
    }

    /// Records the current state of a slice, or with `None` its removal.
    pub(crate) fn set(&mut self, key: &ObjectKey, slice: Option<&EndpointSlice>) {
        if let Some(service) = self.services.remove(key) {
            self.change(key, &service, |of| {
                if let Some(charge) = of.slices.remove(&key.name) {
                    of.bytes -= charge.bytes;
                    of.endpoints -= charge.endpoints;
                }
            });
        }
        let Some(slice) = slice else { return };
        let service = slice.service().map_or_else(String::new, |service| service.name);
        let charge = Charge {
            bytes: slice.size(),
            endpoints: slice.endpoint_count(),
            created: slice.meta.creation_time,
        };
        self.change(key, &service, |of| {
            of.slices.insert(key.name.clone(), charge);
            of.bytes += charge.bytes;
            of.endpoints += charge.endpoints;
        });
        self.services.insert(key.clone(), service);
    }

    fn change(&mut self, key: &ObjectKey, service: &str, change: impl FnOnce(&mut OfService)) {
        let namespace = self.namespaces.entry(key.namespace.clone()).or_default();
        let of = namespace.services.entry(service.to_owned()).or_default();
        let before = of.counted();
        change(of);
        namespace.bytes = namespace.bytes - before + of.counted();
        if of.slices.is_empty() {
            namespace.services.remove(service);
        }
        if !self.changed.contains(&key.namespace) {
            self.changed.insert(key.namespace.clone());
        }
    }

    /// Decides again. Returns the Services whose result changed.
    pub(crate) fn decide(&mut self) -> Vec<ObjectKey> {
        if self.changed.is_empty() {
            return Vec::new();
        }
        let bytes = self.namespaces.values().map(|namespace| namespace.bytes);
        let level = fair_share(bytes.collect(), self.bytes_max);
        let (lower, moved) = (level.min(self.level), level != self.level);
        let mut changed_services = Vec::new();
        for (name, namespace) in &mut self.namespaces {
            let may_differ = self.changed.contains(name) || (moved && namespace.bytes > lower);
            if !may_differ {
                continue;
            }
            let not_kept = namespace.services_over(level);
            if not_kept == namespace.not_kept {
                continue;
            }
            let names: BTreeSet<&String> = not_kept.keys().chain(namespace.not_kept.keys()).collect();
            let differs = |service: &&&String| not_kept.get(**service) != namespace.not_kept.get(**service);
            let differing = names.iter().filter(differs);
            changed_services.extend(differing.map(|service| ObjectKey::new(name.as_str(), service.as_str())));
            namespace.not_kept = not_kept;
        }
        self.level = level;
        self.changed.clear();
        self.namespaces.retain(|_, namespace| !namespace.services.is_empty());
        changed_services
    }

    /// Why the slices of a Service are not kept, according to the last decision.
    pub(crate) fn not_kept(&self, service: &ObjectKey) -> Option<NotKept> {
        self.namespaces.get(&service.namespace)?.not_kept.get(&service.name).copied()
    }

    /// The Service that a slice counts for.
    pub(crate) fn service_of(&self, slice: &ObjectKey) -> Option<ObjectKey> {
        let service = self.services.get(slice)?;
        Some(ObjectKey::new(slice.namespace.as_str(), service.as_str()))
    }

    /// The slices that count for a Service.
    pub(crate) fn slices_of(&self, service: &ObjectKey) -> Vec<ObjectKey> {
        let of = self.namespaces.get(&service.namespace).and_then(|n| n.services.get(&service.name));
        let names = of.into_iter().flat_map(|of| of.slices.keys());
        names.map(|name| ObjectKey::new(service.namespace.as_str(), name.as_str())).collect()
    }

    /// The number of slices that are not kept, according to the last decision.
    pub(crate) fn count_not_kept(&self) -> usize {
        let count = |namespace: &OfNamespace| {
            let services = namespace.not_kept.keys().filter_map(|name| namespace.services.get(name));
            services.map(|service| service.slices.len()).sum::<usize>()
        };
        self.namespaces.values().map(count).sum()
    }

    /// The report about each namespace whose slices are not all kept.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (&str, Diagnostic)> {
        let not_kept = self.namespaces.iter().filter(|(_, of)| !of.not_kept.is_empty());
        not_kept.map(|(namespace, of)| {
            let services = of.not_kept.keys();
            let count = services.len();
            let named: Vec<&str> = services.take(NAMED_MAX).map(String::as_str).collect();
            let more = if count > NAMED_MAX { ", ..." } else { "" };
            let what = format!(
                "the EndpointSlices of {count} Services of namespace {namespace} exceed a limit, so their endpoints are \
                 ignored: {}{more}",
                named.join(", ")
            );
            let accepted = format!(
                "at most {ENDPOINTS_MAX} endpoints for one Service, and EndpointSlices of all namespaces together up to \
                 endpointSlicesMiB ({} MiB)",
                self.bytes_max >> 20
            );
            (namespace.as_str(), Diagnostic::warning(what).accepting(accepted))
        })
    }
}

/// Removes the endpoints of slices that are not kept, and reports that. Returns the number of these slices.
pub(crate) fn leave_out(objects: &mut Objects, mib: u32, report: &mut Report) -> usize {
    let budget = SliceBudget::of(mib, objects);
    let not_kept = |(key, slice): (&ObjectKey, &Arc<EndpointSlice>)| {
        let why = budget.not_kept(&budget.service_of(key)?)?;
        Some((key.clone(), Arc::new(slice.left_out(why))))
    };
    let not_kept: Vec<_> = objects.endpoint_slices.iter().filter_map(not_kept).collect();
    let count = not_kept.len();
    for (key, slice) in not_kept {
        objects.endpoint_slices.insert(key, slice);
    }
    report.extend(budget.faults().map(|(_, fault)| fault));
    count
}

#[cfg(test)]
mod tests;
