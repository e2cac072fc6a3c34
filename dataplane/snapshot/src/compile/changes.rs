//! Finds the differences between the specs of the previous and the next snapshot, for [`revise`](super::revise).
//!
//! Unchanged services are the same objects in both, so the walk over all of them compares pointers. Services may be
//! added and removed if both specs list them in the order of their keys, as `reconcile` does.
//!
//! Invariant: if a change is found, the next spec has no two services with the same key.

use tidegate_spec::limits;
use tidegate_spec::{NoEndpoints, ServiceSpec, SnapshotSpec};
use tidegate_wire::Addr;

use crate::lineage::{Lineage, SortKey, sort_key};

/// A service that was changed, added (without an old one) or removed (without a new one).
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    pub(super) sort_key: SortKey,
    pub(super) old: Option<Listed<'a>>,
    pub(super) new: Option<Listed<'a>>,
}

/// A service and its position in its spec.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    pub(super) at: usize,
    pub(super) spec: &'a ServiceSpec,
}

/// All changes.
pub(super) struct Changes<'a> {
    /// In the order of keys.
    pub(super) services: Vec<Change<'a>>,
    /// Whether services were added or removed. Then both specs list them in the order of their keys.
    pub(super) is_structural: bool,
    /// The addresses that became VIPs (true) or stopped being VIPs (false).
    pub(super) vips: Vec<(Addr, bool)>,
    /// The number of all backends of the spec.
    pub(super) backends: usize,
}

impl Change<'_> {
    /// Whether something concerns the old or the new service.
    pub(super) fn any(&self, concerns: impl Fn(&ServiceSpec) -> bool) -> bool {
        [self.old, self.new].iter().flatten().any(|one| concerns(one.spec))
    }

    /// Whether a property of the old and the new service differs. A missing service has none.
    pub(super) fn differs<'b, T: PartialEq>(&'b self, of: impl Fn(&'b ServiceSpec) -> Option<T>) -> bool {
        self.old.and_then(|one| of(one.spec)) != self.new.and_then(|one| of(one.spec))
    }
}

impl<'a> Changes<'a> {
    /// The changes from the spec of `lineage` to `spec`; `None` if the next snapshot cannot be a revision, because
    /// something else differs, or because the spec may have to be refused.
    pub(super) fn between(lineage: &'a Lineage, spec: &'a SnapshotSpec) -> Option<Self> {
        if lineage.network != spec.network || spec.services.len() > limits::SERVICES_MAX {
            return None;
        }
        let mut changes = services(lineage, spec)?;
        let mut backends = lineage.backends;
        for change in &changes {
            backends += change.new.map_or(0, |new| new.spec.backends.len());
            backends -= change.old.map_or(0, |old| old.spec.backends.len());
        }
        if backends > limits::BACKENDS_MAX {
            return None;
        }
        let is_structural = changes.iter().any(|change| change.old.is_none() || change.new.is_none());
        if lineage.ranks.is_some() {
            changes.sort_unstable_by_key(|change| change.sort_key);
        }
        let vips = vips(lineage, spec, &changes)?;
        Some(Self { services: changes, is_structural, vips, backends })
    }
}

/// The services that differ, in the order of the spec.
fn services<'a>(lineage: &'a Lineage, spec: &'a SnapshotSpec) -> Option<Vec<Change<'a>>> {
    let mut changes = Vec::new();
    let mut olds = lineage.services.iter().enumerate().peekable();
    let mut at = 0;
    loop {
        let (old, new) = (olds.peek().copied(), spec.services.get(at));
        let (of_old, of_new) = match (old, new) {
            (None, None) => return Some(changes),
            (Some((_, old)), Some(new)) if old.is_same(new) => {
                olds.next();
                at += 1;
                continue;
            }
            (Some((_, old)), Some(new)) if old.key == new.key => (true, true),
            // In another order, positions can't be compared.
            _ if lineage.ranks.is_some() => return None,
            (Some((_, old)), Some(new)) if sort_key(&old.key) == sort_key(&new.key) => return None,
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (Some((_, old)), Some(new)) => {
                let is_removed = sort_key(&old.key) < sort_key(&new.key);
                (is_removed, !is_removed)
            }
        };
        let old = old.filter(|_| of_old).map(|(at, old)| Listed { at, spec: old });
        let new = new.filter(|_| of_new).map(|new| Listed { at, spec: new });
        // Only an added service may be out of order, because the others keep their order.
        if old.is_none() && !is_in_order(spec, at) {
            return None;
        }
        let key = old.or(new).map(|one| one.spec.key)?;
        changes.push(Change { sort_key: sort_key(&key), old, new });
        olds.next_if(|_| of_old);
        at += usize::from(of_new);
    }
}

/// Whether a service is between its neighbours in the order of keys.
fn is_in_order(spec: &SnapshotSpec, at: usize) -> bool {
    let around = at.saturating_sub(1)..(at + 2).min(spec.services.len());
    spec.services[around].windows(2).all(|pair| sort_key(&pair[0].key) < sort_key(&pair[1].key))
}

/// The addresses that became VIPs or no longer are; `None` if the specs aren't in the order of keys.
fn vips(lineage: &Lineage, spec: &SnapshotSpec, changes: &[Change<'_>]) -> Option<Vec<(Addr, bool)>> {
    let served = |service: &ServiceSpec| (service.no_endpoints != NoEndpoints::Unserved).then_some(());
    let mut vips: Vec<Addr> =
        changes.iter().filter(|change| change.differs(served)).map(|change| change.sort_key.0).collect();
    vips.dedup();
    if vips.is_empty() {
        return Some(Vec::new());
    }
    if lineage.ranks.is_some() {
        return None;
    }
    let change = |vip: Addr| {
        let was = is_served(vip, lineage.services.len(), |at| lineage.services.get(at).map(|one| &**one));
        let is = is_served(vip, spec.services.len(), |at| spec.services.get(at).map(|one| &**one));
        (was != is).then_some((vip, is))
    };
    Some(vips.into_iter().filter_map(change).collect())
}

/// Whether the address is a VIP of one of these services, which are in the order of their keys.
fn is_served<'a>(vip: Addr, len: usize, get: impl Fn(usize) -> Option<&'a ServiceSpec>) -> bool {
    let (mut from, mut to) = (0, len);
    while from < to {
        let middle = from + (to - from) / 2;
        if get(middle).is_some_and(|service| sort_key(&service.key).0 < vip) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    let here = (from..len).map_while(|at| get(at).filter(|service| sort_key(&service.key).0 == vip));
    here.into_iter().any(|service| service.no_endpoints != NoEndpoints::Unserved)
}
