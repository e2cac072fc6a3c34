//! The faults of objects.

use std::collections::BTreeMap;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::ObjectKey;

use crate::kubernetes::kinds::KindIndex;

/// The reports of the objects that have faults.
#[derive(Default)]
pub(super) struct Faults(BTreeMap<(KindIndex, ObjectKey), Report>);

impl Faults {
    /// Sets the faults of an object. Returns whether there are new ones. If only the faults of an object disappear, the
    /// object itself has changed, so it is published anyway.
    pub(super) fn set(&mut self, index: KindIndex, key: &ObjectKey, report: Report) -> bool {
        let id = (index, key.clone());
        if report.is_empty() {
            self.0.remove(&id);
            return false;
        }
        let is_new = self.0.get(&id) != Some(&report);
        if is_new {
            self.0.insert(id, report);
        }
        is_new
    }

    /// Removes the faults of an object that was deleted or isn't used.
    pub(super) fn remove(&mut self, index: KindIndex, key: &ObjectKey) {
        self.0.remove(&(index, key.clone()));
    }

    /// The faults of the objects of each namespace that has any. `others`: faults that concern a namespace rather than
    /// one of its objects.
    pub(super) fn of_namespaces<'a>(
        &self,
        others: impl IntoIterator<Item = (&'a str, Diagnostic)>,
    ) -> BTreeMap<String, Report> {
        let mut all = BTreeMap::<String, Report>::new();
        for ((_, key), report) in self.0.iter().filter(|((_, key), _)| !key.namespace.is_empty()) {
            all.entry(key.namespace.clone()).or_default().merge(report);
        }
        for (namespace, fault) in others {
            all.entry(namespace.to_owned()).or_default().push(fault);
        }
        all
    }

    /// The faults of objects without a namespace.
    pub(super) fn of_cluster(&self) -> impl Iterator<Item = &Report> {
        self.0.iter().filter(|((_, key), _)| key.namespace.is_empty()).map(|(_, report)| report)
    }
}
