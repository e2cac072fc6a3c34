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
//! Slices of headless Services, which only routes use, get the memory that the others leave, in the same way. So they
//! never affect a Service that isn't headless.
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
use tidegate_model::objects::{ENDPOINTS_MAX, EndpointSlice, Metadata, NotKept, ObjectKey, Objects};

/// The label of the slices of headless Services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Precedes the name of a Service for its slices with [`HEADLESS_LABEL`], which count apart from the others. No Service
/// has such a name, because names contain no slash.
const HEADLESS_PREFIX: &str = "headless/";

/// Whether the metadata are those of a slice of a headless Service.
pub(crate) fn is_headless(slice: &Metadata) -> bool {
    slice.labels.contains_key(HEADLESS_LABEL)
}

/// Whether the gateway uses a slice. One with the label of headless Services is used only if its Service is headless:
/// other Services must have the same endpoints as with kube-proxy, which skips all slices with this label.
pub(crate) fn is_used(slice: &EndpointSlice, objects: &Objects) -> bool {
    !is_headless(&slice.meta) || slice.service().is_some_and(|key| is_headless_service(&key, objects))
}

/// Whether the Service exists and is headless.
pub(crate) fn is_headless_service(key: &ObjectKey, objects: &Objects) -> bool {
    objects.services.get(key).is_some_and(|service| service.headless)
}

/// Removes the slices that the gateway doesn't use.
pub(crate) fn remove_unused(objects: &mut Objects) {
    let unused = objects.endpoint_slices.iter().filter(|(_, slice)| !is_used(slice, objects));
    let unused: Vec<ObjectKey> = unused.map(|(key, _)| key.clone()).collect();
    for key in unused {
        objects.endpoint_slices.remove(&key);
    }
}

/// The Service that a slice counts for in the budget; `None` if it has none.
pub(crate) fn owner(slice: &EndpointSlice) -> Option<ObjectKey> {
    let service = slice.service()?;
    Some(if is_headless(&slice.meta) { headless_owner(&service) } else { service })
}

/// What the slices of a headless Service count for in the budget.
pub(crate) fn headless_owner(service: &ObjectKey) -> ObjectKey {
    ObjectKey::new(service.namespace.as_str(), format!("{HEADLESS_PREFIX}{}", service.name))
}

/// A slice without its endpoints. It keeps the label of headless Services.
pub(crate) fn left_out(slice: &EndpointSlice, why: NotKept) -> EndpointSlice {
    let mut left_out = slice.left_out(why);
    if let Some(value) = slice.meta.labels.get(HEADLESS_LABEL) {
        left_out.meta.labels.insert(HEADLESS_LABEL.to_owned(), value.clone());
    }
    left_out
}

/// The maximum number of Services that a message names.
const NAMED_MAX: usize = 3;

/// The sizes of all slices, and the last decision.
#[derive(Debug, Clone)]
pub(crate) struct SliceBudget {
    bytes_max: usize,
    namespaces: BTreeMap<String, OfNamespace>,
    /// The name of the [`owner`] of each slice; empty if it has none.
    services: HashMap<ObjectKey, String>,
    /// The namespaces that changed since the last decision.
    changed: BTreeSet<String>,
    /// The bytes that a namespace may keep, according to the last decision.
    levels: Levels,
}

/// The bytes that a namespace may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Levels {
    ordinary: usize,
    /// For the slices of headless Services.
    headless: usize,
}

#[derive(Debug, Clone, Default)]
struct OfNamespace {
    /// The bytes of the Services that don't list too many endpoints.
    bytes: usize,
    /// The bytes of headless Services, likewise.
    headless_bytes: usize,
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
    /// The Services that lose their slices if the namespace may keep up to `levels`.
    fn services_over(&self, levels: Levels) -> BTreeMap<String, NotKept> {
        let large = self.services.iter().filter(|(_, service)| service.is_too_large());
        let mut not_kept: BTreeMap<String, NotKept> =
            large.map(|(name, _)| (name.clone(), NotKept::TooManyEndpoints)).collect();
        for (headless, mut bytes, level) in
            [(false, self.bytes, levels.ordinary), (true, self.headless_bytes, levels.headless)]
        {
            if bytes <= level {
                continue;
            }
            let others = self.services.iter().filter(|(name, service)| {
                !service.is_too_large() && name.starts_with(HEADLESS_PREFIX) == headless
            });
            let mut others: Vec<_> = others.map(|(name, of)| (of.seniority(), name, of)).collect();
            others.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            while bytes > level
                && let Some((_, name, service)) = others.pop()
            {
                bytes -= service.counted();
                not_kept.insert(name.clone(), NotKept::NamespaceShare);
            }
        }
        not_kept
    }

    /// The Services that lose their slices. The headless ones are left out: there is a finding about each that a route
    /// names.
    fn reported(&self) -> impl Iterator<Item = &String> {
        self.not_kept.keys().filter(|name| !name.starts_with(HEADLESS_PREFIX))
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
            levels: Levels { ordinary: usize::MAX, headless: usize::MAX },
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
        let service = owner(slice).map_or_else(String::new, |owner| owner.name);
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
        let is_headless = service.starts_with(HEADLESS_PREFIX);
        let bytes = if is_headless { &mut namespace.headless_bytes } else { &mut namespace.bytes };
        *bytes = *bytes - before + of.counted();
        if of.slices.is_empty() {
            namespace.services.remove(service);
        }
        if !self.changed.contains(&key.namespace) {
            self.changed.insert(key.namespace.clone());
        }
    }

    /// Decides again. Returns the [`owner`]s whose result changed.
    pub(crate) fn decide(&mut self) -> Vec<ObjectKey> {
        if self.changed.is_empty() {
            return Vec::new();
        }
        let levels = self.levels();
        let lower = Levels {
            ordinary: levels.ordinary.min(self.levels.ordinary),
            headless: levels.headless.min(self.levels.headless),
        };
        let moved = levels != self.levels;
        let mut changed_services = Vec::new();
        for (name, namespace) in &mut self.namespaces {
            let is_over = namespace.bytes > lower.ordinary || namespace.headless_bytes > lower.headless;
            let may_differ = self.changed.contains(name) || (moved && is_over);
            if !may_differ {
                continue;
            }
            let not_kept = namespace.services_over(levels);
            if not_kept == namespace.not_kept {
                continue;
            }
            let names: BTreeSet<&String> = not_kept.keys().chain(namespace.not_kept.keys()).collect();
            let differs = |service: &&&String| not_kept.get(**service) != namespace.not_kept.get(**service);
            let differing = names.iter().filter(differs);
            changed_services.extend(differing.map(|service| ObjectKey::new(name.as_str(), service.as_str())));
            namespace.not_kept = not_kept;
        }
        self.levels = levels;
        self.changed.clear();
        self.namespaces.retain(|_, namespace| !namespace.services.is_empty());
        changed_services
    }

    /// The bytes that a namespace may keep now.
    fn levels(&self) -> Levels {
        let of_all = |bytes: fn(&OfNamespace) -> usize| -> Vec<usize> {
            self.namespaces.values().map(bytes).collect()
        };
        let bytes = of_all(|namespace| namespace.bytes);
        let ordinary = fair_share(bytes.clone(), self.bytes_max);
        let kept: usize = bytes.into_iter().map(|bytes| bytes.min(ordinary)).sum();
        let left = self.bytes_max.saturating_sub(kept);
        Levels { ordinary, headless: fair_share(of_all(|namespace| namespace.headless_bytes), left) }
    }

    /// Why the slices of an [`owner`] are not kept, according to the last decision.
    pub(crate) fn not_kept(&self, service: &ObjectKey) -> Option<NotKept> {
        self.namespaces.get(&service.namespace)?.not_kept.get(&service.name).copied()
    }

    /// The [`owner`] of a slice.
    pub(crate) fn service_of(&self, slice: &ObjectKey) -> Option<ObjectKey> {
        let service = self.services.get(slice)?;
        Some(ObjectKey::new(slice.namespace.as_str(), service.as_str()))
    }

    /// The slices of an [`owner`].
    pub(crate) fn slices_of(&self, service: &ObjectKey) -> Vec<ObjectKey> {
        let of = self.namespaces.get(&service.namespace).and_then(|n| n.services.get(&service.name));
        let names = of.into_iter().flat_map(|of| of.slices.keys());
        names.map(|name| ObjectKey::new(service.namespace.as_str(), name.as_str())).collect()
    }

    /// The number of slices that are not kept, according to the last decision, without those of headless Services.
    pub(crate) fn count_not_kept(&self) -> usize {
        let count = |namespace: &OfNamespace| {
            let services = namespace.reported().filter_map(|name| namespace.services.get(name));
            services.map(|service| service.slices.len()).sum::<usize>()
        };
        self.namespaces.values().map(count).sum()
    }

    /// The report about each namespace whose slices are not all kept.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (&str, Diagnostic)> {
        let not_kept = self.namespaces.iter().filter(|(_, of)| of.reported().next().is_some());
        not_kept.map(|(namespace, of)| {
            let count = of.reported().count();
            let named: Vec<&str> = of.reported().take(NAMED_MAX).map(String::as_str).collect();
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

/// Removes the endpoints of slices that are not kept, and reports that. Also removes slices that the gateway doesn't
/// use. Returns [`SliceBudget::count_not_kept`].
pub(crate) fn leave_out(objects: &mut Objects, mib: u32, report: &mut Report) -> usize {
    let budget = SliceBudget::of(mib, objects);
    let not_kept = |(key, slice): (&ObjectKey, &Arc<EndpointSlice>)| {
        let why = budget.not_kept(&budget.service_of(key)?)?;
        Some((key.clone(), Arc::new(left_out(slice, why))))
    };
    let not_kept: Vec<_> = objects.endpoint_slices.iter().filter_map(not_kept).collect();
    for (key, slice) in not_kept {
        objects.endpoint_slices.insert(key, slice);
    }
    remove_unused(objects);
    report.extend(budget.faults().map(|(_, fault)| fault));
    budget.count_not_kept()
}

#[cfg(test)]
mod tests;
